"""Coefficient heads: from the hidden state of a prompt to one coefficient per model, with eta and gamma if needed.

    coefs = W h + c,    eta = w_eta h + c_eta,    gamma = w_gamma h + c_gamma

Weight names are those of published models: `head`, `eta_head`, `gamma_head`.

Shapes: B prompts, M models, D hidden.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from p2l.common.cli import choose, nearest
from p2l.common.errors import ConfigError

_HEAD_CONFIG_KEYS = ("eta_dim", "eta_downsize")
_TINY_STD = 1e-3
_ROWS, _LEVEL = "head.head.weight", "head.head.level"
_HeadClass = TypeVar("_HeadClass", bound="type[BTHead]")


class HeadOutput(NamedTuple):
    """Float32 coefs (B, M), and eta (B,) and gamma (B,) of the heads that have them."""

    coefs: Tensor
    eta: Tensor | None
    gamma: Tensor | None


class Float32Linear(nn.Linear):
    """A linear layer with a float32 product, whatever the dtype of its weights and input."""

    def forward(self, x: Tensor) -> Tensor:
        """(B, in) -> (B, out) float32."""
        # Differences of coefficients matter, and bfloat16 has three digits.
        bias = None if self.bias is None else self.bias.float()
        return F.linear(x.float(), self.weight.float(), bias)


class _SharedLevelLinear(Float32Linear):
    """A last layer for training with a vector that all rows share: y = W x + (u x) 1 + c.

    Adam moves one vector without decay faster than M rows one by one, as where a prompt is hard for all models: on
    graded answers it lowers the loss by 0.003 nats. `folded` adds it to the rows.
    """

    def __init__(self, layer: nn.Linear) -> None:
        """Take over the parameters of a layer; the shared part is zero."""
        super().__init__(layer.in_features, layer.out_features, device="meta")
        self.weight, self.bias = layer.weight, layer.bias
        self.level = nn.Parameter(torch.zeros_like(layer.weight[0]))

    def forward(self, x: Tensor) -> Tensor:
        """(B, in) -> (B, out) float32."""
        return super().forward(x) + (x.float() @ self.level.float()).unsqueeze(-1)


HEADS: dict[str, type[BTHead]] = {}


def register(name: str) -> Callable[[_HeadClass], _HeadClass]:
    """Decorator: register a head class under `name`."""

    def add(head: _HeadClass) -> _HeadClass:
        HEADS[name] = head
        return head

    return add


@register("bt")
class BTHead(nn.Module):
    """Coefficients alone."""

    has_eta = False
    has_gamma = False

    def __init__(
        self,
        hidden: int,
        num_models: int,
        *,
        downsize_factor: int | None = None,
        width: int | None = None,
        eta_width: int | None = None,
    ) -> None:
        """Create the layers, with the options of `build`; `eta_width` None makes the eta head linear."""
        super().__init__()
        if downsize_factor is None:
            self.head: nn.Module = Float32Linear(hidden, num_models)
        else:
            if width is None:
                width = num_models // downsize_factor if downsize_factor > 0 else 0
            if width == 0:
                raise ConfigError(
                    f"linear_head_downsize_factor {downsize_factor} leaves no inner width for {num_models} models; "
                    f"use 1 to {num_models}"
                )
            self.head = nn.Sequential(Float32Linear(hidden, width), Float32Linear(width, num_models))
        if self.has_eta:
            self.eta_head: nn.Module
            if eta_width is None:
                self.eta_head = Float32Linear(hidden, 1)
            else:
                self.eta_head = nn.Sequential(Float32Linear(hidden, eta_width), nn.GELU(), Float32Linear(eta_width, 1))
        if self.has_gamma:
            self.gamma_head = Float32Linear(hidden, 1)

    def forward(self, hidden: Tensor) -> HeadOutput:
        """(B, D) -> float32 coefs (B, M), eta (B,), gamma (B,)."""
        eta = self.eta_head(hidden).squeeze(-1) if self.has_eta else None
        gamma = self.gamma_head(hidden).squeeze(-1) if self.has_gamma else None
        return HeadOutput(self.head(hidden), eta, gamma)


@register("rk")
class _RKHead(BTHead):
    """Coefficients and eta, the width of ties."""

    has_eta = True


@register("ba")
class _BAHead(_RKHead):
    """Coefficients, eta, and gamma, the level below which both answers are bad."""

    has_gamma = True


def get(name: str) -> type[BTHead]:
    """Return the head class of a name, else raise ConfigError."""
    return choose("head_type", name, HEADS)


def build(
    head_type: str,
    hidden: int,
    num_models: int,
    *,
    downsize_factor: int | None = None,
    width: int | None = None,
    head_config: Mapping[str, Any] | None = None,
) -> BTHead:
    """Build a head with torch's default initialisation; ConfigError for unknown names or a low-rank width of zero.

    `downsize_factor` makes the coefficients low-rank, of inner width M // factor, or `width` where the number of models
    may change. `head_config` may hold `eta_dim` (inner width of the eta head; 1 is a plain linear layer) or
    `eta_downsize` (inner width D // factor).
    """
    eta_width = _eta_width(head_type, hidden, dict(head_config or {}))
    return get(head_type)(hidden, num_models, downsize_factor=downsize_factor, width=width, eta_width=eta_width)


def last_layer(head: BTHead) -> nn.Linear:
    """Return the layer that has a row for each model."""
    return _last_linear(head.head)


def share_level(head: BTHead) -> None:
    """Let the rows of the last layer share a part from now on; ConfigError for a low-rank head."""
    if isinstance(head.head, nn.Sequential):
        raise ConfigError("shared_level: does not go with linear_head_downsize_factor; remove one of the two")
    if not isinstance(head.head, _SharedLevelLinear):
        head.head = _SharedLevelLinear(last_layer(head))


def folded(weights: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """Return the weights of a model in the published layout: with what rows share added to them."""
    if _LEVEL not in weights:
        return weights
    rest = {name: weight for name, weight in weights.items() if name != _LEVEL}
    return rest | {_ROWS: weights[_ROWS] + weights[_LEVEL]}


def widen(head: BTHead, rows: int, *, used: int) -> None:
    """Give the last layer `rows` rows: the first `used` ones keep their values, the others are zero."""
    old = last_layer(head)
    with torch.device(old.weight.device):
        new = Float32Linear(old.in_features, rows).to(old.weight.dtype)
    with torch.no_grad():
        for name in ("weight", "bias"):
            target = getattr(new, name)
            target.zero_()
            target[:used] = getattr(old, name)[:used]
    if isinstance(head.head, nn.Sequential):
        head.head[-1] = new
    else:
        head.head = new


def new_rows(hidden: int, count: int, init_type: str) -> tuple[Tensor, Tensor]:
    """Draw weights (count, hidden) and biases (count,) for new models from torch's generator."""
    layer = nn.Linear(hidden, count)
    INIT_TYPES[init_type](layer)
    return layer.weight.detach(), layer.bias.detach()


class HeadStart(NamedTuple):
    """One leaderboard for all prompts that a head can start from: coefs (M,), and eta and gamma if it has them."""

    coefs: npt.NDArray[np.float64]
    eta: float | None
    gamma: float | None


def initialise(head: BTHead, init_type: str, start: HeadStart | None = None) -> None:
    """Draw the weights of every linear layer of `head` from torch's generator; ConfigError for unknown `init_type`.

    With `marginal` the last layers' biases are `start` and their weights tiny: the head gives every prompt the same
    leaderboard, and training learns how prompts differ.
    """
    draw = choose("init_type", init_type, INIT_TYPES)
    for layer in head.modules():
        if isinstance(layer, nn.Linear):
            draw(layer)
    if init_type == "marginal":
        if start is None:
            raise ConfigError("init_type 'marginal' needs the leaderboard to start at")
        _start_layer(head.head, start.coefs)
        if head.has_eta:
            _start_layer(head.eta_head, start.eta or 0.0)
        if head.has_gamma:
            _start_layer(head.gamma_head, start.gamma or 0.0)


def towards(head: BTHead, start: HeadStart, factor: float) -> dict[Tensor, Callable[[Tensor], None]]:
    """Return changes in place of the last layers' parameters: coefs become factor * coefs + (1 - factor) * start."""
    targets: list[tuple[nn.Module, Any]] = [(head.head, start.coefs)]
    targets += [(head.eta_head, start.eta or 0.0)] if head.has_eta else []
    targets += [(head.gamma_head, start.gamma or 0.0)] if head.has_gamma else []

    def move(values: Tensor, target: Tensor) -> None:
        values.mul_(factor).add_((1 - factor) * target.to(values.device))

    changes: dict[Tensor, Callable[[Tensor], None]] = {}
    for module, target in targets:
        layer = _last_linear(module)
        changes[layer.weight] = partial(move, target=torch.zeros(()))
        if isinstance(layer, _SharedLevelLinear):
            changes[layer.level] = partial(move, target=torch.zeros(()))
        changes[layer.bias] = partial(move, target=torch.as_tensor(target, dtype=torch.float32).reshape(-1))
    return changes


def _start_layer(part: nn.Module, bias: npt.NDArray[np.float64] | float) -> None:
    """Give the last layer this bias and tiny weights."""
    layer = _last_linear(part)
    nn.init.normal_(layer.weight, std=_TINY_STD)
    with torch.no_grad():
        layer.bias.copy_(torch.as_tensor(bias, dtype=layer.bias.dtype))


def _last_linear(part: nn.Module) -> nn.Linear:
    layer = part[-1] if isinstance(part, nn.Sequential) else part
    assert isinstance(layer, nn.Linear)
    return layer


def _weight_init(draw: Callable[[Tensor], object]) -> Callable[[nn.Linear], None]:
    def apply(layer: nn.Linear) -> None:
        draw(layer.weight)
        nn.init.zeros_(layer.bias)

    return apply


INIT_TYPES: dict[str, Callable[[nn.Linear], None]] = {
    "reset_params": lambda layer: layer.reset_parameters(),
    "he_unif": _weight_init(lambda weight: nn.init.kaiming_uniform_(weight, nonlinearity="relu")),
    "xavier_unif": _weight_init(nn.init.xavier_uniform_),
    "tiny_normal": _weight_init(lambda weight: nn.init.normal_(weight, std=_TINY_STD)),
    "marginal": lambda layer: layer.reset_parameters(),  # of inner layers; `initialise` sets the last ones
}


def _eta_width(head_type: str, hidden: int, options: dict[str, Any]) -> int | None:
    for key in options:
        if key not in _HEAD_CONFIG_KEYS:
            names = ", ".join(_HEAD_CONFIG_KEYS)
            raise ConfigError(f"head_config key {key!r} is unknown{nearest(key, _HEAD_CONFIG_KEYS)}; known: {names}")
    settings = {key: value for key, value in options.items() if value is not None}
    if settings and not get(head_type).has_eta:
        raise ConfigError(
            f"head_config {', '.join(settings)} is about eta, which head_type {head_type!r} does not have"
        )
    if len(settings) > 1:
        raise ConfigError("head_config takes eta_dim or eta_downsize, not both")
    for key, value in settings.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ConfigError(f"head_config {key} must be a whole number of at least 1, not {value!r}")
    factor = settings.get("eta_downsize", 1)
    if factor > hidden:
        raise ConfigError(f"head_config eta_downsize {factor} leaves no inner width of {hidden}; use at most {hidden}")
    width = hidden // factor if "eta_downsize" in settings else settings.get("eta_dim", 1)
    return width if width > 1 else None
