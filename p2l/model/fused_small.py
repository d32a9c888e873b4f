"""A whole layer of a small Llama, Qwen2 or Qwen3 in float32 as one loop, compiled by numba.

For weights that fit into the caches of a core each call of a library takes longer than its work.

Weights here are plain attributes: these layers are made for answering, they are not trained, moved or saved.

Shapes: B prompts, T tokens of all prompts together, D hidden, H heads, G heads of keys and values, C width of a head.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from p2l.model import fused
from p2l.model.backbones import Packed
from p2l.model.fused import compiled
from p2l.model.fused_attention import attended
from p2l.model.fused_layer import ALL, joined_weights, norm_of, norms_of_heads
from p2l.model.tiles import ROWS, multiply, tiled

Array = npt.NDArray[Any]


class _Weights(NamedTuple):
    """What `_passed` reads, of one kind for all layers, so that it is compiled once."""

    before_attention: Array
    read: Array
    of_read: Array
    of_heads: Array
    write: Array
    of_write: Array
    before_mlp: Array
    widen: Array
    of_widen: Array
    narrow: Array
    of_narrow: Array


class SmallLayer(nn.Module):
    """A layer on packed prompts, whose heads' width is a multiple of `p2l.model.tiles.LANES`."""

    def __init__(self, layer: Any, *, cls_only: bool = False) -> None:
        """Take over transformers' layer; with `cls_only` all tokens but each prompt's last are left as they are."""
        super().__init__()
        attention, mlp = layer.self_attn, layer.mlp
        self.groups = attention.k_proj.out_features // int(attention.head_dim)
        self.width = int(attention.head_dim)
        self.scale = np.float32(attention.scaling)
        self.window = getattr(attention, "sliding_window", None) or ALL
        self.before_attention, self.before_mlp = norm_of(layer.input_layernorm), norm_of(layer.post_attention_layernorm)
        read = _tiled(attention.q_proj, attention.k_proj, attention.v_proj)
        self.weights = _Weights(
            self.before_attention[0],
            *read,
            norms_of_heads(attention),
            *_tiled(attention.o_proj),
            self.before_mlp[0],
            *_tiled(mlp.gate_proj, mlp.up_proj),
            *_tiled(mlp.down_proj),
        )
        self.cls_only = cls_only
        count = sum(part.weight.numel() for part in layer.modules() if isinstance(part, nn.Linear))
        self.weight = torch.empty((count, 1), device="meta")  # for whoever counts them

    def forward(self, x: Tensor, turn: tuple[Array, Array], packed: Packed) -> Tensor:
        """States (T, D) in float32, and what turns them (T, C) each -> the same tensor, changed."""
        lengths = np.array(packed.lengths)
        numbers = (self.before_attention[1], self.before_mlp[1], self.scale, self.window, self.groups, self.width)
        _pass(x.numpy(), self.weights, *turn, lengths, *numbers, self.cls_only)
        return x


@compiled
def _pass(
    x: Any,
    weights: Any,
    cos: Any,
    sin: Any,
    lengths: Any,
    eps: Any,
    later_eps: Any,
    scale: Any,
    window: Any,
    groups: Any,
    width: Any,
    cls_only: Any,
) -> None:
    """Change the states (T, D)."""
    count = weights.write.shape[0] // width
    heads = np.empty((count + 2 * groups, x.shape[0] + ROWS, width), np.float32)
    given, scales = _room(x.shape[0], x.shape[1])
    fused.normed(x, weights.before_attention, eps, given, scales)
    product = _product(given, weights.read)
    fused.heads_of(product[: len(x)], scales, weights.of_read, cos, sin, heads, count + groups, weights.of_heads)
    mixed = attended(heads, groups, lengths, scale, window, cls_only)
    if cls_only:
        last = np.cumsum(lengths) - 1
        some = x[last]
        _rest(some, mixed[last], weights, later_eps)
        x[last] = some
    else:
        _rest(x, mixed, weights, later_eps)


@compiled
def _rest(x: Any, mixed: Any, weights: Any, eps: Any) -> None:
    """What follows attention."""
    given, scales = _room(x.shape[0], mixed.shape[1])
    given[: len(x)] = mixed
    scales[:] = 1
    fused.add_product(x, _product(given, weights.write), scales, weights.of_write)
    given, scales = _room(x.shape[0], x.shape[1])
    fused.normed(x, weights.before_mlp, eps, given, scales)
    inner, _ = _room(x.shape[0], weights.narrow.shape[0])
    fused.gated(_product(given, weights.widen)[: len(x)], scales, weights.of_widen, inner, scales)
    fused.add_product(x, _product(inner, weights.narrow), scales, weights.of_narrow)


@compiled
def _room(tokens: Any, width: Any) -> Any:
    """What a product reads of so many tokens, rows filled up to whole tiles, and the tokens' scales."""
    found = np.empty(((tokens + ROWS - 1) // ROWS * ROWS, width), np.float32)
    found[tokens:] = 0
    return found, np.empty(tokens, np.float32)


@compiled
def _product(given: Any, weight: Any) -> Any:
    found = np.empty((given.shape[0], weight.shape[1]), np.float32)
    multiply(given, weight, found)
    return found


def _tiled(*layers: nn.Linear) -> tuple[Array, Array]:
    """Weight and bias of layers that read the same input, for the tiles."""
    weight, bias = joined_weights(*layers)
    return tiled(weight.float().numpy()), bias.float().numpy()
