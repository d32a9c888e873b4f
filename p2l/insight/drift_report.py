"""The page of a drift: who rose or fell and where, every change that was looked at, and what the numbers mean."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby

from p2l.common.report.reports import (
    Figure,
    Fold,
    Forest,
    ForestRow,
    Measure,
    MetricTable,
    Notes,
    Part,
    Prose,
    Report,
    Section,
    Verdict,
    percents,
    today,
)
from p2l.common.report.tables import Cell, Column, Scale, Table, Value, number_text
from p2l.insight.drift import Drift, DriftCell

_DRAWN = 20  # changes in the picture
_TONES = {"rose": "good", "fell": "bad", "": ""}


def drift_report(drift: Drift, data: str) -> Report:
    """Return the report of a comparison on `data`, the prompts or votes that it was made with."""
    verdict = drift_verdict(drift)
    warnings = [note for note in drift.notes if note.startswith("warning: ")]
    for note in warnings:  # a reader must not miss them
        text = note.removeprefix("warning: ").replace("`", "")
        verdict = replace(verdict, reason=f"{verdict.reason} {text[:1].upper()}{text[1:]}")
    sections = [_changes(drift), *([_map(drift)] if _categories(drift) else []), _measures(drift), _every_cell(drift)]
    return Report(
        "Drift",
        f"{drift.before} to {drift.after}",
        data,
        today(),
        verdict,
        _picture(drift),
        sections,
        [
            ("likelihood", drift.likelihood),
            ("models", f"{len({cell.model for cell in drift.cells}):,}"),
            ("intervals", f"{drift.level:.0%}, over prompts"),
        ],
        [note for note in drift.notes if note not in warnings],
    )


def drift_verdict(drift: Drift) -> Verdict:
    """Return the largest change that was found, or that none was."""
    looked = f"{len(drift.cells):,} changes were looked at"
    least = f" of more than {drift.least_change:g} points" if drift.least_change else ""
    rule = f"at a false discovery rate of {100 * drift.fdr:.3g}%"
    if not drift.found:
        largest = max(drift.cells, key=lambda cell: abs(cell.change))
        sentence = (
            f"No model rose or fell as far as these prompts show: the largest change{_of(largest)} is "
            f"{_points(largest.change)} points ({_ends(drift, largest)}), which chance explains."
        )
        return Verdict(sentence, "", f"{looked}; none{least} is found {rule}.")
    first, *others = drift.found
    change = f"{_name(first)} {first.verdict} by {number_text(abs(first.change), 0)} points"
    more = f", the largest of {len(others) + 1:,} changes found" if others else ", the only change found"
    fell = sum(cell.verdict == "fell" for cell in drift.found)
    counts = f"{len(drift.found) - fell:,} rose and {fell:,} fell"
    return Verdict(
        f"{change} ({_ends(drift, first)}){more}.",
        _TONES[first.verdict],
        f"{looked}; {counts}{' by' + least.removeprefix(' of') if least else ''}, {rule}.",
    )


def _name(cell: DriftCell) -> str:
    return f"{cell.model} in {cell.title}" if cell.by else f"{cell.model} over all prompts"


def _of(cell: DriftCell) -> str:
    return f", that of {_name(cell)},"


def _ends(drift: Drift, cell: DriftCell) -> str:
    return f"{drift.level:.0%} interval {_points(cell.lower)} to {_points(cell.upper)}"


def _points(value: float) -> str:
    text = number_text(value, 0)
    return f"+{text}" if value > 0 and text != "0" else text


def _picture(drift: Drift) -> Figure:
    """Return the changes that were found, or without any those over all prompts, as a forest."""
    found = drift.found
    cells = found or [cell for cell in drift.cells if not cell.by] or list(drift.cells)
    drawn = sorted(cells, key=lambda cell: -abs(cell.change))[:_DRAWN]
    one_model = len({cell.model for cell in drift.cells}) == 1
    rows = [
        ForestRow(
            cell.title if one_model else cell.model,
            cell.lower,
            cell.change,
            cell.upper,
            _TONES[cell.verdict],
            "" if one_model else cell.title,
        )
        for cell in sorted(drawn, key=lambda cell: -cell.change)
    ]
    unit = f"Change in points, {drift.level:.0%} interval"
    forest = Forest(rows, "Category" if one_model else "Model, category", unit, _points)
    what = "Changes that were found" if found else "Changes over all prompts, none of them found"
    most = f" The {_DRAWN} largest of {len(cells):,}." if len(cells) > _DRAWN else ""
    return Figure(forest, what, f"To the right of the line a model rose, to the left it fell.{most}")


def _changes(drift: Drift) -> Section:
    lead = (
        "Changes that are more than chance, the largest first. Rest the pointer on a change for its interval; a head "
        "sorts."
    )
    if not drift.found:
        return Section("Changes found", [Prose("None: every change that was looked at may be chance.", "quiet")])
    return Section("Changes found", [_table(drift, drift.found, shown=10)], lead)


def _table(drift: Drift, cells: Sequence[DriftCell], *, shown: int) -> Table:
    scale = Scale.around([end for cell in cells for end in (cell.lower, cell.upper)], 0.0)
    rows: list[list[Value]] = [
        [
            cell.model,
            cell.title,
            Cell(
                _points(cell.change),
                cell.change,
                _TONES[cell.verdict],
                f"{_points(cell.lower)} to {_points(cell.upper)}",
                (cell.lower, cell.change, cell.upper),
            ),
            Cell(percents(cell.rate_before), cell.rate_before),
            Cell(percents(cell.rate_after), cell.rate_after),
            cell.prompts,
            _chance(cell.p),
            _chance(cell.q),
        ]
        for cell in cells
    ]
    field = "chance of winning against another model drawn at random; ties count half"
    heads = [
        Column("Model", number=False),
        Column("Category", number=False),
        Column("Change in points", 0, f"with {drift.level:.0%} interval; 400 points are odds of 10 to 1", scale),
        Column("Beats the field before", note=field),
        Column("After", note=field),
        Column("Prompts", 0, "different ones, of the side with fewer"),
        Column("p", note="chance of as large a change where there is none"),
        Column("q", note="least false discovery rate at which the change is found"),
    ]
    return Table(heads, rows, shown=shown)


def _chance(value: float) -> Cell:
    return Cell(f"{value:.4f}" if value >= 5e-5 else "<0.0001", value)


def _categories(drift: Drift) -> list[str]:
    return list(dict.fromkeys(cell.title for cell in drift.cells if cell.by))


def _map(drift: Drift) -> Section:
    """Return a row for each model, a column for each category, coloured where a change was found."""
    titles = list(dict.fromkeys(cell.title for cell in drift.cells))
    by_model = {
        name: {cell.title: cell for cell in cells}
        for name, cells in groupby(sorted(drift.cells, key=lambda cell: cell.model), key=lambda cell: cell.model)
    }
    most = max((abs(cell.change) for cell in drift.found), default=1.0)

    def shown(cell: DriftCell | None) -> Cell | None:
        if cell is None:
            return None
        note = f"{_points(cell.lower)} to {_points(cell.upper)}"
        return Cell(_points(cell.change), cell.change, note=note, heat=cell.change / most if cell.verdict else 0.0)

    rows: list[list[Value]] = [
        [name, *(shown(cells.get(title)) for title in titles)] for name, cells in sorted(by_model.items())
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


def _every_cell(drift: Drift) -> Section:
    parts: list[Part] = [Fold("All changes", [_table(drift, drift.cells, shown=60)], f"{len(drift.cells):,}", "all")]
    return Section("Everything that was looked at", parts)
