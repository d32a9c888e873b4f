"""What `p2l auto-evals` prints: one line a category."""

from __future__ import annotations

from collections.abc import Sequence

from p2l.evaluation.results import CategoryResult, OutputResult
from p2l.metrics import Interval

__all__ = ["render"]

_HEADER = ("category", "votes", "loss", "accuracy", "skill over marginal", "L1 to truth", "Spearman")
_COMPARED = ("L1-Dist-Prob", "Spearman-lbs")


def render(result: OutputResult) -> str:
    """A table of the categories, then what a reader must know."""
    rows = [_HEADER, *(_cells(one) for one in result.categories if one.problem is None)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEADER))]
    lines = ["  ".join(_padded(row, widths)).rstrip() for row in rows]
    lines.insert(1, "  ".join("-" * width for width in widths))
    heading = f"{result.name}: {result.votes:,} votes on {result.prompts:,} prompts, {len(result.models)} models, "
    heading += f"{result.model_type}, likelihood {result.likelihood}, {result.level:.0%} intervals"
    return "\n".join([heading, "", *lines, *_notes(result)])


def _padded(row: Sequence[str], widths: Sequence[int]) -> list[str]:
    cells = zip(row, widths, strict=True)
    return [f"{cell:<{width}}" if n == 0 else f"{cell:>{width}}" for n, (cell, width) in enumerate(cells)]


def _cells(one: CategoryResult) -> tuple[str, ...]:
    intervals, simple, comparison = one.intervals or {}, one.simple or {}, one.comparison or {}
    values = [_with_interval(intervals.get(name), simple.get(name)) for name in ("Loss", "Accuracy")]
    compared = ["" if comparison.get(name) is None else f"{comparison[name]:.4f}" for name in _COMPARED]
    return (one.name, f"{one.votes:,}", *values, _with_interval(one.skill, None), *compared)


def _with_interval(found: Interval | None, value: float | None) -> str:
    if found is not None:
        return f"{found.estimate:.4f} ({found.lower:.4f} to {found.upper:.4f})"
    return "" if value is None else f"{value:.4f}"


def _notes(result: OutputResult) -> list[str]:
    notes = list(result.notes)
    for one in result.categories:
        notes += [f"{one.name} left out: {one.problem}"] if one.problem else [f"{one.name}: {n}" for n in one.notes]
    return [f"note: {note}" for note in notes]
