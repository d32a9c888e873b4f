"""What is kept of items and answers when a run is read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from coeval.storage.lineage import AnswerMark, ItemMark

__all__ = ["Answer", "Item"]


@dataclass(frozen=True)
class Item:
    """A datapoint without its texts."""

    task: str
    teacher: str
    attributes: Mapping[str, str]
    prompt_key: bytes
    """Digest of the prompt, by which two runs know a datapoint they share."""
    mark: ItemMark


@dataclass(frozen=True)
class Answer:
    """A response; its text only in tasks with labels."""

    datapoint: str
    student: str
    tokens: float
    text: str | None
    mark: AnswerMark
