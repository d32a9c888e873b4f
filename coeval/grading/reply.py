"""The last line of a judge's prompt: in which form it is to reply, and on which scale."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from coeval.grading.scale import Scale, scale_in

if TYPE_CHECKING:
    from coeval.config.schema import Task

__all__ = ["REPLIES", "grading_said", "grading_text", "reply_line"]

_WHY = 'first "rationale", one or two sentences that say why you grade as you do'
_VERDICTS = (
    "A if answer A is better, B if answer B is better, TIE if they are equally good, BAD if neither is of any use."
)


def _single(task: Task) -> str:
    value = task.scale.text
    if task.rationale:
        scores = f'then "scores", an object in which each key is the name of a factor above and each value is {value}'
        return f"Reply with a JSON object alone, with two keys: {_WHY}; {scores}."
    return f"Reply with a JSON object alone: each key is the name of a factor above, each value is {value}."


def _per_factor(task: Task) -> str:
    scale = task.scale
    if task.rationale:
        return f'Reply with a JSON object alone, with two keys: {_WHY}; then "score", which is {scale.text}.'
    if scale.is_default:
        return "Reply with one word: High, Medium or Low."
    value = scale.text.replace("a whole", "one whole", 1) if scale.is_range else scale.text
    return f"Reply with {value}. Say nothing else."


def _compare(task: Task) -> str:
    if task.rationale:
        why = 'first "rationale", one or two sentences that compare the answers'
        return f'Reply with a JSON object alone, with two keys: {why}; then "verdict", one word: {_VERDICTS}'
    return f"Reply with one word: {_VERDICTS}"


REPLIES = {"evaluate_single": _single, "evaluate_per_factor": _per_factor, "compare": _compare}
"""By the id of the prompt."""


def reply_line(task: Task, prompt: str) -> str:
    """How a judge of a task is to reply to a prompt; empty for prompts that grade nothing."""
    return REPLIES[prompt](task) if prompt in REPLIES else ""


def grading_text(task: Task) -> str:
    """How a task is evaluated, in a few words: `per_factor`, or `single, 1-5, rationale first`."""
    return ", ".join([task.evaluation_mode, *_unusual(task.scale, task.rationale, task.expected_scores)])


def grading_said(configured: Mapping[str, Any]) -> str:
    """The same of a task as it is stored, without the mode; empty for levels alone."""
    return ", ".join(
        _unusual(scale_in(configured), configured.get("rationale") is True, configured.get("expected_scores") is True)
    )


def _unusual(scale: Scale, rationale: bool, expected: bool) -> list[str]:
    said = [] if scale.is_default else [scale.short]
    said += ["rationale first"] if rationale else []
    return said + (["expected scores"] if expected else [])
