"""Lines of JSON that survive a kill: each is written whole in one call, and brought to the disk in batches.

A line that a power cut tore is set aside when its file is next opened for writing; readers skip what is no record and
say so.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from coeval.storage.records import is_failed, is_marked
from p2l.common.files import atomic_path

OnBad = Callable[[Path, int, str], None]
"""Told of a line that is no record: file, line (from 1), why."""
_BLOCK = 1 << 16


def read_records(path: Path, on_bad: OnBad | None = None) -> Iterator[dict[str, Any]]:
    """The records of a file in their order, one in memory at a time; none where the file does not exist."""
    if not path.is_file():
        return
    with path.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            record = _record(line)
            if isinstance(record, dict):
                yield record
            elif record is not None and on_bad is not None:
                on_bad(path, number, record)


def _record(line: bytes) -> dict[str, Any] | str | None:
    """What a line holds; text says why it is no record, None that it is blank."""
    if not line.strip():
        return None
    try:
        value = json.loads(line)
    except ValueError:  # UnicodeDecodeError too
        return "a line that ends early" if not line.endswith(b"\n") else "no JSON"
    return value if isinstance(value, dict) else "no JSON object"


def as_line(record: Mapping[str, Any]) -> bytes:
    """A record as it is stored; a lone surrogate, which no file can hold, becomes a question mark."""
    return json.dumps(record, ensure_ascii=False).encode(errors="replace") + b"\n"


def open_for_append(path: Path) -> int:
    """A descriptor at whose end whole lines are added; what a kill tore there before is set aside first."""
    path.parent.mkdir(parents=True, exist_ok=True)
    repair_tail(path)
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)


def append_line(descriptor: int, line: bytes) -> None:
    """Write one line in one call, or nothing of it.

    Raises:
        OSError: the disk is full, or broken.
    """
    written = os.write(descriptor, line)
    if written == len(line):
        return
    os.ftruncate(descriptor, os.fstat(descriptor).st_size - written)
    raise OSError(28, "no space is left on the disk")


def repair_tail(path: Path) -> bytes:
    """End a file with a whole line; returns what was torn, which now lies in `{name}.torn` beside it."""
    if not path.is_file() or not path.stat().st_size:
        return b""
    with path.open("r+b") as file:
        start = _start_of_last_line(file.fileno(), path.stat().st_size)
        file.seek(start)
        tail = file.read()
        if not tail or isinstance(_record(tail), dict):
            file.write(b"\n" if tail else b"")
            return b""
        with path.with_name(f"{path.name}.torn").open("ab") as aside:
            aside.write(tail + b"\n")
        file.truncate(start)
        return tail


def _start_of_last_line(descriptor: int, size: int) -> int:
    """Where what follows the last newline begins; the size where nothing does."""
    end = size
    while end:
        start = max(end - _BLOCK, 0)
        found = os.pread(descriptor, end - start, start).rfind(b"\n")
        if found >= 0:
            return start + found + 1
        end = start
    return 0


def read_json(path: Path) -> Any:
    """What a JSON file holds; None where there is no such file or it is no JSON."""
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None


def write_json(path: Path, value: Any) -> None:
    """Replace a JSON file whole.

    Raises:
        InputError: it cannot be written.
    """
    with atomic_path(path) as temporary:
        temporary.write_text(json.dumps(value, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")


# The valid records of some files by id, without holding their texts: where each lies is all that is in memory.


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
