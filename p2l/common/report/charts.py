"""Charts of reports: lines, bands and dots between two axes, as SVG that takes its colours from the page's style.

Series differ by dash and mark as well as by colour.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

from markupsafe import Markup, escape

from p2l.common.report.drawing import Axis, Label, Point, Room
from p2l.common.report.tables import number_text

_STYLES = 8  # combinations of colour, dash and mark in the page's style
_PIXELS = (560.0, 260.0)  # pixels of a chart, for the room that the names of dots need
Text = Callable[[float], str]


@dataclass(frozen=True)
class Series:
    """Points in the order of the line through them; NaN breaks it.

    Attributes:
        name: as the key below the chart has it.
        x, y: where they lie.
        lower, upper: ends of their intervals: a band around a line, a whisker through a dot.
        labels: names of the dots.
        has_line, has_dots: what is drawn.
        is_quiet: a reference, grey and dashed.
    """

    name: str
    x: Sequence[float]
    y: Sequence[float]
    lower: Sequence[float] = ()
    upper: Sequence[float] = ()
    labels: Sequence[str] = ()
    has_line: bool = True
    has_dots: bool = False
    is_quiet: bool = False


@dataclass(frozen=True)
class Axes:
    """The axes of a chart: their names, how numbers are written, and what they span; by default all points.

    Attributes:
        is_log: whether the horizontal axis is logarithmic.
        x_range, y_range: the ends.
        has_diagonal: whether to draw the line where both are equal.
        level: where a horizontal line is drawn.
    """

    x: str
    y: str
    x_text: Text | None = None
    y_text: Text | None = None
    is_log: bool = False
    x_range: tuple[float, float] | None = None
    y_range: tuple[float, float] | None = None
    has_diagonal: bool = False
    level: float | None = None


def percent(value: float, digits: int | None = None) -> str:
    """Return a share as terminals print it: `48.1%`; without `digits` as many as it needs, for ticks."""
    return f"{round(100 * value, 6):g}%".replace("-", "−") if digits is None else f"{number_text(100 * value, digits)}%"


def short_number(value: float) -> str:
    """Return a number of an axis: `0.725`, `1,000`, `20k`, `1e-05`."""
    if value and (abs(value) >= 10_000):
        power, letter = (6, "M") if abs(value) >= 1e6 else (3, "k")
        return f"{value / 10**power:g}{letter}".replace("-", "−")
    return f"{value:,.6g}".replace("-", "−") if not value or abs(value) >= 1e-3 else f"{value:.3g}"


@dataclass(frozen=True)
class Chart:
    """Series between two axes, drawn as SVG on a page and by matplotlib into a picture."""

    series: Sequence[Series]
    axes: Axes

    @property
    def spans(self) -> tuple[Axis, Axis]:
        """The horizontal and the vertical axis, in percent of the plot from its upper left corner."""
        axes = self.axes
        xs = [x for series in self.series for x in series.x] if axes.x_range is None else list(axes.x_range)
        ys = [y for series in self.series for y in (*series.y, *series.lower, *series.upper)]
        ys += [] if axes.level is None else [axes.level]
        across = _axis(xs, 0.0, 100.0, axes.is_log, tight=True)
        up = _axis(ys if axes.y_range is None else axes.y_range, 100.0, 0.0, False, tight=axes.y_range is not None)
        return across, up

    def labels(self) -> list[Label]:
        """Return the names of dots that find room, off lines and other dots."""
        across, up = self.spans
        room, names = Room(*_PIXELS), list[tuple[Point, str]]()
        for series in self.series:
            places = _places(series, across, up)
            if series.has_line:
                for stretch in _stretches(places):
                    room.keep_line([(place[0], place[1]) for place in stretch])
            for number, place in enumerate(places if series.has_dots else ()):
                if math.isfinite(sum(place)):
                    room.keep_point(place)
                    names += [(place, series.labels[number])] if series.labels and series.labels[number] else []
        return room.labels(names)


def chart_svg(series: Sequence[Series], axes: Axes, title: str) -> str:
    """Return the chart of series that hold at least one finite point; `title` is read out in its place."""
    chart = Chart(series, axes)
    across, up = chart.spans
    # Places are in percent: a chart fits any width without a script, and its text keeps its size.
    parts = [*_frame(across, up, axes), *_lines(series, across, up), *_dots(series, across, up, axes)]
    parts += [label.svg("name") for label in chart.labels()]
    head = f'<svg class="chart" width="100%" height="260" role="img" aria-label="{escape(title)}">'
    return Markup(f"{head}{''.join(parts)}</svg>")


def keys_of(series: Sequence[Series]) -> list[tuple[str, str]]:
    """Return swatch and name of each series, for the key below a chart; nothing for a single one."""
    if len(series) < 2:
        return []
    keys: list[tuple[str, str]] = []
    for line, style in zip(series, _styles(series), strict=True):
        parts = [f'<line class="line {style}" x2="28" y1="6" y2="6"/>'] if line.has_line else []
        parts += [_mark(style, "14", "6")] if line.has_dots else []
        swatch = Markup(f'<svg class="swatch" width="28" height="12" aria-hidden="true">{"".join(parts)}</svg>')
        keys.append((swatch, line.name))
    return keys


def thinned(x: Sequence[float], y: Sequence[float], most: int = 200) -> Series:
    """Return a nameless series of means over at most `most` runs of neighbours; its band holds every point."""
    size = max(1, math.ceil(len(x) / most))
    runs = [slice(start, start + size) for start in range(0, len(x), size)]
    places, means = ([math.fsum(values[run]) / len(values[run]) for run in runs] for values in (x, y))
    if size == 1:
        return Series("", places, means)
    return Series("", places, means, lower=[min(y[run]) for run in runs], upper=[max(y[run]) for run in runs])


def smoothed(x: Sequence[float], y: Sequence[float], window: int, most: int = 200) -> Series:
    """Return a nameless series of means over the last `window` points, at up to `most` places evenly apart.

    Its band holds the points of each window, which is as wide as the distance of two places at least.
    """
    stride = max(1, math.ceil(len(x) / most))
    width = max(window, stride)
    places = range((len(x) - 1) % stride, len(x), stride)  # the newest point is one of them
    windows = [list(filter(math.isfinite, y[max(0, place - width + 1) : place + 1])) for place in places]
    means = [math.fsum(values) / len(values) if values else math.nan for values in windows]
    ends = [[end(values, default=math.nan) for values in windows] for end in (min, max)]
    return Series("", [x[place] for place in places], means, lower=ends[0], upper=ends[1])


def _axis(values: Iterable[float], start: float, end: float, is_log: bool, *, tight: bool) -> Axis:
    finite = [value for value in values if math.isfinite(value) and (value > 0 or not is_log)] or [1.0, 2.0]
    if not tight:
        return Axis.of(finite, start, end, is_log)
    low, high = min(finite), max(finite)
    if low == high:
        low, high = (low / 2, high * 2) if is_log else (low - 1.0, high + 1.0)
    return Axis(low, high, start, end, is_log)


def _frame(across: Axis, up: Axis, axes: Axes) -> list[str]:
    """Return grid, ticks, names of the axes and the lines of reference."""
    # The element itself is the plot; ticks and names stand in the margin that the style gives it, so some offsets are
    # below zero.
    parts = []
    for tick in up.ticks():
        at = f"{up.place(tick):.2f}%"
        parts.append(f'<line class="grid" x2="100%" y1="{at}" y2="{at}"/>')
        label = escape((axes.y_text or short_number)(tick))
        parts.append(f'<text class="tick" y="{at}" dx="-8" dy="4" text-anchor="end">{label}</text>')
    for tick in across.ticks():
        label = escape((axes.x_text or short_number)(tick))
        at = f'x="{across.place(tick):.2f}%"'
        parts.append(f'<text class="tick" {at} y="100%" dy="18" text-anchor="middle">{label}</text>')
    parts.append('<line class="axis" x2="100%" y1="100%" y2="100%"/>')
    if axes.has_diagonal:
        ends = [(max(across.low, up.low), 1), (min(across.high, up.high), 2)]
        place = " ".join(f'x{n}="{across.place(end):.2f}%" y{n}="{up.place(end):.2f}%"' for end, n in ends)
        parts.append(f'<line class="reference" {place}/>')
    if axes.level is not None:
        at = f"{up.place(axes.level):.2f}%"
        parts.append(f'<line class="reference" x2="100%" y1="{at}" y2="{at}"/>')
    parts.append(f'<text class="tick" x="100%" y="100%" dy="36" text-anchor="end">{escape(axes.x)} →</text>')
    parts.append(f'<text class="tick" y="0" dx="-44" dy="-10">↑ {escape(axes.y)}</text>')
    return parts


def _lines(series: Sequence[Series], across: Axis, up: Axis) -> list[str]:
    """Return bands and lines, in an inner picture of 100 by 100 that is stretched over the plot."""
    parts = []
    for line, style in zip(series, _styles(series), strict=True):
        if not line.has_line:
            continue
        places = _places(line, across, up)
        if line.lower:
            edges = zip([x for x, _ in places], line.lower, line.upper, strict=True)
            for stretch in _stretches([edge for edge in edges if math.isfinite(edge[0])]):
                lower, upper = ([(x, up.place(ends[side])) for x, *ends in stretch] for side in (0, 1))
                parts.append(f'<polygon class="band {style}" points="{_path([*lower, *upper[::-1]])}"/>')
        for stretch in _stretches(places):
            path = _path((x, y) for x, y in stretch)
            parts.append(f'<polyline class="line {style}" points="{path}" vector-effect="non-scaling-stroke"/>')
    if not parts:
        return []
    # Paths have no percentages, so that lines lie in a picture of their own, which is stretched.
    head = '<svg class="plot" width="100%" height="100%" viewBox="0 0 100 100" preserveAspectRatio="none">'
    return [head, *parts, "</svg>"]


def _places(series: Series, across: Axis, up: Axis) -> list[Point]:
    """Return the places of the points, in percent; NaN for those that the axis has no place for."""
    return [
        (across.place(x) if x > 0 or not across.is_log else math.nan, up.place(y))
        for x, y in zip(series.x, series.y, strict=True)
    ]


def _stretches(points: Sequence[tuple[float, ...]]) -> list[list[tuple[float, ...]]]:
    """Return the runs of points without NaN."""
    return [list(run) for is_whole, run in groupby(points, lambda point: all(map(math.isfinite, point))) if is_whole]


def _path(points: Iterable[tuple[float, float]]) -> str:
    return " ".join(f"{x:.2f},{y:.2f}" for x, y in points)


def _dots(series: Sequence[Series], across: Axis, up: Axis, axes: Axes) -> list[str]:
    """Return dots with their whiskers; the values of a dot are shown when the pointer rests on it."""
    parts = []
    x_text, y_text = axes.x_text or short_number, axes.y_text or short_number
    for dots, style in zip(series, _styles(series), strict=True):
        if not dots.has_dots:
            continue
        for number, (left, top) in enumerate(_places(dots, across, up)):
            if not math.isfinite(left + top):
                continue
            if dots.lower and not dots.has_line and math.isfinite(dots.lower[number] + dots.upper[number]):
                ends = f'y1="{up.place(dots.lower[number]):.2f}%" y2="{up.place(dots.upper[number]):.2f}%"'
                parts.append(f'<line class="whisker {style}" x1="{left:.2f}%" x2="{left:.2f}%" {ends}/>')
            about = f"{x_text(dots.x[number])}, {y_text(dots.y[number])}"
            if dots.labels and dots.labels[number]:
                about = f"{dots.labels[number]}: {about}"
            parts.append(_mark(style, f"{left:.2f}%", f"{top:.2f}%", f"<title>{escape(about)}</title>"))
    return parts


def style_numbers(series: Sequence[Series]) -> list[int | None]:
    """Return the number of each series' colour, dash and mark; None for quiet ones."""
    loud = (number % _STYLES for number in range(len(series)))
    return [None if line.is_quiet else next(loud) for line in series]


def _styles(series: Sequence[Series]) -> list[str]:
    """Return the class of each series."""
    return ["quiet" if number is None else f"c{number}" for number in style_numbers(series)]


def _mark(style: str, x: str, y: str, inner: str = "") -> str:
    """Return a dot, or a square for every other series."""
    if style in ("c1", "c3", "c5", "c7"):
        place = f'x="{x}" y="{y}" width="8" height="8" transform="translate(-4 -4)"'
        return f'<rect class="dot {style}" {place}>{inner}</rect>'
    return f'<circle class="dot {style}" cx="{x}" cy="{y}" r="4">{inner}</circle>'
