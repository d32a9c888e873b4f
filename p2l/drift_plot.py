"""Drift as a picture: a dot for each change, a bar for its interval, in colour where the change was found."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from p2l.drift_cells import Cell, Drift
from p2l.figures import FALL, RISE, new_figure, save_figure

__all__ = ["plot_drift"]

_PANELS, _COLUMNS = 12, 3
_COLOURS = {"rose": RISE, "fell": FALL, "": "#999999"}


def plot_drift(drift: Drift, path: str) -> int:
    """Draw a panel for each category, or one for all when there is one model; returns how many were left out.

    Categories with the most changes come first after that of everything; at most twelve are drawn.

    Raises:
        InputError: the file cannot be written.
    """
    panels = _panels(drift)
    drawn = panels[:_PANELS]
    columns = min(_COLUMNS, len(drawn))
    rows = -(-len(drawn) // columns)
    height = 1.1 + 0.2 * max(len(cells) for _, cells in drawn)
    figure = new_figure(7.0 if columns == 1 else 4.6 * columns, max(2.4, height) * rows + 0.5)
    axes = figure.subplots(rows, columns, squeeze=False, sharex=True).ravel()
    for axis, (title, cells) in zip(axes, drawn, strict=False):
        _draw(axis, title, cells, drift.level)
    for axis in axes[len(drawn) :]:
        axis.set_visible(False)
    figure.suptitle(f"From {drift.before} to {drift.after}", x=0.01, ha="left", fontsize=11)
    handles = [
        axes[0].plot([], [], "o-", color=_COLOURS[word], label=text)[0]
        for word, text in (("rose", "rose"), ("fell", "fell"), ("", "no change found"))
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=3, frameon=False, fontsize=8)
    save_figure(figure, Path(path))
    return len(panels) - len(drawn)


def _panels(drift: Drift) -> list[tuple[str, list[tuple[str, Cell]]]]:
    """Title, and (label, cell) of each row; the largest rise on top."""
    if len({cell.model for cell in drift.cells}) == 1:
        return [(drift.cells[0].model, [(cell.title, cell) for cell in drift.cells])]
    found: dict[str, list[tuple[str, Cell]]] = {}
    for cell in drift.cells:
        found.setdefault(cell.title, []).append((cell.model, cell))
    for cells in found.values():
        cells.sort(key=lambda row: -row[1].change)
    return sorted(found.items(), key=lambda item: (bool(item[1][0][1].by), -sum(bool(c.verdict) for _, c in item[1])))


def _draw(axis: Any, title: str, rows: Sequence[tuple[str, Cell]], level: float) -> None:
    for height, (_, cell) in enumerate(rows):
        colour = _COLOURS[cell.verdict]
        axis.hlines(height, cell.lower, cell.upper, color=colour, linewidth=2)
        axis.plot(
            cell.change, height, "o", color=colour, markersize=5, markerfacecolor=colour if cell.verdict else "white"
        )
    axis.axvline(0, color="black", linewidth=0.8, zorder=0)
    axis.set_yticks(np.arange(len(rows)), [label for label, _ in rows], fontsize=8)
    axis.set_ylim(len(rows) - 0.4, -0.6)
    axis.tick_params(axis="x", labelsize=8, labelbottom=True)
    axis.grid(axis="x", color="#dddddd")
    axis.set_axisbelow(True)
    axis.spines[["top", "right"]].set_visible(False)
    axis.set_title(title, fontsize=10, loc="left")
    axis.set_xlabel(f"change in points, with {level:.0%} interval", fontsize=8)
