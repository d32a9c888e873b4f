"""Layers in 8 bits for serving on a CPU.

A linear layer is quantised as

    y = (q(x) Wq) s_x s_w,    q(x) = round(127 x / max |x|) of each token,    Wq likewise of each output

with the products of 8-bit numbers summed in 32 bits by oneDNN. A scale for each token, not for the whole batch, keeps a
prompt's answer independent of the prompts that it shares a batch with, and a token with large states harms no other.
What lies between the products are the loops of p2l.fused.

Weights here are plain attributes: these layers are made for answering, they are not trained, moved or saved.

Shapes: T tokens, D inputs or hidden, N outputs, H heads, G heads of keys and values, C width of a head.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from p2l import fused
from p2l.attention import Packed
from p2l.kernels import Frozen

__all__ = ["Int8Layer", "Int8Linear"]

_LEVELS = 127
_LEAST = 1e-30  # of an output's largest weight: an output of zeros has a scale too
_CHUNK = 128  # queries of a long prompt that are taken at a time: they need not look at keys beyond the last of them
_ALL = 2**30

Array = npt.NDArray[Any]


class Int8Linear(Frozen):
    """A linear layer in int8: a scale for each output and, found anew each time, one for each token."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        """Quantise the weight (N, D); `bias` (N,) stays as it is."""
        super().__init__(weight, bias)
        weight = weight.detach().float()
        self._scales = weight.abs().amax(1).clamp_min_(_LEAST) / _LEVELS
        rounded = (weight / self._scales[:, None]).round_().to(torch.int8)
        self._packed = torch.ops.onednn.qlinear_prepack(rounded, None)
        self._zeros = torch.zeros(len(weight), dtype=torch.long)
        self._product = torch.ops.onednn.qlinear_pointwise.default
        self.offset: Array = np.zeros(len(weight), np.float32) if bias is None else bias.detach().float().numpy()

    def product(self, rounded: Tensor) -> Tensor:
        """Bytes (T, D) -> float32 (T, N), to be multiplied by the tokens' scales."""
        # Bytes without sign, 128 meaning zero: oneDNN has fast kernels for these alone on a CPU without AMX.
        options: tuple[Any, ...] = (self._scales, self._zeros, None, 1.0, 0, torch.float32, "none", [], "")
        found: Tensor = self._product(rounded, 1.0, 128, self._packed, *options)
        return found

    def forward(self, x: Tensor, onto: Tensor | None = None) -> Tensor:
        """(..., D) -> (..., N) of the same dtype, added to `onto` (..., N) if there is one."""
        states = x.float().reshape(-1, self.in_features).contiguous()
        rounded, scales = _room(states.shape)
        fused.state_bytes(states.numpy(), rounded.numpy(), scales)
        shape = (*x.shape[:-1], self.out_features)
        found = torch.zeros(shape) if onto is None else onto.float().clone(memory_format=torch.contiguous_format)
        rows = found.view(-1, self.out_features).numpy()
        fused.add_product(rows, self.product(rounded).numpy(), scales, self.offset)
        return found.to(x.dtype)


class Int8Layer(nn.Module):
    """A layer of Llama, Qwen2 or Qwen3 on packed prompts, with attention in bfloat16."""

    def __init__(self, layer: Any, *, cls_only: bool = False) -> None:
        """Quantise transformers' layer; with `cls_only` all tokens but each prompt's last become 0."""
        super().__init__()
        attention, mlp = layer.self_attn, layer.mlp
        self.width = int(attention.head_dim)
        self.heads = attention.q_proj.out_features // self.width
        self.groups = attention.k_proj.out_features // self.width
        self.scale = np.float32(attention.scaling)
        self.window = getattr(attention, "sliding_window", None) or _ALL
        self.read = _joined(attention.q_proj, attention.k_proj, attention.v_proj)
        self.write = _joined(attention.o_proj)
        self.widen = _joined(mlp.gate_proj, mlp.up_proj)
        self.narrow = _joined(mlp.down_proj)
        self.before_attention, self.before_mlp = _norm(layer.input_layernorm), _norm(layer.post_attention_layernorm)
        self.of_heads = self._head_norms(attention)
        self.cls_only = cls_only

    def forward(self, x: Tensor, turn: tuple[Tensor, Tensor], packed: Packed) -> Tensor:
        """States (T, D) in float32 -> the same tensor, changed."""
        tokens = x
        mixed = self._attend(self._heads(x, turn), packed)
        if self.cls_only:
            x, mixed = x[packed.last], mixed[:, packed.last]
        rounded, scales = _room((len(x), self.write.in_features))
        fused.mixed_bytes(_bits(mixed), rounded.numpy(), scales)
        self._add(x, self.write, rounded, scales)
        rounded, scales = _normed(x, self.before_mlp)
        product = self.widen.product(rounded)
        rounded, new_scales = _room((len(x), self.narrow.in_features))
        fused.gate_bytes(product.numpy(), scales, self.widen.offset, rounded.numpy(), new_scales)
        self._add(x, self.narrow, rounded, new_scales)
        return torch.zeros_like(tokens).index_copy_(0, packed.last, x) if self.cls_only else x

    def _heads(self, x: Tensor, turn: tuple[Tensor, Tensor]) -> Tensor:
        """Queries, keys and values (H + 2 G, T, C) in bfloat16, the first two turned by their places."""
        rounded, scales = _normed(x, self.before_attention)
        found = torch.empty((self.heads + 2 * self.groups, len(x), self.width), dtype=torch.bfloat16)
        cos, sin = (part[:, 0].numpy() for part in turn)
        product = self.read.product(rounded).numpy()
        turned = self.heads + self.groups
        fused.heads_of(product, scales, self.read.offset, cos, sin, _bits(found), turned, self.of_heads)
        return found

    def _attend(self, heads: Tensor, packed: Packed) -> Tensor:
        """What each token gathers (H, T, C) in bfloat16."""
        parts = heads.split_with_sizes(packed.lengths, dim=1)
        found = [some for part in parts for some in self._attend_one(part)]
        return torch.cat(found, dim=1) if len(found) > 1 else found[0]

    def _attend_one(self, heads: Tensor) -> list[Tensor]:
        """One prompt, some queries at a time."""
        queries, keys, values = heads.split_with_sizes([self.heads, self.groups, self.groups])
        found = []
        for start in range(0, heads.shape[1], _CHUNK):
            stop = min(start + _CHUNK, heads.shape[1])
            some = queries[:, start:stop].reshape(self.groups, -1, self.width)
            scores = torch.bmm(some, keys[:, :stop].transpose(1, 2))
            rows = scores.view(self.heads, stop - start, stop)
            fused.shares_of(_bits(rows), self.scale, start, self.window)
            found.append(torch.bmm(scores, values[:, :stop]).view(self.heads, stop - start, self.width))
        return found

    def _add(self, x: Tensor, layer: Int8Linear, rounded: Tensor, scales: Array) -> None:
        fused.add_product(x.numpy(), layer.product(rounded).numpy(), scales, layer.offset)

    def _head_norms(self, attention: Any) -> Array:
        """A row of weights and epsilon for each head that is turned; no rows for families without these norms."""
        if getattr(attention, "q_norm", None) is None:
            return np.empty((0, self.width + 1), np.float32)
        rows = [np.append(*_norm(norm)) for norm in (attention.q_norm, attention.k_norm)]
        return np.repeat(np.stack(rows), [self.heads, self.groups], axis=0).astype(np.float32)


def _normed(x: Tensor, norm: tuple[Array, np.float32]) -> tuple[Tensor, Array]:
    rounded, scales = _room(x.shape)
    fused.normed_bytes(x.numpy(), *norm, rounded.numpy(), scales)
    return rounded, scales


def _room(shape: tuple[int, ...]) -> tuple[Tensor, Array]:
    """Bytes of this shape (T, D) and a scale for each row, not yet filled."""
    return torch.empty(shape, dtype=torch.uint8), np.empty(shape[0], np.float32)


def _bits(half: Tensor) -> Array:
    """The bits of a contiguous tensor in bfloat16."""
    found: Array = half.contiguous().view(torch.uint16).numpy()
    return found


def _norm(norm: Any) -> tuple[Array, np.float32]:
    return norm.weight.detach().float().numpy(), np.float32(norm.variance_epsilon)


def _joined(*layers: nn.Linear) -> Int8Linear:
    """Layers that read the same input, as one."""
    biases = [torch.zeros(layer.out_features) if layer.bias is None else layer.bias.detach() for layer in layers]
    return Int8Linear(torch.cat([layer.weight.detach() for layer in layers]), torch.cat(biases))
