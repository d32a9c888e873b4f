"""Streams of votes, cut in any way, and what buffers make of them."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from p2l.online_training.buffer import Buffer, NewVotes


def votes_of(pairs: Sequence[tuple[int, int]], first_id: int = 1000) -> NewVotes:
    """A vote for each pair of models; ids are not arrival numbers, times are uneven."""
    models = np.array(pairs, dtype=np.int32).reshape(-1, 2)
    steps = np.arange(len(models))
    return NewVotes(first_id + 3 * steps, models[:, 0], models[:, 1], 100.0 * steps + steps % 7)


def random_votes(count: int, models: int = 6, seed: int = 0) -> NewVotes:
    """Votes between models of which the later ones come in over time."""
    random = np.random.default_rng(seed)
    pairs = []
    for vote in range(count):
        known = 2 + (models - 2) * vote // count
        a, b = random.permutation(known)[:2]
        pairs.append((int(a), int(b)))
    return votes_of(pairs)


def feed(buffer: Buffer, votes: NewVotes, sizes: Sequence[int]) -> list[NDArray[np.int64]]:
    """Add the votes in pieces of these sizes, over and over, without a drain."""
    batches: list[NDArray[np.int64]] = []
    start = piece = 0
    while start < len(votes):
        size = sizes[piece % len(sizes)] if sizes else len(votes)
        batches += buffer.add(votes[start : start + size])
        start, piece = start + size, piece + 1
    return batches


def through_file(state: dict[str, Any]) -> dict[str, Any]:
    """A state after it was saved and loaded, without pickle."""
    file = io.BytesIO()
    np.savez(file, **state)
    file.seek(0)
    with np.load(file, allow_pickle=False) as loaded:
        return {name: loaded[name] for name in loaded.files}


def as_lists(batches: Sequence[NDArray[np.int64]]) -> list[list[int]]:
    return [batch.tolist() for batch in batches]


pairs = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)).filter(lambda pair: pair[0] != pair[1]), max_size=120)
cuts = st.lists(st.integers(1, 40), min_size=1, max_size=4)
