"""What changed between two sides: one cell for each model and category, with its interval and whether it is chance.

A change is that of the model's coefficient against the mean of the models that both sides know, in points of an arena
score (400 points: odds of 10 to 1). A cell's interval is its own, and of many cells some intervals lie
off zero by chance, so a model is said to have risen or fallen only where the Benjamini-Hochberg procedure over all
cells finds it at the false discovery rate asked for.

Shapes: n cells.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from p2l.leaderboard.board import POINTS_PER_LOGIT

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Measured:
    """A change in logits, before it is judged; `by` is the column of the category, empty for everything."""

    by: str
    category: str
    model: str
    prompts: int
    """Different ones, of the side with fewer."""
    change: float
    error: float
    """Standard error of the change over prompts."""
    rate_before: float
    """Chance of beating a model drawn from the rest of the field; ties count half."""
    rate_after: float


@dataclass
class Changes:
    """Measured changes and notes for the reader."""

    likelihood: str
    measured: list[Measured] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class DriftCell:
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
    """Chance of as large a change where the true one is no larger than the least that counts."""
    q: float
    """The least false discovery rate at which the change is found."""
    verdict: str
    """rose, fell, or empty."""

    @property
    def title(self) -> str:
        """The category as the heading of a table."""
        return f"{self.by} = {self.category}" if self.by else self.category


@dataclass(frozen=True)
class Drift:
    """All cells of a comparison."""

    before: str
    after: str
    likelihood: str
    level: float
    fdr: float
    cells: list[DriftCell]
    notes: list[str]
    least_change: float = 0.0
    """In points."""

    @property
    def found(self) -> list[DriftCell]:
        """The cells that rose or fell, the largest change first."""
        return sorted((cell for cell in self.cells if cell.verdict), key=lambda cell: -abs(cell.change))

    def to_dict(self) -> dict[str, Any]:
        """Return plain data."""
        return {"cells_looked_at": len(self.cells), "cells_changed": len(self.found), **asdict(self)}


def judge(measured: Sequence[Measured], *, level: float, fdr: float, least_change: float = 0.0) -> list[DriftCell]:
    """Return each change with its interval (t distribution over prompts), p-value and verdict.

    With `least_change`, in points, only larger changes count.
    """
    from scipy.special import stdtrit

    change = np.array([cell.change for cell in measured])
    error = np.array([cell.error for cell in measured])
    freedom = np.array([cell.prompts - 1.0 for cell in measured])
    p = p_values(change, error, freedom, least_change)
    q = adjusted(p)
    half = stdtrit(freedom, 0.5 + level / 2) * error
    return [
        DriftCell(
            by=cell.by,
            category=cell.category,
            model=cell.model,
            prompts=cell.prompts,
            change=POINTS_PER_LOGIT * cell.change,
            lower=POINTS_PER_LOGIT * (cell.change - float(half[place])),
            upper=POINTS_PER_LOGIT * (cell.change + float(half[place])),
            rate_before=cell.rate_before,
            rate_after=cell.rate_after,
            p=float(p[place]),
            q=float(q[place]),
            verdict="" if q[place] > fdr or not cell.change else "rose" if cell.change > 0 else "fell",
        )
        for place, cell in enumerate(measured)
    ]


def p_values(change: Floats, error: Floats, freedom: Floats, least_change: float) -> Floats:
    """Return chances of as large changes (in logits, with standard errors) by the t distribution.

    The true change is taken to be as large as the least that counts, in points.
    """
    from scipy.special import stdtr

    with np.errstate(divide="ignore", invalid="ignore"):
        beyond = np.maximum(np.abs(change) - least_change / POINTS_PER_LOGIT, 0.0)
        ratio = np.where(beyond == 0, 0.0, beyond / error)
    return np.asarray(np.minimum(1.0, 2 * stdtr(freedom, -ratio)))


def adjusted(p: Floats) -> Floats:
    """Return Benjamini and Hochberg's adjusted p-values (n,): q_(i) = min over j >= i of p_(j) n / j."""
    order = np.argsort(p)
    scaled = p[order] * len(p) / np.arange(1, len(p) + 1)
    out = np.empty(len(p))
    out[order] = np.minimum.accumulate(scaled[::-1])[::-1]
    return np.minimum(out, 1.0)
