"""Int8 on a CPU: half the time and, for the layers, a quarter of the memory, if the model bears it.

Weights and states are rounded to 8 bits (`kernels`) layer by layer, and each layer's floats are freed. How far the
coefficients then lie from the exact ones is measured on built-in prompts (p2l.model.int8). What is rounded in the first
layers every later one carries on: where all layers are too many, the first eighth, or else the first quarter, are kept
in floating point. A model that does not bear that either is refused.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from p2l.common.errors import InputError
from p2l.model import backbones
from p2l.model.allocator import return_freed_memory
from p2l.model.batching import Batch, collate
from p2l.model.encoding import Encoding, PromptTokenizer
from p2l.model.kernels import NarrowEmbedding, PackedLinear, has_int8, has_numba, has_packed, packed_linear
from p2l.model.lean import can_be_fused, halved, layers_of, reads_cls_only, replace_layers, streamlined, whole
from p2l.model.model import P2LModel

# Prompts that are asked when a service starts: how far do the coefficients of a faster model lie from the exact ones?
#
# Shapes: B prompts, M models.

PROBES: tuple[tuple[str, ...], ...] = (
    ("hi",),
    ("What is 17 times 23?",),
    ("Write a Python function that returns the longest palindrome in a string, and explain how long it takes.",),
    ("Translate into French: the cat that my neighbour found has come home.", "And now into Japanese."),
    ("Schreibe ein kurzes Gedicht über den Herbst in Berlin, ohne das Wort Blatt zu benutzen.",),
    ("Prove that the square root of two is irrational.",),
    ("请用三句话解释量子纠缠。",),
    ("SELECT name FROM users WHERE id = 3; -- why is this slow on ten million rows?",),
    ("I have had a headache for two days and light hurts. Should I see a doctor?",),
    ("Summarise the plot of Hamlet for a ten-year-old.", "Shorter, please.", "Now as a limerick."),
    ("¿Cuáles son las diferencias entre el pretérito perfecto y el indefinido? Da cinco ejemplos de cada uno.",),
    ("A train leaves at 9:40 and travels 210 km at 84 km/h. When does it arrive?\n\nShow every step.",),
    ("def f(x):\n    return x if x < 2 else f(x - 1) + f(x - 2)\n\nprint(f(40))\n\nMake this faster.",),
    ("You are a dragon who sells insurance. A knight comes in. Play both parts, and let the knight win." * 3,),
    ("{'a': [1, 2, {'b': null}]} is not valid JSON. Say why, correct it, and write a schema that accepts it.",),
    ("Compare the economic policies of two countries of your choice between 1950 and 2000. " * 5,),
)
"""Turns of prompts of several kinds, languages and lengths."""


@dataclass(frozen=True)
class Agreement:
    """How the coefficients of two models for the same prompts agree."""

    spearman: float
    """Rank correlation over the models, mean over the prompts."""
    lowest: float
    """The least of any prompt."""
    error: float
    """Mean absolute difference, over the spread: the standard deviation of a prompt's coefficients, on average."""

    def __str__(self) -> str:
        ranks = f"rank correlation {self.spearman:.4f} (lowest {self.lowest:.4f})"
        return f"{ranks}, mean error {self.error:.2%} of the coefficients' spread"


def agreement(exact: npt.NDArray[np.float32], other: npt.NDArray[np.float32]) -> Agreement:
    """Compare coefficients (B, M)."""
    ranks = np.array([_spearman(a, b) for a, b in zip(exact, other, strict=True)])
    spread = float(exact.std(axis=1, dtype=np.float64).mean())
    error = float(np.abs(exact - other).mean(dtype=np.float64))
    relative = error / spread if spread > 0 else (0.0 if error == 0 else float("inf"))
    return Agreement(float(ranks.mean()), float(ranks.min()), relative)


def probes(tokenizer: PromptTokenizer) -> list[Encoding]:
    """The probes as this model reads them."""
    return tokenizer.encode(PROBES)


def of_length(tokenizer: PromptTokenizer, tokens: int) -> Encoding:
    """A prompt of so many tokens (fewer where the model reads no more), made of the probes."""
    ids = np.concatenate([encoding.ids[:-1] for encoding in probes(tokenizer)])
    body = np.resize(ids, min(tokens, tokenizer.max_length) - 1)
    return Encoding(np.append(body, tokenizer.cls_token_id), None, False)


def batch_of(model: P2LModel, prompt: Encoding) -> Batch:
    """One prompt, packed where the backbone can read that."""
    return collate([prompt], 0, packed=backbones.get(model.record.model_type).packs)


def coefficients(model: P2LModel, prompts: Sequence[Encoding]) -> npt.NDArray[np.float32]:
    """Coefficients (B, M) of prompts that are asked one by one."""
    with torch.inference_mode():
        rows = [model(batch_of(model, prompt)).coefs for prompt in prompts]
    found: npt.NDArray[np.float32] = torch.cat(rows).float().numpy()
    return found


def _spearman(a: npt.NDArray[np.float32], b: npt.NDArray[np.float32]) -> float:
    """Rank correlation, ties sharing their mean rank; 1 where there is nothing to rank."""
    from scipy.stats import rankdata

    if not np.isfinite(b).all():
        return -1.0
    x, y = (rankdata(values) - (len(values) + 1) / 2 for values in (a, b))
    size = float(np.sqrt((x**2).sum() * (y**2).sum()))
    return float((x * y).sum() / size) if size else float(np.array_equal(x, y))


METHODS = ("int8",)
LEAST_SPEARMAN, MOST_INT8_ERROR = 0.99, 0.02
_FIRST = (0.0, 1 / 8, 1 / 4)  # share of the layers that is kept, tried in turn


@dataclass(frozen=True)
class Quantized:
    """What became of a model."""

    layers: int
    kept: int
    """How many of the first layers stayed in floating point."""
    agreement: Agreement
    """With the coefficients that the model gave before."""

    def __str__(self) -> str:
        which = f", {self.layers - self.kept} of {self.layers} layers" if self.kept else ""
        return f"int8{which}: {self.agreement} on built-in prompts"


def quantize(
    model: P2LModel, tokenizer: PromptTokenizer, method: str = "int8", *, dtype: torch.dtype = torch.float32
) -> Quantized:
    """Round a freshly loaded float32 model to 8 bits, in place; it can then only answer packed prompts on a CPU.

    Args:
        model: as `P2LModel.from_pretrained` gives it.
        tokenizer: of the same folder.
        method: "int8".
        dtype: of layers that cannot be rounded, and of long attention: bfloat16 where that is fast.

    Raises:
        InputError: an unknown method, a model on a card or without layers, a torch without such products, or
            coefficients that lie too far from the exact ones (rank correlation below 0.99, error above 2 % of the
            spread); the model is then of no further use.
    """
    _check(model, method)
    prompts = probes(tokenizer)
    exact = coefficients(model, prompts)
    half = dtype == torch.bfloat16
    layers = layers_of(model)
    floats = list(layers)[: _count(_FIRST[-1], layers)]
    _narrow_embedding(model.model)
    replace_layers(model, lambda layer: _rounded(model, layer, half=half))
    for share in _FIRST:
        kept = _count(share, layers)
        for number in range(kept):
            exact_form = halved if half else partial(streamlined, make=packed_linear)
            layers[number] = exact_form(model, floats[number])
        found = Quantized(len(layers), kept, agreement(exact, coefficients(model, prompts)))
        if found.agreement.spearman >= LEAST_SPEARMAN and found.agreement.error <= MOST_INT8_ERROR:
            floats.clear()
            return_freed_memory()
            return found
    raise InputError(
        f"int8 changes this model's answers too much: {found.agreement} (at least {LEAST_SPEARMAN} and at most "
        f"{MOST_INT8_ERROR:.0%}); serve it without --quantize"
    )


def _rounded(model: P2LModel, layer: nn.Module, *, half: bool) -> nn.Module:
    """A layer in 8 bits, in its fastest form if this machine and the layer allow that."""
    from p2l.model.fused_layer import FusedLayer
    from p2l.model.int8_linear import Int8Linear

    if half and can_be_fused(model):
        return FusedLayer(layer, Int8Linear, cls_only=reads_cls_only(model, layer))
    return streamlined(model, layer, Int8Linear, half_attention=half)


def _check(model: P2LModel, method: str) -> None:
    if method not in METHODS:
        raise InputError(f"quantize {method!r} is unknown; use {', '.join(METHODS)}")
    parameter = next(model.parameters())
    if parameter.device.type != "cpu":
        raise InputError(f"int8 is for CPUs, and the model is on {parameter.device}; leave --quantize out")
    if not layers_of(model):
        raise InputError(f"int8 is for transformers, not for {model.record.model_type}; leave --quantize out")
    if not has_int8():
        raise InputError("this build of torch has no int8 products (oneDNN); leave --quantize out")
    if not has_numba():
        raise InputError("int8 needs numba: pip install 'p2l[serve]', or leave --quantize out")


def _count(share: float, layers: nn.ModuleList) -> int:
    return int(-(-len(layers) * share // 1))


def _narrow_embedding(backbone: Any) -> None:
    rows = backbone.get_input_embeddings()
    if type(rows) is nn.Embedding:
        backbone.set_input_embeddings(NarrowEmbedding(rows))


# float32 or bfloat16? Whichever answers faster here, unless the coefficients suffer; measured when a service starts.
#
# A processor without such instructions computes in bfloat16 many times slower than in float32, one with them up to
# twice
# as fast, and how much depends on the model's sizes. So both are timed, in turns, on prompts of three lengths, within a
# second or two; a single matrix product comes first, and spares hopeless machines the rest.

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
    """Lay a CPU model's layers out for answering packed prompts, in its own dtype and in place; see p2l.model.lean."""
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
