"""Attention over prompts that lie end to end in one row of tokens, none of which sees another.

transformers hands every layer's queries, keys and values to a function that is registered by name. The one here,
`P2L_ATTENTION`, reads the borders of the prompts from the keyword `packed` of the forward pass: on a card it calls a
kernel for sequences of varying length (torch's own, or the package flash-attn), elsewhere, and for float32, it takes
one prompt after the other. Without `packed` it is transformers' own `sdpa`, on padded batches with their mask.

Shapes: B prompts, T tokens of all prompts together, H heads, G heads of keys and values, C width of a head.
"""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["P2L_ATTENTION", "Packed", "one_by_one", "register_attention", "varlen_kernel"]

P2L_ATTENTION = "p2l"

VarlenKernel = Callable[..., Tensor]
"""(query (T, H, C), key (T, G, C), value (T, G, C), packed, window, scale) -> (T, H, C)"""


@dataclass(frozen=True)
class Packed:
    """Where prompts end in a row of tokens."""

    lengths: list[int]
    """Tokens of each prompt."""
    borders: Tensor
    """(B + 1,) int32 on the device of the tokens: 0, then the end of each prompt."""

    @staticmethod
    def of(lengths: Tensor, device: torch.device) -> Packed:
        """The borders of prompts of these `lengths` (B,), which are on the CPU."""
        borders = F.pad(lengths.cumsum(0), (1, 0)).to(torch.int32)
        return Packed(lengths.tolist(), borders.to(device, non_blocking=True))

    @property
    def longest(self) -> int:
        """Tokens of the longest prompt."""
        return max(self.lengths)

    @property
    def last(self) -> Tensor:
        """(B,) the place of each prompt's last token."""
        return self.borders[1:].long() - 1


@functools.cache
def register_attention() -> None:
    """Make the function known to transformers under the name `P2L_ATTENTION`, once: loading transformers takes time."""
    from transformers import AttentionInterface, AttentionMaskInterface

    AttentionInterface.register(P2L_ATTENTION, _attention)
    AttentionMaskInterface.register(P2L_ATTENTION, _mask)


def _attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    packed: Packed | None = None,
    scaling: float | None = None,
    dropout: float = 0.0,
    is_causal: bool | None = None,
    sliding_window: int | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """What a layer calls with query (B, H, T, C), key and value (B, G, T, C); returns (B, T, H, C)."""
    if packed is None:
        given: dict[str, Any] = {"dropout": dropout, "scaling": scaling, "is_causal": is_causal, **options}
        padded: tuple[Tensor, None] = _sdpa()(module, query, key, value, attention_mask, **given)
        return padded
    _refuse_unknown(module, options)
    causal = bool(getattr(module, "is_causal", True)) if is_causal is None else is_causal
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    window = _window(causal, sliding_window)
    kernel = varlen_kernel(query.device.type, query.dtype) if dropout == 0 else None
    if kernel is None:
        return one_by_one(query, key, value, packed.lengths, window=window, scale=scale, dropout=dropout), None
    flat = [states[0].transpose(0, 1) for states in (query, key, value)]
    return kernel(*flat, packed, window, scale).unsqueeze(0), None


def one_by_one(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    lengths: list[int],
    *,
    window: tuple[int, int] = (-1, 0),
    scale: float,
    dropout: float = 0.0,
) -> Tensor:
    """The reference of every kernel: query (1, H, T, C), key and value (1, G, T, C) -> (1, T, H, C).

    `lengths` are the tokens of each prompt.
    `window` says how many tokens to the left and to the right a token sees, -1 for all.
    """
    shared = key.shape[1] != query.shape[1]
    parts = zip(*(states.split_with_sizes(lengths, dim=2) for states in (query, key, value)), strict=True)
    seen = [
        F.scaled_dot_product_attention(
            q, k, v, dropout_p=dropout, scale=scale, enable_gqa=shared, **_border(q.shape[2], window, q.device)
        )
        for q, k, v in parts
    ]
    return torch.cat(seen, dim=2).transpose(1, 2)


@functools.cache
def varlen_kernel(device_type: str, dtype: torch.dtype) -> VarlenKernel | None:
    """The kernel for sequences of varying length that this machine has; None where there is none."""
    if device_type != "cuda" or dtype not in (torch.bfloat16, torch.float16):
        return None
    return _torch_varlen() or _flash_varlen()


def _window(causal: bool, sliding_window: int | None) -> tuple[int, int]:
    """Tokens to the left and to the right that a token sees; transformers' window counts the token itself."""
    reach = -1 if sliding_window is None else sliding_window - 1
    return reach, 0 if causal else reach


def _border(length: int, window: tuple[int, int], device: torch.device) -> dict[str, Any]:
    """What `scaled_dot_product_attention` takes for this window; a prompt within it needs no mask."""
    left, right = (reach if 0 <= reach < length - 1 else length for reach in window)
    if left == length and right in (0, length):
        return {"is_causal": right == 0}
    ahead = torch.arange(length, device=device)[None, :] - torch.arange(length, device=device)[:, None]
    return {"attn_mask": (ahead >= -left) & (ahead <= right)}


def _torch_varlen() -> VarlenKernel | None:
    """torch's own kernel, as it is since 2.11 (before, it knew no window)."""
    try:
        attend = importlib.import_module("torch.nn.attention.varlen").varlen_attn
    except (ImportError, AttributeError):
        return None
    known = inspect.signature(attend).parameters
    if "window_size" not in known or "scale" not in known:
        return None

    def kernel(q: Tensor, k: Tensor, v: Tensor, packed: Packed, window: tuple[int, int], scale: float) -> Tensor:
        options: dict[str, Any] = {"scale": scale, "window_size": window}
        if k.shape[1] != q.shape[1]:
            if "enable_gqa" in known:
                options["enable_gqa"] = True
            else:
                k, v = (states.repeat_interleave(q.shape[1] // k.shape[1], dim=1) for states in (k, v))
        found: Tensor = attend(q, k, v, packed.borders, packed.borders, packed.longest, packed.longest, **options)
        return found

    return kernel


def _flash_varlen() -> VarlenKernel | None:
    """The kernel of the package flash-attn."""
    try:
        attend = importlib.import_module("flash_attn").flash_attn_varlen_func
    except (ImportError, AttributeError):
        return None

    def kernel(q: Tensor, k: Tensor, v: Tensor, packed: Packed, window: tuple[int, int], scale: float) -> Tensor:
        borders, longest = packed.borders, packed.longest
        found: Tensor = attend(
            q, k, v, borders, borders, longest, longest, softmax_scale=scale, window_size=window, causal=window[1] == 0
        )
        return found

    return kernel


def _refuse_unknown(module: torch.nn.Module, options: dict[str, Any]) -> None:
    """An attention that bends the scores in a way that is not computed here must not pass silently."""
    for name in ("softcap", "position_bias", "s_aux"):
        if options.get(name) is not None:
            raise ValueError(
                f"{type(module).__name__} attends with {name!r}, which packed prompts do not know; "
                "register its backbone with packs=False"
            )


def _mask(*arguments: Any, attention_mask: Tensor | None = None, **options: Any) -> Tensor | None:
    """Padded batches come with a mask; packed ones have borders instead."""
    if attention_mask is None:
        return None
    masking: Any = importlib.import_module("transformers.masking_utils")
    made: Tensor | None = masking.sdpa_mask(*arguments, attention_mask=attention_mask, **options)
    return made


@functools.cache
def _sdpa() -> Callable[..., Any]:
    found: Callable[..., Any] = importlib.import_module(
        "transformers.integrations.sdpa_attention"
    ).sdpa_attention_forward
    return found
