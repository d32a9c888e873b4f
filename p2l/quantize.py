"""Int8 on a CPU: half the time and, for the layers, a quarter of the memory, if the model bears it.

Weights and states are rounded to 8 bits (p2l.kernels) layer by layer, and each layer's floats are freed. How far the
coefficients then lie from the exact ones is measured on built-in prompts (p2l.probes). What is rounded in the first
layers every later one carries on: where all layers are too many, the first eighth, or else the first quarter, are kept
in floating point. A model that does not bear that either is refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn

from p2l.allocator import return_freed_memory
from p2l.encoding import PromptTokenizer
from p2l.errors import InputError
from p2l.kernels import NarrowEmbedding, has_int8, has_numba, packed_linear
from p2l.lean import can_be_fused, halved, layers_of, reads_cls_only, replace_layers, streamlined
from p2l.model import P2LModel
from p2l.probes import Agreement, agreement, coefficients, probes

__all__ = ["LEAST_SPEARMAN", "METHODS", "MOST_ERROR", "Quantized", "quantize"]

METHODS = ("int8",)
LEAST_SPEARMAN, MOST_ERROR = 0.99, 0.02
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
        if found.agreement.spearman >= LEAST_SPEARMAN and found.agreement.error <= MOST_ERROR:
            floats.clear()
            return_freed_memory()
            return found
    raise InputError(
        f"int8 changes this model's answers too much: {found.agreement} (at least {LEAST_SPEARMAN} and at most "
        f"{MOST_ERROR:.0%}); serve it without --quantize"
    )


def _rounded(model: P2LModel, layer: nn.Module, *, half: bool) -> nn.Module:
    """A layer in 8 bits, in its fastest form if this machine and the layer allow that."""
    from p2l.fused_layer import FusedLayer
    from p2l.int8 import Int8Linear

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
