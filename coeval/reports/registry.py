"""Every report, registered once: its names, what computes it, and the page that shows it.

The columns of its tables are declared by the dataclasses of their rows (`coeval.analysis.results`). Functions are named
by text, so that `coeval analyze --help` need not import what computes.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from coeval.analysis.results import Report, RobustSettings
    from coeval.analysis.units import LoadedRun

_MODELS = ("student", "teacher", "judge", "task", "factor")


@dataclass(frozen=True)
class ReportEntry:
    """A report.

    Attributes:
        name: of the subcommand of `coeval analyze`.
        help: what the subcommand makes.
        build: `module:function` of `coeval.analysis` or `coeval.pairs` that computes it of a run.
        takes_settings: whether `build` takes `RobustSettings` too.
        folder: that `coeval analyze all` writes it to; with `.html`, its template.
        title: of the page; empty: it has none.
        about: the sentence below the title.
        context: `module:function` of `coeval.reports` that returns what the template shows.
        dimensions: that the page is filtered by.
        live: whether filters compute figures anew, for which the page holds sums of scores; else they hide rows alone.
    """

    name: str
    help: str
    build: str
    takes_settings: bool = False
    folder: str = ""
    title: str = ""
    about: str = ""
    context: str = ""
    dimensions: tuple[str, ...] = _MODELS
    live: bool = False


_ENTRIES = (
    ReportEntry(
        "summary-report",
        "one live page: choose teachers and judges, see the ranking",
        "coeval.analysis.coverage:summary_report",
        folder="summary",
        title="Summary",
        about="Students ranked by the judges and teachers that you trust.",
        context="coeval.reports.pages:summary_context",
        dimensions=("student", "task", "factor", "judge", "teacher"),
        live=True,
    ),
    ReportEntry(
        "student-report",
        "how good students are, with intervals",
        "coeval.analysis.students:student_report",
        folder="student_report",
        title="Students",
        about="Who answers best, overall and where, and how sure that is.",
        context="coeval.reports.students:student_context",
        dimensions=("student", "judge", "teacher", "task", "factor"),
        live=True,
    ),
    ReportEntry(
        "pairs",
        "the page of leaderboards from pairs or scores, as `all` makes it",
        "coeval.pairs.board:pairs_report",
        folder="pairs",
        title="Pairs",
        about="Students ranked by which of two answers is preferred, overall and by task.",
        context="coeval.reports.pairs:pairs_context",
        dimensions=("student",),
    ),
    ReportEntry(
        "teacher-report",
        "how well each teacher's items tell students apart",
        "coeval.analysis.teachers:teacher_report",
        takes_settings=True,
        folder="teacher_report",
        title="Teachers",
        about="Whose items tell students apart.",
        context="coeval.reports.students:teacher_context",
        dimensions=("teacher", "student", "judge", "task", "factor"),
        live=True,
    ),
    ReportEntry(
        "judge-report",
        "how far judges agree, and what may be wrong with them",
        "coeval.analysis.agreement:judge_report",
        takes_settings=True,
        folder="judge_report",
        title="Judges",
        about="How far judges agree with each other, and their biases.",
        context="coeval.reports.judges:judge_context",
        dimensions=("judge", "teacher", "student", "task", "factor"),
    ),
    ReportEntry(
        "score-distribution",
        "how scores spread over levels, by model, factor, task and attribute",
        "coeval.analysis.distribution:score_distribution",
        folder="score_distribution",
        title="Score distribution",
        about="How High, Medium and Low spread over models, tasks and factors.",
        context="coeval.reports.students:distribution_context",
        live=True,
    ),
    ReportEntry(
        "interaction-matrix",
        "students on each teacher's items",
        "coeval.analysis.distribution:interaction_matrix",
        folder="interaction_matrix",
        title="Teachers and students",
        about="Which students do well on whose items.",
        context="coeval.reports.students:interaction_context",
        dimensions=("teacher", "student", "judge", "task", "factor"),
        live=True,
    ),
    ReportEntry(
        "judge-consistency",
        "how each judge uses the scale, by attribute and over time",
        "coeval.analysis.distribution:judge_consistency",
        folder="judge_consistency",
        title="Consistency of judges",
        about="How each judge uses the scale, by attribute and over time.",
        context="coeval.reports.judges:consistency_context",
        dimensions=("judge",),
    ),
    ReportEntry(
        "robust-summary",
        "students on the items that the best judges agree on",
        "coeval.analysis.robust:robust_summary",
        takes_settings=True,
        folder="robust_summary",
        title="Robust ranking",
        about="The ranking on items on which good judges were of one mind.",
        context="coeval.reports.robust:robust_context",
    ),
    ReportEntry(
        "coverage-summary",
        "what there is and what is missing",
        "coeval.analysis.coverage:coverage_summary",
        folder="coverage_summary",
        title="Coverage",
        about="What the run should hold, what it holds, and what of that can be used.",
        context="coeval.reports.robust:coverage_context",
        dimensions=("task", "teacher", "student", "judge"),
    ),
    ReportEntry(
        "complete-report",
        "a workbook of all figures (xlsx)",
        "coeval.analysis.coverage:complete_report",
        folder="complete_report",
    ),
)
REPORTS = {entry.name: entry for entry in _ENTRIES}
"""Subcommand -> report, in the order of the portal."""
PAGES = {entry.folder: entry for entry in _ENTRIES if entry.title}
"""Folder -> report that has a page."""


def build(name: str, loaded: LoadedRun, settings: RobustSettings | None = None) -> Report:
    """Compute the report of a subcommand; None: with the default settings."""
    entry = REPORTS[name]
    report: Report = resolve(entry.build)(loaded, *([settings] if settings and entry.takes_settings else []))
    return report


def resolve(function: str) -> Any:
    """Import a function named `module:function`."""
    module, _, name = function.partition(":")
    return getattr(import_module(module), name)
