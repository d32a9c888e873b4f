"""Writing reports: a folder with `index.html` for each, and the portal that leads to them and to the workbook.

Pages hold style, script and figures themselves: they open from a disk without a network, so no library of charts lies
beside them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from coeval.analysis.coverage import CompleteReport, SliceRow, SummaryReport
from coeval.analysis.students import StudentReport
from coeval.analysis.tables import Columns
from coeval.analysis.units import Header, Report
from coeval.reports.filters import cube, joined
from coeval.reports.pieces import frame, table
from coeval.reports.registry import PAGES, resolve
from coeval.reports.students import ranking
from p2l.common.report.tables import render, write_page

PORTAL, WORKBOOK = "index.html", "complete_report.xlsx"


def finding(name: str, report: Report) -> list[str]:
    """Return the sentences that the page of a report, one of `PAGES`, begins with; none if it has nothing to show."""
    sentences: list[str] = resolve(PAGES[name].finding)(report)
    return sentences


def write(
    name: str,
    report: Report,
    folder: str | Path,
    slices: Columns[SliceRow] | None = None,
    *,
    siblings: Sequence[str] = (),
) -> Path | None:
    """Write a report, one of `PAGES`, as `index.html` into a folder; None, and no file, if it has nothing to show.

    Raise InputError if it cannot be written.

    Args:
        slices: raw slices of the same run (`CompleteReport.raw`), which filters in the browser work on; without them
            the page has no filters.
        siblings: reports in folders beside this one, which the page links to.
    """
    if not finding(name, report):
        return None
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
    context["finding"] = finding(name, report)
    text = render(f"coeval.reports/{name}.html", cube=sums, dimensions=page.dimensions.split(), **context)
    return write_page(text, Path(folder) / PORTAL)


def write_all(
    reports: Mapping[str, Report], complete: CompleteReport, folder: str | Path, *, with_workbook: bool = True
) -> Path:
    """Write each report that has something to show into the folder of its name, and a portal to all and the workbook.

    Raise InputError if a file cannot be written.
    """
    home = Path(folder)
    sums = {
        live: cube(complete.header, complete.raw, with_sums=live) if len(complete.raw) else "" for live in (True, False)
    }
    pages = tuple(name for name, report in reports.items() if finding(name, report))
    for name in reports:
        (home / name / PORTAL).unlink(missing_ok=True)  # of another run, which had something to show there
    for name in pages:
        _write(name, reports[name], home / name, sums[PAGES[name].live], pages)
    return write_page(_portal(reports, complete, pages, with_workbook=with_workbook), home / PORTAL)


# The portal: what the run shows in a few lines, and the way to every report.

_SPOKEN = (
    "student_report",
    "pairs",
    "teacher_report",
)  # whose findings the portal begins with; the first has judges too


def _portal(
    reports: Mapping[str, Report], complete: CompleteReport, pages: Sequence[str], *, with_workbook: bool
) -> str:
    students = reports.get("student_report")
    context = {
        **frame(complete.header, "Reports", "Students answer what teachers ask; judges score the answers."),
        "ranking": ranking(students) if isinstance(students, StudentReport) else None,
        "models": table(complete.models, complete.header),
        "finding": _spoken(reports, complete.header),
        "cards": [(f"{name}/{PORTAL}", PAGES[name]) for name in pages],
        "without": [page.title for name, page in PAGES.items() if name in reports and name not in pages],
        "workbook": WORKBOOK if with_workbook else None,
    }
    return render("coeval.reports/portal.html", cube="", dimensions=(), **context)


def _spoken(reports: Mapping[str, Report], header: Header) -> list[str]:
    """Return what the portal begins with."""
    names = [name for name in _SPOKEN if name in reports and (name != "pairs" or header.verdicts)]
    return [sentence for name in names for sentence in finding(name, reports[name])]


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
