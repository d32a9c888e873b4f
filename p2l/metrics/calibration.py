"""Calibration: do votes that are forecast with probability p come true in a share p of cases?

Every vote is counted from both sides with half its weight, (A, B) and (B, A): `win` means that the first of the two
wins, and `loss` is its mirror image and not reported.

The expected calibration error of an outcome is the mean over bins of |mean probability - share|, weighted by votes; the
overall one is the mean over the K outcomes (win and loss alike). It falls with the number of votes even for a perfect
model: about 1 / sqrt(votes per bin), so compare it at equal numbers only.

Shapes: N votes, K outcomes, C outcomes reported, S bins.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import NormalDist
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

Floats: TypeAlias = npt.NDArray[np.float64]
DEFAULT_BINS = 15
_LEAST_VOTES = 30  # of a point, for which neighbouring bins are joined: fewer scatter too much for the eye


class Point(NamedTuple):
    """A point of a reliability diagram."""

    predicted: float
    """Mean probability of its votes."""
    observed: float
    """Share of them that ended so."""
    lower: float
    upper: float
    """Ends of the interval of `observed`."""
    votes: int
    """Different votes: the two sides of a vote may lie at two points."""


@dataclass(frozen=True)
class Reliability:
    """Data of a reliability diagram, one row for each outcome reported.

    Attributes:
        outcomes: the C outcomes, such as ("win", "tie", "bothbad").
        edges: (S + 1,) borders of the bins of probability.
        predicted: (C, S) mean probability of the votes in a bin; NaN where there are none.
        observed: (C, S) share of them that ended so; NaN where there are none.
        mass: (C, S) share of all votes that fall into the bin; rows sum to 1.
        points: of each outcome, bins joined until each has enough votes; see `joined_points`.
    """

    outcomes: tuple[str, ...]
    edges: Floats
    predicted: Floats
    observed: Floats
    mass: Floats
    points: tuple[tuple[Point, ...], ...] = ()

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
    scale = _weights_of(probs, targets, weights)
    names = tuple(name for name in outcomes if name != "loss")
    rows = []
    for name in names:
        predicted, truth, sides = _columns(probs, targets, outcomes, name)
        votes = np.tile(scale, sides)
        used = votes > 0
        predicted, truth, votes = predicted[used], truth[used], votes[used]
        place = _places(predicted, bins)
        size, forecast, seen = (np.bincount(place, w, bins) for w in (votes, votes * predicted, votes * truth))
        with np.errstate(invalid="ignore"):  # an empty bin has no means
            rows.append((forecast / size, seen / size, size / size.sum()))
    predicted, observed, mass = (np.stack(column) for column in zip(*rows, strict=True))
    return Reliability(
        outcomes=names,
        edges=np.linspace(0.0, 1.0, bins + 1),
        predicted=predicted,
        observed=observed,
        mass=mass,
    )


def joined_points(
    probs: Floats,
    targets: Floats,
    outcomes: tuple[str, ...],
    *,
    weights: Floats | None = None,
    clusters: Any = None,
    bins: int = DEFAULT_BINS,
    least: int = _LEAST_VOTES,
    level: float = 0.95,
) -> tuple[tuple[Point, ...], ...]:
    """Return the points of each outcome reported, from the lowest probability on; arguments as for `reliability`.

    Neighbouring bins are joined until each point has `least` votes. `clusters` (N,) are integer codes of the prompts.
    """
    scale = _weights_of(probs, targets, weights)
    codes = np.arange(len(scale)) if clusters is None else np.unique(np.asarray(clusters), return_inverse=True)[1]
    width = NormalDist().inv_cdf(0.5 + level / 2)
    by_outcome = []
    for name in (name for name in outcomes if name != "loss"):
        predicted, truth, sides = _columns(probs, targets, outcomes, name)
        used = np.tile(scale, sides) > 0
        rows: dict[str, Any] = {
            "predicted": predicted[used],
            "truth": truth[used],
            "weights": np.tile(scale, sides)[used],
            "codes": np.tile(codes, sides)[used],
            "votes": np.tile(np.arange(len(scale)), sides)[used],
        }
        groups = _joined(_places(rows["predicted"], bins), rows["votes"], bins, least)
        points = []
        for group in range(int(groups.max(initial=-1)) + 1):
            mask = groups == group
            points.append(_point(width, **{name: column[mask] for name, column in rows.items()}))
        by_outcome.append(tuple(points))
    return tuple(by_outcome)


def _joined(places: Any, votes: Any, bins: int, least: int) -> Any:
    """Return the group of each row: runs of bins with at least `least` votes, the last one with the rest."""
    counts = np.bincount(np.unique(np.stack([places, votes]), axis=1)[0], minlength=bins)
    group_of, group, held = np.zeros(bins, dtype=np.intp), 0, 0
    for place, count in enumerate(counts.tolist()):
        group_of[place] = group
        held += count
        if held >= least:
            group, held = group + 1, 0
    if group and held < least:  # no bin follows that could fill the last one up
        group_of[group_of == group] = group - 1
    return group_of[places]


def _point(width: float, *, predicted: Floats, truth: Floats, weights: Floats, codes: Any, votes: Any) -> Point:
    """Return a point of the diagram with Wilson's interval, `width` standard errors to each side.

    All arrays are (n,), one entry for each side of a vote: `codes` are those of the prompts, `votes` number the votes.
    """
    total = float(weights.sum())
    share = float(weights @ truth) / total
    clusters = np.unique(codes, return_inverse=True)[1]
    residuals = np.bincount(clusters, weights * (truth - share))
    number_of_prompts, number_of_votes = len(residuals), len(np.unique(votes))
    variance = float((residuals**2).sum()) / total**2 * number_of_prompts / max(1, number_of_prompts - 1)
    # Votes on one prompt are not independent: the interval is that of as many independent votes as would vary as much
    # as the prompts do.
    size = min(number_of_votes, share * (1.0 - share) / variance if variance > 0 else number_of_prompts)
    middle = (share + width**2 / (2 * size)) / (1 + width**2 / size)
    half = width / (1 + width**2 / size) * (share * (1 - share) / size + width**2 / (4 * size**2)) ** 0.5
    return Point(
        predicted=float(weights @ predicted) / total,
        observed=share,
        lower=max(0.0, middle - half),
        upper=min(1.0, middle + half),
        votes=number_of_votes,
    )


def _weights_of(probs: Floats, targets: Floats, weights: Floats | None) -> Floats:
    """Return the weight (N,) of each vote, zero for those that do not count."""
    counts = np.asarray(targets.sum(axis=1) > 0) & ~np.isnan(probs).any(axis=1)
    return np.where(counts, 1.0 if weights is None else weights, 0.0)


def _columns(probs: Floats, targets: Floats, outcomes: tuple[str, ...], name: str) -> tuple[Floats, Floats, int]:
    """Return probabilities and truth of an outcome, for `win` of both sides after each other, and the sides."""
    # A label names the winner first, so that `win` as labelled is always true of a decided vote: measured that way the
    # best model would look badly calibrated.
    columns = [outcomes.index(side) for side in (("win", "loss") if name == "win" else (name,))]
    predicted, truth = (np.concatenate([side[:, k] for k in columns]) for side in (probs, targets))
    return predicted, truth, len(columns)


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


def _places(predicted: Floats, bins: int) -> Any:
    """Return the bin of each probability; 1 belongs to the last."""
    return np.minimum((predicted * bins).astype(np.intp), bins - 1)
