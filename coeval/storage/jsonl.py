"""Lines of JSON that survive a kill: each is written whole in one call, and brought to the disk in batches.

A line that a power cut tore is set aside when its file is next opened for writing; readers skip what is no record and
say so.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from p2l.command import atomic_path

__all__ = [
    "OnBad",
    "append_line",
    "as_line",
    "open_for_append",
    "read_json",
    "read_records",
    "repair_tail",
    "write_json",
]

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
