"""Votes that come while a run trains: a JSONL file that others append to, or the router's votes copied into one.

The order of the file is the order of the stream, whatever the times in it say: it is the order of arrival. A line that
is no vote is left out, told about once and counted, since a live run must not end by one bad line.

With several processes the first one decides how much has come and when to stop; the others read as far as it did.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from p2l.errors import VoteError
from p2l.online_training.growing_file import GrowingFile, Line
from p2l.online_training.line_votes import LineVotes
from p2l.online_training.live_lines import parse_line
from p2l.online_training.stream import StopRequestedError, is_held_out

__all__ = [
    "LiveVotes",
    "Waiting",
]

Ids = Sequence[int] | NDArray[np.int64] | None
_AHEAD = 50_000  # votes read beyond those asked for
_TOLD_EVERY = 60.0  # seconds
_PATIENCE = 30.0  # seconds until another process sees on its disk what the first one has read


@dataclass
class Waiting:
    """How a run waits for votes."""

    poll_seconds: float = 1.0
    idle_seconds: float | None = None
    """The stream ends when nothing has come for so long; None: it never ends."""
    stop: threading.Event = field(default_factory=threading.Event)
    """Set by a signal."""
    tell: Callable[[str], None] = lambda text: print(text, file=sys.stderr, flush=True)


class _Now(NamedTuple):
    """The stream at a moment, alike on every process."""

    there: int
    ended: bool
    stopped: bool


class LiveVotes:
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
        gather: Callable[[], None] = lambda: None,
        name: str | None = None,
    ) -> None:
        """Open the file; no vote is read yet.

        Args:
            path: JSON lines that others append to.
            model_list: models that the run begins with.
            at_least: votes that the file must hold already, since a run that goes on has learned from them; nobody
                waits for these.
            held_share: share of the prompts, by their hash, whose votes go to `held`; the place of such a vote is the
                number of votes to train on that came before it.
            waiting: how to wait.
            gather: called before the file is read, on the first process; may append to the file.
            name: how messages call the stream; the path if not given.

        Raises:
            VoteError: the file cannot be read.
        """
        self.name = name or str(path)
        self.bad_lines = 0
        self.held_share = held_share
        self._at_least = at_least
        self._file = GrowingFile(path)
        self._gather = gather
        self._votes = LineVotes(self._file, model_list)
        self.held = LineVotes(self._file, model_list)
        self._waiting = waiting or Waiting()
        self._news = self._told = time.monotonic()

    def close(self) -> None:
        """Free what it holds."""
        self._votes.close()
        self.held.close()
        self._file.close()

    @property
    def model_list(self) -> list[str]:
        """All models known by now, in order of first appearance in votes to train on."""
        return self._votes.model_list

    def __len__(self) -> int:
        return len(self._votes)

    def wait_for(self, count: int) -> int:
        """Wait until `count` votes are there; fewer when the stream has ended (see `VoteStream`).

        Raises:
            StopRequestedError: a signal said to stop.
            VoteError: the file was replaced, cut short or removed.
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

    def _look(self, count: int) -> _Now:
        """Read what is missing to `count` votes and some more; when they are not there yet, only after a pause."""
        processes = _group()
        if processes is None:  # alone, or each process for itself until they know each other: exactly what was asked
            return self._look_here(count, count + (0 if _has_company() else _AHEAD))
        box = [self._look_here(count, count + _AHEAD) if processes.get_rank() == 0 else _Now(0, False, False)]
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
        until = time.monotonic() + _PATIENCE
        while len(self) < there:
            if not self._read(there) and time.monotonic() > until:
                raise VoteError(
                    f"{self.name}: process 0 has read {there:,} votes and another one sees {len(self):,}; "
                    "the file must be on a disk that all nodes share"
                )
            time.sleep(0.0 if len(self) == there else 0.05)

    def _read(self, most: int) -> bool:
        """Take in votes until `most` are there or no more have come; whether any came."""
        if _rank() == 0:
            self._gather()
        before = there = len(self)
        for line in self._file.lines():
            there += self._take(line, there)
            if there >= most:
                break
        self._votes.finish()
        self.held.finish()
        if there > before:
            self._news = time.monotonic()
        return there > before

    def _take(self, line: Line, there: int) -> bool:
        """Take in one line, `there` votes being known; whether it is a vote to train on."""
        if not line.text.strip():
            return False
        try:
            vote = parse_line(line.text)
        except VoteError as error:
            self._leave_out(line, error)
            return False
        held = is_held_out(vote.prompt, self.held_share)
        (self.held if held else self._votes).append(vote, line.at, len(line.text), there)
        return not held

    def _leave_out(self, line: Line, error: VoteError) -> None:
        self.bad_lines += 1
        if self.bad_lines == 1 and _rank() == 0:
            self._waiting.tell(
                f"warning: {self._file.path}: line {line.number}: {error}; lines that are no votes are left out and "
                "counted, `p2l votes check` lists them"
            )

    def _tell(self, count: int) -> None:
        """Say now and then what the run waits for."""
        now = time.monotonic()
        if _rank() == 0 and now - self._told >= _TOLD_EVERY:
            self._told = now
            bad = f", {self.bad_lines:,} lines left out" if self.bad_lines else ""
            self._waiting.tell(f"{self.name}: {len(self):,} votes{bad}; waiting for {count - len(self):,} more")

    def prompts(self, ids: Ids = None) -> list[list[str]]:
        """The user's turns of each vote, from the file."""
        return self._votes.prompts(ids)

    def labels(self, ids: Ids = None) -> NDArray[np.int32]:
        """(n, 3) `[winner, loser, tie]`."""
        return self._votes.labels(ids)

    def pairs(self, ids: Ids = None) -> NDArray[np.int32]:
        """(n, 2) positions of model_a and model_b."""
        return self._votes.pairs(ids)

    def weights(self, ids: Ids = None) -> NDArray[np.float64]:
        """(n,) weights; 1 where a line has none."""
        return self._votes.weights(ids)

    def tstamps(self, ids: Ids = None) -> NDArray[np.float64]:
        """(n,) seconds, NaN where a line has none."""
        return self._votes.tstamps(ids)


def _rank() -> int:
    return int(os.environ.get("RANK", "0"))


def _has_company() -> bool:
    return int(os.environ.get("WORLD_SIZE", "1")) > 1


def _group() -> Any:
    """The processes of this run, once they know each other; None for one alone."""
    if not _has_company():
        return None
    import torch.distributed as processes

    return processes if processes.is_initialized() else None
