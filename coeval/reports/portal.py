"""The portal: what the run says in a few lines, and the way to every report."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from coeval.analysis.results import (
    CompleteReport,
    JudgeReport,
    ModelRow,
    PairsReport,
    Report,
    StudentReport,
    TeacherReport,
)
from coeval.reports.frame import notes_of
from coeval.reports.student_report import ranking
from coeval.reports.tables import Notes, estimate, name_cell, named_table
from p2l.report import Column, Table, Value

__all__ = ["parts"]


def parts(results: Mapping[str, Report], complete: CompleteReport) -> dict[str, Any]:
    """What the template shows."""
    notes = notes_of(complete.header)
    students = results.get("student_report")
    return {
        "ranking": ranking(students.students, notes) if isinstance(students, StudentReport) else None,
        "models": _models(complete.models, notes),
        "findings": _findings(results),
        "contents": [],
    }


def _models(models: tuple[ModelRow, ...], notes: Notes) -> Table | None:
    columns = [
        Column("model", number=False),
        Column("as student", note="mean score"),
        Column("as teacher: V1", 4, note="how far its items set students apart"),
        Column("as judge: SPA", 3, note="how far peers agree with it"),
        Column("as judge: κ", 3, note="the same beyond chance"),
    ]
    rows: list[list[Value]] = [
        [
            name_cell("model", row.model, notes),
            estimate(row.student_mean, row.student_lower, row.student_upper),
            row.v1,
            row.spa,
            row.kappa,
        ]
        for row in models
    ]
    return named_table(columns, rows, barred=[1])


def _findings(results: Mapping[str, Report]) -> list[str]:
    """One sentence for each role."""
    pairs = results.get("pairs")
    students, teachers, judges = (results.get(f"{role}_report") for role in ("student", "teacher", "judge"))
    made = [
        _students(students) if isinstance(students, StudentReport) else None,
        _teachers(teachers) if isinstance(teachers, TeacherReport) else None,
        _judges(judges) if isinstance(judges, JudgeReport) else None,
        _pairs(pairs) if isinstance(pairs, PairsReport) else None,
    ]
    return [sentence for sentence in made if sentence]


def _students(report: StudentReport) -> str | None:
    if not report.students:
        return None
    best = report.students[0]
    text = f"{best.student} answers best, with a mean score of {best.mean:.3f}"
    beaten = sum(pair.significant and pair.better == best.student for pair in report.pairs)
    others = len(report.students) - 1
    return f"{text}; it is ahead of {beaten} of {others} others beyond chance." if others else f"{text}."


def _pairs(report: PairsReport) -> str | None:
    """Of a run without scores alone: there the other pages have nothing to show."""
    if report.header.units or not report.native:
        return None
    text = f"The run has no scores but {report.header.verdicts:,} verdicts on pairs, by which the page of pairs ranks"
    best = next((row for row in report.rows if row.rank == 1), None)
    return f"{text}: {best.student} is preferred most." if best is not None else f"{text}."


def _teachers(report: TeacherReport) -> str | None:
    if not report.teachers or report.one_student:
        return None
    if len(report.teachers) < 2:
        return None
    return f"Items of {report.teachers[0].teacher} tell students apart best, by {report.formula.upper()}."


def _judges(report: JudgeReport) -> str | None:
    ranked = [row for row in report.judges if row.rank is not None]
    if not ranked or report.degenerate:
        return None
    whole = next((row for row in report.reliability if row.scope == "all"), None)
    alpha = "" if whole is None or whole.alpha_interval is None else f"; α of all judges is {whole.alpha_interval:.2f}"
    if len(ranked) == 2:  # each is the only peer of the other
        names = f"{ranked[0].judge} and {ranked[1].judge}"
        return f"{names} gave equal scores to {ranked[0].spa:.0%} of what both scored{alpha}."
    return f"Peers agree most with {ranked[0].judge}{alpha}."
