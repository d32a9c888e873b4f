"""Every report, registered once: its names, what computes it, and the page that shows it.

The columns of its tables are declared by the dataclasses of their rows, beside what computes them. Functions are named
by text, so that `coeval analyze --help` need not import what computes.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from coeval.analysis.units import LoadedRun, Report, RobustSettings


@dataclass(frozen=True)
class ReportEntry:
    """A report, and the subcommand of `coeval analyze` that makes it; functions are `module:function` of `coeval`."""

    name: str  # of the subcommand
    help: str  # what it makes
    build: str  # function that computes it of a run
    context: str = ""  # function that returns what the page's template shows of it; empty: it has no page
    title: str = ""  # of the page
    about: str = ""  # what it answers
    finding: str = ""  # function that returns the sentences a page begins with; none: it has nothing to show
    dimensions: str = "student teacher judge task factor"  # that the page is filtered by
    live: bool = False
    """Whether filters compute figures anew, from sums of scores in the page; else they hide rows alone."""
    takes_settings: bool = False  # whether `build` takes `RobustSettings` too

    @property
    def folder(self) -> str:
        """The folder that `coeval analyze all` writes it to; with `.html`, its template."""
        return "summary" if self.name == "summary-report" else self.name.replace("-", "_")


_ENTRIES = (
    ReportEntry(
        "summary-report",
        "one live page: choose teachers and judges, see the ranking",
        *("analysis.coverage:summary_report", "reports.pages:summary_context"),
        *("Summary", "Students ranked by the judges and teachers that you trust."),
        "reports.findings:summary",
        "student task factor judge teacher",
        live=True,
    ),
    ReportEntry(
        "student-report",
        "how good students are, with intervals",
        *("analysis.students:student_report", "reports.students:student_context"),
        *("Students", "Who answers best, overall and where, and how sure that is."),
        "reports.findings:students",
        "student judge teacher task factor",
        live=True,
    ),
    ReportEntry(
        "pairs",
        "the page of leaderboards from pairs or scores, as `all` makes it",
        *("pairs.board:pairs_report", "reports.pairs:pairs_context"),
        *("Pairs", "Students ranked by which of two answers is preferred, overall and by task."),
        "reports.findings:pairs",
        "student",
    ),
    ReportEntry(
        "teacher-report",
        "how well each teacher's items tell students apart",
        *("analysis.teachers:teacher_report", "reports.students:teacher_context"),
        *("Teachers", "Whose items tell students apart."),
        "reports.findings:teachers",
        "teacher student judge task factor",
        live=True,
        takes_settings=True,
    ),
    ReportEntry(
        "judge-report",
        "how far judges agree, and what may be wrong with them",
        *("analysis.agreement:judge_report", "reports.judges:judge_context"),
        *("Judges", "How far judges agree with each other, and their biases."),
        "reports.findings:judges",
        "judge teacher student task factor",
        takes_settings=True,
    ),
    ReportEntry(
        "score-distribution",
        "how scores spread over levels, by model, factor, task and attribute",
        *("analysis.distribution:score_distribution", "reports.students:distribution_context"),
        *("Score distribution", "How High, Medium and Low spread over models, tasks and factors."),
        "reports.findings:distribution",
        live=True,
    ),
    ReportEntry(
        "interaction-matrix",
        "students on each teacher's items",
        *("analysis.distribution:interaction_matrix", "reports.students:interaction_context"),
        *("Teachers and students", "Which students do well on whose items."),
        "reports.findings:interaction",
        "teacher student judge task factor",
        live=True,
    ),
    ReportEntry(
        "judge-consistency",
        "how each judge uses the scale, by attribute and over time",
        *("analysis.distribution:judge_consistency", "reports.judges:consistency_context"),
        *("Consistency of judges", "How each judge uses the scale, by attribute and over time."),
        "reports.findings:consistency",
        "judge",
    ),
    ReportEntry(
        "robust-summary",
        "students on the items that the best judges agree on",
        *("analysis.robust:robust_summary", "reports.robust:robust_context"),
        *("Robust ranking", "The ranking on items on which good judges agree."),
        "reports.findings:robust",
        takes_settings=True,
    ),
    ReportEntry(
        "coverage-summary",
        "what there is and what is missing",
        *("analysis.coverage:coverage_summary", "reports.robust:coverage_context"),
        *("Coverage", "What the run should hold, what it holds, and what of that can be used."),
        "reports.findings:coverage",
        "task teacher student judge",
    ),
    ReportEntry("complete-report", "a workbook of all figures (xlsx)", "analysis.coverage:complete_report"),
)
REPORTS = {entry.name: entry for entry in _ENTRIES}
"""Subcommand -> report, in the order of the portal."""
PAGES = {entry.folder: entry for entry in _ENTRIES if entry.context}
"""Folder -> report that has a page."""


def build(name: str, loaded: LoadedRun, settings: RobustSettings | None = None) -> Report:
    """Compute the report of a subcommand; None: with the default settings."""
    entry = REPORTS[name]
    report: Report = resolve(entry.build)(loaded, *([settings] if settings and entry.takes_settings else []))
    return report


def resolve(function: str) -> Any:
    """Import a function of `coeval` named `module:function`."""
    module, _, name = function.partition(":")
    return getattr(import_module(f"coeval.{module}"), name)
