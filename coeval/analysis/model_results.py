"""Rows of the reports on teachers and students; see `results.py`."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = [
    "LabelRow",
    "LabelValueRow",
    "PairBoardRow",
    "PairPower",
    "StudentCell",
    "StudentPair",
    "StudentRow",
    "TeacherCell",
    "TeacherRow",
    "VarianceRow",
]


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
