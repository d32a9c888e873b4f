"""From a judge's score to the score that people give such answers: a step for each score, never falling.

Of each score that a judge gave, the mean of what people gave the same (answer, factor); then the nearest sequence that
never falls, weighted by how many there are (pool adjacent violators). Scores between two of these lie on the line
between them, scores beyond the last take its value. No line is fitted through three levels.

Shapes: V different scores, N pairs (answer, factor), B draws of items.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from coeval.analysis.units import Codes, Floats

__all__ = ["Map", "cross_validated", "drawn_maps", "fit_map", "monotone"]

_FOLDS = 5


def monotone(values: Floats, weights: Floats) -> Floats:
    """The sequence that never falls and is nearest to `values` (V,), by weighted squares."""
    blocks: list[list[float]] = []  # mean, weight, how many
    for value, weight in zip(values.tolist(), weights.tolist(), strict=True):
        blocks.append([value, weight, 1])
        while len(blocks) > 1 and blocks[-2][0] > blocks[-1][0]:
            mean, heavy, many = blocks.pop()
            last = blocks[-1]
            last[0] = (last[0] * last[1] + mean * heavy) / (last[1] + heavy)
            last[1], last[2] = last[1] + heavy, last[2] + many
    return np.repeat([block[0] for block in blocks], [int(block[2]) for block in blocks])


@dataclass(frozen=True)
class Map:
    """What each of a judge's scores is worth."""

    scores: Floats
    """(V,) those that the judge gave to what people scored too."""
    means: Floats
    """(V,) what people gave on average."""
    counts: Codes
    """(V,) of how many pairs."""
    fitted: Floats
    """(V,) `means` made to rise."""

    def __call__(self, scores: Floats) -> Floats:
        """The worth of any scores."""
        return np.interp(scores, self.scores, self.fitted)


def fit_map(judge: Floats, people: Floats) -> Map:
    """From pairs (N,), at least one."""
    scores, place, counts = np.unique(judge, return_inverse=True, return_counts=True)
    means = np.bincount(place, people) / counts
    return Map(scores, means, counts, monotone(means, counts.astype(np.float64)))


def drawn_maps(judge: Floats, people: Floats, items: Codes, draws: Floats) -> list[Map | None]:
    """The map of each draw of items; None where a draw has none of the judge's.

    Args:
        judge, people: (N,).
        items: (N,) places in a draw.
        draws: (B, items) how often each item was drawn.
    """
    scores, place = np.unique(judge, return_inverse=True)
    cells, shape = items * len(scores) + place, (draws.shape[1], len(scores))
    counts = draws @ np.bincount(cells, minlength=shape[0] * shape[1]).reshape(shape)
    sums = draws @ np.bincount(cells, people, minlength=shape[0] * shape[1]).reshape(shape)
    return [_drawn(scores, count, total) for count, total in zip(counts, sums, strict=True)]


def _drawn(scores: Floats, counts: Floats, sums: Floats) -> Map | None:
    known = counts > 0
    if not known.any():
        return None
    means = sums[known] / counts[known]
    return Map(scores[known], means, counts[known].astype(np.int64), monotone(means, counts[known]))


def cross_validated(judge: Floats, people: Floats, items: Codes) -> Floats | None:
    """The worth of each score by a map of other items alone, (N,); None with fewer than two items."""
    different, item = np.unique(items, return_inverse=True)
    if len(different) < 2:
        return None
    fold = np.random.default_rng(0).permutation(len(different))[item] % _FOLDS
    worth = np.empty(len(judge))
    for one in np.unique(fold):
        mine = fold == one
        worth[mine] = fit_map(judge[~mine], people[~mine])(judge[mine])
    return worth
