"""What a run has and what it lacks, and the slices that the workbook and the live page stand on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import product
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from coeval.analysis.agreement import judge_rows
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
    SummaryCell,
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


def _rows(loaded: Loaded) -> tuple[CoverageRow, ...]:
    """Every (task, teacher) with items against every student that answers or should, and every judge."""
    found = loaded.evaluations
    keys = list(zip(*(getattr(found, name).tolist() for name in _COUNTED), strict=True))
    actual, valid, failed = Counter(keys), Counter[Any](), Counter[Any]()
    for key, is_valid, has_failed in zip(keys, found.valid.tolist(), found.failed.tolist(), strict=True):
        valid[key] += is_valid
        failed[key] += has_failed
    items = Counter(zip(loaded.datapoint_task.tolist(), loaded.datapoint_teacher.tolist(), strict=True))
    everyone = product(sorted(items), range(len(loaded.students)), range(len(loaded.judges)))
    expected = {(*item, student, judge) for item, student, judge in everyone if _judges(loaded, item[0], judge)}
    return tuple(
        CoverageRow(
            **_named(loaded, key),
            expected=items[key[0], key[1]] if key in expected else 0,
            actual=actual[key],
            valid=valid[key],
            failed=failed[key],
        )
        for key in sorted({*expected, *actual})
    )


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


def slices(loaded: Loaded, *, by_factor: bool = True) -> tuple[SliceRow, ...]:
    """Figures of every (task, teacher, student, judge[, factor]) that was evaluated."""
    found, units = loaded.evaluations, loaded.units
    codes = [getattr(found, name) for name in _COUNTED]
    groups, group = _combined(codes)
    total = np.bincount(group, minlength=len(groups))
    valid = np.bincount(group, found.valid, minlength=len(groups)).astype(np.int64)
    width = len(loaded.factors) if by_factor else 1
    unit_group: Codes = group[units.evaluation] if len(units) else np.zeros(0, np.int64)
    inner = units.factor if by_factor else np.zeros(len(units), np.int64)
    cells = unit_group * width + inner
    size = len(groups) * width
    means = Summaries(cells, units.norm, size)
    levels = level_counts(loaded, cells, np.arange(len(units)), size)
    shown = np.flatnonzero(means.n) if by_factor else np.arange(size)
    rows = []
    for cell in shown.tolist():
        owner, factor = divmod(cell, width)
        names = _named(loaded, groups[owner].tolist())
        known = bool(means.n[cell])
        rows.append(
            SliceRow(
                **names,
                factor=loaded.factors[factor] if by_factor else "",
                total=int(total[owner]),
                valid=int(valid[owner]),
                invalid=int(total[owner] - valid[owner]),
                mean=float(means.mean[cell]) if known else None,
                sd=float(means.sd[cell]) if known else None,
                high=int(levels[cell, 0]),
                medium=int(levels[cell, 1]),
                low=int(levels[cell, 2]),
                is_self_judging=names["judge"] == names["student"],
                is_self_teaching=names["teacher"] == names["student"],
            )
        )
    return tuple(rows)


def _named(loaded: Loaded, codes: Sequence[int]) -> dict[str, str]:
    """Task, teacher, student and judge of codes."""
    return {name: loaded.names(name)[code] for name, code in zip(_COUNTED, codes, strict=True)}


def _combined(columns: list[Codes]) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    if not len(columns[0]):
        return np.zeros((0, len(columns)), np.int64), np.zeros(0, np.int64)
    groups, group = np.unique(np.stack(columns, axis=1), axis=0, return_inverse=True)
    return groups, group.reshape(-1)


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
        cells=_summary_cells(loaded),
    )


def _summary_cells(loaded: Loaded) -> tuple[SummaryCell, ...]:
    dimensions = (*_COUNTED, "factor")
    groups, group = _combined([getattr(loaded.units, name) for name in dimensions])
    n, sums = np.bincount(group, minlength=len(groups)), np.bincount(group, loaded.units.norm, minlength=len(groups))
    return tuple(
        SummaryCell(
            **_named(loaded, codes[:4]),
            factor=loaded.factors[codes[4]],
            units=int(n[number]),
            total=float(sums[number]),
        )
        for number, codes in enumerate(groups.tolist())
    )
