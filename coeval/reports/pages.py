"""Writing reports: a folder with `index.html` for each, the portal, the workbook.

Pages hold style, script and figures themselves: they open from a disk without a network, so no library of charts lies
beside them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coeval.analysis.results import (
    Columns,
    CompleteReport,
    JudgeReport,
    ModelRow,
    PairsReport,
    Report,
    SliceRow,
    StudentReport,
    SummaryReport,
    TeacherReport,
)
from coeval.reports import judges, pairs, robust, students
from coeval.reports.filters import cube, joined
from coeval.reports.pieces import Notes, Place, estimate, frame, name_cell, named_table, notes_of
from coeval.reports.students import ranking
from p2l.common.report.tables import Column, Table, Value, render, write_page

PORTAL, WORKBOOK = "index.html", "complete_report.xlsx"


@dataclass(frozen=True)
class Page:
    """A report: its title and what it is about."""

    title: str
    about: str
    live: bool = False
    """Whether filters compute figures anew, for which the page holds sums of scores; else they hide rows alone."""


PAGES: Mapping[str, Page] = {
    "summary": Page("Summary", "Students ranked by the judges and teachers that you trust.", live=True),
    "student_report": Page("Students", "Who answers best, overall and where, and how sure that is.", live=True),
    "pairs": Page("Pairs", "Students ranked by which of two answers is preferred, overall and by task."),
    "teacher_report": Page("Teachers", "Whose items tell students apart.", live=True),
    "judge_report": Page("Judges", "How far judges agree with each other, and their biases."),
    "score_distribution": Page(
        "Score distribution", "How High, Medium and Low spread over models, tasks and factors.", live=True
    ),
    "interaction_matrix": Page("Teachers and students", "Which students do well on whose items.", live=True),
    "judge_consistency": Page("Consistency of judges", "How each judge uses the scale, by attribute and over time."),
    "robust_summary": Page("Robust ranking", "The ranking on items on which good judges were of one mind."),
    "coverage_summary": Page("Coverage", "What the run should hold, what it holds, and what of that can be used."),
}
"""Folder name -> page, in the order of the portal."""


def write(
    name: str,
    result: Report,
    folder: str | Path,
    slices: Columns[SliceRow] | None = None,
    *,
    siblings: Sequence[str] = (),
) -> Path:
    """Write a report as `index.html` into a folder.

    Args:
        name: one of `PAGES`.
        result: what its module shows.
        slices: raw slices of the same run (`CompleteReport.raw`), which filters in the browser work on; without them
            the page has no filters.
        siblings: reports in folders beside this one, which the page links to.

    Raises:
        InputError: the file cannot be written.
    """
    data = cube(result.header, slices, with_sums=PAGES[name].live) if slices is not None and len(slices) else ""
    return _write(name, result, folder, data, siblings)


def _write(name: str, result: Report, folder: str | Path, data: str, siblings: Sequence[str]) -> Path:
    """The same with the constant that filters work on."""
    (parts, dimensions), page = _contents()[name], PAGES[name]
    if data and isinstance(result, SummaryReport):
        data = joined(data, choices(result))
    if data and isinstance(result, StudentReport) and result.header.weights:
        data = joined(data, {"weights": result.header.weights})
    shown = {**frame(result.header, page.title, page.about, _place(name, siblings)), **parts(result)}
    text = render(f"coeval.reports/{name}.html", cube=data, dimensions=dimensions, **shown)
    return write_page(text, Path(folder) / PORTAL)


def _contents() -> dict[str, tuple[Callable[[Any], dict[str, Any]], tuple[str, ...]]]:
    """Of every page what its template shows of a report, and the dimensions that it is filtered by."""
    return {
        "summary": (summary_report_parts, SUMMARY_REPORT_DIMENSIONS),
        "student_report": (students.student_report_parts, students.STUDENT_REPORT_DIMENSIONS),
        "pairs": (pairs.pairs_report_parts, pairs.PAIRS_REPORT_DIMENSIONS),
        "judge_report": (judges.judge_report_parts, judges.JUDGE_REPORT_DIMENSIONS),
        "judge_consistency": (judges.judge_consistency_parts, judges.JUDGE_CONSISTENCY_DIMENSIONS),
        "teacher_report": (students.teacher_report_parts, students.TEACHER_REPORT_DIMENSIONS),
        "interaction_matrix": (students.interaction_matrix_parts, students.INTERACTION_MATRIX_DIMENSIONS),
        "score_distribution": (students.score_distribution_parts, students.SCORE_DISTRIBUTION_DIMENSIONS),
        "robust_summary": (robust.robust_summary_parts, robust.ROBUST_SUMMARY_DIMENSIONS),
        "coverage_summary": (robust.coverage_summary_parts, robust.COVERAGE_SUMMARY_DIMENSIONS),
    }


def _place(name: str, siblings: Sequence[str]) -> Place:
    if not siblings:
        return Place()
    links = [(f"../{one}/{PORTAL}", PAGES[one].title, one == name) for one in PAGES if one in siblings]
    return Place([(f"../{PORTAL}", "All reports", False), *links])


def write_all(results: Mapping[str, Report], complete: CompleteReport, folder: str | Path) -> Path:
    """Write every report into its folder, and a portal that leads to them and to the workbook beside it.

    Args:
        results: folder name -> report.
        complete: of the same run.

    Returns:
        The path of the portal.

    Raises:
        InputError: a file cannot be written.
    """
    home = Path(folder)
    data = {
        live: cube(complete.header, complete.raw, with_sums=live) if len(complete.raw) else "" for live in (True, False)
    }
    for name, result in results.items():
        _write(name, result, home / name, data[PAGES[name].live], tuple(results))
    return write_page(_portal(results, complete), home / PORTAL)


def _portal(results: Mapping[str, Report], complete: CompleteReport) -> str:

    header = complete.header
    cards = [(f"{name}/{PORTAL}", page) for name, page in PAGES.items() if name in results]
    about = "Students answer what teachers ask; judges score the answers."
    shown: dict[str, Any] = {**frame(header, "Reports", about, Place()), **portal_parts(results, complete)}
    return render("coeval.reports/portal.html", cube="", dimensions=(), cards=cards, workbook=WORKBOOK, **shown)


# The portal: what the run says in a few lines, and the way to every report.


def portal_parts(results: Mapping[str, Report], complete: CompleteReport) -> dict[str, Any]:
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


# Report summary-report: a dashboard on which readers choose judges and teachers, and students are ranked anew.

SUMMARY_REPORT_DIMENSIONS = ("student", "task", "factor", "judge", "teacher")
_TEACHERS = ("v1", "s2", "r3")
_JUDGES = ("weighted_spa", "weighted_wpa", "weighted_kappa")


def summary_report_parts(result: SummaryReport) -> dict[str, Any]:
    """What the template shows."""
    return {
        "ranking": ranking(result.students, notes_of(result.header)),
        "teachers": len(result.teachers),
        "judges": len(result.judges),
        "lone": [
            row.judge for row in result.judges if row.units and all(getattr(row, name) is None for name in _JUDGES)
        ],
        "contents": [("live", "Choose and rank"), ("ranking", "Ranking on all scores")],
    }


def choices(result: SummaryReport) -> dict[str, Any]:
    """What the script of the page chooses by: scores of teachers and judges, where thresholds begin, ranks on all."""
    return {
        "teachers": {row.teacher: [getattr(row, name) for name in _TEACHERS] for row in result.teachers},
        "judges": {row.judge: [getattr(row, name) for name in _JUDGES] for row in result.judges},
        "thresholds": {"teacher": result.teacher_threshold, "judge": result.judge_threshold},
        "ranks": {row.student: row.rank for row in result.students},
        **({"weights": result.header.weights} if result.header.weights else {}),
    }
