"""Small pictures of pages, as SVG that takes its colours from the page's style and its width from its place.

Nothing is said in colour alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeAlias

from markupsafe import Markup, escape

from p2l.common.display import columns_of


def interval_svg(
    share: float, lower: float | None = None, upper: float | None = None, mark: float | None = None
) -> str:
    """Return a bar of a share from 0 to 1, with the interval from `lower` to `upper` and a tick at `mark`."""
    parts = [f'<rect class="rate" y="3" height="10" width="{100 * share:.2f}%"/>']
    if lower is not None and upper is not None:
        ends = f'x1="{100 * lower:.2f}%" x2="{100 * upper:.2f}%"'
        parts.append(f'<line class="range" {ends} y1="8" y2="8"/>')
    if mark is not None:
        parts.append(f'<line class="mark" x1="{100 * mark:.2f}%" x2="{100 * mark:.2f}%" y1="0" y2="16"/>')
    return Markup(f'<svg class="bar" width="100%" height="16" aria-hidden="true">{"".join(parts)}</svg>')


def share_svg(share: float) -> str:
    """Return a short bar of a share from 0 to 1, to stand in a line of text."""
    width = 100 * min(1.0, max(0.0, share))
    return Markup(
        '<svg class="share" width="40" height="8" aria-hidden="true"><rect class="track" width="100%" height="8"/>'
        f'<rect class="rate" width="{width:.1f}%" height="8"/></svg>'
    )


@dataclass(frozen=True)
class Dot:
    """A point of `frontier_svg`: where it lies, its name, and whether it is on the frontier."""

    name: str
    x: float
    y: float
    is_corner: bool = False


# Lengths across are in percent, so that a picture needs no script to fit.
_LEFT, _RIGHT, _TOP, _BOTTOM = 9.0, 97.0, 6.0, 84.0  # ends of the axes
_PIXELS = (420.0, 320.0)  # pixels of the picture, for the room that names need
_STEPS_PER_EDGE = 12  # of a curve between two corners


def frontier_svg(dots: Sequence[Dot], mark: tuple[float, float] | None, *, x: str, y: str, title: str) -> str:
    """Return points with the line through the corners, from the left to the right; `mark` is where the mixture lies.

    The horizontal axis is logarithmic where all points are above zero and far apart. `x` and `y` name the axes.
    """
    points = [(dot.x, dot.y) for dot in dots] + ([] if mark is None else [mark])
    if not points:
        return Markup("")
    xs, ys = ([point[side] for point in points] for side in (0, 1))
    across = Axis.of(xs, _LEFT, _RIGHT, min(xs) > 0 and max(xs) > 5 * min(xs))
    up = Axis.of(ys, _BOTTOM, _TOP, False)
    parts = [f'<line class="axis" x1="{_LEFT}%" x2="{_RIGHT}%" y1="{_BOTTOM}%" y2="{_BOTTOM}%"/>']
    for tick in across.ticks():
        parts.append(f'<text class="tick" x="{across.place(tick):.2f}%" y="91%" text-anchor="middle">{tick:.3g}</text>')
    for tick in up.ticks():
        at = f'x="{_LEFT - 1}%" y="{up.place(tick):.2f}%"'
        parts.append(f'<text class="tick" {at} text-anchor="end">{tick:.3g}</text>')
    room, path = Room(*_PIXELS), _frontier(dots, across, up)
    room.keep_line(path)
    if mark is not None:
        room.keep_point((across.place(mark[0]), up.place(mark[1])), 9)
    for start, end in pairwise(path):
        ends = f'x1="{start[0]:.2f}%" y1="{start[1]:.2f}%" x2="{end[0]:.2f}%" y2="{end[1]:.2f}%"'
        parts.append(f'<line class="edge" {ends}/>')
    places = {dot: (across.place(dot.x), up.place(dot.y)) for dot in dots}
    for place in places.values():
        room.keep_point(place)
    # Names of corners find room first, then those of high points.
    for dot in sorted(dots, key=lambda dot: (not dot.is_corner, -dot.y)):
        left, top = places[dot]
        kind = "corner" if dot.is_corner else "dot"
        about = f"<title>{escape(dot.name)}</title>"
        parts.append(f'<circle class="{kind}" cx="{left:.2f}%" cy="{top:.2f}%" r="5">{about}</circle>')
        label = room.place(places[dot], dot.name)
        parts += [] if label is None else [label.svg(kind)]
    if mark is not None:
        parts.append(f'<circle class="mark" cx="{across.place(mark[0]):.2f}%" cy="{up.place(mark[1]):.2f}%" r="8"/>')
    parts.append(f'<text class="tick" x="{_RIGHT}%" y="98%" text-anchor="end">{escape(x)} →</text>')
    parts.append(f'<text class="tick" x="0" y="3%" dy="4">↑ {escape(y)}</text>')
    head = f'<svg class="frontier" width="100%" height="320" role="img" aria-label="{escape(title)}">'
    return Markup(f"{head}{''.join(parts)}</svg>")


def _frontier(dots: Sequence[Dot], across: Axis, up: Axis) -> list[Point]:
    """Return the frontier through the corners."""
    # Mixtures are straight in cost, and so curved where the axis is logarithmic.
    corners = sorted((dot for dot in dots if dot.is_corner), key=lambda dot: dot.x)
    steps = _STEPS_PER_EDGE if across.is_log else 1
    return [
        (across.place(left.x + (right.x - left.x) * step / steps), up.place(left.y + (right.y - left.y) * step / steps))
        for left, right in pairwise(corners)
        for step in range(steps + 1)
    ]


@dataclass(frozen=True)
class Axis:
    """An axis, which places values between two percentages of the picture.

    Attributes:
        low, high: the ends of the values.
        start, end: where these ends lie.
        is_log: whether values are spread by their logarithms.
    """

    low: float
    high: float
    start: float
    end: float
    is_log: bool

    @classmethod
    def of(cls, values: Sequence[float], start: float, end: float, is_log: bool) -> Axis:
        """Return the axis of some values, with a little room on both sides."""
        low, high = min(values), max(values)
        if is_log:
            return cls(low / 1.3, high * 1.3, start, end, True)
        room = 0.08 * (high - low) or 0.05 * abs(high) or 1.0
        return cls(low - room, high + room, start, end, False)

    def place(self, value: float) -> float:
        """Return the place of a value."""
        low, high, at = (math.log(end) if self.is_log else end for end in (self.low, self.high, value))
        return self.start + (self.end - self.start) * (at - low) / (high - low)

    def ticks(self) -> list[float]:
        """Return about four round values."""
        if self.is_log:
            first, last = math.floor(math.log10(self.low)), math.ceil(math.log10(self.high))
            steps = (1.0,) if last - first > 3 else (1.0, 3.0) if last - first > 1 else (1.0, 2.0, 5.0)
            values = [step * 10.0**power for power in range(first, last + 1) for step in steps]
        else:
            step = 10.0 ** math.floor(math.log10((self.high - self.low) / 2))
            step = next(step * by for by in (1, 2, 5, 10) if (self.high - self.low) / (step * by) <= 5)
            values = [step * number for number in range(math.ceil(self.low / step), math.floor(self.high / step) + 1)]
        return [value for value in values if self.low <= value <= self.high]


def line_svg(values: Sequence[float | None], title: str) -> str:
    """Return a line over time without axes, for readers without scripts."""
    present = [value for value in values if value is not None]
    high, number = max(present, default=0.0) or 1.0, max(1, len(values) - 1)
    points = [
        f"{100 * place / number:.1f},{40 - 38 * value / high:.1f}"
        for place, value in enumerate(values)
        if value is not None
    ]
    line = f'<polyline class="line" points="{" ".join(points)}" vector-effect="non-scaling-stroke"/>'
    head = '<svg width="100%" height="80" viewBox="0 0 100 40" preserveAspectRatio="none" role="img"'
    return Markup(f'{head} aria-label="{escape(title)}">{line}</svg>')


# Places of names in a picture: beside their points, off other names and points, and off lines where they can.

Point: TypeAlias = "tuple[float, float]"  # across and down, in percent of the picture
_Box: TypeAlias = "tuple[float, float, float, float]"  # left, top, right and bottom, in pixels
_LETTER_PIXELS, _LINE_PIXELS = 6.8, 14.0  # mean width of a letter, height of a line
_MAX_LETTERS = 28  # the whole name is shown when the pointer rests on its point
# Places of a name beside its point, the best first: its anchor, and pixels across and down.
_PLACES = (("start", 9, 4), ("end", -9, 4), ("start", 7, 15), ("end", -7, -7), ("start", 7, -7), ("end", -7, 15))


@dataclass(frozen=True)
class Label:
    """The name of a point and its place: an end of the text (`anchor`), and pixels across and down from the point."""

    point: Point
    text: str
    anchor: str
    across: int
    down: int

    def svg(self, kind: str) -> str:
        """Return it as SVG of the class `kind`."""
        place = f'x="{self.point[0]:.2f}%" y="{self.point[1]:.2f}%" dx="{self.across}" dy="{self.down}"'
        return f'<text class="{kind}" {place} text-anchor="{self.anchor}">{escape(self.text)}</text>'


class Room:
    """The free space of a picture, in pixels of its usual size."""

    def __init__(self, width: float, height: float) -> None:
        """Begin with nothing in it."""
        self.width = width
        self.height = height
        self._taken: list[_Box] = []
        self._lines: list[_Box] = []

    def keep_point(self, point: Point, reach: float = 5.0) -> None:
        """Let no name cover a point, and `reach` pixels around it."""
        self._taken.append(self._around(point, reach))

    def keep_line(self, points: Iterable[Point]) -> None:
        """Let names stay off a line where they can."""
        for (left, top), (right, bottom) in pairwise(points):
            steps = 1 + int(max(abs(right - left) * self.width, abs(bottom - top) * self.height) / (100 * _LINE_PIXELS))
            for step in range(steps + 1):
                share = step / steps
                place = left + (right - left) * share, top + (bottom - top) * share
                self._lines.append(self._around(place, 2.0))

    def place(self, point: Point, name: str) -> Label | None:
        """Take a place for the name of a point and return it; None where there is no room."""
        short = name if len(name) <= _MAX_LETTERS else f"{name[: _MAX_LETTERS - 1]}…"
        width = columns_of(short) * _LETTER_PIXELS
        # Off lines where there is room, else on them: a name helps more than it hides.
        for obstacles in ([*self._taken, *self._lines], self._taken):
            for anchor, across, down in _PLACES:
                left = point[0] * self.width / 100 + across - (width if anchor == "end" else 0.0)
                baseline = point[1] * self.height / 100 + down
                right = left + width
                top = baseline - _LINE_PIXELS + 3
                bottom = baseline + 3
                is_covered = any(
                    left < obstacle[2] and obstacle[0] < right and top < obstacle[3] and obstacle[1] < bottom
                    for obstacle in obstacles
                )
                if left > 0 and right < self.width and not is_covered:
                    self._taken.append((left, top, right, bottom))
                    return Label(point, short, anchor, across, down)
        return None

    def labels(self, named: Sequence[tuple[Point, str]]) -> list[Label]:
        """Return the names that find room; those of high points go first."""
        in_order = sorted(named, key=lambda pair: pair[0][1])
        return [label for point, name in in_order if (label := self.place(point, name)) is not None]

    def _around(self, point: Point, reach: float) -> _Box:
        left, top = point[0] * self.width / 100, point[1] * self.height / 100
        return left - reach, top - reach, left + reach, top + reach
