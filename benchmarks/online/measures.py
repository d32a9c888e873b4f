"""What is said of a strategy: how well it does on all slices, on the newest, on new models, at the end and on the way.

Gap closed is (naive - x) / (naive - oracle): naive training has 0, the oracle, which trains on the same votes shuffled,
1. At the end it is of the mean loss over all slices. On the way it is of the mean over all checkpoints of the loss on
all slices so far, and the oracle is then one that trained, shuffled, on the votes up to the checkpoint and no others.
Intervals are drawn over held-out votes, within slices and the same for all strategies, and over seeds where there are
several.

Shapes: D draws, E checkpoints (17, the end of the stream, the end of training), n held-out votes, K = 17 slices.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from benchmarks.online.running import Outcome
from benchmarks.online.streams import SLICES, Stream, best_loss

__all__ = ["Measured", "Table", "measure"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
FEW_VOTES = 200
_DRAWS = 400
_STREAM_END, _END = SLICES, SLICES + 1


@dataclass(frozen=True)
class Measured:
    """The figures of one strategy; losses in nats."""

    name: str
    seeds: int
    matrix: Floats
    """(E, K) loss by checkpoint and slice."""
    mean: float
    gap_closed: float
    interval: tuple[float, float]
    gap_closed_before_drain: float
    gap_closed_on_the_way: float
    interval_on_the_way: tuple[float, float]
    newest: float
    newest_before_drain: float
    next_slice: float
    """Mean over checkpoints of the loss on the slice that is yet to come."""
    few_votes: float
    """The same for its votes with a model that had 1 to 199 votes at the checkpoint."""
    few_votes_gain: tuple[float, float]
    """Interval of how much lower that is than naive training's, over these votes and seeds."""
    backward_transfer: float
    """Loss on a slice when it was the newest less that at the end, mean over slices; below zero: forgotten."""
    dropped: float
    most_waiting: float
    median_lag: float
    """These three as shares of the stream."""
    compute: float
    """Votes in all steps, as a share of those of naive training."""
    seconds: float


@dataclass(frozen=True)
class Table:
    """All strategies, and what the comparison rests on."""

    rows: list[Measured]
    gap: float
    """Mean loss of naive training less the oracle's."""
    gap_error: float
    """Its standard error over seeds."""
    best: float
    """Mean loss of the truth itself; zero for real votes, which say no probabilities."""


def measure(stream: Stream, runs: Mapping[str, Sequence[Outcome]], prefixes: Sequence[Outcome]) -> Table:
    """The figures of all strategies.

    Args:
        stream: what they were trained on.
        runs: outcomes of all seeds by name; `naive` and `oracle` must be there.
        prefixes: the oracle of the votes up to each checkpoint (17), or none: nothing is said of the way then.
    """
    draws = _Draws.of(stream)
    means = {name: draws.mean_matrix(outcomes) for name, outcomes in runs.items()}
    oracles = np.full_like(means["oracle"], np.nan)
    if prefixes:
        oracles = np.stack([draws.matrices(outcome)[:, _END] for outcome in prefixes], axis=1)
    scales = _Scales(means["naive"], means["oracle"], oracles)
    rows = [_row(stream, name, runs, means[name], scales) for name in runs]
    exact = [[draws.matrices(one)[0, _END].mean() for one in runs[name]] for name in ("naive", "oracle")]
    errors = [np.var(values, ddof=1) / len(values) if len(values) > 1 else np.nan for values in exact]
    return Table(rows, float(np.mean(exact[0]) - np.mean(exact[1])), float(np.sqrt(sum(errors))), best_loss(stream))


@dataclass(frozen=True)
class _Draws:
    """D draws of the held-out votes, within slices; the first are the votes as they are."""

    slices: Ints
    """(n,)"""
    shares: list[Floats]
    """Of each slice: (D, votes of it) share of each vote in each draw."""

    @staticmethod
    def of(stream: Stream) -> _Draws:
        rng = np.random.default_rng(0)
        slices = stream.slices[stream.slices > 0]
        shares = []
        for number in range(1, SLICES + 1):
            count = int((slices == number).sum())
            drawn = rng.multinomial(count, np.full(count, 1 / count), size=_DRAWS)
            shares.append(np.concatenate([np.ones((1, count)), drawn]) / count)
        return _Draws(slices, shares)

    def matrices(self, outcome: Outcome, *, averaged: bool = False) -> Floats:
        """(D, E, K) mean loss by checkpoint and slice."""
        losses = outcome.averaged if averaged else outcome.losses
        assert losses is not None
        columns = [share @ losses[:, self.slices == number].T for number, share in enumerate(self.shares, start=1)]
        return np.stack(columns, axis=2)

    def mean_matrix(self, outcomes: Sequence[Outcome]) -> Floats:
        """(D, E, K) mean over seeds, which are drawn anew too."""
        found = np.stack([self.matrices(outcome) for outcome in outcomes])
        chosen = np.random.default_rng(1).integers(0, len(found), size=(found.shape[1], len(found)))
        chosen[0] = np.arange(len(found))
        return np.stack([found[seeds, draw].mean(axis=0) for draw, seeds in enumerate(chosen)])


@dataclass(frozen=True)
class _Scales:
    """What is 0 and what is 1: matrices (D, E, K) of naive training, of the oracle, and of the oracles on the way."""

    naive: Floats
    oracle: Floats
    on_the_way: Floats

    def closed(self, matrix: Floats, row: int) -> Floats:
        """(D,) gap closed at a checkpoint, against naive training and the oracle when they have ended."""
        zero, one = self.naive[:, _END].mean(1), self.oracle[:, _END].mean(1)
        return np.asarray((zero - matrix[:, row].mean(1)) / (zero - one))

    def closed_on_the_way(self, matrix: Floats) -> Floats:
        """(D,) gap closed in the mean over checkpoints of the loss on all slices so far."""
        zero, one = _so_far(self.naive), _so_far(self.on_the_way)
        return np.asarray((zero - _so_far(matrix)) / (zero - one))


def _so_far(matrix: Floats) -> Floats:
    """(D,) mean over the 17 checkpoints of the mean loss on the slices up to it."""
    weights = np.tril(np.ones((SLICES, SLICES)))
    weights /= weights.sum(axis=1, keepdims=True)
    return np.asarray((matrix[:, :SLICES] * weights).sum(axis=(1, 2)) / SLICES)


def _row(stream: Stream, name: str, runs: Mapping[str, Sequence[Outcome]], drawn: Floats, scales: _Scales) -> Measured:
    outcomes = runs[name]
    matrix, first, votes = drawn[0], outcomes[0], len(stream.pairs)
    diagonal = np.diagonal(matrix)
    closed, on_the_way = scales.closed(drawn, _END), scales.closed_on_the_way(drawn)
    return Measured(
        name=name,
        seeds=len(outcomes),
        matrix=matrix,
        mean=float(matrix[_END].mean()),
        gap_closed=float(closed[0]),
        interval=_interval(closed),
        gap_closed_before_drain=float(scales.closed(drawn, _STREAM_END)[0]),
        gap_closed_on_the_way=float(on_the_way[0]),
        interval_on_the_way=_interval(on_the_way),
        newest=float(matrix[_END, -1]),
        newest_before_drain=float(matrix[_STREAM_END, -1]),
        next_slice=float(np.diagonal(matrix, offset=1).mean()),
        few_votes=float(_few_votes(stream, outcomes).mean()),
        few_votes_gain=_gain(_few_votes(stream, runs["naive"]), _few_votes(stream, outcomes)),
        backward_transfer=float((diagonal[:-1] - matrix[_END, :-1][: SLICES - 1]).mean()),
        dropped=first.dropped / votes,
        most_waiting=first.most_waiting / votes,
        median_lag=first.median_lag / votes,
        compute=first.trained / votes,
        seconds=float(np.mean([outcome.seconds for outcome in outcomes])),
    )


def _few_votes(stream: Stream, outcomes: Sequence[Outcome]) -> Floats:
    """(seeds, votes) loss at each checkpoint of the votes of the next slice with a model that has had few so far."""
    slices = stream.slices[stream.slices > 0]
    pairs = stream.held_pairs[stream.slices > 0]
    losses = []
    for checkpoint in range(SLICES - 1):
        votes = stream.votes_before[checkpoint][pairs].min(axis=1)
        chosen = (slices == checkpoint + 2) & (votes > 0) & (votes < FEW_VOTES)
        losses.append(np.stack([outcome.losses[checkpoint, chosen] for outcome in outcomes]))
    return np.concatenate(losses, axis=1)


def _gain(naive: Floats, losses: Floats) -> tuple[float, float]:
    """Interval of the mean of naive - losses (seeds, votes), votes drawn alike on both sides, and seeds."""
    rng = np.random.default_rng(2)
    draws = [np.nan]
    for _ in range(_DRAWS if losses.shape[1] else 0):
        votes = rng.integers(losses.shape[1], size=losses.shape[1])
        sides = [side[rng.integers(len(side), size=len(side))][:, votes].mean() for side in (naive, losses)]
        draws.append(sides[0] - sides[1])
    return _interval(np.array(draws)) if len(draws) > 1 else (float("nan"), float("nan"))


def _interval(values: Floats) -> tuple[float, float]:
    low, high = np.quantile(values[1:], [0.025, 0.975])
    return float(low), float(high)
