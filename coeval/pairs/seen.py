"""What a judge has compared so far, as the next start of a run counts it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from coeval.pairs.preference import WINNERS
from coeval.pairs.schedule import Meeting
from coeval.storage.jsonl import OnBad, read_records
from coeval.storage.layout import Run
from coeval.storage.lineage import AnswerMark, ItemMark, is_judgement_of
from coeval.storage.records import is_failed

__all__ = ["Seen", "counts_of", "files_of", "read_seen"]

Counts: TypeAlias = Callable[[Mapping[str, Any]], bool]
_SWAPPED = {"model_a": "model_b", "model_b": "model_a"}


@dataclass
class Seen:
    """The verdicts of one judge."""

    verdicts: dict[Meeting, str] = field(default_factory=dict)
    """Winner by meeting, `model_a` standing for the first name."""
    couples: set[tuple[str, str]] = field(default_factory=set)
    """Models that it compared on any item."""
    halves: dict[str, dict[str, str]] = field(default_factory=dict)
    """Id of a verdict that failed -> order that was answered -> winner."""


def files_of(run: Run, task: str, judge: str) -> list[Path]:
    """The files of a task that may hold verdicts of a judge, on the items of every teacher."""
    return [path for path in run.pair_files(task) if path.name.endswith(f".{judge}.pairwise.jsonl")]


def read_seen(files: Iterable[Path], judge: str, counts: Counts, on_bad: OnBad | None = None) -> Seen:
    """The verdicts of a judge on the answers as they are now; of several on the same the last.

    Args:
        files: where they are.
        judge: whose.
        counts: whether a record is about texts that are there; see `counts_of`.
        on_bad: hears of lines that are no record.
    """
    found = Seen()
    for record in (record for path in files for record in read_records(path, on_bad)):
        if record.get("judge_model_id") == judge and counts(record):
            _take(found, record)
    return found


def counts_of(items: Mapping[str, ItemMark], answers: Mapping[str, AnswerMark]) -> Counts:
    """Whether a verdict is about texts that are there, by the marks of items and answers."""

    def counts(record: Mapping[str, Any]) -> bool:
        datapoint = str(record.get("datapoint_id"))
        item = items.get(datapoint)
        found = [answers.get(f"{datapoint}__{record.get(side)}") for side in ("model_a", "model_b")]
        there = [one for one in found if one is not None]
        return item is not None and len(there) == len(found) and is_judgement_of(record, item, there)

    return counts


def _take(found: Seen, record: Mapping[str, Any]) -> None:
    if is_failed(record):
        said = record.get("said")
        if isinstance(said, dict) and all(winner in WINNERS for winner in said.values()):
            found.halves[str(record.get("id"))] = said
    elif record.get("winner") in WINNERS:
        meeting, winner = _meeting(record)
        found.verdicts[meeting] = winner
        found.couples.add((meeting.first, meeting.second))


def _meeting(record: Mapping[str, Any]) -> tuple[Meeting, str]:
    a, b, winner = str(record.get("model_a")), str(record.get("model_b")), str(record["winner"])
    datapoint = str(record.get("datapoint_id"))
    return (Meeting(datapoint, a, b), winner) if a < b else (Meeting(datapoint, b, a), _SWAPPED.get(winner, winner))
