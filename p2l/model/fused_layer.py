"""A layer of Llama, Qwen2 or Qwen3 with products in int8 or bfloat16.

oneDNN computes the products, torch the two of attention to long prompts, in bfloat16, and the loops of fused and
fused_attention all that lies between them. States stay in float32 from layer to layer.

Weights here are plain attributes: these layers are made for answering, they are not trained, moved or saved.

Shapes: T tokens, D hidden, H heads, G heads of keys and values, C width of a head.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from p2l.model import fused
from p2l.model.backbones import Packed
from p2l.model.fused_attention import answered
from p2l.model.kernels import TOKENS_AT_ONCE, PackedLinear
from p2l.model.tiles import LANES

_CHUNK = 128  # queries of a long prompt that are taken at a time: they need not look at keys beyond the last of them
_SHORT = 128  # tokens of prompts whose attention is one loop; longer ones take torch's products in bfloat16
ALL = 2**30
"""Keys that a query sees where nothing limits them."""
Array = npt.NDArray[Any]


class Product(Protocol):
    """A linear layer, as far as it is multiplied with what the loops have rounded."""

    in_features: int
    narrow: torch.dtype
    """What it reads: uint8 or bfloat16."""
    offset: Array
    """(N,) float32, to be added when the scales are in."""

    def product(self, given: Tensor) -> Tensor:
        """(T, D) -> (T, N) in float32 or bfloat16, to be multiplied by the tokens' scales."""
        ...


class HalfLinear(PackedLinear):
    """A linear layer in bfloat16."""

    narrow = torch.bfloat16

    def __init__(self, weight: Tensor, bias: Tensor) -> None:
        """Lay the weight (N, D) out; `bias` (N,) is added in float32, later."""
        super().__init__(weight.to(torch.bfloat16))
        self.offset: Array = bias.float().numpy()

    def product(self, given: Tensor) -> Tensor:
        """See `Product`."""
        return self.forward(given)


class FusedLayer(nn.Module):
    """A layer of Llama, Qwen2 or Qwen3 on packed prompts; attention to long ones is in bfloat16."""

    def __init__(self, layer: Any, make: Callable[[Tensor, Tensor], Product], *, cls_only: bool = False) -> None:
        """Take over transformers' layer; `make` says what becomes of weights and biases.

        With `cls_only` all tokens but each prompt's last become 0.
        """
        super().__init__()
        attention, mlp = layer.self_attn, layer.mlp
        self.width = int(attention.head_dim)
        self.heads = attention.q_proj.out_features // self.width
        self.groups = attention.k_proj.out_features // self.width
        self.scale = np.float32(attention.scaling)
        self.window = getattr(attention, "sliding_window", None) or ALL
        self.read = make(*joined_weights(attention.q_proj, attention.k_proj, attention.v_proj))
        self.write = make(*joined_weights(attention.o_proj))
        self.widen = make(*joined_weights(mlp.gate_proj, mlp.up_proj))
        self.narrow = make(*joined_weights(mlp.down_proj))
        self.before_attention, self.before_mlp = norm_of(layer.input_layernorm), norm_of(layer.post_attention_layernorm)
        self.of_heads = norms_of_heads(attention)
        self.cls_only = cls_only

    def forward(self, x: Tensor, turn: tuple[Array, Array], packed: Packed) -> Tensor:
        """States (T, D) in float32, and what turns them (T, C) each -> the same tensor, changed."""
        tokens = x
        given, scales = self._mixed(x, turn, packed)
        if self.cls_only:
            x, given, scales = x[packed.last], given[packed.last], scales[packed.last.numpy()]
        _add(x, self.write, given, scales)
        given, scales = _normed(x, self.before_mlp, self.widen)
        product = self.widen.product(given)
        given, new_scales = _room(len(x), self.narrow)
        fused.gated(_array(product), scales, self.widen.offset, _array(given), new_scales)
        _add(x, self.narrow, given, new_scales)
        return torch.zeros_like(tokens).index_copy_(0, packed.last, x) if self.cls_only else x

    def _mixed(self, x: Tensor, turn: tuple[Array, Array], packed: Packed) -> tuple[Tensor, Array]:
        """What each token gathers (T, H C), rounded, and the scales."""
        given, scales = _normed(x, self.before_attention, self.read)
        product = _array(self.read.product(given))
        found, new_scales = _room(len(x), self.write)
        if packed.longest <= _SHORT and self.width % LANES == 0:
            lengths, out = np.array(packed.lengths), _array(found)
            how = (*turn, self.of_heads, self.groups, lengths, self.scale, self.window)
            answered(product, scales, self.read.offset, *how, out, new_scales)
        else:
            heads = torch.empty((self.heads + 2 * self.groups, len(x), self.width), dtype=torch.bfloat16)
            turned = self.heads + self.groups
            fused.heads_of(product, scales, self.read.offset, *turn, _array(heads), turned, self.of_heads)
            fused.joined(_array(self._attend(heads, packed)), _array(found), new_scales)
        return found, new_scales

    def _attend(self, heads: Tensor, packed: Packed) -> Tensor:
        """What each token gathers (H, T, C)."""
        found, first = [], 0
        for length in packed.lengths[:-1]:
            # oneDNN's products are rounded up with tokens of the next prompt, which no token before them sees.
            whole = length + -length % TOKENS_AT_ONCE
            found.append(self._attend_one(heads[:, first : first + whole])[:, :length])
            first += length
        last = self._attend_one(heads[:, first:])  # and the tokens that fill the pack up
        return torch.cat([*found, last], dim=1) if found else last

    def _attend_one(self, heads: Tensor) -> Tensor:
        """One prompt, some queries at a time."""
        queries, keys, values = heads.split_with_sizes([self.heads, self.groups, self.groups])
        found = []
        for start in range(0, heads.shape[1], _CHUNK):
            stop = min(start + _CHUNK, heads.shape[1])
            some = queries[:, start:stop].reshape(self.groups, -1, self.width)
            scores = torch.bmm(some, keys[:, :stop].transpose(1, 2))
            rows = scores.view(self.heads, stop - start, stop)
            fused.shares_of(_array(rows), self.scale, start, self.window)
            found.append(torch.bmm(scores, values[:, :stop]).view(self.heads, stop - start, self.width))
        return torch.cat(found, dim=1) if len(found) > 1 else found[0]


def _normed(x: Tensor, norm: tuple[Array, np.float32], reader: Product) -> tuple[Tensor, Array]:
    given, scales = _room(len(x), reader)
    fused.normed(x.numpy(), *norm, _array(given), scales)
    return given, scales


def _add(x: Tensor, layer: Product, given: Tensor, scales: Array) -> None:
    fused.add_product(x.numpy(), _array(layer.product(given)), scales, layer.offset)


def _room(tokens: int, reader: Product) -> tuple[Tensor, Array]:
    """What a layer reads of so many tokens, and their scales, not yet filled."""
    return torch.empty((tokens, reader.in_features), dtype=reader.narrow), np.empty(tokens, np.float32)


def _array(states: Tensor) -> Array:
    """The memory of a tensor; of one in bfloat16 the bits."""
    states = states.contiguous()
    found: Array = (states.view(torch.uint16) if states.dtype == torch.bfloat16 else states).numpy()
    return found


def norm_of(norm: Any) -> tuple[Array, np.float32]:
    """Weights and epsilon of an RMS norm."""
    return norm.weight.detach().float().numpy(), np.float32(norm.variance_epsilon)


def norms_of_heads(attention: Any) -> Array:
    """A row of weights and epsilon for each head that is turned; no rows for families without these norms."""
    width = int(attention.head_dim)
    if getattr(attention, "q_norm", None) is None:
        return np.empty((0, width + 1), np.float32)
    rows = [np.append(*norm_of(norm)) for norm in (attention.q_norm, attention.k_norm)]
    counts = [part.out_features // width for part in (attention.q_proj, attention.k_proj)]
    return np.repeat(np.stack(rows), counts, axis=0).astype(np.float32)


def joined_weights(*layers: nn.Linear) -> tuple[Tensor, Tensor]:
    """Weight and bias of layers that read the same input, as one."""
    biases = [
        torch.zeros(layer.out_features, dtype=layer.weight.dtype) if layer.bias is None else layer.bias.detach()
        for layer in layers
    ]
    return torch.cat([layer.weight.detach() for layer in layers]), torch.cat(biases)
