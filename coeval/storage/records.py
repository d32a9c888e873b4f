"""The records of a run: files of JSON lines that survive a kill, failed records, and those that are out of date.

Each line is written whole in one call. A line that a power cut tore is moved aside when its file is next
opened for writing; readers skip and report lines that are not records. docs/coeval/runs.md lists the keys of records.

Ids: datapoint `{task}__{teacher}__{seq:05d}`, response `{datapoint}__{student}`, evaluation `{response}__{judge}`, pair
`{datapoint}__{a}__vs__{b}__{judge}`. So names of tasks and models hold no `__`.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, NamedTuple

from p2l.common.files import atomic_path, bounded_lines, parse_json

OnBad = Callable[[Path, int, str], None]  # receives a line that is not a record: file, line number from 1, reason
LONGEST_RECORD = 256 << 20  # bytes of a line, more than the longest answer can become
_BLOCK_BYTES = 1 << 16


def read_records(path: Path, on_bad: OnBad | None = None) -> Iterator[dict[str, Any]]:
    """Yield the records of a file in order, one in memory at a time; none if the file does not exist."""
    return (record for _, record in placed_records(path, on_bad))


def placed_records(path: Path, on_bad: OnBad | None = None) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield each record of a file with the offset of its line, for `record_at`."""
    if not path.is_file():
        return
    offset = 0
    with path.open("rb") as lines:
        for number, (line, length) in enumerate(bounded_lines(lines, LONGEST_RECORD), start=1):
            record = _record(line) if line else f"a line of more than {LONGEST_RECORD >> 20} MiB"
            if isinstance(record, dict):
                yield offset, record
            elif record is not None and on_bad is not None:
                on_bad(path, number, record)
            offset += length


def record_at(path: Path, offset: int) -> dict[str, Any] | None:
    """Return the record at an offset of `placed_records`; None if the file is gone, or has none there by now."""
    try:
        with path.open("rb") as file:
            file.seek(offset)
            record = _record(file.readline(LONGEST_RECORD))
    except OSError:
        return None
    return record if isinstance(record, dict) else None


def _record(line: bytes) -> dict[str, Any] | str | None:
    """Return the record of a line, a text why it is none, or None for a blank line."""
    if not line.strip():
        return None
    try:
        record = parse_json(line)
    except ValueError:  # UnicodeDecodeError too
        return "a line that ends early" if not line.endswith(b"\n") else "no JSON"
    return record if isinstance(record, dict) else "no JSON object"


def as_line(record: Mapping[str, Any]) -> bytes:
    """Return a record as it is stored; a lone surrogate, which no file can hold, becomes a question mark."""
    return json.dumps(record, ensure_ascii=False).encode(errors="replace") + b"\n"


def open_for_append(path: Path) -> int:
    """Open a file for appending whole lines, moving aside what a kill tore at its end."""
    path.parent.mkdir(parents=True, exist_ok=True)
    repair_tail(path)
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)


def append_line(descriptor: int, line: bytes) -> None:
    """Write one line in one call, or nothing of it. Raise OSError if the disk is full, or broken."""
    # One call: O_APPEND keeps it apart from the lines of other processes, and a kill leaves all of it or nothing.
    written = os.write(descriptor, line)
    if written == len(line):
        return
    # A part of a line would run into the next one.
    os.ftruncate(descriptor, os.fstat(descriptor).st_size - written)
    raise OSError(errno.ENOSPC, "no space is left on the disk")


def repair_tail(path: Path) -> int:
    """End a file with a whole line; return the bytes that were torn, which are moved to `{name}.torn` beside it."""
    if not path.is_file() or not path.stat().st_size:
        return 0
    with path.open("r+b") as file:
        size = path.stat().st_size
        # The last newline is looked for backwards: a file may have gigabytes, and it is near the end.
        start = 0
        end = size
        while end:
            block = max(end - _BLOCK_BYTES, 0)
            newline = os.pread(file.fileno(), end - block, block).rfind(b"\n")
            if newline >= 0:
                start = block + newline + 1
                break
            end = block
        file.seek(start)
        if start == size:
            return 0
        # Whole but for its end, as editors leave the last line of a file.
        if size - start <= LONGEST_RECORD and isinstance(_record(file.read()), dict):
            file.write(b"\n")
            return 0
        file.seek(start)
        with path.with_name(f"{path.name}.torn").open("ab") as aside:
            shutil.copyfileobj(file, aside)
            aside.write(b"\n")
        file.truncate(start)
        return size - start


def read_json(path: Path) -> Any:
    """Return the content of a JSON file; None if there is no such file or it is not JSON."""
    try:
        return parse_json(path.read_bytes())
    except (OSError, ValueError):
        return None


def write_json(path: Path, content: Any) -> None:
    """Replace a JSON file whole. Raise InputError if it cannot be written."""
    with atomic_path(path) as temporary:
        temporary.write_text(json.dumps(content, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")


def first_items(identities: Iterable[str], number: int) -> set[str]:
    """Return the first items by their numbers, so that all teachers have as many."""
    return set(sorted(identities, key=lambda identity: (identity.rpartition("__")[2], identity))[:number])


class RecordIndex:
    """The last valid record of each id in some files, of which only the offsets are in memory."""

    def __init__(
        self,
        paths: Iterable[Path],
        keep: Callable[[Mapping[str, Any]], bool],
        on_bad: OnBad | None = None,
        note: Callable[[Mapping[str, Any]], Any] | None = None,
    ) -> None:
        """Index the records that have an id, are not failed and that `keep` accepts, `note` of each in `notes`."""
        self.notes: dict[str, Any] = {}
        self.marked: Counter[str] = Counter()  # how often records of an id were marked as failed, by hand or `repair`
        self._places: dict[str, tuple[Path, int]] = {}
        for path in paths:
            for offset, record in placed_records(path, on_bad):
                identity = record.get("id")
                if not isinstance(identity, str):
                    continue
                if is_marked(record):
                    self.marked[identity] += 1
                elif not is_failed(record) and keep(record):
                    self._places[identity] = (path, offset)
                    if note is not None:
                        self.notes[identity] = note(record)

    def __len__(self) -> int:
        return len(self._places)

    def __contains__(self, identity: object) -> bool:
        return identity in self._places

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def get(self, identity: str) -> dict[str, Any] | None:
        """Read a record from its file; None if there is none."""
        if identity not in self._places:
            return None
        path, offset = self._places[identity]
        with path.open("rb") as file:
            file.seek(offset)
            record: dict[str, Any] = parse_json(file.readline())
        return record


def is_failed(record: Any) -> bool:
    """Return whether a record stands for work that failed."""
    return bool(record.get("status") == "failed")


def is_marked(record: Any) -> bool:
    """Return whether a record was marked as failed after it was made: it does not say why."""
    return is_failed(record) and "error" not in record


def now() -> str:
    """Return the time as records hold it: UTC, to the second."""
    return datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


# Ids outlast texts: an item or an answer may be made anew under its old id. A judge's record holds a mark of what it
# saw (`judged`), an answer the prompt itself (`input`); a record that does not fit the present texts is ignored.


class ItemMark(NamedTuple):
    """Digests of an item's texts."""

    prompt: str
    seen: str  # digest of the texts that a judge sees: prompt, reference answer, attributes
    attributes: tuple[str, ...]  # names of the target attributes that it was made with


class AnswerMark(NamedTuple):
    """Digest and time of an answer."""

    text: str
    at: str  # time of the answer; empty if unknown


def item_mark(item: Mapping[str, Any]) -> ItemMark:
    """Return the mark of a stored item."""
    prompt = item.get("prompt")
    attributes = item.get("sampled_target_attributes") or {}
    # Interned, as thousands of items in memory share a few names.
    names = tuple(map(sys.intern, sorted(attributes))) if isinstance(attributes, Mapping) else ()
    return ItemMark(_digest(prompt), _digest([prompt, item.get("reference_response") or "", attributes]), names)


def answer_mark(answer: Mapping[str, Any]) -> AnswerMark:
    """Return the mark of a stored answer."""
    at = answer.get("generated_at")
    return AnswerMark(_digest(answer.get("response")), sys.intern(at) if isinstance(at, str) else "")


def judged(item: Mapping[str, Any], *answers: Mapping[str, Any]) -> str:
    """Return the mark that a judge's record holds of the texts that it saw."""
    return _joined(item_mark(item), [answer_mark(answer) for answer in answers])


def is_answer_to(answer: Mapping[str, Any], item: ItemMark) -> bool:
    """Return whether an answer was given to the item's present prompt, as far as it tells."""
    return answer.get("input") is None or _digest(answer["input"]) == item.prompt


def is_judgement_of(record: Mapping[str, Any], item: ItemMark, answers: Sequence[AnswerMark]) -> bool:
    """Return whether a judgement is about the present texts; one without a mark is, unless an answer is younger."""
    if isinstance(record.get("judged"), str):
        return bool(record["judged"] == _joined(item, answers))
    at = record.get("evaluated_at") or record.get("created_at")
    return not isinstance(at, str) or not any(_is_before(at, answer.at) for answer in answers)


def _joined(item: ItemMark, answers: Sequence[AnswerMark]) -> str:
    return "-".join([item.seen, *(answer.text for answer in answers)])


def _digest(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value, sort_keys=True, ensure_ascii=False, default=str)
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


def _is_before(early: str, late: str) -> bool:
    """Return whether a time is before another; False for times that cannot be parsed."""
    # Times of `now` can be compared as texts, which matters where a run has millions of records.
    if len(early) == len(late) and early.endswith("Z") and late.endswith("Z"):
        return early < late
    first, second = _time(early), _time(late)
    return first is not None and second is not None and first < second


def _time(text: str) -> datetime | None:
    try:
        at = datetime.fromisoformat(text.replace("Z", "+00:00"))
    except ValueError:
        return None
    return at if at.tzinfo is not None else at.replace(tzinfo=timezone.utc)


@dataclass(frozen=True)
class Item:
    """A datapoint without its texts."""

    task: str
    teacher: str
    attributes: Mapping[str, str]
    prompt_key: bytes  # digest of the prompt, by which two runs recognise a datapoint they share
    mark: ItemMark
    cluster: int = -1  # code of the prompt that it has, or nearly has (`coeval.duplicates`)


@dataclass(frozen=True)
class Answer:
    """A response; its text only in tasks with labels."""

    datapoint: str
    student: str
    tokens: float
    text: str | None
    mark: AnswerMark
