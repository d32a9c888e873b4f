"""How leaderboards show themselves in Python: as a table of text, as HTML in a notebook, as a figure.

`repr`, `_repr_html_` and `plot` of `Leaderboard`, `Prediction` and `P2L` come here with the win rates that they have.
"""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from p2l.common.plots import COLOURS, new_figure, plain
from p2l.common.text_table import text_table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Floats = npt.NDArray[np.float64]
SHOWN = 10
"""Models of a `repr`, and of HTML; prompts of one of several."""
_BEST = 3
_PLOTTED = 30
_BAR = "#b9d3e8"
_LINE = "#0b5c96"
_LEFT = "text-align:left"
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
        rows = [
            [str(rank), model, f"{rate:.1%}", *([f"{low:.1%} to {high:.1%}"] if self._has_limits else [])]
            for rank, (model, rate, low, high) in enumerate(self._rows(SHOWN), 1)
        ]
        head = ["rank", "model", "beats the field", *([self._interval] if self._has_limits else [])]
        return "\n".join([self.title, *text_table(head, rows, left={1}), *self._rest(SHOWN)])

    def html(self) -> str:
        """Return the same as HTML with bars, for a notebook."""
        cells = "".join(
            f"<tr><td>{rank}</td><td style='{_LEFT}'>{html.escape(model)}</td><td>{_bar(rate, low, high)}</td>"
            f"<td>{rate:.1%}</td></tr>"
            for rank, (model, rate, low, high) in enumerate(self._rows(SHOWN), 1)
        )
        named = "".join(f"<th style='{_LEFT}'>{name}</th>" for name in ("model", "beats the field"))
        line = f"; the line is the {self._interval}" if self._has_limits else ""
        notes = [*self._rest(SHOWN), f"The bar is the {_MEANING}, a tie counting half{line}."]
        rest = "".join(f"<p>{html.escape(note)}</p>" for note in notes)
        title = f"<p><b>{html.escape(self.title)}</b></p>"
        return f"{title}<table><tr><th></th>{named}<th></th></tr>{cells}</table>{rest}"

    def figure(self) -> Figure:
        """Return the win rates with their intervals as a figure, at most thirty models."""
        rows = self._rows(_PLOTTED)
        figure = new_figure(7.0, 1.1 + 0.28 * len(rows))
        axes = figure.add_subplot()
        places = np.arange(len(rows))
        rates, lower, upper = (np.array([row[column] for row in rows]) for column in (1, 2, 3))
        axes.barh(places, rates, height=0.55, color=_BAR)
        if self._has_limits:
            axes.hlines(places, lower, upper, color=COLOURS[0], linewidth=2)
        axes.axvline(0.5, color="#888888", linewidth=0.8)
        axes.set_yticks(places, [plain(row[0], 40) for row in rows])
        axes.invert_yaxis()
        axes.set_xlim(0, 1)
        axes.set_xlabel(_MEANING + (f", with {self._interval}" if self._has_limits else ""))
        axes.xaxis.set_major_formatter(lambda share, _: f"{share:.0%}")
        axes.set_title(plain(self.title, 80), loc="left")
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
        return figure

    @property
    def _interval(self) -> str:
        return f"{self.level:.0%} interval"

    @property
    def _has_limits(self) -> bool:
        return bool(np.isfinite(self.lower).any())

    def _rows(self, most: int) -> list[tuple[str, float, float, float]]:
        columns = (self.models, self.rates.tolist(), self.lower.tolist(), self.upper.tolist())
        return list(zip(*(column[:most] for column in columns), strict=True))

    def _rest(self, most: int) -> list[str]:
        return _more(min(most, len(self.models)), len(self.models))


def best_text(title: str, boards: Sequence[Rates], count: int) -> str:
    """Return the best models of the first of `count` prompts, a row for each, under the title."""
    rows = [[str(row), *best] for row, best in enumerate(_best(boards))]
    head = ["row", *_places(rows)]
    return "\n".join([title, *text_table(head, rows, left=set(range(1, len(head)))), *_more(len(boards), count)])


def best_html(title: str, boards: Sequence[Rates], count: int) -> str:
    """Return the same as HTML, for a notebook."""
    rows = [[str(row), *best] for row, best in enumerate(_best(boards))]
    head = "".join(f"<th style='{_LEFT}'>{name}</th>" for name in ("row", *_places(rows)))
    cells = "".join(
        f"<tr>{''.join(f'<td style={_LEFT!r}>{html.escape(cell)}</td>' for cell in row)}</tr>" for row in rows
    )
    notes = [*_more(len(boards), count), f"Percentages are the {_MEANING}, a tie counting half."]
    rest = "".join(f"<p>{html.escape(note)}</p>" for note in notes)
    return f"<p><b>{html.escape(title)}</b></p><table><tr>{head}</tr>{cells}</table>{rest}"


def _best(boards: Sequence[Rates]) -> list[list[str]]:
    return [
        [f"{model} {rate:.1%}" for model, rate in zip(board.models[:_BEST], board.rates[:_BEST], strict=True)]
        for board in boards
    ]


def _places(rows: Sequence[Sequence[str]]) -> tuple[str, ...]:
    return ("best", "second", "third")[: max((len(row) - 1 for row in rows), default=0)]


def _more(shown: int, count: int) -> list[str]:
    return [f"... and {count - shown} more"] if count > shown else []


def _bar(rate: float, lower: float, upper: float) -> str:
    """Return a bar of 160 pixels, with the interval if there is one."""
    line = (
        f"<line x1='{160 * lower:.1f}' x2='{160 * upper:.1f}' y1='7' y2='7' stroke='{_LINE}' stroke-width='2'/>"
        if math.isfinite(lower)
        else ""
    )
    return f"<svg width='160' height='14'><rect width='{160 * rate:.1f}' y='2' height='10' fill='{_BAR}'/>{line}</svg>"
