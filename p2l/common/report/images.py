"""Figures of reports as pictures (PNG, SVG, PDF): matplotlib draws the charts, forest plots and heat maps of a page."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from math import ceil, isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from p2l.common.plots import COLOURS, FALL, RISE, new_figure, plain, save_figure
from p2l.common.report.charts import Chart, Series, short_number, style_numbers
from p2l.common.report.heat import Heat
from p2l.common.report.reports import Figure, Forest

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Picture

_QUIET, _GRID = "#5c646d", "#dddddd"
_TONES = {"good": RISE, "bad": FALL, "": "#1f4e79"}
# Those of the page's style, by number of the series.
_DASHES = ("-", (0, (6, 3)), (0, (2, 2)), (0, (8, 2.5, 2, 2.5)), "-", (0, (5, 3)), (0, (10, 2.5)), (0, (2, 4)))
_POINTS_PER_PIXEL = 0.75
_MAX_COLUMNS = 3
_TITLE_LENGTH = 80


def draw(*figures: Figure, width: float = 8.6) -> Picture:
    """Return figures of a report as one picture `width` inches wide: several, and panels, stand in up to three columns.

    Raise ValueError for a figure that has nothing but SVG.
    """
    panels: list[tuple[Figure, str, Chart | Forest | Heat]] = []
    for figure in figures:
        for title, content in figure.pictures:
            if isinstance(content, str):
                raise ValueError(f"figure {figure.title!r} has no data to draw")
            panels.append((figure, title, content))
    columns = min(_MAX_COLUMNS, len(panels))
    rows = ceil(len(panels) / columns)
    height = max(_height(content) for _, _, content in panels)
    picture = new_figure(max(width, 4.8 * columns), height * rows)
    grid = picture.subplots(rows, columns, squeeze=False).ravel()
    for axis, (figure, title, content) in zip(grid, panels, strict=False):
        axis.tick_params(labelsize=8)
        axis.set_axisbelow(True)
        if isinstance(content, Heat):
            _draw_heat(picture, axis, content)
        else:
            axis.spines[["top", "right"]].set_visible(False)
            if isinstance(content, Forest):
                _draw_forest(axis, content)
            else:
                _draw_chart(axis, content)
        heading = [plain(title or figure.title, _TITLE_LENGTH // columns)]
        heading += textwrap.wrap(figure.note, _TITLE_LENGTH // columns)
        axis.set_title("\n".join(heading), loc="left", fontsize=10)
    for axis in grid[len(panels) :]:
        axis.set_visible(False)
    _draw_legends(
        picture, [(axis, chart) for axis, (_, _, chart) in zip(grid, panels, strict=False) if isinstance(chart, Chart)]
    )
    return picture


def save_picture(paths: Path | str | Sequence[Path], *figures: Figure, width: float = 8.6) -> None:
    """Write figures of a report as a picture, in the format that each path's ending names, whole or not at all."""
    save_figure(draw(*figures, width=width), *([Path(paths)] if isinstance(paths, str | Path) else paths))


def _height(picture: Chart | Forest | Heat) -> float:
    """Return the height of a panel in inches."""
    if isinstance(picture, Forest):
        return max(2.0, 1.1 + 0.24 * len(picture.rows))
    if isinstance(picture, Heat):
        return min(12.0, max(3.0, 1.9 + 0.3 * len(picture.names)))
    return 4.6


def _draw_chart(axis: Any, chart: Chart) -> None:
    axes = chart.axes
    across, up = chart.spans
    if across.is_log:
        axis.set_xscale("log")
    for series, number in zip(chart.series, style_numbers(chart.series), strict=True):
        _draw_series(axis, series, number)
    # The ticks of the page: matplotlib would choose other numbers.
    axis.minorticks_off()
    axis.set_xticks(across.ticks(), [plain((axes.x_text or short_number)(tick)) for tick in across.ticks()])
    axis.set_yticks(up.ticks(), [plain((axes.y_text or short_number)(tick)) for tick in up.ticks()])
    axis.set_xlim(across.low, across.high)
    axis.set_ylim(up.low, up.high)
    axis.set_xlabel(plain(axes.x), fontsize=9)
    axis.set_ylabel(plain(axes.y), fontsize=9)
    axis.grid(axis="y", color=_GRID)
    if axes.has_diagonal:
        ends = max(across.low, up.low), min(across.high, up.high)
        axis.plot(ends, ends, color=_QUIET, linewidth=1, linestyle="--")
    if axes.level is not None:
        axis.axhline(axes.level, color=_QUIET, linewidth=1, linestyle="--")
    for label in chart.labels():
        axis.annotate(
            plain(label.text),
            # Places are in percent from the upper left corner.
            (label.point[0] / 100, 1 - label.point[1] / 100),
            xycoords="axes fraction",
            xytext=(label.across * _POINTS_PER_PIXEL, -label.down * _POINTS_PER_PIXEL),
            textcoords="offset points",
            ha="left" if label.anchor == "start" else "right",
            fontsize=8,
            annotation_clip=False,
        )


def _draw_series(axis: Any, series: Series, number: int | None) -> None:
    colour = _QUIET if number is None else COLOURS[number]
    mark = {"marker": "s" if number is not None and number % 2 else "o", "markersize": 4, "color": colour}
    mark |= {"markerfacecolor": "white" if number is not None and number >= len(_DASHES) // 2 else colour}
    label = plain(series.name)
    if series.has_line:
        dashes = (0, (2, 3)) if number is None else _DASHES[number]
        line = mark if series.has_dots else {"color": colour}
        axis.plot(series.x, series.y, linestyle=dashes, linewidth=1.6, label=label, clip_on=not series.has_dots, **line)
        if len(series.lower):
            axis.fill_between(series.x, series.lower, series.upper, color=colour, alpha=0.14, linewidth=0)
    elif series.has_dots:
        if len(series.lower):
            axis.vlines(series.x, series.lower, series.upper, color=colour, linewidth=1.2, alpha=0.7)
        axis.plot(series.x, series.y, linestyle="", label=label, clip_on=False, **mark)


def _draw_forest(axis: Any, forest: Forest) -> None:
    places = range(len(forest.rows))
    for place, row in enumerate(forest.rows):
        colour = _TONES[row.tone]
        if isfinite(row.lower) and isfinite(row.upper):
            axis.hlines(place, row.lower, row.upper, color=colour, linewidth=3, alpha=0.45)
        axis.plot([row.value], [place], "o", color=colour, markersize=4)
    if forest.zero is not None:
        axis.axvline(forest.zero, color=_QUIET, linewidth=0.8)
    axis.set_yticks(places, [plain(f"{row.name} ({row.note})" if row.note else row.name) for row in forest.rows])
    axis.set_ylim(len(forest.rows) - 0.4, -0.6)
    axis.set_xlim(forest.scale.low, forest.scale.high)
    axis.xaxis.set_major_formatter(lambda value, _: forest.text(value))
    axis.grid(axis="x", color=_GRID)
    axis.set_xlabel(plain(forest.unit), fontsize=9)


def _draw_heat(figure: Picture, axis: Any, heat: Heat) -> None:
    from matplotlib.colors import LinearSegmentedColormap

    colours = LinearSegmentedColormap.from_list("fall-rise", [FALL, "white", RISE])
    far = heat.farthest
    image = axis.imshow(heat.values, cmap=colours, vmin=heat.middle - far, vmax=heat.middle + far, aspect="auto")
    axis.set_facecolor("#f2f2f2")  # shows through where there is no value
    columns = heat.across or [str(number) for number in range(1, len(heat.names) + 1)]
    labels = [plain(name, 30) for name in columns]
    is_crowded = len(columns) > 9 or sum(map(len, labels)) > 90  # letters that fit below a picture of usual width
    slant = {"rotation": 40, "ha": "right", "rotation_mode": "anchor"} if is_crowded else {}
    axis.set_xticks(range(len(columns)), labels, **slant)
    axis.set_yticks(range(len(heat.names)), [plain(name, 40) for name in heat.names])
    axis.tick_params(length=0)
    for (row, column), value in np.ndenumerate(heat.values):
        if heat.labels and isfinite(value):
            ink = "white" if abs(value - heat.middle) > 0.7 * far else "black"
            axis.text(column, row, heat.labels[row][column], ha="center", va="center", fontsize=7, color=ink)
    bar = figure.colorbar(image, ax=axis, pad=0.02, format=lambda value, _: heat.text(value))
    bar.ax.tick_params(labelsize=8)


def _draw_legends(picture: Picture, charts: Sequence[tuple[Any, Chart]]) -> None:
    """Draw one legend below charts of the same series, else one in each."""
    if len({tuple(series.name for series in chart.series) for _, chart in charts}) > 1:
        for axis, chart in charts:
            if len(chart.series) > 1:
                axis.legend(frameon=False, fontsize=8)
    elif charts and len(charts[0][1].series) > 1:
        handles, labels = charts[0][0].get_legend_handles_labels()
        columns = max(1, min(4, 90 // max(map(len, labels))))
        picture.legend(handles, labels, loc="outside lower center", ncols=columns, frameon=False, fontsize=8)
