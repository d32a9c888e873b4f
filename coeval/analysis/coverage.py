"""What a run has and what it lacks, and the slices that the workbook and the live pages stand on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from math import prod

import numpy as np

from coeval.analysis.agreement import judge_rows
from coeval.analysis.columns import Columns
from coeval.analysis.distribution import level_counts
from coeval.analysis.resampling import Summaries
from coeval.analysis.results import (
    CompleteReport,
    CountRow,
    CoverageRow,
    CoverageSummary,
    ModelRow,
    SliceRow,
    StrataRow,
    SummaryReport,
)
from coeval.analysis.students import student_rows
from coeval.analysis.teachers import teacher_rows
from coeval.analysis.units import Codes, Loaded

__all__ = ["complete_report", "coverage_summary", "slices", "summary_report"]

_COUNTED = ("task", "teacher", "student", "judge")
_RARE = 2


def coverage_summary(loaded: Loaded) -> CoverageSummary:
    """Report coverage-summary."""
    strata = tuple(_strata(loaded, code, name) for code, name in enumerate(loaded.tasks))
    return CoverageSummary(loaded.header, dict(loaded.about.meta), tuple(_counts(loaded)), _rows(loaded), strata)


def _counts(loaded: Loaded) -> Iterator[CountRow]:
    """Records as they are stored, by phase and by who is named in them."""
    totals, failed = Counter[tuple[str, str, str]](), Counter[tuple[str, str, str]]()
    for (phase, *names, is_failed), number in loaded.counts.items():
        for dimension, name in (("all", ""), *zip(_COUNTED, names, strict=True)):
            if name or dimension == "all":
                totals[phase, dimension, str(name)] += number
                failed[phase, dimension, str(name)] += number if is_failed else 0
    for key in sorted(totals):
        yield CountRow(*key, records=totals[key], failed=failed[key])


def _rows(loaded: Loaded) -> Columns[CoverageRow]:
    """Every (task, teacher) with items against every student that answers or should, and every judge."""
    found, sizes = loaded.evaluations, tuple(len(loaded.names(name)) for name in _COUNTED)
    stored = _flat([getattr(found, name) for name in _COUNTED], sizes)
    items = np.bincount(_flat([loaded.datapoint_task, loaded.datapoint_teacher], sizes[:2]), minlength=prod(sizes[:2]))
    expected = _expected(loaded, np.flatnonzero(items), sizes)
    keys = np.unique(np.concatenate([expected, stored]))
    place, size = np.searchsorted(keys, stored), len(keys)
    return Columns(
        CoverageRow,
        _names(loaded),
        {
            **dict(zip(_COUNTED, _codes(keys, sizes), strict=True)),
            "expected": np.where(np.isin(keys, expected), items[keys // prod(sizes[2:])] if size else 0, 0),
            "actual": np.bincount(place, minlength=size),
            "valid": np.bincount(place[found.valid], minlength=size),
            "failed": np.bincount(place[found.failed], minlength=size),
        },
    )


def _expected(loaded: Loaded, with_items: Codes, sizes: Sequence[int]) -> Codes:
    """Keys that should have evaluations."""
    owes = np.array(
        [[_judges(loaded, task, judge) for judge in range(sizes[3])] for task in range(sizes[0])], dtype=bool
    )
    task, teacher = np.divmod(with_items, max(sizes[1], 1))
    owner, student, judge = (part.ravel() for part in np.indices((len(with_items), sizes[2], sizes[3])))
    keys = _flat([task[owner], teacher[owner], student, judge], sizes)
    return keys[owes[task[owner], judge]] if len(keys) else keys


def _flat(codes: Sequence[Codes], sizes: Sequence[int]) -> Codes:
    """One key for each row of codes, in their order."""
    key = np.zeros(len(codes[0]), dtype=np.int64)
    for column, size in zip(codes, sizes, strict=True):
        key = key * size + column
    return key


def _codes(keys: Codes, sizes: Sequence[int]) -> tuple[Codes, ...]:
    """The codes that keys were made of."""
    return np.unravel_index(keys, sizes) if len(keys) else tuple(keys for _ in sizes)


def _names(loaded: Loaded) -> dict[str, Sequence[str]]:
    return {name: loaded.names(name) for name in _COUNTED}


def _judges(loaded: Loaded, task: int, judge: int) -> bool:
    """Whether a judge has anything to score in a task."""
    required = loaded.about.required(loaded.kinds[judge], loaded.tasks[task])
    return required is None or len(required) > 0


def _strata(loaded: Loaded, code: int, task: str) -> StrataRow:
    declared = loaded.about.tasks[task].attributes if task in loaded.about.tasks else {}
    items = [loaded.attributes[point] for point in np.flatnonzero(loaded.datapoint_task == code)]
    sizes = [len(set(values)) for values in declared.values()]
    strata, values = (prod(sizes) if sizes else 0), sum(sizes)
    seen = Counter(
        tuple(item[name] for name in declared)
        for item in items
        if all(item.get(name) in allowed for name, allowed in declared.items())
    )
    shown = {(name, item[name]) for item in items for name in declared if item.get(name) in declared[name]}
    covered = len(seen) if strata else 0
    return StrataRow(
        task,
        strata,
        covered,
        coverage=covered / strata if strata else None,
        rare=sum(number <= _RARE for number in seen.values()) if strata else 0,
        values=values,
        values_covered=len(shown),
        value_coverage=len(shown) / values if values else None,
    )


def slices(loaded: Loaded, *, by_factor: bool = True) -> Columns[SliceRow]:
    """Figures of every (task, teacher, student, judge[, factor]) that was evaluated."""
    found, units, sizes = loaded.evaluations, loaded.units, tuple(len(loaded.names(name)) for name in _COUNTED)
    keys, group = np.unique(_flat([getattr(found, name) for name in _COUNTED], sizes), return_inverse=True)
    factors = loaded.factors if by_factor else ("",)
    cells = group[units.evaluation] * len(factors) + (units.factor if by_factor else 0)
    size = len(keys) * len(factors)
    means = Summaries(cells, units.norm, size)
    shown = np.flatnonzero(means.n) if by_factor else np.arange(size)
    owner, factor = np.divmod(shown, max(len(factors), 1))
    codes = dict(zip(_COUNTED, _codes(keys[owner], sizes), strict=True))
    total = np.bincount(group, minlength=len(keys))[owner]
    valid = np.bincount(group[found.valid], minlength=len(keys))[owner]
    levels = level_counts(loaded, cells, np.arange(len(units)), size)[shown]
    known = means.n[shown] > 0
    return Columns(
        SliceRow,
        {**_names(loaded), "factor": factors},
        {
            **codes,
            "factor": factor,
            "total": total,
            "valid": valid,
            "invalid": total - valid,
            "mean": np.where(known, means.mean[shown], np.nan),
            "sd": np.where(known, means.sd[shown], np.nan),
            **{name: levels[:, place] for place, name in enumerate(("high", "medium", "low"))},
            "is_self_judging": loaded.matching("judge", "student")[codes["judge"]] == codes["student"],
            "is_self_teaching": loaded.matching("teacher", "student")[codes["teacher"]] == codes["student"],
        },
    )


def complete_report(loaded: Loaded) -> CompleteReport:
    """Report complete-report: the sheets of the workbook."""
    students = {row.student: row for row in student_rows(loaded)}
    teachers = {row.teacher: row for row in teacher_rows(loaded)}
    judges = {row.judge: row for row in judge_rows(loaded)}
    rows = []
    for model in sorted({*loaded.students, *loaded.teachers, *loaded.judges}):
        student, teacher, judge = students.get(model), teachers.get(model), judges.get(model)
        rows.append(
            ModelRow(
                model,
                student_mean=student.mean if student else None,
                student_lower=student.lower if student else None,
                student_upper=student.upper if student else None,
                student_evals=student.valid_evals if student else 0,
                v1=teacher.v1 if teacher else None,
                s2=teacher.s2 if teacher else None,
                r3=teacher.r3 if teacher else None,
                spa=judge.weighted_spa if judge else None,
                wpa=judge.weighted_wpa if judge else None,
                kappa=judge.weighted_kappa if judge else None,
            )
        )
    return CompleteReport(loaded.header, slices(loaded), slices(loaded, by_factor=False), tuple(rows))


def summary_report(loaded: Loaded) -> SummaryReport:
    """Report summary-report."""
    teachers, judges = teacher_rows(loaded), judge_rows(loaded)
    spa = [row.weighted_spa for row in judges if row.rank is not None and row.weighted_spa is not None]
    return SummaryReport(
        loaded.header,
        student_rows(loaded),
        teachers,
        judges,
        teacher_threshold=float(np.median([row.v1 for row in teachers])) if teachers else 0.0,
        judge_threshold=float(np.median(spa)) if spa else 0.0,
    )
