"""How good students are: overall, by task, factor, judge, teacher and attribute, and against each other.

Limits and tests are over prompts, near duplicates being one. The means describe what was scored: that of all units,
weighted by factor where the rubric says so, and `macro`, the mean over tasks of the task's mean.

Shapes: U units, D datapoints, C clusters of them, S students, K tasks, Q pairs of students.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import combinations
from statistics import mean
from typing import Annotated, TypeAlias

import numpy as np

from coeval.analysis.agreement import Reliability, overall_reliability
from coeval.analysis.fit import Fit, fit_run, task_fits
from coeval.analysis.judge_tests import PanelWorth, panel_worth
from coeval.analysis.statistics import (
    Codes,
    Floats,
    Summaries,
    Variance,
    cluster_variance,
    difference_limits,
    group_means,
    holm,
    influence_variance,
    jackknife_sums,
    score_limits,
    two_sided,
    widened,
    with_component,
    with_limits,
)
from coeval.analysis.tables import (
    ItemCount,
    Rank,
    ScoreCount,
    Shown,
    StudentName,
    TaskName,
    barred,
    estimated,
    named,
)
from coeval.analysis.units import LoadedRun, Pairs, Report, Units, once, score_weights
from coeval.analysis.variance import (
    MissingRow,
    OwnItemsRow,
    PairPower,
    VarianceRow,
    missing_doubts,
    missing_rows,
    own_items,
    pair_power,
    variance_rows,
)
from coeval.analysis.votes import run_board, run_votes
from coeval.judging.labels import hamming_accuracy, label_accuracy, predicted_label
from p2l.leaderboard import to_score

_MACRO = "mean of the tasks' means: no task counts more for having more factors"
_FIT = "fitted with judges and items: what judges, by what they can tell, give it on the average item"
_RATING = "the same as a leaderboard of the run's votes shows it: 400 more is ten wins to one"
_CONTROLLED = "the score that it would have if its answers were as long as those of others"


@dataclass(frozen=True)
class StudentRow:
    """A student's standing."""

    rank: Rank
    student: StudentName
    fit: Annotated[float | None, estimated("score", _FIT, "fit_")]  # None where nothing connects the students
    fit_lower: float | None
    fit_upper: float | None
    # None where the votes of the run are not those of this fit alone.
    rating: Annotated[float | None, estimated("rating", _RATING, "rating_", digits=0, bar=False)]
    rating_lower: float | None
    rating_upper: float | None
    length_controlled: Annotated[
        float | None, estimated("at equal length", _CONTROLLED, "length_controlled_", bar=False)
    ]
    length_controlled_lower: float | None
    length_controlled_upper: float | None
    length_rank: Annotated[int | None, Shown("rank at equal length")]
    # Mean of all its units, weighted by factor.
    mean: Annotated[float, estimated("mean", "of all scores; the bar is a 95 % interval over items")]
    lower: float
    upper: float
    macro: Annotated[float, estimated("mean over tasks", _MACRO, "macro_")]
    macro_lower: float
    macro_upper: float
    without_self: Annotated[
        float | None, estimated("without self", "without the scores that it gave itself", "without_self_", bar=False)
    ]
    without_self_lower: float | None
    without_self_upper: float | None
    composite: Annotated[float, Shown("1 to 5", "1 + 4 mean", 2)]
    valid_evals: ScoreCount
    responses: Annotated[int, Shown("answers")]
    datapoints: ItemCount
    unweighted: Annotated[float, Shown("unweighted", "the mean if all factors counted alike", 3)]


@dataclass(frozen=True)
class StudentCell:
    """A student's mean on one value of a dimension (task, factor, judge, teacher, attribute)."""

    student: StudentName
    dimension: str
    value: str
    mean: Annotated[float, estimated("mean")]
    lower: float
    upper: float
    units: ScoreCount


@dataclass(frozen=True)
class StudentPair:
    """A test of two students on the datapoints that both answered."""

    better: Annotated[str, named("student", "better")]
    worse: Annotated[str, named("student", "worse")]
    fit: Annotated[
        float, estimated("difference", "of the fitted scores; the bar is a 95 % interval", "fit_", zero=True)
    ]
    fit_lower: float
    fit_upper: float
    difference: Annotated[float, Shown("of means", "of the means on items in common, whoever scored them", 3)]
    lower: float
    upper: float
    p_value: Annotated[
        float, Shown("p", "two-sided, of the fitted difference beyond what missing scores may explain", 4)
    ]
    significant: Annotated[bool, Shown("significant", "p below 0.05 after Holm's correction for all pairs")]
    datapoints: Annotated[int, Shown("items in common")]
    prompts: Annotated[int, Shown("prompts in common", "distinct ones: near duplicates are one")]


@dataclass(frozen=True)
class _TaskFit:
    """A student's standing in one task, fitted with judges and items."""

    task: TaskName
    rank: Rank
    student: StudentName
    fit: Annotated[float, estimated("score", _FIT, "fit_")]
    fit_lower: float
    fit_upper: float


@dataclass(frozen=True)
class _LabelRow:
    """How often a student's label is the right one; no judge is asked."""

    student: StudentName
    task: TaskName
    attribute: Annotated[str, Shown("label")]
    accuracy: Annotated[float | None, Shown("accuracy", "among answers from which a label could be read", 3)]
    strict_accuracy: Annotated[float, barred("strict accuracy", "among all answers", 3)]
    n_total: Annotated[int, Shown("read")]
    n_matched: Annotated[int, Shown("right")]
    n_skipped: Annotated[int, Shown("not read")]


@dataclass(frozen=True)
class _LabelValueRow:
    """The same for one label."""

    student: StudentName
    task: TaskName
    attribute: Annotated[str, Shown("label")]
    label: Annotated[str, Shown("value")]
    precision: Annotated[float, Shown("precision", digits=3)]
    recall: Annotated[float, Shown("recall", digits=3)]
    f1: Annotated[float, Shown("F1", digits=3)]
    support: ItemCount


@dataclass(frozen=True)
class _HammingRow:
    """A student's mean accuracy over several label attributes of a task."""

    student: str
    task: str
    attributes: int
    hamming_accuracy: float  # mean over attributes of `accuracy`; one of which no label could be read counts as 0
    strict_hamming_accuracy: float  # mean of `strict_accuracy`: the share of all labels that are right


@dataclass(frozen=True)
class StudentReport(Report):
    """Report student-report."""

    students: tuple[StudentRow, ...]
    cells: tuple[StudentCell, ...]
    pairs: tuple[StudentPair, ...]
    power: tuple[PairPower, ...]
    variance: tuple[VarianceRow, ...]
    labels: tuple[_LabelRow, ...]
    label_values: tuple[_LabelValueRow, ...]
    tasks: tuple[_TaskFit, ...] = ()
    hamming: tuple[_HammingRow, ...] = ()  # of tasks with several label attributes
    reliability: Reliability | None = None  # of all judges together
    panel: PanelWorth | None = None  # what all judges are worth together
    own_items: tuple[OwnItemsRow, ...] = ()
    missing: tuple[MissingRow, ...] = ()


# Weights of factors in students' means.


def weighted_means(loaded: LoadedRun, table: Units | Pairs, groups: Codes, size: int) -> Summaries:
    """Summarise a table's scores by groups (N,), weighted by factor."""
    scores = table.norm if isinstance(table, Units) else table.mean
    return group_means(groups, scores, loaded.clusters[table.datapoint], size, score_weights(loaded, table))


def ranked(loaded: LoadedRun, students: Summaries) -> list[int]:
    """Return the students with scores, best first."""
    codes: list[int] = np.flatnonzero(students.n).tolist()
    return sorted(codes, key=lambda code: (-students.mean[code], loaded.students[code]))


SIGNIFICANT = 0.05
_NO_ESTIMATE = (math.nan,) * 3  # figure, lower and upper limit


def student_report(loaded: LoadedRun) -> StudentReport:
    """Compute the report on students."""
    labels, values = label_rows(loaded)
    scores = by_datapoint(loaded)
    return StudentReport(
        header=loaded.header,
        students=student_rows(loaded),
        cells=student_cells(loaded),
        pairs=student_pairs(loaded, scores),
        power=pair_power(loaded, scores),
        variance=variance_rows(loaded),
        labels=labels,
        label_values=values,
        tasks=task_rows(loaded),
        hamming=_hamming_rows(labels),
        reliability=overall_reliability(loaded),
        panel=panel_worth(loaded),
        own_items=own_items(loaded),
        missing=missing_rows(loaded),
    )


@once
def student_rows(loaded: LoadedRun) -> tuple[StudentRow, ...]:
    """Return the students with scores, best first by the fit, or by the mean of their units where there is none."""
    units, size = loaded.units, len(loaded.students)
    weights = score_weights(loaded, units)
    overall = weighted_means(loaded, units, units.student, size)
    others = units.where(~loaded.is_student("judge"))
    without_self = weighted_means(loaded, others, others.student, size)
    macro = _macro(loaded, weights)  # in which a task with more factors or judges does not count for more
    fitted, controlled = _fitted_scores(fit_run(loaded), size)
    ratings = _ratings(loaded, fitted)
    order = ranked(loaded, overall)
    # The fit compares like with like where scores are missing; where nothing connects the students there is the mean.
    if np.isfinite(fitted[0][order]).all():
        order.sort(key=lambda code: (-fitted[0][code], loaded.students[code]))
    by_length = sorted((code for code in order if np.isfinite(controlled[0][code])), key=lambda c: -controlled[0][c])
    rows = []
    for rank, code in enumerate(order, start=1):
        mine = units.student == code
        mean, lower, upper = overall.estimate(code)
        rows.append(
            StudentRow(
                rank=rank,
                student=loaded.students[code],
                **with_limits("fit", (values[code] for values in fitted)),
                **with_limits("rating", (values[code] for values in ratings)),
                **with_limits("length_controlled", (values[code] for values in controlled)),
                length_rank=by_length.index(code) + 1 if code in by_length else None,
                mean=mean,
                lower=lower,
                upper=upper,
                **with_limits("macro", (values[code] for values in macro)),
                **with_limits("without_self", without_self.estimate(code) if without_self.n[code] else _NO_ESTIMATE),
                composite=1.0 + 4.0 * mean,
                valid_evals=int(overall.n[code]),
                responses=len(np.unique(units.response[mine])),
                datapoints=len(np.unique(units.datapoint[mine])),
                unweighted=mean if weights is None else float(units.norm[mine].mean()),
            )
        )
    return tuple(rows)


_Scores: TypeAlias = tuple[Floats, Floats, Floats]  # scores of students with their limits, each (S,)


def _fitted_scores(fit: Fit | None, size: int) -> tuple[_Scores, _Scores]:
    """Return the students' fitted scores and those at equal length, with limits; NaN where there is none."""
    none = (np.full(size, np.nan),) * 3
    if fit is None:
        return none, none
    return _limits(fit, fit.score, fit.influence), _limits(fit, fit.controlled, fit.controlled_influence)


def _limits(fit: Fit, score: Floats, influence: Floats) -> _Scores:
    spread = influence_variance(np.clip(score, 0.0, 1.0), influence, fit.shares)
    wide = with_component(spread, fit.exposure, fit.judges.taste)
    lower, upper = np.clip(widened(spread.mean, score_limits(spread), spread, wide), 0.0, 1.0)
    is_there = np.isfinite(score)
    mean, lower, upper = (np.where(is_there, values, np.nan) for values in (spread.mean, lower, upper))
    return mean, lower, upper


def _ratings(loaded: LoadedRun, fitted: _Scores) -> _Scores:
    """Return fitted scores and their limits as the leaderboard of votes that follow the fit has them; else NaN."""
    board = run_board(loaded)
    if board is None or not run_votes(loaded).follows_fit:
        return (np.full(len(loaded.students), np.nan),) * 3
    met = np.array([loaded.students.index(name) for name in board.models])
    ratings = to_score(board.coefs)
    around, apart = fitted[0][met].mean(), np.ptp(fitted[0][met])
    slope = np.ptp(ratings) / apart if apart > 0 else 0.0
    columns = [np.full(len(loaded.students), np.nan) for _ in fitted]
    for column, scores in zip(columns, fitted, strict=True):
        column[met] = ratings.mean() + slope * (scores[met] - around)
    return columns[0], columns[1], columns[2]


def task_rows(loaded: LoadedRun) -> tuple[_TaskFit, ...]:
    """Return the students of each task by its fit, best first."""
    rows = []
    for task, fit in task_fits(loaded).items():
        (score, lower, upper), _ = _fitted_scores(fit, len(loaded.students))
        codes = sorted(
            np.flatnonzero(np.isfinite(score)).tolist(), key=lambda code: (-score[code], loaded.students[code])
        )
        rows += [
            _TaskFit(
                task=task,
                rank=rank,
                student=loaded.students[code],
                **with_limits("fit", (score[code], lower[code], upper[code])),
            )
            for rank, code in enumerate(codes, start=1)
        ]
    return tuple(rows)


def _macro(loaded: LoadedRun, weights: Floats | None) -> _Scores:
    """Return the mean over tasks of the student's mean in each, with limits; each (S,)."""
    units, shape = loaded.units, (len(loaded.students), len(loaded.tasks))
    size = shape[0] * shape[1]
    if not len(units):
        return (np.full(shape[0], np.nan),) * 3
    points, point = np.unique(loaded.clusters[units.datapoint], return_inverse=True)
    cells = point * size + units.student * shape[1] + units.task
    norm = units.norm if weights is None else units.norm * weights
    sums = np.bincount(cells, norm, minlength=len(points) * size).reshape(-1, size)
    counts = np.bincount(cells, weights, minlength=len(points) * size).reshape(-1, size)

    def figure(drawn: Floats) -> Floats:
        means = (drawn[:, :size] / drawn[:, size:]).reshape(-1, *shape)
        has_task = np.isfinite(means)
        macro: Floats = np.where(has_task, means, 0.0).sum(axis=2) / has_task.sum(axis=2)
        return macro

    macro = jackknife_sums(np.concatenate([sums, counts], axis=1).astype(np.float64), figure)
    return macro.estimate, *score_limits(Variance(macro.estimate, macro.variance, macro.freedom))


def student_cells(loaded: LoadedRun) -> tuple[StudentCell, ...]:
    """Compute means by task, factor, judge, teacher and attribute value."""
    dimensions = ("task", "factor", "judge", "teacher", "attribute")
    return tuple(cell for dimension in dimensions for cell in cells_of(loaded, loaded.units, dimension))


def cells_of(loaded: LoadedRun, table: Units | Pairs, dimension: str) -> Iterator[StudentCell]:
    """Yield each student's mean of a table's scores on each value of a dimension."""
    names = loaded.names(dimension)
    rows, values = loaded.grouped(table, dimension)
    scores = table.where(rows)
    means = weighted_means(loaded, scores, scores.student * len(names) + values, len(loaded.students) * len(names))
    for cell in np.flatnonzero(means.n).tolist():
        student, value = divmod(cell, len(names))
        mean, lower, upper = means.estimate(cell)
        yield StudentCell(
            student=loaded.students[student],
            dimension=dimension,
            value=names[value],
            mean=mean,
            lower=lower,
            upper=upper,
            units=int(means.n[cell]),
        )


def by_datapoint(loaded: LoadedRun) -> Floats:
    """Return each student's mean score on each datapoint, weighted by factor, (D, S); NaN where it has none."""
    shape = (len(loaded.datapoints), len(loaded.students))
    cells = loaded.units.datapoint * shape[1] + loaded.units.student
    weights = score_weights(loaded, loaded.units)
    norm = loaded.units.norm if weights is None else loaded.units.norm * weights
    n = np.bincount(cells, weights, minlength=shape[0] * shape[1])
    sums = np.bincount(cells, norm, minlength=shape[0] * shape[1])
    with np.errstate(invalid="ignore"):
        means: Floats = np.where(n > 0, sums / np.where(n > 0, n, 1), np.nan).reshape(shape)
    return means


def student_pairs(loaded: LoadedRun, scores: Floats) -> tuple[StudentPair, ...]:
    """Compare every two students that share datapoints, by scores (D, S): the better first, large differences first.

    Where the run has no fit the difference of means takes its place. What scores that are missing beyond chance may
    explain of a difference is in its interval and taken from its test.
    """
    fit = fit_run(loaded)
    fitted = {} if fit is None else dict(fitted_pairs(fit))
    has_score = (~np.isnan(scores)).astype(np.int64)
    common = has_score.T @ has_score  # (S, S) items that both answered
    pairs = [(a, b) for a, b in combinations(range(scores.shape[1]), 2) if common[a, b] > 1]
    if not pairs:
        return ()
    plain = [_plain_difference(loaded, scores, a, b) for a, b in pairs]
    tests = [fitted.get(pair, means) for pair, means in zip(pairs, plain, strict=True)]
    doubts = missing_doubts(loaded, scores)
    p_values = [test.beyond(doubts[a], doubts[b]) for (a, b), (test, _) in zip(pairs, tests, strict=True)]
    corrected = holm(p_values)
    rows = []
    for place, ((a, b), (test, of), (means, of_means)) in enumerate(zip(pairs, tests, plain, strict=True)):
        sign = 1.0 if test.difference >= 0 else -1.0
        better, worse = (a, b) if sign > 0 else (b, a)
        low, high = test.limits(of, sign)
        low, high = low - doubts[better, 0] - doubts[worse, 1], high + doubts[better, 1] + doubts[worse, 0]
        lower, upper = means.limits(of_means, sign)
        rows.append(
            StudentPair(
                better=loaded.students[better],
                worse=loaded.students[worse],
                **with_limits("fit", np.clip((sign * test.difference, low, high), -1.0, 1.0).tolist()),
                difference=sign * means.difference,
                lower=lower,
                upper=upper,
                p_value=p_values[place],
                significant=bool(corrected[place] < SIGNIFICANT),
                datapoints=int(common[a, b]),
                prompts=test.prompts,
            )
        )
    return tuple(sorted(rows, key=lambda pair: (-pair.fit, pair.better, pair.worse)))


@dataclass(frozen=True)
class Difference:
    """A difference with its test."""

    difference: float
    variance: float
    freedom: float
    prompts: int
    over_prompts: Variance | None = None  # (1,): without the tastes of judges, where these are in the variance

    @property
    def p_value(self) -> float:
        """Two-sided; 1 where one prompt says nothing."""
        return float(two_sided(self.difference, self.variance, self.freedom))

    def beyond(self, first: Floats, second: Floats) -> float:
        """Return the p-value of what is left of it where the two may be too high, and too low, by so much, (2,)."""
        slack = first[0] + second[1] if self.difference > 0 else first[1] + second[0]
        return float(two_sided(max(abs(self.difference) - slack, 0.0), self.variance, self.freedom))

    def limits(self, spread: Variance, sign: float) -> tuple[float, float]:
        """Return limits of the difference in this direction, given the means (2,) that it is of, over prompts."""
        whole = Variance(np.array([self.difference]), np.array([self.variance]), np.array([self.freedom]))
        items = self.over_prompts or whole
        within = difference_limits(self.difference, float(items.variance[0]), float(items.freedom[0]), spread)
        ends = widened(self.difference, within, items, whole)
        lower, upper = (float(np.clip(end[0], -1.0, 1.0)) for end in ends)
        return (lower, upper) if sign > 0 else (-upper, -lower)


def mean_difference(gaps: Floats, clusters: Codes) -> Difference:
    """Return the mean of gaps (N,) with its test over clusters (N,)."""
    codes = np.unique(clusters, return_inverse=True)[1]
    sums, counts = np.bincount(codes, gaps), np.bincount(codes).astype(np.float64)
    mean, variance, freedom = cluster_variance(sums.astype(np.float64)[:, None], counts[:, None])
    return Difference(float(mean[0]), float(variance[0]), float(freedom[0]), len(counts))


def _plain_difference(loaded: LoadedRun, scores: Floats, a: int, b: int) -> tuple[Difference, Variance]:
    """Return the difference of two students' means on the items that both answered, and these means."""
    both = scores[:, [a, b]]
    common = ~np.isnan(both).any(axis=1)
    clusters = np.unique(loaded.clusters[common], return_inverse=True)[1]
    sums = np.stack([np.bincount(clusters, column) for column in both[common].T], axis=1).astype(np.float64)
    counts = np.bincount(clusters).astype(np.float64)
    spread = cluster_variance(sums, np.stack([counts, counts], axis=1))
    return mean_difference(both[common, 0] - both[common, 1], loaded.clusters[common]), spread


def fitted_pairs(fit: Fit) -> Iterator[tuple[tuple[int, int], tuple[Difference, Variance]]]:
    """Yield every two students with the test of their difference, and the variance of their scores (2,)."""
    for a, b, items in fit.shared():
        if items.sum() > 1:
            influence, shares = fit.influence[:, [a, b]], fit.shares_of(a, b, items)[:, None]
            difference = np.array([fit.scale * (fit.solution.theta[a] - fit.solution.theta[b])])
            exposure, taste = fit.exposure[[a, b]], fit.judges.taste
            gap = influence_variance(difference, influence[:, :1] - influence[:, 1:], shares)
            means = np.clip(fit.score[[a, b]], 0.0, 1.0)
            whole = with_component(gap, exposure.sum(keepdims=True), taste)
            test = Difference(
                difference=float(difference[0]),
                variance=float(whole.variance[0]),
                freedom=float(whole.freedom[0]),
                prompts=int((items > 0).sum()),
                over_prompts=gap,
            )
            yield (a, b), (test, influence_variance(means, influence, np.repeat(shares, 2, axis=1)))


# Labels: how often students name the one that an item was made with; no judge is asked.

_Labels = dict[tuple[str, str, str], list[tuple[object, str | None]]]


def label_rows(loaded: LoadedRun) -> tuple[tuple[_LabelRow, ...], tuple[_LabelValueRow, ...]]:
    """Compute accuracy by (student, task, attribute), and by label."""
    rows, values = [], []
    for (student, task, attribute), labels in sorted(_labels_by_task(loaded).items()):
        accuracies = label_accuracy(labels)
        rows.append(
            _LabelRow(
                student=student,
                task=task,
                attribute=attribute,
                accuracy=accuracies.accuracy if accuracies.n_total else None,
                strict_accuracy=accuracies.strict_accuracy,
                n_total=accuracies.n_total,
                n_matched=accuracies.n_matched,
                n_skipped=accuracies.n_skipped,
            )
        )
        support = [str(truth) for truth, _ in labels]
        for label, rates in sorted(accuracies.per_label.items()):
            values.append(
                _LabelValueRow(
                    student=student,
                    task=task,
                    attribute=attribute,
                    label=label,
                    precision=rates["precision"],
                    recall=rates["recall"],
                    f1=rates["f1"],
                    support=support.count(label),
                )
            )
    return tuple(rows), tuple(values)


def _hamming_rows(rows: Iterable[_LabelRow]) -> tuple[_HammingRow, ...]:
    """Average the accuracy of each (student, task) over its label attributes, where it has several."""
    groups: dict[tuple[str, str], list[_LabelRow]] = defaultdict(list)
    for row in rows:
        groups[row.student, row.task].append(row)
    return tuple(
        _HammingRow(
            student=student,
            task=task,
            attributes=len(group),
            hamming_accuracy=hamming_accuracy([row.accuracy for row in group]),
            strict_hamming_accuracy=round(mean(row.strict_accuracy for row in group), 4),
        )
        for (student, task), group in groups.items()
        if len(group) > 1
    )


def _labels_by_task(loaded: LoadedRun) -> _Labels:
    """(student, task, attribute) -> the right label and the student's, of each response."""
    labels: _Labels = defaultdict(list)
    for response, text in sorted(loaded.texts.items()):
        datapoint = int(loaded.response_datapoint[response])
        if datapoint < 0:
            continue
        task = loaded.tasks[loaded.datapoint_task[datapoint]]
        student = loaded.students[loaded.response_student[response]]
        for attribute in loaded.info.tasks[task].label_attributes:
            truth = loaded.attributes[datapoint].get(attribute)
            if truth is not None:
                labels[student, task, attribute].append((truth, predicted_label(text, attribute)))
    return labels
