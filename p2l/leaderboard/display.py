"""How leaderboards show themselves in Python: as a table of text, as HTML in a notebook, as a figure.

`repr`, `_repr_html_` and `plot` of `Leaderboard`, `Prediction` and `P2L` come here with the win rates that they have.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from p2l.common.text_table import text_table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Floats = npt.NDArray[np.float64]
SHOWN_ROWS = 10
"""Models of a `repr`, and of HTML; prompts of one of several."""
_BEST_MODELS = 3
_PLOTTED_MODELS = 30
_BAR_PIXELS = 160
_MEANING = "chance of beating another model drawn at random"


@dataclass(frozen=True)
class Rates:
    """The win rates of M models, best first, under a title; ends of intervals are NaN where there are none."""

    title: str
    models: Sequence[str]
    rates: Floats
    lower: Floats
    upper: Floats
    level: float = 0.95
    """Coverage of the intervals."""

    @classmethod
    def of(
        cls,
        title: str,
        models: Sequence[str],
        rates: npt.ArrayLike,
        limits: tuple[npt.ArrayLike, npt.ArrayLike] | None = None,
        level: float = 0.95,
    ) -> Rates:
        """Sort the models by their rates."""
        values = np.asarray(rates, dtype=np.float64)
        order = np.argsort(-values, kind="stable")
        none = np.full(len(values), math.nan)
        lower, upper = (none, none) if limits is None else (np.asarray(end, dtype=np.float64) for end in limits)
        return cls(title, [models[place] for place in order], values[order], lower[order], upper[order], level)

    def text(self) -> str:
        """Return the title and the first models as a table."""
        head = ["rank", "model", "beats the field", *([self._interval] if self._has_limits else [])]
        rows = [
            [str(rank), model, f"{rate:.1%}", *([f"{low:.1%} to {high:.1%}"] if self._has_limits else [])]
            for rank, (model, rate, low, high) in enumerate(self._rows(SHOWN_ROWS), 1)
        ]
        return "\n".join([self.title, *text_table(head, rows, left={1}), *_more(len(rows), len(self.models))])

    def html(self) -> str:
        """Return the same as HTML with bars, for a notebook."""
        rows = [
            [str(rank), model, _bar(rate, low, high), f"{rate:.1%}"]
            for rank, (model, rate, low, high) in enumerate(self._rows(SHOWN_ROWS), 1)
        ]
        line = f"; the line is the {self._interval}" if self._has_limits else ""
        notes = [*_more(len(rows), len(self.models)), f"The bar is the {_MEANING}, a tie counting half{line}."]
        return _html(self.title, ["", "model", "beats the field", ""], rows, notes)

    def figure(self) -> Figure:
        """Return the win rates with their intervals as a figure, at most thirty models."""
        from p2l.common.report.charts import percent
        from p2l.common.report.images import draw
        from p2l.common.report.reports import Figure as ReportFigure
        from p2l.common.report.reports import Forest, ForestRow

        rows = [ForestRow(model, low, rate, high) for model, rate, low, high in self._rows(_PLOTTED_MODELS)]
        unit = f"{_MEANING}, with {self._interval}" if self._has_limits else _MEANING
        forest = Forest(rows, "Model", unit, lambda share: percent(share, 0), zero=0.5)
        return draw(ReportFigure(forest, self.title), width=7.0)

    @property
    def _interval(self) -> str:
        return f"{self.level:.0%} interval"

    @property
    def _has_limits(self) -> bool:
        return bool(np.isfinite(self.lower).any())

    def _rows(self, most: int) -> list[tuple[str, float, float, float]]:
        columns = (self.models, self.rates.tolist(), self.lower.tolist(), self.upper.tolist())
        return list(zip(*(column[:most] for column in columns), strict=True))


def best_text(title: str, boards: Sequence[Rates], count: int) -> str:
    """Return the best models of the first of `count` prompts, a row for each, under the title."""
    head, rows = _best(boards)
    return "\n".join([title, *text_table(head, rows, left=range(1, len(head))), *_more(len(boards), count)])


def best_html(title: str, boards: Sequence[Rates], count: int) -> str:
    """Return the same as HTML, for a notebook."""
    notes = [*_more(len(boards), count), f"Percentages are the {_MEANING}, a tie counting half."]
    return _html(title, *_best(boards), notes)


def _best(boards: Sequence[Rates]) -> tuple[list[str], list[list[str]]]:
    """Return the head and the rows of the best models of prompts."""
    rows = [
        [str(row), *(f"{model} {rate:.1%}" for model, rate, _, _ in board._rows(_BEST_MODELS))]
        for row, board in enumerate(boards)
    ]
    return ["row", "best", "second", "third"][: max(map(len, rows), default=1)], rows


def _more(shown: int, count: int) -> list[str]:
    return [f"... and {count - shown} more"] if count > shown else []


def _html(title: str, head: Sequence[str], rows: Sequence[Sequence[str]], notes: Sequence[str]) -> str:
    """Return a table of texts under a title; notebooks have no style sheet of ours."""
    from markupsafe import Markup

    cell = "<{0} style='text-align:left'>{{}}</{0}>"
    forms = [Markup(cell.format("th")), *([Markup(cell.format("td"))] * len(rows))]
    lines = [Markup("").join(map(form.format, row)) for form, row in zip(forms, [head, *rows], strict=True)]
    body = [Markup("<tr>{}</tr>").format(line) for line in lines]
    paragraphs = Markup("").join(Markup("<p>{}</p>").format(note) for note in notes)
    return Markup("<p><b>{}</b></p><table>{}</table>{}").format(title, Markup("").join(body), paragraphs)


def _bar(rate: float, lower: float, upper: float) -> str:
    """Return the picture of a win rate, with the interval if there is one."""
    from markupsafe import Markup

    line = ""
    if math.isfinite(lower):
        ends = f"x1='{_BAR_PIXELS * lower:.1f}' x2='{_BAR_PIXELS * upper:.1f}'"
        line = f"<line {ends} y1='7' y2='7' stroke='#0b5c96' stroke-width='2'/>"
    bar = f"<rect width='{_BAR_PIXELS * rate:.1f}' y='2' height='10' fill='#b9d3e8'/>"
    return Markup(f"<svg width='{_BAR_PIXELS}' height='14'>{bar}{line}</svg>")
