"""A matplotlib figure as SVG inside a page: text stays text, black becomes the page's ink, ids are its own.

The page decides on light and dark: black lines and text take the colour of the text around them, the white background
goes away, so figures need no second version. Ids carry a fingerprint of the figure; the same figure gives the same
bytes, and two figures on a page do not refer into each other.
"""

from __future__ import annotations

import hashlib
import io
import re
import warnings
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["figure_svg", "plain"]

_SETTINGS: Any = {"svg.fonttype": "none", "svg.hashsalt": "p2l", "font.family": "DejaVu Sans"}
_REFERENCE = re.compile(r'(url\(#|href="#)([^)"]+)')
_ID = re.compile(r'\bid="([^"]+)"')
_INK = re.compile(r"\b(fill|stroke): #000000\b")
_PAPER = re.compile(r"\b(fill|stroke): #ffffff\b")
_GRID = re.compile(r"\b(fill|stroke): #(?:dddddd|cccccc|e0e0e0)\b")
_SIZE = re.compile(r'<svg ([^>]*?)width="([\d.]+)pt" height="([\d.]+)pt"')


def figure_svg(figure: Figure, title: str = "", *, key: str = "") -> str:
    """The figure as an `<svg>` element for `render`, which takes it as it is.

    Args:
        figure: as `p2l.figures.new_figure` makes it; its names may hold anything, they are escaped.
        title: what is read out in its place.
        key: tells the same figure on the same page apart from itself.
    """
    from markupsafe import Markup, escape
    from matplotlib import rc_context

    with rc_context(_SETTINGS), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from font")  # the reader's browser has it
        stream = io.StringIO()
        figure.savefig(stream, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    text = stream.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>\s*", "", text, flags=re.DOTALL)
    text = _with_own_ids(text, "f" + hashlib.blake2b((key + text).encode(), digest_size=5).hexdigest() + "-")
    text = _GRID.sub(r"\1: var(--line)", _PAPER.sub(r"\1: none", _INK.sub(r"\1: currentColor", text)))
    text = text.replace("'DejaVu Sans'", "var(--sans)")
    text = re.sub(r' xmlns(?::xlink)?="[^"]*"', "", text).replace("xlink:href=", "href=")
    label = f"<title>{escape(title)}</title>" if title else ""
    text = re.sub(r"(<svg [^>]*>)", lambda found: found[1] + label, text, count=1)
    return Markup(_SIZE.sub(_sized, text, count=1))  # matplotlib escapes what it draws


def _with_own_ids(text: str, prefix: str) -> str:
    """Ids that are referred to, with the prefix; the others go."""
    used = {found[2] for found in _REFERENCE.finditer(text)}
    text = _REFERENCE.sub(lambda found: f"{found[1]}{prefix}{found[2]}", text)
    return _ID.sub(lambda found: f'id="{prefix}{found[1]}"' if found[1] in used else "", text)


def _sized(found: re.Match[str]) -> str:
    """As wide as it was drawn, in CSS pixels, or less: a narrow window scrolls a figure rather than its text shrink."""
    width = float(found[2]) * 4 / 3
    style = f"width: 100%; max-width: {width:.0f}px; min-width: {min(width, 560):.0f}px"
    return f'<svg role="img" {found[1]}style="{style}"'


def plain(text: str, most: int = 60) -> str:
    """A name as matplotlib shall draw it: no formula between dollars, one line, not longer than `most` characters."""
    line = " ".join(text.split())
    short = line if len(line) <= most else line[: most - 1].rstrip() + "…"
    return short.replace("$", r"\$")
