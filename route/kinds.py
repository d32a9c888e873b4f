"""The kinds of router: where coefficients come from, what they mean as scores, which optimizers go with them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from p2l.command import nearest
from p2l.errors import ConfigError
from route import cost_optimizers
from route.cost_optimizers import OPTIMIZERS, Optimizer
from route.strength import Opponents, grounded_scores, grounded_strength, scores_against, strength_against

__all__ = ["ALIASES", "ROUTERS", "Kind", "get", "pair", "register"]

Floats: TypeAlias = npt.NDArray[np.float64]
Score: TypeAlias = Callable[[Floats, Opponents], Floats]
Strength: TypeAlias = Callable[[Floats, Floats, Opponents], float]

ALIASES = {"bag-endpoint": "grk-endpoint", "bag-local": "grk-local"}


@dataclass(frozen=True)
class Kind:
    """A kind of router."""

    name: str
    source: str
    """Of the coefficients: endpoint, local (a model in this process) or none."""
    family: str
    """Of the scores: bt, grk or random."""
    optimizer: str
    """The one it takes unless another is named."""
    score: Score
    """(coefs (M,), opponents) -> scores (M,)"""
    strength: Strength
    """(coefs (P,), shares (P,), opponents) -> the coefficient of the mixture"""

    compares: bool = False
    """Whether scores and strength depend on opponents; they get empty ones if not."""

    @property
    def scored(self) -> bool:
        """Whether there are coefficients at all."""
        return self.source != "none"


ROUTERS: dict[str, Kind] = {}


def register(
    name: str, *, source: str, family: str, optimizer: str, strength: Strength, compares: bool = False
) -> Callable[[Score], Score]:
    """Register the decorated function as the scores of a new kind of router."""

    def add(score: Score) -> Score:
        ROUTERS[name] = Kind(name, source, family, optimizer, score, strength, compares)
        return score

    return add


def get(name: str) -> Kind:
    """The kind of that name or alias.

    Raises:
        ConfigError: there is none; the message gives the nearest name and the list.
    """
    kind = ROUTERS.get(ALIASES.get(name, name))
    if kind is None:
        known = [*ROUTERS, *ALIASES]
        raise ConfigError(f"unknown router type {name!r}{nearest(name, known)}; use one of {', '.join(known)}")
    return kind


def pair(kind: Kind, optimizer: str | None) -> Optimizer:
    """The optimizer of a router of this kind; None stands for the kind's own.

    Raises:
        ConfigError: there is none of that name, or it makes no sense of this kind's scores.
    """
    chosen = cost_optimizers.get(optimizer or kind.optimizer)
    if kind.family not in chosen.families:
        fitting = [name for name, other in OPTIMIZERS.items() if kind.family in other.families]
        raise ConfigError(
            f"cost optimizer {chosen.name} does not go with router type {kind.name}; use {' or '.join(fitting)}"
        )
    return chosen


def _logit(coefs: Floats, shares: Floats, _opponents: Opponents) -> float:
    return grounded_strength(coefs, shares)


@register(
    "bt-endpoint", source="endpoint", family="bt", optimizer="optimal-lp", strength=strength_against, compares=True
)
@register("bt-local", source="local", family="bt", optimizer="optimal-lp", strength=strength_against, compares=True)
def _against_the_field(coefs: Floats, opponents: Opponents) -> Floats:
    return scores_against(coefs, opponents)


@register("grk-endpoint", source="endpoint", family="grk", optimizer="simple-lp", strength=_logit)
@register("grk-local", source="local", family="grk", optimizer="simple-lp", strength=_logit)
def _grounded(coefs: Floats, _opponents: Opponents) -> Floats:
    return grounded_scores(coefs)


@register("random", source="none", family="random", optimizer="strict", strength=_logit)
def _all_alike(coefs: Floats, _opponents: Opponents) -> Floats:
    """Nobody asks, for there are no coefficients."""
    return np.full(len(coefs), 0.5)
