"""Categories of a leaderboard side by side: groups of votes by column, or prompts of a model."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from p2l.common.report.charts import percent
from p2l.common.report.reports import Fold, Part, Prose, Section
from p2l.common.report.tables import Cell, Column, Table, Value, number_text
from p2l.leaderboard.board import Leaderboard, Named, to_score
from p2l.leaderboard.report.ranking import Leaderboards, Ranking
from p2l.leaderboard.report.tables import FIELD, board_table, cut, model_table

_MAX_CELLS = 2400
"""Cells of the tables of categories together: what keeps the page of 130 models small."""
_MAX_GROUPS = 20
_MAX_FOLDED_ROWS = 400
"""Rows of the categories' own leaderboards together; where there were more, these are left to files."""


def category_section(ranking: Ranking, groups: Sequence[Named], leaderboards: Leaderboards) -> Section:
    """Return the ranks in each category side by side, a table for each column; flags share one."""
    tables = _by_column(groups)
    most = max(2, min(_MAX_GROUPS, _MAX_CELLS // len(ranking.names) // len(tables)))
    unit, parts = leaderboards.unit, list[Part]()
    listed = [named for members in tables.values() for _, named in members[:most]]
    has_room = sum(len(named.board.models) for named in listed) <= _MAX_FOLDED_ROWS
    for title, members in tables.items():
        number = len(members)
        left = f" The {most} with the most {unit} of {number}; files (--output) hold all." if number > most else ""
        parts += [Prose(title, "heading"), _category_table(ranking, members[:most], unit, left.strip())]
        for _, named in members[:most] if has_room else ():
            table = board_table(Ranking.of(named.board, leaderboards.min_votes), 10)
            parts.append(Fold(cut(named.title, 100), [table], f"{named.size:,} {unit}"))
    interval = "Coloured where the interval excludes the score over all: " if ranking.has_intervals else ""
    lead = (
        f"The rank in each category. {interval}blue is better there than over all {unit}, orange worse. Rest the "
        f"pointer on a rank for its score, on a head for its number of {unit}; a head sorts."
    )
    return Section("Categories", parts, lead)


def _by_column(groups: Sequence[Named]) -> dict[str, list[tuple[str, Named]]]:
    """Return the heads and groups of each table by its title; of a flag the rows where it is true, with all flags."""
    values: dict[str, list[str]] = {}
    for named in groups:
        values.setdefault(named.by, []).append(named.group.lower())
    flags = {column for column, names in values.items() if "true" in names and set(names) <= {"true", "false"}}
    tables: dict[str, list[tuple[str, Named]]] = {}
    for named in groups:
        if named.by not in flags:
            tables.setdefault(f"By {cut(named.by, 60)}", []).append((named.group, named))
        elif named.group.lower() == "true":
            tables.setdefault("By flag, where it is true", []).append((named.by, named))
    return tables


def _category_table(ranking: Ranking, groups: Sequence[tuple[str, Named]], unit: str, caption: str) -> Table:
    """Return each model's rank in each group, on the colour of how its score there differs from that of all votes.

    Only differences beyond the group's interval have a colour.
    """
    shown = set(ranking.names)
    sides = [_side(named.board, ranking, shown) for _, named in groups]
    farthest = max((abs(change) for side in sides for _, change, _ in side.values()), default=0.0) or 1.0
    columns: list[tuple[Column, Sequence[Value]]] = [
        (Column("#", 0, f"rank over all {unit}"), range(1, len(ranking.names) + 1)),
        (Column("Model", number=False), ranking.names),
    ]
    for (head, named), side in zip(groups, sides, strict=True):
        cells: list[Value] = []
        for name in ranking.names:
            rank, change, score = side.get(name, (0, 0.0, ""))
            cells.append(Cell(str(rank), note=score, heat=change / farthest) if rank else None)
        columns.append((Column(cut(head), note=f"{head}: {named.size:,} {unit}", is_map=True), cells))
    return model_table(columns, 20, caption)


def _side(board: Leaderboard, ranking: Ranking, shown: set[str]) -> dict[str, tuple[int, float, str]]:
    """Return the rank, the change of the coefficient as far as it is sure, and the score in words, by model."""
    overall = dict(zip(ranking.board.models, ranking.board.coefs.tolist(), strict=True))
    places = [place for place in np.argsort(-board.coefs, kind="stable").tolist() if board.models[place] in shown]
    out = {}
    for rank, place in enumerate(places, 1):
        name, coef = board.models[place], float(board.coefs[place])
        lower, upper = float(board.lower[place]), float(board.upper[place])
        # Without an interval, where the ends are NaN, every change counts.
        change = 0.0 if lower <= overall[name] <= upper else coef - overall[name]
        ends = f" ({_rounded(lower)} to {_rounded(upper)})" if math.isfinite(lower) else ""
        out[name] = rank, change, f"{_rounded(coef)}{ends}"
    return out


def _rounded(coef: float) -> str:
    return number_text(float(to_score(coef)), 0)


def _prompts_table(boards: Sequence[Named]) -> Table:
    """Return each model's chance of beating the field on each prompt, in the order of the mean over them."""
    rates = np.stack([named.board.win_rates() for named in boards])
    order = np.argsort(-rates.mean(axis=0), kind="stable")
    farthest = float(np.abs(rates - 0.5).max()) or 1.0
    columns: list[tuple[Column, Sequence[Value]]] = [
        (Column("Model", number=False), [boards[0].board.models[place] for place in order])
    ]
    for number, row in enumerate(rates, 1):
        cells = [Cell(percent(rate, 1), heat=(rate - 0.5) / farthest) for rate in row[order].tolist()]
        columns.append((Column(f"{number}. {cut(boards[number - 1].group)}", note=FIELD, is_map=True), cells))
    return model_table(columns, 60)


def prompt_sections(boards: Sequence[Named]) -> list[Section]:
    """Return prompts side by side, then the leaderboard of each."""
    shown = boards[:_MAX_GROUPS]
    lead = (
        f"{FIELD[0].upper()}{FIELD[1:]}. Blue is above 50%, orange below; models are in the order of the "
        "mean over the prompts."
    )
    folds = [
        Fold(f"{number}. {cut(named.group, 200)}", [board_table(Ranking.of(named.board), 10)])
        for number, named in enumerate(shown, 1)
    ]
    return [
        Section("Prompts side by side", [_prompts_table(shown)], lead),
        Section("Leaderboard of each prompt", folds),
    ]
