"""Replay buffer: every batch of new votes takes some past ones along, each past vote once at most.

After `min_batches` batches of new votes alone, a batch is `batch_size` new votes, in the order in which they come, and
behind them round(batch_size epsilon / (1 - epsilon)) drawn uniformly without replacement from the pool: votes given out
in earlier batches and not replayed yet. Where the pool holds fewer, the batch takes what there is. So epsilon = 0.2
costs 25 % more compute. With `full_size` a batch has that many votes in all, and as many fewer new ones.

`limit` bounds the pool. A full pool is a uniform sample of all past votes that were not replayed, as long as its share
of each new batch is more than replay takes out. When it is less (a limit below about epsilon / (1 - epsilon) of the
stream so far), new votes fill the places, chosen uniformly from their batch, and the sample leans towards the newer.
Without a limit the pool takes 8 bytes a vote.

The new votes come from an inner buffer, which may itself reorder them. The drain gives the last, smaller batch no past.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
from numpy.typing import NDArray

from p2l.errors import ConfigError
from p2l.online_training.buffer import Batches, Buffer, NewVotes, State
from p2l.online_training.buffer_state import check_state, with_prefix, without_prefix
from p2l.online_training.lag import Lag

__all__ = ["ReplayBuffer", "new_votes"]

Ids = NDArray[np.int64]
_MOST_PAST = 9 * 10**8  # NumPy draws no hypergeometric numbers beyond


class ReplayBuffer:
    """See the module; `inner` gives the new votes, its batch size is that of the new votes of a batch."""

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
        if not 0 < epsilon < 1:
            raise ConfigError(f"epsilon: must be above 0 and below 1 in a replay buffer, got {epsilon}")
        self.batch_size = inner.batch_size
        replayed = round(self.batch_size * epsilon / (1 - epsilon))
        self.full_size = full_size or self.batch_size + replayed
        self._replayed = self.full_size - self.batch_size
        if not self._replayed:
            raise ConfigError(f"epsilon: {epsilon:g} of a batch of {self.batch_size} is no vote; give more")
        self._inner, self._keep_size, self._drop_tail = inner, full_size is not None, drop_tail
        self._parameters: dict[str, str | int | float] = {
            "type": "replay",
            "batch_size": self.batch_size,
            "full_size": self.full_size,
            "epsilon": epsilon,
            "seed": seed,
            "limit": limit or 0,
            "min_batches": min_batches,
            "drop_tail": int(drop_tail),
        }
        self._min_batches = min_batches
        self._pool = _Pool(limit, np.random.Generator(np.random.PCG64(np.random.SeedSequence(seed, spawn_key=(1,)))))
        self._held: Ids = np.empty(0, dtype=np.int64)
        self._given = self._lost = 0

    def add(self, votes: NewVotes) -> Batches:
        """See `Buffer.add`."""
        return self._whole(self._inner.add(votes))

    def _whole(self, batches: Batches) -> Batches:
        """Put the inner buffer's votes into batches, as far as they fill them."""
        done: Batches = []
        for batch in batches:
            held = np.concatenate([self._held, batch]) if len(self._held) else batch
            while len(held) >= self._wanted:
                wanted = self._wanted
                done.append(self._with_past(held[:wanted]))
                held = held[wanted:]
            self._held = held
        return done

    @property
    def _wanted(self) -> int:
        """New votes of the next batch."""
        return self.full_size if self._keep_size and self._given < self._min_batches else self.batch_size

    def _with_past(self, new: Ids) -> Ids:
        past = self._pool.draw(self._replayed if self._given >= self._min_batches else 0)
        self._pool.put(new)
        self._given += 1
        return np.concatenate([new, past])

    def drain(self) -> Batches:
        """What waits, in the inner buffer's order; full batches with past votes, a last smaller one without."""
        done = self._whole(self._inner.drain())
        rest, self._held = self._held, self._held[:0]
        if self._drop_tail:
            self._lost += len(rest)
        elif len(rest):
            self._given += 1
            done.append(rest)
        return done

    @property
    def waiting(self) -> int:
        """See `Buffer.waiting`."""
        return self._inner.waiting + len(self._held)

    @property
    def dropped(self) -> int:
        """See `Buffer.dropped`."""
        return self._inner.dropped + self._lost

    @property
    def lag(self) -> Lag:
        """That of the inner buffer: replay lets no vote wait."""
        return self._inner.lag

    def state_dict(self) -> dict[str, Any]:
        """See `Buffer.state_dict`."""
        return {
            **self._parameters,
            "given": self._given,
            "lost": self._lost,
            "held": self._held.copy(),
            **self._pool.state_dict(),
            **with_prefix("on.", self._inner.state_dict()),
        }

    def load_state_dict(self, state: State) -> None:
        """See `Buffer.load_state_dict`."""
        check_state(state, self._parameters)
        self._inner.load_state_dict(without_prefix("on.", state))
        self._pool.load_state_dict(state)
        self._given, self._lost = int(state["given"]), int(state["lost"])
        self._held = np.array(state["held"], dtype=np.int64)


class _Pool:
    """Past votes that were not replayed, or a sample of them; draws take them out in O(votes drawn)."""

    def __init__(self, limit: int | None, random: np.random.Generator) -> None:
        self._limit, self._random = limit, random
        self._ids: Ids = np.empty(min(limit or 4096, 4096), dtype=np.int64)
        self._size = 0
        self._past = 0
        """Votes given out and not replayed, in the pool or not."""

    def draw(self, count: int) -> Ids:
        """Take `count` votes out at random, or all when there are fewer."""
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
        """Take in votes that were given out; which, and in whose place, see the module."""
        free = len(new) if self._limit is None else self._limit - self._size
        if len(new) > free:
            share = self._random.hypergeometric(len(new), min(self._past, _MOST_PAST), self._size + free)
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
        """The pool and its random numbers."""
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


def new_votes(full_size: int, epsilon: float) -> int:
    """New votes of a batch of `full_size` votes of which a share of `epsilon` is replayed."""
    return max(1, round(full_size * (1 - epsilon)))
