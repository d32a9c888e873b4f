"""The buffers by name, and the settings that make one: `make_buffer(BufferSettings(type="geometric"), 512, seed=42)`.

A further type registers a function that makes it, and names the settings that it reads:

    @register("name", keys={"epsilon"})
    def _make_name(inputs: BufferInputs) -> Buffer: ...
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from p2l.common.cli import nearest
from p2l.common.config import Number, Whole
from p2l.common.errors import ConfigError
from p2l.online_training.buffer import (
    RECORD,
    Batches,
    Buffer,
    Ids,
    NewVotes,
    Records,
    State,
    StreamClock,
    with_prefix,
    without_prefix,
)


class StraightBuffer(Buffer):
    """Holds nothing back: every `batch_size` votes are a batch, the tail is a last smaller one."""

    def __init__(self, batch_size: int, *, drop_tail: bool = False) -> None:
        self.batch_size = self.full_size = batch_size
        self._parameters = {"type": "none", "batch_size": batch_size, "drop_tail": int(drop_tail)}
        self._clock = StreamClock(batch_size, drop_tail=drop_tail)
        self._held = np.empty(0, dtype=RECORD)

    def add(self, votes: NewVotes) -> Batches:
        """See `Buffer.add`."""
        held = np.concatenate([self._held, self._clock.arrive(votes)])
        whole = len(held) - len(held) % self.batch_size
        self._held = held[whole:].copy()
        starts = range(0, whole, self.batch_size)
        return self._clock.leave(
            [held[start : start + self.batch_size] for start in starts],
            held[self.batch_size - 1 : whole : self.batch_size],
        )

    def drain(self) -> Batches:
        """See `Buffer.drain`."""
        rest, self._held = self._held, self._held[:0]
        return self._clock.finish(rest)

    def _state(self) -> dict[str, Any]:
        return self._clock.state_dict(self._held)

    def _load(self, state: State) -> None:
        self._held = self._clock.load_state_dict(state)


_VOTES_DRAWN_TOGETHER = 1 << 16  # votes whose draws are in memory at once
_FARTHEST_BATCH = 2.0**53  # batches ahead, more than any stream has


class GeometricBuffer(Buffer):
    """Spreads votes between familiar models over a long horizon, and uses votes on new models at once.

    A vote whose less familiar model had n votes before it has p = max(epsilon, gamma^n). It draws k ~ Geometric(p) on
    {1, 2, ...} and goes into the first batch with room at or after current + k - 1; the current batch is the first that
    is not yet full, and leaves when it is, in the order of arrival. Both models' counts grow as the vote arrives,
    wherever it goes. Vote i uses the i-th number of the seeded generator, so the order does not depend on how the
    stream is cut.

    Cost: O(N) with path compression over full batches, about 0.7 us a vote; memory for what waits alone (24 bytes a
    vote, and some hundred bytes for every batch that has votes).
    """

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
        """Start empty; `initial_counts` are votes that each model had before this stream."""
        for name, value in (("gamma", gamma), ("epsilon", epsilon)):
            if not 0 < value <= 1:
                raise ConfigError(f"{name}: must be above 0 and at most 1, got {value}")
        self.batch_size = self.full_size = batch_size
        self._gamma = gamma
        self._epsilon = epsilon
        self._seed = seed
        self._parameters = {
            "type": "geometric",
            "batch_size": batch_size,
            "gamma": gamma,
            "epsilon": epsilon,
            "seed": seed,
            "drop_tail": int(drop_tail),
        }
        self._clock = StreamClock(batch_size, drop_tail=drop_tail)
        self._random = _generator(seed)
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
        batches: Batches = []
        for start in range(0, len(votes), _VOTES_DRAWN_TOGETHER):
            chunk = votes[start : start + _VOTES_DRAWN_TOGETHER]
            records = self._clock.arrive(chunk)
            newest = max(int(chunk.model_a.max()), int(chunk.model_b.max()))
            self._counts = _with_room(self._counts, newest)
            counts = least_counts(chunk.model_a, chunk.model_b, self._counts)
            chance = np.maximum(self._epsilon, np.power(self._gamma, counts.astype(np.float64)))
            # How many batches ahead of the current one each vote goes: k - 1, by the inverse of k's distribution.
            with np.errstate(divide="ignore", over="ignore"):  # a chance of 1 has the logarithm -inf, and no step
                ahead = np.log1p(-self._random.random(len(chunk))) / np.log1p(-chance)
            steps: list[int] = np.minimum(ahead, _FARTHEST_BATCH).astype(np.int64).tolist()
            full, completing = self._place(steps, records)
            batches += self._clock.leave([np.frombuffer(slot, dtype=RECORD) for slot in full], records[completing])
        return batches

    def _place(self, steps: list[int], records: Records) -> tuple[list[bytearray], list[int]]:
        """Put each vote into its batch; return the full batches in order, and which vote completed each."""
        slots, later, current = self._slots, self._later, self._current
        full_length = self.batch_size * RECORD.itemsize
        full: list[bytearray] = []
        completing: list[int] = []
        rows = records.view(f"V{RECORD.itemsize}").tolist()  # bytes: a slot grows by 24 of them a vote
        for position, (step, row) in enumerate(zip(steps, rows, strict=True)):
            batch = current + step
            if batch in later:
                room = later[batch]
                while room in later:
                    room = later[room]
                # Every full batch on the way points there from now on: path compression, or the walk is O(N^2).
                while (following := later.get(batch)) is not None:
                    later[batch] = room
                    batch = following
            slot = slots[batch]
            slot += row
            if len(slot) < full_length:
                continue
            later[batch] = batch + 1
            # A batch leaves when all before it have left, so several may leave at once.
            while later.pop(current, None) is not None:
                full.append(slots.pop(current))
                completing.append(position)
                current += 1
        self._current = current
        return full, completing

    def drain(self) -> Batches:
        """Return what waits, by the batch it waits for and then by arrival."""
        rest = self._held()[1]
        self._slots.clear()
        self._later.clear()
        return self._clock.finish(rest)

    def _held(self) -> tuple[Ids, Records]:
        """Return the batch of each waiting vote, ascending, and the votes."""
        batches = sorted(self._slots)
        slots = [np.frombuffer(bytes(self._slots[batch]), dtype=RECORD) for batch in batches]
        numbers = np.repeat(np.array(batches, dtype=np.int64), [len(slot) for slot in slots])
        return numbers, np.concatenate([np.empty(0, dtype=RECORD), *slots])

    def _state(self) -> dict[str, Any]:
        batches, records = self._held()
        return {
            **self._clock.state_dict(records),
            "current": self._current,
            "counts": self._counts.copy(),
            "waiting.batch": batches,
        }

    def _load(self, state: State) -> None:
        waiting = self._clock.load_state_dict(state)
        self._random = _generator(self._seed, self._clock.arrived)
        self._current = int(state["current"])
        self._counts = np.array(state["counts"], dtype=np.int64)
        self._slots.clear()
        rows = waiting.view(f"V{RECORD.itemsize}").tolist()
        for batch, row in zip(np.asarray(state["waiting.batch"]).tolist(), rows, strict=True):
            self._slots[batch] += row
        full_length = self.batch_size * RECORD.itemsize
        self._later = {batch: batch + 1 for batch, slot in self._slots.items() if len(slot) == full_length}


def least_counts(model_a: NDArray[np.int32], model_b: NDArray[np.int32], counts: Ids) -> Ids:
    """Return the votes (n,) that the less familiar model of each vote had before it, and bring `counts` up to date."""
    models = np.stack([model_a, model_b], axis=1).ravel()
    narrow = models.astype(np.uint16) if len(counts) <= 1 << 16 else models  # sorted by radix, ten times as fast
    order = np.argsort(narrow, kind="stable")
    in_order = models[order]
    firsts = np.flatnonzero(np.diff(in_order, prepend=-1))
    sizes = np.diff(np.append(firsts, len(models)))
    seen = np.empty(len(models), dtype=np.int64)
    # A model's votes before this one: those before the call, and its place among its votes of the call.
    seen[order] = np.arange(len(models)) + np.repeat(counts[in_order[firsts]] - firsts, sizes)
    counts[in_order[firsts]] += sizes
    least: Ids = seen.reshape(-1, 2).min(axis=1)
    return least


def _with_room(counts: Ids, model: int) -> Ids:
    """Return the counts with a place for `model`; places double, so that growing costs O(1) a model."""
    if model < len(counts):
        return counts
    return np.concatenate([counts, np.zeros(max(len(counts), model + 1 - len(counts)), dtype=np.int64)])


def _generator(seed: int, skip: int = 0) -> np.random.Generator:
    # PCG64 by name: `default_rng` may be another one in a later NumPy, and a saved buffer would draw another order.
    return np.random.Generator(np.random.PCG64(seed).advance(skip))


_LARGEST_HYPERGEOMETRIC = 9 * 10**8  # NumPy draws no hypergeometric numbers beyond


class ReplayBuffer(Buffer):
    """Takes past votes along with every batch of new ones, each past vote once at most.

    After `min_batches` batches of new votes alone, a batch is `batch_size` new votes, in the order in which they come,
    and behind them round(batch_size epsilon / (1 - epsilon)) drawn uniformly without replacement from the pool: votes
    of earlier batches that were not replayed yet. Where the pool holds fewer, the batch takes what there is. So
    epsilon = 0.2 costs 25 % more compute. With `full_size` a batch has that many votes in all, and as many fewer new
    ones.

    `limit` bounds the pool. A full pool is a uniform sample of all past votes that were not replayed, as long as its
    share of each new batch is more than replay takes out. When it is less (a limit below about epsilon / (1 - epsilon)
    of the stream so far), new votes fill the places, chosen uniformly from their batch, and the sample leans towards
    the newer. Without a limit the pool takes 8 bytes a vote.

    The new votes come from an inner buffer, which may itself reorder them. The drain adds no past votes to the last,
    smaller batch.
    """

    def __init__(
        self,
        inner: Buffer,
        *,
        epsilon: float,
        seed: int,
        limit: int | None = None,
        min_batches: int = 5,
        full_size: int | None = None,
        drop_tail: bool = False,
    ) -> None:
        """Start empty; the batch size of `inner` is that of the new votes of a batch."""
        if not 0 < epsilon < 1:
            raise ConfigError(f"epsilon: must be above 0 and below 1 in a replay buffer, got {epsilon}")
        self.batch_size = inner.batch_size
        self.full_size = full_size or self.batch_size + round(self.batch_size * epsilon / (1 - epsilon))
        self._replayed = self.full_size - self.batch_size
        if not self._replayed:
            raise ConfigError(f"epsilon: {epsilon:g} of a batch of {self.batch_size} is not a vote; give more")
        self._inner = inner
        self._clock = inner._clock  # replay lets no vote wait: the lag is that of the inner buffer
        self._keep_size = full_size is not None
        self._min_batches = min_batches
        self._drop_tail = drop_tail
        self._parameters = {
            "type": "replay",
            "batch_size": self.batch_size,
            "full_size": self.full_size,
            "epsilon": epsilon,
            "seed": seed,
            "limit": limit or 0,  # `np.savez` without pickle has no None
            "min_batches": min_batches,
            "drop_tail": int(drop_tail),
        }
        self._pool = _Pool(limit, np.random.Generator(np.random.PCG64(np.random.SeedSequence(seed, spawn_key=(1,)))))
        self._held: Ids = np.empty(0, dtype=np.int64)
        self._batches = 0
        self._lost = 0

    def add(self, votes: NewVotes) -> Batches:
        """See `Buffer.add`."""
        return self._fill(self._inner.add(votes))

    def remember(self, ids: Ids) -> None:
        """Put past votes into the pool, so that the first batch can already draw from it."""
        self._pool.put(ids)
        self._min_batches = 0

    def _fill(self, batches: Batches) -> Batches:
        """Make batches of the inner buffer's votes, as far as they fill them."""
        filled: Batches = []
        for batch in batches:
            held = np.concatenate([self._held, batch]) if len(self._held) else batch
            while True:
                is_replaying = self._batches >= self._min_batches
                size = self.batch_size if is_replaying or not self._keep_size else self.full_size
                if len(held) < size:
                    break
                new, held = held[:size], held[size:]
                past = self._pool.draw(self._replayed if is_replaying else 0)
                self._pool.put(new)
                self._batches += 1
                filled.append(np.concatenate([new, past]))
            self._held = held
        return filled

    def drain(self) -> Batches:
        """Return what waits, in the inner buffer's order; full batches with past votes, a last smaller one without."""
        batches = self._fill(self._inner.drain())
        rest, self._held = self._held, self._held[:0]
        if self._drop_tail:
            self._lost += len(rest)
        elif len(rest):
            self._batches += 1
            batches.append(rest)
        return batches

    @property
    def waiting(self) -> int:
        """See `Buffer.waiting`."""
        return self._inner.waiting + len(self._held)

    @property
    def dropped(self) -> int:
        """See `Buffer.dropped`."""
        return self._inner.dropped + self._lost

    def _state(self) -> dict[str, Any]:
        return {
            "given": self._batches,
            "lost": self._lost,
            "held": self._held.copy(),
            **self._pool.state_dict(),
            **with_prefix("on.", self._inner.state_dict()),
        }

    def _load(self, state: State) -> None:
        self._inner.load_state_dict(without_prefix("on.", state))
        self._pool.load_state_dict(state)
        self._batches = int(state["given"])
        self._lost = int(state["lost"])
        self._held = np.array(state["held"], dtype=np.int64)


class _Pool:
    """Past votes that were not replayed, or a sample of them; a draw removes votes in O(votes drawn)."""

    def __init__(self, limit: int | None, random: np.random.Generator) -> None:
        self._limit, self._random = limit, random
        self._ids: Ids = np.empty(min(limit or 4096, 4096), dtype=np.int64)
        self._size = 0
        self._past = 0
        """Votes of earlier batches that were not replayed, in the pool or not."""

    def draw(self, count: int) -> Ids:
        """Remove `count` votes at random, or all when there are fewer, and return them."""
        count = min(count, self._size)
        places = self._random.choice(self._size, count, replace=False) if count else np.empty(0, dtype=np.int64)
        drawn = self._ids[places]
        # The pool's last votes, less those drawn, move to where the others were drawn.
        self._size -= count
        tail = np.ones(count, dtype=bool)
        tail[places[places >= self._size] - self._size] = False
        self._ids[places[places < self._size]] = self._ids[self._size : self._size + count][tail]
        self._past -= count
        return drawn

    def put(self, new: Ids) -> None:
        """Add the new votes of a batch; a full pool takes a sample of them, see `ReplayBuffer`."""
        free = len(new) if self._limit is None else self._limit - self._size
        if len(new) > free:
            # As many of the batch as a uniform sample of all past votes would hold, the new ones among them.
            share = self._random.hypergeometric(len(new), min(self._past, _LARGEST_HYPERGEOMETRIC), self._size + free)
            entering = min(max(int(share), free), len(new))
            chosen = self._random.choice(new, entering, replace=False)
            self._ids[self._random.choice(self._size, entering - free, replace=False)] = chosen[free:]
            self._append(chosen[:free])
        else:
            self._append(new)
        self._past += len(new)

    def _append(self, new: Ids) -> None:
        end = self._size + len(new)
        if end > len(self._ids):
            # In place, an eighth more: doubling a copy would take three times what a large pool does.
            self._ids.resize(end + end // 8, refcheck=False)
        self._ids[self._size : end] = new
        self._size = end

    def state_dict(self) -> dict[str, Any]:
        """Return the pool and the state of its random generator."""
        return {
            "pool": self._ids[: self._size].copy(),
            "past": self._past,
            "random": json.dumps(self._random.bit_generator.state),
        }

    def load_state_dict(self, state: State) -> None:
        """Continue from a saved state."""
        self._size = 0
        self._append(np.asarray(state["pool"], dtype=np.int64))
        self._past = int(state["past"])
        self._random.bit_generator.state = json.loads(str(state["random"]))


@dataclass(frozen=True)
class BufferInputs:
    """Everything that decides how a buffer is made."""

    settings: BufferSettings
    batch_size: int
    seed: int
    initial_counts: Mapping[int, int]


Make: TypeAlias = Callable[[BufferInputs], Buffer]
BUFFERS: dict[str, tuple[Make, frozenset[str]]] = {}
"""Type: (function that makes it, settings that it reads)."""


def register(name: str, *, keys: set[str]) -> Callable[[Make], Make]:
    """Return a decorator that adds a function that makes a buffer to `BUFFERS`."""

    def put(make: Make) -> Make:
        BUFFERS[name] = (make, frozenset(keys))
        return make

    return put


class BufferSettings(BaseModel):
    """The key `buffer` of an online training configuration."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    type: str = "none"
    """none, replay, geometric, or another registered name."""
    gamma: Number = Field(default=0.995, gt=0, le=1)
    """Geometric: a vote whose less familiar model has n votes so far has p = max(epsilon, gamma^n)."""
    epsilon: Number | None = Field(default=None, gt=0, le=1)
    """Geometric: least p, default 0.001. Replay: share of replayed votes in a batch, below 1, default 0.2."""
    limit: Whole | None = Field(default=None, ge=1)
    """Replay: most votes that stand ready to be replayed; the default is all."""
    min_batches: Whole = Field(default=5, ge=0)
    """Replay: batches of new votes alone before the first replay."""
    keep_size: bool = False
    """Replay: a batch has batch_size votes in all, rather than batch_size new ones and the replayed on top."""
    drop_tail: bool = False
    """Give up what waits at the end of the stream, rather than train on it."""
    on: BufferSettings | None = None
    """Replay: the buffer whose batches it takes as new votes, geometric say."""

    @classmethod
    def of_experience_replay(cls, limit: int, ratio: float, min_iter: int) -> BufferSettings:
        """Return the settings of the older key `experience_replay`; `ratio` in (0, 1] is the share of new votes."""
        if ratio == 1:
            return cls()
        return cls(type="replay", limit=limit, epsilon=1 - ratio, min_batches=min_iter, keep_size=True)

    @field_validator("type")
    @classmethod
    def _known_type(cls, value: str) -> str:
        if value not in BUFFERS:
            raise ValueError(f"must be one of {', '.join(BUFFERS)}{nearest(value, BUFFERS)}")
        return value

    @model_validator(mode="after")
    def _only_keys_of_type(self) -> BufferSettings:
        foreign = sorted(self.model_fields_set - BUFFERS[self.type][1] - {"type"})
        if foreign:
            raise ValueError(f"{foreign[0]}: a buffer of type {self.type!r} does not read it; remove it")
        if self.type == "replay" and self.epsilon == 1:
            raise ValueError("epsilon: a share of 1 would leave no room for new votes; give less than 1")
        return self


def make_buffer(
    settings: BufferSettings, batch_size: int, seed: int, initial_counts: Mapping[int, int] | None = None
) -> Buffer:
    """Return the buffer that the settings describe; `seed` decides everything that is drawn.

    `batch_size` is the new votes of a batch, with `keep_size` all of them; `initial_counts` how many votes each model
    (by its position in the model list) had before this stream.
    """
    make, _ = BUFFERS[settings.type]
    return make(BufferInputs(settings, batch_size, seed, initial_counts or {}))


@register("none", keys={"drop_tail"})
def _make_none(inputs: BufferInputs) -> Buffer:
    return StraightBuffer(inputs.batch_size, drop_tail=inputs.settings.drop_tail)


@register("geometric", keys={"gamma", "epsilon", "drop_tail"})
def _make_geometric(inputs: BufferInputs) -> Buffer:
    settings = inputs.settings
    return GeometricBuffer(
        inputs.batch_size,
        gamma=settings.gamma,
        epsilon=0.001 if settings.epsilon is None else settings.epsilon,
        seed=inputs.seed,
        initial_counts=inputs.initial_counts,
        drop_tail=settings.drop_tail,
    )


@register("replay", keys={"epsilon", "limit", "min_batches", "keep_size", "drop_tail", "on"})
def _make_replay(inputs: BufferInputs) -> Buffer:
    settings = inputs.settings
    epsilon = 0.2 if settings.epsilon is None else settings.epsilon
    size = max(1, round(inputs.batch_size * (1 - epsilon))) if settings.keep_size else inputs.batch_size
    inner = settings.on or BufferSettings()
    if settings.drop_tail:
        inner = inner.model_copy(update={"drop_tail": True})
    return ReplayBuffer(
        make_buffer(inner, size, inputs.seed, inputs.initial_counts),
        epsilon=epsilon,
        full_size=inputs.batch_size if settings.keep_size else None,
        limit=settings.limit,
        min_batches=settings.min_batches,
        seed=inputs.seed,
        drop_tail=settings.drop_tail,
    )
