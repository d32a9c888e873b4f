"""Votes of a growing file by number: a fixed record of each, and its prompt read again from its line.

A record takes 45 bytes in a temporary file without a name, so memory does not grow with the votes.

Shapes: n votes asked for.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from p2l.errors import VoteError
from p2l.online_training.growing_file import GrowingFile
from p2l.online_training.live_lines import LineVote, turns_of
from p2l.votes.spool import RecordFile

__all__ = ["LineVotes"]

Ids = Sequence[int] | NDArray[np.int64] | None
_AT_ONCE = 10_000  # votes in memory before they go to disk
_RECORD = np.dtype(
    [
        *(("at", "<i8"), ("size", "<i4"), ("a", "<i4"), ("b", "<i4"), ("winner", "i1")),
        *(("weight", "<f8"), ("tstamp", "<f8"), ("place", "<i8")),
    ]
)


class LineVotes:
    """Votes that are appended and read by number, 0 to len - 1; models are numbered as they first appear."""

    def __init__(self, file: GrowingFile, model_list: Sequence[str] = ()) -> None:
        """No votes yet; the models of `model_list` come first."""
        self._file = file
        self._codes = {name: code for code, name in enumerate(model_list)}
        self._spool = RecordFile(_RECORD)
        self._record = self._spool.mapped()
        self._new: list[tuple[Any, ...]] = []
        self._count = 0

    @property
    def model_list(self) -> list[str]:
        """Names of all models so far."""
        return list(self._codes)

    def __len__(self) -> int:
        return len(self._record)

    def close(self) -> None:
        """Free the space."""
        self._record = np.empty(0, dtype=_RECORD)
        self._spool.close()

    def append(self, vote: LineVote, at: int, size: int, place: int) -> None:
        """Take in a vote whose line is `size` bytes at `at`; it is there after `finish`.

        `place` is a number to find it by (see `up_to`), never falling.
        """
        a, b = (self._codes.setdefault(name, len(self._codes)) for name in (vote.model_a, vote.model_b))
        self._new.append((at, size, a, b, vote.winner, vote.weight, vote.tstamp, place))
        self._count += 1
        if len(self._new) == _AT_ONCE:
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
        """How many votes have a place of at most `place`."""
        return int(np.searchsorted(self._record["place"], place, side="right"))

    def prompts(self, ids: Ids = None) -> list[list[str]]:
        """The user's turns of each vote, from the file.

        Raises:
            VoteError: the file holds something else there now.
        """
        part = self._chosen(ids)
        return [self._prompt(at, size) for at, size in zip(part["at"].tolist(), part["size"].tolist(), strict=True)]

    def _prompt(self, at: int, size: int) -> list[str]:
        try:
            return turns_of(json.loads(self._file.read(at, size)))
        except (ValueError, AttributeError, VoteError) as error:
            raise VoteError(
                f"{self._file.path}: was changed at byte {at} while it was followed; lines may only be added"
            ) from error

    def labels(self, ids: Ids = None) -> NDArray[np.int32]:
        """(n, 3) `[winner, loser, tie]`; tie 1 for a tie, 2 for both bad, then model_a first."""
        part = self._chosen(ids)
        b_won = part["winner"] == 1
        first, second = np.where(b_won, part["b"], part["a"]), np.where(b_won, part["a"], part["b"])
        return np.stack([first, second, np.maximum(part["winner"] - 1, 0)], axis=1).astype(np.int32)

    def pairs(self, ids: Ids = None) -> NDArray[np.int32]:
        """(n, 2) positions of model_a and model_b."""
        part = self._chosen(ids)
        return np.stack([part["a"], part["b"]], axis=1)

    def weights(self, ids: Ids = None) -> NDArray[np.float64]:
        """(n,) weights; 1 where a line has none."""
        return np.ascontiguousarray(self._chosen(ids)["weight"])

    def tstamps(self, ids: Ids = None) -> NDArray[np.float64]:
        """(n,) seconds, NaN where a line has none."""
        return np.ascontiguousarray(self._chosen(ids)["tstamp"])

    def _chosen(self, ids: Ids) -> Any:
        return self._record if ids is None else self._record[np.asarray(ids, dtype=np.int64)]
