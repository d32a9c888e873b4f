"""Biases of judges: towards themselves, models of their family, long answers, and the answer shown first.

* Self-preference of judge j: mean over its own answers of (its score - its peers'), less the same mean over answers of
  others, so that leniency is not mistaken for self-preference.
* Same family: the same, over answers of other models of j's family, with judges of other families as peers.
* Verbosity: correlation of a response's token count with its mean score, and the same within datapoints.
* Position: pairs seen in both orders where the verdict is not the same.

Shapes: P pairs (response, factor), J judges, S students, R responses.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import Annotated, NamedTuple

import numpy as np
import numpy.typing as npt

from coeval.analysis.panel import about_means
from coeval.analysis.statistics import Floats, jackknife, pearson, share_limits
from coeval.analysis.tables import JudgeName, ScoreCount, Shown, estimated, toned
from coeval.analysis.units import LoadedRun
from coeval.analysis.verdicts import Preference


@dataclass(frozen=True)
class _SelfPreferenceRow:
    """How far a judge rates its own answers above its peers' scores of them."""

    judge: JudgeName
    units: Annotated[int, Shown("own scores")]  # of answers that a peer scored too
    own: Annotated[float, Shown("gives itself", digits=3)]
    peers: Annotated[float, Shown("peers give it", digits=3)]
    others_gap: Annotated[float, Shown("lead on others", "how far it lies above its peers on answers of others", 3)]
    preference: Annotated[
        float, toned("preference", "its lead over peers on its own answers, less the same on answers of others")
    ]
    lower: float
    upper: float


@dataclass(frozen=True)
class _VerbosityRow:
    """How far longer answers score better."""

    judge: str  # empty: all judges
    responses: Annotated[int, Shown("answers")]
    r: Annotated[float | None, Shown("over all", "correlation of length and score over all answers", 3)]
    # Datapoint means are taken out of both.
    within_datapoint_r: Annotated[
        float | None, toned("within items", "correlation of length and score among answers to one item")
    ]
    lower: float | None
    upper: float | None


@dataclass(frozen=True)
class _FamilyRow:
    """How far a judge rates models of its own family above the scores of judges of other families."""

    judge: JudgeName
    family: Annotated[str, Shown("family")]
    students: Annotated[str, Shown("students of it", wide=True)]  # names, with a comma between
    units: ScoreCount
    preference: Annotated[float, toned("preference")]  # as in self-preference
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
class _PositionRow:
    """How often a judge prefers the answer shown first; sides are dealt at random, so one order tells too."""

    judge: JudgeName
    verdicts: Annotated[int, Shown("decided verdicts", "in either order; ties say nothing")]
    first: Annotated[float, estimated("for the first", "share for the answer shown first; 0.5 is without bias")]
    lower: float
    upper: float
    biased: Annotated[bool, Shown("biased", "the interval leaves 0.5 out")]


@dataclass(frozen=True)
class BiasReport:
    """The biases of all judges."""

    self_preference: tuple[_SelfPreferenceRow, ...]
    verbosity: tuple[_VerbosityRow, ...]
    family: tuple[_FamilyRow, ...]
    flips: tuple[FlipRow, ...]
    positions: tuple[_PositionRow, ...] = ()


# Position: how often a verdict depends on the order of the answers.


def flip_rows(verdicts: Iterable[Preference]) -> tuple[FlipRow, ...]:
    """Count the flips of each judge that saw pairs in both orders, by name; intervals draw items."""
    by_judge: dict[str, list[Preference]] = {}
    for verdict in verdicts:
        if len(verdict.verdicts) == 2:
            by_judge.setdefault(verdict.judge, []).append(verdict)
    rows = []
    for judge, preferences in sorted(by_judge.items()):
        # `model_a` is shown first in the first order, `model_b` in the second.
        pairs = Counter(preference.verdicts for preference in preferences)
        is_flip = {pair: {*pair} == {"model_a", "model_b"} for pair in pairs}
        flips = np.array([is_flip[preference.verdicts] for preference in preferences], dtype=np.float64)
        first = sum(count * ((a == "model_a") + (b == "model_b")) for (a, b), count in pairs.items())
        second = sum(count * ((a == "model_b") + (b == "model_a")) for (a, b), count in pairs.items())
        lower, upper = share_limits(_places(preference.datapoint for preference in preferences), flips)
        rows.append(
            FlipRow(
                judge=judge,
                pairs=len(preferences),
                flips=int(flips.sum()),
                inconsistent=sum(count for (a, b), count in pairs.items() if a != b),
                flip_rate=float(flips.mean()),
                lower=lower,
                upper=upper,
                first_share=first / (first + second) if first + second else None,
            )
        )
    return tuple(rows)


def position_rows(verdicts: Iterable[Preference]) -> tuple[_PositionRow, ...]:
    """Return how often each judge decides for the answer shown first, by name; intervals draw items."""
    by_judge: dict[str, list[Preference]] = {}
    for verdict in verdicts:
        if _for_first(verdict.verdicts):
            by_judge.setdefault(verdict.judge, []).append(verdict)
    rows = []
    for judge, preferences in sorted(by_judge.items()):
        decided = [_for_first(preference.verdicts) for preference in preferences]
        hits = np.array([hit for each in decided for hit in each], dtype=np.float64)
        points = _places(preference.datapoint for preference in preferences)
        lower, upper = share_limits(np.repeat(points, [len(each) for each in decided]), hits)
        share = float(np.mean(hits))
        rows.append(_PositionRow(judge, len(hits), share, lower, upper, biased=not lower <= 0.5 <= upper))
    return tuple(rows)


@cache
def _for_first(orders: tuple[str, ...]) -> tuple[bool, ...]:
    """Return, for each order in which a judge decides for one of the answers, whether for that shown first."""
    shown_first = zip(orders, ("model_a", "model_b"), strict=False)
    return tuple(winner == side for winner, side in shown_first if winner in ("model_a", "model_b"))


def _places(names: Iterable[str]) -> npt.NDArray[np.int64]:
    """Return a number for each name (N,), the same for equal ones."""
    places: dict[str, int] = {}
    return np.fromiter((places.setdefault(name, len(places)) for name in names), dtype=np.int64)


# Family -> what a model's id holds; a distilled model counts to the first that fits.
_FAMILIES = {
    "openai": r"gpt|(^|[^a-z])o[134](-|$)|davinci",
    "anthropic": r"claude",
    "google": r"gemini|gemma|palm",
    "meta": r"llama",
    "mistral": r"mistral|mixtral|ministral|codestral|magistral",
    "qwen": r"qwen|qwq",
    "deepseek": r"deepseek",
    "cohere": r"command|aya-",
    "amazon": r"nova-|titan",
    "microsoft": r"phi-?\d",
    "xai": r"grok",
    "smollm": r"smollm",
}


def bias_report(loaded: LoadedRun) -> BiasReport:
    """Compute all four kinds of bias."""
    return BiasReport(
        self_preference=self_preference_rows(loaded),
        verbosity=verbosity_rows(loaded),
        family=family_rows(loaded),
        flips=flip_rows(loaded.verdicts),
        positions=position_rows(loaded.verdicts),
    )


def family_of(model: str) -> str | None:
    """Return the family that a model's id names, or None."""
    return next((name for name, pattern in _FAMILIES.items() if re.search(pattern, model.lower())), None)


def self_preference_rows(loaded: LoadedRun) -> tuple[_SelfPreferenceRow, ...]:
    """Compute self-preference of each judge that is a student too and shares answers with peers."""
    scores, rows = _without_self_peers(loaded), []
    for judge, name in enumerate(loaded.judges):
        if name not in loaded.students:
            continue
        own = loaded.pairs.student == loaded.students.index(name)
        others = np.arange(len(loaded.judges)) != judge
        lead = _preference(loaded, judge, scores[:, others], own, ~own)
        if lead is not None:
            rows.append(_SelfPreferenceRow(judge=name, **lead._asdict()))
    return tuple(rows)


def family_rows(loaded: LoadedRun) -> tuple[_FamilyRow, ...]:
    """Compute family preference of each judge with students of its family and peers of other families."""
    scores, rows = _without_self_peers(loaded), []
    judges = {name: family_of(loaded.info.model_id(name, "judge")) for name in loaded.judges}
    students = {name: family_of(loaded.info.model_id(name, "student")) for name in loaded.students}
    for judge, name in enumerate(loaded.judges):
        relatives = [student for student in loaded.students if student != name and students[student] == judges[name]]
        if judges[name] is None or not relatives or loaded.kinds[judge] != "model":
            continue
        strangers = np.array([judges[peer] != judges[name] for peer in loaded.judges])
        ours = np.array([students[student] == judges[name] for student in loaded.students])[loaded.pairs.student]
        theirs = np.isin(loaded.pairs.student, [loaded.students.index(student) for student in relatives])
        lead = _preference(loaded, judge, scores[:, strangers], theirs, ~ours)
        if lead is not None:
            rows.append(
                _FamilyRow(
                    judge=name,
                    family=judges[name] or "",
                    students=", ".join(relatives),
                    units=lead.units,
                    preference=lead.preference,
                    lower=lead.lower,
                    upper=lead.upper,
                )
            )
    return tuple(rows)


def _without_self_peers(loaded: LoadedRun) -> Floats:
    """Return the matrix of scores (P, J) without those that a student gave itself."""
    # A peer's scores of its own answers may be biased themselves.
    return np.where(loaded.pairs.student[:, None] == loaded.student_codes("judge"), np.nan, loaded.pairs.scores)


class _Lead(NamedTuple):
    """How much more a judge gives some answers than its peers do, less the same on other answers."""

    units: int
    own: float
    peers: float
    others_gap: float
    preference: float
    lower: float
    upper: float


def _preference(
    loaded: LoadedRun, judge: int, peers: Floats, own: npt.NDArray[np.bool_], others: npt.NDArray[np.bool_]
) -> _Lead | None:
    """Compare a judge's lead over peers' scores (P, J) on its own answers with that on others; None without either."""
    score, scored = loaded.pairs.scores[:, judge], ~np.isnan(peers)
    shared = ~np.isnan(score) & scored.any(axis=1)
    own, others = own & shared, others & shared
    if not own.any() or not others.any():
        return None
    peer = np.where(scored, peers, 0.0).sum(axis=1) / np.maximum(scored.sum(axis=1), 1)
    gap = np.where(shared, score - peer, 0.0)
    columns = np.stack([gap * own, own, gap * others, others], axis=1).astype(np.float64)

    def figure(sums: Floats) -> Floats:
        return sums[:, 0] / sums[:, 1] - sums[:, 2] / sums[:, 3]

    lead = jackknife(loaded.clusters[loaded.pairs.datapoint], columns, figure)
    return _Lead(
        units=int(own.sum()),
        own=float(score[own].mean()),
        peers=float(peer[own].mean()),
        others_gap=float(gap[others].mean()),
        preference=float(lead.estimate[0]),
        lower=float(lead.lower[0]),
        upper=float(lead.upper[0]),
    )


def verbosity_rows(loaded: LoadedRun) -> tuple[_VerbosityRow, ...]:
    """Correlate length and score for all judges together, then for each."""
    units = loaded.units
    masks = [("", np.ones(len(units), dtype=bool))]
    masks += [(name, units.judge == judge) for judge, name in enumerate(loaded.judges)]
    return tuple(_verbosity(loaded, name, mask) for name, mask in masks if mask.any())


def _verbosity(loaded: LoadedRun, judge: str, mask: npt.NDArray[np.bool_]) -> _VerbosityRow:
    units = loaded.units
    n = np.bincount(units.response[mask], minlength=len(loaded.responses))
    sums = np.bincount(units.response[mask], units.norm[mask], minlength=len(loaded.responses))
    scored = np.flatnonzero(n)
    scores, tokens = sums[scored] / n[scored], loaded.tokens[scored]
    datapoint = loaded.response_datapoint[scored]
    # An item that needs long answers plays no part: its means are taken out of both. Rounding alone is no difference.
    groups = np.unique(datapoint, return_inverse=True)[1]
    rests = (about_means(values, groups, len(scored)) for values in (tokens, scores))
    x, y = (np.where(np.abs(rest) < 1e-12, 0.0, rest) for rest in rests)
    within = pearson(x, y)
    lower = upper = None
    if within is not None:
        columns = np.stack([x * y, x * x, y * y], axis=1)
        drawn = jackknife(loaded.clusters[datapoint], columns, lambda s: s[:, 0] / np.sqrt(s[:, 1] * s[:, 2]))
        lower, upper = max(-1.0, float(drawn.lower[0])), min(1.0, float(drawn.upper[0]))
    return _VerbosityRow(
        judge=judge,
        responses=len(scored),
        r=pearson(tokens, scores),
        within_datapoint_r=within,
        lower=lower,
        upper=upper,
    )
