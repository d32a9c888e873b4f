"""How a mock judge grades: the form and the scale that its prompt asks for, read from the prompt's last line."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from coeval.grading.scale import DEFAULT, Scale, scale_of

__all__ = ["Wanted", "alternatives", "as_logprobs", "grade_at", "wanted_in"]

_RANGE = re.compile(r"whole number from (\d+) \(worst\) to (\d+) \(best\)")
_NAMED = re.compile(r'levels, from worst to best: ((?:"[^"]+"(?:, | or )?)+)')
_SPREAD = 0.5  # standard deviation of what a grade could have been, in widths of a grade
_SHOWN = 20


@dataclass(frozen=True)
class Wanted:
    """What a judge is to reply."""

    scale: Scale = DEFAULT
    rationale: bool = False

    def said(self, grade: str) -> Any:
        """A grade as a value of JSON."""
        return int(grade) if self.scale.is_range else grade

    def with_rationale(self, key: str, value: Any) -> str:
        """The reply that says why first."""
        return json.dumps({"rationale": "That is how good it looks to me.", key: value}, ensure_ascii=False)


def wanted_in(reply: str) -> Wanted:
    """What the last line of a prompt asks for."""
    is_reasoned = '"rationale"' in reply
    if match := _RANGE.search(reply):
        return Wanted(scale_of(f"{match[1]}-{match[2]}"), is_reasoned)
    if match := _NAMED.search(reply):
        return Wanted(scale_of(re.findall(r'"([^"]+)"', match[1])), is_reasoned)
    return Wanted(rationale=is_reasoned)


def grade_at(scale: Scale, seen: float) -> str:
    """The grade for a quality: each has the same part of [0, 1]."""
    size = len(scale.grades)
    return scale.grades[sum(seen >= place / size for place in range(1, size))]


def alternatives(scale: Scale, seen: float) -> list[tuple[str, float]]:
    """The grades that it could have been, the likeliest first, with the logarithm of their probability."""
    size = len(scale.grades)
    weights = [math.exp(-0.5 * ((seen * size - place - 0.5) / _SPREAD) ** 2) for place in range(size)]
    total = sum(weights)
    found = [(grade, math.log(weight / total)) for grade, weight in zip(scale.grades, weights, strict=True) if weight]
    return sorted(found, key=lambda one: -one[1])[:_SHOWN]


def as_logprobs(found: Sequence[tuple[str, float]], said: str) -> Mapping[str, Any]:
    """The same as a choice of a chat completion has it."""
    tops = [{"token": token, "logprob": logprob, "bytes": None} for token, logprob in found]
    first = next((one for one in tops if one["token"] == said), {"token": said, "logprob": 0.0, "bytes": None})
    return {"content": [{**first, "top_logprobs": tops}], "refusal": None}
