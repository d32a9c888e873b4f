"""What a factor of a rubric says, and how much it counts: 1 where the rubric says nothing."""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from typing import Any

__all__ = ["description_of", "weight_of", "weights_in"]


def description_of(definition: object) -> str:
    """What tells a good answer from a bad one by a factor."""
    return str(definition.get("description") or "") if isinstance(definition, Mapping) else str(definition)


def weight_of(definition: object) -> float:
    """How much a factor counts."""
    weight = definition.get("weight") if isinstance(definition, Mapping) else None
    is_number = isinstance(weight, int | float) and not isinstance(weight, bool)
    return float(weight) if is_number and isfinite(weight) and weight > 0 else 1.0  # type: ignore[arg-type, operator]


def weights_in(rubric: Mapping[str, Any]) -> dict[str, float]:
    """Factor -> weight, of those that count for more or less than 1."""
    found = {factor: weight_of(definition) for factor, definition in rubric.items()}
    return {factor: weight for factor, weight in found.items() if weight != 1.0}
