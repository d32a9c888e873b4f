"""How good students are: overall, by task, factor, judge, teacher and attribute, and against each other.

The overall score is the mean of all units, weighted by factor where the rubric says so; `macro`, the mean over tasks of
the task's mean, does not let a task with more factors or judges count for more. Limits draw whole datapoints. Two
students are compared on the datapoints that both answered, each datapoint counting once; Holm's correction is for the
number of pairs.

Shapes: U units, D datapoints, S students, K tasks, Q pairs of students.
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
import numpy.typing as npt

from coeval.analysis.statistics import Summaries, group_means, resample
from coeval.analysis.tables import ItemCount, Rank, ScoreCount, Shown, StudentName, TaskName, barred, estimated, named
from coeval.analysis.units import Codes, Floats, LoadedRun, Pairs, Report, Units, once
from coeval.analysis.variance import PairPower, VarianceRow, pair_power, variance_rows
from coeval.judging.labels import hamming_accuracy, label_accuracy, predicted_label
from p2l.common.bootstrap import bootstrap_mean, limits

_MACRO = "mean of the tasks' means: no task counts more for having more factors"


@dataclass(frozen=True)
class StudentRow:
    """A student's standing."""

    rank: Rank
    student: StudentName
    mean: Annotated[float, estimated("mean", "of all scores; the bar is a 95 % interval over items")]
    """Mean of all its units, weighted by factor."""
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
    """Whether one student is better than another, on the datapoints that both answered."""

    better: Annotated[str, named("student", "better")]
    worse: Annotated[str, named("student", "worse")]
    difference: Annotated[float, estimated("difference", zero=True)]
    lower: float
    upper: float
    p_value: float  # two-sided, of the normal approximation to the bootstrap
    significant: bool  # whether `p_value` is below 0.05 after Holm's correction for all pairs
    datapoints: Annotated[int, Shown("items in common")]


@dataclass(frozen=True)
class LabelRow:
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
class LabelValueRow:
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
class HammingRow:
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
    labels: tuple[LabelRow, ...]
    label_values: tuple[LabelValueRow, ...]
    hamming: tuple[HammingRow, ...] = ()  # of tasks with several label attributes


# Weights of factors in students' means.


@once
def factor_weights(loaded: LoadedRun) -> Floats:
    """Return the weight of each factor in each task, (K, F)."""
    weights = np.ones((len(loaded.tasks), len(loaded.factors)))
    for row, task in enumerate(loaded.tasks):
        info = loaded.info.tasks.get(task)
        for factor, weight in info.weights.items() if info is not None else ():
            if factor in loaded.factors:
                weights[row, loaded.factors.index(factor)] = weight
    return weights


def score_weights(loaded: LoadedRun, table: Units | Pairs) -> Floats | None:
    """Return the weight of each score of a table, (N,); None where all count alike."""
    weights = factor_weights(loaded)
    return None if (weights == 1.0).all() else weights[table.task, table.factor]


def weighted_means(loaded: LoadedRun, table: Units | Pairs, groups: Codes, size: int) -> Summaries:
    """Summarise a table's scores by groups (N,), weighted by factor."""
    scores = table.norm if isinstance(table, Units) else table.mean
    return group_means(groups, scores, table.datapoint, size, score_weights(loaded, table))


def ranked(loaded: LoadedRun, students: Summaries) -> list[int]:
    """Return the students with scores, best first."""
    codes: list[int] = np.flatnonzero(students.n).tolist()
    return sorted(codes, key=lambda code: (-students.mean[code], loaded.students[code]))


SIGNIFICANT = 0.05
Figures: TypeAlias = tuple[float | None, float | None, float | None]


def student_report(loaded: LoadedRun) -> StudentReport:
    """Compute the report on students."""
    labels, values = label_rows(loaded)
    scores = by_datapoint(loaded)
    return StudentReport(
        loaded.header,
        student_rows(loaded),
        student_cells(loaded),
        student_pairs(loaded, scores),
        pair_power(loaded, scores),
        variance_rows(loaded),
        labels,
        values,
        hamming_rows(labels),
    )


@once
def student_rows(loaded: LoadedRun) -> tuple[StudentRow, ...]:
    """Return the students with scores, best first by the mean of their units."""
    units, size = loaded.units, len(loaded.students)
    weights = score_weights(loaded, units)
    overall = weighted_means(loaded, units, units.student, size)
    others = units.where(~loaded.same("judge", "student"))
    without_self = weighted_means(loaded, others, others.student, size)
    macro = _macro(units, (size, len(loaded.tasks)), weights)
    rows = []
    for rank, code in enumerate(ranked(loaded, overall), start=1):
        mine = units.student == code
        mean, lower, upper = overall.estimate(code)
        fair: Figures = without_self.estimate(code) if without_self.n[code] else (None, None, None)
        rows.append(
            StudentRow(
                rank,
                loaded.students[code],
                *(mean, lower, upper),
                *(float(macro[0][code]), float(macro[1][code]), float(macro[2][code])),
                *fair,
                composite=1.0 + 4.0 * mean,
                valid_evals=int(overall.n[code]),
                responses=len(np.unique(units.response[mine])),
                datapoints=len(np.unique(units.datapoint[mine])),
                unweighted=mean if weights is None else float(units.norm[mine].mean()),
            )
        )
    return tuple(rows)


def _macro(units: Units, shape: tuple[int, int], weights: Floats | None) -> tuple[Floats, Floats, Floats]:
    """Return the mean over tasks of the student's mean in each, with limits; each (S,)."""
    size = shape[0] * shape[1]
    if not len(units):
        return (np.full(shape[0], np.nan),) * 3
    points, point = np.unique(units.datapoint, return_inverse=True)
    cells = point * size + units.student * shape[1] + units.task
    norm = units.norm if weights is None else units.norm * weights
    sums = np.bincount(cells, norm, minlength=len(points) * size).reshape(-1, size)
    counts = np.bincount(cells, weights, minlength=len(points) * size).reshape(-1, size)

    def figure(drawn: Floats) -> Floats:
        means = (drawn[:, :size] / drawn[:, size:]).reshape(-1, *shape)
        has_task = np.isfinite(means)
        macro: Floats = np.where(has_task, means, 0.0).sum(axis=2) / has_task.sum(axis=2)
        return macro

    columns = np.concatenate([sums, counts], axis=1)
    with np.errstate(invalid="ignore", divide="ignore"):
        estimate = figure(columns.sum(axis=0)[None])[0]
    return estimate, *limits(resample(np.arange(len(points)), columns, figure))


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
        yield StudentCell(
            loaded.students[student], dimension, names[value], *means.estimate(cell), units=int(means.n[cell])
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
    """Compare every two students that share datapoints, by scores (D, S): the better first, large differences first."""
    pairs = [(a, b) for a, b in combinations(range(scores.shape[1]), 2) if _common(scores, a, b) > 1]
    if not pairs:
        return ()
    gaps = np.stack([scores[:, a] - scores[:, b] for a, b in pairs], axis=1)
    interval = bootstrap_mean(gaps)
    chances = [two_sided(mean, error) for mean, error in zip(interval.estimate, interval.standard_error, strict=True)]
    corrected = _holm(chances)
    rows = []
    for number, (a, b) in enumerate(pairs):
        mean, low, high = (float(part[number]) for part in interval[:3])
        better, worse = (a, b) if mean >= 0 else (b, a)
        low, high = (low, high) if mean >= 0 else (-high, -low)
        names = (loaded.students[better], loaded.students[worse])
        certain = bool(corrected[number] < SIGNIFICANT)
        rows.append(StudentPair(*names, abs(mean), low, high, chances[number], certain, _common(scores, a, b)))
    return tuple(sorted(rows, key=lambda pair: (-pair.difference, pair.better, pair.worse)))


def _common(scores: Floats, a: int, b: int) -> int:
    return int((~np.isnan(scores[:, a]) & ~np.isnan(scores[:, b])).sum())


def two_sided(mean: float, error: float) -> float:
    """Return the two-sided p-value of a mean with this standard error, under a normal around 0."""
    if error < 1e-12:
        return 1.0 if abs(mean) < 1e-12 else 0.0
    return math.erfc(abs(mean) / error / math.sqrt(2.0))


def _holm(chances: list[float]) -> npt.NDArray[np.float64]:
    """Correct p-values for their number by Holm's step-down method."""
    order = np.argsort(chances)
    scaled = np.array(chances)[order] * np.arange(len(chances), 0, -1)
    corrected = np.empty(len(chances))
    corrected[order] = np.minimum(np.maximum.accumulate(scaled), 1.0)
    return corrected


# Labels: how often students name the one that an item was made with; no judge is asked.

_Labels = dict[tuple[str, str, str], list[tuple[object, str | None]]]


def label_rows(loaded: LoadedRun) -> tuple[tuple[LabelRow, ...], tuple[LabelValueRow, ...]]:
    """Compute accuracy by (student, task, attribute), and by label."""
    rows, values = [], []
    for key, labels in sorted(_labels_by_task(loaded).items()):
        accuracies = label_accuracy(labels)
        accuracy = accuracies.accuracy if accuracies.n_total else None
        counts = (accuracies.n_total, accuracies.n_matched, accuracies.n_skipped)
        rows.append(LabelRow(*key, accuracy, accuracies.strict_accuracy, *counts))
        support = [str(truth) for truth, _ in labels]
        for label, rates in sorted(accuracies.per_label.items()):
            numbers = (rates["precision"], rates["recall"], rates["f1"])
            values.append(LabelValueRow(*key, label, *numbers, support=support.count(label)))
    return tuple(rows), tuple(values)


def hamming_rows(rows: Iterable[LabelRow]) -> tuple[HammingRow, ...]:
    """Average the accuracy of each (student, task) over its label attributes, where it has several."""
    groups: dict[tuple[str, str], list[LabelRow]] = defaultdict(list)
    for row in rows:
        groups[row.student, row.task].append(row)
    return tuple(
        HammingRow(
            *(*key, len(group), hamming_accuracy([row.accuracy for row in group])),
            round(mean(row.strict_accuracy for row in group), 4),
        )
        for key, group in groups.items()
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
