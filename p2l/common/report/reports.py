"""Reports: a title with model, data and date, a verdict in one sentence, its picture, a leaderboard, then metrics.

Every report of the commands is such an object, and one template shows all of them: a report is built, never laid out.
The page holds its style, its one script and its figures. Figures are numbered in the order of the page.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, timezone
from pathlib import Path
from typing import Any, ClassVar, TypeAlias

from markupsafe import Markup, escape

from p2l.common.bootstrap import Interval
from p2l.common.cli import need
from p2l.common.errors import ConfigError, InputError
from p2l.common.files import check_can_write, output_path
from p2l.common.plots import check_outputs
from p2l.common.report.charts import Axes, Chart, Series, Text, chart_svg, keys_of, percent, short_number
from p2l.common.report.drawing import Axis
from p2l.common.report.heat import Heat
from p2l.common.report.tables import Scale, Table, page_policy, render, template_text


@dataclass(frozen=True)
class Verdict:
    """The result in one sentence, with its interval.

    Attributes:
        sentence: the verdict.
        tone: `good`, `bad`, or empty where nothing is decided: the colour of its edge.
        reason: what it rests on, or what to do.
    """

    sentence: str
    tone: str = ""
    reason: str = ""


@dataclass(frozen=True)
class Figure:
    """A picture with its title; the page numbers it.

    Attributes:
        picture: a chart, a forest plot, a heat map, or SVG, which a page alone can show.
        title: what it shows.
        caption: how to read it.
        keys: swatch and name of what the picture shows; those of a chart's series and of a heat map by default.
        numbers: tables behind it, folded away.
        panels: (title, chart) of several charts of the same series beside each other, instead of `picture`.
        is_narrow: whether it is about as wide as high.
        note: a sentence below the title, which the picture itself holds in a file.
    """

    kind: ClassVar[str] = "figure"
    picture: str | Chart | Forest | Heat
    title: str
    caption: str = ""
    keys: Sequence[tuple[str, str]] = ()
    numbers: Sequence[Table] = ()
    panels: Sequence[tuple[str, str | Chart]] = ()
    is_narrow: bool = False
    note: str = ""

    @classmethod
    def of(cls, series: Sequence[Series], axes: Axes, title: str, caption: str = "", **more: Any) -> Figure:
        """Return a chart of series; `more` are other attributes."""
        return cls(Chart(series, axes), title, caption, **more)

    @property
    def pictures(self) -> Sequence[tuple[str, str | Chart | Forest | Heat]]:
        """Its panels with their titles, or the one picture."""
        return self.panels or [("", self.picture)]

    @property
    def legend(self) -> Sequence[tuple[str, str]]:
        """Swatches and names for the key of the picture."""
        picture = self.pictures[0][1]
        if self.keys or not isinstance(picture, Chart | Heat):
            return self.keys
        return keys_of(picture.series) if isinstance(picture, Chart) else picture.legend()

    def svg(self, picture: str | Chart, panel: str = "") -> str:
        """Return the SVG of the figure's chart, or of one of its panels."""
        if isinstance(picture, str):
            return picture
        return chart_svg(picture.series, picture.axes, f"{self.title}: {panel}" if panel else self.title)


@dataclass(frozen=True)
class ForestRow:
    """An estimate of a forest plot: `tone` is `good`, `bad` or empty."""

    name: str
    lower: float
    value: float
    upper: float
    tone: str = ""
    note: str = ""


@dataclass(frozen=True)
class Forest:
    """Estimates with their intervals below each other, on one scale with a line at `zero`.

    Attributes:
        rows: the estimates.
        name: what they are of, above their names.
        unit: what the scale is of.
        text: writes a number.
        zero: where the line is.
    """

    rows: Sequence[ForestRow]
    name: str
    unit: str
    text: Text = short_number
    zero: float | None = 0.0
    scale: Scale = field(init=False)

    def __post_init__(self) -> None:
        ends = [end for row in self.rows for end in (row.lower, row.value, row.upper)]
        object.__setattr__(self, "scale", Scale.around(ends, self.zero))

    def row_svg(self, row: ForestRow) -> str:
        """Return the picture of a row: the interval, its estimate, and the line at the scale's zero."""
        scale = self.scale
        parts = []
        if scale.zero is not None:
            zero = f"{scale.place(scale.zero)}%"
            parts.append(f'<line class="zero" x1="{zero}" x2="{zero}" y2="20"/>')
        if math.isfinite(row.lower) and math.isfinite(row.upper):
            ends = f'x1="{scale.place(row.lower)}%" x2="{scale.place(row.upper)}%"'
            parts.append(f'<line class="whisker" {ends} y1="10" y2="10"/>')
        parts.append(f'<circle class="dot" cx="{scale.place(row.value)}%" cy="10" r="4"/>')
        return Markup(f'<svg class="forest" width="100%" height="20" aria-hidden="true">{"".join(parts)}</svg>')

    def axis_svg(self) -> str:
        """Return the axis below the rows."""
        axis = Axis(self.scale.low, self.scale.high, 0.0, 100.0, False)
        parts = ['<line class="axis" x2="100%"/>']
        for tick in axis.ticks():
            at = f"{axis.place(tick):.2f}%"
            parts.append(f'<line class="axis" x1="{at}" x2="{at}" y2="4"/>')
            parts.append(f'<text class="tick" x="{at}" y="17" text-anchor="middle">{escape(self.text(tick))}</text>')
        return Markup(f'<svg class="forest" width="100%" height="20" aria-hidden="true">{"".join(parts)}</svg>')

    def value_text(self, row: ForestRow) -> str:
        """Return the estimate with its interval."""
        return with_interval(row, self.text)


@dataclass(frozen=True)
class Measure:
    """A metric: its name, its value and interval as text, and its meaning."""

    name: str
    value: str
    interval: str = ""
    meaning: str = ""


@dataclass(frozen=True)
class MetricTable:
    """Metrics, each explained where it stands."""

    kind: ClassVar[str] = "metrics"
    rows: Sequence[Measure]


@dataclass(frozen=True)
class Prose:
    """A paragraph; its `tone` is `quiet`, `problem`, or `heading` for a heading below that of the section."""

    kind: ClassVar[str] = "prose"
    text: str
    tone: str = ""


@dataclass(frozen=True)
class Notes:
    """Sentences that a reader must know, as a list."""

    kind: ClassVar[str] = "notes"
    sentences: Sequence[str]


@dataclass(frozen=True)
class Links:
    """A list of pages: (address, name, words beside it)."""

    kind: ClassVar[str] = "links"
    rows: Sequence[tuple[str, str, str]]


@dataclass(frozen=True)
class Fold:
    """Parts below a line that opens them; `key` is its id for links."""

    kind: ClassVar[str] = "fold"
    title: str
    parts: Sequence[Part]
    note: str = ""
    key: str = ""
    is_open: bool = False


Part: TypeAlias = "Figure | Table | MetricTable | Prose | Notes | Links | Fold | None"  # of a section; None: left out


@dataclass(frozen=True)
class Section:
    """A part of the report with a heading, which the contents call it too; text leaves out what is `page_only`."""

    title: str
    parts: Sequence[Part]
    lead: str = ""
    page_only: bool = False


@dataclass(frozen=True)
class Report:
    """A report.

    Attributes:
        kind: what it is, such as `Evaluation of forecasts`.
        subject: what it is about, a model or two.
        data: what was measured on.
        made: the day on which it was measured.
        verdict: the first thing that a reader sees.
        picture: the second.
        sections: the others, in order; the first is a leaderboard.
        facts: settings, at the end.
        notes: sentences below them.
        home: address of a page above this one, with its name.
        provenance: what made it, as JSON for a program; empty without any.
    """

    kind: str
    subject: str
    data: str
    made: date
    verdict: Verdict
    picture: Figure | None
    sections: Sequence[Section]
    facts: Sequence[tuple[str, str]] = ()
    notes: Sequence[str] = ()
    home: tuple[str, str] | None = None
    provenance: str = ""

    @property
    def day(self) -> str:
        """The date in words."""
        return f"{self.made.day} {self.made:%B %Y}"

    @property
    def title(self) -> str:
        """The title of the document."""
        return f"{self.subject} on {self.data}, {self.day}"


def check_page(path: str | Path, *inputs: str | Path | None) -> Path:
    """Return the path of a page, checked before any work: InputError if it cannot be written or is an input."""
    need("jinja2")
    if Path(path).suffix.lower() not in (".html", ".htm"):
        raise InputError(f"{path}: the ending of a page must be .html")
    return check_can_write(Path(path).expanduser(), *inputs)


def check_result_files(args: argparse.Namespace, *inputs: str | None) -> None:
    """Refuse --output, --html and --plot that cannot be written or are one file, before any work is done."""
    files = [name for name in (args.output, args.html, args.plot) if name is not None]
    if len(set(files)) < len(files):
        raise ConfigError("--output, --html and --plot name the same file; name another")
    check_outputs(args.output, args.plot, *inputs)
    if args.html is not None:
        args.html = str(check_page(args.html, *inputs))


def save_report(report: Report, path: str | Path) -> Path:
    """Write the page of a report, whole or not at all, and return its path; `-` is stdout."""
    with output_path(path) as temporary:
        temporary.write_text(report_page(report), encoding="utf-8")
    return Path(path)


def report_page(report: Report) -> str:
    """Return the page of a report."""
    # The policy lets a browser run this script and no other, and load nothing.
    script = template_text("p2l.common.report/tables.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = page_policy(script_src=f"'sha256-{digest}'", style_src="'unsafe-inline'", img_src="data:")
    return render("p2l.common.report/report.html", report=report, script=script, policy=policy)


def today() -> date:
    """Return the date in UTC, for reports of fresh results."""
    return datetime.now(timezone.utc).date()


def day_of(path: Path) -> date:
    """Return the date in UTC at which a file was written, for reports of its content."""
    return datetime.fromtimestamp(path.stat().st_mtime, timezone.utc).date()


def with_interval(value: Interval | ForestRow, text: Text) -> str:
    """Return `48.1% (46.0% to 50.2%)`, or the number alone where there is no interval."""
    middle = value.value if isinstance(value, ForestRow) else value.estimate
    return f"{text(middle)} ({span(value, text)})" if math.isfinite(value.lower) else text(middle)


def span(value: Interval | ForestRow, text: Text) -> str:
    """Return the ends of an interval: `46.0% to 50.2%`."""
    return f"{text(value.lower)} to {text(value.upper)}"


def percents(value: float) -> str:
    """Return a share with one decimal, as terminals print it."""
    return percent(value, 1)
