"""Figures of loss matrices: a heat map and lines for one run, lines of the last checkpoints for several.

Shapes: C checkpoints, S slices.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from p2l.chrono.matrix import Matrix
from p2l.chrono.measures import MEASURES, more_is_better
from p2l.figures import COLOURS, new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["draw_comparison", "draw_heat_map", "draw_lines"]

_UNITS = {"Loss": "nats per vote", "BCELoss": "nats per decided vote"}
_SLICES = "slice (batch of the stream at its end)"
_MARKERS = "osD^vPX*"
_GRID, _NONE = "#dddddd", "#f2f2f2"


def _axis_name(metric: str) -> str:
    unit = f" in {_UNITS[metric]}" if metric in _UNITS else ""
    return f"{metric}{unit} ({'higher' if more_is_better(metric) else 'lower'} is better)"


def draw_heat_map(matrix: Matrix) -> Figure:
    """One cell for each checkpoint and slice, its value to three decimals; a line parts the slices that are later."""
    rows, columns = matrix.values.shape
    figure = new_figure(max(5.5, 2.6 + 0.5 * columns), max(3.0, 1.9 + 0.3 * rows))
    axis = figure.subplots()
    axis.set_facecolor(_NONE)  # shows where nothing was asked
    colours = _colours(matrix.metric)
    image = axis.imshow(np.ma.masked_invalid(matrix.values), cmap=colours, aspect="auto")
    for row, column in np.argwhere(~np.isnan(matrix.values)):
        value = matrix.values[row, column]
        red, green, blue, _ = colours(image.norm(value))
        ink = "black" if 0.299 * red + 0.587 * green + 0.114 * blue > 0.5 else "white"
        axis.text(column, row, f"{value:.3f}", ha="center", va="center", fontsize=7, color=ink)
    _mark_later(axis, matrix)
    axis.set_xticks(range(columns), [str(number) for number in matrix.slices], rotation=45 if columns > 9 else 0)
    axis.set_yticks(range(rows), [str(number) for number in matrix.checkpoints])
    axis.tick_params(labelsize=8, length=0)
    axis.set_xlabel(_SLICES, fontsize=9)
    axis.set_ylabel("checkpoint", fontsize=9)
    axis.set_title(matrix.run, loc="left", fontsize=11)
    _bar(figure, image, axis, _axis_name(matrix.metric))
    return figure


def _bar(figure: Figure, values: Any, axis: Any, label: str) -> None:
    bar = figure.colorbar(values, ax=axis, pad=0.02)
    bar.set_label(label, fontsize=9)
    bar.ax.tick_params(labelsize=8)


def _colours(metric: str) -> Any:
    """Dark for bad, light for good, in steps of equal lightness."""
    from matplotlib import colormaps

    return colormaps["cividis" if more_is_better(metric) else "cividis_r"]


def _mark_later(axis: Any, matrix: Matrix) -> None:
    """A line between the slices behind a checkpoint and those ahead, where there are values on both sides."""
    later = matrix.later & ~np.isnan(matrix.values)
    if not later.any():
        return
    rows = later.any(axis=1)
    behind = (~matrix.later[rows]).sum(axis=1) - 0.5
    edges = np.append(np.flatnonzero(rows), rows.nonzero()[0][-1] + 1) - 0.5
    x, y = np.append(np.repeat(behind, 2), len(matrix.slices) - 0.5), np.append(np.repeat(edges, 2)[1:-1], edges[-1])
    axis.plot(x, y, color="white", linewidth=3.5, clip_on=False)
    axis.plot(x, y, color="#D55E00", linewidth=1.8, clip_on=False, label="to the right: not yet cast")
    axis.legend(loc="lower right", bbox_to_anchor=(1.0, 1.0), frameon=False, fontsize=8, borderaxespad=0.2)


def draw_lines(matrix: Matrix) -> Figure:
    """One line for each checkpoint over the slices, from light (early) to dark (late); dashed over later slices."""
    from matplotlib import colormaps
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize

    figure = new_figure(8.6, 4.6)
    axis = figure.subplots()
    first, last = matrix.checkpoints[0], matrix.checkpoints[-1]
    scale = ScalarMappable(Normalize(first, last if last > first else first + 1), colormaps["viridis_r"])
    for row, checkpoint in enumerate(matrix.checkpoints):
        _line(axis, matrix, row, scale.cmap((checkpoint - first) / max(last - first, 1)), thick=checkpoint == last)
    _style(axis, matrix)
    axis.set_title(f"{matrix.run}: each line is a checkpoint", loc="left", fontsize=11)
    if (matrix.later & ~np.isnan(matrix.values)).any():
        axis.plot([], [], color="#555555", linestyle=(0, (2, 1.5)), label="slices that are later than the checkpoint")
        axis.legend(frameon=False, fontsize=8)
    _bar(figure, scale, axis, "checkpoint")
    return figure


def _line(axis: Any, matrix: Matrix, row: int, colour: Any, *, thick: bool) -> None:
    values, later = matrix.values[row], matrix.later[row]
    place, width = np.arange(len(values)), 2.4 if thick else 1.2
    axis.plot(place, np.where(later, np.nan, values), color=colour, linewidth=width, marker="o", markersize=3)
    # The dashed part starts where the whole one ends.
    ahead = later | np.append(later[1:], False)
    axis.plot(place, np.where(ahead, values, np.nan), color=colour, linewidth=0.8, linestyle=(0, (2, 1.5)))


def _style(axis: Any, matrix: Matrix) -> None:
    slices = matrix.slices
    axis.set_xticks(range(len(slices)), [str(number) for number in slices], rotation=45 if len(slices) > 12 else 0)
    axis.tick_params(labelsize=8)
    axis.set_xlabel(_SLICES, fontsize=9)
    axis.set_ylabel(_axis_name(matrix.metric), fontsize=9)
    axis.grid(axis="y", color=_GRID)
    axis.set_axisbelow(True)
    axis.spines[["top", "right"]].set_visible(False)


def draw_comparison(matrices: Sequence[Matrix], *, oracle: str | None = None, naive: str | None = None) -> Figure:
    """The last checkpoint of each run over the slices, best first in the legend."""
    means = {one.run: MEASURES["final"](one) for one in matrices}
    sign = -1 if more_is_better(matrices[0].metric) else 1
    order = sorted(matrices, key=lambda one: (np.isnan(means[one.run]), sign * means[one.run]))
    everywhere = max(matrices, key=lambda one: len(one.slices))
    slices = sorted({number for one in matrices for number in one.slices})
    figure = new_figure(9.2, 4.6 + 0.12 * len(order))
    axis = figure.subplots()
    place = {number: column for column, number in enumerate(slices)}
    labels = {run: f"{run} ({mean:.4f})" for run, mean in means.items()}
    others = [one.run for one in order if one.run not in (oracle, naive)]
    for one in order:
        style = _line_style(one.run, others, oracle)
        axis.plot([place[number] for number in one.slices], one.values[-1], label=labels[one.run], **style)
    _style(axis, Matrix("", everywhere.metric, [], slices, everywhere.values, everywhere.votes, everywhere.later))
    axis.set_title("Last checkpoint of each run (mean over its slices), best first", loc="left", fontsize=11)
    longest = max(map(len, labels.values()))
    figure.legend(
        loc="outside lower center", ncols=max(1, min(3, len(order), 90 // longest)), frameon=False, fontsize=8
    )
    return figure


def _line_style(run: str, others: Sequence[str], oracle: str | None) -> dict[str, Any]:
    """Black for the oracle, grey for the naive run, and a colour and marker for each of the others."""
    if run not in others:
        colour, dashes = ("black", "-") if run == oracle else ("#777777", "--")
        return {"color": colour, "linestyle": dashes, "linewidth": 1.8, "marker": "", "zorder": 3}
    number = others.index(run)
    return {
        "color": COLOURS[number % len(COLOURS)],
        "linestyle": ("-", "--", ":")[number // len(COLOURS) % 3],
        "marker": _MARKERS[(number + number // len(COLOURS)) % len(_MARKERS)],
        "linewidth": 1.4,
        "markersize": 4,
    }
