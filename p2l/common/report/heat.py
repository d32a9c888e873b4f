"""Heat maps of reports: a matrix as an image of one pixel a cell, stretched beside the names of its rows."""

from __future__ import annotations

import base64
import struct
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from markupsafe import Markup, escape

from p2l.common.report.charts import percent

_SHADES = 12  # of colour, each way
_FALL, _RISE = (213, 94, 0), (0, 114, 178)  # those of the style's heat
_FAINTEST, _STRONGEST = 24, 235  # opacity
_MAP_PIXELS = 900  # pixels of a whole map, as far as rows may be that low
_ROW_PIXELS = (12, 24)  # pixels of a row
_MAX_TICKS = 8


@dataclass(frozen=True)
class Heat:
    """A matrix, such as of M things against each other: orange below the middle, blue above it.

    Attributes:
        names: of the rows from the top.
        values: (rows, columns), NaN where there is nothing to say.
        title: read out in the place of the image.
        middle: the value without colour.
        text: writes a value, for the key.
        across: names of the columns, which by default have the numbers of the rows.
        labels: a text for each cell, in pictures alone.
    """

    names: Sequence[str]
    values: npt.NDArray[np.float64]
    title: str
    middle: float = 0.5
    text: Callable[[float], str] = percent
    across: Sequence[str] = ()
    labels: Sequence[Sequence[str]] = ()

    @property
    def row_height(self) -> int:
        """Pixels of a row: as few as names need where there are many."""
        return max(_ROW_PIXELS[0], min(_ROW_PIXELS[1], _MAP_PIXELS // max(len(self.names), 1)))

    @property
    def ticks(self) -> list[tuple[float, int]]:
        """Places (in percent) and numbers, from one, of the columns that are numbered."""
        number = len(self.names)
        step = next((size for size in (1, 2, 5, 10, 20, 50, 100) if number <= size * _MAX_TICKS), 200)
        places = dict.fromkeys((1, *range(step, number + 1, step)))
        return [(round(100 * (place - 0.5) / number, 2), place) for place in places]

    @property
    def address(self) -> str:
        """The image as an address that holds it."""
        # As a table, 130 by 130 cells would be a megabyte of HTML; the image is some ten thousand bytes.
        far = self.farthest
        gaps = self.values - self.middle
        steps = np.clip(np.ceil(_SHADES * np.abs(gaps) / far), 0, _SHADES)
        codes = np.where(np.isnan(gaps), 0, steps + np.where(gaps > 0, _SHADES, 0) * (steps > 0))
        return f"data:image/png;base64,{base64.b64encode(_png(codes.astype(np.uint8))).decode()}"

    def legend(self) -> list[tuple[str, str]]:
        """Return swatches of both ends and of the middle, with their values."""
        far = self.farthest
        ends = [(_FALL, self.middle - far), (None, self.middle), (_RISE, self.middle + far)]
        keys: list[tuple[str, str]] = []
        for colour, value in ends:
            fill = "none" if colour is None else f"rgba({', '.join(map(str, colour))}, {_STRONGEST / 255:.2f})"
            swatch = Markup(
                '<svg class="swatch" width="16" height="12" aria-hidden="true">'
                f'<rect class="cell" width="16" height="12" style="fill: {escape(fill)}"/></svg>'
            )
            keys.append((swatch, self.text(round(value, 2))))
        return keys

    @property
    def farthest(self) -> float:
        """The largest distance from the middle: that of the strongest colour."""
        gaps = np.abs(self.values - self.middle)
        return float(np.nanmax(gaps, initial=0.0, where=~np.isnan(gaps))) or 1.0


def _png(codes: npt.NDArray[np.uint8]) -> bytes:
    """Return an image of colours by number: 0 for none, the steps of `_FALL`, those of `_RISE`."""
    height, width = codes.shape
    faint = [_FAINTEST + (_STRONGEST - _FAINTEST) * step // (_SHADES - 1) for step in range(_SHADES)]
    palette = bytes([0, 0, 0, *_FALL * _SHADES, *_RISE * _SHADES])
    lines = np.pad(codes, ((0, 0), (1, 0)))  # each begins with the number of its filter, none
    return b"".join(
        [
            b"\x89PNG\r\n\x1a\n",
            _chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)),
            _chunk(b"PLTE", palette),
            # Strength is opacity, so that one image suits light and dark paper.
            _chunk(b"tRNS", bytes([0, *faint, *faint])),
            _chunk(b"IDAT", zlib.compress(lines.tobytes(), 9)),
            _chunk(b"IEND", b""),
        ]
    )


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
