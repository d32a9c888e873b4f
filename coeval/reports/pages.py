"""Writing reports: a folder with `index.html` for each, and the portal that leads to them and to the workbook.

Pages hold style, script and figures themselves: they open from a disk without a network, so no library of charts lies
beside them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from coeval.analysis.agreement import JudgeReport
from coeval.analysis.coverage import CompleteReport, SliceRow, SummaryReport
from coeval.analysis.students import StudentReport
from coeval.analysis.tables import Columns
from coeval.analysis.teachers import TeacherReport
from coeval.analysis.units import Report
from coeval.pairs.board import PairsReport
from coeval.reports.filters import cube, joined
from coeval.reports.pieces import frame, table
from coeval.reports.registry import PAGES, resolve
from coeval.reports.students import ranking
from p2l.common.report.tables import render, write_page

PORTAL, WORKBOOK = "index.html", "complete_report.xlsx"


def write(
    name: str,
    report: Report,
    folder: str | Path,
    slices: Columns[SliceRow] | None = None,
    *,
    siblings: Sequence[str] = (),
) -> Path:
    """Write a report, one of `PAGES`, as `index.html` into a folder. Raise InputError if it cannot be written.

    Args:
        slices: raw slices of the same run (`CompleteReport.raw`), which filters in the browser work on; without them
            the page has no filters.
        siblings: reports in folders beside this one, which the page links to.
    """
    sums = cube(report.header, slices, with_sums=PAGES[name].live) if slices is not None and len(slices) else ""
    return _write(name, report, folder, sums, siblings)


def _write(name: str, report: Report, folder: str | Path, sums: str, siblings: Sequence[str]) -> Path:
    """Write a page with the constant that its filters work on."""
    page = PAGES[name]
    if sums and isinstance(report, SummaryReport):
        sums = joined(sums, choices(report))
    if sums and isinstance(report, StudentReport) and report.header.weights:
        sums = joined(sums, {"weights": report.header.weights})
    links = [(f"../{one}/{PORTAL}", page.title, one == name) for one, page in PAGES.items() if one in siblings]
    links = [(f"../{PORTAL}", "All reports", False), *links] if siblings else []
    context = {**frame(report.header, page.title, page.about, links), **resolve(page.context)(report)}
    text = render(f"coeval.reports/{name}.html", cube=sums, dimensions=page.dimensions.split(), **context)
    return write_page(text, Path(folder) / PORTAL)


def write_all(
    reports: Mapping[str, Report], complete: CompleteReport, folder: str | Path, *, with_workbook: bool = True
) -> Path:
    """Write each report into the folder of its name, and a portal to all, and to the workbook where there is one.

    Raise InputError if a file cannot be written.
    """
    home = Path(folder)
    sums = {
        live: cube(complete.header, complete.raw, with_sums=live) if len(complete.raw) else "" for live in (True, False)
    }
    for name, report in reports.items():
        _write(name, report, home / name, sums[PAGES[name].live], tuple(reports))
    return write_page(_portal(reports, complete, with_workbook=with_workbook), home / PORTAL)


# The portal: what the run shows in a few lines, and the way to every report.


def _portal(reports: Mapping[str, Report], complete: CompleteReport, *, with_workbook: bool) -> str:
    students = reports.get("student_report")
    context = {
        **frame(complete.header, "Reports", "Students answer what teachers ask; judges score the answers."),
        "ranking": ranking(students) if isinstance(students, StudentReport) else None,
        "models": table(complete.models, complete.header),
        "findings": _findings(reports),
        "cards": [(f"{name}/{PORTAL}", page) for name, page in PAGES.items() if name in reports],
        "workbook": WORKBOOK if with_workbook else None,
    }
    return render("coeval.reports/portal.html", cube="", dimensions=(), **context)


def _findings(reports: Mapping[str, Report]) -> list[str]:
    """Return one sentence for each role."""
    writers: Mapping[str, Callable[[Any], str | None]] = {
        "student_report": _students,
        "teacher_report": _teachers,
        "judge_report": _judges,
        "pairs": _pairs,
    }
    sentences = [write_sentence(reports[name]) for name, write_sentence in writers.items() if name in reports]
    return [sentence for sentence in sentences if sentence]


def _students(report: StudentReport) -> str | None:
    if not report.students:
        return None
    best = report.students[0]
    text = f"{best.student} answers best, with a mean score of {best.mean:.3f}"
    beaten = sum(pair.significant and pair.better == best.student for pair in report.pairs)
    others = len(report.students) - 1
    return f"{text}; it is ahead of {beaten} of {others} others beyond chance." if others else f"{text}."


def _pairs(report: PairsReport) -> str | None:
    """Describe a run that has verdicts alone: there the other pages have nothing to show."""
    if report.header.units or not report.native:
        return None
    text = f"The run has no scores but {report.header.verdicts:,} verdicts on pairs, by which the page of pairs ranks"
    best = next((row for row in report.rows if row.rank == 1), None)
    return f"{text}: {best.student} is preferred most." if best is not None else f"{text}."


def _teachers(report: TeacherReport) -> str | None:
    if len(report.teachers) < 2 or report.one_student:
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


# Summary: a dashboard on which readers choose judges and teachers, and students are ranked anew.

_TEACHERS = ("v1", "s2", "r3")
_JUDGES = ("weighted_spa", "weighted_wpa", "weighted_kappa")


def summary_context(report: SummaryReport) -> dict[str, Any]:
    """Return what the summary shows."""
    return {
        "ranking": ranking(report),
        "teachers": len(report.teachers),
        "judges": len(report.judges),
        "lone": [
            row.judge for row in report.judges if row.units and all(getattr(row, name) is None for name in _JUDGES)
        ],
    }


def choices(report: SummaryReport) -> dict[str, Any]:
    """Return what the script chooses by: scores of teachers and judges, where thresholds begin, ranks on all."""
    return {
        "teachers": {row.teacher: [getattr(row, name) for name in _TEACHERS] for row in report.teachers},
        "judges": {row.judge: [getattr(row, name) for name in _JUDGES] for row in report.judges},
        "thresholds": {"teacher": report.teacher_threshold, "judge": report.judge_threshold},
        "ranks": {row.student: row.rank for row in report.students},
        **({"weights": report.header.weights} if report.header.weights else {}),
    }
