"""A drift shown: who rose or fell and where, every change that was looked at, and what the numbers mean."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby

from p2l.common.cli import counted
from p2l.common.report.reports import (
    Figure,
    Fold,
    Forest,
    ForestRow,
    Measure,
    MetricTable,
    Notes,
    Prose,
    Report,
    Section,
    Verdict,
    percents,
    today,
)
from p2l.common.report.tables import Cell, Column, Scale, Table, Value, number_text
from p2l.common.report.text import table_text
from p2l.insight.drift import Drift, DriftCell

_DRAWN_CHANGES = 20
_DRAWN_CATEGORIES = 12
_TONES = {"rose": "good", "fell": "bad", "": ""}


def drift_text(drift: Drift, *, every: bool = False, top: int | None = None) -> str:
    """Return what rose and fell as a table, or every cell; without any change, the cells of everything.

    `top` is the number of rows, None for all.
    """
    models, titles = {cell.model for cell in drift.cells}, {cell.title for cell in drift.cells}
    least = f" by more than {drift.least_change:g} points" if drift.least_change else ""
    categories = "1 category" if len(titles) == 1 else f"{len(titles):,} categories"
    cells = drift.cells if every else drift.found or [cell for cell in drift.cells if not cell.by]
    lines = [
        f"from {drift.before} to {drift.after}",
        f"cells looked at: {len(drift.cells)}, of {counted(len(models), 'model')} in {categories}, likelihood "
        f"{drift.likelihood}",
        f"changed: {len(drift.found)}{least}, at a false discovery rate of {100 * drift.fdr:.3g}%",
        "",
        *table_text(_table(drift, cells, shown=len(cells)), top),
        *(note if note.startswith("warning: ") else f"note: {note}" for note in drift.notes),
    ]
    return "\n".join(lines)


def drift_figures(drift: Drift) -> list[Figure]:
    """Return the changes of each category for a picture, at most twelve, or of one model all changes in one figure.

    Categories with the most changes come first after that of everything; the largest rise is on top.
    """
    unit = f"change in points, with {drift.level:.0%} interval"
    if len({cell.model for cell in drift.cells}) == 1:
        rows = [_row(cell, cell.title) for cell in drift.cells]
        return [Figure(Forest(rows, "Category", unit, _points), drift.cells[0].model)]
    panels: dict[str, list[DriftCell]] = {}
    for cell in drift.cells:
        panels.setdefault(cell.title, []).append(cell)
    order = sorted(panels.values(), key=lambda cells: (bool(cells[0].by), -sum(bool(cell.verdict) for cell in cells)))
    figures = []
    for cells in order[:_DRAWN_CATEGORIES]:
        rows = [_row(cell, cell.model) for cell in sorted(cells, key=lambda cell: -cell.change)]
        figures.append(Figure(Forest(rows, "Model", unit, _points), cells[0].title))
    return figures


def drift_report(drift: Drift, data: str) -> Report:
    """Return the report of a comparison on `data`, the prompts or votes that it was made with."""
    verdict = _verdict(drift)
    warnings = [note for note in drift.notes if note.startswith("warning: ")]
    for note in warnings:  # a reader must not miss them
        text = note.removeprefix("warning: ").replace("`", "")
        verdict = replace(verdict, reason=f"{verdict.reason} {text[:1].upper()}{text[1:]}")
    found: Table | Prose = Prose("None: every change that was looked at may be chance.", "quiet")
    lead = ""
    if drift.found:
        found = _table(drift, drift.found, shown=10)
        lead = (
            "Changes that are more than chance, the largest first. Rest the pointer on a change for its interval; a "
            "head sorts."
        )
    every = Fold("All changes", [_table(drift, drift.cells, shown=60)], f"{len(drift.cells):,}", "all")
    sections = [
        Section("Changes found", [found], lead),
        *([_map(drift)] if any(cell.by for cell in drift.cells) else []),
        _measures(drift),
        Section("Everything that was looked at", [every]),
    ]
    return Report(
        kind="Drift",
        subject=f"{drift.before} to {drift.after}",
        data=data,
        made=today(),
        verdict=verdict,
        picture=_picture(drift),
        sections=sections,
        facts=[
            ("likelihood", drift.likelihood),
            ("models", f"{len({cell.model for cell in drift.cells}):,}"),
            ("intervals", f"{drift.level:.0%}, over prompts"),
        ],
        notes=[note for note in drift.notes if note not in warnings],
    )


def _verdict(drift: Drift) -> Verdict:
    """Return the largest change that was found, or that none was."""
    looked = f"{len(drift.cells):,} changes were looked at"
    least = f" of more than {drift.least_change:g} points" if drift.least_change else ""
    rule = f"at a false discovery rate of {100 * drift.fdr:.3g}%"
    if not drift.found:
        largest = max(drift.cells, key=lambda cell: abs(cell.change))
        sentence = (
            f"No model rose or fell as far as these prompts show: the largest change, that of {_name(largest)}, is "
            f"{_points(largest.change)} points ({_ends(drift, largest)}), which chance explains."
        )
        return Verdict(sentence, "", f"{looked}; none{least} is found {rule}.")
    first, *rest = drift.found
    change = f"{_name(first)} {first.verdict} by {number_text(abs(first.change), 0)} points"
    more = f", the largest of {len(rest) + 1:,} changes found" if rest else ", the only change found"
    fell = sum(cell.verdict == "fell" for cell in drift.found)
    counts = f"{len(drift.found) - fell:,} rose and {fell:,} fell"
    by = f" by more than {drift.least_change:g} points" if drift.least_change else ""
    reason = f"{looked}; {counts}{by}, {rule}."
    return Verdict(f"{change} ({_ends(drift, first)}){more}.", _TONES[first.verdict], reason)


def _name(cell: DriftCell) -> str:
    return f"{cell.model} in {cell.title}" if cell.by else f"{cell.model} over all prompts"


def _ends(drift: Drift, cell: DriftCell) -> str:
    return f"{drift.level:.0%} interval {_interval(cell)}"


def _points(value: float) -> str:
    text = number_text(value, 0)
    return f"+{text}" if value > 0 and text != "0" else text


def _picture(drift: Drift) -> Figure:
    """Return the changes that were found, or without any those over all prompts, as a forest."""
    found = drift.found
    cells = found or [cell for cell in drift.cells if not cell.by] or list(drift.cells)
    drawn = sorted(cells, key=lambda cell: -abs(cell.change))[:_DRAWN_CHANGES]
    drawn.sort(key=lambda cell: -cell.change)
    if len({cell.model for cell in drift.cells}) == 1:
        name, rows = "Category", [_row(cell, cell.title) for cell in drawn]
    else:
        name, rows = "Model, category", [_row(cell, cell.model, cell.title) for cell in drawn]
    forest = Forest(rows, name, f"Change in points, {drift.level:.0%} interval", _points)
    title = "Changes that were found" if found else "Changes over all prompts, none of them found"
    most = f" The {_DRAWN_CHANGES} largest of {len(cells):,}." if len(cells) > _DRAWN_CHANGES else ""
    return Figure(forest, title, f"To the right of the line a model rose, to the left it fell.{most}")


def _row(cell: DriftCell, name: str, note: str = "") -> ForestRow:
    return ForestRow(name, cell.lower, cell.change, cell.upper, _TONES[cell.verdict], note)


def _table(drift: Drift, cells: Sequence[DriftCell], *, shown: int) -> Table:
    scale = Scale.around([end for cell in cells for end in (cell.lower, cell.upper)], 0.0)
    changes = [
        Cell(
            _points(cell.change),
            cell.change,
            _TONES[cell.verdict],
            _interval(cell),
            bar=(cell.lower, cell.change, cell.upper),
        )
        for cell in cells
    ]
    field = "chance of winning against another model drawn at random; ties count half"
    points = f"with {drift.level:.0%} interval; 400 points are odds of 10 to 1"
    return Table.of(
        (Column("Model", number=False), [cell.model for cell in cells]),
        (Column("Category", number=False), [cell.title for cell in cells]),
        (Column("", number=False), [cell.verdict for cell in cells]),
        (Column("Change in points", 0, points, scale), changes),
        (Column(f"{drift.level:.0%} interval"), [_interval(cell) for cell in cells]),
        (Column("Beats the field before", note=field), [_share(cell.rate_before) for cell in cells]),
        (Column("After", note=field), [_share(cell.rate_after) for cell in cells]),
        (Column("Prompts", 0, "different ones, of the side with fewer"), [cell.prompts for cell in cells]),
        (Column("p", note="chance of as large a change where there is none"), [_chance(cell.p) for cell in cells]),
        (
            Column("q", note="least false discovery rate at which the change is found", page_only=True),
            [_chance(cell.q) for cell in cells],
        ),
        shown=shown,
    )


def _interval(cell: DriftCell) -> str:
    return f"{_points(cell.lower)} to {_points(cell.upper)}"


def _share(value: float) -> Cell:
    return Cell(percents(value), value)


def _chance(value: float) -> Cell:
    return Cell(f"{value:.4f}" if value >= 5e-5 else "<0.0001", value)


def _map(drift: Drift) -> Section:
    """Return a row for each model, a column for each category, coloured where a change was found."""
    titles = list(dict.fromkeys(cell.title for cell in drift.cells))
    by_model = {
        name: {cell.title: cell for cell in cells}
        for name, cells in groupby(sorted(drift.cells, key=lambda cell: cell.model), key=lambda cell: cell.model)
    }
    most = max((abs(cell.change) for cell in drift.found), default=1.0)

    def colour(cell: DriftCell | None) -> Cell | None:
        if cell is None:
            return None
        heat = cell.change / most if cell.verdict else 0.0
        return Cell(_points(cell.change), cell.change, note=_interval(cell), heat=heat)

    rows: list[list[Value]] = [
        [name, *(colour(cells.get(title)) for title in titles)] for name, cells in sorted(by_model.items())
    ]
    lead = "Changes in points by model and category. Blue rose, orange fell; without a colour it may be chance."
    table = Table([Column("Model", number=False), *(Column(title) for title in titles)], rows, shown=20)
    return Section("By category", [table], lead)


def _measures(drift: Drift) -> Section:
    titles = {cell.title for cell in drift.cells}
    widths = sorted((cell.upper - cell.lower) / 2 for cell in drift.cells)
    rows = [
        Measure(
            "Looked at",
            f"{len(drift.cells):,}",
            "",
            f"Changes of a model in a category; {len(titles):,} categories, all prompts together among them.",
        ),
        Measure(
            "Found",
            f"{len(drift.found):,}",
            "",
            f"Changes that the procedure of Benjamini and Hochberg finds: of these about {100 * drift.fdr:.3g}% are "
            "chance. With many changes some intervals lie off zero by chance, and are not counted.",
        ),
        Measure(
            "Half an interval",
            f"{number_text(widths[len(widths) // 2], 0)} points",
            f"{number_text(widths[0], 0)} to {number_text(widths[-1], 0)}",
            "The median and the range over all changes: what is much smaller cannot be seen with these prompts.",
        ),
    ]
    if drift.least_change:
        meaning = "Changes of no more than this do not count."
        rows.append(Measure("Least change", f"{drift.least_change:g} points", "", meaning))
    points = (
        "A change is that of a model's score against the field's: 400 points are odds of 10 to 1. It is seen, not "
        "explained: other opponents or prompts on one side can look like one."
    )
    return Section("Metrics", [MetricTable(rows), Notes([points])])
