"""Students, judges and items fitted together, so that a ranking compares like with like whatever scores are missing.

A judge's score of an answer r, of student s to item i of task t (its mean over factors, weighted by the rubric), is

    y_rj = c_tj + l_j (theta_s + u_i + v_r) + lambda_j x_r + e_rj,   v_r ~ (0, tau^2),  e_rj ~ (0, sigma_j^2)

with the judge's severity c, sharpness l and noise sigma, the quality theta of the student, u of the item and v of the
answer, and the logarithm x of the answer's length (a many-facet model with discrimination, on the scale of the
scores). It is fitted in three steps, each of which needs sums over items alone:

1. lambda. gamma_j, the slope of a judge's scores on length within student and item, is l_j beta + lambda_j, where beta
   is what length is worth. Most judges are taken not to favour length for its own sake: beta is the median of
   gamma_j / l_j, weighted by what judges can tell.
2. l and sigma. Within an item two judges' scores covary by l_j l_k: the loadings of one factor (minres), which a judge
   that says the same of all, or anything, does not have. They are refined by EM, which holds for scores that are
   missing by student too. With one judge or two it cannot be told which is sharper: both count alike.
3. theta, by generalised least squares, items and severities being fixed effects. A judge counts by l_j^2 / sigma_j^2;
   its scores of its own answers do not, where others scored these.

Intervals come from what each cluster of items adds to theta (a sandwich; `coeval.analysis.intervals`).

Shapes: R answers, J judges, S students, D items, T tasks, C clusters.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from coeval.analysis.intervals import Codes, Floats
from coeval.analysis.units import LoadedRun, factor_weights, once

Mask = npt.NDArray[np.bool_]
_EM_STEPS, _MINRES_STEPS = 12, 200
_PRIOR = 5.0  # observations that say that judges are equally reliable
_MOST_RELIABLE = 0.98  # correlation with quality
_LEAST_NOISE = 0.05  # of a judge's variance within items
_AT_ONCE = 2_000_000  # products in memory


@dataclass(frozen=True)
class ScoreTable:
    """Every judge's score of every answer, its mean over factors."""

    student: Codes  # (R,)
    item: Codes  # (R,), from 0 to D - 1
    task: Codes  # (R,)
    scores: Floats  # (R, J), NaN where there is none
    own: Mask  # (R, J): the judge gave the answer itself
    length: Floats  # (R,): logarithm of tokens, about its mean; all 0 where lengths are not known
    cluster: Codes  # (D,): items of one prompt
    items: Codes  # (D,): places of the items in the run
    students: int
    tasks: int

    @property
    def judges(self) -> int:
        """Number of judges."""
        return int(self.scores.shape[1])

    def where(self, rows: Mask) -> ScoreTable:
        """Return the answers that a mask chooses, items numbered anew."""
        items, item = np.unique(self.item[rows], return_inverse=True)
        return replace(
            self,
            **{name: getattr(self, name)[rows] for name in ("student", "task", "scores", "own", "length")},
            item=item,
            cluster=np.unique(self.cluster[items], return_inverse=True)[1],
            items=self.items[items],
        )


@once
def score_table(loaded: LoadedRun) -> ScoreTable:
    """Return the scores of a run, without answers that no judge scored."""
    pairs = loaded.pairs
    responses, row = np.unique(pairs.response, return_inverse=True)
    first = np.zeros(len(responses), dtype=np.int64)
    first[row[::-1]] = np.arange(len(row))[::-1]
    weights = factor_weights(loaded)[pairs.task, pairs.factor]
    scores = np.full((len(responses), len(loaded.judges)), np.nan)
    for judge in range(len(loaded.judges)):
        given = ~np.isnan(pairs.scores[:, judge])
        total = np.bincount(row[given], weights[given], minlength=len(responses))
        sums = np.bincount(row[given], weights[given] * pairs.scores[given, judge], minlength=len(responses))
        np.divide(sums, total, out=scores[:, judge], where=total > 0)
    items, item = np.unique(pairs.datapoint[first], return_inverse=True)
    student = pairs.student[first]
    return ScoreTable(
        student,
        item,
        pairs.task[first],
        scores,
        own=student[:, None] == loaded.matching("judge", "student"),
        length=_log_length(loaded.tokens[responses]),
        cluster=np.unique(loaded.clusters[items], return_inverse=True)[1],
        items=items,
        students=len(loaded.students),
        tasks=len(loaded.tasks),
    )


def _log_length(tokens: Floats) -> Floats:
    """Return log2 of tokens about its mean, 0 where they are not known."""
    is_known = np.isfinite(tokens) & (tokens > 0)
    if not is_known.any():
        return np.zeros(len(tokens))
    logs = np.log2(np.where(is_known, tokens, 1.0))
    return np.where(is_known, logs - logs[is_known].mean(), 0.0)


# Judges: how sharp they are, how noisy, and what length is worth to them.


@dataclass(frozen=True)
class JudgeFit:
    """What the fit knows of judges, each (J,) unless said otherwise."""

    sharpness: Floats  # l: score for one standard deviation of quality within items
    noise: Floats  # sigma^2
    reliability: Floats  # correlation of its scores with quality within items, in [0, 1]
    slope: Floats  # gamma: score for a doubling of length, within student and item
    slope_influence: Floats  # (C, J): what each cluster adds to it
    beta: float  # quality of a doubling of length, by the median of judges

    @property
    def information(self) -> Floats:
        """What a score says of quality."""
        safe = np.where(self.noise > 0, self.noise, 1.0)
        return np.where(self.noise > 0, self.sharpness**2 / safe, 0.0)

    @property
    def excess(self) -> Floats:
        """lambda: score for a doubling of length, beyond what that is worth."""
        return self.slope - self.sharpness * self.beta


@dataclass(frozen=True)
class Products:
    """Products of judges' scores about their means within items, (D, J, J), with their expectation in variances."""

    cross: Floats
    count: Floats

    def covariance(self) -> Floats:
        """Return the covariances within items, (J, J), NaN where two judges share nothing."""
        return covariances(self.cross.sum(axis=0), self.count.sum(axis=0))


def covariances(cross: Floats, count: Floats) -> Floats:
    """Return cross / count, NaN where there is nothing to divide by."""
    with np.errstate(invalid="ignore", divide="ignore"):
        result: Floats = np.where(count > 1e-9, cross / np.where(count > 1e-9, count, 1.0), np.nan)
    return result


def item_products(table: ScoreTable, scores: Floats, counts: Mask) -> Products:
    """Return the products of scores (R, J) that count, by item.

    Judges who scored other answers of an item have other means there: the expectation of a product is the covariance
    times n_jk (1 - 1/n_j - 1/n_k + n_jk / (n_j n_k)), for n_jk answers that both scored.
    """
    items, judges = len(table.items), scores.shape[1]
    centred = np.zeros(scores.shape)
    for judge in range(judges):
        mine = counts[:, judge]
        centred[mine, judge] = _about_means(scores[mine, judge], table.item[mine], items)
    order = np.argsort(table.item, kind="stable")
    starts = np.searchsorted(table.item[order], np.arange(items))
    cross, shared = np.zeros((items, judges, judges)), np.zeros((items, judges, judges))
    step = max(1, _AT_ONCE // max(1, judges**2) // max(1, len(order) // max(1, items)))
    for first in range(0, items, step):
        last = min(first + step, items)
        rows = order[starts[first] : starts[last] if last < items else len(order)]
        places = starts[first:last] - starts[first]
        part, mask = centred[rows], counts[rows].astype(np.float64)
        cross[first:last] = np.add.reduceat(part[:, :, None] * part[:, None, :], places)
        shared[first:last] = np.add.reduceat(mask[:, :, None] * mask[:, None, :], places)
    n = np.maximum(np.einsum("djj->dj", shared), 1.0)
    one, other = n[:, :, None], n[:, None, :]
    return Products(cross, shared * (1.0 - 1.0 / one - 1.0 / other + shared / (one * other)))


def _about_means(values: Floats, groups: Codes, size: int) -> Floats:
    """Subtract from values (N,) the mean of their group (N,)."""
    counts = np.maximum(np.bincount(groups, minlength=size), 1)
    rest: Floats = values - (np.bincount(groups, values, minlength=size) / counts)[groups]
    return rest


def two_way(values: Floats, item: Codes, student: Codes, sizes: tuple[int, int]) -> Floats:
    """Return values (N,) less the effects of their items and students, by least squares."""
    rest = _about_means(values, item, sizes[0])
    for _ in range(50):
        before = rest
        rest = _about_means(_about_means(rest, student, sizes[1]), item, sizes[0])
        if np.abs(rest - before).max(initial=0.0) < 1e-10:
            break
    return rest


def length_slopes(table: ScoreTable, counts: Mask) -> tuple[Floats, Floats]:
    """Return each judge's slope on length within student and item (J,), and what each cluster adds to it (C, J)."""
    clusters = int(table.cluster.max(initial=-1)) + 1
    slopes, influence = np.zeros(table.judges), np.zeros((clusters, table.judges))
    sizes = (len(table.items), table.students)
    for judge in range(table.judges):
        rows = counts[:, judge]
        item, student = table.item[rows], table.student[rows]
        x = two_way(table.length[rows], item, student, sizes)
        square = float((x**2).sum())
        if square < 1e-9 * max(1, len(x)):
            continue
        y = two_way(table.scores[rows, judge], item, student, sizes)
        slopes[judge] = float((x * y).sum()) / square
        scores = x * (y - slopes[judge] * x) / square
        influence[:, judge] = np.bincount(table.cluster[item], scores, minlength=clusters)
    return slopes, influence


def loadings(correlation: Floats, count: Floats) -> Floats:
    """Return the correlation of each judge with the one quality that all see, (..., J), of matrices (..., J, J).

    Minimises sum n_jk (rho_jk - r_j r_k)^2 over pairs, with a prior worth five observations that all are alike; a
    judge who disagrees with the others has 0.
    """
    judges = correlation.shape[-1]
    weight = np.where(np.isnan(correlation), 0.0, count) * (1.0 - np.eye(judges))
    rho = np.where(weight > 0, correlation, 0.0)
    total = weight.sum(axis=(-1, -2))
    mean = (weight * rho).sum(axis=(-1, -2)) / np.where(total > 0, total, 1.0)
    alike = np.sqrt(np.clip(np.where(total > 0, mean, 0.5), 0.01, _MOST_RELIABLE**2))[..., None]
    r: Floats = np.broadcast_to(alike, correlation.shape[:-1]).copy()
    for _ in range(_MINRES_STEPS):
        above = np.einsum("...jk,...k->...j", weight * rho, r) + _PRIOR * alike
        below = np.einsum("...jk,...k->...j", weight, r**2) + _PRIOR
        new = 0.5 * (r + np.clip(above / below, 0.0, _MOST_RELIABLE))
        done = np.abs(new - r).max(initial=0.0) < 1e-9
        r = new
        if done:
            break
    return r


def correlations(covariance: Floats) -> Floats:
    """Return correlations of covariances (..., J, J), NaN where a judge does not vary."""
    sd = np.sqrt(np.maximum(np.einsum("...jj->...j", covariance), 0.0))
    scale = sd[..., :, None] * sd[..., None, :]
    with np.errstate(invalid="ignore", divide="ignore"):
        result: Floats = np.where(scale > 1e-9, np.clip(covariance / scale, -1.0, 1.0), np.nan)
    return result


def weighted_median(values: Floats, weights: Floats) -> float:
    """Return the median of values by weights, between two that share it; 0 without any weight."""
    chosen = weights > 0
    if not chosen.any():
        return 0.0
    order = np.argsort(values[chosen], kind="stable")
    values, weights = values[chosen][order], weights[chosen][order]
    places = (np.cumsum(weights) - 0.5 * weights) / weights.sum()
    return float(np.interp(0.5, places, values))


def fit_judges(table: ScoreTable, counts: Mask) -> JudgeFit:
    """Return what the scores that count say of judges (steps 1 and 2)."""
    slope, influence = length_slopes(table, counts)
    rest = table.scores - table.length[:, None] * slope
    products = item_products(table, rest, counts)
    covariance = products.covariance()
    variance = np.nan_to_num(np.maximum(np.diagonal(covariance), 0.0))
    variance = np.where(variance < 1e-9, 0.0, variance)
    reliability = loadings(correlations(covariance), products.count.sum(axis=0)) * (variance > 0)
    sharpness, noise = reliability * np.sqrt(variance), variance * np.maximum(1.0 - reliability**2, _LEAST_NOISE)
    judges = JudgeFit(sharpness, noise, reliability, slope, influence, 0.0)
    return replace(judges, beta=length_worth(judges))


def length_worth(judges: JudgeFit, without: int = -1) -> float:
    """Return beta by the median of judges, without one of them where that is given."""
    weights = judges.information * (np.arange(len(judges.slope)) != without)
    safe = np.where(judges.sharpness > 0, judges.sharpness, 1.0)
    return weighted_median(judges.slope / safe, np.where(judges.sharpness > 0, weights, 0.0))


# Students: generalised least squares with items and severities as fixed effects.


@dataclass(frozen=True)
class Solution:
    """Quality of students and items, in standard deviations of quality within items, and severities of judges."""

    theta: Floats  # (S,), NaN of students without scores that count; about their mean
    severity: Floats  # c: (T, J), NaN where a judge scored nothing of a task
    item: Floats  # u: (D,)
    influence: Floats  # (C, S): what each cluster adds to theta
    is_connected: bool  # whether every two students can be compared


def solve(table: ScoreTable, judges: JudgeFit, counts: Mask, variance: float) -> Solution:
    """Return the solution for answers whose quality varies by `variance` about that of student and item."""
    scores = np.where(counts, table.scores - table.length[:, None] * judges.excess, 0.0)
    safe = np.where(judges.noise > 0, judges.noise, 1.0)
    w = np.where(judges.noise > 0, 1.0 / safe, 0.0)
    if not (judges.information > 0).any():  # no judge tells answers apart
        judges, w = replace(judges, sharpness=np.ones(len(w)), noise=np.ones(len(w))), np.ones(len(w))
    return _Equations(table, scores, counts, w, judges.sharpness, variance).solution()


class _Task:
    """One task's equations of severities and students, once its answers and items are eliminated."""

    def __init__(self, whole: _Equations, rows: npt.NDArray[np.intp]) -> None:
        table, b = whole.table, whole.b
        mask, y, psi, kappa, by = whole.mask[rows], whole.y[rows], whole.psi[rows], whole.kappa[rows], whole.by[rows]
        self.items = np.unique(table.item[rows])
        inverse, g_judge = whole.inverse[self.items], whole.g_judge[self.items]
        scaled = g_judge * inverse[:, None]
        cc = np.diag(whole.w * mask.sum(axis=0)) - np.outer(b, b) * (mask.T @ (kappa[:, None] * mask))
        cc -= scaled.T @ g_judge
        said = psi[:, None] * mask * b
        cross = np.stack([np.bincount(table.student[rows], column, minlength=table.students) for column in said.T])
        self.cross = cross - scaled.T @ whole.g_student[self.items]
        self.right = whole.w * y.sum(axis=0) - b * (mask.T @ (kappa * by)) - scaled.T @ whole.right_item[self.items]
        self.inverse = np.linalg.pinv(cc, rcond=1e-9, hermitian=True)


class _Equations:
    """The normal equations of severities, students, items and answers; the answers are eliminated."""

    def __init__(self, table: ScoreTable, y: Floats, counts: Mask, w: Floats, sharpness: Floats, tau: float) -> None:
        self.table, self.y, self.mask, self.w = table, y, counts.astype(np.float64), w
        self.sharpness, self.b = sharpness, w * sharpness
        precision = self.mask @ (self.b * sharpness)  # of what judges tell of an answer's quality
        self.psi = 1.0 / (1.0 + tau * precision)
        self.phi, self.kappa = self.psi * precision, tau * self.psi
        self.by = y @ self.b
        items, students = len(table.items), table.students
        weight = np.bincount(table.item, self.phi, minlength=items)
        self.inverse = np.divide(1.0, weight, out=np.zeros(items), where=weight > 0)
        cells = np.bincount(table.item * students + table.student, self.phi, minlength=items * students)
        self.g_student = cells.reshape(items, students)
        said = self.psi[:, None] * self.mask * self.b
        self.g_judge = np.stack([np.bincount(table.item, column, minlength=items) for column in said.T], axis=1)
        self.right_item = np.bincount(table.item, self.psi * self.by, minlength=items)
        rows = (np.flatnonzero(table.task == task) for task in range(table.tasks))
        self.tasks = [_Task(self, chosen) if len(chosen) else None for chosen in rows]

    def solution(self) -> Solution:
        """Solve for students, then severities, then items."""
        table, students = self.table, self.table.students
        scaled = self.g_student * self.inverse[:, None]
        matrix = np.diag(np.bincount(table.student, self.phi, minlength=students)) - scaled.T @ self.g_student
        right = np.bincount(table.student, self.psi * self.by, minlength=students) - scaled.T @ self.right_item
        for one in (task for task in self.tasks if task is not None):
            matrix -= one.cross.T @ one.inverse @ one.cross
            right -= one.cross.T @ (one.inverse @ one.right)
        present = np.bincount(table.student, self.phi, minlength=students) > 0
        values, vectors = np.linalg.eigh(matrix)
        told = values > 1e-7 * max(float(self.phi.sum()) / max(students, 1), 1e-12)  # what comparisons there are
        inverse = (vectors[:, told] / values[told]) @ vectors[:, told].T
        theta = inverse @ right
        severity = np.full((table.tasks, table.judges), np.nan)
        for number, task in enumerate(self.tasks):
            if task is not None:
                severity[number] = task.inverse @ (task.right - task.cross @ theta)
        c = np.nan_to_num(severity)
        of_item = np.zeros(len(table.items), dtype=np.int64)
        of_item[table.item] = table.task
        item = (self.right_item - self.g_student @ theta - (self.g_judge * c[of_item]).sum(axis=1)) * self.inverse
        influence = self._influence(theta, c, item) @ inverse
        theta = np.where(present, theta - theta[present].mean() if present.any() else theta, np.nan)
        never = np.stack([self.mask[table.task == task].sum(axis=0) == 0 for task in range(table.tasks)])
        severity[never] = np.nan
        return Solution(theta, severity, item, influence, int(told.sum()) >= int(present.sum()) - 1)

    def _influence(self, theta: Floats, severity: Floats, item: Floats) -> Floats:
        """Return what each cluster adds to the equations of students, (C, S), severities being eliminated."""
        table, clusters = self.table, int(self.table.cluster.max(initial=-1)) + 1
        quality = theta[table.student] + item[table.item]
        rest = self.mask * (self.y - severity[table.task] - self.sharpness * quality[:, None])
        told = rest @ self.b
        cluster = table.cluster[table.item]
        cells = np.bincount(
            cluster * table.students + table.student, self.psi * told, minlength=clusters * table.students
        )
        scores: Floats = cells.reshape(clusters, table.students).astype(np.float64)
        of_judge = self.w * rest - self.b * self.mask * (self.kappa * told)[:, None]
        for number, task in enumerate(self.tasks):
            if task is None:
                continue
            rows = table.task == number
            sums = [np.bincount(cluster[rows], column, minlength=clusters) for column in of_judge[rows].T]
            scores = scores - np.stack(sums, axis=1) @ task.inverse @ task.cross
        return scores


# The fit as a whole.


@dataclass(frozen=True)
class Fit:
    """Students, judges and items of a run."""

    table: ScoreTable
    counts: Mask  # (R, J): the scores that the fit rests on
    judges: JudgeFit
    solution: Solution
    scale: float  # score for one standard deviation of quality, by the judges' weights
    level: Floats  # (D,): score of an answer of average quality to each item
    score: Floats  # (S,): a student's score on the average item; NaN of students that cannot be compared
    influence: Floats  # (C, S): what each cluster adds to the scores
    shares: Floats  # (C, S): each cluster's share of the items
    controlled: Floats  # (S,): the score at average length; NaN where lengths are not known or never vary
    controlled_influence: Floats  # (C, S)

    def answered(self) -> Floats:
        """Return how many answers of each student to each item the fit rests on, (D, S)."""
        table, shape = self.table, (len(self.table.items), self.table.students)
        rows = self.counts.any(axis=1)
        cells = table.item[rows] * shape[1] + table.student[rows]
        return np.bincount(cells, minlength=shape[0] * shape[1]).reshape(shape).astype(np.float64)

    def shared(self) -> Iterator[tuple[int, int, Floats]]:
        """Yield every two students with each cluster's number of items that both answered, (C,)."""
        answered = self.answered() > 0
        clusters = len(self.influence)
        present = np.flatnonzero(np.isfinite(self.score)).tolist()
        for place, a in enumerate(present):
            for b in present[place + 1 :]:
                both = answered[:, a] & answered[:, b]
                yield a, b, np.bincount(self.table.cluster[both], minlength=clusters).astype(np.float64)


@once
def fit_run(loaded: LoadedRun) -> Fit | None:
    """Return the fit of a run; None where no score is there, or nothing connects its students."""
    return fit_table(score_table(loaded))


@once
def task_fits(loaded: LoadedRun) -> dict[str, Fit]:
    """Return the fit of each task that has one, judges being as sharp as they are over all."""
    whole, fits = fit_run(loaded), {}
    if whole is None:
        return {}
    for code, name in enumerate(loaded.tasks):
        rows = whole.table.task == code
        if rows.any() and (one := _fit(whole.table.where(rows), whole.counts[rows], whole.judges)) is not None:
            fits[name] = one
    return fits


def fit_table(table: ScoreTable) -> Fit | None:
    """Return the fit of scores; of own answers only where students cannot be compared without them."""
    if not len(table.item):
        return None
    given = ~np.isnan(table.scores)
    for counts in (_without_own(table, given), given):
        judges = refined(table, fit_judges(table, counts), counts)
        fit = _fit(table, counts, judges)
        if fit is not None:
            return fit
    return None


def _without_own(table: ScoreTable, given: Mask) -> Mask:
    """Leave out a judge's scores of its own answers, of students that others scored."""
    others = given & ~table.own
    scored = np.bincount(table.student[others.any(axis=1)], minlength=table.students) > 0
    return np.where(scored[table.student][:, None], others, given)


def _spread(solution: Solution) -> float:
    """Return by how much answers vary about student and item, of a variance of 1 within items."""
    theta = solution.theta[np.isfinite(solution.theta)]
    return float(np.clip(1.0 - theta.var(ddof=1), 0.05, 1.0)) if len(theta) > 1 else 1.0


def refined(table: ScoreTable, judges: JudgeFit, counts: Mask) -> JudgeFit:
    """Return sharpness and noise after some steps of EM, which holds where scores are missing by student."""
    if (judges.information > 0).sum() < 2:
        return judges
    start, variance = judges.sharpness, 0.5
    prior = _PRIOR * len(table.item) / max(1, len(table.item) - 1)
    for _ in range(_EM_STEPS):
        solution = solve(table, judges, counts, variance)
        variance = _spread(solution)
        quality, doubt = _posterior(table, judges, counts, solution, variance)
        rest = table.scores - table.length[:, None] * judges.excess
        sharpness, noise = judges.sharpness.copy(), judges.noise.copy()
        for judge in np.flatnonzero(judges.noise > 0):
            rows = counts[:, judge]
            x = _about_means(quality[rows], table.item[rows], len(table.items))
            y = _about_means(rest[rows, judge], table.item[rows], len(table.items))
            items = len(np.unique(table.item[rows]))
            free = max(len(x) - items, 1)
            square = float((x**2).sum()) + float(doubt[rows].mean()) * free
            sharpness[judge] = max(0.0, (float((x * y).sum()) + prior * start[judge]) / (square + prior))
            left = float(((y - sharpness[judge] * x) ** 2).sum()) / free + sharpness[judge] ** 2 * float(
                doubt[rows].mean()
            )
            noise[judge] = max(left, _LEAST_NOISE * (left + sharpness[judge] ** 2))
        judges = replace(judges, sharpness=sharpness, noise=noise)
        judges = replace(judges, beta=length_worth(judges))
    return judges


def _posterior(
    table: ScoreTable, judges: JudgeFit, counts: Mask, solution: Solution, variance: float
) -> tuple[Floats, Floats]:
    """Return mean and variance of each answer's quality, (R,)."""
    safe = np.where(judges.noise > 0, judges.noise, 1.0)
    b = np.where(judges.noise > 0, judges.sharpness / safe, 0.0)
    prior = np.nan_to_num(solution.theta)[table.student] + solution.item[table.item]
    severity = np.nan_to_num(solution.severity)[table.task]
    expected = severity + judges.sharpness * prior[:, None] + table.length[:, None] * judges.excess
    told = np.where(counts, table.scores - expected, 0.0) @ b
    doubt = 1.0 / (1.0 / variance + counts @ (b * judges.sharpness))
    return prior + doubt * told, doubt


def _fit(table: ScoreTable, counts: Mask, judges: JudgeFit) -> Fit | None:
    """Return the fit with judges as they are; None where students cannot be compared."""
    variance = _spread(solve(table, judges, counts, 0.5))
    solution = solve(table, judges, counts, variance)
    if not solution.is_connected:
        return None
    informative = judges.information if (judges.information > 0).any() else np.ones(table.judges)
    sharpness = judges.sharpness if (judges.information > 0).any() else np.ones(table.judges)
    scored = np.isfinite(solution.severity)
    weight = np.where(scored, informative, 0.0)
    weight /= np.maximum(weight.sum(axis=1, keepdims=True), 1e-300)
    of_task = weight @ sharpness
    c = (weight * np.nan_to_num(solution.severity)).sum(axis=1)
    task = np.zeros(len(table.items), dtype=np.int64)
    task[table.item] = table.task
    level = c[task] + of_task[task] * solution.item
    scale = float(of_task[task].mean())
    score = level.mean() + scale * solution.theta
    clusters = len(solution.influence)
    of_items = np.bincount(table.cluster, minlength=clusters) / len(table.items)
    of_level = np.bincount(table.cluster, level - level.mean(), minlength=clusters) / len(table.items)
    influence = scale * solution.influence + of_level[:, None]
    shares = np.repeat(of_items[:, None], table.students, axis=1)
    controlled, moved = _controlled(table, judges, counts, scale)
    return Fit(
        table,
        counts,
        judges,
        solution,
        scale,
        level,
        score,
        influence,
        shares,
        controlled=score - controlled,
        controlled_influence=influence - moved,
    )


def _controlled(table: ScoreTable, judges: JudgeFit, counts: Mask, scale: float) -> tuple[Floats, Floats]:
    """Return what its answers' length is worth to each student (S,), and what each cluster adds to that (C, S)."""
    rows = counts.any(axis=1)
    x = table.length[rows]
    clusters = int(table.cluster.max(initial=-1)) + 1
    if np.ptp(x) < 1e-9 or not (judges.information > 0).any():
        return np.full(table.students, np.nan), np.zeros((clusters, table.students))
    effects = _student_effects(x, table.item[rows], table.student[rows], (len(table.items), table.students))
    safe = np.where(judges.sharpness > 0, judges.sharpness, 1.0)
    weight = judges.information / judges.information.sum()
    of_beta = judges.slope_influence if len(judges.slope_influence) == clusters else np.zeros((clusters, table.judges))
    return scale * judges.beta * effects, np.outer(of_beta @ (weight / safe), scale * effects)


def _student_effects(values: Floats, item: Codes, student: Codes, sizes: tuple[int, int]) -> Floats:
    """Return the effects of students (S,) on values (N,), items being fixed effects; about their mean."""
    cells = np.bincount(item * sizes[1] + student, minlength=sizes[0] * sizes[1]).reshape(sizes).astype(np.float64)
    scaled = cells / np.maximum(cells.sum(axis=1, keepdims=True), 1.0)
    matrix = np.diag(cells.sum(axis=0)) - scaled.T @ cells
    right = np.bincount(student, values, minlength=sizes[1]) - scaled.T @ np.bincount(item, values, minlength=sizes[0])
    effects: Floats = np.linalg.pinv(matrix, rcond=1e-9, hermitian=True) @ right
    return effects
