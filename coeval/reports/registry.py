"""Every report by the name of its subcommand."""

from __future__ import annotations

from collections.abc import Callable

from coeval.analysis.agreement import breakdown, is_degenerate, judge_pairs, judge_rows, reliability
from coeval.analysis.bias import bias_report
from coeval.analysis.coverage import complete_report, coverage_summary, summary_report
from coeval.analysis.distribution import interaction_matrix, judge_consistency, score_distribution
from coeval.analysis.results import JudgeReport, Report, RobustSettings, StudentReport, TeacherReport
from coeval.analysis.robust import DEFAULTS, robust_summary
from coeval.analysis.students import (
    hamming_rows,
    label_rows,
    pair_power,
    student_cells,
    student_pairs,
    student_rows,
    teacher_cells,
    teacher_rows,
    variance_rows,
)
from coeval.analysis.units import Loaded
from coeval.pairs.board import pairs_report

FOLDERS = {
    "coverage-summary": "coverage_summary",
    "score-distribution": "score_distribution",
    "teacher-report": "teacher_report",
    "judge-report": "judge_report",
    "student-report": "student_report",
    "interaction-matrix": "interaction_matrix",
    "judge-consistency": "judge_consistency",
    "robust-summary": "robust_summary",
    "summary-report": "summary",
    "pairs": "pairs",
    "complete-report": "complete_report",
}
"""Report -> the folder that `all` gives it."""


def judge_report(loaded: Loaded, metric: str = "spa") -> JudgeReport:
    """Report judge-report."""
    return JudgeReport(
        loaded.header,
        metric,
        is_degenerate(loaded),
        judge_rows(loaded, metric),
        judge_pairs(loaded),
        breakdown(loaded),
        reliability(loaded),
        bias_report(loaded),
    )


def teacher_report(loaded: Loaded, formula: str = "v1") -> TeacherReport:
    """Report teacher-report."""
    students = len({*loaded.units.student.tolist()})
    return TeacherReport(loaded.header, formula, students == 1, teacher_rows(loaded, formula), teacher_cells(loaded))


def student_report(loaded: Loaded) -> StudentReport:
    """Report student-report."""
    labels, values = label_rows(loaded)
    return StudentReport(
        loaded.header,
        student_rows(loaded),
        student_cells(loaded),
        student_pairs(loaded),
        pair_power(loaded),
        variance_rows(loaded),
        labels,
        values,
        hamming_rows(labels),
    )


REPORTS: dict[str, Callable[[Loaded, RobustSettings], Report]] = {
    "coverage-summary": lambda loaded, _: coverage_summary(loaded),
    "score-distribution": lambda loaded, _: score_distribution(loaded),
    "teacher-report": lambda loaded, settings: teacher_report(loaded, settings.teacher_score_formula),
    "judge-report": lambda loaded, settings: judge_report(loaded, settings.agreement_metric),
    "student-report": lambda loaded, _: student_report(loaded),
    "interaction-matrix": lambda loaded, _: interaction_matrix(loaded),
    "judge-consistency": lambda loaded, _: judge_consistency(loaded),
    "robust-summary": robust_summary,
    "summary-report": lambda loaded, _: summary_report(loaded),
    "pairs": lambda loaded, _: pairs_report(loaded),
    "complete-report": lambda loaded, _: complete_report(loaded),
}
"""Report -> what builds its report."""


def build(name: str, loaded: Loaded, settings: RobustSettings = DEFAULTS) -> Report:
    """The report of a subcommand."""
    return REPORTS[name](loaded, settings)
