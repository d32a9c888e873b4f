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
    live: bool = False  # filters compute figures anew, from sums of scores in the page; else they hide rows alone
    takes_settings: bool = False  # whether `build` takes `RobustSettings` too

    @property
    def folder(self) -> str:
        """The folder that `coeval analyze all` writes it to; with `.html`, its template."""
        return "summary" if self.name == "summary-report" else self.name.replace("-", "_")


_ENTRIES = (
    ReportEntry(
        name="summary-report",
        help="one live page: choose teachers and judges, see the ranking",
        build="analysis.coverage:summary_report",
        context="reports.pages:summary_context",
        title="Summary",
        about="Students ranked by the judges and teachers that you trust.",
        finding="reports.findings:summary",
        dimensions="student task factor judge teacher",
        live=True,
    ),
    ReportEntry(
        name="student-report",
        help="how good students are, with intervals",
        build="analysis.students:student_report",
        context="reports.students:student_context",
        title="Students",
        about="Who answers best, overall and where, and how sure that is.",
        finding="reports.findings:students",
        dimensions="student judge teacher task factor",
        live=True,
    ),
    ReportEntry(
        name="pairs",
        help="the page of leaderboards from pairs or scores, as `all` makes it",
        build="pairs.board:pairs_report",
        context="reports.judges:pairs_context",
        title="Pairs",
        about="Students ranked by which of two answers is preferred, overall and by task.",
        finding="reports.findings:pairs",
        dimensions="student",
    ),
    ReportEntry(
        name="teacher-report",
        help="how well each teacher's items tell students apart",
        build="analysis.teachers:teacher_report",
        context="reports.students:teacher_context",
        title="Teachers",
        about="Whose items tell students apart.",
        finding="reports.findings:teachers",
        dimensions="teacher student judge task factor",
        live=True,
        takes_settings=True,
    ),
    ReportEntry(
        name="judge-report",
        help="how far judges agree, and what may be wrong with them",
        build="analysis.agreement:judge_report",
        context="reports.judges:judge_context",
        title="Judges",
        about="How far judges agree with each other, and their biases.",
        finding="reports.findings:judges",
        dimensions="judge teacher student task factor",
        takes_settings=True,
    ),
    ReportEntry(
        name="score-distribution",
        help="how scores spread over levels, by model, factor, task and attribute",
        build="analysis.distribution:score_distribution",
        context="reports.students:distribution_context",
        title="Score distribution",
        about="How High, Medium and Low spread over models, tasks and factors.",
        finding="reports.findings:distribution",
        live=True,
    ),
    ReportEntry(
        name="interaction-matrix",
        help="students on each teacher's items",
        build="analysis.distribution:interaction_matrix",
        context="reports.students:interaction_context",
        title="Teachers and students",
        about="Which students do well on whose items.",
        finding="reports.findings:interaction",
        dimensions="teacher student judge task factor",
        live=True,
    ),
    ReportEntry(
        name="judge-consistency",
        help="how each judge uses the scale, by attribute and over time",
        build="analysis.distribution:judge_consistency",
        context="reports.judges:consistency_context",
        title="Consistency of judges",
        about="How each judge uses the scale, by attribute and over time.",
        finding="reports.findings:consistency",
        dimensions="judge",
    ),
    ReportEntry(
        name="robust-summary",
        help="students on the items that the best judges agree on",
        build="analysis.robust:robust_summary",
        context="reports.robust:robust_context",
        title="Robust ranking",
        about="The ranking on items on which good judges agree.",
        finding="reports.findings:robust",
        takes_settings=True,
    ),
    ReportEntry(
        name="coverage-summary",
        help="what there is and what is missing",
        build="analysis.coverage:coverage_summary",
        context="reports.robust:coverage_context",
        title="Coverage",
        about="What the run should hold, what it holds, and what of that can be used.",
        finding="reports.findings:coverage",
        dimensions="task teacher student judge",
    ),
    ReportEntry("complete-report", "a workbook of all figures (xlsx)", "analysis.coverage:complete_report"),
)
REPORTS = {entry.name: entry for entry in _ENTRIES}  # subcommand -> report, in the order of the portal
PAGES = {entry.folder: entry for entry in _ENTRIES if entry.context}  # folder -> report that has a page


def build(name: str, loaded: LoadedRun, settings: RobustSettings | None = None) -> Report:
    """Compute the report of a subcommand; None: with the default settings."""
    entry = REPORTS[name]
    report: Report = resolve(entry.build)(loaded, *([settings] if settings and entry.takes_settings else []))
    return report


def resolve(function: str) -> Any:
    """Import a function of `coeval` named `module:function`."""
    module, _, name = function.partition(":")
    return getattr(import_module(f"coeval.{module}"), name)
