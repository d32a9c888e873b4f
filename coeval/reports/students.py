"""Report student-report: who answers best, overall and where, and how sure that is."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from coeval.analysis.judge_results import DriftRow
from coeval.analysis.results import (
    DistributionRow,
    InteractionMatrix,
    LabelRow,
    LabelValueRow,
    ScoreDistribution,
    StudentReport,
    StudentRow,
    TeacherReport,
)
from coeval.reports.pieces import (
    Grid,
    LevelRow,
    Notes,
    Spark,
    amount,
    estimate,
    grid_of,
    levels_of,
    name_cell,
    named_table,
    notes_of,
    sparks,
)
from p2l.common.report.tables import Cell, Column, Table, Value

STUDENT_REPORT_DIMENSIONS = ("student", "judge", "teacher", "task", "factor")
_STUDENT_REPORT_ACROSS = ("task", "factor", "judge", "teacher", "attribute")
_MODELS = ("judge", "teacher")
_OPEN, _SHORT = 4, 8  # tables of tasks that may lie open together, rows of one


def student_report_parts(result: StudentReport) -> dict[str, Any]:
    """What the template shows."""
    notes = notes_of(result.header)
    tasks = [(task, _task(result, task)) for task in result.header.tasks]
    return {
        "ranking": ranking(result.students, notes),
        "tasks": [(task, table) for task, table in tasks if table],
        "without_scores": [task for task, table in tasks if not table],
        "crowded": len(tasks) > _OPEN or len(result.students) > _SHORT,
        "grids": [(across, _student_report_grid(result, across)) for across in _STUDENT_REPORT_ACROSS],
        "pairs": _pairs(result, notes),
        "power": _power(result, notes),
        "variance": _variance(result),
        "labels": _labels(result.labels, notes),
        "label_values": _label_values(result.label_values, notes),
        "contents": [
            ("ranking", "Ranking"),
            ("tasks", "By task"),
            ("grids", "Strengths"),
            ("sure", "How sure"),
            ("variance", "Where scores come from"),
            ("labels", "Labels"),
        ],
    }


def ranking(students: tuple[StudentRow, ...], notes: Notes) -> Table | None:
    """Students in order, with intervals."""
    columns = [
        Column("rank"),
        Column("student", number=False),
        Column("mean", note=f"of all scores{_weighted(students)}; the bar is a 95 % interval over items"),
        Column("mean over tasks", note="mean of the tasks' means: no task counts more for having more factors"),
        Column("without self", note="without the scores that it gave itself"),
        Column("1 to 5", 2, note="1 + 4 mean"),
        Column("scores"),
        Column("answers"),
        Column("items"),
    ]
    is_weighted = bool(_weighted(students))
    if is_weighted:
        columns.append(Column("unweighted", 3, note="the mean if all factors counted alike"))
    rows: list[list[Value]] = [
        [
            row.rank,
            name_cell("student", row.student, notes),
            estimate(row.mean, row.lower, row.upper),
            estimate(row.macro, row.macro_lower, row.macro_upper),
            estimate(row.without_self, row.without_self_lower, row.without_self_upper),
            row.composite,
            row.valid_evals,
            row.responses,
            row.datapoints,
            *([row.unweighted] if is_weighted else []),
        ]
        for row in students
    ]
    return named_table(columns, rows, barred=(2, 3))


def _weighted(students: tuple[StudentRow, ...]) -> str:
    return ", weighted by factor" if any(row.unweighted != row.mean for row in students) else ""


def _task(result: StudentReport, task: str) -> Table | None:
    """The ranking of one task."""
    notes = notes_of(result.header)
    cells = [cell for cell in result.cells if cell.dimension == "task" and cell.value == task]
    cells.sort(key=lambda cell: -cell.mean)
    columns = [Column("rank"), Column("student", number=False), Column("mean"), Column("scores")]
    rows: list[list[Value]] = [
        [
            place,
            name_cell("student", cell.student, notes),
            estimate(cell.mean, cell.lower, cell.upper),
            cell.units,
        ]
        for place, cell in enumerate(cells, 1)
    ]
    return named_table(columns, rows, barred=[2])


def _student_report_grid(result: StudentReport, across: str) -> Grid:
    cells = [cell for cell in result.cells if cell.dimension == across]
    values = [
        (cell.student, cell.value, cell.mean, f"{cell.lower:.3f} to {cell.upper:.3f}, from {cell.units:,} scores")
        for cell in cells
    ]
    order = ([row.student for row in result.students], getattr(result.header, f"{across}s", ()))
    why = "There is nothing to show: no valid scores" + (" of items with attributes." if across == "attribute" else ".")
    return grid_of(
        ("student", across), values, notes=notes_of(result.header), own=across in _MODELS, order=order, empty=why
    )


def _pairs(result: StudentReport, notes: Notes) -> Table | None:
    columns = [
        Column("better", number=False),
        Column("worse", number=False),
        Column("difference"),
        Column("p", 4, note="two-sided"),
        Column("significant", number=False, note="below 0.05 after Holm's correction for all pairs"),
        Column("items in common"),
    ]
    rows: list[list[Value]] = [
        [
            name_cell("student", pair.better, notes),
            name_cell("student", pair.worse, notes),
            estimate(pair.difference, pair.lower, pair.upper),
            Cell("< 0.0001", pair.p_value) if pair.p_value < 1e-4 else pair.p_value,
            Cell("yes", "yes", "good") if pair.significant else Cell("no", "no", "quiet"),
            pair.datapoints,
        ]
        for pair in result.pairs
    ]
    return named_table(columns, rows, barred=[2], zero=0.0)


def _power(result: StudentReport, notes: Notes) -> Table | None:
    columns = [
        Column("better", number=False),
        Column("worse", number=False),
        Column("difference", 3),
        Column("sd", 3, note="of the difference on one item"),
        Column("items it has"),
        Column("items it needs", note="to find this difference in 80 of 100 runs, two-sided at 5 %"),
        Column("power", 2, note="chance to find it with the items it has"),
    ]
    rows: list[list[Value]] = [
        [
            name_cell("student", one.better, notes),
            name_cell("student", one.worse, notes),
            one.difference,
            one.sd,
            one.datapoints,
            one.needed,
            one.power,
        ]
        for one in result.power
    ]
    return named_table(columns, rows)


def _variance(result: StudentReport) -> Table | None:
    rows: list[list[Value]] = [[row.source, amount(row.share, 3), row.variance] for row in result.variance]
    columns = [Column("source", number=False), Column("share"), Column("variance", 5)]
    return named_table(columns, rows, barred=[1], zero=0.0)


def _labels(labels: tuple[LabelRow, ...], notes: Notes) -> Table | None:
    columns = [
        Column("student", number=False),
        Column("task", number=False),
        Column("label", number=False),
        Column("accuracy", 3, note="among answers from which a label could be read"),
        Column("strict accuracy", note="among all answers"),
        Column("right"),
        Column("read"),
        Column("not read"),
    ]
    rows: list[list[Value]] = [
        [
            name_cell("student", row.student, notes),
            name_cell("task", row.task, notes),
            row.attribute,
            row.accuracy,
            amount(row.strict_accuracy, 3),
            row.n_matched,
            row.n_total,
            row.n_skipped,
        ]
        for row in labels
    ]
    return named_table(columns, rows, barred=[4], zero=0.0)


def _label_values(values: tuple[LabelValueRow, ...], notes: Notes) -> Table | None:
    columns = [
        Column("student", number=False),
        Column("task", number=False),
        Column("label", number=False),
        Column("value", number=False),
        Column("precision", 3),
        Column("recall", 3),
        Column("F1", 3),
        Column("items"),
    ]
    rows: list[list[Value]] = [
        [
            name_cell("student", row.student, notes),
            name_cell("task", row.task, notes),
            row.attribute,
            row.label,
            row.precision,
            row.recall,
            row.f1,
            row.support,
        ]
        for row in values
    ]
    return named_table(columns, rows)


# Report teacher-report: whose items tell students apart.

TEACHER_REPORT_DIMENSIONS = ("teacher", "student", "judge", "task", "factor")
_FORMULAS = {
    "v1": "mean over tasks and factors of the variance of the students' means",
    "s2": "mean over items and factors of the standard deviation of the students' scores",
    "r3": "mean over tasks and factors of the range of the students' means",
}
_TEACHER_REPORT_ACROSS = ("factor", "task", "attribute")


def teacher_report_parts(result: TeacherReport) -> dict[str, Any]:
    """What the template shows."""
    order = [result.formula, *(name for name in _FORMULAS if name != result.formula)]
    return {
        "ranking": _ranking(result),
        "formula": result.formula.upper(),
        "meanings": [(name.upper(), text) for name, text in _FORMULAS.items()],
        "one_student": result.one_student,
        "grids": [
            (name.upper(), [(across, _teacher_report_grid(result, name, across)) for across in _TEACHER_REPORT_ACROSS])
            for name in order
        ],
        "means": _means(result),
        "contents": [("ranking", "Ranking"), ("grids", "Where they tell apart"), ("means", "Means")],
    }


def _means(result: TeacherReport) -> Grid:
    cells = [row for row in result.cells if row.dimension == "factor"]
    values = [(row.teacher, row.value, row.mean, f"from {row.units:,} scores") for row in cells]
    return grid_of(("teacher", "factor"), values, notes=notes_of(result.header))


def _ranking(result: TeacherReport) -> Table | None:
    notes = notes_of(result.header)
    columns = [
        Column("rank"),
        Column("teacher", number=False),
        *(Column(name.upper(), note=text) for name, text in _FORMULAS.items()),
        Column("√V1", 4, note="the other form of S2: the square root of V1"),
        Column("items"),
        Column("scores"),
    ]
    rows = [
        [
            row.rank,
            name_cell("teacher", row.teacher, notes),
            *(amount(getattr(row, name)) for name in _FORMULAS),
            row.root_v1,
            row.items,
            row.units,
        ]
        for row in result.teachers
    ]
    return named_table(columns, rows, barred=(2, 3, 4), zero=0.0)


def _teacher_report_grid(result: TeacherReport, formula: str, across: str) -> Grid:
    cells = [row for row in result.cells if row.dimension == across]
    values = [
        (row.teacher, row.value, getattr(row, formula), f"mean {row.mean:.3f} of {row.units:,} scores") for row in cells
    ]
    names = getattr(result.header, f"{across}s", ())
    order = ([row.teacher for row in result.teachers], names)
    why = "There is nothing to show: no scores" + (" of items with attributes." if across == "attribute" else ".")
    return grid_of(
        ("teacher", across), values, notes=notes_of(result.header), digits=3, most=None, order=order, empty=why
    )


# Report interaction-matrix: which students do well on whose items.

INTERACTION_MATRIX_DIMENSIONS = ("teacher", "student", "judge", "task", "factor")


def interaction_matrix_parts(result: InteractionMatrix) -> dict[str, Any]:
    """What the template shows."""
    factors = [name for name in result.header.factors if any(cell.factor == name for cell in result.cells)]
    return {
        "means": _interaction_matrix_grid(result, ""),
        "deviations": _interaction_matrix_grid(result, "", deviation=True),
        "factors": [
            (name, _interaction_matrix_grid(result, name), _interaction_matrix_grid(result, name, deviation=True))
            for name in factors
        ],
        "contents": [("means", "Means"), ("deviations", "Deviations"), ("factors", "By factor")],
    }


def _interaction_matrix_grid(result: InteractionMatrix, factor: str, *, deviation: bool = False) -> Grid:
    what = "deviation" if deviation else "mean"
    values = [
        (cell.teacher, cell.student, getattr(cell, what), f"from {cell.units:,} scores")
        for cell in result.cells
        if cell.factor == factor
    ]
    order = (result.header.teachers, result.header.students)
    return grid_of(
        ("teacher", "student"),
        values,
        notes=notes_of(result.header),
        own=True,
        order=order,
        deviation=deviation,
        most=None if deviation else 1.0,
    )


# Report score-distribution: how High, Medium and Low spread over students, teachers and judges.

SCORE_DISTRIBUTION_DIMENSIONS = ("student", "teacher", "judge", "task", "factor")
"""What the page filters by."""
_ROLES = ("student", "teacher", "judge")
_SCORE_DISTRIBUTION_ACROSS = ("task", "factor", "student", "teacher", "judge", "attribute")


def score_distribution_parts(result: ScoreDistribution) -> dict[str, Any]:
    """What the template shows."""
    notes = notes_of(result.header)
    panels = [(role, levels_of(map(_counts, _rows(result, role, "all")), role, notes)) for role in _ROLES]
    by = [(kind, _over(result, kind)) for kind in ("task", "factor", "attribute")]
    return {
        "panels": panels,
        "by": [(kind, levels_of(rows, kind, notes)) for kind, rows in by],
        "grids": [(role, _grids(result, role)) for role in _ROLES],
        "drift": drift_lines(result.drift, "mean"),
        "numeric": any(row.numeric for row in result.rows),
        "contents": [
            ("levels", "Levels"),
            ("by", "By task, factor and attribute"),
            ("grids", "Means"),
            ("drift", "Drift"),
        ],
    }


def _rows(result: ScoreDistribution, role: str, dimension: str) -> Iterable[DistributionRow]:
    return (row for row in result.rows if row.role == role and row.dimension == dimension)


def _counts(row: DistributionRow) -> tuple[str, int, float, DistributionRow, int]:
    return row.model, row.units, row.mean, row, row.numeric


def _over(result: ScoreDistribution, kind: str) -> list[tuple[str, int, float, LevelRow, int]]:
    """A value of a dimension over all students, whose units add up to all."""
    found: dict[str, list[DistributionRow]] = defaultdict(list)
    for row in _rows(result, "student", kind):
        found[row.value].append(row)
    return [(value, *_sum(value, rows)) for value, rows in found.items()]


def _sum(value: str, rows: list[DistributionRow]) -> tuple[int, float, LevelRow, int]:
    units = sum(row.units for row in rows)
    mean = sum(row.mean * row.units for row in rows) / units if units else 0.0
    high, medium, low = (sum(getattr(row, level) for row in rows) for level in ("high", "medium", "low"))
    return units, mean, LevelRow(value, "", units, mean, high, medium, low), sum(row.numeric for row in rows)


def _grids(result: ScoreDistribution, role: str) -> list[tuple[str, Grid]]:
    return [
        (across, _score_distribution_grid(result, role, across))
        for across in _SCORE_DISTRIBUTION_ACROSS
        if across != role
    ]


def _origin(row: DistributionRow) -> str:
    return f"from {row.units:,} scores, {row.high:,} High, {row.medium:,} Medium, {row.low:,} Low"


def _score_distribution_grid(result: ScoreDistribution, role: str, across: str) -> Grid:
    header = result.header
    rows = [(row.model, row.value, row.mean, _origin(row)) for row in _rows(result, role, across)]
    order = (getattr(header, f"{role}s"), getattr(header, f"{across}s", ()))
    return grid_of((role, across), rows, notes=notes_of(header), own=across in _ROLES, order=order)


def drift_lines(rows: Iterable[DriftRow], what: str) -> list[Spark]:
    """A line for each judge over its windows."""
    found: dict[str, list[float | None]] = defaultdict(list)
    for row in rows:
        found[row.judge].append(getattr(row, what))
    return sparks(found.items(), "mean score" if what == "mean" else "agreement with peers")
