"""Which of the built-in prompts a text is, and what stands in it: the templates of `coeval.prompts` read backwards.

So the wording of a prompt has one place, and whoever changes it there changes it here.
"""

from __future__ import annotations

import re
import string
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache

from coeval.config.schema import Phase
from coeval.prompts import PROMPTS

__all__ = ["PHASE_OF", "Recognised", "recognise"]

PHASE_OF: Mapping[str, Phase] = {
    "map_target_attrs": "attribute_mapping",
    "map_nuanced_attrs": "attribute_mapping",
    "autorubric": "rubric_mapping",
    "sample": "data_generation",
    "test": "response_collection",
    "evaluate_single": "evaluation",
    "evaluate_per_factor": "evaluation",
    "compare": "evaluation",
}
"""The phase that asks a prompt."""
_FACTOR = re.compile(r"^- ([^:\n]+):", re.MULTILINE)
_LEVELS = ("High", "Medium", "Low")


@dataclass(frozen=True)
class Recognised:
    """A prompt by its id, with the values that were filled in."""

    prompt: str
    values: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def factors(self) -> list[str]:
        """Names of the factors in its rubric."""
        return [name.strip() for name in _FACTOR.findall(self.values.get("rubric", ""))]


def recognise(text: str) -> Recognised:
    """What a prompt asks for.

    A text of the user's own is a judge's prompt where it names the three levels, and a student's in any other case.
    """
    text = text.strip()
    for prompt in PROMPTS:
        opening, pattern = _pattern(prompt)
        match = pattern.fullmatch(text) if opening and text.startswith(opening) else None
        if match is not None:
            return Recognised(prompt, match.groupdict())
    if all(level in text for level in _LEVELS):
        kind = "evaluate_single" if "JSON" in text else "evaluate_per_factor"
        return Recognised(kind, {"response": text, "rubric": text})
    return Recognised("test", {"input": text})


@cache
def _pattern(prompt: str) -> tuple[str, re.Pattern[str]]:
    """What a prompt opens with, and what matches the whole of it with a group for each variable."""
    opening, parts, seen = "", list[str](), set[str]()
    for literal, name, _, _ in string.Formatter().parse(PROMPTS[prompt].strip()):
        opening = opening if parts else literal
        parts.append(re.escape(literal))
        if name is not None:
            anything = "[^\n]+" if name == "reply" else ".*?"
            parts.append(f"(?:{anything})" if name in seen else f"(?P<{name}>{anything})")
            seen.add(name)
    return opening, re.compile("".join(parts), re.DOTALL)
