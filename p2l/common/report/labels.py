"""Places of names in a picture: beside their points, off other names and points, and off lines where they can."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeAlias

from markupsafe import escape

from p2l.common.display import columns_of

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
