"""The few array operations that NumPy arrays and torch tensors share, so that one text serves both.

torch tensors have no array-API namespace of their own; here the namespace is the module itself (`numpy` or `torch`),
used only through functions with the same meaning and positional arguments in both. torch is never imported here: a
tensor cannot exist unless somebody else has imported it.
"""

from __future__ import annotations

import math
import sys
from typing import Any, TypeAlias

import numpy as np

__all__ = ["Array", "log_sigmoid", "log_two_cosh", "logaddexp", "prepare", "softplus", "widen"]

Array: TypeAlias = Any  # numpy.ndarray or torch.Tensor, of any shape


def prepare(*values: Any) -> tuple[Any, list[Any]]:
    """Return the namespace of `values` and the values as its floating arrays (None stays None).

    Anything that is no float32 or float64 is computed in float32 (half precisions) or float64 (integers, lists).
    With one torch tensor among the values, the others become tensors on its device.
    """
    torch = sys.modules.get("torch")
    tensors = [value for value in values if torch is not None and isinstance(value, torch.Tensor)]
    if not tensors:
        return np, [None if value is None else _numpy_float(value) for value in values]
    device = tensors[0].device
    return torch, [None if value is None else _torch_float(torch, value, device) for value in values]


def _numpy_float(value: Any) -> np.ndarray[Any, Any]:
    array = np.asarray(value)
    if array.dtype in (np.float32, np.float64):
        return array
    return array.astype(np.float32 if array.dtype == np.float16 else np.float64)


def _torch_float(torch: Any, value: Any, device: Any) -> Any:
    # A Python number has no width of its own: as float32 it never widens the tensors beside it.
    tensor = torch.as_tensor(value, device=device)
    if tensor.dtype in (torch.float32, torch.float64) and not isinstance(value, float):
        return tensor
    return tensor.to(torch.float32)


def widen(torch: Any, tensors: list[Any]) -> tuple[list[Any], Any]:
    """The tensors in float64, and the type that they had together.

    Where parts of a gradient cancel, what is left of them in float32 is noise or zero, though float32 could hold the
    sum. These are a few numbers per vote, so the width costs nothing, on GPUs with slow float64 neither. CPUs and CUDA
    are sure to have float64; on other devices (Apple's and some of Intel's lack it) tensors keep their own width.
    """
    given = [tensor for tensor in tensors if tensor is not None]
    dtype = torch.float64 if any(tensor.dtype == torch.float64 for tensor in given) else torch.float32
    if given[0].device.type not in ("cpu", "cuda"):
        return tensors, dtype
    return [None if tensor is None else tensor.double() for tensor in tensors], dtype


def logaddexp(xp: Any, x: Array, y: Array | float) -> Array:
    """log(e^x + e^y); `y` may be a number."""
    return xp.logaddexp(x, xp.full_like(x, y) if isinstance(y, float) else y)


def softplus(xp: Any, x: Array) -> Array:
    """log(1 + e^x), with a gradient that stays accurate where it is tiny (torch's own turns linear above 20)."""
    return xp.logaddexp(x, xp.zeros_like(x))


def log_sigmoid(xp: Any, x: Array) -> Array:
    """log(1 / (1 + e^-x))."""
    return -softplus(xp, -x)


def log_two_cosh(xp: Any, x: Array) -> Array:
    """log(e^x + e^-x), with derivative tanh(x) to full relative accuracy.

    logaddexp(x, -x) would differentiate to a difference of two sigmoids, which rounds to zero for small x.
    """
    near = xp.sinh(0.5 * xp.clip(x, -1.0, 1.0))
    size = xp.abs(x)
    return xp.where(size < 1.0, xp.log1p(2.0 * near * near) + math.log(2.0), size + xp.log1p(xp.exp(-2.0 * size)))
