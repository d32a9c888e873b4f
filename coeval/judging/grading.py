"""Reading a judge's reply: grades on any scale, with or without a rationale, and expected scores.

The expected score weighs each grade's value by the probability of its first token:
score = sum over grades g of p(g) value(g) / sum of p(g), over the grades among the likeliest tokens.
"""

# No error quotes a reply with a rationale: errors go to logs, rationales do not.

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import permutations
from typing import Any

from coeval.parsing import (
    LEVELS,
    MalformedAnswerError,
    NoVerdictError,
    Verdict,
    after_thoughts,
    read_scores,
    read_verdict,
)
from coeval.schema import DEFAULT, Scale, Task, scale_of

# Probability of ambiguous tokens, those that may begin several grades, above which there is no expected score.
_MAX_AMBIGUOUS_PROBABILITY = 0.01
_MARKS_AROUND_A_GRADE = " \t\r\n*`\"'."


def expected_value(scale: Scale, tokens: Iterable[Sequence[object]]) -> float | None:
    """Return the expected score in [0, 1] of (token, log-probability); None if they do not tell grades apart."""
    seen: dict[str, float] = {}
    ambiguous = 0.0
    for token, logprob in tokens:
        grades = _begun(scale, str(token))
        # A probability is 1 at most, whatever a server sends.
        probability = math.exp(min(float(logprob), 0.0))  # type: ignore[arg-type]
        if len(grades) == 1:
            seen[grades[0]] = seen.get(grades[0], 0.0) + probability
        elif grades:
            ambiguous += probability
    total = sum(seen.values())
    if not total or ambiguous > _MAX_AMBIGUOUS_PROBABILITY:
        return None
    return sum(scale.value(grade) * probability for grade, probability in seen.items()) / total


def _begun(scale: Scale, token: str) -> list[str]:
    """Return the grades that a token may begin; a number has to match as a whole."""
    text = token.strip(_MARKS_AROUND_A_GRADE).lower()
    if not text:
        return []
    if scale.is_range:  # the token 1 may not begin 10 as well
        return [grade for grade in scale.grades if grade == text]
    return [grade for grade in scale.grades if grade.lower().startswith(text)]


def clashing(scale: Scale) -> tuple[str, str] | None:
    """Return two grades that share a first token, such as 1 and 10 or "very bad" and "very good", if any do."""
    for grade, second_grade in permutations(scale.grades, 2):
        first, second = grade.lower(), second_grade.lower()
        if first != second and (second.startswith(first) or first.split()[0] == second.split()[0]):
            return grade, second_grade
    return None


@dataclass(frozen=True)
class Graded:
    """A judge's reply for some factors of an answer."""

    scores: Mapping[str, str]  # as stored in records
    text: str = field(repr=False)
    grades: Mapping[str, str] = field(default_factory=dict)  # in the judge's words; empty where these are the scores
    rationale: str = field(default="", repr=False)


def grading_of(task: Task) -> dict[str, Any]:
    """Return the part of a question's context that reading the reply needs; empty for the three levels alone."""
    grading: dict[str, Any] = {
        "scale": task.scale.to_json(),
        "rationale": task.rationale,
        "expected": task.expected_scores,
    }
    is_plain = task.scale.is_default and not task.rationale and not task.expected_scores
    return {} if is_plain else {"grading": grading}


def read_factors(context: Mapping[str, Any], text: str) -> Graded:
    """Read the grades of all requested factors. Raise MalformedAnswerError if one has no grade of the scale."""
    grading = context.get("grading")
    if not grading:
        return Graded(read_scores(text, context["factors"]), text)
    verdict = read_verdict(text, context["factors"], scale_of(grading["scale"]).grades)
    return _graded(grading, verdict.grades, text, rationale_of(verdict.whole) if grading["rationale"] else "")


def read_factor(context: Mapping[str, Any], factor: str, text: str) -> Graded:
    """Read the grade of one factor, a word or in an object. Raise MalformedAnswerError if it is not on the scale."""
    grading = context.get("grading") or {}
    scale = scale_of(grading["scale"]) if grading else DEFAULT
    is_reasoned = bool(grading and grading["rationale"])
    try:
        verdict = read_verdict(text, [factor], scale.grades, "score")
    except NoVerdictError:
        if is_reasoned:
            raise MalformedAnswerError('no JSON object with "rationale" and "score"') from None
        verdict = Verdict({factor: text}, {})
    if not grading:
        return Graded({factor: scale.read(verdict.grades[factor])}, text)
    return _graded(grading, verdict.grades, text, rationale_of(verdict.whole) if is_reasoned else "")


def _graded(grading: Mapping[str, Any], replies: Mapping[str, Any], text: str, rationale: str) -> Graded:
    scale = scale_of(grading["scale"])
    grades = {}
    for factor, reply in replies.items():
        try:
            grades[factor] = scale.read(reply)
        except MalformedAnswerError:
            if not grading["rationale"]:  # which the message would quote
                raise
            raise MalformedAnswerError(f"no grade of the scale for {factor!r}") from None
    scores = {factor: scale.stored(grade) for factor, grade in grades.items()}
    are_scores = scale.is_default and not grading["expected"]
    return Graded(scores, text, {} if are_scores else grades, rationale)


def rationale_of(reply: Mapping[str, Any]) -> str:
    """Return the rationale in a reply's object. Raise MalformedAnswerError where there is none."""
    rationale = reply.get("rationale")
    if not isinstance(rationale, str) or not rationale.strip():
        raise MalformedAnswerError("no rationale")
    return rationale.strip()


def weighed(context: Mapping[str, Any], graded: Graded, tokens: Any) -> Graded:
    """Replace the score by the expected score, if the task asks for it and the tokens give one."""
    grading = context.get("grading")
    if not grading or not grading["expected"]:
        return graded
    first = after_thoughts(graded.text).lstrip(_MARKS_AROUND_A_GRADE).lower()
    # The first token is the grade's only in a reply that begins with it.
    begins = any(first.startswith(grade.lower()) for grade in graded.grades.values())
    value = expected_value(scale_of(grading["scale"]), tokens) if begins else None
    return graded if value is None else replace(graded, scores=dict.fromkeys(graded.scores, f"{value:.4f}"))


def is_score(value: object) -> bool:
    """Return whether a stored value is a level, or a number in [0, 1] as text."""
    if not isinstance(value, str):
        return False
    try:
        return value in LEVELS or 0.0 <= float(value) <= 1.0
    except ValueError:
        return False
