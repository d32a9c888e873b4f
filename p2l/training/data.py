"""Votes as steps and micro-batches: which votes make a step, and how their prompts are encoded once and packed.

A window is a step's votes. Its distinct prompts are dealt to the ranks so that each gets about as much text, tokenised
there, and packed into micro-batches; a vote goes where its prompt is. No vote leaves its step by this, and the sum
that makes up the step's loss only changes its order.

Shapes: N votes of the window, n votes and B prompts of a micro-batch.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from p2l.common.cache import LRUCache
from p2l.model.batching import Batch, collate, plan_batches
from p2l.model.encoding import Encoding, PromptTokenizer
from p2l.votes import VoteStore
from p2l.votes.schema import hash_turns

Ids = NDArray[np.int64]
_MOST_RECENT = 256_000_000  # bytes of encodings that are kept for later epochs


def _size(encoding: Encoding) -> int:
    """Return the bytes of an encoding, about."""
    arrays = (encoding.ids, encoding.values, encoding.features)
    return 300 + sum(array.nbytes for array in arrays if array is not None)


class Votes(Protocol):
    """Votes by their ids (n,): a `VoteStore`, or a stream."""

    def __len__(self) -> int:
        """Return votes that are there."""

    def prompts(self, ids: Ids) -> list[list[str]]:
        """Return the user's turns of each vote."""

    def labels(self, ids: Ids) -> NDArray[Any]:
        """(n, 3) int32 `[winner, loser, tie]`."""

    def weights(self, ids: Ids) -> NDArray[np.float64]:
        """(n,) weights; ones where there are none."""


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
    covariates: Callable[[Ids], Tensor] | None = None
    """The scaled covariates (n, C) of votes, turned as their labels are; None: none are trained."""
    local_rank: int = 0
    local_size: int = 1
    """Processes of this node, among which its prompts are dealt where votes are spread over nodes."""
    _recent: LRUCache[int, Encoding] = field(default_factory=lambda: LRUCache(_MOST_RECENT, _size))
    """Encodings by the hash of their prompt."""

    def read(self, ids: Ids) -> list[MicroBatch]:
        """Return this rank's micro-batches for the votes `ids` (N,); empty if it has none of their prompts."""
        prompts, about, mine = self._deal(ids)
        encodings = self._encode([prompts[number] for number in mine])
        lengths = [len(encoding.ids) for encoding in encodings]
        plan = plan_batches(lengths, max_tokens=self.max_tokens, packed=self.packed)
        micro_batches = []
        for rows in plan:
            place = np.full(len(prompts), -1)
            place[[mine[row] for row in rows]] = np.arange(len(rows))
            votes = np.flatnonzero((about >= 0) & (place[about] >= 0))
            batch = collate([encodings[row] for row in rows], self.tokenizer.pad_token_id, packed=self.packed)
            if self.covariates is not None:
                batch["covariates"] = self.covariates(ids[votes])
            tokens = sum(lengths[row] for row in rows)
            micro_batches.append(MicroBatch(batch, votes, torch.from_numpy(place[about[votes]]), tokens))
        return micro_batches

    def _deal(self, ids: Ids) -> tuple[list[Sequence[str]], Ids, list[int]]:
        """Return the prompts of this node, which of them each vote (N,) is about (-1: none), and those of this rank."""
        held = self.votes.held(ids) if isinstance(self.votes, VoteStore) else None
        here = np.arange(len(ids)) if held is None else np.flatnonzero(held)
        prompts, about_here = distinct(self.votes.prompts(ids[here]))
        about = np.full(len(ids), -1)
        about[here] = about_here
        # In characters: all ranks have to deal alike, and each tokenises its own prompts alone.
        sizes = [sum(map(len, prompt)) for prompt in prompts]
        hands, hand = (self.world_size, self.rank) if held is None else (self.local_size, self.local_rank)
        return prompts, about, deal(sizes, hands)[hand]

    def _encode(self, prompts: Sequence[Sequence[str]]) -> list[Encoding]:
        """Encode prompts that are not among the recent ones: a later epoch reads the same ones again."""
        keys = [hash_turns(list(prompt)) for prompt in prompts]
        encodings = [self._recent.get(key) for key in keys]
        missing = [place for place, encoding in enumerate(encodings) if encoding is None]
        for place, encoding in zip(missing, self.tokenizer.encode([prompts[n] for n in missing]), strict=True):
            encodings[place] = encoding
            self._recent.put(keys[place], encoding)
        return [encoding for encoding in encodings if encoding is not None]

    def read_ahead(self, windows: Iterable[Ids]) -> Generator[tuple[Ids, list[MicroBatch]], None, None]:
        """Yield every window with its micro-batches, and read the next one while the caller computes."""
        if not self.ahead:
            yield from ((ids, self.read(ids)) for ids in windows)
            return
        with ThreadPoolExecutor(max_workers=1, thread_name_prefix="p2l-windows") as reader:
            earlier: tuple[Ids, Future[list[MicroBatch]]] | None = None
            for ids in windows:
                latest = (ids, reader.submit(self.read, ids))
                if earlier is not None:
                    yield earlier[0], earlier[1].result()
                earlier = latest
            if earlier is not None:
                yield earlier[0], earlier[1].result()

    def filler(self) -> MicroBatch:
        """Return a micro-batch without votes: under ZeRO every rank runs as many forward passes as the busiest one."""
        batch = collate(self.tokenizer.encode([[""]]), self.tokenizer.pad_token_id, packed=self.packed)
        none = np.zeros(0, dtype=np.int64)
        if self.covariates is not None:  # so that every parameter has a gradient
            batch["covariates"] = self.covariates(none)
        return MicroBatch(batch, none, torch.zeros(0, dtype=torch.int64), 0)


def deal(sizes: Sequence[int], hands: int) -> list[list[int]]:
    """Deal items of these `sizes`, largest first, each to the hand with the smallest sum; return item numbers."""
    if hands == 1:
        return [list(range(len(sizes)))]
    held = [0] * hands
    dealt: list[list[int]] = [[] for _ in range(hands)]
    for item in sorted(range(len(sizes)), key=lambda item: -sizes[item]):
        least = held.index(min(held))
        dealt[least].append(item)
        held[least] += sizes[item] + 1  # its CLS, so that empty prompts are shared out too
    return [sorted(hand) for hand in dealt]


def distinct(prompts: Sequence[Sequence[str]]) -> tuple[list[Sequence[str]], Ids]:
    """Return the different prompts in order of appearance, and which of them each prompt is."""
    numbers: dict[tuple[str, ...], int] = {}
    about = [numbers.setdefault(tuple(prompt), len(numbers)) for prompt in prompts]
    return list(numbers), np.array(about, dtype=np.int64)


@dataclass(frozen=True)
class OfflineSchedule:
    """Votes in their stored order, or shuffled by seed and epoch, in steps of `global_batch`, for `epochs` passes.

    With `prompts` a shuffle moves whole prompts: the votes on one prompt follow each other, so that nearly all of them
    fall into one step, which encodes the prompt once. The last step of an epoch may be smaller. Step `s` depends on
    nothing but these fields, so a resumed run needs only the number of the step.
    """

    num_votes: int
    global_batch: int
    epochs: int = 1
    shuffle: bool = False
    seed: int = 42
    prompts: NDArray[np.int64] | None = field(default=None, compare=False)
    """(num_votes,) the number of each vote's prompt, from 0; None: a shuffle moves single votes."""
    stop: int | None = None
    """The last step; None: that of the last epoch."""

    @property
    def steps_per_epoch(self) -> int:
        """Optimizer steps per pass over the votes."""
        return -(-self.num_votes // self.global_batch)

    @property
    def total_steps(self) -> int:
        """Optimizer steps of the whole run."""
        whole = self.steps_per_epoch * self.epochs
        return whole if self.stop is None else min(self.stop, whole)

    def steps(self, start: int = 0) -> Iterator[NDArray[np.int64]]:
        """Yield row ids of each step, from step `start` on."""
        order = np.empty(0, dtype=np.int64)
        for number in range(start, self.total_steps):
            epoch, step = divmod(number, self.steps_per_epoch)
            if number == start or step == 0:
                order = self._order(epoch)
            yield order[step * self.global_batch : (step + 1) * self.global_batch]

    def _order(self, epoch: int) -> NDArray[np.int64]:
        if not self.shuffle:
            return np.arange(self.num_votes)
        rng = np.random.default_rng([self.seed, epoch])
        votes = rng.permutation(self.num_votes)
        if self.prompts is None:
            return votes
        places = rng.permutation(int(self.prompts.max()) + 1)
        return votes[np.argsort(places[self.prompts[votes]], kind="stable")]
