"""Strengths and weaknesses as a picture: a map of models and clusters, or one model's clusters with intervals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from p2l.explaining.result import Explanation, Strength
from p2l.figures import FALL, RISE, new_figure
from p2l.report.figure import plain

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["MOST_MODELS", "draw_map", "draw_model"]

MOST_MODELS = 60
_COLOURS = {"better": RISE, "worse": FALL, "": "#999999"}


def draw_map(made: Explanation, models: Sequence[str] = ()) -> Figure:
    """A row for each model, a column for each cluster, coloured where a difference was found.

    Of more than 60 models those with the largest differences are drawn; they stand in the order of the leaderboard.
    """
    names = _drawn(made, models)
    clusters = [one.name for one in made.clusters if any(cell.cluster == one.name for cell in made.strengths)]
    cells = {(cell.model, cell.cluster): cell.change for cell in made.found}
    values = np.array([[cells.get((name, one), np.nan) for one in clusters] for name in names])
    values = values.reshape(len(names), len(clusters))
    longest = max((len(plain(one, 42)) for one in clusters), default=0)
    figure = new_figure(3.4 + 0.42 * max(len(clusters), 4), max(3.4, 1.6 + 0.21 * len(names) + 0.055 * longest))
    axis = figure.subplots()
    _paint(figure, axis, values)
    axis.set_xticks(
        range(len(clusters)),
        [plain(one, 42) for one in clusters],
        rotation=50,
        ha="left",
        rotation_mode="anchor",
        fontsize=8,
    )
    axis.set_yticks(range(len(names)), [plain(name, 36) for name in names], fontsize=8)
    axis.tick_params(length=0, top=False, labeltop=True, bottom=False, labelbottom=False)
    axis.set_xticks(np.arange(len(clusters) + 1) - 0.5, minor=True)
    axis.set_yticks(np.arange(len(names) + 1) - 0.5, minor=True)
    axis.grid(which="minor", color="#dddddd", linewidth=0.6)
    axis.tick_params(which="minor", length=0, top=False, bottom=False, left=False)
    axis.spines[:].set_visible(False)
    return figure


def _drawn(made: Explanation, models: Sequence[str]) -> list[str]:
    names = [name for name in made.models if not models or name in models]
    if len(names) <= MOST_MODELS:
        return names
    most: dict[str, float] = {}
    for cell in made.found:
        most[cell.model] = max(most.get(cell.model, 0.0), abs(cell.change))
    kept = set(sorted(names, key=lambda name: -most.get(name, 0.0))[:MOST_MODELS])
    return [name for name in names if name in kept]


def _paint(figure: Figure, axis: Any, values: Any) -> None:
    from matplotlib.colors import LinearSegmentedColormap, Normalize

    most = float(np.nanmax(np.abs(values))) if np.isfinite(values).any() else 1.0
    # Strength is opacity, so that the map looks well on dark paper too.
    ramp = [(FALL, 1.0), (FALL, 0.12), (RISE, 0.12), (RISE, 1.0)]
    colours = LinearSegmentedColormap.from_list("change", list(zip((0, 0.499, 0.501, 1), ramp, strict=True)))
    image = axis.pcolormesh(
        np.arange(values.shape[1] + 1) - 0.5,
        np.arange(values.shape[0] + 1) - 0.5,
        np.ma.masked_invalid(values),
        cmap=colours,
        norm=Normalize(-most, most),
    )
    axis.invert_yaxis()
    bar = figure.colorbar(
        image, ax=axis, shrink=min(1.0, 12 / max(len(values), 1)), aspect=14, pad=0.02, anchor=(0.0, 1.0)
    )
    bar.ax.tick_params(labelsize=8)
    bar.set_label("points against overall\n(blank: none found)", fontsize=8)
    bar.outline.set_visible(False)


def draw_model(made: Explanation, model: str) -> Figure:
    """A row for each cluster, the best on top: the change and its interval, and a diamond for what votes say."""
    cells = made.of(model)
    figure = new_figure(8.2, 1.3 + 0.27 * max(len(cells), 1))
    axis = figure.subplots()
    for height, cell in enumerate(cells):
        _draw_cell(axis, height, cell)
    axis.axvline(0, color="black", linewidth=0.8, zorder=0)
    axis.set_yticks(range(len(cells)), [plain(cell.cluster, 46) for cell in cells], fontsize=8)
    axis.set_ylim(len(cells) - 0.4, -0.6)
    axis.tick_params(axis="x", labelsize=8)
    axis.grid(axis="x", color="#dddddd")
    axis.set_axisbelow(True)
    axis.spines[["top", "right"]].set_visible(False)
    axis.set_title(plain(model), fontsize=10, loc="left")
    votes = ", diamonds: what votes say" if any(cell.observed for cell in cells) else ""
    axis.set_xlabel(f"points against overall, with {made.level:.0%} interval (grey: none found{votes})", fontsize=8)
    return figure


def _draw_cell(axis: Any, height: int, cell: Strength) -> None:
    colour = _COLOURS[cell.verdict]
    axis.hlines(height, cell.lower, cell.upper, color=colour, linewidth=2)
    axis.plot(cell.change, height, "o", color=colour, markersize=5)
    if cell.observed is not None:
        axis.hlines(height + 0.25, cell.observed.lower, cell.observed.upper, color="#777777", linewidth=0.8)
        axis.plot(cell.observed.change, height + 0.25, "D", color="#777777", markersize=3)
