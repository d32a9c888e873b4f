"""Students, judges and items fitted together, so that a ranking compares like with like whatever scores are missing.

A judge's score of an answer r, of student s to item i of task t (its mean over factors, weighted by the rubric), is

    y_rj = c_tj + l_j (theta_s + u_i + v_r) + lambda_j x_r + e_rj,   v_r ~ (0, tau^2),  e_rj ~ (0, sigma_j^2)

with the judge's severity c, sharpness l and noise sigma, the quality theta of the student, u of the item and v of the
answer, and the logarithm x of the answer's length (a many-facet model with discrimination, on the scale of the
scores). It is fitted in three steps, each of which needs sums over items alone:

1. lambda, and 2. l and sigma: `coeval.analysis.panel`. The second are refined here by EM, which holds for scores
   that are missing by student too.
3. theta, by generalised least squares, items and severities being fixed effects. A judge counts by l_j^2 / sigma_j^2,
   or less where it errs as others do or where tastes outweigh noise (`coeval.analysis.panel`); its scores of its own
   answers do not, where others scored these. What a student gains at items that it wrote itself is an effect beside its
   quality, which is that at items of others (`Advantages`).

Intervals come from what each cluster of items adds to theta (a sandwich; `coeval.analysis.statistics`).

Shapes: R answers, J judges, S students, D items, T tasks, C clusters, A advantages.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from coeval.analysis.panel import (
    LEAST_NOISE,
    PRIOR,
    JudgeFit,
    Mask,
    ScoreTable,
    about_means,
    fit_judges,
    length_worth,
    score_table,
    taste_exposure,
    verdict_table,
    weighed_panel,
)
from coeval.analysis.statistics import Codes, Floats, rare_gains
from coeval.analysis.units import LoadedRun, once

_LEAST_OTHERS = 5  # prompts of others that tell a student's quality
_LEAST_OWN = 2  # prompts of its own that tell its advantage
_EM_STEPS = 12
_LEAST_LEFT = 0.02  # share of an error that has to be left for it to count
_MUCH_SHARPER = 0.2  # reliability
_MUCH_TASTE = 0.02  # variance of tastes, as a share of that of scores within items


# Advantages of students at items that they wrote themselves, effects beside their quality.
#
# A student's answers to its own items are a group of their own, whose quality is the student's and an advantage. Each
# student has its own; where these cannot be told from students' quality, as where two students each wrote half of the
# items and nobody else answered, all have one in common. Where that cannot be told either there is none.
#
# They are random effects (`rare_gains`): what is taken out of a student's quality is the mean of its advantage given
# the estimates, and the doubt about it is added to that about quality. Where nothing hints at an advantage items of a
# student's own count nearly as those of others.
#
# W students wrote items; G groups of answers.


@dataclass(frozen=True)
class Advantages:
    """How answers to items of students' own enter the equations of students."""

    writers: Codes  # (W,): students who have an advantage
    place: Codes  # (W,): which of the advantages, from 0 to A - 1
    group: Codes  # (R,): the student; for its answers to its own items S and its place among writers
    design: Floats  # (G, S + A): qualities of groups, of students and advantages
    is_own: Mask  # (S,): whether a student has an advantage that it shares with nobody
    shares: Floats  # (C, S): each cluster's share of a student's answers to items of others
    own_shares: Floats  # (C, A): and of the answers at home that an advantage rests on
    other_shares: Floats  # (C, A): and of these writers' answers to items of others


def _designs(table: ScoreTable, counts: Mask) -> Iterator[Advantages | None]:
    """Yield what advantages to fit to the scores that count (R, J), as many as may be first; None last."""
    rows = counts.any(axis=1)
    cluster, clusters = table.cluster[table.item], int(table.cluster.max(initial=-1)) + 1

    def answers(chosen: Mask) -> Floats:
        """Count answers by cluster and student, (C, S)."""
        cells = cluster[chosen] * table.students + table.student[chosen]
        counted = np.bincount(cells, minlength=clusters * table.students)
        return counted.reshape(clusters, table.students).astype(np.float64)

    if (rows & table.wrote).any():
        own, others = answers(rows & table.wrote), answers(rows & ~table.wrote)
        enough = ((own > 0).sum(axis=0) >= _LEAST_OWN) & ((others > 0).sum(axis=0) >= _LEAST_OTHERS)
        writers = np.flatnonzero(enough)
        for common in (False, True)[: min(len(writers), 2)]:
            yield _advantages(table, writers, own, others, common=common)
    yield None


def _advantages(table: ScoreTable, writers: Codes, own: Floats, others: Floats, *, common: bool) -> Advantages:
    """Return the advantages of writers at their own items, `common`: all being one."""
    place = np.full(table.students, -1)
    place[writers] = np.arange(len(writers))
    at_home = table.wrote & (place[table.student] >= 0)
    of_students = np.eye(table.students)
    of_writers = np.ones((len(writers), 1)) if common else np.eye(len(writers))
    none = np.zeros((table.students, of_writers.shape[1]))
    is_own = np.zeros(table.students, dtype=bool)
    is_own[writers] = not common
    of_own, of_others = own[:, writers] @ of_writers, others[:, writers] @ of_writers
    return Advantages(
        writers=writers,
        place=of_writers.argmax(axis=1),
        group=np.where(at_home, table.students + place[table.student], table.student),
        design=np.block([[of_students, none], [of_students[writers], of_writers]]),
        is_own=is_own,
        shares=others / np.maximum(others.sum(axis=0), 1.0),
        own_shares=of_own / of_own.sum(axis=0),
        other_shares=of_others / of_others.sum(axis=0),
    )


# Students: generalised least squares with items and severities as fixed effects.


@dataclass(frozen=True)
class _Solution:
    """Quality of students and items, in standard deviations of quality within items, and severities of judges."""

    theta: Floats  # (S,), NaN of students without scores that count; about their mean
    severity: Floats  # c: (T, J), NaN where a judge scored nothing of a task
    item: Floats  # u: (D,)
    influence: Floats  # (C, S): what each cluster adds to theta; (0, S) where it was not asked for
    is_connected: bool  # whether every two students can be compared, and advantages told from them
    advantage: Floats  # (A,): at items of their own, as estimated
    believed: Floats  # (A,): as far as it is taken out of quality
    of_advantage: Floats  # (C, A): what each cluster adds to these


def solve(
    table: ScoreTable,
    judges: JudgeFit,
    counts: Mask,
    variance: float,
    advantages: Advantages | None = None,
    *,
    with_influence: bool = True,
) -> _Solution:
    """Solve for answers with a quality that varies by `variance` about that of student and item.

    `advantages`: at items of their own, that are solved for beside students.
    `with_influence`: whether to return what each cluster adds to students' quality; none is empty.
    """
    scores = np.where(counts, table.scores - table.length[:, None] * judges.excess, 0.0)
    safe = np.where(judges.counting > 0, judges.counting, 1.0)
    w = np.where(judges.counting > 0, 1.0 / safe, 0.0)
    if not (judges.information > 0).any():  # no judge tells answers apart
        ones = np.ones(len(w))
        judges, w = replace(judges, sharpness=ones, noise=ones, counting=ones), ones
    equations = _Equations(table, scores, counts, w, judges.sharpness, variance, advantages)
    return equations.solution(with_influence=with_influence)


class _Task:
    """One task's equations of severities and students, once its answers and items are eliminated."""

    def __init__(self, whole: _Equations, rows: npt.NDArray[np.intp]) -> None:
        table, b = whole.table, whole.b
        mask, y, psi, kappa, by = whole.mask[rows], whole.y[rows], whole.psi[rows], whole.kappa[rows], whole.by[rows]
        self.items = np.flatnonzero(np.bincount(table.item[rows]))
        inverse, g_judge = whole.inverse[self.items], whole.g_judge[self.items]
        scaled = g_judge * inverse[:, None]
        cc = np.diag(whole.w * mask.sum(axis=0)) - np.outer(b, b) * (mask.T @ (kappa[:, None] * mask))
        cc -= scaled.T @ g_judge
        weighted = psi[:, None] * mask * b
        cross = np.stack([np.bincount(whole.group[rows], column, minlength=whole.groups) for column in weighted.T])
        self.cross = cross - scaled.T @ whole.g_student[self.items]
        self.right = whole.w * y.sum(axis=0) - b * (mask.T @ (kappa * by)) - scaled.T @ whole.right_item[self.items]
        self.inverse = np.linalg.pinv(cc, rcond=1e-9, hermitian=True)


class _Equations:
    """The normal equations of severities, students, items and answers; the answers are eliminated.

    They are set up for G groups of answers, each student being one, and where it has an advantage its answers to items
    of its own another (`Advantages`).
    """

    def __init__(
        self,
        table: ScoreTable,
        y: Floats,
        counts: Mask,
        w: Floats,
        sharpness: Floats,
        tau: float,
        advantages: Advantages | None,
    ) -> None:
        self.table, self.y, self.mask, self.w = table, y, counts.astype(np.float64), w
        self.group = table.student if advantages is None else advantages.group
        self.design = None if advantages is None else advantages.design
        self.groups = table.students if advantages is None else len(advantages.design)
        self.sharpness, self.b = sharpness, w * sharpness
        precision = self.mask @ (self.b * sharpness)  # of what judges tell of an answer's quality
        self.psi = 1.0 / (1.0 + tau * precision)
        self.phi, self.kappa = self.psi * precision, tau * self.psi
        self.by = y @ self.b
        items, groups = len(table.items), self.groups
        weight = np.bincount(table.item, self.phi, minlength=items)
        self.inverse = np.divide(1.0, weight, out=np.zeros(items), where=weight > 0)
        cells = np.bincount(table.item * groups + self.group, self.phi, minlength=items * groups)
        self.g_student = cells.reshape(items, groups)
        weighted = self.psi[:, None] * self.mask * self.b
        self.g_judge = np.stack([np.bincount(table.item, column, minlength=items) for column in weighted.T], axis=1)
        self.right_item = np.bincount(table.item, self.psi * self.by, minlength=items)
        rows = (np.flatnonzero(table.task == task) for task in range(table.tasks))
        self.tasks = [_Task(self, chosen) if len(chosen) else None for chosen in rows]

    def solution(self, *, with_influence: bool) -> _Solution:
        """Solve for students and advantages, then severities, then items."""
        table, students = self.table, self.table.students
        scaled = self.g_student * self.inverse[:, None]
        matrix = np.diag(np.bincount(self.group, self.phi, minlength=self.groups)) - scaled.T @ self.g_student
        right = np.bincount(self.group, self.psi * self.by, minlength=self.groups) - scaled.T @ self.right_item
        for task in self.tasks:
            if task is not None:
                matrix -= task.cross.T @ task.inverse @ task.cross
                right -= task.cross.T @ (task.inverse @ task.right)
        if self.design is not None:
            matrix, right = self.design.T @ matrix @ self.design, self.design.T @ right
        present = np.bincount(table.student, self.phi, minlength=students) > 0
        values, vectors = np.linalg.eigh(matrix)
        # Directions that no comparison tells apart have an eigenvalue of zero; the mean of all students is one.
        is_compared = values > 1e-7 * max(float(self.phi.sum()) / max(students, 1), 1e-12)
        inverse = (vectors[:, is_compared] / values[is_compared]) @ vectors[:, is_compared].T
        solved = inverse @ right
        quality, freely, kept = solved, solved, solved[students:]
        if self.design is not None:
            free = solved[students:]
            error = np.sqrt(np.maximum(np.diag(inverse)[students:], 1e-18))
            mean, doubt = rare_gains(free / error)
            kept = error * mean
            left = np.linalg.pinv(matrix[:students, :students], rcond=1e-9, hermitian=True)
            moved = left @ matrix[:students, students:]  # by how much an advantage moves students' quality
            theta = left @ right[:students] - moved @ kept
            quality, freely = self.design @ np.concatenate([theta, kept]), self.design @ solved
        severity, item = self._severities_and_items(quality)
        influence = np.empty((0, len(solved)))
        if with_influence:
            of_all = (severity, item) if self.design is None else self._severities_and_items(freely)
            influence = self._influence(freely, *of_all)
            influence = (influence if self.design is None else influence @ self.design) @ inverse
            if self.design is not None:
                influence[:, :students] += ((1.0 - doubt) * influence[:, students:]) @ moved.T
        theta = quality[:students]
        theta = np.where(present, theta - theta[present].mean() if present.any() else theta, np.nan)
        never = np.stack([self.mask[table.task == task].sum(axis=0) == 0 for task in range(table.tasks)])
        severity[never] = np.nan
        return _Solution(
            theta=theta,
            severity=severity,
            item=item,
            influence=influence[:, :students],
            is_connected=int(is_compared.sum()) >= int(present.sum()) - 1 + len(solved) - students,
            advantage=solved[students:],
            believed=kept,
            of_advantage=influence[:, students:],
        )

    def _severities_and_items(self, quality: Floats) -> tuple[Floats, Floats]:
        """Return severities (T, J), NaN of tasks without scores, and items (D,), given qualities of groups (G,)."""
        table = self.table
        severity = np.full((table.tasks, table.judges), np.nan)
        for number, task in enumerate(self.tasks):
            if task is not None:
                severity[number] = task.inverse @ (task.right - task.cross @ quality)
        c = np.nan_to_num(severity)
        of_item = np.zeros(len(table.items), dtype=np.int64)
        of_item[table.item] = table.task
        item = (self.right_item - self.g_student @ quality - (self.g_judge * c[of_item]).sum(axis=1)) * self.inverse
        return severity, item

    def _influence(self, of_group: Floats, severity: Floats, item: Floats) -> Floats:
        """Return the share of each cluster in the equations of groups, (C, G), severities being eliminated."""
        severity = np.nan_to_num(severity)
        table, clusters = self.table, int(self.table.cluster.max(initial=-1)) + 1
        quality = of_group[self.group] + item[table.item]
        rest = self.mask * (self.y - severity[table.task] - self.sharpness * quality[:, None])
        evidence = rest @ self.b
        cluster = table.cluster[table.item]
        cells = np.bincount(cluster * self.groups + self.group, self.psi * evidence, minlength=clusters * self.groups)
        scores: Floats = cells.reshape(clusters, self.groups).astype(np.float64)
        of_judge = self.w * rest - self.b * self.mask * (self.kappa * evidence)[:, None]
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
    solution: _Solution
    scale: float  # score for one standard deviation of quality, by the judges' weights
    level: Floats  # (D,): score of an answer of average quality to each item
    score: Floats  # (S,): a student's score on the average item; NaN of students that cannot be compared
    influence: Floats  # (C, S): what each cluster adds to the scores
    shares: Floats  # (C, S): each cluster's share of the items
    exposure: Floats  # (S,): variance that tastes of variance 1 add to a score, by the judges who gave it
    controlled: Floats  # (S,): the score at average length; NaN where lengths are not known or never vary
    controlled_influence: Floats  # (C, S)
    advantages: Advantages | None  # at items of their own, that the scores are without

    def answered(self) -> Floats:
        """Return how many answers of each student to each item the fit rests on, (D, S)."""
        table, shape = self.table, (len(self.table.items), self.table.students)
        rows = self.counts.any(axis=1)
        cells = table.item[rows] * shape[1] + table.student[rows]
        return np.bincount(cells, minlength=shape[0] * shape[1]).reshape(shape).astype(np.float64)

    def shared(self) -> Iterator[tuple[int, int, Floats]]:
        """Yield every two students with each cluster's number of items that both answered, (C,).

        Of verdicts an item of the run stands in several places, one for each pair that was compared.
        """
        points, point = np.unique(self.table.items, return_inverse=True)
        answered = np.zeros((len(points), self.table.students), dtype=bool)
        np.logical_or.at(answered, point, self.answered() > 0)
        cluster = np.zeros(len(points), dtype=np.int64)
        cluster[point] = self.table.cluster
        clusters = len(self.influence)
        present = np.flatnonzero(np.isfinite(self.score)).tolist()
        for place, a in enumerate(present):
            for b in present[place + 1 :]:
                both = answered[:, a] & answered[:, b]
                yield a, b, np.bincount(cluster[both], minlength=clusters).astype(np.float64)

    @property
    def at_home(self) -> Mask:
        """Return which answers (R,) tell of a student's advantage at items of its own, not of its quality."""
        if self.advantages is None:
            return np.zeros(len(self.table.item), dtype=bool)
        return self.table.wrote & self.advantages.is_own[self.table.student]

    @property
    def gains(self) -> Floats:
        """Return by how much each student (S,) is taken to be better at items of its own, as `theta` is measured."""
        gains = np.zeros(self.table.students)
        if self.advantages is not None:
            gains[self.advantages.writers] = self.solution.believed[self.advantages.place]
        return gains

    def shares_of(self, a: int, b: int, shared: Floats) -> Floats:
        """Return each cluster's share (C,) of what tells two students apart, who `shared` (C,) items.

        Where one has an advantage at items of its own, what tells of it are its answers to those of others.
        """
        if self.advantages is not None and self.advantages.is_own[[a, b]].any():
            return np.asarray(self.advantages.shares[:, [a, b]].mean(axis=1))
        return np.asarray(shared / shared.sum())


@once
def fit_run(loaded: LoadedRun) -> Fit | None:
    """Return the fit of a run; None where no score is there, or nothing connects its students."""
    return fit_table(score_table(loaded))


@once
def fit_verdicts(loaded: LoadedRun) -> Fit | None:
    """Return the same fit of the run's verdicts on pairs; None where there are none, or they join no students."""
    return fit_table(verdict_table(loaded)) if loaded.verdicts else None


@once
def task_fits(loaded: LoadedRun) -> dict[str, Fit]:
    """Return the fit of each task that has one, judges being as sharp as they are over all."""
    whole, fits = fit_run(loaded), {}
    if whole is None:
        return {}
    for code, name in enumerate(loaded.tasks):
        rows = whole.table.task == code
        fit = _fit(whole.table.where(rows), whole.counts[rows], whole.judges) if rows.any() else None
        if fit is not None:
            fits[name] = fit
    return fits


def fit_table(table: ScoreTable) -> Fit | None:
    """Return the fit of scores; of own answers only where students cannot be compared without them."""
    if not len(table.item):
        return None
    given = ~np.isnan(table.scores)
    # A judge's scores of its own answers do not count, but of students that nobody else scored.
    others = given & ~table.own
    scored = np.bincount(table.student[others.any(axis=1)], minlength=table.students) > 0
    without_own = np.where(scored[table.student][:, None], others, given)
    for counts in (without_own, given):
        judges = _panel_of(table, counts)
        fit = _fit(table, counts, judges)
        if fit is not None:
            return fit
    return None


def _panel_of(table: ScoreTable, counts: Mask) -> JudgeFit:
    """Return the judges as they count."""
    judges = fit_judges(table, counts)
    within = fit_judges(table, counts, within_students=True)
    # Tastes for few students look like sharpness, or the want of it; what judges say within students has none. But
    # where little else than students differs, no two judges see anything in common within them.
    if (within.reliability > judges.reliability + _MUCH_SHARPER).any():
        return _as_panel(table, counts, within)
    if within.sees.sum() > 1 and _as_panel(table, counts, judges).taste.variance > _MUCH_TASTE:
        return _as_panel(table, counts, within)
    return _as_panel(table, counts, _refined(table, judges, counts))


def _spread(solution: _Solution) -> float:
    """Return by how much answers vary about student and item, of a variance of 1 within items."""
    theta = solution.theta[np.isfinite(solution.theta)]
    return float(np.clip(1.0 - theta.var(ddof=1), 0.05, 1.0)) if len(theta) > 1 else 1.0


def _refined(table: ScoreTable, judges: JudgeFit, counts: Mask) -> JudgeFit:
    """Return sharpness and noise after some steps of EM, which holds where scores are missing by student."""
    if (judges.information > 0).sum() < 3 or judges.shared.any():
        return judges  # of two it cannot be told which is sharper; EM takes errors for independent
    start, variance = judges.sharpness, 0.5
    prior = PRIOR * len(table.item) / max(1, len(table.item) - 1)
    items = [int((np.bincount(table.item[rows]) > 0).sum()) for rows in counts.T]  # of each judge
    for _ in range(_EM_STEPS):
        solution = solve(table, judges, counts, variance, with_influence=False)
        variance = _spread(solution)
        quality, doubt = _posterior(table, judges, counts, solution, variance)
        rest = table.scores - table.length[:, None] * judges.excess
        sharpness, noise = judges.sharpness.copy(), judges.noise.copy()
        for judge in np.flatnonzero(judges.noise > 0):
            rows = counts[:, judge]
            x = about_means(quality[rows], table.item[rows], len(table.items))
            y = about_means(rest[rows, judge], table.item[rows], len(table.items))
            free = max(len(x) - items[judge], 1)
            square = float((x**2).sum()) + float(doubt[rows].mean()) * free
            sharpness[judge] = max(0.0, (float((x * y).sum()) + prior * start[judge]) / (square + prior))
            left = float(((y - sharpness[judge] * x) ** 2).sum()) / free + sharpness[judge] ** 2 * float(
                doubt[rows].mean()
            )
            noise[judge] = max(left, LEAST_NOISE * (left + sharpness[judge] ** 2))
        judges = replace(judges, sharpness=sharpness, noise=noise, counting=noise)
        judges = replace(judges, beta=length_worth(judges))
    return judges


def _as_panel(table: ScoreTable, counts: Mask, judges: JudgeFit) -> JudgeFit:
    """Return the judges as they count once their means of students are known."""
    solution = solve(table, judges, counts, 0.5)
    expected = solution.severity[table.task] + np.outer(solution.item[table.item], judges.sharpness)
    rest = table.scores - np.outer(table.length, judges.excess) - expected
    rest = np.where(counts & np.isfinite(rest), rest, np.nan)
    noise = _noise(table, rest, judges)
    clusters, size = len(solution.influence), table.students
    cell = table.cluster[table.item] * size + table.student
    means, sampling = (np.full((table.judges, size), np.nan) for _ in range(2))
    numbers = np.zeros((table.judges, size))
    for judge in range(table.judges):
        sums, each = _by_cell(rest[:, judge], cell, (clusters, size))
        numbers[judge] = each.sum(axis=0)
        means[judge] = np.where((each > 0).sum(axis=0) > 1, sums.sum(axis=0) / np.maximum(numbers[judge], 1), np.nan)
        sums, each = _by_cell(noise[:, judge], cell, (clusters, size))
        usable, several = each.sum(axis=0), np.maximum((each > 0).sum(axis=0), 2)
        about = sums - each * sums.sum(axis=0) / np.maximum(usable, 1)
        variance = (about**2).sum(axis=0) / np.maximum(usable, 1) * several / (several - 1)
        sampling[judge] = variance / np.maximum(numbers[judge], 1)
    usual = float(np.median(numbers[numbers > 0])) if numbers.any() else 1.0
    return weighed_panel(judges, means, sampling, usual)


def _by_cell(values: Floats, cell: Codes, shape: tuple[int, int]) -> tuple[Floats, Floats]:
    """Return sums and numbers of values (R,) that are there by cell (R,), each of a shape."""
    rows = np.isfinite(values)
    size = shape[0] * shape[1]
    sums = np.bincount(cell[rows], values[rows], minlength=size).astype(np.float64).reshape(shape)
    return sums, np.bincount(cell[rows], minlength=size).reshape(shape).astype(np.float64)


def _noise(table: ScoreTable, rest: Floats, judges: JudgeFit) -> Floats:
    """Return judges' errors (R, J), of scores less what is expected of them, at their full variance.

    What all judges see in an answer, and what a judge gives all answers to an item, are in no difference of judges'
    means of students, and must not be taken for the chance in these. NaN where an error cannot be told from them.
    """
    slope = np.where(judges.noise > 0, judges.sharpness / np.where(judges.sd > 0, judges.sd, 1.0), 0.0)
    given = np.isfinite(rest)
    z = np.where(given, rest / np.where(judges.sd > 0, judges.sd, 1.0), 0.0)
    square = (given @ slope**2)[:, None]
    safe = np.where(square > 0, square, 1.0)
    left = 1.0 - given * slope**2 / safe  # share of an error that is not taken for the answer's quality
    errors = z - slope * (z @ slope)[:, None] / safe
    for judge in range(table.judges):
        rows = given[:, judge]
        errors[rows, judge] = about_means(errors[rows, judge], table.item[rows], len(table.items))
        answers = np.bincount(table.item[rows], minlength=len(table.items))[table.item]
        left[:, judge] *= 1.0 - 1.0 / np.maximum(answers, 1)
    can_tell = given & (left > _LEAST_LEFT)
    return np.where(can_tell, errors * judges.sd / np.sqrt(np.where(can_tell, left, 1.0)), np.nan)


def _posterior(
    table: ScoreTable, judges: JudgeFit, counts: Mask, solution: _Solution, variance: float
) -> tuple[Floats, Floats]:
    """Return mean and variance of each answer's quality, (R,)."""
    b = judges.evidence
    prior = np.nan_to_num(solution.theta)[table.student] + solution.item[table.item]
    severity = np.nan_to_num(solution.severity)[table.task]
    expected = severity + judges.sharpness * prior[:, None] + table.length[:, None] * judges.excess
    evidence = np.where(counts, table.scores - expected, 0.0) @ b
    doubt = 1.0 / (1.0 / variance + counts @ (b * judges.sharpness))
    return prior + doubt * evidence, doubt


def _fit(table: ScoreTable, counts: Mask, judges: JudgeFit) -> Fit | None:
    """Return the fit with judges as they are; None where students cannot be compared."""
    for advantages in _designs(table, counts):
        variance = _spread(solve(table, judges, counts, 0.5, advantages, with_influence=False))
        solution = solve(table, judges, counts, variance, advantages)
        if solution.is_connected:
            break
    else:
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
    score = np.round(level.mean() + scale * solution.theta, 12)  # equal students are not told apart by rounding
    clusters = len(solution.influence)
    of_items = np.bincount(table.cluster, minlength=clusters) / len(table.items)
    of_level = np.bincount(table.cluster, level - level.mean(), minlength=clusters) / len(table.items)
    influence = scale * solution.influence + of_level[:, None]
    shares = np.repeat(of_items[:, None], table.students, axis=1)
    if advantages is not None:
        shares = np.where(advantages.is_own, advantages.shares, shares)
    controlled, moved = _controlled(table, judges, counts, scale)
    return Fit(
        table=table,
        counts=counts,
        judges=judges,
        solution=solution,
        scale=scale,
        level=level,
        score=score,
        influence=influence,
        shares=shares,
        exposure=scale**2 * taste_exposure(table, counts, judges),
        advantages=advantages,
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
    # The effects of students (S,) on lengths, items being fixed effects; about their mean.
    item, student, sizes = table.item[rows], table.student[rows], (len(table.items), table.students)
    cells = np.bincount(item * sizes[1] + student, minlength=sizes[0] * sizes[1]).reshape(sizes).astype(np.float64)
    scaled = cells / np.maximum(cells.sum(axis=1, keepdims=True), 1.0)
    matrix = np.diag(cells.sum(axis=0)) - scaled.T @ cells
    right = np.bincount(student, x, minlength=sizes[1]) - scaled.T @ np.bincount(item, x, minlength=sizes[0])
    effects: Floats = np.linalg.pinv(matrix, rcond=1e-9, hermitian=True) @ right
    safe = np.where(judges.sharpness > 0, judges.sharpness, 1.0)
    weight = judges.information / judges.information.sum()
    of_beta = judges.slope_influence if len(judges.slope_influence) == clusters else np.zeros((clusters, table.judges))
    return scale * judges.beta * effects, np.outer(of_beta @ (weight / safe), scale * effects)
