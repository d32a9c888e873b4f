"""One leaderboard for a set of prompts, from their per-prompt coefficients.

Shapes: N prompts, n prompts of one block, M models, P = M (M - 1) / 2 pairs, K outcomes, D parameters, R replicates.

The aggregate maximises the expected log-likelihood of the votes that the per-prompt leaderboards predict, over all
prompts and pairs. Cross-entropy is linear in its target, so the mean outcome probabilities of each pair are all that
the optimum needs: one pass over the prompts in O(M^2) memory, then Newton on that table. Intervals say how much the
aggregate would differ had other prompts been drawn from where these came from; they take a second pass. The
coefficients themselves are taken as exact.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from p2l import likelihood as likelihoods
from p2l.common.errors import InputError
from p2l.leaderboard.board import Leaderboard
from p2l.leaderboard.intervals import bounds, check_intervals
from p2l.leaderboard.newton import Expansion, Objective, has_eta, minimise, shift_invariant
from p2l.leaderboard.pair_tables import check_number_of_models
from p2l.likelihood import Likelihood

Floats = npt.NDArray[np.float64]
Coefs: TypeAlias = "npt.ArrayLike | Iterable[npt.ArrayLike]"

# Prompts and models per call of `Likelihood.probs`: its temporary arrays then stay in a core's cache.
_PROMPTS, _MODELS = 32, 16
# Keeps Newton steps finite where prompts are so sure that nothing is left to learn; it moves nothing visible.
_RIDGE = 1e-10
# Without an outcome "both bad" the level of grounded coefficients shows in the ties alone, for two models not at all.
# A hundred times as strong a pull moves the level by 2e-4; a tenth of it leaves no step that Newton's method can tell.
_LEVEL_RIDGE = 1e-8


class _Block(NamedTuple):
    """A few prompts: their place among all, coefs (n, M), eta and gamma (n, 1, 1), or () when one for all, or None."""

    where: slice
    coefs: Floats
    eta: Floats | None
    gamma: Floats | None


def aggregate(
    coefs: Coefs,
    eta: npt.ArrayLike | None = None,
    gamma: npt.ArrayLike | None = None,
    likelihood: str = "grk",
    *,
    models: Sequence[str],
    intervals: str | None = "sandwich",
    level: float = 0.95,
    seed: int = 0,
    replicates: int = 100,
) -> Leaderboard:
    """Aggregate per-prompt coefficients into one leaderboard; InputError if they cannot be used, or eta or gamma lack.

    Args:
        coefs: (N, M), or blocks (n, M) in the order of the prompts; with intervals the blocks are read twice, so they
            must be iterable twice (a list, or an object whose `__iter__` reads them anew), not a generator.
        eta: (N,) or one number, for likelihoods that have it.
        gamma: (N,) or one number, for `ba`.
        likelihood: name of the outcome model of the coefficients.
        models: M names.
        intervals: "sandwich", "bootstrap" (both over prompts) or None.
        level: coverage of the intervals.
        seed, replicates: of the bootstrap.
    """
    check_intervals(intervals, level, replicates)
    check_number_of_models(len(models))
    prompts = _Blocks(coefs, eta, gamma, likelihoods.get(likelihood), len(models))
    if intervals and prompts.one_shot:
        raise InputError("intervals read the coefficients twice: give blocks as a list or an array, or intervals=None")
    sums, mean, number = _sum_outcomes(prompts)
    objective = _objective(prompts.likelihood, sums / number, mean)
    point = minimise(objective, mean) if len(models) > 1 else Expansion(mean, np.nan, mean, np.eye(len(mean)))
    rng = np.random.default_rng(seed)
    ends = bounds(
        objective,
        point,
        intervals if len(models) > 1 else None,
        level,
        lambda: _prompt_scores(objective, point, prompts) / number**2,
        lambda: _redrawn_prompts(prompts, number, replicates, rng),
        rng,
    )
    return Leaderboard(
        models=list(models),
        coefs=point.theta[: len(models)],
        lower=ends.lower[: len(models)],
        upper=ends.upper[: len(models)],
        eta=float(point.theta[-1]) if has_eta(prompts.likelihood) else None,
        gamma=prompts.likelihood.board_gamma,
        likelihood=prompts.likelihood.name,
        loss=objective.loss(point),
        votes=None,
        components=np.zeros(len(models), dtype=np.int64),
        notes=() if len(models) > 1 else ("A single model: there is nobody to compare it with.",),
        intervals_of="prompts",
        level=level,
        covariance=None if ends.covariance is None else ends.covariance[: len(models), : len(models)],
    )


class _Blocks:
    """The prompts in small blocks, checked; iterating again reads them again."""

    def __init__(
        self,
        coefs: Coefs,
        eta: npt.ArrayLike | None,
        gamma: npt.ArrayLike | None,
        likelihood: Likelihood,
        num_models: int,
    ) -> None:
        self.likelihood, self.num_models = likelihood, num_models
        self.one_shot = isinstance(coefs, Iterator)
        self._blocks = [coefs] if isinstance(coefs, np.ndarray) else coefs
        self._eta = _parameter("eta", eta, likelihood)
        self._gamma = _parameter("gamma", gamma, likelihood)

    def __iter__(self) -> Iterator[_Block]:
        number = 0
        for coefs in self._blocks:  # type: ignore[union-attr]
            block = np.asarray(coefs, dtype=np.float64)
            if block.ndim != 2 or block.shape[1] != self.num_models:
                shape = f"(prompts, {self.num_models} models)"
                raise InputError(f"coefficients have shape {block.shape}; {shape} is needed")
            wrong = ~np.isfinite(block).all(axis=1)
            if wrong.any():
                row = number + int(np.argmax(wrong)) + 1
                raise InputError(f"prompt {row} has coefficients that are not finite numbers")
            for start in range(0, len(block), _PROMPTS):
                rows = block[start : start + _PROMPTS]
                where = slice(number + start, number + start + len(rows))
                yield _Block(where, rows, _rows("eta", self._eta, where), _rows("gamma", self._gamma, where))
            number += len(block)
        if not number:
            raise InputError("there are no prompts to aggregate")
        for name, values in (("eta", self._eta), ("gamma", self._gamma)):
            if values is not None and values.ndim and len(values) != number:
                raise InputError(f"{name} has {len(values)} values for {number} prompts")


def _parameter(name: str, argument: npt.ArrayLike | None, likelihood: Likelihood) -> Floats | None:
    if name not in likelihood.parameters:
        return None
    if argument is None:
        raise InputError(f"likelihood {likelihood.name} needs {name}: one number, or one for each prompt")
    values = np.asarray(argument, dtype=np.float64)
    if not np.isfinite(values).all():
        raise InputError(f"{name} has values that are not finite numbers")
    return values.reshape(-1) if values.ndim else values


def _rows(name: str, values: Floats | None, where: slice) -> Floats | None:
    if values is None or not values.ndim:
        return values
    if len(values) < where.stop:
        raise InputError(f"{name} has {len(values)} values for at least {where.stop} prompts")
    return values[where, None, None]


def _tiles(likelihood: Likelihood, block: _Block) -> Iterator[tuple[slice, slice, Floats]]:
    """Yield outcome probabilities (K, n, r, c) of r models with the c models from the first of these on."""
    size = block.coefs.shape[1]
    for start in range(0, size, _MODELS):
        rows, columns = slice(start, min(start + _MODELS, size)), slice(start, size)
        probs = likelihood.probs(block.coefs[:, rows, None], block.coefs[:, None, columns], block.eta, block.gamma)
        yield rows, columns, np.moveaxis(probs, -1, 0)


def _sum_outcomes(prompts: _Blocks) -> tuple[Floats, Floats, int]:
    """Return summed probabilities (K, M, M) of pairs with column > row, mean parameters (D,), and N."""
    size, likelihood = prompts.num_models, prompts.likelihood
    sums, totals, number = np.zeros((len(likelihood.outcomes), size, size)), np.zeros(size + 1), 0
    for block in prompts:
        number += len(block.coefs)
        eta, gamma = (np.zeros(()) if value is None else value for value in (block.eta, block.gamma))
        each = (len(block.coefs), 1, 1)
        # The level of coefficients counts from gamma on.
        coefs = block.coefs - np.broadcast_to(gamma, each)[:, :, 0]
        totals += np.append(coefs.sum(axis=0), np.broadcast_to(eta, each).sum())
        for rows, columns, probs in _tiles(likelihood, block):
            sums[:, rows, columns] += probs.sum(axis=1)
    mean = totals[: size + has_eta(likelihood)] / number
    if shift_invariant(likelihood):
        mean[:size] -= mean[:size].mean()
    return sums, mean, number


def _objective(likelihood: Likelihood, sums: Floats, mean: Floats) -> Objective:
    size = sums.shape[1]
    first, second = np.triu_indices(size, 1)
    return Objective(
        likelihood=likelihood,
        num_models=size,
        first=first,
        second=second,
        targets=_pairs(sums),
        mean=mean,
        precision=np.zeros(len(mean)),
        gauge=np.zeros(size, dtype=np.int64) if shift_invariant(likelihood) else None,
        ridge=_LEVEL_RIDGE if likelihood.merges_ties else _RIDGE,
    )


def _pairs(sums: Floats) -> Floats:
    """Flatten tables (..., K, M, M) to pairs (..., P, K)."""
    first, second = np.triu_indices(sums.shape[-1], 1)
    return np.ascontiguousarray(np.moveaxis(sums[..., first, second], -2, -1))


def _prompt_scores(objective: Objective, point: Expansion, prompts: _Blocks) -> Floats:
    """Return the summed outer products (D, D) of the prompts' scores."""
    _, gradient, _ = objective.derivatives(point.theta)
    size = objective.num_models
    table = np.zeros((gradient.shape[2], gradient.shape[1], size, size))
    table[:, :, objective.first, objective.second] = np.moveaxis(gradient, 0, -1).swapaxes(0, 1)
    out = np.zeros((objective.size, objective.size))
    for block in prompts:
        scores = np.zeros((len(block.coefs), objective.size))
        for rows, columns, probs in _tiles(prompts.likelihood, block):
            slopes = table[:, :, rows, columns]
            by_row = probs.transpose(0, 2, 1, 3) @ slopes[0][..., None]
            scores[:, rows] += by_row.sum(axis=0)[..., 0].T
            scores[:, columns] += np.einsum("knrc,krc->nc", probs, slopes[1])
            if len(slopes) > 2:
                scores[:, -1] += np.tensordot(probs, slopes[2], axes=([0, 2, 3], [0, 1, 2]))
        out += scores.T @ scores
    return out


def _redrawn_prompts(prompts: _Blocks, number: int, replicates: int, rng: np.random.Generator) -> Iterator[Floats]:
    """Yield mean outcome tables (P, K) of R samples of N prompts, all gathered in one pass."""
    size = prompts.num_models
    times = rng.multinomial(number, np.full(number, 1.0 / number), size=replicates) / number
    sums = np.zeros((replicates, len(prompts.likelihood.outcomes), size, size))
    for block in prompts:
        drawn = times[:, block.where]
        for rows, columns, probs in _tiles(prompts.likelihood, block):
            sums[:, :, rows, columns] += np.tensordot(drawn, probs, axes=(1, 1))
    return (_pairs(table) for table in sums)
