"""Biases and faults of judges, tested against their own sharpness and severity.

A sharp judge gives a good student more than its peers do, and a severe one a weak student less; neither is a bias. So
preference is tested on the table of judges and students: with z_js the normal quantile of a judge's mean score of a
student (on which a ceiling bends no line) and

    z_js = c_j + l_j theta_s + delta_js

fitted without the cells in question, delta is how far a judge's own answers, or those of its family, lie from what its
severity and sharpness make of what others see in them. Its standard error has the choice of prompts (a jackknife) and
how far judges and students differ anyway (the spread of delta in all other cells).

* verbosity: the judge's slope on length within student and item, less what length is worth to the median judge, among
  answers that the others do not all put at an end of the scale;
* constant and random: the covariance of its scores with those of the others, as a share of what these have; below a
  third, with certainty, it is constant where 95 % of its scores are one, else random.

P-values are corrected for the number of all tests in the run (Holm).

Shapes: J judges, S students, G groups of clusters.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import numpy.typing as npt

from coeval.analysis.fit import Fit, fit_run, fit_verdicts
from coeval.analysis.panel import (
    LEAST_NOISE,
    ScoreTable,
    effective_number,
    error_correlation,
    item_products,
    loadings,
    shared_errors,
    two_way,
)
from coeval.analysis.statistics import Codes, Floats, grouped, holm, jackknifed, t_limits, two_sided
from coeval.analysis.tables import JudgeName, Shown, barred, toned
from coeval.analysis.units import LoadedRun, once

Mask = npt.NDArray[np.bool_]
_SIGNIFICANT = 0.05
SELF, FAMILY, VERBOSITY, CONSTANT, RANDOM = "self-preference", "family-preference", "verbosity", "constant", "random"
_BLUNT = 1.0 / 3.0  # of the others' sharpness, below which a judge is constant or random
_ONE_SCORE = 0.95  # share of one score that makes a judge constant
_MIN_CLUSTERS_FOR_TEST = 3  # of prompts
_ALS_STEPS = 60
_LENGTH_GROUPS = 128  # of clusters, for the jackknife of slopes on length
_LEAST_LEVELS_INSIDE = 4  # different scores between the ends of a scale by which answers can be ranked
_LEAST_SQUARE = 1e-9  # of lengths within student and item, below which a slope on them is unknown
_MOST_WEIGHT = 0.5  # share of the weight above which judges of one family carry a panel
_LEAST_WEIGHT_TOLD = 0.1  # share of the weight from which judges with a bias or fault are told of
_LEAST_WEIGHT_NAMED = 0.02  # share of the weight of one who is named among them


@dataclass(frozen=True)
class JudgeScale:
    """How a judge uses the scale, by the fit of students, judges and items."""

    judge: JudgeName
    # Above 0: more lenient than the judges are by their weights.
    severity: Annotated[float | None, Shown("leniency", "its score of an average answer less that of all judges", 3)]
    sharpness: Annotated[
        float | None, Shown("sharpness", "how far its scores follow quality; 1 is the judges' mean", 2)
    ]
    reliability: Annotated[
        float | None, Shown("reliability", "share of its scores' variance within items that is quality", 2)
    ]
    weight: Annotated[float, barred("weight", "what it counts for in the fit", 3)]
    length: Annotated[float | None, Shown("length", "score for an answer twice as long, beyond what that is worth", 3)]
    most_common: Annotated[float | None, Shown("one score", "share of its most frequent score", 2)]
    flags: Annotated[str, Shown("found", "biases beyond chance", wide=True)]  # with a comma between; empty: none


@dataclass(frozen=True)
class BiasTest:
    """A test of one bias of one judge."""

    judge: JudgeName
    bias: Annotated[str, Shown("bias")]
    effect: Annotated[float, toned("effect", "in scores; of constant and random judges their sharpness less a third")]
    lower: float
    upper: float
    p_value: Annotated[float, Shown("p", digits=4)]
    flagged: Annotated[bool, Shown("found", "p below 0.05 after Holm's correction for all tests")]


@dataclass(frozen=True)
class SharedErrors:
    """Two judges who err alike."""

    first: str
    second: str
    correlation: float  # of their errors


@dataclass(frozen=True)
class JudgesWeight:
    """What some judges count for in the fit."""

    about: str  # their family, or their biases
    judges: tuple[str, ...]
    weight: float  # share of that of all judges


@dataclass(frozen=True)
class PanelWorth:
    """What judges are worth together."""

    judges: int  # those who tell answers apart
    # Number of independent judges whose mean errs as little as theirs; errors that all share are not in it.
    effective: float
    lower: float
    upper: float
    taste_sd: float | None  # of a judge's liking for a student, in scores; None where nothing tells
    shared: tuple[SharedErrors, ...]
    family: JudgesWeight | None = None  # two judges or more of one family who carry most of the weight
    flagged: JudgesWeight | None = None  # judges with a bias or fault who carry weight


@dataclass(frozen=True)
class _Test:
    judge: int
    bias: str
    effect: float
    limits: tuple[float, float]
    p_value: float


@once
def judge_scales(loaded: LoadedRun) -> tuple[JudgeScale, ...]:
    """Return how each judge with scores uses the scale; empty where the run has no fit."""
    return _scales(loaded, fit_run(loaded), bias_tests(loaded))


@once
def verdict_scales(loaded: LoadedRun) -> tuple[JudgeScale, ...]:
    """Return the same of each judge with verdicts on pairs, of which only that they follow no quality is a fault."""
    fit = fit_verdicts(loaded)
    return _scales(loaded, fit, () if fit is None else _corrected(loaded, [*_blunt(loaded, fit)]))


def _scales(loaded: LoadedRun, fit: Fit | None, tests: tuple[BiasTest, ...]) -> tuple[JudgeScale, ...]:
    if fit is None:
        return ()
    judges, total = fit.judges, max(float(fit.judges.information.sum()), 1e-300)
    weight = judges.information / total
    typical = float((weight * judges.sharpness).sum())
    flags: dict[str, list[str]] = {name: [] for name in loaded.judges}
    for row in tests:
        if row.flagged:
            flags[row.judge].append(row.bias)
    given = ~np.isnan(fit.table.scores)
    task = np.zeros(len(fit.level), dtype=np.int64)
    task[fit.table.item] = fit.table.task
    # What each judge would give an average answer to each item (D, J), against the level of the same items: a judge may
    # have tasks of its own.
    each = fit.solution.severity[task] + np.outer(fit.solution.item, fit.judges.sharpness)
    scored = np.isfinite(each)
    gap = np.where(scored, each - fit.level[:, None], 0.0).sum(axis=0) / np.maximum(scored.sum(axis=0), 1)
    expected = gap + fit.level.mean()
    return tuple(
        JudgeScale(
            name,
            severity=float(expected[code] - float(fit.level.mean())) if scored[:, code].any() else None,
            sharpness=float(judges.sharpness[code]) / typical if typical else None,
            reliability=float(judges.reliability[code] ** 2),
            weight=float(weight[code]),
            length=float(judges.excess[code]) if np.ptp(fit.table.length) > 0 else None,
            most_common=most_common(loaded, code),
            flags=", ".join(flags[name]),
        )
        for code, name in enumerate(loaded.judges)
        if given[:, code].any()
    )


@once
def panel_worth(loaded: LoadedRun) -> PanelWorth | None:
    """Return what the panel of a run is worth, by scores or else by verdicts; None without two sharp judges."""
    by_scores = fit_run(loaded)
    fit = by_scores or fit_verdicts(loaded)
    if fit is None:
        return None
    scales = verdict_scales(loaded) if by_scores is None else judge_scales(loaded)
    judges = fit.judges
    chosen = np.flatnonzero(judges.sees)
    if len(chosen) < 2:
        return None
    errors, noise = judges.errors[np.ix_(chosen, chosen)], judges.noise[chosen]
    effective = float(effective_number(errors, noise))
    lower, upper = _limits_of_number(fit, chosen, effective)
    shared = [
        SharedErrors(loaded.judges[chosen[a]], loaded.judges[chosen[b]], float(errors[a, b]))
        for a, b in zip(*np.triu_indices(len(chosen), 1), strict=True)
        if judges.shared[chosen[a], chosen[b]] > 0
    ]
    return PanelWorth(
        judges=len(chosen),
        effective=effective,
        lower=lower,
        upper=upper,
        taste_sd=float(fit.scale * np.sqrt(fit.judges.taste.variance)) if judges.taste.freedom else None,
        shared=tuple(sorted(shared, key=lambda pair: -pair.correlation)),
        family=_leading_family(loaded, scales),
        flagged=_flagged_weight(scales),
    )


def _leading_family(loaded: LoadedRun, scales: tuple[JudgeScale, ...]) -> JudgesWeight | None:
    """Return the family whose judges, two or more, carry most of a panel's weight; None where there is none."""
    from coeval.analysis.bias import family_of

    families: dict[str, list[JudgeScale]] = {}
    for row in scales:
        family = family_of(loaded.info.model_id(row.judge, "judge"))
        if family is not None and row.weight >= _LEAST_WEIGHT_NAMED:
            families.setdefault(family, []).append(row)
    for family, rows in families.items():
        weight = sum(row.weight for row in rows)
        if len(rows) > 1 and weight > _MOST_WEIGHT:
            return JudgesWeight(family, tuple(row.judge for row in rows), weight)
    return None


def _flagged_weight(scales: tuple[JudgeScale, ...]) -> JudgesWeight | None:
    """Return the judges with a bias or fault, where they carry weight."""
    rows = [row for row in scales if row.flags and row.weight >= _LEAST_WEIGHT_NAMED]
    weight = sum(row.weight for row in rows)
    if weight < _LEAST_WEIGHT_TOLD:
        return None
    biases = sorted({bias for row in rows for bias in row.flags.split(", ")})
    return JudgesWeight(", ".join(biases), tuple(row.judge for row in rows), weight)


def _limits_of_number(fit: Fit, chosen: npt.NDArray[np.intp], effective: float) -> tuple[float, float]:
    """Return 95 % limits of the effective number of some judges, over items."""
    rest = fit.table.scores - fit.table.length[:, None] * fit.judges.excess
    products = item_products(fit.table, rest[:, chosen], fit.counts[:, chosen])
    cross, count = (_by_cluster(fit, values) for values in (products.cross, products.count))
    cross, count = cross.sum(axis=0) - cross, count.sum(axis=0) - count
    with np.errstate(invalid="ignore", divide="ignore"):
        covariance = np.where(count > 1e-9, cross / count, np.nan)
        sd = np.sqrt(np.maximum(np.einsum("gjj->gj", covariance), 0.0))
        correlation = np.clip(covariance / (sd[:, :, None] * sd[:, None, :]), -1.0, 1.0)
    shared = shared_errors(correlation, count)
    reliability = loadings(correlation - shared, count)
    noise = sd**2 * np.maximum(1.0 - reliability**2, LEAST_NOISE)
    left = effective_number(error_correlation(shared, reliability), noise)
    limits = jackknifed(np.array([effective]), left[:, None])
    low, high = float(limits.lower[0]), float(limits.upper[0])
    if not np.isfinite([low, high]).all():
        return 1.0, float(len(chosen))
    return max(1.0, low), min(float(len(chosen)), high)


def most_common(loaded: LoadedRun, judge: int) -> float | None:
    """Return the share of a judge's most frequent score."""
    scores = loaded.units.norm[loaded.units.judge == judge]
    return float(np.unique(scores, return_counts=True)[1].max() / len(scores)) if len(scores) else None


@once
def bias_tests(loaded: LoadedRun) -> tuple[BiasTest, ...]:
    """Test every judge for every bias that the run can show; by judge."""
    fit = fit_run(loaded)
    if fit is None or loaded.judges == ():
        return ()
    return _corrected(loaded, [*_preferences(loaded, fit), *_verbosity(fit), *_blunt(loaded, fit)])


def _corrected(loaded: LoadedRun, tests: list[_Test]) -> tuple[BiasTest, ...]:
    """Return tests as rows, by judge, flagged by p-values that are corrected for their number."""
    corrected = holm([test.p_value for test in tests])
    rows = [
        BiasTest(
            judge=loaded.judges[test.judge],
            bias=test.bias,
            effect=test.effect,
            lower=test.limits[0],
            upper=test.limits[1],
            p_value=test.p_value,
            flagged=bool(p_value < _SIGNIFICANT),
        )
        for test, p_value in zip(tests, corrected, strict=True)
    ]
    return tuple(sorted(rows, key=lambda row: (row.judge, row.bias)))


# Preference: a judge's own answers, and those of its family.


def _preferences(loaded: LoadedRun, fit: Fit) -> Iterator[_Test]:
    from coeval.analysis.bias import family_of

    own = loaded.student_codes("judge")[:, None] == np.arange(len(loaded.students))
    yield from _of_cells(fit, own, own, SELF)
    judges = [family_of(loaded.info.model_id(name, "judge")) for name in loaded.judges]
    students = [family_of(loaded.info.model_id(name, "student")) for name in loaded.students]
    same = [[judge is not None and judge == student for student in students] for judge in judges]
    relatives = np.array(same, dtype=bool).reshape(own.shape) & ~own
    if relatives.any():
        yield from _of_cells(fit, relatives, own | relatives, FAMILY)


def _of_cells(fit: Fit, tested: Mask, left_out: Mask, bias: str) -> Iterator[_Test]:
    """Test the cells (J, S) of each judge against a fit of the table without those left out."""
    from scipy.special import ndtr, ndtri

    sums, counts = _cell_sums(fit)
    if len(sums) < _MIN_CLUSTERS_FOR_TEST:
        return
    total, number = sums.sum(axis=0), counts.sum(axis=0)
    used = (number > 0) & ~left_out
    enough = (used.sum(axis=1) >= 2) & (fit.judges.information > 0)
    tested = tested & (number > 0) & enough[:, None]
    if not tested.any() or enough.sum() < 2:
        return
    weights = np.where(enough, 1.0 / (1.05 - fit.judges.reliability**2), 0.0)

    def figures(sums: Floats, counts: Floats) -> tuple[Floats, Floats]:
        """Return z less its expectation, and the same in scores, (..., J, S)."""
        with np.errstate(invalid="ignore", divide="ignore"):
            mean = np.where(counts > 0, sums / np.maximum(counts, 1e-9), 0.5)
        least = 0.5 / (np.maximum(counts, 1.0) + 1.0)  # a mean of 0 or 1 has no quantile
        z = ndtri(np.clip(mean, least, 1.0 - least))
        expected = _rank_one(z, used, weights)
        return z - expected, mean - ndtr(expected)

    rest, scores = (part[0] for part in figures(total[None], number[None]))
    left_rest, left_scores = figures(total - sums, number - counts)
    cells = jackknifed(rest.ravel(), left_rest.reshape(len(sums), -1))
    # By how much judges and students differ anyway, beyond the choice of prompts: the median of judges, since one with
    # a bias must not hide its own.
    sampling = np.nan_to_num(cells.variance.reshape(rest.shape), posinf=0.0)
    compared = used & enough[:, None]
    spare = compared.sum(axis=1) - 2
    several = spare > 0
    taste, freedom = 0.0, 1.0
    if several.any():
        squares = np.where(compared, rest**2 - sampling, 0.0)
        taste = max(0.0, float(np.median(squares.sum(axis=1)[several] / spare[several])))
        freedom = float(spare[several].sum())
    for judge in np.flatnonzero(tested.any(axis=1)).tolist():
        chosen = tested[judge]
        both = np.array([rest[judge, chosen].mean(), scores[judge, chosen].mean()])
        left = [part[:, judge, chosen].mean(axis=1) for part in (left_rest, left_scores)]
        mine = jackknifed(both, np.stack(left, axis=1))
        more = taste * (1.0 / chosen.sum() + 1.0 / max(1, used[judge].sum()))
        variance = float(mine.variance[0]) + more
        by_taste = more / variance if variance > 0 else 0.0
        free = 1.0 / (by_taste**2 / max(freedom, 1.0) + (1.0 - by_taste) ** 2 / float(mine.freedom[0]))
        # Limits in scores are those of quantiles by the slope between the two.
        scale = float(mine.variance[1] / mine.variance[0]) if mine.variance[0] > 0 else 0.0
        low, high = t_limits(float(both[1]), scale * variance, free)
        two = float(two_sided(both[0], variance, free))
        yield _Test(
            judge=judge,
            bias=bias,
            effect=float(both[1]),
            limits=(float(max(low, -1.0)), float(min(high, 1.0))),
            p_value=two / 2 if both[0] > 0 else 1.0 - two / 2,  # one-sided: for itself, not against
        )


def _cell_sums(fit: Fit) -> tuple[Floats, Floats]:
    """Return sums of scores on the average item and their number, (G, J, S), by groups of clusters."""
    table, judges, solution = fit.table, fit.judges, fit.solution
    task = table.task
    scored = np.isfinite(solution.severity)
    usual = np.where(scored, solution.severity, 0.0).sum(axis=0) / np.maximum(scored.sum(axis=0), 1)
    of_task = np.where(scored, solution.severity - usual, 0.0)[task]
    item = (solution.item - solution.item.mean())[table.item]
    adjusted = table.scores - table.length[:, None] * judges.excess - item[:, None] * judges.sharpness - of_task
    clusters = int(table.cluster.max(initial=-1)) + 1
    cell = table.cluster[table.item] * table.students + table.student
    size = clusters * table.students
    given = ~np.isnan(table.scores)
    sums = [np.bincount(cell, np.where(g, y, 0.0), minlength=size) for g, y in zip(given.T, adjusted.T, strict=True)]
    counts = [np.bincount(cell, g, minlength=size) for g in given.T]
    shape = (len(given.T), clusters, table.students)
    parts = [np.stack(part).reshape(shape).transpose(1, 0, 2) for part in (sums, counts)]
    return grouped(parts[0].astype(np.float64)), grouped(parts[1].astype(np.float64))


def _rank_one(z: Floats, used: Mask, weights: Floats) -> Floats:
    """Return c_j + l_j theta_s of tables z (G, J, S), fitted to the cells used by alternating least squares."""
    w = used * weights[:, None]
    n = np.maximum(w.sum(axis=1), 1e-12)[:, None]
    level = (w * z).sum(axis=-1, keepdims=True) / n
    slope = np.ones((len(z), len(w), 1))
    prior = np.where(used.sum(axis=1) > 2, 1e-3, 0.5)[:, None] * weights[:, None] + 1e-9
    theta = np.zeros((len(z), z.shape[2]))
    for _ in range(_ALS_STEPS):
        theta = (w * slope * (z - level)).sum(axis=1) / np.maximum((w * slope**2).sum(axis=1), 1e-9)
        theta -= theta.mean(axis=-1, keepdims=True)
        theta /= np.maximum(theta.std(axis=-1, keepdims=True), 1e-6)
        x = theta[:, None, :]
        centre_x, centre_z = (w * x).sum(axis=-1, keepdims=True) / n, (w * z).sum(axis=-1, keepdims=True) / n
        cross = (w * (x - centre_x) * (z - centre_z)).sum(axis=-1, keepdims=True)
        square = (w * (x - centre_x) ** 2).sum(axis=-1, keepdims=True)
        typical = cross.sum(axis=1, keepdims=True) / np.maximum(square.sum(axis=1, keepdims=True), 1e-12)
        slope = (cross + prior * typical) / (square + prior)
        level = centre_z - slope * centre_x
    result: Floats = level + slope * theta[:, None, :]
    return result


# Length, and scores that say nothing.


def _verbosity(fit: Fit) -> Iterator[_Test]:
    """Test each judge's slope on length against the median of what each other judge's slope lets expect of it.

    Another's slope is taken to this judge's sharpness by how far both follow the same ranks of answers, those by all
    judges but these two, as normal quantiles. So no two judges' scores meet in a product: sharp ones, who meet the ends
    of a scale at the same answers, would share more than what quality moves them by. Answers to which these judges gave
    an end of the scale are left out: ranks cannot tell them apart, though a blunt judge may.
    """
    table, judges = fit.table, fit.judges
    clusters = len(judges.slope_influence)
    measured = judges.slope_influence.any(axis=0)
    seeing = np.flatnonzero(judges.sees & measured)
    if int(judges.slope_influence.any(axis=1).sum()) < _MIN_CLUSTERS_FOR_TEST or len(seeing) < 2:
        return
    groups = min(clusters, _LENGTH_GROUPS)
    group = np.random.default_rng(0).permutation(clusters) % groups
    of_row = group[table.cluster[table.item]]
    for judge in np.flatnonzero(measured).tolist():
        excesses = []
        for other in seeing[seeing != judge].tolist():
            rank = _ranks_without(fit, (judge, other))
            rows = fit.counts[:, judge] & fit.counts[:, other] & np.isfinite(rank)
            if rows.any():
                excess = _excess_slope(table.where(rows), rank[rows], (judge, other), of_row[rows], groups)
                excesses += [excess] if np.isfinite(excess).all() else []
        if not excesses:
            continue
        effect = np.median(excesses, axis=0)
        tested = jackknifed(effect[:1], effect[1:, None])
        two = float(two_sided(effect[0], tested.variance[0], tested.freedom[0]))
        p_value = two / 2.0 if effect[0] > 0 else 1.0 - two / 2.0  # one-sided: for length, not against
        limits = (float(tested.lower[0]), float(tested.upper[0]))
        yield _Test(judge, VERBOSITY, float(effect[0]), limits, p_value)


def _excess_slope(table: ScoreTable, rank: Floats, two: tuple[int, int], group: Codes, groups: int) -> Floats:
    """Return the first judge's slope on length less what the second's lets expect of it, (1 + G,).

    Of all rows (R,), then without each group (R,) in turn; NaN where the second does not follow the ranks (R,).
    """
    sizes = (len(table.items), table.students)
    x, by_rank, *scores = (
        two_way(values, table.item, table.student, sizes)
        for values in (table.length, rank, *(table.scores[:, judge] for judge in two))
    )

    def total(products: Floats) -> Floats:
        sums = np.bincount(group, products, minlength=groups)
        return np.concatenate([[sums.sum()], sums.sum() - sums])

    square, crossed = total(x**2), total(by_rank * x)
    with np.errstate(invalid="ignore", divide="ignore"):
        slopes = [np.where(square > _LEAST_SQUARE, total(x * y) / square, np.nan) for y in scores]
        mine, theirs = (total(by_rank * y) - slope * crossed for y, slope in zip(scores, slopes, strict=True))
        return np.where(theirs > 0, slopes[0] - slopes[1] * mine / theirs, np.nan)


def _ranks_without(fit: Fit, two: tuple[int, int]) -> Floats:
    """Return normal quantiles of the ranks of answers (R,) by all judges but two, or by these where there is no third.

    NaN of answers that no such judge scored, or to which all gave an end of the scale, if others have several levels.
    """
    from scipy.special import ndtri
    from scipy.stats import rankdata

    table, judges = fit.table, fit.judges
    evidence = np.where(judges.sees, judges.evidence, 0.0)
    left = evidence * ~np.isin(np.arange(table.judges), two)
    evidence = left if left.any() else evidence
    below = fit.counts @ (evidence * judges.sharpness)
    severity = np.nan_to_num(fit.solution.severity)[table.task]
    scores = np.where(fit.counts, table.scores - severity - table.length[:, None] * judges.slope, 0.0)
    quality = np.divide(scores @ evidence, below, out=np.full(len(below), np.nan), where=below > 0)
    given = np.where(fit.counts, table.scores, np.nan)[:, evidence > 0]
    lowest, highest = np.nanmin(given, axis=0), np.nanmax(given, axis=0)
    not_given = np.isnan(given)
    inside = known = np.isfinite(quality)
    for end in (lowest, highest):
        inside = inside & ~(not_given | (given == end)).all(axis=1)
    if len(np.unique(np.nanmean(given[inside], axis=1).round(9))) >= _LEAST_LEVELS_INSIDE:
        known = inside
    ranks = np.full(len(quality), np.nan)
    ranks[known] = ndtri((rankdata(quality[known]) - 0.5) / max(int(known.sum()), 1))
    return ranks


def _by_cluster(fit: Fit, values: Floats) -> Floats:
    """Return sums of values by item (D, ...) over groups of clusters."""
    sums = np.zeros((int(fit.table.cluster.max(initial=-1)) + 1, *values.shape[1:]))
    np.add.at(sums, fit.table.cluster, values)
    return grouped(sums)


def _blunt(loaded: LoadedRun, fit: Fit) -> Iterator[_Test]:
    judges = fit.judges
    rest = fit.table.scores - fit.table.length[:, None] * judges.excess
    products = item_products(fit.table, rest, fit.counts)
    cross, count = (_by_cluster(fit, values) for values in (products.cross, products.count))
    if len(cross) < _MIN_CLUSTERS_FOR_TEST:
        return
    b = judges.evidence
    for judge in range(len(b)):
        others = b * (np.arange(len(b)) != judge)
        if not count[:, judge, others > 0].any() or float((others * judges.sharpness).sum()) <= 0:
            continue
        typical = float((others * judges.sharpness**2).sum() / (others * judges.sharpness).sum())

        def figure(cross: Floats, count: Floats, judge: int = judge, others: Floats = others) -> Floats:
            with np.errstate(invalid="ignore", divide="ignore"):
                shared = np.where(count[:, judge] > 1e-9, cross[:, judge] / count[:, judge], 0.0)
                scale = ((count[:, judge] > 1e-9) * others * judges.sharpness).sum(axis=1)
                result: Floats = (shared * others).sum(axis=1) / scale
            return result

        total = figure(cross.sum(axis=0)[None], count.sum(axis=0)[None])
        left = figure(cross.sum(axis=0) - cross, count.sum(axis=0) - count)
        sharp = jackknifed(total / typical, left[:, None] / typical)
        effect, variance, free = float(sharp.estimate[0]), float(sharp.variance[0]), float(sharp.freedom[0])
        two = float(two_sided(effect - _BLUNT, variance, free))
        p_value = two / 2 if effect < _BLUNT else 1.0 - two / 2
        share = most_common(loaded, judge) or 0.0
        bias = CONSTANT if share >= _ONE_SCORE else RANDOM
        low, high = t_limits(effect - _BLUNT, min(variance, 1e6), free)
        yield _Test(judge, bias, effect - _BLUNT, (float(low), float(high)), p_value)
