"""Bootstrap intervals for means, ratios and other figures of sums, whole clusters (prompts, users) drawn together.

Votes on one prompt are not independent: an interval that draws single votes is too narrow. A replicate draws as many
clusters as there are, with replacement. A mean needs only the clusters' sums, so a replicate costs the number of
clusters, not of votes.

Beside them `anytime_interval`, for who looks every day: an interval of one look leaves the truth out far more often
than one time in twenty of those who stop when it suits them.

Shapes: N votes, C metrics measured on the same votes, G clusters or groups, R replicates.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from p2l.common.errors import ConfigError

Floats: TypeAlias = npt.NDArray[np.float64]
# More clusters are dealt at random into as many groups, which are drawn in their place: the interval's width changes by
# about 1 / sqrt(2 * 2048) = 1.6 %, less than the noise of 1,000 replicates; a million votes take a tenth of a second.
MAX_GROUPS = 2048


_FEWEST_UNITS = 30
"""Below this an `anytime_interval` is infinite: it rests on the mean of the units being about normal."""
_SHARPEST_UNITS = 2000
"""Where an `anytime_interval` is as narrow as it can be; with 400 units it is 10 % wider, with 10,000 4 %."""


class Interval(NamedTuple):
    """An estimate, its confidence limits (percentile method) and its standard error: numbers, or arrays (C,)."""

    estimate: Any
    lower: Any
    upper: Any
    standard_error: Any


def bootstrap_mean(
    values: Any,
    *,
    clusters: Any = None,
    weights: Any = None,
    level: float = 0.95,
    replicates: int = 1000,
    seed: int = 0,
) -> Interval:
    """Return the weighted mean of `values`, (N,) or (N, C) for C metrics drawn together, with its interval.

    NaN values are left out. `clusters` (N,) are integer codes of the prompt (or user) of each vote; without them every
    vote stands alone. Raise ConfigError where level, replicates or clusters cannot be used, or no value counts.
    """
    values = np.asarray(values, dtype=np.float64)
    scale = np.ones(len(values)) if weights is None else np.asarray(weights, dtype=np.float64)
    scale = np.where(np.isnan(values), 0.0, scale.reshape(-1, *(1,) * (values.ndim - 1)))
    return bootstrap_ratio(
        np.nan_to_num(values) * scale, scale, clusters=clusters, level=level, replicates=replicates, seed=seed
    )


def bootstrap_skill(
    losses: Any,
    reference: Any,
    *,
    clusters: Any = None,
    weights: Any = None,
    level: float = 0.95,
    replicates: int = 1000,
    seed: int = 0,
) -> Interval:
    """Return 1 - mean(losses) / mean(reference) with its interval, on votes where both are known; arguments (N,)."""
    losses, reference = np.asarray(losses, dtype=np.float64), np.asarray(reference, dtype=np.float64)
    scale = np.ones(len(losses)) if weights is None else np.asarray(weights, dtype=np.float64)
    counts = ~(np.isnan(losses) | np.isnan(reference))
    above, below = np.where(counts, losses * scale, 0.0), np.where(counts, reference * scale, 0.0)
    ratio = bootstrap_ratio(above, below, clusters=clusters, level=level, replicates=replicates, seed=seed)
    return Interval(
        estimate=1.0 - ratio.estimate,
        lower=1.0 - ratio.upper,
        upper=1.0 - ratio.lower,
        standard_error=ratio.standard_error,
    )


def bootstrap_ratio(
    numerator: Floats,
    denominator: Floats,
    *,
    clusters: Any = None,
    level: float = 0.95,
    replicates: int = 1000,
    seed: int = 0,
) -> Interval:
    """Return sum(numerator) / sum(denominator) with its interval; both (N,) or both (N, C), without NaN."""
    check_draws(level, replicates)
    columns = np.concatenate([values.reshape(len(values), -1) for values in (numerator, denominator)], axis=1)
    rng = np.random.default_rng(seed)
    groups = _groups(clusters, len(columns), rng)
    sums: Floats = np.stack([np.bincount(groups, column) for column in columns.T], axis=1)  # (G, 2 C)
    number = len(sums)
    drawn = rng.integers(0, number, size=(replicates, number)) + number * np.arange(replicates)[:, None]
    # How often each replicate draws each group (R, G): times the sums, these are the sums of R samples.
    draws = np.bincount(drawn.ravel(), minlength=replicates * number).reshape(replicates, number).astype(np.float64)
    above, below = np.split(sums, 2, axis=1)
    if not (np.abs(below.sum(axis=0)) > 0).all():
        raise ConfigError("no vote counts towards this metric: there is nothing to draw an interval from")
    with np.errstate(invalid="ignore", divide="ignore"):
        ratios = (draws @ above) / (draws @ below)
    # With few clusters a draw can miss every vote that counts.
    ratios = np.where(np.isfinite(ratios), ratios, np.nan)
    lower, upper = limits(ratios, level)
    interval = Interval(
        estimate=above.sum(axis=0) / below.sum(axis=0),
        lower=lower,
        upper=upper,
        standard_error=np.nanstd(ratios, axis=0, ddof=1),
    )
    if np.ndim(numerator) > 1:
        return interval
    return Interval._make(float(values[0]) for values in interval)


def check_draws(level: float, replicates: int) -> None:
    """Raise ConfigError for a level or a number of replicates that no interval can be made with."""
    if not 0.0 < level < 1.0:
        raise ConfigError(f"level {level} is not a coverage; use a number between 0 and 1, such as 0.95")
    if replicates < 2:
        raise ConfigError(f"{replicates} bootstrap replicates are too few; use 100 or more")


def limits(draws: Floats, level: float = 0.95) -> tuple[Floats, Floats]:
    """Return limits over replicates (R, ...), leaving out draws without a finite value; NaN where none has one."""
    draws = np.where(np.isfinite(draws), draws, np.nan)
    empty = np.isnan(draws).all(axis=0)
    tail = (1.0 - level) / 2
    lower, upper = np.nanquantile(np.where(empty, 0.0, draws), [tail, 1.0 - tail], axis=0)
    return np.where(empty, np.nan, lower), np.where(empty, np.nan, upper)


def _groups(clusters: Any, votes: int, rng: np.random.Generator) -> npt.NDArray[np.intp]:
    """Return the group (N,) of each vote, from 0: its cluster, or a random one of 2,048 groups of clusters."""
    codes = np.arange(votes) if clusters is None else np.unique(np.asarray(clusters), return_inverse=True)[1]
    if len(codes) != votes:
        raise ConfigError(f"clusters: {len(codes)} codes for {votes} votes; give one code for each vote")
    number = int(codes.max(initial=-1)) + 1
    if number <= MAX_GROUPS:
        return codes
    return (rng.permutation(number) % MAX_GROUPS)[codes]


def anytime_interval(estimate: float, standard_error: float, units: int, *, level: float = 0.95) -> Interval:
    """Return an estimate with limits that hold at all numbers of units from 30 on together.

    They are infinite below. `standard_error` is the usual one, of the estimate from these `units`.

    Source: the asymptotic confidence sequence of Waudby-Smith, Arbour, Sinha, Kennedy and Ramdas, "Time-uniform central
    limit theory and asymptotic confidence sequences", 2021, equation (1), with rho chosen for `_SHARPEST_UNITS` units.
    """
    if units < _FEWEST_UNITS:
        return Interval(estimate, -math.inf, math.inf, standard_error)
    alpha = 1.0 - level
    rho_squared = (-2.0 * math.log(alpha) + math.log(-2.0 * math.log(alpha) + 1.0)) / _SHARPEST_UNITS
    time = units * rho_squared
    factor = math.sqrt(2.0 * (1.0 + 1.0 / time) * math.log(math.sqrt(time + 1.0) / alpha))
    margin = factor * standard_error
    return Interval(estimate, estimate - margin, estimate + margin, standard_error)
