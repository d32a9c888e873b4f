"""What each report holds, as frozen dataclasses: pages, workbook, JSON and CSV all follow from these.

A report is a `Header` and tables; a table is a tuple of flat rows, or `Columns` of them where they may be very many.
Scores lie in [0, 1] (High 1, Medium 0.5, Low 0). `lower` and `upper` are 95 % limits of a bootstrap that draws whole
datapoints. None is what cannot be computed (no data, one judge, no variance), never zero.

Dimensions are named task, factor, judge, teacher, student, and `attribute`, whose values read `name=value`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

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
from coeval.analysis.tables import (
    Columns,
    ItemCount,
    JudgeName,
    Rank,
    ScoreCount,
    Shown,
    StudentName,
    TaskName,
    TeacherName,
    barred,
    estimated,
    named,
)

_RATING = "as of chess ratings: 400 more is ten wins to one; the bar is a 95 % interval over items"
_MACRO = "mean of the tasks' means: no task counts more for having more factors"


@dataclass(frozen=True)
class TeacherRow:
    """How well a teacher's items tell students apart: larger is better."""

    rank: Rank
    teacher: TeacherName
    v1: Annotated[float, barred("V1", "mean over tasks and factors of the variance of the students' means")]
    s2: Annotated[float, barred("S2", "mean over items and factors of the standard deviation of the students' scores")]
    r3: Annotated[float, barred("R3", "mean over tasks and factors of the range of the students' means")]
    root_v1: Annotated[float, Shown("√V1", "the other form of S2: the square root of V1", 4)]
    items: ItemCount
    units: ScoreCount


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

    rank: Rank
    student: StudentName
    mean: Annotated[float, estimated("mean", "of all scores; the bar is a 95 % interval over items")]
    """Mean of all its units, weighted by factor."""
    lower: float
    upper: float
    macro: Annotated[float, estimated("mean over tasks", _MACRO, "macro_")]
    macro_lower: float
    macro_upper: float
    without_self: Annotated[
        float | None, estimated("without self", "without the scores that it gave itself", "without_self_", bar=False)
    ]
    without_self_lower: float | None
    without_self_upper: float | None
    composite: Annotated[float, Shown("1 to 5", "1 + 4 mean", 2)]
    valid_evals: ScoreCount
    responses: Annotated[int, Shown("answers")]
    datapoints: ItemCount
    unweighted: Annotated[float, Shown("unweighted", "the mean if all factors counted alike", 3)]


@dataclass(frozen=True)
class StudentCell:
    """A student's mean on one value of a dimension (task, factor, judge, teacher, attribute)."""

    student: StudentName
    dimension: str
    value: str
    mean: Annotated[float, estimated("mean")]
    lower: float
    upper: float
    units: ScoreCount


@dataclass(frozen=True)
class StudentPair:
    """Whether one student is better than another, on the datapoints that both answered."""

    better: Annotated[str, named("student", "better")]
    worse: Annotated[str, named("student", "worse")]
    difference: Annotated[float, estimated("difference", zero=True)]
    lower: float
    upper: float
    p_value: float
    """Two-sided, of the normal approximation to the bootstrap."""
    significant: bool
    """Whether `p_value` is below 0.05 after Holm's correction for all pairs."""
    datapoints: Annotated[int, Shown("items in common")]


@dataclass(frozen=True)
class PairPower:
    """How many items would separate two students."""

    better: Annotated[str, named("student", "better")]
    worse: Annotated[str, named("student", "worse")]
    difference: Annotated[float, Shown("difference", digits=3)]
    sd: Annotated[float, Shown("sd", "of the difference on one item", 3)]
    datapoints: Annotated[int, Shown("items it has")]
    needed: Annotated[
        int | None, Shown("items it needs", "to find this difference in 80 of 100 runs, two-sided at 5 %")
    ]
    """None where there is no difference."""
    power: Annotated[float, Shown("power", "chance to find it with the items it has", 2)]


@dataclass(frozen=True)
class VarianceRow:
    """What part of the variance of scores a source has."""

    source: Annotated[str, Shown("source")]
    """student, item, judge, teacher, factor, student x item, residual."""
    variance: Annotated[float, Shown("variance", digits=5)]
    share: Annotated[float, barred("share", digits=3)]


@dataclass(frozen=True)
class LabelRow:
    """How often a student's label is the right one; no judge is asked."""

    student: StudentName
    task: TaskName
    attribute: Annotated[str, Shown("label")]
    accuracy: Annotated[float | None, Shown("accuracy", "among answers from which a label could be read", 3)]
    strict_accuracy: Annotated[float, barred("strict accuracy", "among all answers", 3)]
    n_total: Annotated[int, Shown("read")]
    n_matched: Annotated[int, Shown("right")]
    n_skipped: Annotated[int, Shown("not read")]


@dataclass(frozen=True)
class LabelValueRow:
    """The same for one label."""

    student: StudentName
    task: TaskName
    attribute: Annotated[str, Shown("label")]
    label: Annotated[str, Shown("value")]
    precision: Annotated[float, Shown("precision", digits=3)]
    recall: Annotated[float, Shown("recall", digits=3)]
    f1: Annotated[float, Shown("F1", digits=3)]
    support: ItemCount


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
    rank: Rank
    student: StudentName
    score: Annotated[float, estimated("score", _RATING, digits=0)]
    """1000 in the middle."""
    lower: float | None
    upper: float | None
    win_rate: Annotated[float, Shown("win rate", "expected against the others", 3)]
    votes: Annotated[int, Shown("preferences")]
    component: int
    """Group of students that comparisons join; between groups a rank says nothing."""


@dataclass(frozen=True)
class Skipped:
    """Records of one kind that were left out."""

    code: Annotated[str, Shown("code")]
    """PARSE_ERROR_P3/P4/P5, MISSING_RESPONSE, MISSING_DATAPOINT, INCOMPLETE_SCORES, INVALID_SCORE_VALUE,
    FAILED_P3/P4/P5, DUPLICATE_P3/P4/P5, STALE_P4/P5, and those of verdicts on pairs, which end in _PAIR."""
    count: Annotated[int, Shown("records")]
    example: Annotated[str, Shown("for example", wide=True)]
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
    """With one student there is nothing to discriminate: all values are 0."""
    teachers: tuple[TeacherRow, ...]
    cells: tuple[TeacherCell, ...]


@dataclass(frozen=True)
class JudgeReport:
    """Report judge-report."""

    header: Header
    metric: str
    """What the ranking follows: spa, wpa or kappa, weighted by what was shared."""
    degenerate: bool
    """One judge has no peers: its scores are 1.0 by definition."""
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

    task: TaskName
    teacher: TeacherName
    student: StudentName
    judge: JudgeName
    expected: Annotated[int, Shown("expected", "items of the teacher in the task")]
    actual: Annotated[int, Shown("stored")]
    valid: Annotated[int, Shown("valid")]
    failed: Annotated[int, Shown("failed")]


@dataclass(frozen=True)
class CountRow:
    """Records of a phase, by one value of a dimension."""

    phase: str
    dimension: Annotated[str, Shown("by")]
    value: str
    records: Annotated[int, Shown("records")]
    failed: int


@dataclass(frozen=True)
class StrataRow:
    """How much of what a task's target attributes span has items."""

    task: TaskName
    strata: Annotated[int, Shown("combinations", "of one value of each declared target attribute")]
    """Of all attributes, or of as many as the task draws."""
    covered: Annotated[int, Shown("with an item")]
    coverage: Annotated[float | None, barred("share", digits=2)]
    rare: Annotated[int, Shown("with one or two items")]
    values: Annotated[int, Shown("values", "declared values of all target attributes")]
    values_covered: Annotated[int, Shown("values with an item")]
    value_coverage: Annotated[float | None, barred("share of values", digits=2)]


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

    judge_selection: str = "top_half"
    """Or all."""
    agreement_metric: str = "spa"
    """Or wpa, kappa: ranks the judges."""
    teacher_score_formula: str = "v1"
    """Or s2, r3: ranks the teachers."""
    agreement_threshold: float | None = 1.0
    """Share of (student, factor) pairs on which the judges have to agree; None in the other form."""
    theta: float | None = None
    """Other form: how far judges may lie from the pair's mean."""
    q_fraction: float = 0.5
    """Share of the chosen judges that has to have scored (or to lie within theta)."""


DEFAULTS = RobustSettings()


@dataclass(frozen=True)
class RobustStudent:
    """A student on the robust set and on all."""

    rank: Rank
    student: StudentName
    robust: Annotated[float, estimated("robust", "mean over pairs of item and factor of the chosen judges' mean")]
    lower: float
    upper: float
    full_rank: Annotated[int, Shown("rank on all")]
    full: Annotated[float, Shown("on all", "all items and judges, on the factors that the chosen judges score", 3)]
    delta: float
    """robust - full."""
    flagged: bool
    """Whether |delta| > 0.1."""
    pairs: Annotated[int, Shown("pairs", "of item and factor")]


@dataclass(frozen=True)
class RobustTeacher:
    """How many of a teacher's items were kept."""

    teacher: TeacherName
    chosen: bool
    score: Annotated[float, barred("score", "with the chosen judges only")]
    items: ItemCount
    candidates: Annotated[int, Shown("candidates")]
    kept: Annotated[int, Shown("kept")]


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
    """Candidate datapoint -> share of its pairs on which the judges agreed."""
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

    model: Annotated[str, named("model")]
    student_mean: Annotated[float | None, estimated("as student", "mean score", "student_")]
    student_lower: float | None
    student_upper: float | None
    student_evals: int
    v1: Annotated[float | None, Shown("as teacher: V1", "how far its items set students apart", 4)]
    s2: float | None
    r3: float | None
    spa: Annotated[float | None, Shown("as judge: SPA", "how far peers agree with it", 3)]
    wpa: float | None
    kappa: Annotated[float | None, Shown("as judge: κ", "the same beyond chance", 3)]


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
