"""The history of a leaderboard as a section of its page: a line with a band for each of the models that lead."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from p2l.common.report.charts import Axes, Series
from p2l.common.report.reports import Figure, Section
from p2l.common.report.tables import number_text
from p2l.leaderboard.board import Floats, to_score
from p2l.leaderboard.history import History
from p2l.leaderboard.report.ranking import Ranking
from p2l.leaderboard.report.tables import cut, history_table

HISTORY_LINES = 8
"""Lines that the style tells apart."""
_LINES_WITH_BANDS = 3
"""Lines with intervals; those of more would cover each other."""
_MAX_POINTS = 150
_MARGIN_SHARE = 0.06


def history_section(history: History, min_votes: int) -> Section:
    """Return the scores of the models that lead the newest period, over the periods, and a table of all models."""
    ranking = Ranking.of(history.newest, min_votes)
    table = history_table(history, ranking)
    what = (
        "each leaderboard is of all votes up to the end of its period"
        if history.mode == "cumulative"
        else "each leaderboard is of the votes of its period alone"
    )
    newest = history.periods[-1].label
    lead = (
        f"By {history.over.text}, {history.periods[0].label} to {newest}: {what}. The table is of {newest}, with "
        "scores at earlier periods."
    )
    if len(history.periods) < 2:
        return Section("History", [table], lead)
    return Section("History", [history_figure(history, ranking.names[:HISTORY_LINES]), table], lead)


def history_figure(history: History, leaders: Sequence[str]) -> Figure:
    """Return the scores of some models over the periods, as lines with bands."""
    rows = _rows(history)
    names, coefs = history.table()
    places = [names.index(name) for name in leaders]
    scores, lower, upper = (
        to_score(values[:, places]) for values in (coefs, history.table("lower")[1], history.table("upper")[1])
    )
    lower[:, _LINES_WITH_BANDS:] = upper[:, _LINES_WITH_BANDS:] = np.nan
    # Intervals of a model's first votes are as wide as the prior, and must not flatten all lines.
    ends = np.concatenate([values[np.isfinite(values)] for values in (scores, lower, upper)])
    low, high = np.quantile(ends, [0.05, 0.95])
    low, high = min(low, float(np.nanmin(scores))), max(high, float(np.nanmax(scores)))
    room = _MARGIN_SHARE * max(high - low, 10.0)
    low, high = float(low - room), float(high + room)
    first = history.periods[0].index
    x = [math.nan if row is None else float(history.periods[row].index - first) for row in rows]
    series = [
        Series(
            cut(name, 60),
            x,
            _picked(scores[:, number], rows),
            _picked(np.clip(lower[:, number], low, high), rows),
            _picked(np.clip(upper[:, number], low, high), rows),
            has_dots=len(rows) == 1 or any(row is None for row in rows),
        )
        for number, name in enumerate(leaders)
    ]
    axes = Axes(
        x="period",
        y="score",
        # Ticks between two periods have no name.
        x_text=lambda tick: history.over.label(first + round(tick)) if float(tick).is_integer() else "",
        y_text=lambda score: number_text(score, 0),
        y_range=(low, high),
    )
    number = f" (of {len(history.models)})" if len(leaders) < len(history.models) else ""
    bands = ""
    if np.isfinite(lower).any():
        which = f" of the first {_LINES_WITH_BANDS}" if len(leaders) > _LINES_WITH_BANDS else ""
        bands = f" Bands are {history.newest.level:.0%} intervals{which}."
    caption = f"The {len(leaders)} models{number} that lead in {history.periods[-1].label}.{bands}"
    return Figure.of(series, axes, f"Scores by {history.over.text}", caption)


def _rows(history: History) -> list[int | None]:
    """Return which periods are drawn, evenly spread where there are many; None where a gap breaks the lines."""
    number = len(history.periods)
    if number > _MAX_POINTS:
        return list(dict.fromkeys(np.linspace(0, number - 1, _MAX_POINTS).round().astype(int).tolist()))
    rows: list[int | None] = [0]
    for row in range(1, number):
        if history.periods[row].index - history.periods[row - 1].index > 1:
            rows.append(None)
        rows.append(row)
    return rows


def _picked(values: Floats, rows: Sequence[int | None]) -> list[float]:
    return [math.nan if row is None else float(values[row]) for row in rows]
