"""The valid records of some files by id, without holding their texts: where each lies is all that is in memory."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from coeval.storage.jsonl import OnBad
from coeval.storage.records import is_failed, is_marked

__all__ = ["RecordIndex"]


class RecordIndex:
    """id -> the last valid record with that id."""

    def __init__(
        self,
        paths: Iterable[Path],
        keep: Callable[[Mapping[str, Any]], bool],
        on_bad: OnBad | None = None,
        note: Callable[[Mapping[str, Any]], Any] | None = None,
    ) -> None:
        """Read the files through, keeping records that have an id, are not failed, and that `keep` likes.

        Args:
            paths: the files.
            keep: which records.
            on_bad: hears of lines that are no record.
            note: what to hold in memory of a record, in `notes`; nothing by default.
        """
        self.notes: dict[str, Any] = {}
        self.marked: Counter[str] = Counter()
        """How often records of an id were marked as failed, by a hand or by `repair`."""
        self._paths = list(paths)
        self._places: dict[str, tuple[int, int]] = {}
        for number, path in enumerate(self._paths):
            for offset, record in _placed(path, on_bad):
                identity = record.get("id")
                if not isinstance(identity, str):
                    continue
                if is_marked(record):
                    self.marked[identity] += 1
                elif not is_failed(record) and keep(record):
                    self._places[identity] = (number, offset)
                    if note is not None:
                        self.notes[identity] = note(record)

    def __len__(self) -> int:
        return len(self._places)

    def __contains__(self, identity: object) -> bool:
        return identity in self._places

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def get(self, identity: str) -> dict[str, Any] | None:
        """The record, read from its file; None where there is none."""
        place = self._places.get(identity)
        if place is None:
            return None
        with self._paths[place[0]].open("rb") as file:
            file.seek(place[1])
            record: dict[str, Any] = json.loads(file.readline())
        return record


def _placed(path: Path, on_bad: OnBad | None) -> Iterator[tuple[int, dict[str, Any]]]:
    offset = 0
    with path.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            try:
                record = json.loads(line) if line.strip() else None
            except ValueError:
                record = "no JSON"
            if isinstance(record, dict):
                yield offset, record
            elif record is not None and on_bad is not None:
                on_bad(path, number, "no record")
            offset += len(line)
