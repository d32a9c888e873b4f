"""What the votes of one optimizer step become: prompts that are encoded once, in micro-batches filled by tokens.

A window is a step's votes. Its distinct prompts are dealt to the ranks so that each gets about as much text, tokenised
there, and packed into micro-batches; a vote goes where its prompt is. No vote leaves its step by this, and the sum
that makes up the step's loss only changes its order.

Shapes: N votes of the window, n votes and B prompts of a micro-batch.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from p2l.batching import Batch, collate, plan_batches
from p2l.tokenizer import PromptTokenizer

__all__ = ["MicroBatch", "Votes", "Windows", "deal"]

Ids = NDArray[np.int64]


class Votes(Protocol):
    """What training needs of votes, by their ids (n,): a `VoteStore`, or a stream."""

    def __len__(self) -> int:
        """Votes that are there."""
        ...

    def prompts(self, ids: Ids) -> list[list[str]]:
        """The user's turns of each vote."""
        ...

    def labels(self, ids: Ids) -> NDArray[Any]:
        """(n, 3) int32 `[winner, loser, tie]`."""
        ...

    def weights(self, ids: Ids) -> NDArray[np.float64]:
        """(n,) weights; ones where there are none."""
        ...


@dataclass(frozen=True)
class MicroBatch:
    """Prompts of one forward pass and the votes on them."""

    batch: Batch
    votes: Ids
    """(n,) positions of the votes in their window."""
    prompt: Tensor
    """(n,) which of the B prompts each vote is about."""
    tokens: int


@dataclass(frozen=True)
class Windows:
    """Reads windows of votes for one rank of a run."""

    tokenizer: PromptTokenizer
    votes: Votes
    packed: bool
    max_tokens: int
    """Most tokens of a micro-batch, padding included; a longer prompt goes alone."""
    rank: int = 0
    world_size: int = 1
    ahead: bool = True
    """Read the next window while the caller computes; off where asking for it may mean waiting for votes."""

    def read(self, ids: Ids) -> list[MicroBatch]:
        """The micro-batches of this rank for the votes `ids` (N,); none where it has no prompt of them."""
        prompts, about = _distinct(self.votes.prompts(ids))
        sizes = [sum(map(len, prompt)) for prompt in prompts]
        mine = deal(sizes, self.world_size)[self.rank]
        encodings = self.tokenizer.encode([prompts[number] for number in mine])
        lengths = [len(encoding.ids) for encoding in encodings]
        plan = plan_batches(lengths, max_tokens=self.max_tokens, packed=self.packed)
        found = []
        for rows in plan:
            place = np.full(len(prompts), -1)
            place[[mine[row] for row in rows]] = np.arange(len(rows))
            votes = np.flatnonzero(place[about] >= 0)
            batch = collate([encodings[row] for row in rows], self.tokenizer.pad_token_id, packed=self.packed)
            tokens = sum(lengths[row] for row in rows)
            found.append(MicroBatch(batch, votes, torch.from_numpy(place[about[votes]]), tokens))
        return found

    def read_ahead(self, windows: Iterable[Ids]) -> Generator[tuple[Ids, list[MicroBatch]], None, None]:
        """Every window with its micro-batches; the next one is read while the caller computes on this one."""
        if not self.ahead:
            yield from ((ids, self.read(ids)) for ids in windows)
            return
        with ThreadPoolExecutor(max_workers=1, thread_name_prefix="p2l-windows") as reader:
            coming = iter(windows)
            ids = next(coming, None)
            pending = None if ids is None else reader.submit(self.read, ids)
            while ids is not None and pending is not None:
                ready, current = pending.result(), ids
                ids = next(coming, None)
                pending = None if ids is None else reader.submit(self.read, ids)
                yield current, ready

    def filler(self) -> MicroBatch:
        """A forward pass without votes: under ZeRO every rank makes as many as the busiest one."""
        batch = collate(self.tokenizer.encode([[""]]), self.tokenizer.pad_token_id, packed=self.packed)
        return MicroBatch(batch, np.zeros(0, dtype=np.int64), torch.zeros(0, dtype=torch.int64), 0)


def deal(sizes: Sequence[int], hands: int) -> list[list[int]]:
    """Numbers of the items of these `sizes`, each given to the hand that holds least, largest first; sorted."""
    if hands == 1:
        return [list(range(len(sizes)))]
    held = [0] * hands
    dealt: list[list[int]] = [[] for _ in range(hands)]
    for item in sorted(range(len(sizes)), key=lambda item: -sizes[item]):
        least = held.index(min(held))
        dealt[least].append(item)
        held[least] += sizes[item] + 1
    return [sorted(hand) for hand in dealt]


def _distinct(prompts: Sequence[Sequence[str]]) -> tuple[list[Sequence[str]], Ids]:
    """The different prompts in order of appearance, and which of them each prompt is."""
    numbers: dict[tuple[str, ...], int] = {}
    about = [numbers.setdefault(tuple(prompt), len(numbers)) for prompt in prompts]
    return list(numbers), np.array(about, dtype=np.int64)
