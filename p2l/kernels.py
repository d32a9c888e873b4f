"""Linear layers for serving on a CPU, whose weights are laid out once for oneDNN.

`nn.Linear` hands its weights over as they lie, and oneDNN puts them in order again for every product in bfloat16; in
float32 torch asks MKL, which is half as fast on processors that are not Intel's. Int8 quantises as

    y = (q(x) Wq) s_x s_w,    q(x) = round(127 x / max |x|) of each token,    Wq likewise of each output

with the products of 8-bit numbers summed in 32 bits. A scale for each token, not for the whole batch, keeps a prompt's
answer independent of the prompts that it shares a batch with, and a token with large states harms no other.

Weights here are plain attributes: these layers are made for answering, they are not trained, moved or saved.

Shapes: T tokens, D inputs, N outputs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

__all__ = [
    "Int8Linear",
    "LinearMaker",
    "NarrowEmbedding",
    "PackedLinear",
    "SmallLinear",
    "has_int8",
    "has_packed",
    "packed_linear",
]

LinearMaker = Callable[[Tensor, "Tensor | None"], nn.Module]
"""A weight (N, D) and a bias (N,) -> the layer that applies them."""

_LEVELS = 127
_MANY = 100_000
_SMALL = 1 << 18
_LEAST = 1e-30  # of a token's largest state: a token of zeros has a scale too


class _Frozen(nn.Module):
    """What a linear layer shows of itself to the model that holds it."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        self.out_features, self.in_features = weight.shape
        self.weight = torch.empty(weight.shape, dtype=weight.dtype, device="meta")
        self.bias = bias

    def extra_repr(self) -> str:
        """Sizes and dtype, as `nn.Linear` prints them."""
        return f"in_features={self.in_features}, out_features={self.out_features}, dtype={self.weight.dtype}"


class PackedLinear(_Frozen):
    """A linear layer in the dtype of its weight; input and output have the caller's."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        """Lay the weight (N, D) out for oneDNN; `bias` is (N,)."""
        super().__init__(weight, bias)
        self._packed = _mkldnn()._reorder_linear_weight(weight.detach().contiguous(), None)
        self._product = _mkldnn()._linear_pointwise.default

    def forward(self, x: Tensor, onto: Tensor | None = None) -> Tensor:
        """(..., D) -> (..., N), added to `onto` (..., N) if there is one."""
        found: Tensor = self._product(x.to(self.weight.dtype), self._packed, self.bias, "none", [], "").to(x.dtype)
        return found if onto is None else onto + found


class SmallLinear(_Frozen):
    """A linear layer as torch has it, for weights that are read faster than oneDNN prepares a product.

    oneDNN makes code for each number of tokens that it has not seen lately, which takes longer than such a product.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        """Take over the weight (N, D) and the bias (N,)."""
        super().__init__(weight, bias)
        self._weight = weight.detach().contiguous()

    def forward(self, x: Tensor, onto: Tensor | None = None) -> Tensor:
        """(..., D) -> (..., N), added to `onto` (..., N) if there is one."""
        found = F.linear(x.to(self._weight.dtype), self._weight, self.bias).to(x.dtype)
        return found if onto is None else onto + found


def packed_linear(weight: Tensor, bias: Tensor | None = None) -> nn.Module:
    """The faster of the two for this weight (N, D)."""
    return (SmallLinear if weight.numel() < _SMALL else PackedLinear)(weight, bias)


class Int8Linear(_Frozen):
    """A linear layer in int8: a scale for each output and, found anew each time, one for each token."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        """Quantise the weight (N, D); `bias` (N,) stays as it is."""
        super().__init__(weight, bias)
        weight = weight.detach().float()
        scales = weight.abs().amax(1).clamp_min_(_LEAST) / _LEVELS
        rounded = (weight / scales[:, None]).round_().to(torch.int8)
        self._packed = _onednn().qlinear_prepack(rounded, None)
        self._scales = scales / _LEVELS
        self._zeros = torch.zeros(len(scales), dtype=torch.long)
        self._levels = torch.tensor(float(_LEVELS))
        self._product = _onednn().qlinear_pointwise.default

    def forward(self, x: Tensor, onto: Tensor | None = None) -> Tensor:
        """(..., D) -> (..., N) of the same dtype, added to `onto` (..., N) if there is one."""
        states = x.float()
        largest = _largest(states).clamp_min_(_LEAST)
        # Bytes without sign, 128 meaning zero: oneDNN has fast kernels for these alone on a CPU without AMX.
        rounded = (
            (states * torch.div(self._levels, largest)).round_().to(torch.int8).view(torch.uint8).bitwise_xor_(128)
        )
        options: tuple[Any, ...] = (self._scales, self._zeros, None, 1.0, 0, torch.float32, "none", [], "")
        found: Tensor = self._product(rounded, 1.0, 128, self._packed, *options)
        found = found.mul_(largest) if onto is None else torch.addcmul(onto.float(), found, largest)
        return (found if self.bias is None else found.add_(self.bias)).to(x.dtype)


class NarrowEmbedding(nn.Embedding):
    """Rows kept in bfloat16, half the memory, and read as float32."""

    def __init__(self, rows: nn.Embedding) -> None:
        """Take over another embedding's rows."""
        count, width = rows.weight.shape
        narrow = rows.weight.detach().to(torch.bfloat16)
        super().__init__(count, width, padding_idx=rows.padding_idx, _weight=narrow, _freeze=True)

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 (its name in torch)
        """Ids (...) -> float32 rows (..., D)."""
        return super().forward(input).float()


def has_packed() -> bool:
    """Whether this build of torch can lay weights out for oneDNN."""
    return _has_onednn() and hasattr(_mkldnn(), "_reorder_linear_weight")


def has_int8() -> bool:
    """Whether this build of torch has oneDNN's products in int8."""
    return _has_onednn() and hasattr(_onednn(), "qlinear_pointwise")


def _has_onednn() -> bool:
    return bool(torch.backends.mkldnn.is_available())  # type: ignore[no-untyped-call]


def _largest(states: Tensor) -> Tensor:
    """The largest absolute value of each token (..., 1); for many numbers two readings beat writing them anew."""
    if states.numel() < _MANY:
        return states.abs().amax(-1, keepdim=True)
    return torch.maximum(states.amax(-1, keepdim=True), states.amin(-1, keepdim=True).neg_())


def _mkldnn() -> Any:
    return torch.ops.mkldnn


def _onednn() -> Any:
    return torch.ops.onednn
