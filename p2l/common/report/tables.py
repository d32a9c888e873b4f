"""Tables of a page: columns that sort by their values, cells that show a number, a text, or an interval as a bar."""

from __future__ import annotations

import importlib.util
import math
import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from p2l.common.files import atomic_path
from p2l.common.prompts import cut_marks

if TYPE_CHECKING:
    from jinja2 import Environment


@dataclass(frozen=True)
class Scale:
    """The range that all bars of a column share.

    Attributes:
        low, high: its ends.
        zero: where a line is drawn, if it lies within.
    """

    low: float
    high: float
    zero: float | None = None

    @classmethod
    def around(cls, values: Sequence[float], zero: float | None = None) -> Scale:
        """Return the range of the finite values among these (and `zero`), with a little room on both sides."""
        finite = [float(value) for value in values if math.isfinite(value)] + ([] if zero is None else [zero])
        low, high = (min(finite), max(finite)) if finite else (0.0, 1.0)
        # A single value has no range, by which `place` divides.
        room = 0.03 * (high - low) or 1.0
        return cls(low - room, high + room, zero)

    def place(self, value: float) -> float:
        """Return the place of a value, in percent of the range."""
        return round(min(100.0, max(0.0, 100.0 * (value - self.low) / (self.high - self.low))), 2)


@dataclass(frozen=True)
class Cell:
    """One cell.

    Attributes:
        text: shown in the cell.
        sort: key of the order; the text if None.
        tone: `good`, `bad` or `quiet`: its colour.
        note: shown when the pointer rests on it.
        bar: (lower, value, upper), drawn on the column's scale; ends that are NaN are not drawn.
        link: anchor on the page that it leads to.
        heat: from -1 (the worst) to 1 (the best), its background in a heat map; 0 for none.
    """

    text: str
    sort: float | str | None = None
    tone: str = ""
    note: str = ""
    bar: tuple[float, float, float] | None = None
    link: str = ""
    heat: float = 0.0

    @property
    def key(self) -> str | None:
        """The sort key, where that is not its text."""
        if self.sort is None:
            return None
        # Twelve digits sort as well as all, and much of a page is tables.
        key = self.sort if isinstance(self.sort, str) else f"{self.sort:.12g}"
        return None if key == self.text.casefold() else key

    @property
    def heat_class(self) -> str:
        """The class of its background, in five steps each way."""
        return f"{'r' if self.heat > 0 else 'f'}{max(1, min(5, math.ceil(5 * abs(self.heat))))}"


Value: TypeAlias = "Cell | str | int | float | None"


@dataclass(frozen=True)
class Column:
    """One column: its title, the places after the point of its numbers, a note, and the scale of its bars.

    `wide` columns hold prose and wrap; numbers are set to the right, and cells of a heat map (`is_map`) to the middle.
    Text leaves out a column that is `page_only`; `key` is the column's name in CSV and JSON, by default from its title.
    """

    title: str
    digits: int | None = None
    note: str = ""
    scale: Scale | None = None
    number: bool = True
    wide: bool = False
    is_map: bool = False
    page_only: bool = False
    key: str = ""

    @property
    def field(self) -> str:
        """Its name in CSV and JSON."""
        return self.key or re.sub(r"\W+", "_", self.title.casefold()).strip("_")

    def cell(self, value: Value) -> Cell:
        """Return a value as a cell; None and NaN are a dash that sorts last."""
        if isinstance(value, Cell):
            return value
        if value is None or (isinstance(value, float) and math.isnan(value)):
            return Cell("–", "", "quiet")
        if isinstance(value, str):
            return Cell(value, value.casefold())
        return Cell(number_text(value, self.digits), float(value))

    def data(self, value: Value) -> float | str | None:
        """Return a value as CSV and JSON hold it: of a cell the number that it sorts by, else its text."""
        if isinstance(value, Cell):
            return value.sort if isinstance(value.sort, int | float) else value.text
        return None if isinstance(value, float) and math.isnan(value) else value


@dataclass(frozen=True)
class Table:
    """Rows under columns.

    Attributes:
        columns: their heads.
        rows: a value for each column; see `Column.cell`.
        shown: rows beyond this number are folded away at first (never in print).
        caption: a sentence above it.
        filter: what readers can filter by name, such as `models`; the names are the first column that is not a number.
    """

    kind: ClassVar[str] = "table"

    columns: Sequence[Column]
    rows: Sequence[Sequence[Value]]
    shown: int = 60
    caption: str = ""
    filter: str = ""

    @classmethod
    def of(cls, *columns: tuple[Column, Sequence[Value]], **more: Any) -> Table:
        """Return a table of columns, each with its cells; `more` are other attributes."""
        rows = [list(row) for row in zip(*(cells for _, cells in columns), strict=True)]
        return cls([column for column, _ in columns], rows, **more)

    @property
    def names(self) -> int:
        """The place of the column that the filter reads."""
        return next((place for place, column in enumerate(self.columns) if not column.number), 0)

    @property
    def limit(self) -> int:
        """Number of rows shown at first: all, where folding would hide only a few."""
        return len(self.rows) if len(self.rows) <= 1.25 * self.shown else self.shown


def number_text(value: float | None, digits: int | None = None) -> str:
    """Format a number for readers: grouped thousands, a true minus, `digits` decimals; a dash for none."""
    if value is None or math.isnan(value):
        return "–"
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    if digits is None:
        digits = 0 if float(value).is_integer() else 4
    text = f"{value:,.{digits}f}"
    return text.replace("-", "−") if float(text.replace(",", "")) else text.replace("-", "")


def dollars_text(amount: float) -> str:
    """Format dollars with cents, and amounts below a dollar with three significant digits."""
    if not 0 < abs(amount) < 1:
        return f"${amount:,.2f}"
    decimals = 2 - math.floor(math.log10(abs(amount)))
    whole, _, fraction = f"{amount:.{decimals}f}".partition(".")
    return f"${whole}.{fraction.rstrip('0').ljust(2, '0')}"


# Templates to pages.
#
# `base.html` is a template of this package, `my_package/report.html` one in the folder `templates` of `my_package`; so
# a package keeps its pages beside its code and shares style, macros and filters. A name that a template uses and nobody
# gave is an error, not a gap on the page.

# No HTML page may hold these characters, even escaped.
_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff]")


def render(template_name: str, **data: Any) -> str:
    """Render `base.html` of this package, or `package/name.html` of any other's folder `templates`, as text.

    Of `data`, text is escaped and `Markup` is not; jinja2 raises where the template needs more of it.
    """
    return _CONTROL.sub("\N{REPLACEMENT CHARACTER}", _environment().get_template(template_name).render(**data)) + "\n"


def page_policy(**sources: str) -> str:
    """Return a Content-Security-Policy that lets a page use these sources alone: `script_src="'self'"`.

    A browser then runs no script and loads nothing that is not named, so that text which slips through the escaping of
    a template can still do nothing.
    """
    named = {name.replace("_", "-"): source for name, source in sources.items()}
    others = dict.fromkeys(("base-uri", "form-action"), "'none'")  # to which the default does not apply
    policy = {"default-src": "'none'"} | named | others | named
    return "; ".join(f"{name} {source}" for name, source in policy.items())


def write_page(page: str, path: str | Path) -> Path:
    """Write a page, whole or not at all."""
    with atomic_path(path) as temporary:
        temporary.write_text(page, encoding="utf-8")
    return Path(path)


def anchor(*parts: object) -> str:
    """Return an id for a link within the page: letters, digits and hyphens, the same for the same parts."""
    text = unicodedata.normalize("NFKC", cut_marks("-".join(map(str, parts)))).casefold()
    return "s-" + re.sub(r"[\W_]+", "-", text).strip("-")


@lru_cache(maxsize=1)
def _environment() -> Environment:
    from jinja2 import Environment, FunctionLoader, StrictUndefined

    environment = Environment(
        loader=FunctionLoader(_source), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {"anchor": anchor, "number": number_text, "dollars": dollars_text}
    return environment


def template_text(name: str) -> str:
    """Return the text of a template or another file beside it, such as a script; as `render` includes it."""
    text = _source(name)
    assert text is not None
    return text.removesuffix("\n")


def _source(name: str) -> str | None:
    """Return the text of a template, or None where there is none."""
    package, _, file = name.rpartition("/")
    spec = importlib.util.find_spec(package or "p2l.common.report")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        path = Path(folder) / "templates" / file
        if path.is_file():
            return path.read_text(encoding="utf-8")
    return None
