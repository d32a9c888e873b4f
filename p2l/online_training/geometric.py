"""Geometric buffer: votes between familiar models are spread over a long horizon, votes on new models are used at once.

A vote whose less familiar model had n votes before it has p = max(epsilon, gamma^n). It draws k ~ Geometric(p) on
{1, 2, ...} and goes into the first batch with room at or after current + k - 1; the current batch is the first that is
not yet full, and leaves when it is, in the order of arrival. Both models' counts grow as the vote arrives, wherever it
goes. Vote i uses the i-th number of the seeded generator, so the order does not depend on how the stream is cut.

Cost: O(N) with path compression over full batches, about 0.7 us a vote; memory for what waits alone (24 bytes a vote,
and some hundred bytes for every batch that has votes).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from p2l.errors import ConfigError
from p2l.online_training.buffer import Batches, NewVotes, State
from p2l.online_training.buffer_state import check_state
from p2l.online_training.waiting import RECORD, ClockedBuffer, Records, StreamClock, records_of_state, state_of_records

__all__ = ["GeometricBuffer", "least_counts"]

_CHUNK = 1 << 16  # votes whose draws are in memory at once
_FARTHEST = 2.0**53  # batches ahead, more than any stream has


class GeometricBuffer(ClockedBuffer):
    """See the module; `initial_counts` are votes that each model had before this stream."""

    def __init__(
        self,
        batch_size: int,
        *,
        gamma: float,
        epsilon: float,
        seed: int,
        initial_counts: Mapping[int, int] | None = None,
        drop_tail: bool = False,
    ) -> None:
        for name, value in (("gamma", gamma), ("epsilon", epsilon)):
            if not 0 < value <= 1:
                raise ConfigError(f"{name}: must be above 0 and at most 1, got {value}")
        self.batch_size = self.full_size = batch_size
        self._gamma, self._epsilon, self._seed, self._drop_tail = gamma, epsilon, seed, drop_tail
        self._clock = StreamClock(batch_size)
        self._random = _generator(seed, 0)
        self._counts = np.zeros(64, dtype=np.int64)
        for model, count in (initial_counts or {}).items():
            self._counts = _with_room(self._counts, model)
            self._counts[model] = count
        self._current = 0
        self._slots: defaultdict[int, bytearray] = defaultdict(bytearray)
        """Batch: the records of its votes so far."""
        self._later: dict[int, int] = {}
        """Full batch after the current one: a later batch, on the way to the first with room."""

    def add(self, votes: NewVotes) -> Batches:
        """See `Buffer.add`."""
        done: Batches = []
        for start in range(0, len(votes), _CHUNK):
            done += self._add(votes[start : start + _CHUNK])
        return done

    def _add(self, votes: NewVotes) -> Batches:
        records = self._clock.arrive(votes)
        full, completing = self._place(self._steps(votes), records)
        return self._clock.leave([np.frombuffer(slot, dtype=RECORD) for slot in full], records[completing])

    def _steps(self, votes: NewVotes) -> list[int]:
        """How many batches ahead of the current one each vote asks for: k - 1."""
        newest = max(int(votes.model_a.max()), int(votes.model_b.max()))
        self._counts = _with_room(self._counts, newest)
        counts = least_counts(votes.model_a, votes.model_b, self._counts)
        chance = np.maximum(self._epsilon, np.power(self._gamma, counts.astype(np.float64)))
        with np.errstate(divide="ignore", over="ignore"):  # a chance of 1 has the logarithm -inf, and no step
            ahead = np.log1p(-self._random.random(len(votes))) / np.log1p(-chance)
        steps: list[int] = np.minimum(ahead, _FARTHEST).astype(np.int64).tolist()
        return steps

    def _place(self, steps: list[int], records: Records) -> tuple[list[bytearray], list[int]]:
        """Put each vote into its batch; returns the full batches in order, and which vote completed each."""
        slots, later, current = self._slots, self._later, self._current
        full_length = self.batch_size * RECORD.itemsize
        full: list[bytearray] = []
        completing: list[int] = []
        rows = records.view(f"V{RECORD.itemsize}").tolist()
        for position, (step, row) in enumerate(zip(steps, rows, strict=True)):
            batch = current + step
            if batch in later:
                batch = _first_with_room(later, batch)
            slot = slots[batch]
            slot += row
            if len(slot) < full_length:
                continue
            later[batch] = batch + 1
            while later.pop(current, None) is not None:
                full.append(slots.pop(current))
                completing.append(position)
                current += 1
        self._current = current
        return full, completing

    def drain(self) -> Batches:
        """What waits, by the batch it waits for and then by arrival."""
        rest = self._held()[1]
        self._slots.clear()
        self._later.clear()
        return self._clock.finish(rest, drop=self._drop_tail)

    def _held(self) -> tuple[NDArray[np.int64], Records]:
        """The batch of each waiting vote, ascending, and the votes."""
        batches = sorted(self._slots)
        parts = [np.frombuffer(bytes(self._slots[batch]), dtype=RECORD) for batch in batches]
        sizes = [len(part) for part in parts]
        return np.repeat(np.array(batches, dtype=np.int64), sizes), np.concatenate([np.empty(0, dtype=RECORD), *parts])

    def _parameters(self) -> dict[str, str | int | float]:
        return {
            "type": "geometric",
            "batch_size": self.batch_size,
            "gamma": self._gamma,
            "epsilon": self._epsilon,
            "seed": self._seed,
            "drop_tail": int(self._drop_tail),
        }

    def state_dict(self) -> dict[str, Any]:
        """See `Buffer.state_dict`."""
        batches, records = self._held()
        return {
            **self._parameters(),
            **self._clock.state_dict(),
            "current": self._current,
            "counts": self._counts.copy(),
            "waiting.batch": batches,
            **state_of_records(records),
        }

    def load_state_dict(self, state: State) -> None:
        """See `Buffer.load_state_dict`."""
        check_state(state, self._parameters())
        self._clock.load_state_dict(state)
        self._random = _generator(self._seed, self._clock.arrived)
        self._current = int(state["current"])
        self._counts = np.array(state["counts"], dtype=np.int64)
        records = records_of_state(state)
        batches, firsts = np.unique(np.asarray(state["waiting.batch"]), return_index=True)
        parts = np.split(records, firsts[1:])
        self._slots = defaultdict(bytearray)
        self._slots.update(
            (batch, bytearray(part.tobytes())) for batch, part in zip(batches.tolist(), parts, strict=False)
        )
        self._later = {
            batch: batch + 1 for batch, slot in self._slots.items() if len(slot) == self.batch_size * RECORD.itemsize
        }


def least_counts(
    model_a: NDArray[np.int32], model_b: NDArray[np.int32], counts: NDArray[np.int64]
) -> NDArray[np.int64]:
    """(n,) votes that the less familiar model of each vote had before it; `counts` by model are brought up to date."""
    models = np.stack([model_a, model_b], axis=1).ravel()
    narrow = models.astype(np.uint16) if len(counts) <= 1 << 16 else models  # sorted by radix, ten times as fast
    order = np.argsort(narrow, kind="stable")
    in_order = models[order]
    firsts = np.flatnonzero(np.diff(in_order, prepend=-1))
    sizes = np.diff(np.append(firsts, len(models)))
    seen = np.empty(len(models), dtype=np.int64)
    seen[order] = np.arange(len(models)) + np.repeat(counts[in_order[firsts]] - firsts, sizes)
    counts[in_order[firsts]] += sizes
    least: NDArray[np.int64] = seen.reshape(-1, 2).min(axis=1)
    return least


def _first_with_room(later: dict[int, int], batch: int) -> int:
    """The first batch from `batch` on that is not full; every batch on the way then points to it."""
    found = later[batch]
    while found in later:
        found = later[found]
    while (following := later.get(batch)) is not None:
        later[batch] = found
        batch = following
    return found


def _with_room(counts: NDArray[np.int64], model: int) -> NDArray[np.int64]:
    """The counts with a place for `model`; places double, so that growing costs O(1) a model."""
    if model < len(counts):
        return counts
    return np.concatenate([counts, np.zeros(max(len(counts), model + 1 - len(counts)), dtype=np.int64)])


def _generator(seed: int, skip: int) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64(seed).advance(skip))
