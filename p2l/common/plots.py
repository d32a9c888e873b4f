"""Figures that come out the same each time, as PNG and SVG; colours that colour-blind readers can tell apart."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

from p2l.common.errors import InputError
from p2l.common.files import STDOUT, atomic_path, check_can_write

if TYPE_CHECKING:
    from matplotlib.figure import Figure


ENDINGS = (".png", ".svg", ".pdf")
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#8A6D00", "#5E4FA2")
"""Of lines, in this order."""
RISE, FALL = "#0072B2", "#D55E00"
"""Blue for better, vermilion for worse."""
# Text of an SVG stays text, for the fonts of the reader; its ids are random without a salt.
_SETTINGS: Any = {"svg.fonttype": "none", "svg.hashsalt": "p2l", "font.family": "DejaVu Sans"}
_NO_DATE = {".png": {"Software": None}, ".svg": {"Date": None}, ".pdf": {"CreationDate": None, "Producer": None}}


def check_figures(path: str) -> None:
    """Refuse a picture that cannot be drawn, before any work is done."""
    if Path(path).suffix.lower() not in ENDINGS:
        raise InputError(f"{path}: the ending must be one of {', '.join(ENDINGS)}")
    from importlib.util import find_spec

    if find_spec("matplotlib") is None:
        raise InputError("figures need matplotlib: pip install 'p2l[plot]'")


def check_outputs(table: str | None, plot: str | None, *inputs: str | None) -> None:
    """Refuse a table or a picture that cannot be written or drawn, before any work is done; a table may be stdout."""
    for path in (table, plot):
        if path is not None and path != STDOUT:
            check_can_write(path, *inputs)
    if plot is not None:
        check_figures(plot)


def new_figure(width: float, height: float) -> Figure:
    """Return an empty figure, inches wide and high, whose parts make room for each other."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)  # attaches itself; pyplot, which would do it, keeps every figure alive
    return figure


def save_figure(figure: Figure, *paths: Path) -> None:
    """Write a figure, in the format that each path's ending names; the same figure gives the same bytes."""
    from matplotlib import rc_context

    with rc_context(_SETTINGS), warnings.catch_warnings():
        # A name in a script that the font lacks comes out as boxes; that is no reason to stop.
        warnings.filterwarnings("ignore", "Glyph .* missing from font")
        for path in paths:
            ending = path.suffix.lower()
            with atomic_path(path) as temporary:
                figure.savefig(temporary, format=ending[1:], dpi=140, metadata=_NO_DATE[ending])
