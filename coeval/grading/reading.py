"""What a judge's reply says, on any scale, with a rationale or without.

A reply with a rationale is never quoted in an error: errors go to logs, rationales do not.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from coeval.config.schema import Task
from coeval.grading.expected import expected_value
from coeval.grading.scale import scale_of
from coeval.parsing import LEVELS, MalformedAnswerError, graded_in, read_level, read_object, read_scores

__all__ = ["Graded", "grading_of", "is_score", "read_factor", "read_factors", "split_rationale", "weighed"]


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
    said: dict[str, Any] = {
        "scale": task.scale.to_json(),
        "rationale": task.rationale,
        "expected": task.expected_scores,
    }
    is_plain = task.scale.is_default and not task.rationale and not task.expected_scores
    return {} if is_plain else {"grading": said}


def read_factors(context: Mapping[str, Any], text: str) -> Graded:
    """The grades of all factors that were asked for in one reply.

    Raises:
        MalformedAnswerError: one has no grade of the scale.
    """
    how = context.get("grading")
    if not how:
        return Graded(read_scores(text, context["factors"]), text)
    rationale, found = split_rationale(text, "scores") if how["rationale"] else ("", None)
    if found is not None and not isinstance(found, Mapping):
        raise MalformedAnswerError('"scores" is no object')
    given = graded_in(read_object(text) if found is None else found, context["factors"])
    return _graded(how, given, text, rationale)


def read_factor(context: Mapping[str, Any], factor: str, text: str) -> Graded:
    """The grade of one factor.

    Raises:
        MalformedAnswerError: it is none of the scale.
    """
    how = context.get("grading")
    if not how:
        return Graded({factor: read_level(text)}, text)
    rationale, said = split_rationale(text, "score") if how["rationale"] else ("", text)
    return _graded(how, {factor: said}, text, rationale)


def _graded(how: Mapping[str, Any], given: Mapping[str, Any], text: str, rationale: str) -> Graded:
    scale = scale_of(how["scale"])
    grades = {}
    for factor, said in given.items():
        try:
            grades[factor] = scale.read(said)
        except MalformedAnswerError:
            if not how["rationale"]:
                raise
            raise MalformedAnswerError(f"no grade of the scale for {factor!r}") from None
    scores = {factor: scale.stored(grade) for factor, grade in grades.items()}
    is_said = scale.is_default and not how["expected"]
    return Graded(scores, text, {} if is_said else grades, rationale)


def split_rationale(text: str, key: str) -> tuple[str, Any]:
    """The rationale of a reply, and what stands under the other key.

    Raises:
        MalformedAnswerError: it is no object with both.
    """
    try:
        found = read_object(text)
    except MalformedAnswerError:
        raise MalformedAnswerError(f'no JSON object with "rationale" and "{key}"') from None
    said = found.get("rationale")
    if not isinstance(said, str) or not said.strip():
        raise MalformedAnswerError("no rationale")
    if key not in found:
        raise MalformedAnswerError(f'no "{key}"')
    return said.strip(), found[key]


def weighed(context: Mapping[str, Any], graded: Graded, tokens: Any) -> Graded:
    """The same with the expected score in the place of the grade's, where the tokens tell it."""
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
