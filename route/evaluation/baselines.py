"""What a user would do instead of training: expected scores of simple means over training answers.

Each is tuned on the training prompts by leaving one out: how far a mean is shrunk towards that over all prompts, and
how many neighbours count. What is tuned for is the score that the router's optimizer earns with these expectations, on
average over budgets, less nothing: the same as what is reported later, so that each is as strong as its kind can be.

Shapes: Q questions, T training questions, M models, D dimensions of an embedding, K neighbours.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from route.evaluation.worth import Worths

__all__ = ["Neighbourhood", "Tuned", "category_scores", "nearest", "nearest_scores", "tuned_category", "tuned_nearest"]

Floats: TypeAlias = npt.NDArray[np.float64]
Rows: TypeAlias = npt.NDArray[np.intp]

SHRINKAGES = (0.0, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0)
"""Weight of the overall mean, in prompts."""
NEIGHBOURS = (5, 10, 20, 40, 80, 160, 320)
NEIGHBOUR_SHRINKAGES = (0.0, 3.0, 10.0, 40.0)
_AT_ONCE = 1024


@dataclass(frozen=True)
class Tuned:
    """Expected scores (Q, M) of the prompts asked about, and the settings in words."""

    expected: Floats
    settings: str


def category_scores(scores: Floats, known: Sequence[str], asked: Sequence[str], shrink: float) -> Floats:
    """Mean training scores (Q, M) of the category of each question asked about, shrunk towards the overall mean."""
    overall = scores.mean(axis=0)
    categories = np.array(known, dtype=object)
    means = {name: _shrunk(scores[categories == name], overall, shrink) for name in set(known)}
    return np.stack([means.get(name, overall) for name in asked])


def tuned_category(scores: Floats, known: Sequence[str], asked: Sequence[str], worth: Worths) -> Tuned:
    """`category_scores` with the shrinkage that is worth most on training prompts, each left out of its own mean."""
    _, place, counts = np.unique(np.array(known, dtype=object), return_inverse=True, return_counts=True)
    sums = np.stack([np.bincount(place, column) for column in scores.T], axis=1)[place] - scores
    others, overall = counts[place][:, None] - 1, scores.mean(axis=0)

    def left_out(shrink: float) -> Floats:
        return np.asarray(
            np.where(others + shrink > 0, (sums + shrink * overall) / np.maximum(others + shrink, 1e-9), overall)
        )

    shrink = max(SHRINKAGES, key=lambda value: worth(left_out(value)).area)
    return Tuned(category_scores(scores, known, asked, shrink), f"{len(counts)} categories, shrinkage {shrink:g}")


@dataclass(frozen=True)
class Neighbourhood:
    """The nearest training questions of each question, nearest first."""

    rows: Rows
    """(Q, K)"""
    similarity: Floats
    """(Q, K) cosine"""


def nearest(known: Floats, asked: Floats, count: int, *, not_same: tuple[Rows, Rows] | None = None) -> Neighbourhood:
    """The `count` nearest of the embeddings `known` (T, D) to each of `asked` (Q, D), by their cosine.

    `not_same` gives codes of the texts (T,) and (Q,); equal texts are no neighbours.
    """
    known, asked = (rows / np.linalg.norm(rows, axis=1, keepdims=True) for rows in (known, asked))
    count = min(count, len(known))
    rows, similarity = np.empty((len(asked), count), dtype=np.intp), np.empty((len(asked), count))
    for start in range(0, len(asked), _AT_ONCE):
        here = slice(start, start + _AT_ONCE)
        near = asked[here] @ known.T
        if not_same is not None:
            near[not_same[1][here, None] == not_same[0]] = -np.inf
        best = np.argpartition(-near, count - 1, axis=1)[:, :count]
        order = np.argsort(-np.take_along_axis(near, best, axis=1), axis=1, kind="stable")
        rows[here] = np.take_along_axis(best, order, axis=1)
        similarity[here] = np.take_along_axis(near, rows[here], axis=1)
    return Neighbourhood(rows, similarity)


def nearest_scores(scores: Floats, near: Neighbourhood, count: int, shrink: float) -> Floats:
    """Mean scores (Q, M) of the `count` nearest training questions, shrunk towards the overall mean."""
    from scipy.sparse import csr_matrix

    usable = np.isfinite(near.similarity[:, :count]).astype(np.float64)
    ends = np.arange(len(usable) + 1) * usable.shape[1]
    counted = csr_matrix((usable.ravel(), near.rows[:, :count].ravel(), ends), shape=(len(usable), len(scores)))
    found = usable.sum(axis=1, keepdims=True)
    return np.asarray((counted @ scores + shrink * scores.mean(axis=0)) / np.maximum(found + shrink, 1e-9))


def tuned_nearest(scores: Floats, among: Neighbourhood, asked: Neighbourhood, worth: Worths) -> Tuned:
    """`nearest_scores` with the settings that are worth most on training prompts.

    `among` has the neighbours of the training questions among themselves, `asked` those of the questions asked about.
    """
    most = among.rows.shape[1]
    counts = [count for count in NEIGHBOURS if count <= most] or [most]
    best = max(product(counts, NEIGHBOUR_SHRINKAGES), key=lambda pair: worth(nearest_scores(scores, among, *pair)).area)
    return Tuned(nearest_scores(scores, asked, *best), f"{best[0]} nearest prompts, shrinkage {best[1]:g}")


def _shrunk(scores: Floats, overall: Floats, shrink: float) -> Floats:
    return np.asarray((scores.sum(axis=0) + shrink * overall) / max(len(scores) + shrink, 1e-9))
