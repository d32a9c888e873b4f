"""The models of a configuration as arrays, built once, the kinds of router, and the second models of comparisons.

Shapes: M models, cheapest first (equal costs in the order of the configuration); L limits, K candidates.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np

from p2l.common.cli import choose, nearest
from p2l.common.errors import ConfigError, P2LError
from p2l.common.spreadsheets import of_cell
from route.routing import optimizers
from route.routing.decision import Coefficients, Demand, Limit, RoutedModel, bits_of, features_in
from route.routing.optimizers import (
    OPTIMIZERS,
    Floats,
    Indices,
    Mask,
    Opponents,
    Optimizer,
    grounded_scores,
    grounded_strength,
    scores_against,
    strength_against,
)


class NoModelError(P2LError):
    """No model can be chosen, whatever the budget."""

    def __init__(self, message: str, *, oversize: bool = False, lacking: bool = False) -> None:
        """Fail with `message`; `oversize` if only the context windows were too small, `lacking` if features lack."""
        super().__init__(message)
        self.oversize = oversize
        self.lacking = lacking


class Menu:
    """The models of a configuration, cheapest first."""

    def __init__(self, models: Sequence[RoutedModel], limits: Sequence[Limit] = ()) -> None:
        """Build the arrays; raise ConfigError for no model, a name twice, a wrong cost, coefficient or limit."""
        if not models:
            raise ConfigError("there is no model to route to; name at least one under model_configs")
        seen: set[str] = set()
        for model in models:
            if model.name in seen:
                raise ConfigError(f"model {model.name!r} is configured twice")
            seen.add(model.name)
            if not 0.0 <= model.cost < math.inf:
                raise ConfigError(f"model {model.name!r}: its cost must be a number of at least 0, not {model.cost}")
            if model.prior_coef is not None and not math.isfinite(model.prior_coef):
                raise ConfigError(
                    f"model {model.name!r}: its prior_coef must be a finite number, not {model.prior_coef}"
                )
        self.models = tuple(sorted(models, key=lambda model: model.cost))
        self.names = tuple(model.name for model in self.models)
        self.places = {name: place for place, name in enumerate(self.names)}
        self.costs = np.array([model.cost for model in self.models], dtype=np.float64)
        self.cost_of = dict(zip(self.names, self.costs.tolist(), strict=True))
        self.amounts = np.array([_amounts(self.models, limit) for limit in limits]).reshape(-1, len(models))
        """(L, M)"""
        self.most = np.array([limit.most for limit in limits], dtype=np.float64)
        self._priors = [math.nan if model.prior_coef is None else model.prior_coef for model in self.models]
        self._windows = _sizes([model.context_window for model in self.models])
        self._likely_windows = np.minimum(self._windows, _sizes([model.listed_window for model in self.models]))
        self._longest = _sizes([model.longest_answer for model in self.models])
        self._lacks = np.array([bits_of(model.lacks) for model in self.models], dtype=np.int64)
        self._doubts = self._lacks | np.array([bits_of(model.doubts) for model in self.models], dtype=np.int64)
        self._least_longest = float(self._longest.min())
        self.least_window = float(self._likely_windows.min())
        """Tokens; infinite where no model's window is known."""
        self.rare = int(np.bitwise_or.reduce(self._doubts))
        """The bits of the features that some model lacks."""
        self._everything = np.arange(len(models))

    def coefs(self, coefficients: Coefficients) -> Floats:
        """Return the coefficients (M,) of one prompt; NaN where neither P2L nor the configuration has one."""
        return np.fromiter(map(coefficients.coefs.get, self.names, self._priors), np.float64, len(self.names))

    def by_name(self, scores: Floats) -> dict[str, float]:
        """Return the scores (M,) by name, without NaN."""
        scored = zip(self.names, scores.tolist(), strict=True)
        return {name: score for name, score in scored if score == score}  # NaN equals nothing; isnan takes longer

    def unknown(self, model_list: Collection[str]) -> list[str]:
        """Return the models that have neither a place in P2L's list nor a prior coefficient."""
        listed = set(model_list)
        return [model.name for model in self.models if model.name not in listed and model.prior_coef is None]

    def candidates(
        self,
        scored: Mask | None,
        allowed: Collection[str] | None,
        without: Collection[str],
        demand: Demand,
    ) -> Indices:
        """Return the places (K,) of the models that may be chosen; raise NoModelError if there is none.

        `scored` is the mask (M,) of the models that have a score, or None for all; the rest is as of `Router.decide`.
        What the configuration says of a model holds; what the catalogue or an earlier refusal says may be wrong, so it
        leaves no request without a model.
        """
        fits_all = (
            not demand.features & self.rare
            and (demand.tokens is None or demand.tokens <= self.least_window)
            and demand.answer <= self._least_longest
            and not demand.refused
        )
        allowed = None if allowed is None or self.places.keys() <= set(allowed) else set(allowed)
        # Most requests leave out no model, and need no mask.
        if fits_all and (scored is None or scored.all()) and allowed is None and not without:
            return self._everything
        left = np.ones(len(self.names), dtype=np.bool_) if scored is None else scored.copy()
        if allowed is not None:
            left &= np.fromiter(map(allowed.__contains__, self.names), np.bool_, len(self.names))
        left[[self.places[name] for name in without if name in self.places]] = False
        able = left
        if not fits_all:
            tokens = 0 if demand.tokens is None else demand.tokens
            able = left & (self._windows >= tokens) & (self._lacks & demand.features == 0)
            likely = able & (self._likely_windows >= tokens) & (self._doubts & demand.features == 0)
            likely &= self._longest >= demand.answer
            likely[[self.places[name] for name in demand.refused if name in self.places]] = False
            able = np.asarray(likely if likely.any() else able)
        if not able.any():
            raise self._nothing_left(demand, left)
        return np.flatnonzero(able)

    def _nothing_left(self, demand: Demand, left: Mask) -> NoModelError:
        tokens = demand.tokens
        lacking = self._lacks[left] & demand.features
        if len(lacking) and lacking.all():
            names = ", ".join(features_in(int(np.bitwise_and.reduce(lacking)) or demand.features))
            return NoModelError(f"no model that is left can do what the request needs: {names}", lacking=True)
        if tokens is not None and left.any():
            largest = int(self._windows[left & (self._lacks & demand.features == 0)].max())
            return NoModelError(
                f"the prompt has about {tokens} tokens, and no model that is left takes more than {largest}",
                oversize=True,
            )
        return NoModelError(f"none of the {len(self.names)} models is left: unknown, not allowed, or failing")


def _sizes(sizes: Sequence[int | None]) -> Floats:
    """Return sizes (M,) in tokens; infinite where one is not known."""
    return np.array([math.inf if size is None else size for size in sizes], dtype=np.float64)


def _amounts(models: Sequence[RoutedModel], limit: Limit) -> list[float]:
    """Return how much (M,) of a limited quantity an answer of each model takes."""
    if not 0.0 <= limit.most < math.inf:
        raise ConfigError(f"limit on {limit.quantity!r}: most must be a number of at least 0, not {limit.most}")
    kind, _, provider = limit.quantity.partition(":")
    if kind == "cost" and not provider:
        return [model.cost for model in models]
    if kind == "share" and provider:
        providers = {model.provider for model in models}
        if provider not in providers:
            hint = nearest(provider, providers)
            raise ConfigError(f"limit on 'share:{provider}': no model is from {provider!r}{hint}")
        # On average over requests, this is the share of the requests that the provider answers.
        return [float(model.provider == provider) for model in models]
    for model in models:
        amount = model.amounts.get(limit.quantity)
        if amount is None:
            hint = nearest(limit.quantity, [*model.amounts, "cost"])
            raise ConfigError(f"limit on {limit.quantity!r}: model {model.name!r} has no such amount{hint}")
        if not 0.0 <= amount < math.inf:
            raise ConfigError(
                f"model {model.name!r}: its {limit.quantity} must be a number of at least 0, not {amount}"
            )
    return [float(model.amounts[limit.quantity]) for model in models]


Score: TypeAlias = Callable[[Floats, Opponents], Floats]
Strength: TypeAlias = Callable[[Floats, Floats, Opponents], float]
ALIASES = {"bag-endpoint": "grk-endpoint", "bag-local": "grk-local"}


@dataclass(frozen=True)
class Kind:
    """A kind of router: where coefficients come from, what they mean as scores, which optimizers go with them."""

    name: str
    source: str
    """Of the coefficients: endpoint, local (a model in this process) or none."""
    family: str
    """Of the scores: bt, grk or random."""
    optimizer: str
    """The default."""
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


def _sources(family: str, optimizer: str, score: Score, strength: Strength, *, compares: bool = False) -> list[Kind]:
    """Return the kinds of one family, with coefficients from an endpoint and from a model in this process."""
    return [
        Kind(f"{family}-{source}", source, family, optimizer, score, strength, compares)
        for source in ("endpoint", "local")
    ]


def _logit(coefs: Floats, shares: Floats, _: Opponents) -> float:
    return grounded_strength(coefs, shares)


ROUTERS = {
    kind.name: kind
    for kind in (
        *_sources("bt", "optimal-lp", scores_against, strength_against, compares=True),
        *_sources("grk", "simple-lp", lambda coefs, _: grounded_scores(coefs), _logit),
        # There are no coefficients, so nothing calls score and strength.
        Kind("random", "none", "random", "strict", lambda coefs, _: np.full(len(coefs), 0.5), _logit),
    )
}


def get(name: str) -> Kind:
    """Return the kind of that name or alias; raise ConfigError with the list of names if there is none."""
    return choose("router type", name, ROUTERS | {alias: ROUTERS[kind] for alias, kind in ALIASES.items()})


def pair(kind: Kind, optimizer: str | None) -> Optimizer:
    """Return an optimizer, by default the kind's own; raise ConfigError if it does not go with this kind."""
    selected = optimizers.get(optimizer or kind.optimizer)
    if kind.family not in selected.families:
        fitting = [name for name, other in OPTIMIZERS.items() if kind.family in other.families]
        raise ConfigError(
            f"cost optimizer {selected.name} does not go with router type {kind.name}; use {' or '.join(fitting)}"
        )
    return selected


_PAIR_COLUMNS = ("model_a", "model_b", "propensity")


class PairShares:
    """The share of each pair of models, in either order, by which the second model of a comparison is drawn.

    `p2l next-pairs` writes how likely each pair should be shown, by what a vote on it would teach. The first model of a
    comparison is the one that serves the request; given it, the second is drawn in proportion to the shares of its
    pairs. A pair that the file does not hold, of a model without votes, say, counts as much as its largest pair, so
    that votes come.
    """

    def __init__(self, shares: Mapping[frozenset[str], float] | None = None) -> None:
        """Take positive shares; without any, all pairs are alike."""
        self._shares = dict(shares or {})
        self._unknown = max(self._shares.values(), default=1.0)

    @staticmethod
    def read(path: Path) -> PairShares:
        """Read the CSV that `p2l next-pairs` writes; ConfigError, with the line, for another one."""
        shares: dict[frozenset[str], float] = {}
        try:
            with path.open(encoding="utf-8", newline="") as file:
                rows = csv.DictReader(file)
                if not {*_PAIR_COLUMNS} <= {*(rows.fieldnames or ())}:
                    raise ConfigError(
                        f"pairs: {path} has no columns {', '.join(_PAIR_COLUMNS)}; write it by p2l next-pairs as .csv"
                    )
                for row in rows:
                    pair = frozenset(of_cell(row[side]) for side in ("model_a", "model_b"))
                    shares[pair] = _share(row["propensity"], f"pairs: {path}:{rows.line_num}")
        except (OSError, UnicodeDecodeError, csv.Error) as error:
            why = getattr(error, "strerror", None) or error
            raise ConfigError(f"pairs: {path} cannot be read: {why}") from error
        return PairShares(shares)

    def seconds(self, first: str, candidates: Collection[str]) -> dict[str, float]:
        """Return the probability of each candidate to be shown beside `first`; they sum to one."""
        shares = {
            name: self._shares.get(frozenset((first, name)), self._unknown)
            for name in sorted(candidates)
            if name != first
        }
        total = sum(shares.values())
        return {name: share / total for name, share in shares.items()}


def _share(text: str | None, where: str) -> float:
    """Return a positive share; ConfigError for anything else, as a pair that is never shown has no propensity."""
    try:
        share = float(text or "")
    except ValueError:
        share = 0.0
    if not 0.0 < share <= 1.0:
        raise ConfigError(f"{where}: propensity must be above 0 and at most 1, not {text!r}; raise --random-share")
    return share
