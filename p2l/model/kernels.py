"""Linear layers for serving on a CPU, whose weights are laid out once for oneDNN.

`nn.Linear` hands its weights over as they lie, and oneDNN puts them in order again for every product in bfloat16; in
float32 torch asks MKL, which is half as fast on processors that are not Intel's.

Weights here are plain attributes: these layers are made for answering, they are not trained, moved or saved.

Shapes: T tokens, D inputs, N outputs.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

LinearMaker = Callable[[Tensor, "Tensor | None"], nn.Module]
"""A weight (N, D) and a bias (N,) -> the layer that applies them."""
SMALL = 1 << 18
"""Weights of a layer that are read faster than oneDNN prepares a product."""
TOKENS_AT_ONCE = 16
"""oneDNN makes code for each number of tokens that it has not seen lately, which takes up to a third of a pass: packs
are filled up to multiples of this."""
WORTH_PADDING = 128
"""From so many tokens on oneDNN's small products are faster."""


class Frozen(nn.Module):
    """What a linear layer shows of itself to the model that holds it."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        self.out_features, self.in_features = weight.shape
        self.weight = torch.empty(weight.shape, dtype=weight.dtype, device="meta")
        self.bias = bias

    def extra_repr(self) -> str:
        """Sizes and dtype, as `nn.Linear` prints them."""
        return f"in_features={self.in_features}, out_features={self.out_features}, dtype={self.weight.dtype}"


class PackedLinear(Frozen):
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


class SmallLinear(Frozen):
    """A linear layer for weights that are read faster than oneDNN prepares a product.

    oneDNN makes code for each number of tokens that it has not seen lately, which takes longer than such a product. So
    few tokens go torch's way, and many are best filled up to one of few numbers (p2l.model.lean).
    """

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        """Take over the weight (N, D) and the bias (N,)."""
        super().__init__(weight, bias)
        self._weight = weight.detach().contiguous()
        self._many = PackedLinear(weight, bias)

    def forward(self, x: Tensor, onto: Tensor | None = None) -> Tensor:
        """(..., D) -> (..., N), added to `onto` (..., N) if there is one."""
        if x.numel() >= WORTH_PADDING * self.in_features:
            return self._many.forward(x, onto)
        found = F.linear(x.to(self._weight.dtype), self._weight, self.bias).to(x.dtype)
        return found if onto is None else onto + found


def packed_linear(weight: Tensor, bias: Tensor | None = None) -> nn.Module:
    """The faster of the two for this weight (N, D)."""
    return (SmallLinear if weight.numel() < SMALL else PackedLinear)(weight, bias)


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
    return _has_onednn() and hasattr(torch.ops.onednn, "qlinear_pointwise")


def has_numba() -> bool:
    """Whether the loops of p2l.model.fused can be compiled."""
    return importlib.util.find_spec("numba") is not None


def _has_onednn() -> bool:
    return bool(torch.backends.mkldnn.is_available())  # type: ignore[no-untyped-call]


def _mkldnn() -> Any:
    return torch.ops.mkldnn
