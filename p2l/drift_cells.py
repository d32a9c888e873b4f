"""What changed between two sides: one cell for each model and category, with its interval and whether it is chance.

A change is that of the model's coefficient against the mean of the models that both sides know, in points of an arena
score (400 points: odds of 10 to 1). A cell's interval is its own; so many cells are looked at that some intervals lie
off zero by chance, so a model is said to have risen or fallen only where the Benjamini-Hochberg procedure over all
cells finds it at the false discovery rate asked for.

Shapes: n cells.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from p2l.command import atomic_path
from p2l.leaderboard.board import POINTS_PER_LOGIT

__all__ = ["Cell", "Drift", "Measured", "judge", "write_json"]

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Measured:
    """A change in logits, before it is judged."""

    by: str
    """The column, or nothing for everything."""
    category: str
    model: str
    prompts: int
    """Different ones, of the side that has fewer."""
    change: float
    error: float
    """Standard error of the change over prompts."""
    rate_before: float
    """Chance of beating a model drawn from the rest of the field; ties count half."""
    rate_after: float


@dataclass(frozen=True)
class Cell:
    """How much better one model has become in one category."""

    by: str
    category: str
    model: str
    prompts: int
    change: float
    """In points; the interval too."""
    lower: float
    upper: float
    rate_before: float
    rate_after: float
    p: float
    """Chance of as large a change where nothing has changed, or by no more than the least change that counts."""
    q: float
    """The least false discovery rate at which the change counts as found."""
    verdict: str
    """rose, fell, or nothing."""

    @property
    def title(self) -> str:
        """The category as it heads a table."""
        return f"{self.by} = {self.category}" if self.by else self.category


@dataclass(frozen=True)
class Drift:
    """All cells of a comparison."""

    before: str
    after: str
    likelihood: str
    level: float
    fdr: float
    cells: list[Cell]
    notes: list[str]
    least_change: float = 0.0
    """In points."""

    @property
    def found(self) -> list[Cell]:
        """Those that rose or fell, the largest change first."""
        return sorted((cell for cell in self.cells if cell.verdict), key=lambda cell: -abs(cell.change))

    def to_dict(self) -> dict[str, Any]:
        """As plain data."""
        counts = {"cells_looked_at": len(self.cells), "cells_changed": len(self.found)}
        names = ("before", "after", "likelihood", "level", "fdr", "least_change", "notes")
        facts = {name: getattr(self, name) for name in names}
        return {**facts, **counts, "cells": [asdict(cell) for cell in self.cells]}

    def _least(self) -> str:
        return f" by more than {self.least_change:g} points" if self.least_change else ""

    def to_text(self, *, every: bool = False) -> str:
        """What rose and fell as a table, or every cell; without any change, the cells of everything."""
        models, titles = {cell.model for cell in self.cells}, {cell.title for cell in self.cells}
        head = [
            f"from {self.before} to {self.after}",
            f"cells looked at: {len(self.cells)}, of {len(models)} model{'s'[: len(models) > 1]} in {len(titles)} "
            f"categor{'ies' if len(titles) > 1 else 'y'}, likelihood {self.likelihood}",
            f"changed: {len(self.found)}{self._least()}, at a false discovery rate of {self.fdr:.0%}",
            "",
        ]
        shown = self.cells if every else self.found or [cell for cell in self.cells if not cell.by]
        return "\n".join([*head, *_table(shown, self.level), *(f"note: {note}" for note in self.notes)])


def judge(measured: Sequence[Measured], *, level: float, fdr: float, least_change: float = 0.0) -> list[Cell]:
    """Intervals of each change, by the t distribution with a degree of freedom less than prompts, and the verdicts.

    With `least_change`, in points, only larger changes count: p is of those, where the true one is just as large.
    """
    from scipy.special import stdtr, stdtrit

    change, error = (np.array([getattr(one, name) for one in measured]) for name in ("change", "error"))
    freedom = np.array([one.prompts - 1.0 for one in measured])
    with np.errstate(divide="ignore", invalid="ignore"):
        beyond = np.maximum(np.abs(change) - least_change / POINTS_PER_LOGIT, 0.0)
        ratio = np.where(beyond == 0, 0.0, beyond / error)
    p = np.minimum(1.0, 2 * stdtr(freedom, -ratio))
    q = adjusted(p)
    width = stdtrit(freedom, 0.5 + level / 2) * error
    return [
        _cell(one, float(wide), float(chance), float(rate), fdr)
        for one, wide, chance, rate in zip(measured, width, p, q, strict=True)
    ]


def _cell(one: Measured, width: float, p: float, q: float, fdr: float) -> Cell:
    change, lower, upper = (POINTS_PER_LOGIT * value for value in (one.change, one.change - width, one.change + width))
    verdict = "" if q > fdr or not change else "rose" if change > 0 else "fell"
    rates = one.rate_before, one.rate_after
    return Cell(one.by, one.category, one.model, one.prompts, change, lower, upper, *rates, p, q, verdict)


def adjusted(p: Floats) -> Floats:
    """Benjamini and Hochberg's adjusted p-values (n,): q_(i) = min over j >= i of p_(j) n / j."""
    order = np.argsort(p)
    scaled = p[order] * len(p) / np.arange(1, len(p) + 1)
    out = np.empty(len(p))
    out[order] = np.minimum.accumulate(scaled[::-1])[::-1]
    return np.minimum(out, 1.0)


def write_json(drift: Drift, path: str) -> None:
    """Write all cells, whole or not at all.

    Raises:
        InputError: the file cannot be written.
    """
    with atomic_path(path) as temporary:
        Path(temporary).write_text(json.dumps(_finite(drift.to_dict()), indent=1, ensure_ascii=False) + "\n", "utf-8")


def _finite(value: Any) -> Any:
    """JSON has no NaN."""
    if isinstance(value, dict):
        return {key: _finite(part) for key, part in value.items()}
    if isinstance(value, list):
        return [_finite(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _table(cells: Sequence[Cell], level: float) -> list[str]:
    header = ["", "model", "category", "beats the field", "change", f"{level:.0%} interval", "prompts", "p"]
    rows = [header, *map(_row, cells)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(header))]
    lines = [
        "  ".join(
            text.ljust(width) if column < 3 else text.rjust(width)
            for column, (text, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
    return [lines[0], "  ".join("-" * width for width in widths), *lines[1:]]


def _row(cell: Cell) -> list[str]:
    return [
        cell.verdict,
        cell.model,
        cell.title,
        f"{cell.rate_before:.1%} -> {cell.rate_after:.1%}",
        f"{cell.change:+.0f}",
        f"{cell.lower:+.0f} to {cell.upper:+.0f}",
        f"{cell.prompts:,}",
        f"{cell.p:.4f}" if cell.p >= 5e-5 else "<0.0001",
    ]
