"""float32 or bfloat16? Whichever answers faster here, unless the coefficients suffer; measured when a service starts.

A processor without such instructions computes in bfloat16 many times slower than in float32, one with them up to twice
as fast, and how much depends on the model's sizes. So both are timed, in turns, on prompts of three lengths, within a
second or two; a single matrix product comes first, and spares hopeless machines the rest.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import nn

from p2l import backbones
from p2l.encoding import PromptTokenizer
from p2l.kernels import PackedLinear, has_packed
from p2l.lean import halved, layers_of, replace_layers, whole
from p2l.model import P2LModel
from p2l.probes import Agreement, agreement, batch_of, coefficients, of_length, probes

__all__ = ["LEAST_GAIN", "MOST_ERROR", "Choice", "choose_dtype", "half_is_fast", "in_dtype", "make_fast"]

LEAST_GAIN, MOST_ERROR = 1.1, 0.02
LENGTHS = (16, 60, 250)
ROUNDS = 5
SECONDS = 1.5
"""When so much time has passed, no further round of timing begins."""


@dataclass(frozen=True)
class Choice:
    """A model in the dtype that was chosen, and why, in one line for the log."""

    model: P2LModel
    dtype: torch.dtype
    reason: str


@dataclass(frozen=True)
class Timing:
    """Least seconds of a pass of so many tokens."""

    tokens: int
    float32: float
    bfloat16: float

    @property
    def gain(self) -> float:
        """How many times as fast bfloat16 is."""
        return self.float32 / self.bfloat16


def choose_dtype(model: P2LModel, tokenizer: PromptTokenizer) -> Choice:
    """The faster dtype for a freshly loaded float32 model, which is made fast in the same go (`make_fast`).

    While both are measured memory holds the model one and a half times.
    """
    if next(model.parameters()).device.type == "cuda":
        return _on_a_card(model)
    if not layers_of(model):
        return Choice(model, torch.float32, f"float32: {model.record.model_type} has no products to shorten")
    product = _product()
    if product.gain < 1:
        make_fast(model)
        return Choice(
            model, torch.float32, f"float32: a product in bfloat16 takes {1 / product.gain:.1f} times as long here"
        )
    half = _half(model)
    make_fast(half)
    make_fast(model)
    prompts = probes(tokenizer)[::2]
    found = agreement(coefficients(model, prompts), coefficients(half, prompts))
    timings = _time(model, half, tokenizer)
    gain = float(np.exp(np.mean([np.log(timing.gain) for timing in timings])))
    faster = gain >= LEAST_GAIN and found.error <= MOST_ERROR
    reason = _reason(faster, gain, timings, found)
    return Choice(half, torch.bfloat16, reason) if faster else Choice(model, torch.float32, reason)


def in_dtype(model: P2LModel, dtype: torch.dtype, reason: str) -> Choice:
    """A freshly loaded model in a dtype that was decided elsewhere, made fast; without layers it stays as it is."""
    on_cpu = next(model.parameters()).device.type == "cpu"
    if on_cpu and not layers_of(model):
        dtype = torch.float32
    if dtype != next(model.model.parameters()).dtype:
        model = _half(model) if dtype == torch.bfloat16 else model.to(dtype)
    make_fast(model)
    return Choice(model, dtype, reason)


def half_is_fast() -> bool:
    """Whether this CPU multiplies faster in bfloat16 than in float32."""
    return _product().gain >= LEAST_GAIN


def make_fast(model: P2LModel) -> None:
    """Lay a CPU model's layers out for answering packed prompts, in its own dtype and in place; see p2l.lean."""
    first = next(model.model.parameters(), None)
    packs = backbones.get(model.record.model_type).packs
    if first is None or first.device.type != "cpu" or not packs or not has_packed():
        return
    replace_layers(model, partial(halved if first.dtype == torch.bfloat16 else whole, model))


def _on_a_card(model: P2LModel) -> Choice:
    if torch.cuda.is_bf16_supported():
        return Choice(model.to(torch.bfloat16), torch.bfloat16, "bfloat16: this card computes in it")
    return Choice(model, torch.float32, "float32: this card does not compute in bfloat16")


def _reason(faster: bool, gain: float, timings: Sequence[Timing], found: Agreement) -> str:
    shown = min(timings, key=lambda timing: abs(timing.tokens - 60))
    pair = f"{shown.bfloat16 * 1e3:.3g} against {shown.float32 * 1e3:.3g} ms for {shown.tokens} tokens"
    speed = f"{gain:.2g} times as fast as float32 here ({pair})"
    error = f"coefficients differ by {found.error:.1%} of their spread on average"
    if faster:
        return f"bfloat16: {speed}, {error}"
    if gain >= LEAST_GAIN:
        return f"float32: bfloat16 is {speed}, but its {error}"
    return f"float32: bfloat16 is only {speed}" if gain > 1 else f"float32: bfloat16 is not faster here ({pair})"


def _half(model: P2LModel) -> P2LModel:
    """A copy whose backbone is in bfloat16; buffers (rotary frequencies) and the head keep their digits."""
    narrow = {
        id(parameter): nn.Parameter(parameter.detach().to(torch.bfloat16), requires_grad=False)
        for parameter in model.model.parameters()
    }
    return copy.deepcopy(model, narrow)


def _product() -> Timing:
    """One product of usual size in both dtypes."""
    weight, x = torch.randn(1024, 1024), torch.randn(64, 1024)
    layers = [nn.Linear(1024, 1024, bias=False, dtype=dtype) for dtype in (torch.float32, torch.bfloat16)]
    kind = PackedLinear if has_packed() else None
    ways = [
        _pass_of(kind(weight.to(layer.weight.dtype)) if kind else layer, x.to(layer.weight.dtype)) for layer in layers
    ]
    return Timing(64, *_least_seconds(ways, time.perf_counter() + SECONDS / 4))


def _time(model: P2LModel, half: P2LModel, tokenizer: PromptTokenizer) -> list[Timing]:
    """Both on prompts of several lengths; no further length once the time is up or the first one has decided."""
    until = time.perf_counter() + SECONDS
    timings: list[Timing] = []
    for tokens in LENGTHS:
        if timings and (time.perf_counter() > until or timings[-1].gain < 1 / LEAST_GAIN):
            break
        prompt = of_length(tokenizer, tokens)
        ways = [_pass_of(each, batch_of(each, prompt)) for each in (model, half)]
        timings.append(Timing(len(prompt.ids), *_least_seconds(ways, until)))
    return timings


def _pass_of(module: nn.Module, given: object) -> Callable[[], object]:
    def forward() -> object:
        with torch.inference_mode():
            return module(given)

    return forward


def _least_seconds(ways: Sequence[Callable[[], object]], until: float) -> list[float]:
    """Least time of each, taken in turns after a round that does not count, at least once."""
    for way in ways:
        way()
    least = [float("inf")] * len(ways)
    for number in range(ROUNDS):
        if number and time.perf_counter() > until:
            break
        for place, way in enumerate(ways):
            started = time.perf_counter()
            way()
            least[place] = min(least[place], time.perf_counter() - started)
    return least
