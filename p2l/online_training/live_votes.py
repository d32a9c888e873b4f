"""Votes that come while a run trains: a JSONL file that others append to, or the router's votes copied into one.

The order of the file is the order of the stream, whatever the times in it say: it is the order of arrival.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from p2l.common.cli import print_note
from p2l.common.errors import VoteError
from p2l.common.files import parse_json
from p2l.online_training.stream import StopRequestedError, is_held_out
from p2l.votes.schema import WINNERS, unknown_winner
from p2l.votes.spool import RecordFile

_CODES = {winner: code for code, winner in enumerate(WINNERS)}


class LineVote(NamedTuple):
    """The vote of one line."""

    prompt: list[str]
    """The user's turns."""
    model_a: str
    model_b: str
    winner: int
    """Position in WINNERS."""
    weight: float
    tstamp: float
    """Seconds since 1970; NaN: not stated."""


def parse_line(line: bytes) -> LineVote:
    """Parse one line of a growing file; VoteError, which says why but not where, if it is not a vote.

    The rules are those of `p2l votes check`.
    """
    # Each line is judged alone, not with the lines it came with: a run that was resumed would take other votes.
    try:
        row = parse_json(line)
    except UnicodeDecodeError as error:
        raise VoteError(f"is not UTF-8 (byte {error.start + 1})") from error
    except ValueError as error:
        raise VoteError(f"is not JSON: {error}") from error
    if not isinstance(row, dict):
        raise VoteError(f"holds a {type(row).__name__}; every line must be an object")
    model_a, model_b = (_name(row, key) for key in ("model_a", "model_b"))
    if model_a == model_b:
        raise VoteError(f"model_a and model_b are both {model_a!r}")
    return LineVote(
        turns_of(row),
        model_a,
        model_b,
        _winner(row.get("winner")),
        _weight(row.get("weight")),
        _time(row.get("tstamp")),
    )


def turns_of(row: dict[str, Any]) -> list[str]:
    """Return the prompt of a line's object; VoteError if the prompt is missing, or no text and no list of texts."""
    prompt = row.get("prompt")
    turns = [prompt] if isinstance(prompt, str) else prompt
    if turns is None:
        raise VoteError("prompt is missing")
    if not isinstance(turns, list) or not turns or not all(isinstance(turn, str) for turn in turns):
        raise VoteError("prompt must be a text or a list of the user's turns")
    try:
        "".join(turns).encode()
    except UnicodeEncodeError as error:
        raise VoteError("prompt holds half of a surrogate pair, which is not text") from error
    return turns


def _name(row: dict[str, Any], key: str) -> str:
    name = row.get(key)
    if name is None or (isinstance(name, str) and not name.strip()):
        raise VoteError(f"{key} has no name")
    if not isinstance(name, str):
        raise VoteError(f"{key} must be text, not {name!r}")
    return name


def _winner(value: Any) -> int:
    code = _CODES.get(value) if isinstance(value, str) else None
    if code is None:
        raise VoteError(unknown_winner(value if value is None else str(value)))
    return code


def _weight(value: Any) -> float:
    weight = 1.0 if value is None else _number(value)
    if not (math.isfinite(weight) and weight >= 0):
        raise VoteError(f"weight is {value!r}; it must be a finite number, zero or more")
    return weight


def _time(value: Any) -> float:
    if value is None:
        return math.nan
    seconds = _number(value)
    if math.isnan(seconds) and isinstance(value, str):
        import pyarrow as pa

        from p2l.votes.schema import numbers

        seconds = float(numbers(pa.array([value]))[0])
    if not math.isfinite(seconds):
        raise VoteError(f"tstamp is {value!r}; it must be seconds since 1970, or a date and time")
    return seconds


def _number(value: Any) -> float:
    """Return a number, or the number that a text holds; NaN for anything else."""
    try:
        return math.nan if isinstance(value, bool) or not isinstance(value, int | float | str) else float(value)
    except (ValueError, OverflowError):
        return math.nan


_BLOCK_BYTES = 8 << 20  # bytes
_PARQUET_MAGIC = b"PAR1"


class _TextLine(NamedTuple):
    """A whole line without its line feed."""

    text: bytes
    at: int
    """Offset of its first byte."""
    number: int
    """From 1."""


class _GrowingFile:
    """A file that others append lines to: each line is read once, and any line again by its offset.

    A last line without an end waits until its end comes. A file that was replaced or cut short is another stream, and
    an error. Threads may share the object.
    """

    def __init__(self, path: Path) -> None:
        """Open the file, reading nothing yet; VoteError if it is missing, unreadable, or of a kind that cannot grow."""
        if path.exists() and not path.is_file():
            raise VoteError(f"{path}: cannot be followed: it is not a file; name a JSONL file or a router's database")
        self.path = path
        self._end, self._number = 0, 1
        try:
            self._file = os.open(path, os.O_RDONLY)
        except OSError as error:
            hint = "; create it empty if its votes are still to come" if isinstance(error, FileNotFoundError) else ""
            raise VoteError(f"{path}: cannot be followed: {error.strerror or error}{hint}") from error
        if os.pread(self._file, len(_PARQUET_MAGIC), 0) == _PARQUET_MAGIC:
            raise VoteError(f"{path}: cannot be followed: Parquet does not grow; set it as train_data_path")

    def __del__(self) -> None:
        self.close()

    def close(self) -> None:
        """Close the file; nothing can be read afterwards."""
        file, self._file = getattr(self, "_file", -1), -1
        if file >= 0:
            os.close(file)

    @property
    def torn(self) -> int:
        """Bytes after the end of the last line that has one."""
        return os.fstat(self._file).st_size - self._end

    def lines(self) -> Iterator[_TextLine]:
        """Yield the lines that have come since, each read once it is yielded; VoteError if the file is not the same."""
        self._check_same()
        size = _BLOCK_BYTES
        while text := os.pread(self._file, size, self._end):
            whole = text.rfind(b"\n") + 1
            if not whole and len(text) < size:
                return
            size = _BLOCK_BYTES if whole else 2 * size  # a line longer than the block
            start = 0
            while start < whole:
                end = text.index(b"\n", start)
                line = _TextLine(text[start:end], self._end, self._number)
                self._end, self._number = self._end + end + 1 - start, self._number + 1
                start = end + 1
                yield line

    def _check_same(self) -> None:
        opened = os.fstat(self._file)
        try:
            named = self.path.stat()
        except OSError as error:
            raise VoteError(f"{self.path}: is gone ({error.strerror or error}); put it back and start again") from error
        if not os.path.samestat(opened, named) or opened.st_size < self._end:
            how = "cut short" if os.path.samestat(opened, named) else "replaced by another file"
            raise VoteError(
                f"{self.path}: was {how} while it was followed; put the old one back, or start a new run on this one"
            )

    def read(self, at: int, size: int) -> bytes:
        """Return bytes that were read before; VoteError if the file is shorter now."""
        text = os.pread(self._file, size, at)
        if len(text) < size:
            raise VoteError(f"{self.path}: was cut short while it was followed; put the old one back and start again")
        return text


Ids = Sequence[int] | NDArray[np.int64] | None
_VOTES_PER_WRITE = 10_000  # votes in memory before they go to disk
_RECORD = np.dtype(
    [
        *(("at", "<i8"), ("size", "<i4"), ("a", "<i4"), ("b", "<i4"), ("winner", "i1")),
        *(("weight", "<f8"), ("tstamp", "<f8"), ("place", "<i8")),
    ]
)


class LineVotes:
    """Votes of a growing file by number, 0 to len - 1; models are numbered as they first appear.

    Each is a record of 45 bytes in a temporary file, so memory does not grow with the votes; its prompt is read again
    from its line. Shapes: n votes asked for.
    """

    def __init__(self, file: _GrowingFile, model_list: Sequence[str] = ()) -> None:
        """Start without votes; the models of `model_list` come first."""
        self._file = file
        self._codes = {name: code for code, name in enumerate(model_list)}
        self._spool = RecordFile(_RECORD)
        self._record = self._spool.mapped()
        self._new: list[tuple[Any, ...]] = []
        self._count = 0

    @property
    def path(self) -> Path:
        """The file."""
        return self._file.path

    @property
    def model_list(self) -> list[str]:
        """Names of all models so far."""
        return list(self._codes)

    def __len__(self) -> int:
        return len(self._record)

    def close(self) -> None:
        """Free the disk space."""
        self._record = np.empty(0, dtype=_RECORD)
        self._spool.close()

    def append(self, vote: LineVote, at: int, size: int, place: int) -> None:
        """Add a vote whose line is `size` bytes at `at`, readable after `finish`; `place` never falls (see `up_to`)."""
        a, b = (self._codes.setdefault(name, len(self._codes)) for name in (vote.model_a, vote.model_b))
        self._new.append((at, size, a, b, vote.winner, vote.weight, vote.tstamp, place))
        self._count += 1
        if len(self._new) == _VOTES_PER_WRITE:
            self._spill()

    def finish(self) -> None:
        """Make what was appended readable."""
        if self._count > len(self._record):
            self._spill()
            self._record = self._spool.mapped()

    def _spill(self) -> None:
        if self._new:
            self._spool.append(np.array(self._new, dtype=_RECORD))
            self._new.clear()

    def up_to(self, place: int) -> int:
        """Return how many votes have a place of at most `place`."""
        return int(np.searchsorted(self._record["place"], place, side="right"))

    def prompts(self, ids: Ids = None) -> list[list[str]]:
        """Return the user's turns of each vote, from the file; VoteError if it holds something else there now."""
        return [turns for turns, _ in self._lines(ids)]

    def rows(self, ids: Ids = None) -> list[dict[str, Any]]:
        """Return all columns of each vote, from the file; VoteError as `prompts`."""
        return [row for _, row in self._lines(ids)]

    def _lines(self, ids: Ids) -> Iterator[tuple[list[str], dict[str, Any]]]:
        return (self._line(at, size) for at, size in self._chosen(ids)[["at", "size"]].tolist())

    def _line(self, at: int, size: int) -> tuple[list[str], dict[str, Any]]:
        try:
            row = parse_json(self._file.read(at, size))
            return turns_of(row), row
        except (ValueError, AttributeError, VoteError) as error:
            raise VoteError(
                f"{self._file.path}: was changed at byte {at} while it was followed; lines may only be added"
            ) from error

    def labels(self, ids: Ids = None) -> NDArray[np.int32]:
        """Return `[winner, loser, tie]` (n, 3); tie 1 for a tie, 2 for both bad, then model_a first."""
        part = self._chosen(ids)
        b_won = part["winner"] == 1
        first, second = np.where(b_won, part["b"], part["a"]), np.where(b_won, part["a"], part["b"])
        return np.stack([first, second, np.maximum(part["winner"] - 1, 0)], axis=1).astype(np.int32)

    def pairs(self, ids: Ids = None) -> NDArray[np.int32]:
        """Return the positions (n, 2) of model_a and model_b."""
        part = self._chosen(ids)
        return np.stack([part["a"], part["b"]], axis=1)

    def weights(self, ids: Ids = None) -> NDArray[np.float64]:
        """Return weights (n,); 1 where a line has none."""
        return np.ascontiguousarray(self._chosen(ids)["weight"])

    def tstamps(self, ids: Ids = None) -> NDArray[np.float64]:
        """Return seconds (n,), NaN where a line has none."""
        return np.ascontiguousarray(self._chosen(ids)["tstamp"])

    def _chosen(self, ids: Ids) -> Any:
        return self._record if ids is None else self._record[np.asarray(ids, dtype=np.int64)]


_VOTES_READ_AHEAD = 50_000  # votes read beyond those asked for
_SECONDS_BETWEEN_NOTES = 60.0  # seconds
_MAX_SECONDS_BEHIND = 30.0  # seconds until another process sees on its disk what the first one has read


@dataclass
class Waiting:
    """How a run waits for votes."""

    poll_seconds: float = 1.0
    idle_seconds: float | None = None
    """The stream ends when nothing has come for this time; None: it never ends."""
    stop: threading.Event = field(default_factory=threading.Event)
    """Set by a signal."""
    tell: Callable[[str], None] = print_note


class _Now(NamedTuple):
    """The stream at a moment, alike on every process."""

    there: int
    ended: bool
    stopped: bool


class LiveVotes(LineVotes):
    """A `VoteStream` that grows (see p2l.online_training.stream); `held` are the votes that are never trained on."""

    grows = True
    has_weights = True

    def __init__(
        self,
        path: Path,
        *,
        model_list: Sequence[str] = (),
        at_least: int = 0,
        held_share: float = 0.0,
        waiting: Waiting | None = None,
        gather: Callable[[], None] | None = None,
        name: str | None = None,
    ) -> None:
        """Open the file; no vote is read yet. VoteError if it cannot be read.

        `path` is JSON lines that others append to, `model_list` the models that the run begins with. The file must hold
        `at_least` votes already, from which a run that goes on has learned: nobody waits for these. The votes on
        `held_share` of the prompts, by their hash, go to `held`; the place of such a vote is the number of votes to
        train on that came before it. The first process calls `gather` before it reads the file, which that may append
        to. Messages call the stream `name`, by default the path.
        """
        self.name = name or str(path)
        self.bad_lines = 0
        self.held_share = held_share
        self._at_least = at_least
        self._gather = gather
        super().__init__(_GrowingFile(path), model_list)
        self.held = LineVotes(self._file, model_list)
        self._waiting = waiting or Waiting()
        self._news = self._told = time.monotonic()

    def close(self) -> None:
        """Close the files."""
        super().close()
        self.held.close()
        self._file.close()

    def wait_for(self, count: int) -> int:
        """Wait until `count` votes are there, or the stream ends (see `VoteStream`).

        Raise StopRequestedError if a signal said to stop, VoteError if the file was replaced, cut short or removed.
        """
        self._news = time.monotonic()
        while True:
            now = self._look(count)
            if now.stopped:
                raise StopRequestedError
            if now.ended and self._file.torn and _rank() == 0:
                self._waiting.tell(f"warning: {self._file.path}: its last line has no end and was left out")
            if now.ended or now.there >= count:
                return min(count, now.there)

    def pause(self, seconds: float) -> None:
        """Wait so long; raise StopRequestedError if a signal said to stop."""
        if self._waiting.stop.wait(seconds):
            raise StopRequestedError

    def _look(self, count: int) -> _Now:
        """Read what is missing to `count` votes and some more; when they are not there yet, only after a pause."""
        processes = _group()
        if processes is None:  # alone, or each process for itself until they know each other: exactly what was asked
            return self._look_here(count, count + (0 if _has_company() else _VOTES_READ_AHEAD))
        # The first process decides how much has come and when to stop; the others read as far as it did.
        box = [
            self._look_here(count, count + _VOTES_READ_AHEAD) if processes.get_rank() == 0 else _Now(0, False, False)
        ]
        processes.broadcast_object_list(box, src=0)
        now = box[0]
        self._catch_up(now.there)
        return now

    def _look_here(self, count: int, most: int) -> _Now:
        news = len(self) < count and self._read(most)
        if len(self) < self._at_least:
            return _Now(len(self), not news, self._waiting.stop.is_set())
        if len(self) < count and not news and not self._waiting.stop.is_set():
            self._tell(count)
            self._waiting.stop.wait(self._waiting.poll_seconds)
        idle, limit = time.monotonic() - self._news, self._waiting.idle_seconds
        return _Now(len(self), limit is not None and idle >= limit and len(self) < count, self._waiting.stop.is_set())

    def _catch_up(self, there: int) -> None:
        """Read as far as the first process did; its disk may know a little earlier than this one's."""
        until = time.monotonic() + _MAX_SECONDS_BEHIND
        while len(self) < there:
            if not self._read(there) and time.monotonic() > until:
                raise VoteError(
                    f"{self.name}: process 0 has read {there:,} votes and another one sees {len(self):,}; "
                    "the file must be on a disk that all nodes share"
                )
            time.sleep(0.0 if len(self) == there else 0.05)

    def _read(self, most: int) -> bool:
        """Read votes until `most` are there or no more have come; return whether any came."""
        if self._gather is not None and _rank() == 0:
            self._gather()
        before = there = len(self)
        for line in self._file.lines():
            there += self._take(line, there)
            if there >= most:
                break
        self.finish()
        self.held.finish()
        if there > before:
            self._news = time.monotonic()
        return there > before

    def _take(self, line: _TextLine, there: int) -> bool:
        """Add the vote of one line after `there` others; return whether it is one to train on."""
        if not line.text.strip():
            return False
        try:
            vote = parse_line(line.text)
        except VoteError as error:
            # A live run must not end by one bad line.
            self.bad_lines += 1
            if self.bad_lines == 1 and _rank() == 0:
                self._waiting.tell(
                    f"warning: {self._file.path}: line {line.number}: {error}; lines that are not votes are left out "
                    "and counted, `p2l votes check` lists them"
                )
            return False
        held = is_held_out(vote.prompt, self.held_share)
        (self.held if held else self).append(vote, line.at, len(line.text), there)
        return not held

    def _tell(self, count: int) -> None:
        """Report now and then what the run waits for."""
        now = time.monotonic()
        if _rank() == 0 and now - self._told >= _SECONDS_BETWEEN_NOTES:
            self._told = now
            bad = f", {self.bad_lines:,} lines left out" if self.bad_lines else ""
            self._waiting.tell(f"{self.name}: {len(self):,} votes{bad}; waiting for {count - len(self):,} more")


def _rank() -> int:
    return int(os.environ.get("RANK", "0"))


def _has_company() -> bool:
    return int(os.environ.get("WORLD_SIZE", "1")) > 1


def _group() -> Any:
    """Return the process group of this run once it is initialized; None for one process alone."""
    if not _has_company():
        return None
    import torch.distributed as processes

    return processes if processes.is_initialized() else None
