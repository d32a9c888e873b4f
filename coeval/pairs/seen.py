"""What a judge has compared so far, as the next start of a run counts it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from coeval.pairs.preference import WINNERS
from coeval.pairs.schedule import Meeting
from coeval.storage.jsonl import OnBad, read_records
from coeval.storage.layout import Run
from coeval.storage.records import is_failed

__all__ = ["Seen", "files_of", "read_seen"]

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


def read_seen(files: Iterable[Path], judge: str, on_bad: OnBad | None = None) -> Seen:
    """The verdicts of a judge that count; of several on the same the last."""
    found = Seen()
    for record in (record for path in files for record in read_records(path, on_bad)):
        if record.get("judge_model_id") == judge:
            _take(found, record)
    return found


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
