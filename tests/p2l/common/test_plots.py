"""Figures show names in whatever script, with fonts that are installed; text of an SVG stays text."""

from __future__ import annotations

from pathlib import Path

import pytest
from fontTools.fontBuilder import FontBuilder
from fontTools.pens.ttGlyphPen import TTGlyphPen
from matplotlib import font_manager

from p2l.common.plots import fonts_for, new_figure, plain, save_figure

RARE = "\u4e03"
"""A letter that the usual font lacks."""


@pytest.fixture
def font(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A font with that letter, a full square, as the only one which is installed beside the usual one."""
    pen = TTGlyphPen(None)
    for place, corner in enumerate([(0, 0), (0, 1000), (1000, 1000), (1000, 0)]):
        (pen.lineTo if place else pen.moveTo)(corner)
    pen.closePath()
    square = pen.glyph()
    builder = FontBuilder(1000, isTTF=True)
    builder.setupGlyphOrder([".notdef", "seven"])
    builder.setupCharacterMap({ord(RARE): "seven"})
    builder.setupGlyf({".notdef": TTGlyphPen(None).glyph(), "seven": square})
    builder.setupHorizontalMetrics({".notdef": (1000, 0), "seven": (1000, 0)})
    builder.setupHorizontalHeader(ascent=1000, descent=0)
    builder.setupNameTable({"familyName": "Only Sevens", "styleName": "Regular"})
    builder.setupOS2(sTypoAscender=1000, usWinAscent=1000)
    builder.setupPost()
    path = tmp_path / "sevens.ttf"
    builder.save(path)
    manager = font_manager.fontManager
    usual = [entry for entry in manager.ttflist if entry.name == "DejaVu Sans"]
    monkeypatch.setattr(manager, "ttflist", usual)
    monkeypatch.setattr(font_manager, "findSystemFonts", lambda *_args, **_options: [str(path)])
    return "Only Sevens"


def drawn(path: Path) -> bytes:
    figure = new_figure(3, 2)
    axis = figure.subplots()
    axis.barh(["plain", f"model {RARE}"], [1.0, 2.0])
    save_figure(figure, path)
    return path.read_bytes()


def test_letters_that_the_usual_font_lacks_come_from_one_that_has_them(font: str) -> None:
    assert fonts_for("plain − text") == []
    assert fonts_for(f"model {RARE}") == [font]
    assert fonts_for("\U000e0fff") == []  # which no font has


@pytest.mark.usefixtures("font")
@pytest.mark.parametrize("ending", [".png", ".pdf"])
def test_pictures_show_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ending: str) -> None:
    with_font = drawn(tmp_path / f"with{ending}")
    monkeypatch.setattr("p2l.common.plots.fonts_for", lambda _: [])
    assert drawn(tmp_path / f"without{ending}") != with_font


@pytest.mark.usefixtures("font")
def test_the_text_of_an_svg_stays_text(tmp_path: Path) -> None:
    assert f">model {RARE}</text>" in drawn(tmp_path / "figure.svg").decode()


@pytest.mark.parametrize("name", ["$x$ and $y$", "a $ b", "\u4e2d\u6587", "two\nlines", "x" * 300, "\\frac{1}{"])
def test_any_name_can_be_drawn(tmp_path: Path, name: str) -> None:
    figure = new_figure(3, 2)
    figure.subplots().set_title(plain(name))
    save_figure(figure, tmp_path / "figure.svg", tmp_path / "figure.png")
    assert (tmp_path / "figure.png").read_bytes().startswith(b"\x89PNG")
