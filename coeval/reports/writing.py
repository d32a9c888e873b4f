"""Writing reports: a folder with `index.html` for each, the portal, the workbook.

Pages hold style, script and figures themselves: they open from a disk without a network, so no library of charts lies
beside them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from coeval.analysis.columns import Columns
from coeval.analysis.results import CompleteReport, Report, SliceRow, StudentReport, SummaryReport
from coeval.reports.cube import cube, joined
from coeval.reports.frame import Place, frame
from p2l.report import render, write_page

__all__ = ["PAGES", "PORTAL", "WORKBOOK", "Page", "write", "write_all"]

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
    module, page = import_module(f"coeval.reports.{name}"), PAGES[name]
    if data and isinstance(result, SummaryReport):
        data = joined(data, module.choices(result))
    if data and isinstance(result, StudentReport) and result.header.weights:
        data = joined(data, {"weights": result.header.weights})
    shown = {**frame(result.header, page.title, page.about, _place(name, siblings)), **module.parts(result)}
    text = render(f"coeval.reports/{name}.html", cube=data, dimensions=module.DIMENSIONS, **shown)
    return write_page(text, Path(folder) / PORTAL)


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
    from coeval.reports.portal import parts

    header = complete.header
    cards = [(f"{name}/{PORTAL}", page) for name, page in PAGES.items() if name in results]
    about = "Students answer what teachers ask; judges score the answers."
    shown: dict[str, Any] = {**frame(header, "Reports", about, Place()), **parts(results, complete)}
    return render("coeval.reports/portal.html", cube="", dimensions=(), cards=cards, workbook=WORKBOOK, **shown)
