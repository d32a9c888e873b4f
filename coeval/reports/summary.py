"""Report summary-report: a dashboard on which readers choose judges and teachers, and students are ranked anew."""

from __future__ import annotations

from typing import Any

from coeval.analysis.results import SummaryReport
from coeval.reports.frame import notes_of
from coeval.reports.student_report import ranking

__all__ = ["DIMENSIONS", "choices", "parts"]

DIMENSIONS = ("student", "task", "factor", "judge", "teacher")
_TEACHERS = ("v1", "s2", "r3")
_JUDGES = ("weighted_spa", "weighted_wpa", "weighted_kappa")


def parts(result: SummaryReport) -> dict[str, Any]:
    """What the template shows."""
    return {
        "ranking": ranking(result.students, notes_of(result.header)),
        "teachers": len(result.teachers),
        "judges": len(result.judges),
        "lone": [
            row.judge for row in result.judges if row.units and all(getattr(row, name) is None for name in _JUDGES)
        ],
        "contents": [("live", "Choose and rank"), ("ranking", "Ranking on all scores")],
    }


def choices(result: SummaryReport) -> dict[str, Any]:
    """What the script of the page chooses by: scores of teachers and judges, where thresholds begin, ranks on all."""
    return {
        "teachers": {row.teacher: [getattr(row, name) for name in _TEACHERS] for row in result.teachers},
        "judges": {row.judge: [getattr(row, name) for name in _JUDGES] for row in result.judges},
        "thresholds": {"teacher": result.teacher_threshold, "judge": result.judge_threshold},
        "ranks": {row.student: row.rank for row in result.students},
        **({"weights": result.header.weights} if result.header.weights else {}),
    }
