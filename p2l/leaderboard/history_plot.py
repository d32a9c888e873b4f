"""The history of a leaderboard as a picture: a line with a band for each of the best models, its name at the end.

With fifty models no legend can be read and no line followed. So only the models that lead the newest period have
colours and names, which stand at the right end of their lines, pushed apart where they would overlap; others are grey.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from p2l.figures import COLOURS, new_figure, save_figure
from p2l.leaderboard.board import to_score
from p2l.leaderboard.history import History

__all__ = ["plot_history"]

Floats = npt.NDArray[np.float64]

_TOP = 10
_STYLES = ("-", "--", ":", "-.")
_DOTS_UP_TO = 40  # periods; more would run into each other
_TICKS = 12
_LINE = 0.45  # of the height: what the names need together, the height growing with their number


def plot_history(history: History, path: str, *, top: int | None = None, min_votes: int = 0) -> int:
    """Draw the history into a .png, .svg or .pdf file, whole or not at all.

    Returns:
        How many models have a line of their own.
    """
    leaders = history.newest.to_frame(min_votes=min_votes).head(top or _TOP)["model"].tolist()
    names, coefs = history.table()
    drawn = {field: _with_gaps(history, to_score(history.table(field)[1])) for field in ("lower", "upper")}
    scores = _with_gaps(history, to_score(coefs))
    figure = new_figure(10.0, max(4.5, 0.28 * len(leaders) + 1.5))
    axis = figure.subplots()
    _others(axis, scores, [place for place, name in enumerate(names) if name not in leaders])
    ends = []
    for number, name in enumerate(leaders):
        place = names.index(name)
        colour = COLOURS[number % len(COLOURS)]
        style = _STYLES[number // len(COLOURS) % len(_STYLES)]
        _line(axis, scores[:, place], drawn["lower"][:, place], drawn["upper"][:, place], colour, style)
        ends.append((float(scores[-1, place]), name, colour))
    _limits(axis, scores[:, [names.index(name) for name in leaders]], drawn, [names.index(name) for name in leaders])
    _name(axis, ends, len(scores) - 1)
    _dress(axis, history, len(names) - len(leaders))
    save_figure(figure, Path(path))
    return len(leaders)


def _with_gaps(history: History, values: Floats) -> Floats:
    """A row for every period from the first to the last, NaN for those without votes."""
    first = history.periods[0].index
    rows = [period.index - first for period in history.periods]
    out = np.full((rows[-1] + 1, values.shape[1]), np.nan)
    out[rows] = values
    return out


def _others(axis: Any, scores: Floats, places: Sequence[int]) -> None:
    if places:
        axis.plot(np.arange(len(scores)), scores[:, places], color="#d9d9d9", linewidth=0.8, zorder=1)


def _line(axis: Any, score: Floats, lower: Floats, upper: Floats, colour: str, style: str) -> None:
    at = np.arange(len(score))
    # A period between two gaps has no line to show it.
    marker = "o" if len(score) <= _DOTS_UP_TO or np.isnan(score).any() else None
    axis.plot(at, score, style, color=colour, linewidth=1.6, marker=marker, markersize=3, zorder=3)
    axis.fill_between(at, lower, upper, color=colour, alpha=0.11, linewidth=0, zorder=2)
    if len(score) == 1:
        axis.vlines(at, lower, upper, color=colour, linewidth=3, alpha=0.3)


def _limits(axis: Any, scores: Floats, drawn: dict[str, Floats], places: Sequence[int]) -> None:
    """The height of the named lines: a model far below must not flatten them."""
    ends = np.concatenate([scores[np.isfinite(scores)], *(values[:, places].ravel() for values in drawn.values())])
    ends = ends[np.isfinite(ends)]
    # Intervals of a model's first votes may be as wide as the prior.
    low, high = np.quantile(ends, [0.005, 0.995])
    low, high = min(low, float(np.nanmin(scores))), max(high, float(np.nanmax(scores)))
    room = 0.06 * max(high - low, 10.0)
    axis.set_ylim(low - room, high + room)


def _name(axis: Any, ends: Sequence[tuple[float, str, str]], last: int) -> None:
    low, high = axis.get_ylim()
    heights = _spread([(score - low) / (high - low) for score, _, _ in ends], _LINE / max(len(ends), 10))
    for (score, name, colour), height in zip(ends, heights, strict=True):
        axis.annotate(
            f"{name}  {score:.0f}",
            xy=(last, score),
            xytext=(1.03, height),
            textcoords="axes fraction",
            color=colour,
            fontsize=8,
            va="center",
            arrowprops={"arrowstyle": "-", "color": colour, "linewidth": 0.6, "relpos": (0, 0.5)},
            annotation_clip=False,
        )


def _spread(heights: Sequence[float], least: float) -> list[float]:
    """Heights in falling order, moved as little as need be to be `least` apart: those that touch share their mean."""
    blocks: list[list[float]] = []  # [sum of heights as if unspread, members]
    for place, height in enumerate(heights):
        blocks.append([height + place * least, 1.0])
        while len(blocks) > 1 and blocks[-1][0] / blocks[-1][1] > blocks[-2][0] / blocks[-2][1]:
            total, members = blocks.pop()
            blocks[-1][0] += total
            blocks[-1][1] += members
    flat = [total / members for total, members in blocks for _ in range(int(members))]
    return [value - place * least for place, value in enumerate(flat)]


def _dress(axis: Any, history: History, others: int) -> None:
    first, last = history.periods[0].index, history.periods[-1].index
    step = -(-(last - first + 1) // _TICKS)
    ticks = range(0, last - first + 1, step)
    axis.set_xticks(
        list(ticks), [history.over.label(first + tick) for tick in ticks], fontsize=8, rotation=30, ha="right"
    )
    axis.set_xlim(-0.02 * max(last - first, 1) - 0.2, (last - first) + 0.02 * max(last - first, 1))
    axis.tick_params(axis="y", labelsize=8)
    axis.grid(axis="y", color="#e6e6e6")
    axis.set_axisbelow(True)
    axis.spines[["top", "right"]].set_visible(False)
    axis.set_ylabel("score (400 points: odds of 10 to 1)", fontsize=8)
    banded = bool(np.isfinite(history.newest.lower).any())
    interval = f", bands: {history.newest.level:.0%} intervals" if banded else ""
    rest = f", {others} other models grey" if others else ""
    what = "all votes up to the end of each" if history.mode == "cumulative" else "each alone"
    axis.set_title(f"by {history.over.text} ({what}){interval}{rest}", fontsize=9, loc="left")
