"""Whether votes bear strengths out: real votes, on prompts of each cluster, against all of them.

A vote's prompt comes into a cluster by its words (or as it did when it was measured). One leaderboard is fitted to all
votes, and one to those of each cluster, pulled towards the first as groups of `p2l leaderboard --by` are. Votes that
the model was trained on prove little: give others.

Shapes: N votes, M models, K clusters.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from p2l.errors import InputError
from p2l.explaining.result import Agreement, Explanation, Observed, Strength
from p2l.leaderboard.board import POINTS_PER_LOGIT, Leaderboard
from p2l.leaderboard.fitting import fit_labels
from p2l.leaderboard.objective import Prior
from p2l.votes.schema import hash_turns
from p2l.votes.store import VoteStore, open_votes

__all__ = ["with_votes"]

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

_LIKELIHOOD = "bt-tie"
_SHRINK = 0.5
_LEAST_VOTES = 20
_AT_ONCE = 4096


def with_votes(made: Explanation, votes: Any, *, least: int = _LEAST_VOTES, quiet: bool = True) -> Explanation:
    """The explanation with what votes say of each cell.

    Args:
        made: what a model said.
        votes: any source of votes with prompts; models that the explanation lacks are left out.
        least: votes of a model in a cluster that a cell needs.
        quiet: no progress bar.

    Raises:
        InputError: the votes cannot be read, or none can be placed.
    """
    models = sorted(made.models)
    with open_votes(votes, model_list=models, drop_unknown=True, quiet=quiet) as store:
        cluster, labels = _placed(made, store), store.labels()
    known = cluster >= 0
    if not known.any():
        raise InputError(f"{votes}: no vote is on a prompt of a cluster; use --by words, or votes on the prompts asked")
    cluster, labels = cluster[known], labels[known]
    whole = fit_labels(labels, models=models, likelihood=_LIKELIHOOD, intervals=None)
    found = {
        (name, model): observed
        for one, name in enumerate(made.names)
        if (cluster == one).any()
        for model, observed in _observed(labels, cluster == one, models, whole, made.level, least).items()
    }
    cells = tuple(replace(cell, observed=found.get((cell.cluster, cell.model))) for cell in made.strengths)
    return replace(made, strengths=cells, agreement=_agreement(cells, len(labels)))


def _placed(made: Explanation, store: VoteStore) -> Ints:
    """Cluster (N,) of each vote; -1 where it is unknown."""
    parts = []
    for start in range(0, len(store), _AT_ONCE):
        texts = store.prompts(range(start, min(start + _AT_ONCE, len(store))))
        if made.by == "words" and made.places is not None:
            parts.append(made.places.place_texts(texts))
        else:
            parts.append(np.array([made.known.get(hash_turns(turns), -1) for turns in texts], dtype=np.int64))
    return np.concatenate(parts)


def _observed(
    labels: Ints, inside: npt.NDArray[np.bool_], models: Sequence[str], whole: Leaderboard, level: float, least: int
) -> dict[str, Observed]:
    """What the votes of one cluster say of each model that has enough of them there."""
    here, there = _tallies(labels[inside], len(models)), _tallies(labels[~inside], len(models))
    used = np.flatnonzero(here[1] >= least).tolist()
    if not used:
        return {}
    board = fit_labels(
        labels[inside],
        models=models,
        likelihood=_LIKELIHOOD,
        prior=Prior(sd=_SHRINK, coefs=whole.coefs),
        level=level,
    )
    change = board.coefs - whole.coefs
    points = POINTS_PER_LOGIT * np.stack([change, board.lower - whole.coefs, board.upper - whole.coefs])
    with np.errstate(invalid="ignore", divide="ignore"):
        rates = here[0] / here[1], there[0] / there[1]
    return {
        models[m]: Observed(int(here[1][m]), float(rates[0][m]), float(rates[1][m]), *(float(x) for x in points[:, m]))
        for m in used
    }


def _tallies(labels: Ints, models: int) -> tuple[Floats, Floats]:
    """Points (M,), half of one for a tie, and votes (M,) of each model."""
    won = np.where(labels[:, 2] == 0, 1.0, 0.5)
    points = np.bincount(labels[:, 0], won, models) + np.bincount(labels[:, 1], 1.0 - won, models)
    return points.astype(np.float64), np.bincount(labels[:, :2].ravel(), minlength=models).astype(np.float64)


def _agreement(cells: Sequence[Strength], votes: int) -> Agreement:
    compared = [(cell, cell.observed) for cell in cells if cell.observed is not None]
    said = np.array([cell.change for cell, _ in compared])
    seen = np.array([observed.change for _, observed in compared])
    weights = np.array([float(observed.votes) for _, observed in compared])
    found = [(cell, observed) for cell, observed in compared if cell.verdict]
    same = sum((cell.change > 0) == (observed.change > 0) for cell, observed in found)
    return Agreement(votes, len(compared), _correlation(said, seen, weights), len(found), same)


def _correlation(one: Floats, other: Floats, weights: Floats) -> float | None:
    if len(one) < 3:
        return None
    covariance = np.cov(one, other, aweights=weights)
    scale = float(np.sqrt(covariance[0, 0] * covariance[1, 1]))
    return float(covariance[0, 1] / scale) if scale > 0 else None
