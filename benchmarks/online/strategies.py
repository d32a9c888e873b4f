"""The strategies that are compared: each an order in which votes are trained on, and the grids of the published runs.

gamma is rescaled to votes per model: a model of the published stream had about 34,600 votes (2.25 million votes, some
130 models), so gamma^34,600 of a published run equals gamma'^n here, n the mean number of votes of a model. epsilon is
a matter of batches, of which there are as many.

Shapes: N votes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from benchmarks.online.streams import SLICES, Stream
from p2l.online_training.buffer import NewVotes
from p2l.online_training.buffers import BufferSettings, make_buffer

__all__ = ["OURS", "PREFIX", "STRATEGIES", "Order", "Strategy", "rescaled_gamma"]

Ints = NDArray[np.int64]
_PUBLISHED_VOTES_PER_MODEL = 2 * 2_247_925 / 130
PREFIX = "oracle of slices 1 to {}"
OURS = "replay 0.19, larger steps, averaged"
"""The strategy that the bars are about: with 0.2 a batch of 46 votes takes 12 along, 1.26 times the compute."""
_OURS = 0.19
_SEEDS_OF_NAIVE = 6
"""Its last weights differ so much from seed to seed that three say too little."""
REPLAY_GRID = (0.016, 0.032, 0.06, 0.112, 0.2, 0.32)
GEOMETRIC_GRID = ((0.995, 5e-4), (0.995, 1e-3), (0.999, 5e-4), (0.999, 1e-3), (0.9995, 5e-4), (0.9995, 1e-3))


@dataclass(frozen=True)
class Order:
    """Which votes each step takes, and when in the stream."""

    batches: list[Ints]
    checkpoints: list[int]
    """Steps done when the votes of each slice have arrived (17), and when all have, before anything is drained."""
    most_waiting: int = 0
    median_lag: float = 0.0
    """Votes that arrived while a vote waited, the median over the votes."""
    dropped: int = 0


@dataclass(frozen=True)
class Strategy:
    """One way to train."""

    name: str
    make: Callable[[Stream, int], Order]
    seeds: int = 1
    average: bool = False
    """Also evaluate averaged weights."""
    final_only: bool = False
    larger_steps: bool = False
    """Rows of new models take larger steps, as in online training; they start at the mean row in any case."""


def rescaled_gamma(gamma: float, stream: Stream) -> float:
    """The gamma that has the same effect where models have as few votes as here."""
    own = stream.pairs.size / len(stream.model_list)
    return float(gamma ** (_PUBLISHED_VOTES_PER_MODEL / own))


def _buffered(settings: Callable[[Stream], BufferSettings]) -> Callable[[Stream, int], Order]:
    def make(stream: Stream, seed: int) -> Order:
        count = len(stream.pairs)
        buffer = make_buffer(settings(stream), stream.batch_size, seed)
        batches: list[Ints] = []
        checkpoints, start = [], 0
        ids = np.arange(count)
        for end in [*stream.positions, count]:
            part, pairs = ids[start:end], stream.pairs[start:end].astype(np.int32)
            batches += buffer.add(NewVotes(part, pairs[:, 0], pairs[:, 1], part.astype(float)))
            checkpoints.append(len(batches))
            start = end
        batches += buffer.drain()
        lag = buffer.lag.median_batches * stream.batch_size
        return Order(batches, checkpoints, buffer.lag.most_waiting, lag, buffer.dropped)

    return make


def _whole(ids: Ints, size: int) -> list[Ints]:
    return [ids[start : start + size] for start in range(0, len(ids), size)]


def _oracle(stream: Stream, seed: int) -> Order:
    batches = _whole(np.random.default_rng(seed).permutation(len(stream.pairs)), stream.batch_size)
    checkpoints = [end // stream.batch_size for end in stream.positions]
    return Order(batches, [*checkpoints, len(batches)], dropped=0)


def _oracle_until(number: int) -> Callable[[Stream, int], Order]:
    def make(stream: Stream, seed: int) -> Order:
        shuffled = np.random.default_rng(seed).permutation(stream.positions[number - 1])
        batches = _whole(shuffled, stream.batch_size)
        return Order(batches, [len(batches)] * (SLICES + 1))

    return make


def _shuffle_at_the_end(stream: Stream, seed: int) -> Order:
    count = len(stream.pairs)
    batches = _whole(np.random.default_rng(seed).permutation(count), stream.batch_size)
    return Order(batches, [0] * (SLICES + 1), most_waiting=count, median_lag=count / 2)


def _geometric(gamma: float, epsilon: float, *, drop: bool = False) -> Callable[[Stream], BufferSettings]:
    return lambda stream: BufferSettings(
        type="geometric", gamma=rescaled_gamma(gamma, stream), epsilon=epsilon, drop_tail=drop
    )


def _same_steps(inner: Callable[[Stream, int], Order]) -> Callable[[Stream, int], Order]:
    """What a buffer that drops gave out, and then again votes that it gave out before, until all steps are used."""

    def make(stream: Stream, seed: int) -> Order:
        order = inner(stream, seed)
        given = np.concatenate(order.batches)
        missing = len(stream.pairs) // stream.batch_size - len(order.batches)
        more = np.random.default_rng(seed).choice(given, missing * stream.batch_size, replace=False)
        return Order(
            order.batches + _whole(more, stream.batch_size),
            order.checkpoints,
            order.most_waiting,
            order.median_lag,
            order.dropped,
        )

    return make


def _replay(epsilon: float) -> Callable[[Stream], BufferSettings]:
    return _always(BufferSettings(type="replay", epsilon=epsilon))


def _always(settings: BufferSettings) -> Callable[[Stream], BufferSettings]:
    def same(_stream: Stream) -> BufferSettings:
        return settings

    return same


def _all() -> list[Strategy]:
    found = [
        Strategy("naive", _buffered(_always(BufferSettings())), seeds=_SEEDS_OF_NAIVE, average=True),
        Strategy("oracle", _oracle, seeds=3, average=True),
        Strategy("shuffle everything, train at the end", _shuffle_at_the_end),
    ]
    found += [
        Strategy(
            f"replay {epsilon:g}",
            _buffered(_replay(epsilon)),
            seeds=3 if epsilon == _OURS else 1,
            average=epsilon == _OURS,
        )
        for epsilon in (*REPLAY_GRID, _OURS)
    ]
    found += [
        Strategy(f"{name}, larger steps", _buffered(settings), seeds=seeds, average=True, larger_steps=True)
        for name, settings, seeds in (("naive", _always(BufferSettings()), 1), (f"replay {_OURS:g}", _replay(_OURS), 3))
    ]
    found += [
        Strategy(f"geometric {gamma:g} {epsilon:g}", _buffered(_geometric(gamma, epsilon)))
        for gamma, epsilon in GEOMETRIC_GRID
    ]
    found.append(
        Strategy(
            "geometric 0.995 0.001, tail dropped, same steps",
            _same_steps(_buffered(_geometric(0.995, 1e-3, drop=True))),
        )
    )
    found += [Strategy(PREFIX.format(k), _oracle_until(k), final_only=True) for k in range(1, SLICES + 1)]
    return found


STRATEGIES: Mapping[str, Strategy] = {strategy.name: strategy for strategy in _all()}
