"""Report judge-report: how far judges agree, and what may be wrong with them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from coeval.analysis.agreement import LEAST_COVERAGE
from coeval.analysis.judge_results import FlipRow, JudgePair, JudgeRow, SpreadRow
from coeval.analysis.results import JudgeConsistency, JudgeReport
from coeval.reports.pieces import Grid, Notes, estimate, grid_of, name_cell, named_table, notes_of
from coeval.reports.students import drift_lines
from p2l.common.report.tables import Cell, Column, Table, Value

JUDGE_REPORT_DIMENSIONS = ("judge", "teacher", "student", "task", "factor")
METRICS = {
    "spa": "share of equal levels",
    "wpa": "mean closeness: equal 1, adjacent 0.5, opposite 0; of numbers 1 less their distance",
    "kappa": "agreement beyond chance: 0 is chance, 1 is full agreement",
}
_NAMES = {"spa": "SPA", "wpa": "WPA", "kappa": "κ"}
_JUDGE_REPORT_ACROSS = ("factor", "task", "teacher", "student")


def judge_report_parts(result: JudgeReport) -> dict[str, Any]:
    """What the template shows."""
    notes = notes_of(result.header)
    order = [result.metric, *(name for name in METRICS if name != result.metric)]
    return {
        "ranking": named_table(agreement_columns(), [agreement_row(row, notes) for row in result.judges], barred=[4]),
        "metric": _NAMES.get(result.metric, result.metric),
        "meanings": [(_NAMES[name], text) for name, text in METRICS.items()],
        "degenerate": result.degenerate,
        "few": [row.judge for row in result.judges if row.rank is None and row.coverage < LEAST_COVERAGE],
        "alone": [row.judge for row in result.judges if row.rank is None and row.coverage >= LEAST_COVERAGE],
        "matrices": [(_NAMES[name], _matrix(result, name)) for name in order],
        "pairs": _pairs(result.pairs, notes),
        "breakdown": [(_NAMES[name], _breakdowns(result, name)) for name in order],
        "reliability": _reliability(result),
        **bias(result, notes),
        "contents": [
            ("ranking", "Ranking"),
            ("matrix", "Pairs of judges"),
            ("breakdown", "Where they agree"),
            ("reliability", "Reliability"),
            ("bias", "Bias"),
        ],
    }


def agreement_columns() -> list[Column]:
    """Columns of a ranking of judges."""
    weighted = "mean over peers, each weighted by the scores shared with it"
    return [
        Column("rank"),
        Column("judge", number=False),
        Column("kind", number=False, note="model, metric or label"),
        Column("scores"),
        Column("SPA weighted", note=weighted),
        Column("WPA weighted", 3, note=weighted),
        Column("κ weighted", 3, note=weighted),
        Column("reads as", number=False, note="of the weighted κ"),
        Column("SPA", 3, note="plain mean over peers"),
        Column("WPA", 3, note="plain mean over peers"),
        Column("κ", 3, note="plain mean over peers"),
        Column("coverage", note="its scores as a share of those of the judge with most of its kind"),
    ]


def agreement_row(row: JudgeRow, notes: Notes) -> list[Value]:
    """A judge in such a table."""
    coverage = Cell(f"{row.coverage:.0%}", row.coverage, "bad" if row.coverage < LEAST_COVERAGE else "")
    return [
        row.rank,
        name_cell("judge", row.judge, notes),
        row.kind,
        row.units,
        estimate(row.weighted_spa, row.weighted_spa_lower, row.weighted_spa_upper),
        row.weighted_wpa,
        row.weighted_kappa,
        row.kappa_label or None,
        row.spa,
        row.wpa,
        row.kappa,
        coverage,
    ]


def _matrix(result: JudgeReport, metric: str) -> Grid:
    values = [
        (*names, getattr(pair, metric), f"{pair.n:,} scores in common")
        for pair in result.pairs
        for names in ((pair.judge_a, pair.judge_b), (pair.judge_b, pair.judge_a))
    ]
    order = ([row.judge for row in result.judges],) * 2
    why = "There are no two judges that scored the same answers."
    return grid_of(("judge", "judge"), values, notes=notes_of(result.header), order=order, empty=why)


def _pairs(pairs: Iterable[JudgePair], notes: Notes) -> Table | None:
    columns = [
        Column("judge", number=False),
        Column("and", number=False),
        Column("in common", note="answers and factors that both scored"),
        Column("SPA"),
        Column("WPA", 3),
        Column("κ", 3),
        Column("reads as", number=False),
        Column("quadratic κ", 3),
        Column("Spearman", 3),
        Column("Kendall", 3),
    ]
    rows: list[list[Value]] = [
        [
            name_cell("judge", pair.judge_a, notes),
            name_cell("judge", pair.judge_b, notes),
            pair.n,
            estimate(pair.spa, pair.spa_lower, pair.spa_upper),
            pair.wpa,
            pair.kappa,
            pair.kappa_label or None,
            pair.quadratic_kappa,
            pair.spearman,
            pair.kendall,
        ]
        for pair in pairs
    ]
    return named_table(columns, rows, barred=[3])


def _breakdowns(result: JudgeReport, metric: str) -> list[tuple[str, Grid]]:
    return [(across, _breakdown(result, metric, across)) for across in _JUDGE_REPORT_ACROSS]


def _breakdown(result: JudgeReport, metric: str, across: str) -> Grid:
    rows = [row for row in result.breakdown if row.dimension == across]
    values = [(row.judge, row.value, getattr(row, metric), f"{row.n:,} scores in common") for row in rows]
    order = ([row.judge for row in result.judges], getattr(result.header, f"{across}s"))
    why = "There is nothing to show: no two judges scored the same answers."
    return grid_of(
        ("judge", across), values, notes=notes_of(result.header), own=across != "task", order=order, empty=why
    )


def _reliability(result: JudgeReport) -> Table | None:
    columns = [
        Column("scores of", number=False),
        Column("", number=False),
        Column("judges"),
        Column("answers and factors", note="with two scores or more"),
        Column("α interval", note="Krippendorff's alpha, levels as 0, 0.5 and 1"),
        Column("α ordinal", 3, note="Krippendorff's alpha, levels as ranks"),
        Column("ICC of one", 3, note="ICC(2,1): absolute agreement of one judge"),
        Column("ICC of the mean", 3, note="ICC(2,k): of the mean of all judges"),
    ]
    rows: list[list[Value]] = [
        [
            row.scope,
            row.value or None,
            row.judges,
            row.pairs,
            estimate(row.alpha_interval, row.alpha_lower, row.alpha_upper),
            row.alpha_ordinal,
            row.icc_single,
            row.icc_average,
        ]
        for row in result.reliability
        if row.judges
    ]
    return named_table(columns, rows, barred=[4], zero=0.0)


def bias(result: JudgeReport, notes: Notes) -> dict[str, Table | None]:
    """The tables of bias; None where there is nothing to tell."""
    return {
        "self_preference": _self_preference(result, notes),
        "family": _family(result, notes),
        "verbosity": _verbosity(result, notes),
        "flips": flips_table(result.bias.flips, notes),
    }


def _self_preference(result: JudgeReport, notes: Notes) -> Table | None:
    columns = [
        Column("judge", number=False),
        Column("preference", note="its lead over peers on its own answers, less the same on answers of others"),
        Column("gives itself", 3),
        Column("peers give it", 3),
        Column("lead on others", 3, note="how far it lies above its peers on answers of others"),
        Column("own scores"),
    ]
    rows: list[list[Value]] = [
        [
            name_cell("judge", row.judge, notes),
            _toned(row.preference, row.lower, row.upper),
            row.own,
            row.peers,
            row.others_gap,
            row.units,
        ]
        for row in result.bias.self_preference
    ]
    return named_table(columns, rows, barred=[1], zero=0.0)


def _toned(value: float, lower: float, upper: float) -> Cell | None:
    """An estimate that stands out where its interval leaves zero out."""
    cell = estimate(value, lower, upper)
    if cell is None or not (lower > 0 or upper < 0):
        return cell
    return Cell(cell.text, cell.sort, "bad", cell.note, cell.bar)


def _family(result: JudgeReport, notes: Notes) -> Table | None:
    columns = [
        Column("judge", number=False),
        Column("family", number=False),
        Column("students of it", number=False, wide=True),
        Column("preference"),
        Column("scores"),
    ]
    rows: list[list[Value]] = [
        [
            name_cell("judge", row.judge, notes),
            row.family,
            row.students,
            _toned(row.preference, row.lower, row.upper),
            row.units,
        ]
        for row in result.bias.family
    ]
    return named_table(columns, rows, barred=[3], zero=0.0)


def _verbosity(result: JudgeReport, notes: Notes) -> Table | None:
    columns = [
        Column("judge", number=False),
        Column("within items", note="correlation of length and score among answers to one item"),
        Column("over all", 3, note="correlation of length and score over all answers"),
        Column("answers"),
    ]
    rows: list[list[Value]] = [
        [
            name_cell("judge", row.judge, notes) if row.judge else "all judges",
            None if row.within_datapoint_r is None else _toned(row.within_datapoint_r, row.lower or 0, row.upper or 0),
            row.r,
            row.responses,
        ]
        for row in result.bias.verbosity
    ]
    return named_table(columns, rows, barred=[1], zero=0.0)


def flips_table(flips: Iterable[FlipRow], notes: Notes) -> Table | None:
    """How often judges change their verdict with the order of the answers."""
    columns = [
        Column("judge", number=False),
        Column("flip rate"),
        Column("flips", note="the other answer won in the other order"),
        Column("of two minds", note="flips, and pairs of which one order was a tie"),
        Column("pairs in both orders"),
        Column("for the first", 3, note="share of decided verdicts for the answer shown first; 0.5 is without bias"),
    ]
    rows: list[list[Value]] = [
        [
            name_cell("judge", row.judge, notes),
            estimate(row.flip_rate, row.lower, row.upper),
            row.flips,
            row.inconsistent,
            row.pairs,
            row.first_share,
        ]
        for row in flips
    ]
    return named_table(columns, rows, barred=[1])


# Report judge-consistency: how each judge uses the scale, by attribute and over time.

JUDGE_CONSISTENCY_DIMENSIONS = ("judge",)


def judge_consistency_parts(result: JudgeConsistency) -> dict[str, Any]:
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
