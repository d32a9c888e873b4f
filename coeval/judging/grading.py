"""What a judge's reply says, on any scale, with a rationale or without.

A reply with a rationale is never quoted in an error: errors go to logs, rationales do not.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from typing import Any

from coeval.parsing import LEVELS, MalformedAnswerError, graded_in, read_level, read_object, read_scores
from coeval.schema import Scale, Task, scale_of

# The expected score: each grade's value by the probability of its first token.
#
# score = sum over grades g of p(g) value(g) / sum of p(g), over the grades that are seen among the likeliest tokens.

_LEAST = 0.01
"""Probability of tokens that may begin several grades, from which on nothing is said."""
_AROUND = " \t\r\n*`\"'."


def expected_value(scale: Scale, tokens: Iterable[Sequence[object]]) -> float | None:
    """Return the expected score in [0, 1]; None where the tokens do not tell grades apart.

    Args:
        scale: of the grades.
        tokens: (token, natural logarithm of its probability).
    """
    seen: dict[str, float] = {}
    unclear = 0.0
    for token, logprob in tokens:
        grades = _begun(scale, str(token))
        probability = math.exp(min(float(logprob), 0.0))  # type: ignore[arg-type]
        if len(grades) == 1:
            seen[grades[0]] = seen.get(grades[0], 0.0) + probability
        elif grades:
            unclear += probability
    total = sum(seen.values())
    if not total or unclear > _LEAST:
        return None
    return sum(scale.value(grade) * probability for grade, probability in seen.items()) / total


def _begun(scale: Scale, token: str) -> list[str]:
    """Return the grades that a token may be the beginning of; a number is one as a whole."""
    text = token.strip(_AROUND).lower()
    if not text:
        return []
    if scale.is_range:
        return [grade for grade in scale.grades if grade == text]
    return [grade for grade in scale.grades if grade.lower().startswith(text)]


def clashing(scale: Scale) -> tuple[str, str] | None:
    """Two grades that the first token may not tell apart: 1 and 10, very bad and very good; None: there are none."""
    for one in scale.grades:
        for other in scale.grades:
            first, second = one.lower(), other.lower()
            if first != second and (second.startswith(first) or first.split()[0] == second.split()[0]):
                return one, other
    return None


@dataclass(frozen=True)
class Graded:
    """Some factors of an answer."""

    scores: Mapping[str, str]
    """As records hold them."""
    text: str = field(repr=False)
    grades: Mapping[str, str] = field(default_factory=dict)
    """As the judge said them; empty where these are the scores."""
    rationale: str = field(default="", repr=False)


def grading_of(task: Task) -> dict[str, Any]:
    """What reading a judge's reply takes, as part of a question's context; empty where grades are words alone."""
    grading: dict[str, Any] = {
        "scale": task.scale.to_json(),
        "rationale": task.rationale,
        "expected": task.expected_scores,
    }
    is_plain = task.scale.is_default and not task.rationale and not task.expected_scores
    return {} if is_plain else {"grading": grading}


def read_factors(context: Mapping[str, Any], text: str) -> Graded:
    """Return the grades of all factors that were asked for in one reply.

    Raises:
        MalformedAnswerError: one has no grade of the scale.
    """
    how = context.get("grading")
    if not how:
        return Graded(read_scores(text, context["factors"]), text)
    rationale, scores = split_rationale(text, "scores") if how["rationale"] else ("", None)
    if scores is not None and not isinstance(scores, Mapping):
        raise MalformedAnswerError('"scores" is no object')
    replies = graded_in(read_object(text) if scores is None else scores, context["factors"])
    return _graded(how, replies, text, rationale)


def read_factor(context: Mapping[str, Any], factor: str, text: str) -> Graded:
    """Return the grade of one factor.

    Raises:
        MalformedAnswerError: it is none of the scale.
    """
    how = context.get("grading")
    if not how:
        return Graded({factor: read_level(text)}, text)
    rationale, grade = split_rationale(text, "score") if how["rationale"] else ("", text)
    return _graded(how, {factor: grade}, text, rationale)


def _graded(how: Mapping[str, Any], replies: Mapping[str, Any], text: str, rationale: str) -> Graded:
    scale = scale_of(how["scale"])
    grades = {}
    for factor, reply in replies.items():
        try:
            grades[factor] = scale.read(reply)
        except MalformedAnswerError:
            if not how["rationale"]:
                raise
            raise MalformedAnswerError(f"no grade of the scale for {factor!r}") from None
    scores = {factor: scale.stored(grade) for factor, grade in grades.items()}
    is_said = scale.is_default and not how["expected"]
    return Graded(scores, text, {} if is_said else grades, rationale)


def split_rationale(text: str, key: str) -> tuple[str, Any]:
    """Return the rationale of a reply, and what stands under the other key.

    Raises:
        MalformedAnswerError: it is no object with both.
    """
    try:
        reply = read_object(text)
    except MalformedAnswerError:
        raise MalformedAnswerError(f'no JSON object with "rationale" and "{key}"') from None
    rationale = reply.get("rationale")
    if not isinstance(rationale, str) or not rationale.strip():
        raise MalformedAnswerError("no rationale")
    if key not in reply:
        raise MalformedAnswerError(f'no "{key}"')
    return rationale.strip(), reply[key]


def weighed(context: Mapping[str, Any], graded: Graded, tokens: Any) -> Graded:
    """Return the same with the expected score in the place of the grade's, where the tokens tell it."""
    how = context.get("grading")
    value = expected_value(scale_of(how["scale"]), tokens) if how and how["expected"] else None
    if value is None:
        return graded
    return Graded(dict.fromkeys(graded.scores, f"{value:.4f}"), graded.text, graded.grades, graded.rationale)


def is_score(value: object) -> bool:
    """Whether a stored value is a level, or a number in [0, 1] as text."""
    if not isinstance(value, str):
        return False
    try:
        return value in LEVELS or 0.0 <= float(value) <= 1.0
    except ValueError:
        return False


# What a factor of a rubric says, and how much it counts: 1 where the rubric says nothing.


def description_of(definition: object) -> str:
    """Return what tells a good answer from a bad one by a factor."""
    return str(definition.get("description") or "") if isinstance(definition, Mapping) else str(definition)


def weight_of(definition: object) -> float:
    """Return how much a factor counts."""
    weight = definition.get("weight") if isinstance(definition, Mapping) else None
    is_number = isinstance(weight, int | float) and not isinstance(weight, bool)
    return float(weight) if is_number and isfinite(weight) and weight > 0 else 1.0  # type: ignore[arg-type, operator]


def weights_in(rubric: Mapping[str, Any]) -> dict[str, float]:
    """Factor -> weight, of those that count for more or less than 1."""
    weights = {factor: weight_of(definition) for factor, definition in rubric.items()}
    return {factor: weight for factor, weight in weights.items() if weight != 1.0}
