"""Report judge-consistency: how each judge uses the scale, by attribute and over time."""

from __future__ import annotations

from typing import Any

from coeval.analysis.results import JudgeConsistency, SpreadRow
from coeval.reports.frame import notes_of
from coeval.reports.pieces import grid_of
from coeval.reports.score_distribution import drift_lines

__all__ = ["DIMENSIONS", "parts"]

DIMENSIONS = ("judge",)


def parts(result: JudgeConsistency) -> dict[str, Any]:
    """What the template shows."""
    notes = notes_of(result.header)
    spread = [
        (row.judge, f"{row.attribute}={row.value}", row.variance, f"mean {row.mean:.3f} of {row.units:,} scores")
        for row in result.spread
    ]
    return {
        "calibration": result.calibration,
        "numeric": {row.judge: max(0.0, 1.0 - row.high - row.medium - row.low) for row in result.calibration},
        "flagged": [row.judge for row in result.calibration if row.flagged],
        "variance": grid_of(
            ("judge", "attribute"),
            spread,
            notes=notes,
            digits=3,
            most=None,
            order=(result.header.judges, ()),
            empty="There is nothing to show: no scores of items with attributes.",
        ),
        "boxes": _by_attribute(result.spread),
        "drift": drift_lines(result.drift, "mean"),
        "agreement": drift_lines(result.drift, "spa"),
        "contents": [("calibration", "Use of the scale"), ("spread", "By attribute"), ("drift", "Over time")],
    }


def _by_attribute(rows: tuple[SpreadRow, ...]) -> list[tuple[str, list[SpreadRow]]]:
    names = dict.fromkeys(row.attribute for row in rows)
    return [(name, [row for row in rows if row.attribute == name]) for name in names]
