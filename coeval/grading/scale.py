"""The scale that judges grade on: three words, a range of whole numbers, or levels by name.

A grade at place k of n, counted from the worst, is worth k / (n - 1).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from coeval.parsing import LEVELS, MalformedAnswerError, read_word

__all__ = ["DEFAULT", "WANTED", "Scale", "scale_in", "scale_of"]

WANTED = "`levels`, a range of whole numbers such as `1-5`, or a list of levels from worst to best"
_RANGE = re.compile(r"\s*([0-9]{1,9})\s*-\s*([0-9]{1,9})\s*")
_MOST = 101  # grades: nobody tells more apart


@dataclass(frozen=True)
class Scale:
    """The grades that there are, from worst to best."""

    grades: tuple[str, ...]
    is_range: bool = False

    @property
    def is_default(self) -> bool:
        """Whether grades are High, Medium and Low, and stored as these words."""
        return self.grades == tuple(reversed(LEVELS))

    @property
    def text(self) -> str:
        """What a grade is, for a sentence: `a whole number from 1 (worst) to 5 (best)`."""
        if self.is_default:
            return _joined(LEVELS)
        if self.is_range:
            return f"a whole number from {self.grades[0]} (worst) to {self.grades[-1]} (best)"
        return f"one of these levels, from worst to best: {_joined(self.grades)}"

    @property
    def short(self) -> str:
        """What stands in a table: `levels`, `1-5`, `poor to good`."""
        if self.is_default:
            return "levels"
        return f"{self.grades[0]}-{self.grades[-1]}" if self.is_range else f"{self.grades[0]} to {self.grades[-1]}"

    def to_json(self) -> str | list[str]:
        """As a configuration says it."""
        return self.short if self.is_default or self.is_range else list(self.grades)

    def value(self, grade: str) -> float:
        """What a grade is worth, in [0, 1]."""
        return self.grades.index(grade) / (len(self.grades) - 1)

    def stored(self, grade: str) -> str:
        """A grade as records hold it: one of the three words, or its value as text."""
        return grade if self.is_default else f"{self.value(grade):.4f}"

    def read(self, said: object) -> str:
        """The grade that a judge gives, as text or as a number of JSON.

        Raises:
            MalformedAnswerError: it is none of the scale.
        """
        if isinstance(said, float) and said.is_integer():
            said = int(said)
        if isinstance(said, int) and not isinstance(said, bool) and not self.is_default:
            said = str(said)
        if not isinstance(said, str):
            raise MalformedAnswerError(f"no grade: {self.text} was asked for")
        return self._number(said) if self.is_range else read_word(said, LEVELS if self.is_default else self.grades)

    def _number(self, said: str) -> str:
        grade = said.rpartition("</think>")[2].strip().strip("*`\"' ").removesuffix(".").strip("*`\"' ")
        if grade not in self.grades:
            raise MalformedAnswerError(f"{' '.join(said.split())[:40]!r} is not {self.text}")
        return grade


DEFAULT = Scale(tuple(reversed(LEVELS)))
"""High, Medium and Low."""


def scale_of(given: Any) -> Scale:
    """The scale that a configuration names.

    Raises:
        ValueError: it names none; what is wrong, as the rest of a sentence.
    """
    if given == "levels":
        return DEFAULT
    match = _RANGE.fullmatch(given) if isinstance(given, str) else None
    if match is not None:
        return _range(int(match[1]), int(match[2]))
    if not isinstance(given, Sequence) or isinstance(given, str):
        raise ValueError(f"must be {WANTED}")
    return _named(tuple(given))


def scale_in(task: Mapping[str, Any]) -> Scale:
    """The scale of a task as it is stored; High, Medium and Low where it says none, or none that there is."""
    try:
        return scale_of(task.get("scale") or "levels")
    except (ValueError, TypeError):
        return DEFAULT


@cache
def _range(low: int, high: int) -> Scale:
    if low >= high:
        raise ValueError(f"the worst, {low}, is not below the best, {high}; write {high}-{low}, or another range")
    if high - low >= _MOST:
        raise ValueError(f"{high - low + 1} grades are more than the {_MOST} that a scale may have; write fewer")
    return Scale(tuple(map(str, range(low, high + 1))), is_range=True)


@cache
def _named(levels: tuple[Any, ...]) -> Scale:
    names = tuple(str(level).strip() for level in levels)
    for level, name in zip(levels, names, strict=True):
        if isinstance(level, bool | Mapping) or not isinstance(level, str | int) or not _is_name(name):
            raise ValueError(f"level {name[:40]!r} must be text on one line, without quotes in it; write it in quotes")
    if len({name.lower() for name in names}) < max(2, len(names)):
        raise ValueError("a scale needs two levels or more, each another word; write them from worst to best")
    if len(names) > _MOST:
        raise ValueError(f"{len(names)} levels are more than the {_MOST} that a scale may have; write fewer")
    lowered = tuple(name.lower() for name in names)
    if lowered == tuple(level.lower() for level in LEVELS):
        raise ValueError("stands from best to worst; write the worst first")
    return DEFAULT if lowered == tuple(level.lower() for level in reversed(LEVELS)) else Scale(names)


def _is_name(name: str) -> bool:
    """Whether `read_word` finds it again in what a judge says."""
    return bool(name) and name.isprintable() and not set(name) & set("\"'*`<>") and not name.endswith(".")


def _joined(names: Sequence[str]) -> str:
    quoted = [f'"{name}"' for name in names]
    return f"{', '.join(quoted[:-1])} or {quoted[-1]}"
