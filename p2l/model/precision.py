"""Choose the precision that answers fastest here without changing the answers: float32, bfloat16 or, on request, int8.

Where OpenVINO is installed it computes (p2l.model.openvino), once its coefficients were compared with torch's on
built-in prompts; elsewhere, and where it disagrees, torch does.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from p2l.common.errors import InputError
from p2l.model import backbones, openvino
from p2l.model.batching import Batch, collate
from p2l.model.encoding import Encoding, PromptTokenizer
from p2l.model.model import P2LModel
from p2l.model.openvino import Graph, layers_of
from p2l.model.reader import ReaderBackbone

# Agreement with the exact coefficients, on prompts that are read when a service starts.
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
    """Agreement between the coefficients of two models for the same prompts."""

    spearman: float
    """Rank correlation over the models, mean over the prompts."""
    lowest: float
    """Lowest rank correlation of any prompt."""
    error: float
    """Mean absolute difference, over the spread: the standard deviation of a prompt's coefficients, on average."""

    def __str__(self) -> str:
        ranks = f"rank correlation {self.spearman:.4f} (lowest {self.lowest:.4f})"
        return f"{ranks}, mean error {self.error:.2%} of the coefficients' spread"


def agreement(exact: npt.NDArray[np.float32], coefs: npt.NDArray[np.float32]) -> Agreement:
    """Compare coefficients (B, M) with the exact ones."""
    ranks = np.array([_spearman(a, b) for a, b in zip(exact, coefs, strict=True)])
    spread = float(exact.std(axis=1, dtype=np.float64).mean())
    error = float(np.abs(exact - coefs).mean(dtype=np.float64))
    relative = error / spread if spread > 0 else (0.0 if error == 0 else float("inf"))
    return Agreement(float(ranks.mean()), float(ranks.min()), relative)


def of_length(tokenizer: PromptTokenizer, tokens: int) -> Encoding:
    """Return a prompt of `tokens` tokens, or of as many as the model reads, made of the probes."""
    encodings = tokenizer.encode(PROBES)
    ids = np.concatenate([encoding.ids[:-1] for encoding in encodings])
    body = np.resize(ids, min(tokens, tokenizer.max_length) - 1)
    return Encoding(np.append(body, tokenizer.cls_token_id), None, False, encodings[0].features)


def batch_of(model: P2LModel, prompt: Encoding) -> Batch:
    """Return a batch of one prompt, packed where the backbone can read that."""
    return collate([prompt], 0, packed=backbones.get(model.record.model_type).packs)


def coefficients(model: P2LModel, prompts: Sequence[Encoding]) -> npt.NDArray[np.float32]:
    """Return the coefficients (B, M) of prompts that are read one by one."""
    with torch.inference_mode():
        rows = [model(batch_of(model, prompt)).coefs for prompt in prompts]
    coefs: npt.NDArray[np.float32] = torch.cat(rows).float().numpy()
    return coefs


def _spearman(a: npt.NDArray[np.float32], b: npt.NDArray[np.float32]) -> float:
    """Return the rank correlation, ties sharing their mean rank; 1 where there is nothing to rank."""
    from scipy.stats import rankdata

    if not np.isfinite(b).all():
        return -1.0
    x, y = (rankdata(values) - (len(values) + 1) / 2 for values in (a, b))
    size = float(np.sqrt((x**2).sum() * (y**2).sum()))
    return float((x * y).sum() / size) if size else float(np.array_equal(x, y))


METHODS = ("int8",)
MIN_SPEARMAN, MAX_INT8_ERROR = 0.99, 0.02
# Shares of the layers, tried in turn, that stay in floating point. These are the first layers, since their rounding
# errors propagate through all later ones.
_KEPT_SHARES = (0.0, 1 / 8, 1 / 4)


@dataclass(frozen=True)
class Quantized:
    """The outcome of rounding a model."""

    layers: int
    kept: int
    """Number of first layers that stayed in floating point."""
    agreement: Agreement
    """Agreement with the coefficients before rounding."""

    def __str__(self) -> str:
        which = f", {self.layers - self.kept} of {self.layers} layers" if self.kept else ""
        return f"int8{which}: {self.agreement} on built-in prompts"


def quantize(
    model: P2LModel, tokenizer: PromptTokenizer, method: str = "int8", *, threads: int | None = None
) -> Quantized:
    """Round a freshly loaded float32 model to 8 bits, in place; it can then only answer packed prompts on a CPU.

    A pass is computed by `threads`, by default as many as torch would take. InputError for an unknown method, a model
    on a GPU or without layers, no OpenVINO, or coefficients that lie too far from the exact ones (rank correlation
    below 0.99, error above 2 % of the spread).
    """
    if method not in METHODS:
        raise InputError(f"quantize {method!r} is unknown; use {', '.join(METHODS)}")
    parameter = next(model.parameters())
    if parameter.device.type != "cpu":
        raise InputError(f"int8 is for CPUs, and the model is on {parameter.device}; leave --quantize out")
    if not layers_of(model):
        raise InputError(f"int8 is for transformers, not for {model.record.model_type}; leave --quantize out")
    if not openvino.is_installed():
        raise InputError("int8 needs OpenVINO: pip install 'p2l[cpu]', or leave --quantize out")
    prompts = tokenizer.encode(PROBES)
    exact = coefficients(model, prompts)
    try:
        graph = Graph(model, tokenizer.max_length)
    except Exception as error:  # tracer, frontend and plugin each raise their own for a model that they cannot read
        raise InputError(f"int8 needs OpenVINO, which cannot read this model ({type(error).__name__})") from error
    precision = "bfloat16" if openvino.has_bfloat16() else "float32"
    count = len(layers_of(model))
    for share in _KEPT_SHARES:
        kept = int(-(-count * share // 1))
        rounded = _with(model, graph.compiled(precision, threads=threads or torch.get_num_threads(), first=kept))
        quantized = Quantized(count, kept, agreement(exact, coefficients(rounded, prompts)))
        if quantized.agreement.spearman >= MIN_SPEARMAN and quantized.agreement.error <= MAX_INT8_ERROR:
            model.model = rounded.model
            return quantized
    raise InputError(
        f"int8 changes this model's answers too much: {quantized.agreement} (at least {MIN_SPEARMAN} and at most "
        f"{MAX_INT8_ERROR:.0%}); serve it without --quantize"
    )


# float32 or bfloat16: a processor without such instructions computes in bfloat16 many times slower than in float32, one
# with them up to twice as fast, depending on the model's sizes. So both are timed, in turns.

_MIN_GAIN, _MAX_ERROR, _MAX_FLOAT32_ERROR = 1.1, 0.02, 0.001
_TIMED_TOKENS = (16, 60, 250)
_TIMING_ROUNDS = 5
_MAX_TIMING_SECONDS = 1.5
"""Seconds after which no further round of timing begins: the start of a service waits for it."""


@dataclass(frozen=True)
class Choice:
    """A model in the dtype that was chosen, with the reason in one line for the log."""

    model: P2LModel
    dtype: torch.dtype
    reason: str


@dataclass(frozen=True)
class Timing:
    """The shortest time of a pass of `tokens` tokens, in seconds."""

    tokens: int
    float32: float
    bfloat16: float

    @property
    def gain(self) -> float:
        """Speed of bfloat16 over that of float32."""
        return self.float32 / self.bfloat16


def choose_dtype(model: P2LModel, tokenizer: PromptTokenizer, *, threads: int | None = None) -> Choice:
    """Choose the faster dtype for a freshly loaded float32 model, in OpenVINO where that is installed and agrees.

    A pass is computed by `threads`, by default as many as torch would take. While both dtypes are measured memory holds
    the model two and a half times.
    """
    if next(model.parameters()).device.type == "cuda":
        if torch.cuda.is_bf16_supported():
            return Choice(model.to(torch.bfloat16), torch.bfloat16, "bfloat16: this card computes in it")
        return Choice(model, torch.float32, "float32: this card does not compute in bfloat16")
    if not layers_of(model):
        return Choice(model, torch.float32, f"float32: {model.record.model_type} has no products to shorten")
    library = _Library(model, tokenizer, threads)
    whole = library.model_in(torch.float32)
    by = library.name
    if whole is None:
        whole = model
        product = _product()
        slow = f"float32: a product in bfloat16 takes {1 / product.gain:.1f} times as long here"
        half = None if product.gain < 1 else _half(model)
    else:
        slow = "float32: this processor has no bfloat16"
        half = library.model_in(torch.bfloat16) if openvino.has_bfloat16() else None
    if half is None:
        return Choice(whole, torch.float32, _computed(slow, by))
    half_agreement = agreement(library.exact, coefficients(half, library.prompts))
    timings = _time(whole, half, tokenizer)
    gain = float(np.exp(np.mean([np.log(timing.gain) for timing in timings])))
    faster = gain >= _MIN_GAIN and half_agreement.error <= _MAX_ERROR
    reason = _computed(_reason(faster, gain, timings, half_agreement), by)
    return Choice(half, torch.bfloat16, reason) if faster else Choice(whole, torch.float32, reason)


def in_dtype(
    model: P2LModel, tokenizer: PromptTokenizer, dtype: torch.dtype, reason: str, *, threads: int | None = None
) -> Choice:
    """Put a freshly loaded model into a dtype that was decided elsewhere, in OpenVINO where that agrees with torch."""
    on_cpu = next(model.parameters()).device.type == "cpu"
    if on_cpu and layers_of(model) and dtype in (torch.float32, torch.bfloat16):
        library = _Library(model, tokenizer, threads)
        faster = library.model_in(dtype)
        reason = _computed(reason, library.name)
        if faster is not None:
            return Choice(faster, dtype, reason)
    if on_cpu and not layers_of(model):
        dtype = torch.float32  # there is no product to shorten
    if dtype != next(model.model.parameters()).dtype:
        model = _half(model) if dtype == torch.bfloat16 else model.to(dtype)
    return Choice(model, dtype, reason)


class _Library:
    """A float32 model computed by OpenVINO, where that is installed and can read the model."""

    def __init__(self, model: P2LModel, tokenizer: PromptTokenizer, threads: int | None) -> None:
        self.name = "torch"
        """The library that computes, with the reason where that is torch."""
        self.prompts = tokenizer.encode(PROBES)[::2]  # half of them: the start of a service waits for this
        self.exact = coefficients(model, self.prompts)
        self._model = model
        self._threads = threads or torch.get_num_threads()
        self._graph: Graph | None = None
        if openvino.is_installed() and backbones.get(model.record.model_type).packs:
            try:
                self._graph = Graph(model, tokenizer.max_length)
            except Exception as error:  # tracer and frontend each raise their own for a model that they cannot read
                self.name = f"torch, for {openvino.version()} cannot read this model ({type(error).__name__})"

    def model_in(self, dtype: torch.dtype) -> P2LModel | None:
        """Return the model computed by the library; None where it cannot compute so, or gives other coefficients."""
        if self._graph is None or (dtype == torch.bfloat16 and not openvino.has_bfloat16()):
            return None
        name = str(dtype).removeprefix("torch.")
        model = _with(self._model, self._graph.compiled(name, threads=self._threads))
        error = agreement(self.exact, coefficients(model, self.prompts)).error
        if error > (_MAX_FLOAT32_ERROR if dtype == torch.float32 else _MAX_ERROR):
            self.name = f"torch, for coefficients of {openvino.version()} differ by {error:.1%} of their spread"
            return None
        self.name = openvino.version()
        return model


def _with(model: P2LModel, backbone: nn.Module) -> P2LModel:
    """Return the same model with another backbone, or a reader with another encoder."""
    if isinstance(model.model, ReaderBackbone):
        backbone = model.model.with_encoder(backbone)
    copied = P2LModel(backbone, model.head, model.model_list, model.record, model.covariates).eval()
    copied.posterior = model.posterior
    return copied


def _computed(reason: str, library: str) -> str:
    """Return the reason with the library that computes, in place of one that was measured for another model."""
    return f"{reason.split('; computed by ')[0]}; computed by {library}"


def _reason(faster: bool, gain: float, timings: Sequence[Timing], half: Agreement) -> str:
    shown = min(timings, key=lambda timing: abs(timing.tokens - 60))
    pair = f"{shown.bfloat16 * 1e3:.3g} against {shown.float32 * 1e3:.3g} ms for {shown.tokens} tokens"
    speed = f"{gain:.2g} times as fast as float32 here on average ({pair})"
    error = f"coefficients differ by {half.error:.1%} of their spread on average"
    if faster:
        return f"bfloat16: {speed}, {error}"
    if gain >= _MIN_GAIN:
        return f"float32: bfloat16 is {speed}, but its {error}"
    return f"float32: bfloat16 is only {speed}" if gain > 1 else f"float32: bfloat16 is not faster here ({pair})"


def _half(model: P2LModel) -> P2LModel:
    """Return a copy with the backbone in bfloat16; buffers (rotary frequencies) and the head keep their digits."""
    narrow = {
        id(parameter): nn.Parameter(parameter.detach().to(torch.bfloat16), requires_grad=False)
        for parameter in model.model.parameters()
    }
    return copy.deepcopy(model, narrow)


def _product() -> Timing:
    """Time one product of usual size in both dtypes."""
    x = torch.randn(64, 1024)
    layers = [nn.Linear(1024, 1024, bias=False, dtype=dtype) for dtype in (torch.float32, torch.bfloat16)]
    ways = [_pass_of(layer, x.to(layer.weight.dtype)) for layer in layers]
    return Timing(64, *_least_seconds(ways, time.perf_counter() + _MAX_TIMING_SECONDS / 4))


def _time(model: P2LModel, half: P2LModel, tokenizer: PromptTokenizer) -> list[Timing]:
    """Time both models on prompts of several lengths, until the time is up or the first length has decided."""
    until = time.perf_counter() + _MAX_TIMING_SECONDS
    timings: list[Timing] = []
    for tokens in _TIMED_TOKENS:
        if timings and (time.perf_counter() > until or timings[-1].gain < 1 / _MIN_GAIN):
            break
        prompt = of_length(tokenizer, tokens)
        ways = [_pass_of(each, batch_of(each, prompt)) for each in (model, half)]
        timings.append(Timing(len(prompt.ids), *_least_seconds(ways, until)))
    return timings


def _pass_of(module: nn.Module, batch: object) -> Callable[[], object]:
    def forward() -> object:
        with torch.inference_mode():
            return module(batch)

    return forward


def _least_seconds(ways: Sequence[Callable[[], object]], until: float) -> list[float]:
    """Return the shortest time of each of some passes, taken in turns after a round that does not count."""
    for way in ways:
        way()
    least = [float("inf")] * len(ways)
    for number in range(_TIMING_ROUNDS):
        if number and time.perf_counter() > until:
            break
        for place, way in enumerate(ways):
            started = time.perf_counter()
            way()
            least[place] = min(least[place], time.perf_counter() - started)
    return least
