"""Calibration: of the votes that were said to end in some way with probability p, do a share p end so?

A label names the winner first, so the outcome `win` as labelled is always true of a decided vote: measured that way the
best model would look badly calibrated. Every vote is therefore counted from both sides with half its weight, (A, B) and
(B, A). `win` then means "this one of the two wins", and `loss` is its mirror image and not reported.

The expected calibration error of an outcome is the mean over bins of |mean probability - share|, weighted by votes; the
overall one is the mean over the K outcomes (win and loss alike). It falls with the number of votes even for a perfect
model: about 1 / sqrt(votes per bin), so compare it at equal numbers only.

Shapes: N votes, K outcomes, C outcomes reported, S bins.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Floats: TypeAlias = npt.NDArray[np.float64]
DEFAULT_BINS = 15


@dataclass(frozen=True)
class Reliability:
    """Data of a reliability diagram, one row for each outcome reported.

    Attributes:
        outcomes: the C outcomes, such as ("win", "tie", "bothbad").
        edges: (S + 1,) borders of the bins of probability.
        predicted: (C, S) mean probability of the votes in a bin; NaN where there are none.
        observed: (C, S) share of them that ended so; NaN where there are none.
        mass: (C, S) share of all votes that fall into the bin; rows sum to 1.
    """

    outcomes: tuple[str, ...]
    edges: Floats
    predicted: Floats
    observed: Floats
    mass: Floats

    def errors(self) -> dict[str, float]:
        """Return the expected calibration error of each outcome, and `overall`."""
        gaps = np.nansum(self.mass * np.abs(self.predicted - self.observed), axis=1)
        # `win` stands for `loss` too, its mirror image.
        sides = np.array([2.0 if name == "win" else 1.0 for name in self.outcomes])
        overall = float((sides * gaps).sum() / sides.sum())
        return {**{name: float(gap) for name, gap in zip(self.outcomes, gaps, strict=True)}, "overall": overall}


def reliability(
    probs: Floats,
    targets: Floats,
    outcomes: tuple[str, ...],
    *,
    weights: Floats | None = None,
    bins: int = DEFAULT_BINS,
) -> Reliability:
    """Return reliability data of predicted probabilities (N, K), in bins of equal width between 0 and 1.

    `targets` (N, K) are what happened, as distributions; a row of zeros is a vote that does not count. `outcomes` are
    the names of the K outcomes, `win` and `loss` among them; `weights` (N,) are ones by default.
    """
    counts = np.asarray(targets.sum(axis=1) > 0) & ~np.isnan(probs).any(axis=1)
    scale = np.where(counts, 1.0 if weights is None else weights, 0.0)
    names = tuple(name for name in outcomes if name != "loss")
    rows = []
    for name in names:
        columns = [outcomes.index(side) for side in (("win", "loss") if name == "win" else (name,))]
        predicted, truth = (np.concatenate([side[:, k] for k in columns]) for side in (probs, targets))
        rows.append(_bin(predicted, truth, np.tile(scale, len(columns)), bins))
    predicted, observed, mass = (np.stack(column) for column in zip(*rows, strict=True))
    return Reliability(names, np.linspace(0.0, 1.0, bins + 1), predicted, observed, mass)


def expected_calibration_error(
    probs: Floats,
    targets: Floats,
    outcomes: tuple[str, ...],
    *,
    weights: Floats | None = None,
    bins: int = DEFAULT_BINS,
) -> dict[str, float]:
    """Return the expected calibration error of each outcome and `overall`; arguments as for `reliability`."""
    return reliability(probs, targets, outcomes, weights=weights, bins=bins).errors()


def _bin(predicted: Floats, truth: Floats, weights: Floats, bins: int) -> tuple[Floats, Floats, Floats]:
    """Return the mean prediction, mean truth and share of the weight in each bin, all (S,)."""
    used = weights > 0
    predicted, truth, weights = predicted[used], truth[used], weights[used]
    # A probability of 1 belongs to the last bin.
    place = np.minimum((predicted * bins).astype(np.intp), bins - 1)
    mass, forecast, seen = (np.bincount(place, w, bins) for w in (weights, weights * predicted, weights * truth))
    with np.errstate(invalid="ignore"):
        return forecast / mass, seen / mass, mass / mass.sum()
