"""Notes of calls under way, which outlive a process that is killed: one file a worker, mapped into its memory.

What is written to a mapped file is the operating system's at once, so that a kill loses nothing of it; only a power cut
does. A note begins before a provider is asked, follows the call, and ends when the database has what the call has cost.
A worker that starts books what the notes of those that have ended still hold, see `route.send.left_calls`.
"""

from __future__ import annotations

import contextlib
import json
import logging
import mmap
import os
import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from p2l.common.long_texts import short_dumps

try:
    import fcntl
except ImportError:  # as on Windows, where nobody could tell a killed worker's file from a living one's
    fcntl = None  # type: ignore[assignment]

_SUFFIX = ".calls"
_MARK = b"P2LCALL1"
_HEADER = struct.Struct("<8s64s")  # the mark, and the worker's name
_STATE = struct.Struct("<BBdQ")  # state, whether the provider told the cost, the cost, the number of its batch
_LENGTH = struct.Struct("<H")
_SLOT_BYTES = 2048
_IDENTIFIER_BYTES = 256
_IDENTIFIER_AT = _STATE.size
_FACTS_AT = _IDENTIFIER_AT + _LENGTH.size + _IDENTIFIER_BYTES
_FACTS_BYTES = _SLOT_BYTES - _FACTS_AT - _LENGTH.size
_FIRST_SLOTS = 64
_FREE, _UNDER_WAY, _SETTLED = range(3)
_LOGGER = logging.getLogger("route")


@dataclass(frozen=True)
class LeftCall:
    """A call as the note of a killed worker tells it."""

    facts: Mapping[str, Any]
    """What `CallNotes.begin` was given."""
    identifier: str
    """Of the answer, under which the provider may keep a record of it."""
    cost: float
    """As far as it was known: what the provider told, or an estimate."""
    is_told: bool
    """Whether the provider told the cost."""
    batch: int | None
    """Number of the batch of sums that the cost went into; None where the call had not ended."""


@dataclass(eq=False)
class CallNote:
    """The note of one call."""

    notes: CallNotes = field(repr=False)
    slot: int
    look: Callable[[], tuple[float, bool]] | None = field(default=None, repr=False)
    """Returns what the call has cost by now, and whether the provider told that."""

    def identify(self, identifier: str) -> None:
        """Note under which name the provider may keep a record."""
        name = identifier.encode("utf-8", "replace")
        if len(name) <= _IDENTIFIER_BYTES:
            self.notes.write(self.slot, _IDENTIFIER_AT, name)

    def refresh(self) -> None:
        """Note what the call has cost by now."""
        if self.look is not None:
            cost, is_told = self.look()
            self.notes.set_state(self.slot, _UNDER_WAY, is_told=is_told, cost=cost)

    def settle(self, cost: float, batch: int, *, is_told: bool) -> None:
        """Note what the call has cost, which goes to the database with a batch of sums."""
        self.notes.under_way.discard(self)
        self.notes.set_state(self.slot, _SETTLED, is_told=is_told, cost=cost, batch=batch)

    def end(self) -> None:
        """Forget the call: it cost nothing, or the database has it."""
        self.notes.under_way.discard(self)
        self.notes.free(self.slot)


class CallNotes:
    """The file of one worker, used from one event loop; without a folder nothing is noted."""

    def __init__(self, folder: Path | None, worker: str) -> None:
        """Open nothing yet."""
        self.folder = None if fcntl is None else folder
        self.under_way: set[CallNote] = set()
        self._worker = worker
        self._file: int | None = None
        self._map: mmap.mmap | None = None
        self._unused: list[int] = []
        self._has_warned = False

    @property
    def path(self) -> Path | None:
        """Return the path of the file."""
        return None if self.folder is None else self.folder / f"{self._worker}{_SUFFIX}"

    def start(self) -> None:
        """Create the file, which this process holds as long as it lives; raise OSError where that cannot be."""
        path = self.path
        if path is None:
            return
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Locked under another name first: nobody finds it before it is held.
        new = path.with_suffix(".new")
        self._file = os.open(new, os.O_CREAT | os.O_RDWR, 0o600)
        fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        _extend(self._file, 0, _HEADER.size + _FIRST_SLOTS * _SLOT_BYTES)
        self._map = mmap.mmap(self._file, 0)
        self._map[: _HEADER.size] = _HEADER.pack(_MARK, self._worker.encode())
        self._unused = list(range(_FIRST_SLOTS))
        new.replace(path)

    def close(self, *, is_booked: bool) -> None:
        """Close the file; it goes where the database has all that was settled, and else waits for the next start."""
        path = self.path
        if self._map is None or self._file is None or path is None:
            return
        self._map.close()
        self._map = None
        if is_booked and not self.under_way:
            path.unlink(missing_ok=True)
        os.close(self._file)

    def begin(self, facts: Mapping[str, Any], cost: float) -> CallNote | None:
        """Note a call that is about to be made, and at least what it will cost; None where nothing is noted."""
        if self._map is None:
            return None
        text = short_dumps(facts)
        if len(text) > _FACTS_BYTES:
            if not self._has_warned:
                self._has_warned = True
                _LOGGER.warning("a call with long names is not noted, and not booked if the router is killed")
            return None
        if not self._unused and not self._grow():
            return None
        note = CallNote(self, self._unused.pop())
        self.write(note.slot, _IDENTIFIER_AT, b"")
        self.write(note.slot, _FACTS_AT, text)
        self.set_state(note.slot, _UNDER_WAY, is_told=False, cost=cost)
        self.under_way.add(note)
        return note

    def refresh(self) -> None:
        """Note what every call under way has cost by now."""
        for note in self.under_way:
            note.refresh()

    def write(self, slot: int, at: int, text: bytes) -> None:
        """Write a text of a slot, after its length."""
        if self._map is not None:
            begin = _HEADER.size + slot * _SLOT_BYTES + at
            self._map[begin : begin + _LENGTH.size + len(text)] = _LENGTH.pack(len(text)) + text

    def set_state(self, slot: int, state: int, *, is_told: bool = False, cost: float = 0.0, batch: int = 0) -> None:
        """Write the state of a slot."""
        if self._map is not None:
            _STATE.pack_into(self._map, _HEADER.size + slot * _SLOT_BYTES, state, is_told, cost, batch)

    def free(self, slot: int) -> None:
        """Let another call have a slot."""
        if self._map is not None:
            self.set_state(slot, _FREE)
            self._unused.append(slot)

    def _grow(self) -> bool:
        """Make room for as many calls again; return whether the disk has it."""
        assert self._map is not None
        assert self._file is not None
        held = len(self._map)
        slots = (held - _HEADER.size) // _SLOT_BYTES
        size = _HEADER.size + 2 * slots * _SLOT_BYTES
        try:
            _extend(self._file, held, size)
        except OSError as error:
            os.ftruncate(self._file, held)
            if not self._has_warned:
                self._has_warned = True
                _LOGGER.warning(
                    "no room for notes of more calls, which are not booked if the router is killed: %s", error
                )
            return False
        self._map.resize(size)
        self._unused.extend(range(slots, 2 * slots))
        return True


def _extend(file: int, held: int, size: int) -> None:
    """Fill a file with zeros up to a size; raise OSError where the disk has no room."""
    # Room that is only promised would end the process, by SIGBUS, as soon as a full disk cannot keep the promise.
    written = held
    while written < size:
        written += os.pwrite(file, bytes(size - written), written)


@dataclass(frozen=True)
class LeftNotes:
    """The file of a worker that has ended without booking all of it."""

    path: Path
    worker: str
    calls: list[LeftCall]


@contextlib.contextmanager
def left_notes(path: Path) -> Iterator[LeftNotes | None]:
    """Hold a file while the block runs, and give what it tells; None where its worker lives, or another reads it."""
    try:
        file = os.open(path, os.O_RDWR)
    except FileNotFoundError:
        yield None
        return
    try:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield None
            return
        # Another may have read and removed it before it was held.
        yield _read(path, file) if os.fstat(file).st_nlink else None
    finally:
        os.close(file)


def left_files(folder: Path) -> list[Path]:
    """Return the files of all workers, living ones too."""
    return sorted(folder.glob(f"*{_SUFFIX}"))


def _read(path: Path, file: int) -> LeftNotes:
    text = os.pread(file, os.fstat(file).st_size, 0)
    mark, worker = _HEADER.unpack_from(text) if len(text) >= _HEADER.size else (b"", b"")
    if mark != _MARK:
        raise ValueError(f"{path}: holds no notes of calls; remove it")
    calls = []
    for begin in range(_HEADER.size, len(text) - _SLOT_BYTES + 1, _SLOT_BYTES):
        state, is_told, cost, batch = _STATE.unpack_from(text, begin)
        if state == _FREE:
            continue
        call = LeftCall(
            facts=json.loads(_text(text, begin + _FACTS_AT)),
            identifier=_text(text, begin + _IDENTIFIER_AT).decode(),
            cost=cost,
            is_told=bool(is_told),
            batch=batch if state == _SETTLED else None,
        )
        calls.append(call)
    return LeftNotes(path, worker.rstrip(b"\0").decode(), calls)


def _text(text: bytes, begin: int) -> bytes:
    [length] = _LENGTH.unpack_from(text, begin)
    begin += _LENGTH.size
    return text[begin : begin + length]
