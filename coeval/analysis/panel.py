"""What a panel of judges is worth: errors that judges share, their tastes for students, and the weights that follow.

The errors of the model at the head of `coeval.analysis.fit` need not be independent. On the scores about their means
within items, a judge's error is

    e_rj = delta_js + epsilon_rj,   delta ~ (0, T),   epsilon_r ~ (0, N)

with the taste delta of a judge for a student, which no number of items averages out, and noise epsilon; T and N are
matrices of judges, since near copies share both. A student's score rests on weights that are optimal for its mean over
n items, proportional to (T + N / n)^-1 l: where tastes dominate all judges count alike, and copies count once.

* N: two judges share an error where they correlate more than each, by its correlations with the others, has quality in
  common with all (tetrads). What all judges share cannot be told from quality without labels of people.
* T: the spread of each judge's mean scores of students about sharpness times quality, less what the choice of items
  explains; judges share tastes as they share errors.

The effective number of judges is that of independent ones whose mean has the variance of error of this panel's mean.

Shapes: R answers, J judges, S students, G groups of clusters of items.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from coeval.analysis.statistics import Floats, Variance

# Below this a surplus of correlation is not told from chance or from a factor that is not quite one.
_LEAST_SHARED = 0.15
_SHARED_ERRORS_FROM_CHANCE = 4.0  # standard errors of a correlation that a surplus has to exceed
_ROUNDS = 20
_LEAST_EIGENVALUE = 0.02  # of correlations of errors: two judges are never one
_MAX_SHARED = 0.98
_TASTE_BELOW = 0.6  # probability that the estimated variance of tastes is above the true one


def shared_errors(correlation: Floats, count: Floats) -> Floats:
    """Return by how much each two judges correlate beyond the quality that they see, (..., J, J), 0 on the diagonal.

    `correlation` is of scores within items, NaN where two judges share too few, `count` their number. Fewer than four
    judges cannot tell an error in common from quality: 0.
    """
    judges = correlation.shape[-1]
    none = np.zeros(correlation.shape)
    if judges < 4:
        return none
    rho = np.nan_to_num(correlation)
    least = np.maximum(_LEAST_SHARED, _SHARED_ERRORS_FROM_CHANCE / np.sqrt(np.maximum(count, 1.0)))
    shared, misfit = _surplus(rho, count, least, none)
    if judges < 5:
        return shared
    # From the other end: judges see no more quality than the least that they share with others, but for one who may be
    # blunt. Three copies of five are either that, or sharp beside two that share an error; the data may fit both, and
    # the cautious reading is the first.
    is_other = ~np.eye(judges, dtype=bool)
    sees = np.where(is_other, rho, 0.0).max(axis=-1) > _LEAST_SHARED
    counted = is_other & sees[..., None, :]
    low = np.sort(np.where(counted, rho, np.inf), axis=-1)[..., 1]
    apart = np.maximum(rho - np.maximum(low[..., :, None], low[..., None, :]), 0.0) * is_other
    cautious, cautious_misfit = _surplus(rho, count, least, apart)
    fits = cautious_misfit <= misfit + np.log(np.maximum(count.max(axis=(-1, -2)), 2.0))
    result: Floats = np.where(fits[..., None, None], cautious, shared)
    return result


def _surplus(rho: Floats, count: Floats, least: Floats, start: Floats) -> tuple[Floats, Floats]:
    """Return the surplus of correlations at which iterations from a start end, and its misfit."""
    judges = rho.shape[-1]
    others = 1.0 - np.eye(judges)
    shared = start
    for _ in range(_ROUNDS):
        # A judge against all others sees no quality with them, and must not make theirs look small.
        quality = _quality_in_common(np.maximum(rho - shared, 0.0) * others)
        surplus = np.where(count > 1, rho - quality, 0.0) * others
        shared = 0.5 * (shared + np.where(surplus > least, np.minimum(surplus, _MAX_SHARED), 0.0))
    shared = np.where(shared > 0.5 * least, shared, 0.0)
    quality = _quality_in_common(np.maximum(rho - shared, 0.0) * others)
    rest = (rho - quality - shared) * others * (count > 1)
    misfit = 0.5 * (count * rest**2).sum(axis=(-1, -2))
    # Where most pairs share errors there is nothing left by which to know quality.
    seeing = (np.where(others > 0, rho, 0.0).max(axis=-1) > _LEAST_SHARED).sum(axis=-1)
    most = (shared > 0).sum(axis=(-1, -2)) > seeing * (seeing - 1) / 2.0
    return shared, np.where(most, np.inf, misfit)


def _quality_in_common(rho: Floats) -> Floats:
    """Return the correlation that two judges have by quality alone, each by its correlations with all but the other.

    With one factor r_j^2 = sum rho_ja rho_jb / sum rho_ab over pairs of others.
    """
    judges = rho.shape[-1]
    by_pair = np.zeros(rho.shape)
    for other in range(judges):
        kept = np.arange(judges) != other
        part = rho[..., kept, :][..., :, kept]  # zero on the diagonal
        row = part.sum(axis=-1)
        above = row**2 - (part**2).sum(axis=-1)  # over ordered pairs of two others
        below = part.sum(axis=(-1, -2))[..., None] - 2.0 * row
        square = np.clip(above / np.where(below > 1e-3, below, np.inf), 0.0, 1.0)
        by_pair[..., kept, other] = np.sqrt(square)
    result: Floats = by_pair * np.swapaxes(by_pair, -1, -2)
    return result


def error_correlation(shared: Floats, reliability: Floats) -> Floats:
    """Return the correlations of judges' errors (..., J, J), by what they share of their scores' variance."""
    free = np.sqrt(np.maximum(1.0 - reliability**2, 1.0 - _MAX_SHARED**2))
    raw = np.clip(shared / (free[..., :, None] * free[..., None, :]), 0.0, _MAX_SHARED)
    raw = raw + np.eye(shared.shape[-1])
    values, vectors = np.linalg.eigh(raw)
    fixed = (vectors * np.maximum(values, _LEAST_EIGENVALUE)[..., None, :]) @ np.swapaxes(vectors, -1, -2)
    scale = np.sqrt(np.einsum("...jj->...j", fixed))
    result: Floats = fixed / (scale[..., :, None] * scale[..., None, :])
    return result


def with_taste(spread: Variance, taste: Floats, freedom: float) -> Variance:
    """Return the variance over items and judges: tastes add `taste`, known with so many degrees of freedom."""
    total = spread.variance + taste
    with np.errstate(invalid="ignore", divide="ignore"):
        parts = spread.variance**2 / spread.freedom + (taste**2 / freedom if freedom else 0.0)
        free = np.where((taste > 0) & np.isfinite(total), total**2 / parts, spread.freedom)
    return spread._replace(variance=total, freedom=np.maximum(free, 1.0))


@dataclass(frozen=True)
class Taste:
    """How far judges' means of students lie from sharpness times quality, beyond the choice of items."""

    variance: float  # of a judge's taste for a student, as a share of the variance of its scores within items
    freedom: float  # degrees of freedom with which it is known; 0 where it is not


NO_TASTE = Taste(0.0, 0.0)


def estimated_taste(means: Floats, sampling: Floats, sharpness: Floats, sd: Floats) -> Taste:
    """Estimate tastes from judges' mean scores of students (J, S), NaN where there are none.

    `sampling` is the variance of each mean by the choice of items; `sharpness` and `sd` (J,) are those of the judges.
    """
    from scipy.special import chdtri

    informative = (sharpness > 0) & (sd > 0)
    used = np.isfinite(means) & informative[:, None]
    # Students of one judge, and judges of one student, tell nothing of tastes.
    used &= (used.sum(axis=1) > 1)[:, None] & (used.sum(axis=0) > 1)
    judges, students = used.any(axis=1), used.any(axis=0)
    freedom = float(used.sum() - judges.sum() - students.sum() + 1)
    if not used.any() or freedom < 1:
        return NO_TASTE
    safe = np.where(sd > 0, sd, 1.0)
    slope = np.where(used, (sharpness / safe)[:, None], 0.0)
    z = np.where(used, means / safe[:, None], 0.0)
    severity, theta = np.zeros(len(means)), np.zeros(means.shape[1])
    for _ in range(100):
        theta = (slope * (z - used * severity[:, None])).sum(axis=0) / np.maximum((slope**2).sum(axis=0), 1e-12)
        theta = np.where(students, theta - theta[students].mean(), 0.0)
        severity = (used * (z - slope * theta)).sum(axis=1) / np.maximum(used.sum(axis=1), 1)
    rest = np.where(used, z - severity[:, None] - slope * theta, 0.0)
    chance = np.where(used, sampling / safe[:, None] ** 2, 0.0).sum() * freedom / used.sum()
    # Of few degrees of freedom the mean square is mostly too small; this one is too small in two of five cases.
    square = float((rest**2).sum()) / float(chdtri(freedom, _TASTE_BELOW))
    return Taste(max(0.0, square - float(chance) / freedom), freedom)


def panel_weights(sharpness: Floats, noise: Floats, sd: Floats, errors: Floats, taste: Taste, items: float) -> Floats:
    """Return the weights of judges' scores (J,), proportional to (T + N / n)^-1 l and none of them below 0.

    `errors` is the correlation of their errors (J, J), `items` the number n of items behind a student's mean.
    """
    chosen = np.flatnonzero((sharpness > 0) & (noise > 0))
    weights = np.zeros(len(sharpness))
    while len(chosen):
        spread = np.sqrt(taste.variance * sd[chosen] ** 2 + noise[chosen] / max(items, 1.0))
        covariance = errors[np.ix_(chosen, chosen)] * np.outer(spread, spread)
        solved = np.linalg.solve(covariance, sharpness[chosen])
        if (solved >= 0).all():
            weights[chosen] = solved
            break
        chosen = chosen[solved > 0]  # a judge that would count against its own scores counts for nothing
    return weights


def effective_number(errors: Floats, noise: Floats) -> Floats:
    """Return the number of independent judges that a panel's plain mean is worth, (...), by its errors (..., J, J)."""
    sd = np.sqrt(np.maximum(noise, 1e-12))
    covariance = errors * sd[..., :, None] * sd[..., None, :]
    judges = errors.shape[-1]
    total = covariance.sum(axis=(-1, -2))
    result: Floats = judges * (sd**2).sum(axis=-1) / np.maximum(total, 1e-300)
    return np.asarray(np.clip(result, 1.0, judges))
