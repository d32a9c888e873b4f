"""Preferences from scores: who scored higher with the same judge on the same item, without another call.

With s the mean of an answer's scores in [0, 1], weighted by factor: the better wins where |s_a - s_b| > margin;
otherwise it is a tie, and `tie (bothbad)` where both are at most `bad`.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from coeval.analysis.about import About
from coeval.analysis.records import Judgement, Records
from coeval.errors import RunInputError
from coeval.pairs.compare import sides
from coeval.pairs.preference import Preference, seconds
from p2l.command import nearest

__all__ = ["BAD", "MARGIN", "ROUNDING", "Rule", "derived", "outcome"]

MARGIN, BAD = 0.1, 0.25
ROUNDING = 1e-9
"""What sums of scores may be off by."""


@dataclass(frozen=True)
class Rule:
    """How scores become preferences."""

    margin: float = MARGIN
    """By how much the better has to be ahead."""
    bad: float = BAD
    """Two that tie with no more than this are both bad."""
    weights: Mapping[str, float] = field(default_factory=dict)
    """Factor -> weight; where nothing is said that of the rubric, which is 1 by default."""
    kind: str = "model"
    """Whose scores: those of judges that are models, of `metric` or of `label` judges."""
    seed: int = 0
    """Of the sides."""


def outcome(score_a: float, score_b: float, rule: Rule) -> str:
    """The winner by two scores in [0, 1]."""
    ahead = score_a - score_b
    if abs(ahead) > rule.margin + ROUNDING:
        return "model_a" if ahead > 0 else "model_b"
    return "tie (bothbad)" if max(score_a, score_b) <= rule.bad + ROUNDING else "tie"


def derived(records: Records, rule: Rule) -> list[Preference]:
    """The preferences that the scores of a run come to, one for each judge, item and pair of students.

    Raises:
        RunInputError: a weight is of a factor that nobody scored.
    """
    judgements = [one for one in records.judgements if not one.code and _is_of(one, records.about, rule.kind)]
    _check_weights(rule, judgements)
    groups: dict[tuple[str, str], list[Judgement]] = {}
    for one in judgements:
        groups.setdefault((one.datapoint, one.judge), []).append(one)
    return [preference for group in groups.values() for preference in _pairs(group, rule, records.about)]


def _is_of(judgement: Judgement, about: About, kind: str) -> bool:
    return about.kind(judgement.judge, judgement.task, judgement.scores) == kind


def _check_weights(rule: Rule, judgements: Iterable[Judgement]) -> None:
    known = sorted({factor for one in judgements for factor in one.scores})
    for factor in rule.weights:
        if known and factor not in known:
            hint = nearest(factor, known) or f"; there are {', '.join(known)}"
            raise RunInputError(f"--factor-weight: nobody scored the factor {factor!r}{hint}")


def _pairs(group: list[Judgement], rule: Rule, about: About) -> Iterator[Preference]:
    """All pairs of answers that one judge scored of one item."""
    task = about.tasks.get(group[0].task)
    weights = {**(task.weights if task is not None else {}), **rule.weights}
    for one, other in itertools.combinations(sorted(group, key=lambda judgement: judgement.student), 2):
        names = sides(one.student, other.student, one.datapoint, rule.seed)
        a, b = (one, other) if names[0] == one.student else (other, one)
        shared = {factor: weights.get(factor, 1.0) for factor in a.scores if factor in b.scores}
        if one.student != other.student and sum(shared.values()) > 0:
            yield _preference(a, b, _mean(a, shared), _mean(b, shared), rule)


def _mean(judgement: Judgement, weights: Mapping[str, float]) -> float:
    total = sum(weights.values())
    return sum(judgement.scores[factor] * weight for factor, weight in weights.items()) / total


def _preference(a: Judgement, b: Judgement, score_a: float, score_b: float, rule: Rule) -> Preference:
    return Preference(
        a.datapoint,
        a.task,
        a.teacher,
        a.student,
        b.student,
        a.response,
        b.response,
        winner=outcome(score_a, score_b, rule),
        judge=a.judge,
        source="derived",
        margin=round(score_a - score_b, 4),
        order_consistent=None,
        at=max(seconds(a.at), seconds(b.at)),
    )
