"""Votes that come while a run trains: a JSONL file that others append to, or the router's votes copied into one.

The order of the file is the order of the stream, whatever the times in it say: it is the order of arrival.
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from p2l.common.cli import print_note
from p2l.common.errors import VoteError
from p2l.common.files import parse_json
from p2l.votes.schema import WINNERS, hash_turns, numbers, unknown_winner
from p2l.votes.spool import RecordFile

_CODES = {winner: code for code, winner in enumerate(WINNERS)}
_HELD_SEED = 0x9A7E  # which prompts are held out has nothing to do with any other use of their hashes


class StopRequestedError(Exception):
    """Raised by `wait_for` where a signal asks the run to stop: it saves a checkpoint, the stream has not ended."""


def is_held_out(prompt: list[str], share: float) -> bool:
    """Return whether votes on this prompt are held out, at this share of all prompts; the same in every run."""
    return share > 0 and hash_turns(prompt, _HELD_SEED) < share * 2.0**64


class _LineVote(NamedTuple):
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
    voter: str | None = None
    network: str | None = None


def parse_line(line: bytes) -> _LineVote:
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
    turns = turns_of(row)
    winner = row.get("winner")
    # A winner may be a list or an object, which no dictionary looks up.
    if not isinstance(winner, str) or winner not in _CODES:
        raise VoteError(unknown_winner(winner if winner is None else str(winner)))
    weight = 1.0 if row.get("weight") is None else _number(row["weight"])
    if not (math.isfinite(weight) and weight >= 0):
        raise VoteError(f"weight is {row['weight']!r}; it must be a finite number, zero or more")
    return _LineVote(
        prompt=turns,
        model_a=model_a,
        model_b=model_b,
        winner=_CODES[winner],
        weight=weight,
        tstamp=_time(row.get("tstamp")),
        voter=_text_or_none(row.get("voter")),
        network=_text_or_none(row.get("network")),
    )


def _text_or_none(value: Any) -> str | None:
    return None if value is None else str(value)


def turns_of(row: dict[str, Any]) -> list[str]:
    """Return the prompt of a line's object; VoteError if it is missing, or neither a text nor a list of texts."""
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


def _time(value: Any) -> float:
    if value is None:
        return math.nan
    seconds = _number(value)
    if math.isnan(seconds) and isinstance(value, str):
        # A date and time, read as in every other file of votes.
        seconds = float(numbers(pa.array([value]))[0])
    if not math.isfinite(seconds):
        raise VoteError(f"tstamp is {value!r}; it must be seconds since 1970, or a date and time")
    return seconds


def _number(value: Any) -> float:
    """Return a number, or the number that a text holds; NaN for anything else."""
    # JSON's true is a number to Python, and an integer of any length may exceed a float.
    try:
        return math.nan if isinstance(value, bool) or not isinstance(value, int | float | str) else float(value)
    except (ValueError, OverflowError):
        return math.nan


_BLOCK_BYTES = 8 << 20
_PARQUET_MAGIC = b"PAR1"


class _TextLine(NamedTuple):
    """A whole line without its line feed."""

    text: bytes
    at: int
    """Offset of its first byte."""
    number: int
    """Number of the line, from 1."""


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
        self._end = 0
        self._number = 1
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
        size = _BLOCK_BYTES
        while text := os.pread(self._file, size, self._end):
            whole = text.rfind(b"\n") + 1
            if not whole and len(text) < size:
                return  # a line without its end
            size = _BLOCK_BYTES if whole else 2 * size  # a line longer than the block
            start = 0
            while start < whole:
                end = text.index(b"\n", start)
                line = _TextLine(text[start:end], self._end, self._number)
                # Before the line is yielded: whoever takes no further lines must not see this one again.
                self._end += end + 1 - start
                self._number += 1
                start = end + 1
                yield line

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
        ("at", "<i8"),
        ("size", "<i4"),
        ("a", "<i4"),
        ("b", "<i4"),
        ("winner", "i1"),
        ("weight", "<f8"),
        ("tstamp", "<f8"),
        ("place", "<i8"),
        ("voter", "<i4"),
        ("network", "<i4"),
    ]
)


class LineVotes:
    """Votes of a growing file by number, 0 to len - 1; models are numbered as they first appear.

    Each is a record of 53 bytes in a temporary file, so memory does not grow with the votes; its prompt is read again
    from its line. Shapes: n votes of `ids`.
    """

    def __init__(self, file: _GrowingFile, model_list: Sequence[str] = ()) -> None:
        """Start without votes; the models of `model_list` come first."""
        self._file = file
        self._codes = {name: code for code, name in enumerate(model_list)}
        self._voters: dict[str, int] = {}
        self._networks: dict[str, int] = {}
        self._spool = RecordFile(_RECORD)
        self._record = self._spool.mapped()
        self._new: list[tuple[Any, ...]] = []

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

    def append(self, vote: _LineVote, at: int, size: int, place: int) -> None:
        """Add a vote whose line is `size` bytes at `at`, readable after `finish`; `place` never falls (see `up_to`)."""
        a, b = (self._codes.setdefault(name, len(self._codes)) for name in (vote.model_a, vote.model_b))
        voter = -1 if vote.voter is None else self._voters.setdefault(vote.voter, len(self._voters))
        network = -1 if vote.network is None else self._networks.setdefault(vote.network, len(self._networks))
        self._new.append((at, size, a, b, vote.winner, vote.weight, vote.tstamp, place, voter, network))
        if len(self._new) == _VOTES_PER_WRITE:
            self.finish()

    def finish(self) -> None:
        """Make what was appended readable."""
        if self._new:
            self._spool.append(np.array(self._new, dtype=_RECORD))
            self._new.clear()
            self._record = self._spool.mapped()

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
        for at, size in self._chosen(ids)[["at", "size"]].tolist():
            try:
                row = parse_json(self._file.read(at, size))
                turns = turns_of(row)
            except (ValueError, AttributeError, VoteError) as error:  # AttributeError: JSON, but not an object
                raise VoteError(
                    f"{self._file.path}: was changed at byte {at} while it was followed; lines may only be added"
                ) from error
            yield turns, row

    def labels(self, ids: Ids = None) -> NDArray[np.int32]:
        """Return `[winner, loser, tie]` (n, 3); tie 1 for a tie, 2 for both bad, then model_a first."""
        votes = self._chosen(ids)
        b_won = votes["winner"] == 1
        first = np.where(b_won, votes["b"], votes["a"])
        second = np.where(b_won, votes["a"], votes["b"])
        return np.stack([first, second, np.maximum(votes["winner"] - 1, 0)], axis=1).astype(np.int32)

    def pairs(self, ids: Ids = None) -> NDArray[np.int32]:
        """Return the positions (n, 2) of model_a and model_b."""
        votes = self._chosen(ids)
        return np.stack([votes["a"], votes["b"]], axis=1)

    def weights(self, ids: Ids = None) -> NDArray[np.float64]:
        """Return weights (n,); 1 where a line has none."""
        return np.ascontiguousarray(self._chosen(ids)["weight"])

    def tstamps(self, ids: Ids = None) -> NDArray[np.float64]:
        """Return seconds (n,), NaN where a line has none."""
        return np.ascontiguousarray(self._chosen(ids)["tstamp"])

    @property
    def voters(self) -> list[str]:
        """Names of all voters so far."""
        return list(self._voters)

    def voter_codes(self, ids: Ids = None) -> NDArray[np.int32]:
        """Return positions (n,) in `voters`; -1 where a line has none."""
        return np.ascontiguousarray(self._chosen(ids)["voter"])

    def network_codes(self, ids: Ids = None) -> NDArray[np.int32]:
        """Return numbers (n,) of networks, equal where the lines' are; -1 where a line has none."""
        return np.ascontiguousarray(self._chosen(ids)["network"])

    def _chosen(self, ids: Ids) -> Any:
        return self._record if ids is None else self._record[np.asarray(ids, dtype=np.int64)]


_VOTES_READ_AHEAD = 50_000  # beyond those that a step waits for, so that a file with many is read in few passes
_SECONDS_BETWEEN_NOTES = 60.0
_MAX_SECONDS_BEHIND = 30.0  # until another process sees on its disk what the first one has read


@dataclass
class Waiting:
    """Settings of a run that waits for votes."""

    poll_seconds: float = 1.0
    idle_seconds: float | None = None
    """The stream ends when nothing has come for this time; None: it never ends."""
    stop: threading.Event = field(default_factory=threading.Event)
    """Set by a signal."""
    tell: Callable[[str], None] = print_note

    def stop_on_signals(self) -> None:
        """Let SIGTERM and SIGINT end the run after its step; a second Ctrl-C ends it at once."""

        def handle(number: int, frame: FrameType | None) -> None:
            if number == signal.SIGINT and self.stop.is_set():
                signal.default_int_handler(number, frame)
            self.stop.set()

        with contextlib.suppress(ValueError):  # not in the main thread: whoever runs it there has its own signals
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, handle)


class _Now(NamedTuple):
    """State of the stream, the same on every process."""

    there: int
    ended: bool
    stopped: bool


class LiveVotes(LineVotes):
    """A `VoteStream` that grows (see p2l.online_training.stream); `held` are the votes that are never trained on."""

    grows = True

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
        self.path = path
        self.bad_lines = 0
        self.held_share = held_share
        self._at_least = at_least
        self._gather = gather
        super().__init__(_GrowingFile(path), model_list)
        self.held = LineVotes(self._file, model_list)
        self._waiting = waiting or Waiting()
        self._is_first = os.environ.get("RANK", "0") == "0"
        self._has_peers = int(os.environ.get("WORLD_SIZE", "1")) > 1
        self._last_news = time.monotonic()
        self._last_note = self._last_news

    def close(self) -> None:
        """Close the files."""
        super().close()
        self.held.close()
        self._file.close()

    def wait_for(self, count: int) -> int:
        """Wait until `count` votes are there, or the stream ends (see `VoteStream`).

        Raise StopRequestedError if a signal said to stop, VoteError if the file was replaced, cut short or removed.
        """
        self._last_news = time.monotonic()
        while True:
            now = self._look(count)
            if now.stopped:
                raise StopRequestedError
            if now.ended and self._file.torn and self._is_first:
                self._waiting.tell(f"warning: {self._file.path}: its last line has no end and was left out")
            if now.ended or now.there >= count:
                return min(count, now.there)

    def pause(self, seconds: float) -> None:
        """Wait for this time; raise StopRequestedError if a signal said to stop."""
        if self._waiting.stop.wait(seconds):
            raise StopRequestedError

    def _look(self, count: int) -> _Now:
        """Read what is missing to `count` votes and some more; when they are not there yet, only after a pause."""
        if not self._has_peers:
            return self._look_here(count, count + _VOTES_READ_AHEAD)
        # A run of one process must not wait for torch.
        import torch.distributed as processes

        if not processes.is_initialized():
            # Each for itself until they know each other, and exactly `count` votes: all must have read alike.
            return self._look_here(count, count)
        # The first process decides how much has come and when to stop; the others read as far as it did.
        box = [_Now(there=0, ended=False, stopped=False)]
        if processes.get_rank() == 0:
            box = [self._look_here(count, count + _VOTES_READ_AHEAD)]
        processes.broadcast_object_list(box, src=0)
        now = box[0]
        until = time.monotonic() + _MAX_SECONDS_BEHIND
        while len(self) < now.there:  # the first one's disk may know of votes a little earlier than this one's
            if not self._read(now.there) and time.monotonic() > until:
                raise VoteError(
                    f"{self.name}: process 0 has read {now.there:,} votes and another one sees {len(self):,}; "
                    "the file must be on a disk that all nodes share"
                )
            time.sleep(0.0 if len(self) == now.there else 0.05)
        return now

    def _look_here(self, count: int, most: int) -> _Now:
        """Read up to `most` votes; pause where neither `count` are there nor any have come."""
        has_news = len(self) < count and self._read(most)
        stop = self._waiting.stop
        if len(self) < self._at_least:
            # Votes that the run has learned from are in the file, or never will be.
            return _Now(there=len(self), ended=not has_news, stopped=stop.is_set())
        if len(self) < count and not has_news and not stop.is_set():
            now = time.monotonic()
            if self._is_first and now - self._last_note >= _SECONDS_BETWEEN_NOTES:
                self._last_note = now
                bad = f", {self.bad_lines:,} lines left out" if self.bad_lines else ""
                self._waiting.tell(f"{self.name}: {len(self):,} votes{bad}; waiting for {count - len(self):,} more")
            stop.wait(self._waiting.poll_seconds)
        limit = self._waiting.idle_seconds
        is_idle = limit is not None and time.monotonic() - self._last_news >= limit
        return _Now(there=len(self), ended=is_idle and len(self) < count, stopped=stop.is_set())

    def _read(self, most: int) -> bool:
        """Read votes until `most` are there or no more have come; return whether any came."""
        if self._gather is not None and self._is_first:
            self._gather()
        before = there = len(self)
        for line in self._file.lines():
            if not line.text.strip():
                continue
            try:
                vote = parse_line(line.text)
            except VoteError as error:
                # A live run must not end by one bad line.
                self.bad_lines += 1
                if self.bad_lines == 1 and self._is_first:
                    self._waiting.tell(
                        f"warning: {self._file.path}: line {line.number}: {error}; lines that are not votes are left "
                        "out and counted, `p2l votes check` lists them"
                    )
                continue
            # The place of a held-out vote is the number of votes to train on before it.
            is_held = is_held_out(vote.prompt, self.held_share)
            (self.held if is_held else self).append(vote, line.at, len(line.text), there)
            there += not is_held
            if there >= most:
                break
        self.finish()
        self.held.finish()
        if there > before:
            self._last_news = time.monotonic()
        return there > before
