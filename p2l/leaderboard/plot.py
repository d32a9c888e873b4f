"""Leaderboards as a picture: one row per model, a dot for its score, a bar for its interval."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from p2l.command import atomic_path
from p2l.errors import InputError
from p2l.leaderboard.text import Named

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["check_plot", "plot_boards"]

_ENDINGS = (".png", ".svg", ".pdf")
_PANELS = 12
_COLUMNS = 3
_INK, _BAR = "#1f4e79", "#8fb4d9"


def check_plot(path: str | None) -> None:
    """Refuse a picture that cannot be drawn, before any work is done.

    Raises:
        InputError: matplotlib is missing, or the ending names no format.
    """
    if path is None:
        return
    if Path(path).suffix.lower() not in _ENDINGS:
        raise InputError(f"{path}: the ending must be one of {', '.join(_ENDINGS)}")
    from importlib.util import find_spec

    if find_spec("matplotlib") is None:
        raise InputError("--plot needs matplotlib: pip install 'p2l[plot]'")


def plot_boards(boards: Sequence[Named], path: str, *, top: int | None = None, min_votes: int = 0) -> int:
    """Draw leaderboards into one picture, whole or not at all; at most twelve, the first ones.

    Returns:
        How many were drawn.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    drawn = list(boards)[:_PANELS]
    frames = [named.board.to_frame(min_votes=min_votes).head(top or 10**9) for named in drawn]
    columns = min(_COLUMNS, len(drawn))
    rows = -(-len(drawn) // columns)
    height = max(2.0, 0.9 + 0.2 * max(len(frame) for frame in frames))
    figure = Figure(figsize=(7.0 if columns == 1 else 5.5 * columns, height * rows), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(rows, columns, squeeze=False, sharex=True).ravel()
    for axis, named, frame in zip(axes, drawn, frames, strict=False):
        _draw(axis, named, frame)
    for axis in axes[len(drawn) :]:
        axis.set_visible(False)
    with atomic_path(path) as temporary:
        figure.savefig(temporary, format=Path(path).suffix[1:].lower(), dpi=140)
    return len(drawn)


def _draw(axis: Any, named: Named, frame: pd.DataFrame) -> None:
    height = np.arange(len(frame))
    score, lower, upper = (frame[name].to_numpy() for name in ("score", "lower", "upper"))
    axis.hlines(height, lower, upper, color=_BAR, linewidth=4)
    axis.plot(score, height, "o", color=_INK, markersize=4)
    axis.set_yticks(height, frame["model"], fontsize=8)
    axis.set_ylim(len(frame) - 0.4, -0.6)
    axis.grid(axis="x", color="#dddddd")
    axis.set_axisbelow(True)
    axis.spines[["top", "right"]].set_visible(False)
    axis.set_title(named.title, fontsize=10, loc="left")
    interval = f" with {named.board.level:.0%} interval" if np.isfinite(lower).any() else ""
    axis.tick_params(labelbottom=True)
    axis.set_xlabel(f"score{interval} (400 points: odds of 10 to 1)", fontsize=8)
