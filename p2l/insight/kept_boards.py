"""Leaderboards of categories of prompts from the votes that a model keeps: which models they favour, and how surely.

The category is known of the prompts that are asked about. A kept vote on one of these is in their category, and the
votes may hold the column of the categories themselves; of any other prompt the category is read off its place, by a
ridge regression over the prompts asked whose penalty and scale leaving each of them out chooses. What places do not
tell makes intervals wide, and estimates no smaller.

Shapes: U prompts asked, Q kept prompts, M models, C clusters (kept prompts, and the prior of each coefficient).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from p2l.leaderboard.likely_groups import fit_likely_groups
from p2l.likelihood import Likelihood, win_rates

if TYPE_CHECKING:
    from p2l.model.kept_votes import KeptVotes

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
_PENALTIES = np.geomspace(1e-4, 1e2, 13)
"""Of the ridge regression, over the greatest variance of the places."""


class CategoryBoard(NamedTuple):
    """The leaderboard of one category."""

    coefs: Floats
    """(M,)"""
    rates: Floats
    """(M,) chance of beating a model drawn from the others."""
    influences: Floats
    """(C, M) by how much each kept prompt, and the prior, moves each coefficient; squares sum to the variance."""
    prompts: Floats
    """(M,) expected number of kept prompts of the category with a vote on each model."""


@dataclass(frozen=True)
class VotesOnPrompts:
    """The kept votes of a model, and the prompts asked about by hash (U,) and place (U, D)."""

    kept: KeptVotes
    likelihood: Likelihood
    hashes: npt.NDArray[np.uint64]
    places: Floats

    def of(self, rows: Ints) -> VotesOnPrompts:
        """Return the same votes, with some of the prompts asked about."""
        return replace(self, hashes=self.hashes[rows], places=self.places[rows])

    def without(self, others: KeptVotes) -> VotesOnPrompts:
        """Return the votes that others do not hold too; all of them where nothing would be left."""
        keys, other_keys = _keys(self.kept), set(_keys(others))
        new = np.array([key not in other_keys for key in keys], dtype=bool)
        if new.all() or not new.any():
            return self
        return replace(self, kept=self.kept.some(new))

    def board(self, rows: Ints, known: npt.NDArray[np.bool_] | None = None) -> CategoryBoard:
        """Return the leaderboard of the category that has these of the prompts asked about; ConvergenceError.

        `known` says of each kept prompt (Q,) whether it is of the category, where that need not be read off its place.
        """
        kept, count = self.kept, len(self.kept.models)
        member = self._membership(rows) if known is None else known.astype(np.float64)
        memberships = member[:, None] if (member == 1.0).all() else np.stack([member, 1.0 - member], axis=1)
        boards = fit_likely_groups(
            kept.labels, kept.weights, memberships[kept.prompt], kept.prompt, count, self.likelihood, kept.shift
        )
        scalars = dict(zip(self.likelihood.parameters, boards.scalars[0], strict=True))
        rates = win_rates(boards.coefs[0], self.likelihood, scalars.get("eta"), scalars.get("gamma"))
        votes = np.unique(np.concatenate([kept.labels[:, side] * len(kept.hashes) + kept.prompt for side in (0, 1)]))
        model, prompt = np.divmod(votes, len(kept.hashes))
        prompts = np.bincount(model, weights=member[prompt], minlength=count).astype(np.float64)
        return CategoryBoard(boards.coefs[0], rates, boards.influences[:, 0], prompts)

    def _membership(self, rows: Ints) -> Floats:
        """Return the probability (Q,) that each kept prompt is of the category."""
        if len(rows) == len(self.hashes):
            return np.ones(len(self.kept.hashes))
        is_member = np.zeros(len(self.hashes))
        is_member[rows] = 1.0
        member = _likely(self.places, is_member, self.kept.places.astype(np.float64))
        order = np.argsort(self.hashes)
        place = np.searchsorted(self.hashes, self.kept.hashes, sorter=order).clip(max=len(order) - 1)
        asked = order[place]
        return np.where(self.hashes[asked] == self.kept.hashes, is_member[asked], member)


def _keys(votes: KeptVotes) -> list[tuple[int, str, str, int]]:
    """Return what makes each vote the same as another: prompt, names of winner and loser, and kind of tie."""
    hashes = votes.hashes[votes.prompt].tolist()
    names = [[votes.models[place] for place in votes.labels[:, side].tolist()] for side in (0, 1)]
    return list(zip(hashes, *names, votes.labels[:, 2].tolist(), strict=True))


def _likely(places: Floats, is_member: Floats, others: Floats) -> Floats:
    """Return the probability that each of other places is a member's, by those (U, D) of which it is known (U,)."""
    centre, share = places.mean(axis=0), is_member.mean()
    left, sizes, right = np.linalg.svd(places - centre, full_matrices=False)
    along = left.T @ (is_member - share)
    errors, fits = [], []
    for penalty in _PENALTIES * max(float(sizes[0] ** 2), 1e-12):
        kept = sizes**2 / (sizes**2 + penalty)
        # Each place by all others: the closed form of leaving one out.
        leverage = (left**2) @ kept + 1.0 / len(places)
        left_out = is_member - (is_member - share - left @ (kept * along)) / np.maximum(1.0 - leverage, 1e-6)
        errors.append(float(((is_member - left_out) ** 2).mean()))
        fits.append((left_out, kept / np.maximum(sizes, 1e-12)))
    left_out, inverse = fits[int(np.argmin(errors))]
    spread = left_out.var()
    scale = float(np.mean((left_out - left_out.mean()) * (is_member - share)) / spread) if spread > 0 else 0.0
    direction = right.T @ (inverse * along)
    return np.asarray((share + max(scale, 0.0) * ((others - centre) @ direction)).clip(0.0, 1.0))


def joint_variance(before: VotesOnPrompts, after: VotesOnPrompts, first: Floats, second: Floats) -> Floats:
    """Return the variance (M,) of a difference from the influences (C, M) of both sides.

    What a prompt that both sides were asked has of its own is in both, and cancels.
    """
    ours, theirs = len(before.kept.hashes), len(after.kept.hashes)
    _, rows, columns = np.intersect1d(before.kept.hashes, after.kept.hashes, return_indices=True)
    total = (first**2).sum(axis=0) + (second**2).sum(axis=0)
    clusters = max(2, ours + theirs - len(rows))
    total = (total - 2.0 * (first[rows] * second[columns]).sum(axis=0)) * clusters / (clusters - 1)
    return np.asarray(np.maximum(total, 0.0))
