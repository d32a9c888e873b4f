"""Rows of the reports on judges; see `results.py`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from coeval.analysis.tables import JudgeName, ScoreCount, Shown, estimated, named, toned

_WEIGHTED = "mean over peers, each weighted by the scores shared with it"
_PLAIN = "plain mean over peers"


@dataclass(frozen=True)
class JudgeRow:
    """How far a judge agrees with its peers."""

    rank: Annotated[int | None, Shown("rank")]
    """None: too few scores to be ranked."""
    judge: JudgeName
    kind: Annotated[str, Shown("kind", "model, metric or label")]
    units: ScoreCount
    coverage: float
    """Its units, as a share of those of the judge of its kind with most."""
    spa: Annotated[float | None, Shown("SPA", _PLAIN, 3)]
    """Share of equal levels."""
    wpa: Annotated[float | None, Shown("WPA", _PLAIN, 3)]
    kappa: Annotated[float | None, Shown("κ", _PLAIN, 3)]
    weighted_spa: Annotated[float | None, estimated("SPA weighted", _WEIGHTED, "weighted_spa_")]
    weighted_spa_lower: float | None
    weighted_spa_upper: float | None
    weighted_wpa: Annotated[float | None, Shown("WPA weighted", _WEIGHTED, 3)]
    weighted_kappa: Annotated[float | None, Shown("κ weighted", _WEIGHTED, 3)]
    kappa_label: Annotated[str, Shown("reads as", "of the weighted κ")]
    """Empty where that is None."""


@dataclass(frozen=True)
class JudgePair:
    """How far two judges agree on what both scored."""

    judge_a: Annotated[str, named("judge")]
    judge_b: Annotated[str, named("judge", "and")]
    n: Annotated[int, Shown("in common", "answers and factors that both scored")]
    spa: Annotated[float | None, estimated("SPA", "", "spa_")]
    spa_lower: float | None
    spa_upper: float | None
    wpa: Annotated[float | None, Shown("WPA", digits=3)]
    kappa: Annotated[float | None, Shown("κ", digits=3)]
    kappa_label: Annotated[str, Shown("reads as")]
    quadratic_kappa: Annotated[float | None, Shown("quadratic κ", digits=3)]
    spearman: Annotated[float | None, Shown("Spearman", digits=3)]
    kendall: Annotated[float | None, Shown("Kendall", digits=3)]
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

    scope: Annotated[str, Shown("scores of")]
    """`all`, `task`, `factor`."""
    value: Annotated[str, Shown("")]
    judges: Annotated[int, Shown("judges")]
    pairs: Annotated[int, Shown("answers and factors", "with two scores or more")]
    alpha_ordinal: Annotated[float | None, Shown("α ordinal", "Krippendorff's alpha, levels as ranks", 3)]
    alpha_interval: Annotated[
        float | None, estimated("α interval", "Krippendorff's alpha, levels as 0, 0.5 and 1", "alpha_", zero=True)
    ]
    alpha_lower: float | None
    alpha_upper: float | None
    icc_single: Annotated[float | None, Shown("ICC of one", "ICC(2,1): absolute agreement of one judge", 3)]
    """On pairs that all judges scored."""
    icc_average: Annotated[float | None, Shown("ICC of the mean", "ICC(2,k): of the mean of all judges", 3)]


@dataclass(frozen=True)
class SelfPreferenceRow:
    """Whether a judge rates its own answers above what its peers give them."""

    judge: JudgeName
    units: Annotated[int, Shown("own scores")]
    """Of answers that a peer scored too."""
    own: Annotated[float, Shown("gives itself", digits=3)]
    peers: Annotated[float, Shown("peers give it", digits=3)]
    others_gap: Annotated[float, Shown("lead on others", "how far it lies above its peers on answers of others", 3)]
    preference: Annotated[
        float,
        toned("preference", "its lead over peers on its own answers, less the same on answers of others"),
    ]
    lower: float
    upper: float


@dataclass(frozen=True)
class VerbosityRow:
    """Whether longer answers score better."""

    judge: str
    """Empty: all judges."""
    responses: Annotated[int, Shown("answers")]
    r: Annotated[float | None, Shown("over all", "correlation of length and score over all answers", 3)]
    within_datapoint_r: Annotated[
        float | None, toned("within items", "correlation of length and score among answers to one item")
    ]
    """Datapoint means are taken out of both."""
    lower: float | None
    upper: float | None


@dataclass(frozen=True)
class FamilyRow:
    """Whether a judge rates other models of its own family above what judges of other families give."""

    judge: JudgeName
    family: Annotated[str, Shown("family")]
    students: Annotated[str, Shown("students of it", wide=True)]
    """Names, with a comma between."""
    units: ScoreCount
    preference: Annotated[float, toned("preference")]
    """As in self-preference."""
    lower: float
    upper: float


@dataclass(frozen=True)
class FlipRow:
    """How often a judge changes its verdict with the order of the answers."""

    judge: JudgeName
    pairs: Annotated[int, Shown("pairs in both orders")]
    flips: Annotated[int, Shown("flips", "the other answer won in the other order")]
    inconsistent: Annotated[int, Shown("of two minds", "flips, and pairs of which one order was a tie")]
    flip_rate: Annotated[float, estimated("flip rate")]
    lower: float
    upper: float
    first_share: Annotated[
        float | None,
        Shown("for the first", "share of decided verdicts for the answer shown first; 0.5 is without bias", 3),
    ]


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
