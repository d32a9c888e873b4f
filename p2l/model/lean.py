"""The same transformer with fewer and faster steps, for answering on a CPU.

`replace_layers` replaces the layers of a loaded backbone, one by one, so that memory never holds two copies. Families
that are built like Llama get layers of our own: queries, keys and values in one product, gate and up in another, the
rotary embedding in three steps, nothing but what packed prompts need. Other transformers keep their code and get new
linear layers. What a linear layer is, is the caller's choice: p2l.model.kernels.

Shapes: T tokens of all prompts together, D hidden, H heads, G heads of keys and values, C width of a head.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.modeling_outputs import BaseModelOutput

from p2l.model.backbones import Packed, one_by_one
from p2l.model.kernels import SMALL, TOKENS_AT_ONCE, WORTH_PADDING, LinearMaker, SmallLinear, has_numba, packed_linear
from p2l.model.model import P2LModel

LIKE_LLAMA = ("llama", "qwen2", "qwen3")
"""Families whose layers have a form of our own."""

# From so many tokens on steps in bfloat16 beat torch's own attention; queries are taken so many at a time.
_LONG, _CHUNK = 40, 128

# A light model's packs are filled up to multiples of so many tokens, from `WORTH_PADDING` on.
_ROUND = 32


def layers_of(model: P2LModel) -> nn.ModuleList:
    """The layers of a transformer, first to last; none for a backbone without."""
    holder: Any = getattr(model.model, "encoder", model.model)
    found = getattr(holder, "layers", None) or getattr(holder, "layer", None)
    return found if isinstance(found, nn.ModuleList) else nn.ModuleList()


def replace_layers(model: P2LModel, change: Callable[[nn.Module], nn.Module]) -> None:
    """Replace every layer by what `change` makes of it; a backbone without layers is left as it is.

    Only packed batches can be read afterwards, on a CPU, and the weights can no longer be trained, moved or saved.
    """
    layers = layers_of(model)
    for number, layer in enumerate(layers):
        layers[number] = change(layer)
    if model.record.model_type in LIKE_LLAMA:
        model.model = LeanBackbone(model.model)


def streamlined(model: P2LModel, layer: nn.Module, make: LinearMaker, *, half_attention: bool = False) -> nn.Module:
    """A layer's faster form; the layer itself stays as it is.

    `make` says what becomes of its weights. `half_attention` lets layers like Llama's attend to long prompts in
    bfloat16.
    """
    if model.record.model_type in LIKE_LLAMA:
        return LeanLayer(layer, make, half_attention=half_attention, cls_only=reads_cls_only(model, layer))
    made = {id(part): make(*_joined(part)) for part in layer.modules() if type(part) is nn.Linear}
    return copy.deepcopy(layer, made)


def halved(model: P2LModel, layer: nn.Module) -> nn.Module:
    """A layer with its weights in bfloat16, in its fastest form."""
    if can_be_fused(model):
        from p2l.model.fused_layer import FusedLayer, HalfLinear

        return FusedLayer(layer, HalfLinear, cls_only=reads_cls_only(model, layer))
    return streamlined(model, layer, _half_linear, half_attention=True)


def whole(model: P2LModel, layer: nn.Module) -> nn.Module:
    """A layer with its weights in float32, in its fastest form."""
    if can_be_fused(model) and _is_small(layer):
        from p2l.model.fused_small import SmallLayer

        return SmallLayer(layer, cls_only=reads_cls_only(model, layer))
    return streamlined(model, layer, packed_linear)


def _is_small(layer: Any) -> bool:
    attention, mlp = layer.self_attn, layer.mlp
    joined = ((attention.q_proj, attention.k_proj, attention.v_proj), (mlp.gate_proj, mlp.up_proj))
    whole_vectors = int(attention.head_dim) % 16 == 0  # see p2l.model.tiles
    return whole_vectors and all(sum(part.weight.numel() for part in parts) < SMALL for parts in joined)


def can_be_fused(model: P2LModel) -> bool:
    """Whether p2l.model.fused_layer knows this model's layers, and its loops can be compiled here."""
    known = model.record.model_type in LIKE_LLAMA and getattr(model.model.config, "hidden_act", None) == "silu"
    return known and has_numba()


def _half_linear(weight: Tensor, bias: Tensor | None) -> nn.Module:
    return packed_linear(weight.to(torch.bfloat16), None if bias is None else bias.to(torch.bfloat16))


def reads_cls_only(model: P2LModel, layer: nn.Module) -> bool:
    """Whether nobody asks this layer for anything but the states at the CLS."""
    return layer is layers_of(model)[-1] and model.record.pooling == "cls"


class LeanBackbone(nn.Module):
    """Llama, Qwen2 or Qwen3 with lean layers, without a look for caches and masks, which are not there."""

    def __init__(self, model: Any) -> None:
        """Take over the parts of transformers' model."""
        super().__init__()
        self.config = model.config
        products = [part for layer in model.layers for part in layer.children() if hasattr(part, "in_features")]
        self.light = all(isinstance(part, SmallLinear) for part in products)
        self.whole = not products
        self.fused = not isinstance(model.layers[0], LeanLayer)
        self.embed_tokens, self.rotary_emb, self.layers, self.norm = (
            model.embed_tokens,
            model.rotary_emb,
            model.layers,
            model.norm,
        )

    def forward(self, input_ids: Tensor, position_ids: Tensor, packed: Packed) -> BaseModelOutput:
        """Ids and places (1, T) -> states (1, T, D)."""
        tokens = input_ids.shape[1]
        more = self._fillers(tokens)
        if more:
            input_ids, position_ids = F.pad(input_ids, (0, more)), F.pad(position_ids, (0, more))
            packed = packed if self.fused else Packed([*packed.lengths, more], packed.borders)
        states = self.embed_tokens(input_ids)
        states = states.float() if self.fused else states
        turn: Any = _turn(*self.rotary_emb(states, position_ids))
        turn = tuple(part[:, 0].numpy() for part in turn) if self.fused else turn
        x = states[0]
        for layer in self.layers:
            x = layer(x, turn, packed)
        return BaseModelOutput(last_hidden_state=_rms_norm(x[None, :tokens], self.norm))

    def _fillers(self, tokens: int) -> int:
        """Tokens to add to so many."""
        if self.whole:
            return 0
        if self.light:
            return -tokens % _ROUND if tokens >= WORTH_PADDING else 0
        return -tokens % TOKENS_AT_ONCE if self.fused else 0


class LeanLayer(nn.Module):
    """A layer of Llama, Qwen2 or Qwen3 on packed prompts."""

    def __init__(self, layer: Any, make: LinearMaker, *, half_attention: bool = False, cls_only: bool = False) -> None:
        """Take over the weights of transformers' layer; with `cls_only` all tokens but each prompt's last become 0."""
        super().__init__()
        attention, mlp = layer.self_attn, layer.mlp
        self.width = int(attention.head_dim)
        self.heads = attention.q_proj.out_features // self.width
        self.groups = attention.k_proj.out_features // self.width
        self.scale = float(attention.scaling)
        self.window = getattr(attention, "sliding_window", None)
        self.before_attention, self.before_mlp = layer.input_layernorm, layer.post_attention_layernorm
        self.of_heads = (getattr(attention, "q_norm", None), getattr(attention, "k_norm", None))
        self.read = make(*_joined(attention.q_proj, attention.k_proj, attention.v_proj))
        self.write = make(*_joined(attention.o_proj))
        self.widen = make(*_joined(mlp.gate_proj, mlp.up_proj))
        self.narrow = make(*_joined(mlp.down_proj))
        self.act = mlp.act_fn
        self.half_attention = half_attention
        self.cls_only = cls_only

    def forward(self, x: Tensor, turn: tuple[Tensor, Tensor], packed: Packed) -> Tensor:
        """States (T, D) -> (T, D)."""
        tokens = x
        query, key, value = self._heads(_rms_norm(x, self.before_attention), turn)
        mixed = attend(query, key, value, packed, self.scale, window=self.window, half=self.half_attention)
        if self.cls_only:
            x, mixed = x[packed.last], mixed[packed.last]
        x = self.write(mixed.flatten(1), onto=x)
        gate, up = self.widen(_rms_norm(x, self.before_mlp)).chunk(2, dim=-1)
        x = self.narrow(self.act(gate).mul_(up), onto=x)
        return torch.zeros_like(tokens).index_copy_(0, packed.last, x) if self.cls_only else x

    def _heads(self, x: Tensor, turn: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """Queries (T, H, C), keys and values (T, G, C); the first two turned by their places."""
        states = self.read(x).view(len(x), -1, self.width)
        turned, value = states[:, : -self.groups], states[:, -self.groups :]
        if self.of_heads[0] is not None:
            query, key = turned[:, : self.heads], turned[:, self.heads :]
            turned = torch.cat([_rms_norm(query, self.of_heads[0]), _rms_norm(key, self.of_heads[1])], dim=1)
        turned = _rotate(turned, *turn)
        return turned[:, : self.heads], turned[:, self.heads :], value


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    packed: Packed,
    scale: float,
    *,
    window: int | None = None,
    half: bool = False,
) -> Tensor:
    """Causal attention of prompts end to end: query (T, H, C), key and value (T, G, C) -> (T, H, C).

    `half` takes long prompts in bfloat16, in steps: on a CPU with such instructions that halves their time.
    """
    if not half:
        return _short(query, key, value, packed.lengths, scale, window)
    parts = zip(*(torch.split(states, packed.lengths) for states in (query, key, value)), strict=True)
    found = []
    for q, k, v in parts:
        long = len(q) >= _LONG and (window is None or window >= len(q))
        found.append(_long(q, k, v, scale) if long else _short(q, k, v, [len(q)], scale, window))
    return torch.cat(found) if len(found) > 1 else found[0]


def _short(query: Tensor, key: Tensor, value: Tensor, lengths: list[int], scale: float, window: int | None) -> Tensor:
    q, k, v = (part.transpose(0, 1)[None] for part in (query, key, value))
    reach = -1 if window is None else window - 1
    return one_by_one(q, k, v, lengths, window=(reach, 0), scale=scale)[0]


def _long(query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
    """One prompt, some queries at a time, which need not look at keys beyond the last of them."""
    length, heads, width = query.shape
    groups = key.shape[1]
    keys, values = key.to(torch.bfloat16).permute(1, 2, 0), value.to(torch.bfloat16).transpose(0, 1)
    queries = (query * scale).to(torch.bfloat16).view(length, groups, heads // groups, width).permute(1, 2, 0, 3)
    found = torch.empty_like(query)
    for start in range(0, length, _CHUNK):
        stop = min(start + _CHUNK, length)
        some = queries[:, :, start:stop].reshape(groups, -1, width)
        scores = torch.bmm(some, keys[:, :, :stop]).float().view(heads, stop - start, stop)
        scores[..., start:].add_(torch.full((stop - start, stop - start), float("-inf")).triu_(1))
        shares = scores.softmax(-1).to(torch.bfloat16).view(groups, -1, stop)
        found[start:stop] = torch.bmm(shares, values[:, :stop]).view(heads, -1, width).transpose(0, 1)
    return found


def _rms_norm(x: Tensor, norm: Any) -> Tensor:
    return F.rms_norm(x, (x.shape[-1],), norm.weight.to(x.dtype), norm.variance_epsilon)


def _turn(cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """What `_rotate` takes, (T, 1, C) each, of cos and sin (1, T, C), whose halves are alike."""
    half = sin.shape[-1] // 2
    return cos[0, :, None], torch.cat([-sin[0, :, :half], sin[0, :, half:]], dim=-1)[:, None]


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """States (T, heads, C) turned by their places; the first half of `sin` is negative."""
    half = x.shape[-1] // 2
    swapped = torch.cat([x[..., half:], x[..., :half]], dim=-1)
    return (x * cos).addcmul_(swapped, sin)


def _joined(*layers: nn.Linear) -> tuple[Tensor, Tensor | None]:
    """Weight and bias of layers that read the same input, as one."""
    weights = [layer.weight.detach() for layer in layers]
    biases = [layer.bias.detach() for layer in layers if layer.bias is not None]
    return torch.cat(weights), torch.cat(biases) if biases else None
