"""What is evaluated on one category: a model's answers to its prompts, or one leaderboard for all of them.

Shapes: N votes of the category, M models, S subsets, P pairs, K outcomes, D parameters.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from p2l.evaluation.boards import standing
from p2l.evaluation.many_fits import ManyFits, fit_many
from p2l.leaderboard import Leaderboard, aggregate
from p2l.leaderboard.objective import has_eta, shift_invariant
from p2l.likelihood import Likelihood
from p2l.metrics import ScoredVotes, Standing

__all__ = ["Answers", "Fixed", "Subject"]

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.integer[Any]]

_BLOCK = 64  # prompts whose pair tables are made at once
_CACHED = 1 << 28  # bytes of pair tables that are kept


@dataclass(frozen=True)
class Fixed:
    """One leaderboard in the place of a model: its own aggregate on whatever prompts."""

    likelihood: Likelihood
    models: Sequence[str]
    board: Leaderboard

    @cached_property
    def standing(self) -> Standing:
        """As columns of `models`."""
        return standing(self.board, self.models)

    def scored(self, labels: Ints) -> ScoredVotes:
        """Its forecast of all votes of the category (N, 3)."""
        return ScoredVotes(self.likelihood, self.standing.coefs, labels, self.standing.eta, self.standing.gamma)

    def leaderboard(self, *, intervals: bool, level: float) -> Leaderboard:  # noqa: ARG002 (as of answers)
        """Itself."""
        return self.board

    def aggregates(self, subsets: Sequence[Ints]) -> list[Standing]:
        """Itself for each subset of the votes."""
        return [self.standing] * len(subsets)


@dataclass(frozen=True)
class Answers:
    """What a model said of each prompt: coefs (N, M), eta and gamma (N,) or None."""

    likelihood: Likelihood
    models: Sequence[str]
    coefs: npt.NDArray[np.floating[Any]]
    eta: Any = None
    gamma: Any = None
    _kept: dict[int, Floats] = field(default_factory=dict, repr=False)

    def scored(self, labels: Ints) -> ScoredVotes:
        """Its forecast of all votes of the category (N, 3)."""
        return ScoredVotes(self.likelihood, self.coefs, labels, self.eta, self.gamma)

    def leaderboard(self, *, intervals: bool, level: float) -> Leaderboard:
        """The aggregate of all prompts."""
        blocks = [self.coefs[start : start + 4096] for start in range(0, len(self.coefs), 4096)]
        kind = "sandwich" if intervals else None
        scalars = (self.eta, self.gamma)
        return aggregate(blocks, *scalars, self.likelihood.name, models=list(self.models), intervals=kind, level=level)

    def aggregates(self, subsets: Sequence[Ints]) -> list[Standing]:
        """The aggregate of each subset (positions among the N votes, with repetition)."""
        rows, multiplicity = _union(subsets, len(self.coefs))
        targets = self._tables(rows, multiplicity)
        mean = _centred(multiplicity @ self._parameters[rows], self.likelihood, len(self.models))
        sizes = np.array([[len(subset)] for subset in subsets])
        fitted = fit_many(self._fits, targets, mean, mean + (1.0 - 1.0 / sizes) * self._beyond_mean)
        gamma = 0.0 if self.likelihood.head == "ba" else None
        return [_as_standing(theta, self.likelihood, gamma) for theta in fitted]

    @cached_property
    def _fits(self) -> ManyFits:
        size = len(self.models) + has_eta(self.likelihood)
        # Without an outcome "both bad" the level of grounded coefficients shows in the ties alone.
        ridge = 1e-6 if self.likelihood.grounded and "bothbad" not in self.likelihood.outcomes else 1e-10
        return ManyFits(self.likelihood, len(self.models), np.zeros(size), ridge)

    @cached_property
    def _beyond_mean(self) -> Floats:
        """The aggregate of all prompts less the mean of their parameters (D,): what starts a subset near its own."""
        board = self.leaderboard(intervals=False, level=0.95)
        whole = board.coefs if board.eta is None else np.append(board.coefs, board.eta)
        mean = self._parameters.mean(axis=0, keepdims=True)
        return np.asarray(whole - _centred(mean, self.likelihood, len(self.models))[0])

    @cached_property
    def _parameters(self) -> Floats:
        """Coefficients relative to gamma, then eta: (N, D)."""
        coefs = np.asarray(self.coefs, dtype=np.float64)
        if self.likelihood.head == "ba":
            coefs = coefs - np.asarray(self.gamma, dtype=np.float64)[:, None]
        if not has_eta(self.likelihood):
            return coefs
        return np.concatenate([coefs, np.asarray(self.eta, dtype=np.float64)[:, None]], axis=1)

    def _tables(self, rows: Ints, multiplicity: Any) -> Floats:
        """Mean outcome tables (S, P, K) of subsets given by their shares (S, n) of n prompts."""
        shape = (len(self._fits.first), len(self.likelihood.outcomes))
        sums = np.zeros((multiplicity.shape[0], shape[0] * shape[1]))
        by_column = multiplicity.tocsc()
        step = _BLOCK * 8 if self._keeps else _BLOCK
        for start in range(0, len(rows), step):
            part = slice(start, start + step)
            sums += by_column[:, part] @ self._probs(rows[part])
        return sums.reshape(-1, *shape)

    def _probs(self, rows: Ints) -> Floats:
        """Flat outcome tables (n, P K) of n prompts; kept while they are small."""
        if self._keeps and not self._kept:
            whole = [np.arange(start, min(start + _BLOCK, len(self.coefs))) for start in self._starts]
            self._kept[0] = np.concatenate([self._probs_of(block) for block in whole])
        return self._kept[0][rows] if self._keeps else self._probs_of(rows)

    @property
    def _starts(self) -> range:
        return range(0, len(self.coefs), _BLOCK)

    @property
    def _keeps(self) -> bool:
        return len(self.coefs) * len(self._fits.first) * len(self.likelihood.outcomes) * 8 <= _CACHED

    def _probs_of(self, rows: Ints) -> Floats:
        coefs = self.coefs[rows]
        eta, gamma = (None if value is None else value[rows, None, None] for value in (self.eta, self.gamma))
        probs = self.likelihood.probs(coefs[:, :, None], coefs[:, None, :], eta, gamma)
        return np.asarray(probs[:, self._fits.first, self._fits.second], dtype=np.float64).reshape(len(rows), -1)


Subject = Answers | Fixed


def _union(subsets: Sequence[Ints], number: int) -> tuple[Ints, Any]:
    """The rows that any subset holds, and the share (S, n) of each of them in each subset, sparse."""
    from scipy.sparse import csr_array

    rows = np.unique(np.concatenate(subsets))
    place = np.zeros(number, dtype=np.int64)
    place[rows] = np.arange(len(rows))
    sizes = np.array([len(subset) for subset in subsets])
    index = np.repeat(np.arange(len(subsets)), sizes)
    shares = np.repeat(1.0 / sizes, sizes)
    return rows, csr_array((shares, (index, place[np.concatenate(subsets)])), shape=(len(subsets), len(rows)))


def _centred(parameters: Floats, likelihood: Likelihood, num_models: int) -> Floats:
    """Parameters (S, D) with coefficients of mean zero where only differences count."""
    if shift_invariant(likelihood):
        parameters[:, :num_models] -= parameters[:, :num_models].mean(axis=1, keepdims=True)
    return parameters


def _as_standing(theta: Floats, likelihood: Likelihood, gamma: float | None) -> Standing:
    eta = float(theta[-1]) if has_eta(likelihood) else None
    return Standing(theta[: len(theta) - has_eta(likelihood)], eta, gamma)
