"""The expected score: each grade's value by the probability of its first token.

score = sum over grades g of p(g) value(g) / sum of p(g), over the grades that are seen among the likeliest tokens.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from coeval.grading.scale import Scale

__all__ = ["clashing", "expected_value"]

_LEAST = 0.01
"""Probability of tokens that may begin several grades, from which on nothing is said."""
_AROUND = " \t\r\n*`\"'."


def expected_value(scale: Scale, tokens: Iterable[Sequence[object]]) -> float | None:
    """The expected score in [0, 1]; None where the tokens do not tell grades apart.

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
    """The grades that a token may be the beginning of; a number is one as a whole."""
    said = token.strip(_AROUND).lower()
    if not said:
        return []
    if scale.is_range:
        return [grade for grade in scale.grades if grade == said]
    return [grade for grade in scale.grades if grade.lower().startswith(said)]


def clashing(scale: Scale) -> tuple[str, str] | None:
    """Two grades that the first token may not tell apart: 1 and 10, very bad and very good; None: there are none."""
    for one in scale.grades:
        for other in scale.grades:
            first, second = one.lower(), other.lower()
            if first != second and (second.startswith(first) or first.split()[0] == second.split()[0]):
                return one, other
    return None
