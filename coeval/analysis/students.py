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
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations
from statistics import NormalDist, mean
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from coeval.analysis.results import (
    HammingRow,
    LabelRow,
    LabelValueRow,
    PairPower,
    StudentCell,
    StudentPair,
    StudentRow,
    TeacherCell,
    TeacherRow,
    VarianceRow,
)
from coeval.analysis.statistics import Summaries, group_means, resample
from coeval.analysis.units import Codes, Floats, Loaded, Pairs, Units, once
from coeval.judging.labels import hamming_accuracy, label_accuracy, predicted_label
from p2l.common.bootstrap import limits
from p2l.metrics import bootstrap_mean

# How well a teacher's items tell students apart.
#
# mu(s; t, k, a) is the mean over datapoints of student s's judge-mean score, for teacher t, task k, factor a.
# * V1(t): mean over (k, a) of the variance (n - 1) of mu across students. * R3(t): mean over (k, a) of max - min of mu.
# * S2(t): mean over (datapoint, factor) of the standard deviation (n - 1) across students of the judge-mean score; the
#   square root of V1, a different quantity that also goes by that name, is given beside it.
# What fewer than two students answered tells nothing and is left out; where nothing is left all are 0.

Numbers = npt.NDArray[Any]


@dataclass(frozen=True)
class _Discrimination:
    """Of each stratum: V1, S2, R3."""

    v1: Floats
    s2: Floats
    r3: Floats


def teacher_rows(loaded: Loaded, formula: str = "v1") -> tuple[TeacherRow, ...]:
    """Teachers with scores, best first by `formula`."""
    size = len(loaded.teachers)
    found = _discrimination(loaded.pairs, loaded.pairs.teacher, np.arange(len(loaded.pairs)), size)
    items = np.bincount(loaded.datapoint_teacher, minlength=size)
    units = np.bincount(loaded.units.teacher, minlength=size)
    order = sorted(
        (teacher for teacher in range(size) if units[teacher]),
        key=lambda teacher: (-getattr(found, formula)[teacher], loaded.teachers[teacher]),
    )
    return tuple(
        TeacherRow(
            rank,
            loaded.teachers[teacher],
            v1=float(found.v1[teacher]),
            s2=float(found.s2[teacher]),
            r3=float(found.r3[teacher]),
            root_v1=float(np.sqrt(found.v1[teacher])),
            items=int(items[teacher]),
            units=int(units[teacher]),
        )
        for rank, teacher in enumerate(order, start=1)
    )


def teacher_cells(loaded: Loaded) -> tuple[TeacherCell, ...]:
    """The same by factor, task and attribute value."""
    return tuple(cell for name in ("factor", "task", "attribute") for cell in _teacher_cells(loaded, name))


def _teacher_cells(loaded: Loaded, dimension: str) -> list[TeacherCell]:
    names = loaded.names(dimension)
    rows, values = loaded.grouped(loaded.pairs, dimension)
    strata = loaded.pairs.teacher[rows] * len(names) + values
    size = len(loaded.teachers) * len(names)
    found = _discrimination(loaded.pairs, strata, rows, size)
    unit_rows, unit_values = loaded.grouped(loaded.units, dimension)
    unit_strata = loaded.units.teacher[unit_rows] * len(names) + unit_values
    n = np.bincount(unit_strata, minlength=size)
    mean = np.bincount(unit_strata, loaded.units.norm[unit_rows], minlength=size) / np.maximum(n, 1)
    return [
        TeacherCell(
            loaded.teachers[stratum // len(names)],
            dimension,
            names[stratum % len(names)],
            *(float(found.v1[stratum]), float(found.s2[stratum]), float(found.r3[stratum]), float(mean[stratum])),
            units=int(n[stratum]),
        )
        for stratum in np.flatnonzero(n)
    ]


def _discrimination(pairs: Pairs, strata: Numbers, rows: Numbers, size: int) -> _Discrimination:
    """V1, S2 and R3 of strata, which rows of pairs may be in several of."""
    factor, scores, student = pairs.factor[rows], pairs.mean[rows], pairs.student[rows]
    task_cell = np.stack([strata, pairs.task[rows], factor], axis=1)
    means, owners = _means(np.column_stack([task_cell, student]), scores)
    spread, stretch, stratum = _spread(owners[:, :3], means)
    item_cell = np.stack([strata, pairs.datapoint[rows], factor], axis=1)
    by_item, item_owners = _means(np.column_stack([item_cell, student]), scores)
    item_spread, _, item_stratum = _spread(item_owners[:, :3], by_item)
    return _Discrimination(
        _average(stratum, spread, size),
        _average(item_stratum, np.sqrt(item_spread), size),
        _average(stratum, stretch, size),
    )


def _codes(keys: Numbers) -> tuple[Numbers, Numbers]:
    """The distinct rows of keys (N, K), and which of them each row is."""
    codes = np.zeros(len(keys), dtype=np.int64)
    for column in keys.T:
        codes = np.unique(codes * (int(column.max(initial=0)) + 1) + column, return_inverse=True)[1]
    _, first = np.unique(codes, return_index=True)
    return keys[first], codes


def _means(keys: Numbers, values: Floats) -> tuple[Floats, Numbers]:
    owners, codes = _codes(keys)
    return np.bincount(codes, values, minlength=len(owners)) / np.bincount(codes, minlength=len(owners)), owners


def _spread(cells: Numbers, means: Floats) -> tuple[Floats, Floats, Numbers]:
    """Variance and range across students in each cell with two or more, and the cell's stratum."""
    owners, codes = _codes(cells)
    n = np.bincount(codes, minlength=len(owners))
    centre = np.bincount(codes, means, minlength=len(owners)) / np.maximum(n, 1)
    squares = np.bincount(codes, (means - centre[codes]) ** 2, minlength=len(owners))
    high, low = np.full(len(owners), -np.inf), np.full(len(owners), np.inf)
    np.maximum.at(high, codes, means)
    np.minimum.at(low, codes, means)
    enough = n > 1
    return squares[enough] / (n[enough] - 1), (high - low)[enough], owners[enough, 0]


def _average(strata: Numbers, values: Floats, size: int) -> Floats:
    n = np.bincount(strata, minlength=size)
    average: Floats = np.bincount(strata, values, minlength=size) / np.maximum(n, 1)
    return average


# How often students name the label that an item was made with; no judge is asked.

_Said = dict[tuple[str, str, str], list[tuple[object, str | None]]]


def label_rows(loaded: Loaded) -> tuple[tuple[LabelRow, ...], tuple[LabelValueRow, ...]]:
    """Accuracy by (student, task, attribute), and by label."""
    rows, values = [], []
    for key, said in sorted(_said(loaded).items()):
        found = label_accuracy(said)
        accuracy = found.accuracy if found.n_total else None
        rows.append(LabelRow(*key, accuracy, found.strict_accuracy, found.n_total, found.n_matched, found.n_skipped))
        support = [str(truth) for truth, _ in said]
        for label, rates in sorted(found.per_label.items()):
            numbers = (rates["precision"], rates["recall"], rates["f1"])
            values.append(LabelValueRow(*key, label, *numbers, support=support.count(label)))
    return tuple(rows), tuple(values)


def hamming_rows(rows: Iterable[LabelRow]) -> tuple[HammingRow, ...]:
    """Mean accuracy of each (student, task) over its label attributes, where it has several."""
    groups: dict[tuple[str, str], list[LabelRow]] = defaultdict(list)
    for row in rows:
        groups[row.student, row.task].append(row)
    return tuple(
        HammingRow(
            *key,
            len(group),
            hamming_accuracy(group),
            round(mean(row.strict_accuracy for row in group), 4),
        )
        for key, group in groups.items()
        if len(group) > 1
    )


def _said(loaded: Loaded) -> _Said:
    """(student, task, attribute) -> the right label and the one said, of each response."""
    found: _Said = defaultdict(list)
    for key, truth, said in _labels(loaded):
        found[key].append((truth, said))
    return found


def _labels(loaded: Loaded) -> Iterator[tuple[tuple[str, str, str], str, str | None]]:
    for response, text in sorted(loaded.texts.items()):
        datapoint = int(loaded.response_datapoint[response])
        if datapoint < 0:
            continue
        task = loaded.tasks[loaded.datapoint_task[datapoint]]
        student = loaded.students[loaded.response_student[response]]
        for attribute in loaded.about.tasks[task].label_attributes:
            truth = loaded.attributes[datapoint].get(attribute)
            if truth is not None:
                yield (student, task, attribute), truth, predicted_label(text, attribute)


# What each score counts in a student's means: the weight of its factor in its task.
#
# Shapes: N scores, K tasks, F factors.


class OfFactors(Protocol):
    """A table of scores."""

    @property
    def task(self) -> Codes:
        """(N,)."""
        ...

    @property
    def factor(self) -> Codes:
        """(N,)."""
        ...


@once
def factor_weights(loaded: Loaded) -> Floats | None:
    """The weight of each factor in each task, (K, F); None where all count alike."""
    weights = np.ones((len(loaded.tasks), len(loaded.factors)))
    for row, task in enumerate(loaded.tasks):
        about = loaded.about.tasks.get(task)
        for factor, weight in about.weights.items() if about is not None else ():
            if factor in loaded.factors:
                weights[row, loaded.factors.index(factor)] = weight
    return None if (weights == 1.0).all() else weights


def score_weights(loaded: Loaded, table: OfFactors) -> Floats | None:
    """The weight of each score of a table, (N,); None where all count alike."""
    weights = factor_weights(loaded)
    if weights is None:
        return None
    found: Floats = weights[table.task, table.factor]
    return found


_DIMENSIONS = ("task", "factor", "judge", "teacher", "attribute")
SIGNIFICANT = 0.05


@once
def student_rows(loaded: Loaded) -> tuple[StudentRow, ...]:
    """Students with scores, best first by the mean of their units."""
    units, size = loaded.units, len(loaded.students)
    weights = score_weights(loaded, units)
    overall = group_means(units.student, units.norm, units.datapoint, size, weights)
    others = units.where(~loaded.same("judge", "student"))
    fair = group_means(others.student, others.norm, others.datapoint, size, score_weights(loaded, others))
    macro = _macro(units, (size, len(loaded.tasks)), weights)
    order = sorted(np.flatnonzero(overall.n), key=lambda one: (-overall.mean[one], loaded.students[one]))
    return tuple(
        _row(loaded, rank, int(one), overall, fair, macro, weighted=weights is not None)
        for rank, one in enumerate(order, start=1)
    )


def _row(
    loaded: Loaded,
    rank: int,
    one: int,
    overall: Summaries,
    fair: Summaries,
    macro: tuple[Floats, Floats, Floats],
    *,
    weighted: bool,
) -> StudentRow:
    mine = loaded.units.student == one
    without = [float(column[one]) if fair.n[one] else None for column in (fair.mean, fair.lower, fair.upper)]
    return StudentRow(
        rank,
        loaded.students[one],
        mean=float(overall.mean[one]),
        lower=float(overall.lower[one]),
        upper=float(overall.upper[one]),
        macro=float(macro[0][one]),
        macro_lower=float(macro[1][one]),
        macro_upper=float(macro[2][one]),
        without_self=without[0],
        without_self_lower=without[1],
        without_self_upper=without[2],
        composite=1.0 + 4.0 * float(overall.mean[one]),
        valid_evals=int(overall.n[one]),
        responses=len(np.unique(loaded.units.response[mine])),
        datapoints=len(np.unique(loaded.units.datapoint[mine])),
        unweighted=float(loaded.units.norm[mine].mean()) if weighted else float(overall.mean[one]),
    )


def _macro(units: Units, shape: tuple[int, int], weights: Floats | None) -> tuple[Floats, Floats, Floats]:
    """Mean over tasks of the student's mean in each, with limits; each (S,)."""
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
        known = np.isfinite(means)
        macro: Floats = np.where(known, means, 0.0).sum(axis=2) / known.sum(axis=2)
        return macro

    columns = np.concatenate([sums, counts], axis=1)
    with np.errstate(invalid="ignore", divide="ignore"):
        estimate = figure(columns.sum(axis=0)[None])[0]
    return estimate, *limits(resample(np.arange(len(points)), columns, figure))


def student_cells(loaded: Loaded) -> tuple[StudentCell, ...]:
    """Means by task, factor, judge, teacher and attribute value."""
    return tuple(cell for dimension in _DIMENSIONS for cell in _cells(loaded, dimension))


def _cells(loaded: Loaded, dimension: str) -> Iterator[StudentCell]:
    names = loaded.names(dimension)
    rows, values = loaded.grouped(loaded.units, dimension)
    units = loaded.units.where(rows)
    size = len(loaded.students) * len(names)
    weights = score_weights(loaded, units)
    means = group_means(units.student * len(names) + values, units.norm, units.datapoint, size, weights)
    for cell in np.flatnonzero(means.n):
        student, value = divmod(int(cell), len(names))
        numbers = (float(means.mean[cell]), float(means.lower[cell]), float(means.upper[cell]))
        yield StudentCell(loaded.students[student], dimension, names[value], *numbers, units=int(means.n[cell]))


def by_datapoint(loaded: Loaded) -> Floats:
    """Mean score of each student on each datapoint, weighted by factor, (D, S); NaN where it has none."""
    shape = (len(loaded.datapoints), len(loaded.students))
    cells = loaded.units.datapoint * shape[1] + loaded.units.student
    weights = score_weights(loaded, loaded.units)
    norm = loaded.units.norm if weights is None else loaded.units.norm * weights
    n = np.bincount(cells, weights, minlength=shape[0] * shape[1])
    sums = np.bincount(cells, norm, minlength=shape[0] * shape[1])
    with np.errstate(invalid="ignore"):
        means: Floats = np.where(n > 0, sums / np.where(n > 0, n, 1), np.nan).reshape(shape)
    return means


def student_pairs(loaded: Loaded) -> tuple[StudentPair, ...]:
    """Every two students that share datapoints, the better first; largest differences first."""
    scores = by_datapoint(loaded)
    pairs = [(a, b) for a, b in combinations(range(scores.shape[1]), 2) if _common(scores, a, b) > 1]
    if not pairs:
        return ()
    gaps = np.stack([scores[:, a] - scores[:, b] for a, b in pairs], axis=1)
    interval = bootstrap_mean(gaps)
    chances = [two_sided(mean, error) for mean, error in zip(interval.estimate, interval.standard_error, strict=True)]
    corrected = _holm(chances)
    found = []
    for number, (a, b) in enumerate(pairs):
        mean, low, high = (float(part[number]) for part in interval[:3])
        better, worse = (a, b) if mean >= 0 else (b, a)
        low, high = (low, high) if mean >= 0 else (-high, -low)
        names = (loaded.students[better], loaded.students[worse])
        certain = bool(corrected[number] < SIGNIFICANT)
        found.append(StudentPair(*names, abs(mean), low, high, chances[number], certain, _common(scores, a, b)))
    return tuple(sorted(found, key=lambda pair: (-pair.difference, pair.better, pair.worse)))


def _common(scores: Floats, a: int, b: int) -> int:
    return int((~np.isnan(scores[:, a]) & ~np.isnan(scores[:, b])).sum())


def two_sided(mean: float, error: float) -> float:
    """The chance of a mean so far from 0, if it were normal around 0 with this standard error."""
    if error < 1e-12:
        return 1.0 if abs(mean) < 1e-12 else 0.0
    return math.erfc(abs(mean) / error / math.sqrt(2.0))


def _holm(chances: list[float]) -> npt.NDArray[np.float64]:
    """p-values corrected for their number: step down from the smallest."""
    order = np.argsort(chances)
    scaled = np.array(chances)[order] * np.arange(len(chances), 0, -1)
    corrected = np.empty(len(chances))
    corrected[order] = np.minimum(np.maximum.accumulate(scaled), 1.0)
    return corrected


# How many items separate two students, and where the variance of scores comes from.
#
# A two-sided test at 5 % of the mean difference d over n datapoints, with standard deviation sd of the difference on
# one,
# finds it with power Phi(|d| sqrt(n) / sd - 1.96); 80 % needs n = ((1.960 + 0.842) sd / d)^2.
#
# Variance components: y = mu + student + teacher + item + judge + factor + student x item + residual, all random, by
# Henderson's first method: T_f = sum over levels l of f of (sum of y in l)^2 / n_l has expectation
# N mu^2 + sum over g of sigma_g^2 sum_l sum_m n_lm^2 / n_l + levels(f) sigma_e^2, a linear system in the variances that
# needs no balance. Estimates below 0 are shown as 0.

_CERTAIN = NormalDist().inv_cdf(0.975)
_FOUND = NormalDist().inv_cdf(0.8)


def needed_items(difference: float, sd: float) -> int | None:
    """Datapoints for 80 % power; None without a difference."""
    if abs(difference) < 1e-9:
        return None
    return max(2, math.ceil(((_CERTAIN + _FOUND) * sd / difference) ** 2))


def test_power(difference: float, sd: float, datapoints: int) -> float:
    """The chance that the test finds the difference."""
    if sd < 1e-12:
        return 1.0 if abs(difference) > 1e-12 else 0.05
    shift = abs(difference) * math.sqrt(datapoints) / sd
    return NormalDist().cdf(shift - _CERTAIN) + NormalDist().cdf(-shift - _CERTAIN)


def pair_power(loaded: Loaded) -> tuple[PairPower, ...]:
    """Of every two students that share datapoints; those that need most last."""
    scores, found = by_datapoint(loaded), []
    for a, b in combinations(range(scores.shape[1]), 2):
        gaps = scores[:, a] - scores[:, b]
        gaps = gaps[~np.isnan(gaps)]
        if len(gaps) < 2:
            continue
        mean, sd = float(gaps.mean()), float(gaps.std(ddof=1))
        names = (loaded.students[a], loaded.students[b]) if mean >= 0 else (loaded.students[b], loaded.students[a])
        power = test_power(mean, sd, len(gaps))
        found.append(PairPower(*names, abs(mean), sd, len(gaps), needed_items(mean, sd), power))
    return tuple(sorted(found, key=lambda row: (row.needed or math.inf, row.better, row.worse)))


def variance_rows(loaded: Loaded) -> tuple[VarianceRow, ...]:
    """Variance components of all units."""
    units = loaded.units
    sources = {
        "student": units.student,
        "teacher": units.teacher,
        "item": units.datapoint,
        "judge": units.judge,
        "factor": units.task * max(len(loaded.factors), 1) + units.factor,
        "student x item": units.response,
    }
    found = variance_components(units.norm, sources)
    total = sum(found.values())
    return tuple(VarianceRow(name, value, value / total if total else 0.0) for name, value in found.items())


def variance_components(values: Floats, sources: Mapping[str, Codes]) -> dict[str, float]:
    """Variance of each source that varies, and `residual`; sources that coincide with one before are left out."""
    if len(values) < 2:
        return {}
    values = values - values.mean()
    levels = _distinct({name: np.unique(codes, return_inverse=True)[1] for name, codes in sources.items()})
    names, n = list(levels), len(values)
    matrix, right = np.zeros((len(names) + 1, len(names) + 1)), np.zeros(len(names) + 1)
    base = np.array([float((np.bincount(levels[name]) ** 2).sum()) / n for name in names] + [1.0])
    for row, name in enumerate(names):
        counts = np.bincount(levels[name])
        right[row] = float((np.bincount(levels[name], values) ** 2 / counts).sum())
        matrix[row] = [_shared(levels[name], counts, levels[other]) for other in names] + [len(counts)]
    matrix[-1] = n
    right[-1] = float((values**2).sum())
    solved = np.linalg.lstsq(matrix - base, right, rcond=None)[0]
    return dict(zip([*names, "residual"], np.maximum(solved, 0.0).tolist(), strict=True))


def _distinct(levels: Mapping[str, Codes]) -> dict[str, Codes]:
    """Sources with more than one level and fewer than values, each different from those before."""
    kept: dict[str, Codes] = {}
    for name, codes in levels.items():
        size = int(codes.max()) + 1
        alike = any(int(other.max()) + 1 == size and _joint(codes, other) == size for other in kept.values())
        if 1 < size < len(codes) and not alike:
            kept[name] = codes
    return kept


def _joint(one: Codes, other: Codes) -> int:
    return len(np.unique(one * (int(other.max()) + 1) + other))


def _shared(codes: Codes, counts: Codes, other: Codes) -> float:
    """Sum over levels l of one and m of the other of n_lm^2 / n_l."""
    width = int(other.max()) + 1
    cells, joint = np.unique(codes * width + other, return_counts=True)
    return float((joint.astype(np.float64) ** 2 / counts[cells // width]).sum())
