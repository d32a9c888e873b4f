"""What each report says, as frozen data: the pages, the workbook, JSON and CSV all show these.

A report is a `Header` and tables; a table is a tuple of flat rows, or `Columns` of them where they may be very many, so
that any of them is a CSV file as it is. Scores lie in [0, 1] (High 1, Medium 0.5, Low 0). `lower` and `upper` are 95 %
limits of a bootstrap that draws whole datapoints. None is what cannot be computed (no data, one judge, no variance),
never zero.

Dimensions are named task, factor, judge, teacher, student, and `attribute`, whose values read `name=value`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from coeval.analysis.judge_results import (
    AgreementRow,
    BiasReport,
    CalibrationRow,
    DriftRow,
    FlipRow,
    JudgePair,
    JudgeRow,
    Reliability,
    SpreadRow,
)

# Tables as columns: a run of twenty models has a hundred thousand rows in some, too many to be an object each.
#
# Shapes: N rows.

Row = TypeVar("Row")


@dataclass(frozen=True, eq=False)
class Columns(Generic[Row]):
    """A table; to iterate over it gives its rows."""

    row: type[Row]
    """The dataclass that a row is; `values` are in the order of its fields."""
    names: Mapping[str, Sequence[str]]
    """Column of names -> what its codes stand for."""
    values: Mapping[str, npt.NDArray[Any]]
    """Column -> (N,): codes where it has names; NaN is None in a row."""

    def __len__(self) -> int:
        return len(next(iter(self.values.values())))

    def __iter__(self) -> Iterator[Row]:
        columns = [self.listed(name) for name in self.values]
        for row in zip(*columns, strict=True):
            yield self.row(**dict(zip(self.values, row, strict=True)))

    def __getitem__(self, place: int) -> Row:
        return next(iter(self.where(np.array([place]))))

    def where(self, rows: npt.NDArray[Any]) -> Columns[Row]:
        """The rows that a mask or indices choose."""
        return Columns(self.row, self.names, {name: column[rows] for name, column in self.values.items()})

    def listed(self, name: str) -> list[Any]:
        """A column as plain values, names in full."""
        if name in self.names:
            return [self.names[name][code] for code in self.values[name].tolist()]
        return plain_list(self.values[name])

    def plain(self) -> dict[str, Any]:
        """For JSON: names and, for each column, its values; columns of names hold places in those."""
        columns = {name: plain_list(column) for name, column in self.values.items()}
        return {"names": {name: list(found) for name, found in self.names.items()}, "columns": columns}


def plain_list(column: npt.NDArray[Any]) -> list[Any]:
    """Values of a column, None for what is no number."""
    values: list[Any] = column.tolist()
    if column.dtype.kind == "f" and not np.isfinite(column).all():
        return [value if known else None for value, known in zip(values, np.isfinite(column).tolist(), strict=True)]
    return values


# Rows of the reports on teachers and students; see `results.py`.


@dataclass(frozen=True)
class TeacherRow:
    """How well a teacher's items tell students apart: larger is better."""

    rank: int
    teacher: str
    v1: float
    """Mean over (task, factor) of the variance of the students' means."""
    s2: float
    """Mean over (datapoint, factor) of the standard deviation of the students' scores."""
    r3: float
    """Mean over (task, factor) of the range of the students' means."""
    root_v1: float
    """The other form of S2: the square root of V1."""
    items: int
    units: int


@dataclass(frozen=True)
class TeacherCell:
    """The same on one value of a dimension (factor, task, attribute)."""

    teacher: str
    dimension: str
    value: str
    v1: float
    s2: float
    r3: float
    mean: float
    units: int


@dataclass(frozen=True)
class StudentRow:
    """A student's standing."""

    rank: int
    student: str
    mean: float
    """Mean of all its units, weighted by factor."""
    lower: float
    upper: float
    macro: float
    """Mean over tasks of the task's mean: no task counts more for having more factors."""
    macro_lower: float
    macro_upper: float
    without_self: float | None
    """`mean` without the scores that the student gave itself."""
    without_self_lower: float | None
    without_self_upper: float | None
    composite: float
    """1 + 4 mean, on 1 to 5."""
    valid_evals: int
    """Units."""
    responses: int
    datapoints: int
    unweighted: float
    """`mean` if all factors counted alike."""


@dataclass(frozen=True)
class StudentCell:
    """A student's mean on one value of a dimension (task, factor, judge, teacher, attribute)."""

    student: str
    dimension: str
    value: str
    mean: float
    lower: float
    upper: float
    units: int


@dataclass(frozen=True)
class StudentPair:
    """Whether one student is better than another, on the datapoints that both answered."""

    better: str
    worse: str
    difference: float
    lower: float
    upper: float
    p_value: float
    """Two-sided, of the normal approximation to the bootstrap."""
    significant: bool
    """Whether `p_value` is below 0.05 after Holm's correction for all pairs."""
    datapoints: int


@dataclass(frozen=True)
class PairPower:
    """How many items would separate two students."""

    better: str
    worse: str
    difference: float
    sd: float
    """Of the difference between the two on one datapoint."""
    datapoints: int
    """What the run has."""
    needed: int | None
    """For a two-sided test at 5 % that finds the difference in 80 of 100 runs; None where there is no difference."""
    power: float
    """Of that test with what the run has."""


@dataclass(frozen=True)
class VarianceRow:
    """What part of the variance of scores a source has."""

    source: str
    """student, item, judge, teacher, factor, student x item, residual."""
    variance: float
    share: float


@dataclass(frozen=True)
class LabelRow:
    """How often a student's label is the right one; no judge is asked."""

    student: str
    task: str
    attribute: str
    accuracy: float | None
    """Matched among those from which a label could be read."""
    strict_accuracy: float
    """Matched among all."""
    n_total: int
    n_matched: int
    n_skipped: int


@dataclass(frozen=True)
class LabelValueRow:
    """The same for one label."""

    student: str
    task: str
    attribute: str
    label: str
    precision: float
    recall: float
    f1: float
    support: int


@dataclass(frozen=True)
class HammingRow:
    """A student's mean accuracy over several label attributes of a task."""

    student: str
    task: str
    attributes: int
    hamming_accuracy: float
    """Mean over attributes of `accuracy`; one of which no label could be read counts as 0."""
    strict_hamming_accuracy: float
    """Mean of `strict_accuracy`: the share of all labels that are right."""


@dataclass(frozen=True)
class PairBoardRow:
    """A student on a leaderboard fitted from preferences between two answers."""

    task: str
    """`overall`, or a task."""
    attribute: str
    """`name=value`; empty: all items."""
    rank: int
    student: str
    score: float
    """On the scale of chess ratings, 1000 in the middle."""
    lower: float | None
    upper: float | None
    win_rate: float
    votes: int
    """Preferences that count."""
    component: int
    """Group of students that comparisons join; between groups a rank says nothing."""


@dataclass(frozen=True)
class Skipped:
    """Records of one kind that were left out."""

    code: str
    """PARSE_ERROR_P3/P4/P5, MISSING_RESPONSE, MISSING_DATAPOINT, INCOMPLETE_SCORES, INVALID_SCORE_VALUE,
    FAILED_P3/P4/P5, DUPLICATE_P3/P4/P5, STALE_P4/P5, and those of verdicts on pairs, which end in _PAIR."""
    count: int
    example: str
    """Where: `file:line`, or the id of a record."""


@dataclass(frozen=True)
class Header:
    """What stands above every report."""

    experiment_id: str
    status: str
    created_at: str
    partial: bool
    """Whether the run is not completed, so that all below may change."""
    tasks: tuple[str, ...]
    teachers: tuple[str, ...]
    students: tuple[str, ...]
    judges: tuple[str, ...]
    factors: tuple[str, ...]
    datapoints: int
    responses: int
    evaluations: int
    """Records of scores, after those of one id became one."""
    valid_evaluations: int
    units: int
    """(response, factor, judge) scores of valid evaluations."""
    self_judging: int
    """Units whose judge is the student."""
    self_teaching: int
    """Units whose teacher is the student."""
    skipped: tuple[Skipped, ...]
    task_descriptions: Mapping[str, str] = field(default_factory=dict)
    factor_descriptions: Mapping[str, str] = field(default_factory=dict)
    """`task/factor` -> description."""
    attribute_values: Mapping[str, Mapping[str, tuple[str, ...]]] = field(default_factory=dict)
    """Task -> target attribute -> its values."""
    verdicts: int = 0
    """On pairs of answers, after those on the same became one."""
    weights: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """Task -> factor -> what it counts in students' means, where that is not 1."""
    grading: Mapping[str, str] = field(default_factory=dict)
    """Task -> how judges grade, where it is not by levels alone."""


@dataclass(frozen=True)
class DistributionRow:
    """How the scores of a model spread, over all or one value of a dimension."""

    role: str
    """The panel: student, teacher or judge."""
    model: str
    dimension: str
    """`all`, or task, factor, judge, teacher, student, attribute."""
    value: str
    units: int
    mean: float
    sd: float
    high: int
    medium: int
    low: int
    numeric: int
    """Scores that are numbers of a metric, not levels."""


@dataclass(frozen=True)
class ScoreDistribution:
    """Report score-distribution."""

    header: Header
    rows: tuple[DistributionRow, ...]
    drift: tuple[DriftRow, ...]
    """Mean score by order of evaluation, in windows of 20 evaluations."""


@dataclass(frozen=True)
class TeacherReport:
    """Report teacher-report."""

    header: Header
    formula: str
    """What the ranking follows: v1, s2 or r3."""
    one_student: bool
    """With one student nothing can be told apart: all values are 0."""
    teachers: tuple[TeacherRow, ...]
    cells: tuple[TeacherCell, ...]


@dataclass(frozen=True)
class JudgeReport:
    """Report judge-report."""

    header: Header
    metric: str
    """What the ranking follows: spa, wpa or kappa, weighted by what was shared."""
    degenerate: bool
    """One judge agrees with nobody: its scores are 1.0 by definition."""
    judges: tuple[JudgeRow, ...]
    pairs: tuple[JudgePair, ...]
    breakdown: tuple[AgreementRow, ...]
    reliability: tuple[Reliability, ...]
    """Of all factors together (scope `all`), then of each task and factor."""
    bias: BiasReport


@dataclass(frozen=True)
class StudentReport:
    """Report student-report."""

    header: Header
    students: tuple[StudentRow, ...]
    cells: tuple[StudentCell, ...]
    pairs: tuple[StudentPair, ...]
    power: tuple[PairPower, ...]
    variance: tuple[VarianceRow, ...]
    labels: tuple[LabelRow, ...]
    label_values: tuple[LabelValueRow, ...]
    hamming: tuple[HammingRow, ...] = ()
    """Of tasks with several label attributes."""


@dataclass(frozen=True)
class InteractionCell:
    """A student on a teacher's items."""

    teacher: str
    student: str
    factor: str
    """Empty: all factors."""
    mean: float
    deviation: float
    """From the student's mean on the same factors over all teachers."""
    units: int
    is_self: bool


@dataclass(frozen=True)
class InteractionMatrix:
    """Report interaction-matrix."""

    header: Header
    cells: tuple[InteractionCell, ...]


@dataclass(frozen=True)
class JudgeConsistency:
    """Report judge-consistency."""

    header: Header
    calibration: tuple[CalibrationRow, ...]
    spread: tuple[SpreadRow, ...]
    """Variance and box-plot figures of each judge by attribute value."""
    drift: tuple[DriftRow, ...]
    """Mean score and agreement by order of evaluation, in windows of 50 units."""


@dataclass(frozen=True)
class CoverageRow:
    """What there is, and should be, of one combination of models."""

    task: str
    teacher: str
    student: str
    judge: str
    expected: int
    """Datapoints of the teacher in the task."""
    actual: int
    """Evaluations stored."""
    valid: int
    failed: int


@dataclass(frozen=True)
class CountRow:
    """Records of a phase, by one value of a dimension."""

    phase: str
    dimension: str
    value: str
    records: int
    failed: int


@dataclass(frozen=True)
class StrataRow:
    """How much of what a task's target attributes span has items."""

    task: str
    strata: int
    """Combinations of values of the declared attributes that items are made with: of all of them, or of as many as
    the task draws."""
    covered: int
    """Those with an item that has them all."""
    coverage: float | None
    rare: int
    """Those with one or two items."""
    values: int
    """Declared values of all attributes."""
    values_covered: int
    value_coverage: float | None


@dataclass(frozen=True)
class CoverageSummary:
    """Report coverage-summary."""

    header: Header
    meta: Mapping[str, Any]
    counts: tuple[CountRow, ...]
    rows: Columns[CoverageRow]
    strata: tuple[StrataRow, ...]


@dataclass(frozen=True)
class RobustSettings:
    """How the robust set was chosen."""

    judge_selection: str
    agreement_metric: str
    teacher_score_formula: str
    agreement_threshold: float | None
    """Share of (student, factor) pairs on which the judges have to be of one mind; None in the other form."""
    theta: float | None
    """Other form: how far judges may lie from the pair's mean."""
    q_fraction: float
    """Share of the chosen judges that has to have scored (or to lie within theta)."""


@dataclass(frozen=True)
class RobustStudent:
    """A student on the robust set and on all."""

    rank: int
    student: str
    robust: float
    lower: float
    upper: float
    full_rank: int
    full: float
    delta: float
    """robust - full."""
    flagged: bool
    """Whether |delta| > 0.1."""
    pairs: int
    """(datapoint, factor) pairs."""


@dataclass(frozen=True)
class RobustTeacher:
    """How many of a teacher's items were kept."""

    teacher: str
    chosen: bool
    score: float
    items: int
    candidates: int
    kept: int


@dataclass(frozen=True)
class RobustSummary:
    """Report robust-summary."""

    header: Header
    settings: RobustSettings
    judges: tuple[JudgeRow, ...]
    chosen_judges: tuple[str, ...]
    teachers: tuple[RobustTeacher, ...]
    chosen_teachers: tuple[str, ...]
    candidates: int
    kept: int
    kept_ids: tuple[str, ...]
    consistent_fraction: Mapping[str, float]
    """Candidate datapoint -> share of its pairs on which the judges were of one mind."""
    students: tuple[RobustStudent, ...]
    cells: tuple[StudentCell, ...]
    """Students on the robust set by task and factor."""
    diagnostics: tuple[str, ...]
    """Each step in words, and what to change where nothing is left."""


@dataclass(frozen=True)
class SummaryReport:
    """Report summary-report."""

    header: Header
    students: tuple[StudentRow, ...]
    teachers: tuple[TeacherRow, ...]
    judges: tuple[JudgeRow, ...]
    teacher_threshold: float
    """Median of the teachers' scores by V1."""
    judge_threshold: float
    """Median of the judges' weighted SPA."""


@dataclass(frozen=True)
class SliceRow:
    """Raw slice of the workbook; `factor` is empty in the sheet that sums it up."""

    task: str
    teacher: str
    student: str
    judge: str
    factor: str
    total: int
    """Evaluations that should hold the factor."""
    valid: int
    invalid: int
    mean: float | None
    sd: float | None
    high: int
    medium: int
    low: int
    is_self_judging: bool
    is_self_teaching: bool


@dataclass(frozen=True)
class ModelRow:
    """A model in all its roles; None where it has not the role."""

    model: str
    student_mean: float | None
    student_lower: float | None
    student_upper: float | None
    student_evals: int
    v1: float | None
    s2: float | None
    r3: float | None
    spa: float | None
    wpa: float | None
    kappa: float | None


@dataclass(frozen=True)
class CompleteReport:
    """Report complete-report: the three sheets of the workbook."""

    header: Header
    raw: Columns[SliceRow]
    aggregated: Columns[SliceRow]
    models: tuple[ModelRow, ...]


@dataclass(frozen=True)
class PairsReport:
    """Report pairs: leaderboards from preferences, those of judges that are neither of the two."""

    header: Header
    likelihood: str
    native: int
    """Preferences that judges stated, having seen both answers."""
    derived: int
    """Preferences that follow from the scores of both."""
    self_judged: int
    """Left out."""
    why_none: str
    """Empty where there are rows."""
    rows: tuple[PairBoardRow, ...]
    flips: tuple[FlipRow, ...]


Report = (
    ScoreDistribution
    | TeacherReport
    | JudgeReport
    | StudentReport
    | InteractionMatrix
    | JudgeConsistency
    | CoverageSummary
    | RobustSummary
    | SummaryReport
    | CompleteReport
    | PairsReport
)
