"""Figures that come out the same each time, as PNG and SVG; colours that colour-blind readers can tell apart."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from functools import lru_cache
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from p2l.common.cli import need
from p2l.common.errors import InputError
from p2l.common.files import STDOUT, atomic_path, check_can_write
from p2l.common.text_table import cut

if TYPE_CHECKING:
    from matplotlib.figure import Figure


ENDINGS = (".png", ".svg", ".pdf")
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#8A6D00", "#5E4FA2")  # of lines
RISE, FALL = "#0072B2", "#D55E00"
"""Blue for better, vermilion for worse."""
# Text of an SVG stays text, for the fonts of the reader; its ids are random without a salt.
_FONT = "DejaVu Sans"
_SETTINGS: Any = {"svg.fonttype": "none", "svg.hashsalt": "p2l", "font.family": _FONT}
_NO_DATE = {".png": {"Software": None}, ".svg": {"Date": None}, ".pdf": {"CreationDate": None, "Producer": None}}


def check_figures(path: str) -> None:
    """Refuse a picture that cannot be drawn, before any work is done."""
    if Path(path).suffix.lower() not in ENDINGS:
        raise InputError(f"{path}: the ending must be one of {', '.join(ENDINGS)}")
    need("matplotlib")


def check_outputs(table: str | None, plot: str | None, *inputs: str | None) -> None:
    """Refuse a table or a picture that cannot be written or drawn, before any work is done; a table may be stdout."""
    for path in (table, plot):
        if path is not None and path != STDOUT:
            check_can_write(path, *inputs)
    if plot is not None:
        check_figures(plot)


def new_figure(width: float, height: float) -> Figure:
    """Return an empty figure of this size in inches, with a layout that keeps labels apart; notebooks show it."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    figure = _figure_class()(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)  # attaches itself; pyplot, which would do it, keeps every figure alive
    return figure


@lru_cache(maxsize=1)
def _figure_class() -> type[Figure]:
    from matplotlib.figure import Figure

    class NotebookFigure(Figure):
        """A figure that a notebook shows even where nobody has imported pyplot."""

        def _repr_png_(self) -> bytes:
            content = BytesIO()
            with _settings():
                _set_fallback_fonts(self)
                self.savefig(content, format="png", dpi=100, metadata=_NO_DATE[".png"])
            return content.getvalue()

    return NotebookFigure


@contextlib.contextmanager
def _settings() -> Iterator[None]:
    from matplotlib import rc_context

    with rc_context(_SETTINGS), warnings.catch_warnings():
        # A name in a script that no font has comes out as boxes; that is no reason to stop.
        warnings.filterwarnings("ignore", "Glyph .* missing from font")
        yield


def save_figure(figure: Figure, *paths: Path) -> None:
    """Write a figure, in the format that each path's ending names; the same figure gives the same bytes."""
    with _settings():
        for path in sorted(paths, key=lambda path: path.suffix.lower() != ".svg"):
            ending = path.suffix.lower()
            if ending != ".svg":  # the reader's program draws the text of an SVG, with its own fonts
                _set_fallback_fonts(figure)
            with atomic_path(path) as temporary:
                figure.savefig(temporary, format=ending[1:], dpi=140, metadata=_NO_DATE[ending])


def _set_fallback_fonts(figure: Figure) -> None:
    """Let text in scripts that the font lacks be drawn with installed fonts that have them."""
    from matplotlib.text import Text

    figure.draw_without_rendering()  # labels of ticks are made when they are drawn
    texts = [text for text in figure.findobj(Text) if isinstance(text, Text) and not text.get_text().isascii()]
    fonts = fonts_for("".join(text.get_text() for text in texts))
    for text in texts if fonts else ():
        text.set_fontfamily([_FONT, *fonts])


def fonts_for(text: str) -> list[str]:
    """Return the names of installed fonts that have the letters of a text which the usual font lacks, few of them."""
    from matplotlib.font_manager import findfont, findSystemFonts, fontManager

    missing = {ord(letter) for letter in text if not letter.isspace()} - _letters_of(findfont(_FONT))
    if not missing:
        return []
    # matplotlib keeps a list of fonts; some may have been installed since it was written.
    paths = {font.fname for font in fontManager.ttflist}
    for path in findSystemFonts():
        if path not in paths:
            with contextlib.suppress(Exception):  # of whatever is wrong with a font file
                fontManager.addfont(path)
    fonts: list[str] = []
    # Upright sans-serif fonts of usual weight first: a name of many families may come in many styles.
    for font in sorted(
        fontManager.ttflist,
        key=lambda font: (
            font.style != "normal",
            font.weight != 400,
            "serif" in font.name.lower() and "sans" not in font.name.lower(),
        ),
    ):
        covered = missing & _letters_of(font.fname)
        if covered:
            fonts.append(font.name)
            missing -= covered
        if not missing:
            break
    return fonts


@lru_cache(maxsize=1024)
def _letters_of(path: str) -> frozenset[int]:
    """Return the letters that a font has; none where its file cannot be read."""
    from matplotlib.ft2font import FT2Font

    with contextlib.suppress(OSError, RuntimeError):
        return frozenset(FT2Font(path).get_charmap())
    return frozenset()


def plain(text: str, most: int = 60) -> str:
    """Return a name for matplotlib to draw: no formula between dollars, one line, at most `most` characters."""
    return cut(text, most).replace("$", r"\$")
