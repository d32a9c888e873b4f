"""What a benchmark is: a virtual teacher, its task, and how a row of its file becomes an item."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

__all__ = ["BadRowError", "Benchmark", "Entry", "option_text", "text_of"]


class BadRowError(ValueError):
    """A row is not what its benchmark has; the message says what is missing."""


@dataclass(frozen=True)
class Entry:
    """An item to be."""

    native_id: str
    prompt: str
    reference: str
    attributes: Mapping[str, Any] = field(default_factory=dict)
    native_score: float | None = None


@dataclass(frozen=True)
class Benchmark:
    """A source of items."""

    name: str
    """Also the teacher's."""
    task: str
    split: str
    description: str
    output_description: str
    rubric: Mapping[str, Any]
    read: Callable[[Mapping[str, Any], int], Entry | None]
    """(row, number from 0) -> item; None: the row is none, such as one without a label. Raises BadRowError."""
    attributes: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    """Values known beforehand; others are added as they occur."""
    label_attributes: tuple[str, ...] = ()
    metric: str | None = None
    """Metric whose virtual judge is added."""
    described: bool = False
    """Whether the description was asked for, so that a task with another one is not meant."""


def text_of(row: Mapping[str, Any], *keys: str) -> str:
    """The first of some keys that a row has, as text that is not empty.

    Raises:
        BadRowError: it has none of them.
    """
    for key in keys:
        value = row.get(key)
        if isinstance(value, str) and value.strip():
            return value.strip()
        if isinstance(value, int | float) and not isinstance(value, bool):
            return str(value)
    raise BadRowError(f"no {' or '.join(keys)}")


def option_text(options: Sequence[str]) -> str:
    """Options as lines: `A. first`, `B. second`."""
    return "\n".join(f"{chr(ord('A') + place)}. {option}" for place, option in enumerate(options))
