"""Linear layers in 8 bits for serving on a CPU.

A linear layer is quantised as

    y = (q(x) Wq) s_x s_w,    q(x) = round(127 x / max |x|) of each token,    Wq likewise of each output

with the products of 8-bit numbers summed in 32 bits by oneDNN. A scale for each token, not for the whole batch, keeps a
prompt's answer independent of the prompts that it shares a batch with, and a token with large states harms no other.

Weights here are plain attributes: these layers are made for answering, they are not trained, moved or saved.

Shapes: T tokens, D inputs, N outputs.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from p2l.model import fused
from p2l.model.kernels import Frozen

_LEVELS = 127
_LEAST = 1e-30  # of an output's largest weight: an output of zeros has a scale too
Array = npt.NDArray[Any]


class Int8Linear(Frozen):
    """A linear layer in int8: a scale for each output and, found anew each time, one for each token."""

    narrow = torch.uint8

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
        rounded, scales = torch.empty(states.shape, dtype=self.narrow), np.empty(len(states), np.float32)
        fused.rounded(states.numpy(), rounded.numpy(), scales)
        shape = (*x.shape[:-1], self.out_features)
        found = torch.zeros(shape) if onto is None else onto.float().clone(memory_format=torch.contiguous_format)
        rows = found.view(-1, self.out_features).numpy()
        fused.add_product(rows, self.product(rounded).numpy(), scales, self.offset)
        return found.to(x.dtype)
