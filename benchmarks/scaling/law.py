"""Scaling laws: how the held-out loss falls with votes and parameters, fitted with intervals.

    additive:     L = E + A / N^alpha + B / P^beta
    votes alone:  L = E + A / N^alpha
    product:      L = E + A / (N^alpha P^beta)
    shared:       L = E + (A + B / P^beta) / N^alpha

A law of this kind has no upper end, while a model that has not learned to read prompts yet has the loss of one
leaderboard for all of them. Where that loss C (the ceiling) and E are known, the excess x = L - E of the law is bent
under it: L = E + x S / (S + x) with S = C - E.

For given exponents the loss is linear in E, A and B, which non-negative least squares fit at once; the exponents are
searched on a grid, fine enough for local optima, and refined from its best point. So a fit needs no start and is cheap
to bootstrap (about 20 ms for 60 runs).

Shapes: R runs (each one trained model), C blocks of held-out prompts.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from p2l.common.errors import ConfigError, InputError

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
LIMITS = (0.03, 3.0)
"""Of exponents: at an end, that size hardly matters, or no longer does, in the range of the runs."""
_EXPONENTS = np.geomspace(*LIMITS, 21)
_NEAR_CEILING = 0.02  # share of the way; nearer, and above, the excess before bending is anything
_LEAST_SIZES = 3  # sizes on an axis; two leave its exponent open


@dataclass(frozen=True)
class Law:
    """A fitted law.

    Attributes:
        form: a name in `FORMS`.
        floor: E, the loss that no number of votes or parameters undercuts.
        votes_scale, votes_exponent: A and alpha.
        parameters_scale, parameters_exponent: B and beta; the product has its one scale in `votes_scale`.
        ceiling: C, the loss of a model that has not learned to read prompts, or None.
    """

    form: str
    floor: float
    votes_scale: float
    votes_exponent: float
    parameters_scale: float = 0.0
    parameters_exponent: float = 0.0
    ceiling: float | None = None

    def loss(self, votes: npt.ArrayLike, parameters: npt.ArrayLike) -> Floats:
        """Return the loss expected of models of these sizes; arrays of one shape."""
        columns = FORMS[self.form](_floats(votes), _floats(parameters), self.votes_exponent, self.parameters_exponent)
        return _bent(columns[1:], (self.votes_scale, self.parameters_scale), self.floor, self.ceiling)


@dataclass(frozen=True)
class Runs:
    """R trained models: votes and parameters (R,), and mean losses (R, C) on C equal blocks of held-out prompts."""

    votes: Floats
    parameters: Floats
    losses: Floats

    @property
    def loss(self) -> Floats:
        """Mean held-out loss (R,)."""
        return np.asarray(self.losses.mean(axis=1))

    def of(self, rows: Ints) -> Runs:
        """Return some of the runs."""
        return Runs(self.votes[rows], self.parameters[rows], self.losses[rows])


@dataclass(frozen=True)
class LawFit:
    """A law fitted to all runs, its residual (root mean square), intervals by field, and laws of the bootstrap."""

    law: Law
    residual: float
    intervals: dict[str, tuple[float, float]]
    replicates: list[Law]


FORMS: dict[str, Callable[[Floats, Floats, float, float], tuple[Floats, ...]]] = {
    "additive": lambda n, p, alpha, beta: (np.ones_like(n), n**-alpha, p**-beta),
    "votes alone": lambda n, _parameters, alpha, _beta: (np.ones_like(n), n**-alpha),
    "product": lambda n, p, alpha, beta: (np.ones_like(n), n**-alpha * p**-beta),
    "shared": lambda n, p, alpha, beta: (np.ones_like(n), n**-alpha, n**-alpha * p**-beta),
}
"""Name: factors of E, A and B for votes, parameters, alpha and beta."""


def fit_law(
    votes: npt.ArrayLike,
    parameters: npt.ArrayLike,
    loss: npt.ArrayLike,
    *,
    form: str = "additive",
    floor: float | None = None,
    ceiling: float | None = None,
) -> Law:
    """Fit a law by least squares to the mean held-out loss (R,) of runs with these votes and parameters (R,).

    Args:
        votes, parameters, loss: (R,).
        form: a name in `FORMS`.
        floor: E where it is known, as for simulated votes; None fits it.
        ceiling: C to bend the law under; it needs a floor, which it is above.

    Raise InputError for fewer than three sizes of votes or (where they count) of models, or values that are not finite.
    """
    if form not in FORMS:
        raise ConfigError(f"unknown form {form!r}; use {', '.join(FORMS)}")
    if ceiling is not None and (floor is None or ceiling <= floor):
        raise ConfigError(f"a ceiling ({ceiling:g}) must be above a known floor ({floor})")
    counts, sizes, losses = _floats(votes), _floats(parameters), _floats(loss)
    _check(counts, sizes, losses, form)
    # Sizes in units of their geometric means are of the order of one.
    units = [float(np.exp(np.log(values).mean())) for values in (counts, sizes)]
    search = _Search(counts / units[0], sizes / units[1], losses, form, floor, ceiling)
    alpha, beta = search.best()
    scales, _ = search.scales(alpha, beta)
    powers = (units[0] ** alpha, units[1] ** beta)
    first = scales[1] * powers[0]
    if form == "votes alone":
        return Law(form, scales[0], first, alpha, ceiling=ceiling)
    if form == "product":
        return Law(form, scales[0], first * powers[1], alpha, 0.0, beta, ceiling)
    second = powers[1] * (powers[0] if form == "shared" else 1.0)
    return Law(form, scales[0], first, alpha, scales[2] * second, beta, ceiling)


@dataclass(frozen=True)
class _Search:
    """The search of the exponents under which least squares leaves the least."""

    votes: Floats
    parameters: Floats
    loss: Floats
    form: str
    floor: float | None
    ceiling: float | None

    def scales(self, alpha: float, beta: float) -> tuple[list[float], float]:
        """Return E, A and B for these exponents, and the norm of the residual."""
        from scipy.optimize import nnls

        columns = np.stack(FORMS[self.form](self.votes, self.parameters, alpha, beta), axis=1)
        if self.floor is None:
            coefficients, left = nnls(columns, self.loss)
            return coefficients.tolist(), float(left)
        excess, weights = _unbent(self.loss - self.floor, self.floor, self.ceiling)
        coefficients, _ = nnls(columns[:, 1:] * weights[:, None], excess * weights)
        fitted = _bent(tuple(columns[:, 1:].T), tuple(coefficients.tolist()), self.floor, self.ceiling)
        return [self.floor, *coefficients.tolist()], float(np.linalg.norm(self.loss - fitted))

    def best(self) -> tuple[float, float]:
        """Return alpha and beta."""
        from scipy.optimize import minimize

        second = [0.0] if self.form == "votes alone" else _EXPONENTS
        grid = [(float(alpha), float(beta)) for alpha, beta in itertools.product(_EXPONENTS, second)]
        start = min(grid, key=lambda pair: self.scales(*pair)[1])
        free = 1 if self.form == "votes alone" else 2

        def left(logs: Floats) -> float:
            alpha, beta = (*np.exp(logs), 0.0)[:2]
            return self.scales(float(alpha), float(beta))[1]

        bounds = [(np.log(LIMITS[0]), np.log(LIMITS[1]))] * free
        options: Any = {"xatol": 1e-6, "fatol": 1e-12, "maxiter": 400}
        refined = minimize(left, np.log(start[:free]), method="Nelder-Mead", bounds=bounds, options=options).x
        alpha, beta = (*np.clip(np.exp(refined), *LIMITS), 0.0)[:2]
        return float(alpha), float(beta)


def _bent(columns: tuple[Floats, ...], scales: tuple[float, ...], floor: float, ceiling: float | None) -> Floats:
    """Return the loss from the parts of its excess."""
    # Forms with one part of excess leave the second scale, which is zero, over.
    excess: Floats = np.asarray(sum(scale * column for scale, column in zip(scales, columns, strict=False)))
    if ceiling is None:
        return floor + excess
    return np.asarray(floor + excess * (ceiling - floor) / (ceiling - floor + excess))


def _unbent(excess: Floats, floor: float, ceiling: float | None) -> tuple[Floats, Floats]:
    """Return the excess before it was bent, and weights that make its errors those of the loss."""
    if ceiling is None:
        return excess, np.ones_like(excess)
    share = np.clip(excess / (ceiling - floor), 1e-3, 1 - _NEAR_CEILING)
    return share / (1 - share) * (ceiling - floor), (1 - share) ** 2


def leave_one_out(
    runs: Runs, *, form: str = "additive", floor: float | None = None, ceiling: float | None = None
) -> float:
    """Return the root mean square error of predicting the runs of each size of votes and model from all others."""
    cells = np.unique(np.stack([runs.votes, runs.parameters]), axis=1, return_inverse=True)[1].reshape(-1)
    errors = np.empty(len(cells))
    for cell in np.unique(cells):
        inside, out = runs.of(np.flatnonzero(cells != cell)), np.flatnonzero(cells == cell)
        law = fit_law(inside.votes, inside.parameters, inside.loss, form=form, floor=floor, ceiling=ceiling)
        errors[out] = runs.loss[out] - law.loss(runs.votes[out], runs.parameters[out])
    return float(np.sqrt(np.mean(errors**2)))


def fit_with_intervals(
    runs: Runs,
    *,
    form: str = "additive",
    floor: float | None = None,
    ceiling: float | None = None,
    level: float = 0.95,
    replicates: int = 200,
    seed: int = 0,
) -> LawFit:
    """Fit a law, with intervals of the bootstrap over held-out prompts (by blocks) and over runs, both at once.

    Drawing runs again includes what another training set and another start would change, and how well the form fits.
    """
    law = fit_law(runs.votes, runs.parameters, runs.loss, form=form, floor=floor, ceiling=ceiling)
    rng = np.random.default_rng(seed)
    laws = [_redrawn(runs, law, floor, rng) for _ in range(replicates)]
    tail = (1.0 - level) / 2
    names = ["floor", "votes_scale", "votes_exponent", "parameters_scale", "parameters_exponent"]
    intervals = {}
    for name in names:
        lower, upper = np.quantile([getattr(one, name) for one in laws], [tail, 1.0 - tail])
        intervals[name] = (float(lower), float(upper))
    residual = runs.loss - law.loss(runs.votes, runs.parameters)
    return LawFit(law, float(np.sqrt(np.mean(residual**2))), intervals, laws)


def _redrawn(runs: Runs, law: Law, floor: float | None, rng: np.random.Generator) -> Law:
    count, blocks = runs.losses.shape
    while True:
        drawn = runs.of(np.asarray(rng.integers(count, size=count)))
        if _enough(drawn.votes, drawn.parameters, law.form):
            break
    losses = drawn.losses[:, rng.integers(blocks, size=blocks)].mean(axis=1)
    return fit_law(drawn.votes, drawn.parameters, losses, form=law.form, floor=floor, ceiling=law.ceiling)


def _enough(votes: Floats, parameters: Floats, form: str) -> bool:
    counting = [votes] if form == "votes alone" else [votes, parameters]
    return all(len(np.unique(sizes)) >= _LEAST_SIZES for sizes in counting)


def _check(votes: Floats, parameters: Floats, loss: Floats, form: str) -> None:
    if not votes.shape == parameters.shape == loss.shape or votes.ndim != 1:
        raise InputError("votes, parameters and loss must hold one number for each run")
    if not all(np.isfinite(values).all() for values in (votes, parameters, loss)):
        raise InputError("votes, parameters and loss must be finite numbers; leave out runs that failed")
    if (votes <= 0).any() or (parameters <= 0).any():
        raise InputError("votes and parameters must be above zero")
    if not _enough(votes, parameters, form):
        raise InputError(
            f"a scaling law needs runs of at least {_LEAST_SIZES} numbers of votes and {_LEAST_SIZES} sizes of model, "
            f"not {len(np.unique(votes))} and {len(np.unique(parameters))}; train more"
        )


def _floats(values: npt.ArrayLike | Sequence[float]) -> Floats:
    return np.asarray(values, dtype=np.float64)
