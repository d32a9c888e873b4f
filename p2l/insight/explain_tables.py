"""The tables of strengths and weaknesses on pages: clusters, their map, the differences, and what votes say of them."""

from __future__ import annotations

from collections.abc import Sequence

from p2l.common.report.tables import Cell, Column, Scale, Table, Value
from p2l.common.text_table import formatted
from p2l.insight.strengths import Explanation, Strength

_NAMED = 3  # clusters that the table of models names on either side
_MOST = 300  # differences in a table, the largest; of 130 models there may be thousands
_CHANCE = "chance of winning against another model drawn at random"


def clusters(explanation: Explanation) -> Table:
    """Return the kinds of prompts."""
    kinds = explanation.clusters
    examples = [one.examples[0] if one.examples else None for one in kinds]
    return Table.of(
        (Column("Cluster", number=False), [one.name for one in kinds]),
        (Column("Prompts"), [one.prompts for one in kinds]),
        (Column("Share"), [_share(one.share) for one in kinds]),
        (Column("Typical words", number=False, wide=True), [", ".join(one.terms) for one in kinds]),
        (Column("For example", number=False, wide=True), examples),
    )


def strengths_map(explanation: Explanation, names: Sequence[str]) -> Table:
    """Return a row for each model, a column for each cluster, coloured where a difference was found."""
    columns = [one.name for one in explanation.clusters]
    changes = {(cell.model, cell.cluster): cell.change for cell in explanation.found}
    most = max(map(abs, changes.values()), default=1.0)

    def cell(model: str, cluster: str) -> Cell:
        change = changes.get((model, cluster), 0.0)
        return Cell(_points(change), round(change, 1), heat=change / most) if change else Cell("", 0.0)

    rows: list[list[Value]] = [[name, *(cell(name, cluster) for cluster in columns)] for name in names]
    heads = [Column(name, is_map=True) for name in columns]
    return Table([Column("Model", number=False), *heads], rows, shown=20, filter="models")


def strengths_of_models(explanation: Explanation, names: Sequence[str] = ()) -> Table:
    """Return a row for each model, by default of all: the clusters it does best and worst in."""
    shown = [(place, name) for place, name in enumerate(explanation.models, 1) if not names or name in names]
    cells = [explanation.of(name) for _, name in shown]
    return Table.of(
        (Column("#", 0, note="place overall"), [place for place, _ in shown]),
        (Column("Model", number=False), [name for _, name in shown]),
        (Column("Better at", number=False, wide=True), [_named(one, "better", "good") for one in cells]),
        (Column("Worse at", number=False, wide=True), [_named(one[::-1], "worse", "bad") for one in cells]),
        shown=10,
        filter="models",
    )


def _named(cells: Sequence[Strength], verdict: str, tone: str) -> Cell:
    named = [cell for cell in cells if cell.verdict == verdict][:_NAMED]
    if not named:
        return Cell("–", 0.0, "quiet")
    text = "; ".join(f"{cell.cluster} ({_points(cell.change)})" for cell in named)
    return Cell(text, round(abs(named[0].change), 1), tone)


def differences(cells: Sequence[Strength], level: float) -> Table:
    """Return strengths and weaknesses, the largest first, beside what votes say where they were asked."""
    left = f"The {_MOST} largest of {len(cells):,}." if len(cells) > _MOST else ""
    cells = cells[:_MOST]
    ends = [end for cell in cells for end in (cell.lower, cell.upper)]
    columns: list[tuple[Column, Sequence[Value]]] = [
        (Column("Model", number=False), [cell.model for cell in cells]),
        (Column("Cluster", number=False, wide=True), [cell.cluster for cell in cells]),
        (
            Column("Points against overall", 0, f"with {level:.0%} interval over prompts", Scale.around(ends, 0.0)),
            [_change(cell) for cell in cells],
        ),
        (Column("Place here", 0), [_place(cell) for cell in cells]),
        (Column("Place overall", 0), [cell.overall_rank for cell in cells]),
        (Column("Beats the field here", note=_CHANCE), [_share(cell.win_rate) for cell in cells]),
        (Column("Overall", note=_CHANCE), [_share(cell.overall_win_rate) for cell in cells]),
    ]
    if any(cell.observed is not None for cell in cells):
        columns.append((Column("Votes say", note="points against all votes"), [_observed(cell) for cell in cells]))
    return Table.of(*columns, shown=10, caption=left, filter="models")


def _place(cell: Strength) -> Cell:
    return Cell(str(cell.rank), cell.rank, note=f"{cell.rank_lower} to {cell.rank_upper}")


def _points(value: float) -> str:
    return formatted(value, "+.0f").replace("-", "−")


def _share(value: float) -> Cell:
    return Cell(f"{value:.1%}", round(value, 5))


def _change(cell: Strength) -> Cell:
    note = f"{_points(cell.lower)} to {_points(cell.upper)}"
    bar = (cell.lower, cell.change, cell.upper)
    return Cell(_points(cell.change), round(cell.change, 1), "good" if cell.change > 0 else "bad", note, bar)


def _observed(cell: Strength) -> Cell | None:
    """Return the change that votes show, with their number; orange where it is in the other direction."""
    seen = cell.observed
    if seen is None:
        return None
    tone = "bad" if (seen.change > 0) != (cell.change > 0) else ""
    note = f"{_points(seen.lower)} to {_points(seen.upper)}, {seen.votes:,} votes of the model"
    return Cell(_points(seen.change), round(seen.change, 1), tone, note)
