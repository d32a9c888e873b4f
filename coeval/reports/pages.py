"""Writing reports: a folder with `index.html` for each, and the portal that leads to them and to the workbook."""

# Pages hold style, script and figures themselves: they open from a disk without a network, so no library of charts lies
# beside them.

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np

from coeval.analysis.coverage import CompleteReport, ModelRow, SliceRow, SummaryReport
from coeval.analysis.students import StudentReport
from coeval.analysis.tables import Columns
from coeval.analysis.units import Header, Report
from coeval.pairs.board import PairsReport
from coeval.reports.judges import pairs_context
from coeval.reports.pieces import describe, frame, table
from coeval.reports.registry import PAGES, resolve
from coeval.reports.students import ranking
from p2l.common.files import atomic_path
from p2l.common.report.tables import render, write_page
from p2l.common.spreadsheets import MOST_ROWS, Sheet, SheetColumn, column_of, write_sheets

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
        sums = _joined(sums, _choices(report))
    if sums and isinstance(report, StudentReport) and report.header.weights:
        sums = _joined(sums, {"weights": report.header.weights})
    links = [
        (f"../{folder}/{PORTAL}", entry.title, folder == name) for folder, entry in PAGES.items() if folder in siblings
    ]
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

# Reports that the portal begins with; the findings of the first tell of judges too.
_SPOKEN = ("student_report", "pairs", "teacher_report")


def _portal(
    reports: Mapping[str, Report], complete: CompleteReport, pages: Sequence[str], *, with_workbook: bool
) -> str:
    students, pairs = reports.get("student_report"), reports.get("pairs")
    spoken = [name for name in _SPOKEN if name in reports and (name != "pairs" or complete.header.verdicts)]
    context = {
        **frame(complete.header, "Reports", "Students answer what teachers ask; judges score the answers."),
        "ranking": ranking(students) if isinstance(students, StudentReport) else None,
        "pairs": pairs_context(pairs)["overall"] if isinstance(pairs, PairsReport) and pairs.rows else None,
        "models": table(complete.models, complete.header),
        "finding": list(dict.fromkeys(sentence for name in spoken for sentence in finding(name, reports[name]))),
        "cards": [(f"{name}/{PORTAL}", PAGES[name]) for name in pages],
        "without": [page.title for name, page in PAGES.items() if name in reports and name not in pages],
        "workbook": WORKBOOK if with_workbook else None,
    }
    return render("coeval.reports/portal.html", cube="", dimensions=(), **context)


# Summary: a dashboard on which readers choose judges and teachers, and students are ranked anew.

_TEACHERS = ("v1", "s2", "r3")
_JUDGES = ("weighted_spa", "weighted_wpa", "weighted_kappa")


def summary_context(report: SummaryReport) -> dict[str, Any]:
    """Return the context of the page of the summary."""
    return {
        "ranking": ranking(report),
        "teachers": len(report.teachers),
        "judges": len(report.judges),
        "lone": [
            row.judge for row in report.judges if row.units and all(getattr(row, name) is None for name in _JUDGES)
        ],
    }


def _choices(report: SummaryReport) -> dict[str, Any]:
    """Return the figures that the script chooses by: scores of teachers and judges, first thresholds, ranks on all."""
    return {
        "teachers": {row.teacher: [getattr(row, name) for name in _TEACHERS] for row in report.teachers},
        "judges": {row.judge: [getattr(row, name) for name in _JUDGES] for row in report.judges},
        "thresholds": {"teacher": report.teacher_threshold, "judge": report.judge_threshold},
        "ranks": {row.student: row.rank for row in report.students},
        **({"weights": report.header.weights} if report.header.weights else {}),
    }


# The workbook: raw slices, combinations of models, and models in all their roles.

SHEETS = ("Raw slices", "Aggregated", "Models")
_TITLES = {"v1": "V1", "s2": "S2", "r3": "R3", "spa": "SPA", "wpa": "WPA"}


def write_workbook(complete: CompleteReport, path: str | Path) -> Path:
    """Write the three sheets, or `Raw slices 2` and so on if one has no room. Raise InputError if it fails."""
    raw, whole = complete.raw, complete.aggregated
    models = [column.name for column in fields(ModelRow)]
    sheets = [
        *_sheets(SHEETS[0], raw, list(raw.values)),
        *_sheets(SHEETS[1], whole, [name for name in whole.values if name != "factor"]),
        Sheet(SHEETS[2], [column_of(_title(name), (getattr(row, name) for row in complete.models)) for name in models]),
    ]
    header = complete.header
    about = f"{header.units:,} scores of {header.evaluations:,} evaluations; status {header.status}."
    about += " Partial: numbers may still change." if header.partial else ""
    with atomic_path(path) as temporary:
        write_sheets(temporary, sheets, title=header.experiment_id, about=about)
    return Path(path)


def _sheets(name: str, table: Columns[Any], columns: Sequence[str]) -> Iterator[Sheet]:
    """Yield the table, on as many sheets as its rows need."""
    for start in range(0, max(len(table), 1), MOST_ROWS):
        rows = table.where(np.arange(start, min(start + MOST_ROWS, len(table))))
        number = f" {start // MOST_ROWS + 1}" if start else ""
        yield Sheet(f"{name}{number}", [_column(rows, column) for column in columns])


def _column(table: Columns[Any], name: str) -> SheetColumn:
    different, place = np.unique(table.values[name], return_inverse=True)
    values = different.tolist()
    if name in table.names:
        values = [table.names[name][code] for code in values]
    # NaN, the one value that is not itself, becomes an empty cell.
    return SheetColumn(_title(name), [None if value != value else value for value in values], place.tolist())


def _title(name: str) -> str:
    return _TITLES.get(name, name.replace("is_", "").replace("_", " "))


# The scores that a page filters in the browser: sums by (task, teacher, student, judge, factor), as one constant.
#
# A run with 20 models in every role has 128,000 such sums, few of them different; so a page holds the different ones,
# and for each place of the cube which of them it has: about 0.3 MB. Names and texts may hold anything, `</script>` too.
#
# Shapes: N slices, R runs of neighbours, K different sums.

DIMENSIONS = ("task", "teacher", "student", "judge", "factor")
_UNSAFE = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"}


def embedded(value: Any) -> str:
    """Return JSON for a `<script>` element, in which nothing can end the element or start a comment."""
    from markupsafe import Markup

    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    for letter, code in _UNSAFE.items():
        text = text.replace(letter, code)
    return Markup(text)


def cube(header: Header, slices: Columns[SliceRow], *, with_sums: bool = True) -> str:
    """Return names of each dimension that have scores, notes on them and, if asked for, the sums.

    `sums` are [scores, total, High, Medium, Low]. Places of the cube are counted with the factor fastest; `runs` are
    pairs of a place and how many stand there without a gap, `sum` says of each which of the sums it has.
    """
    scored = slices.where((slices.values["valid"] > 0) & np.isfinite(slices.values["mean"]))
    used = {dimension: np.unique(scored.values[dimension], return_inverse=True) for dimension in DIMENSIONS}
    names = {dimension: [scored.names[dimension][code] for code in codes] for dimension, (codes, _) in used.items()}
    notes = {
        dimension: {name: note for name in members if (note := describe(header, dimension, name))}
        for dimension, members in names.items()
    }
    if not with_sums:
        return embedded({"names": names, "notes": notes})
    place = np.zeros(len(scored), dtype=np.int64)
    for dimension in DIMENSIONS:
        place = place * len(names[dimension]) + used[dimension][1]
    order = np.argsort(place, kind="stable")
    # Sorted places (N,) as (2 R,) starts and lengths of runs without a gap; -2: the first place, even 0, starts a run.
    places = place[order]
    starts = np.flatnonzero(np.diff(places, prepend=-2) != 1)
    lengths = np.diff(starts, append=len(places))
    runs = np.stack([places[starts], lengths], axis=1).ravel().tolist()
    return embedded({"names": names, "notes": notes, **_sums(scored.where(order)), "runs": runs})


def _joined(constant: str, more: Mapping[str, Any]) -> str:
    """Return the constant with further keys."""
    from markupsafe import Markup

    return Markup(f"{constant[:-1]},{embedded(more)[1:]}")


def _sums(slices: Columns[SliceRow]) -> dict[str, Any]:
    """Return the distinct sums, (K, 5), the most frequent first, and the one of each slice, (N,)."""
    values = slices.values
    total = np.round(values["mean"] * values["valid"], 6)
    table = np.stack([values["valid"], total, *(values[name] for name in ("high", "medium", "low"))], axis=1)
    different, which, counts = np.unique(table, axis=0, return_inverse=True, return_counts=True)
    order = np.argsort(-counts, kind="stable")
    rank = np.empty(len(order), dtype=np.int64)
    rank[order] = np.arange(len(order))
    rows = [[int(value) if value.is_integer() else value for value in row] for row in different[order].tolist()]
    return {"sums": rows, "sum": rank[which.reshape(-1)].tolist()}
