"""Rows of the reports on judges; see `results.py`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class JudgeRow:
    """How far a judge agrees with its peers."""

    rank: int | None
    """None: too few scores to be ranked."""
    judge: str
    kind: str
    """model, metric or label."""
    units: int
    coverage: float
    """Its units, as a share of those of the judge of its kind with most."""
    spa: float | None
    """Plain mean over peers of the share of equal levels."""
    wpa: float | None
    kappa: float | None
    weighted_spa: float | None
    """Mean over peers, each weighted by the scores shared with it."""
    weighted_spa_lower: float | None
    weighted_spa_upper: float | None
    weighted_wpa: float | None
    weighted_kappa: float | None
    kappa_label: str
    """Of `weighted_kappa`; empty where that is None."""


@dataclass(frozen=True)
class JudgePair:
    """How far two judges agree on what both scored."""

    judge_a: str
    judge_b: str
    n: int
    """(response, factor) pairs that both scored."""
    spa: float | None
    spa_lower: float | None
    spa_upper: float | None
    wpa: float | None
    kappa: float | None
    kappa_label: str
    quadratic_kappa: float | None
    spearman: float | None
    kendall: float | None
    """Tau-b."""


@dataclass(frozen=True)
class AgreementRow:
    """A judge's agreement with its peers (weighted) on one value of a dimension (factor, teacher, student, task)."""

    judge: str
    dimension: str
    value: str
    n: int
    spa: float | None
    wpa: float | None
    kappa: float | None


@dataclass(frozen=True)
class Reliability:
    """How far all judges agree."""

    scope: str
    """`all`, `task`, `factor`."""
    value: str
    judges: int
    pairs: int
    """(response, factor) pairs with two scores or more."""
    alpha_ordinal: float | None
    """Krippendorff's alpha."""
    alpha_interval: float | None
    alpha_lower: float | None
    """Limits of `alpha_interval`."""
    alpha_upper: float | None
    icc_single: float | None
    """ICC(2,1), absolute agreement of one judge, on pairs that all judges scored."""
    icc_average: float | None
    """ICC(2,k), of the mean of the judges."""


@dataclass(frozen=True)
class SelfPreferenceRow:
    """Whether a judge rates its own answers above what its peers give them."""

    judge: str
    units: int
    """Of its own answers that a peer scored too."""
    own: float
    """Mean score that it gives itself."""
    peers: float
    """Mean score that its peers give the same answers."""
    others_gap: float
    """How far it lies above its peers on answers of others."""
    preference: float
    """(own - peers) - others_gap: its leniency taken out."""
    lower: float
    upper: float


@dataclass(frozen=True)
class VerbosityRow:
    """Whether longer answers score better."""

    judge: str
    """Empty: all judges."""
    responses: int
    r: float | None
    """Pearson correlation of a response's token count with its mean score."""
    within_datapoint_r: float | None
    """The same with datapoint means taken out of both: answers to one item compared."""
    lower: float | None
    """Limits of `within_datapoint_r`."""
    upper: float | None


@dataclass(frozen=True)
class FamilyRow:
    """Whether a judge rates other models of its own family above what judges of other families give."""

    judge: str
    family: str
    students: str
    """Names, with a comma between."""
    units: int
    preference: float
    """As in self-preference."""
    lower: float
    upper: float


@dataclass(frozen=True)
class FlipRow:
    """How often a judge changes its verdict with the order of the answers."""

    judge: str
    pairs: int
    """Pairs seen in both orders."""
    flips: int
    """Of these, the other model won in the other order."""
    inconsistent: int
    """Of these, the two verdicts differ: flips, and those where one of them is a tie."""
    flip_rate: float
    lower: float
    upper: float
    first_share: float | None
    """Among verdicts that name a winner, the share for the answer shown first: 0.5 is without bias."""


@dataclass(frozen=True)
class BiasReport:
    """What may be wrong with judges."""

    self_preference: tuple[SelfPreferenceRow, ...]
    verbosity: tuple[VerbosityRow, ...]
    family: tuple[FamilyRow, ...]
    flips: tuple[FlipRow, ...]


@dataclass(frozen=True)
class CalibrationRow:
    """How a judge uses the scale."""

    judge: str
    units: int
    mean: float
    sd: float
    high: float
    """Shares of levels; of all units."""
    medium: float
    low: float
    flagged: bool
    """Whether more than 90 % are High, or more than 90 % Low."""


@dataclass(frozen=True)
class SpreadRow:
    """A judge's scores at one value of an attribute."""

    judge: str
    attribute: str
    value: str
    units: int
    mean: float
    variance: float
    minimum: float
    lower_quartile: float
    median: float
    upper_quartile: float
    maximum: float


@dataclass(frozen=True)
class DriftRow:
    """A window in the order of evaluation."""

    judge: str
    window: int
    """From 1."""
    units: int
    mean: float
    spa: float | None
    """Agreement with peers within the window."""
    started: str
    """Time of its first evaluation."""
