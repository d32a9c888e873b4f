"""Pages on the robust ranking, on items on which good judges agree, and on coverage, what the run holds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from coeval.analysis.coverage import CoverageRow, CoverageSummary
from coeval.analysis.robust import RobustSummary
from coeval.analysis.tables import Columns, barred
from coeval.reports.judges import agreement_table
from coeval.reports.pieces import (
    Computed,
    Grid,
    amount,
    grid_across,
    grid_of,
    name_cell,
    percent,
    signed_text,
    table,
    yes_no,
)
from coeval.schema import PHASES
from p2l.common.report.tables import Cell, Column, Table

_HISTOGRAM_BINS = 10


def robust_context(report: RobustSummary) -> dict[str, Any]:
    """Return the context of the page of the robust ranking."""
    header = report.header
    chosen = Computed(Column("chosen", number=False), lambda row: yes_no(row.judge in report.chosen_judges))
    chosen_teacher = Computed(Column("chosen", number=False), lambda row: yes_no(row.chosen))
    kept_share = Computed(Column("kept share"), lambda row: percent(row.kept, row.candidates))
    difference = Computed(
        Column("difference", note="robust less all; in colour beyond 0.1"),
        lambda row: Cell(signed_text(row.delta, 3), row.delta, "bad" if row.flagged else ""),
    )
    return {
        "settings": _settings(report),
        "kept": report.kept,
        "alone": report.chosen_judges[0] if len(report.chosen_judges) == 1 else None,
        "others": sum(row.rank is not None for row in report.judges) > 1,
        "diagnostics": report.diagnostics,
        "ranking": table(
            report.students, header, ("rank", "student", "robust", "full", "full_rank", difference, "pairs")
        ),
        "flagged": [row.student for row in report.students if row.flagged],
        "students": report.students,
        "grids": [(across, _strengths(report, across)) for across in ("task", "factor")],
        "judges": agreement_table(report.judges, header, chosen),
        "teachers": table(
            report.teachers,
            header,
            (chosen_teacher, "teacher", "score", "items", "candidates", "kept", kept_share),
            score=barred(report.settings.teacher_score_formula.upper(), "with the chosen judges only"),
        ),
        "fractions": _fractions(report),
    }


def _settings(report: RobustSummary) -> list[tuple[str, str]]:
    settings = report.settings
    ranked = sum(row.rank is not None for row in report.judges)
    # Items are kept by the distance of judges where there is a theta, else by the share of pairs that they agree on.
    limits = []
    if settings.theta is not None:
        limits = [("within", f"{settings.theta:g} of the mean"), ("share of judges", f"{settings.q_fraction:g}")]
    elif settings.agreement_threshold is not None:
        limits = [("of one mind on", f"{settings.agreement_threshold:.0%} of pairs")]
    return [
        ("judges", settings.judge_selection.replace("_", " ")),
        ("agreement by", settings.agreement_metric.upper()),
        ("teachers by", settings.teacher_score_formula.upper()),
        *limits,
        ("judges chosen", f"{len(report.chosen_judges)} of {ranked} ranked"),
        ("teachers chosen", f"{len(report.chosen_teachers)} of {len(report.teachers)}"),
        ("items kept", f"{report.kept:,} of {report.candidates:,}"),
    ]


def _strengths(report: RobustSummary, across: str) -> Grid:
    origin, ranked = "{lower:.3f} to {upper:.3f}", [row.student for row in report.students]
    empty = "No item was kept."
    return grid_across(report.header, "student", across, report.cells, origin, rows=ranked, empty=empty)


def _fractions(report: RobustSummary) -> Table | None:
    """Return how many items reach which share of pairs on which the judges agree."""
    bins = Counter(
        min(_HISTOGRAM_BINS - 1, int(_HISTOGRAM_BINS * value)) for value in report.consistent_fraction.values()
    )
    pairs = Computed(
        Column("pairs of one mind", number=False),
        lambda place: Cell(f"{100 * place // _HISTOGRAM_BINS} to {100 * (place + 1) // _HISTOGRAM_BINS} %", place),
    )
    items = Computed(Column("items"), lambda place: amount(bins[place], 0), barred=True)
    return table(reversed(range(_HISTOGRAM_BINS)), report.header, (pairs, items)) if bins else None


# Coverage: what the run should hold, what it holds, and what of that can be used.

_GRIDS = (("task", "judge"), ("teacher", "student"), ("student", "judge"))
# Combinations of models on the page: a run of twenty models has 32,000, of which the thinnest matter.
_COMBINATIONS_SHOWN = 300


def coverage_context(report: CoverageSummary) -> dict[str, Any]:
    """Return the context of the page of coverage."""
    header = report.header
    sums = [int(report.rows.values[name].sum()) for name in ("expected", "actual", "valid", "failed")]
    return {
        "sums": list(zip(("expected", "stored", "valid", "failed"), (f"{count:,}" for count in sums), strict=True)),
        "grids": [(f"{rows} and {columns}", _valid_shares(report, rows, columns)) for rows, columns in _GRIDS],
        "rows": _combinations(report),
        "verdicts": header.verdicts,
        "combinations": len(report.rows),
        "shown": min(_COMBINATIONS_SHOWN, len(report.rows)),
        "errors": table(header.skipped, header, count=barred("records", digits=0)),
        "phases": _phases(report),
        "meta": [
            (key.replace("_", " "), _text(value))
            for key, value in report.meta.items()
            if value not in (None, [], {}, "")
        ],
        "strata": table([row for row in report.strata if row.values], header),
    }


def _valid_shares(report: CoverageSummary, kind: str, across: str) -> Grid:
    rows, size = report.rows, len(report.rows.names[across])
    cells, cell = np.unique(rows.values[kind] * size + rows.values[across], return_inverse=True)
    expected, valid = (np.bincount(cell, rows.values[name]).astype(int) for name in ("expected", "valid"))
    values = [
        (
            rows.names[kind][key // size],
            rows.names[across][key % size],
            good / due if due else None,
            f"{good:,} of {due:,} evaluations",
        )
        for key, due, good in zip(cells.tolist(), expected.tolist(), valid.tolist(), strict=True)
    ]
    own = "task" not in (kind, across)
    return grid_of(report.header, (kind, across), values, own=own, empty="No evaluation was expected.")


def _combinations(report: CoverageSummary) -> Table | None:
    """Return the combinations of models with the smallest share of what is expected."""
    expected: npt.NDArray[Any] = report.rows.values["expected"]
    share = np.where(expected > 0, report.rows.values["valid"] / np.maximum(expected, 1), 1.0)
    thinnest: Columns[CoverageRow] = report.rows.where(np.argsort(share, kind="stable")[:_COMBINATIONS_SHOWN])
    valid = Computed(Column("valid share"), lambda row: percent(row.valid, row.expected, 0.9))
    counts = ("expected", "actual", "valid", "failed", valid)
    return table(thinnest, report.header, ("task", "teacher", "student", "judge", *counts))


def _phases(report: CoverageSummary) -> list[tuple[str, Table | None]]:
    """Return the counts of each phase, over all and by model."""
    name = Computed(
        Column("", number=False), lambda row: name_cell(report.header, row.dimension, row.value) if row.value else None
    )
    failed = Computed(
        Column("failed"), lambda row: Cell(f"{row.failed:,}", row.failed, "bad" if row.failed else "quiet")
    )
    columns = ("dimension", name, "records", failed)
    stored = {row.phase for row in report.counts}
    return [
        (phase, table([row for row in report.counts if row.phase == phase], report.header, columns))
        for phase in (*(name for name in PHASES if name in stored), *sorted(stored - set(PHASES)))
    ]


def _text(value: Any) -> str:
    """Return a value of meta.json for a reader."""
    if isinstance(value, Mapping):
        return ", ".join(f"{key}: {_text(entry)}" for key, entry in value.items())
    if isinstance(value, (list, tuple)):
        return ", ".join(map(_text, value))
    if isinstance(value, float):
        return f"{value:,.4g}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
