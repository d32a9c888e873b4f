"""The replay buffer: what each batch may hold, and how evenly the past comes back."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2l.common.errors import CheckpointError, ConfigError
from p2l.online_training.buffers import ReplayBuffer, StraightBuffer
from tests.p2l.online_training.buffer_helpers import as_lists, cuts, feed, pairs, random_votes, through_file, votes_of


def make(
    size: int = 8, epsilon: float = 0.2, seed: int = 3, *, drop_tail: bool = False, **more: object
) -> ReplayBuffer:
    inner = StraightBuffer(size, drop_tail=drop_tail)
    return ReplayBuffer(inner, epsilon=epsilon, seed=seed, drop_tail=drop_tail, **more)  # type: ignore[arg-type]


def check_by_definition(
    batches: list[list[int]], new: list[int], size: int, replayed: int, min_batches: int, limit: int | None
) -> None:
    """Every batch: the next new votes, then past ones that were in an earlier batch and not replayed yet."""
    pool: set[int] = set()
    full = new[: len(new) // size * size]
    for number, batch in enumerate(batches[: len(full) // size]):
        own, past = batch[:size], batch[size:]
        assert own == full[number * size : (number + 1) * size]
        ready = len(pool) if limit is None else min(limit, len(pool))
        expected = min(replayed, ready) if number >= min_batches else 0
        assert len(past) == len(set(past)) == expected if limit is None else len(past) <= expected
        assert set(past) <= pool
        pool -= set(past)
        pool |= set(own)
    assert batches[len(full) // size :] == ([new[len(full) :]] if len(new) > len(full) else [])


@given(
    pairs,
    st.integers(2, 7),
    st.sampled_from([0.3, 0.5, 0.7]),
    st.integers(0, 4),
    st.one_of(st.none(), st.integers(1, 30)),
    cuts,
)
def test_batches_are_those_of_the_definition_however_the_stream_is_cut(
    of: list[tuple[int, int]], size: int, epsilon: float, min_batches: int, limit: int | None, sizes: list[int]
) -> None:
    votes = votes_of(of)
    replayed = round(size * epsilon / (1 - epsilon))
    buffer = make(size, epsilon, min_batches=min_batches, limit=limit)
    batches = as_lists(feed(buffer, votes, sizes))
    assert buffer.waiting == len(votes) % size
    batches += as_lists(buffer.drain())
    check_by_definition(batches, votes.ids.tolist(), size, replayed, min_batches, limit)
    other = make(size, epsilon, min_batches=min_batches, limit=limit)
    assert as_lists(other.add(votes) + other.drain()) == batches
    assert buffer.waiting == buffer.dropped == 0


def test_sizes_are_the_published_ones() -> None:
    for epsilon, full in [(0.016, 520), (0.06, 545), (0.112, 577), (0.2, 640), (0.32, 753), (0.5, 1024)]:
        assert make(512, epsilon).full_size == full
    batches = make(512).add(random_votes(512 * 8))
    assert [len(batch) for batch in batches] == [512] * 5 + [640] * 3


def test_a_quarter_of_the_votes_comes_back_at_the_published_share() -> None:
    votes = random_votes(100_000)
    batches = make(100).add(votes)
    given_out = np.concatenate(batches)
    assert len(given_out) == 100_000 + 25 * 995
    assert np.bincount(given_out - votes.ids[0]).max() == 2


def test_the_past_comes_back_uniformly() -> None:
    size, counts = 50, np.zeros(10)
    votes = random_votes(size * 11)
    for seed in range(300):
        batches = make(size, epsilon=0.2, seed=seed, min_batches=10).add(votes)
        past = (batches[10][size:] - votes.ids[0]) // 3
        counts += np.bincount(past // size, minlength=10)
    expected = 300 * 13 * (12.5 / 13) / 10
    assert len(batches[10]) == size + 12
    assert np.abs(counts - 300 * 12 / 10).max() < 4.5 * np.sqrt(expected)


def test_a_full_pool_is_a_uniform_sample_of_the_past() -> None:
    size, limit, counts = 50, 100, np.zeros(20)
    votes = random_votes(size * 20)
    for seed in range(200):
        buffer = make(size, seed=seed, min_batches=20, limit=limit)
        buffer.add(votes)
        pool = buffer.state_dict()["pool"]
        assert len(set(pool.tolist())) == limit
        counts += np.bincount((pool - votes.ids[0]) // 3 // size, minlength=20)
    assert np.abs(counts - 200 * limit / 20).max() < 4.5 * np.sqrt(200 * limit / 20)


def test_a_pool_thinned_by_replay_stays_a_uniform_sample() -> None:
    # 5 of 1,000 places are emptied by each batch, and its share is 10 places or more: no place goes to it beyond that.
    size, limit, counts = 200, 1000, np.zeros(20)
    votes = random_votes(size * 20)
    for seed in range(60):
        buffer = make(size, epsilon=5 / 205, seed=seed, min_batches=0, limit=limit)
        buffer.add(votes)
        counts += np.bincount((buffer.state_dict()["pool"] - votes.ids[0]) // 3 // size, minlength=20)
    left = np.full(20, 60 * limit / 20)
    assert counts.sum() == 60 * limit
    assert np.abs(counts[:-1] / left[:-1] - 1).max() < 0.12


def test_the_pool_never_exceeds_its_limit_and_memory_follows_it() -> None:
    buffer = make(100, limit=150)
    for start in range(20):
        buffer.add(votes_of([(0, 1)] * 100, first_id=1000 * start))
        assert len(buffer.state_dict()["pool"]) == min(100 * (start + 1), 150)


def test_keep_size_replaces_new_votes_by_past_ones() -> None:
    inner = StraightBuffer(6)
    buffer = ReplayBuffer(inner, epsilon=0.4, seed=1, min_batches=2, full_size=10)
    votes = random_votes(20 + 6 * 4 + 4)
    batches = as_lists(feed(buffer, votes, [5]))
    assert [len(batch) for batch in batches] == [10] * 6
    new = batches[0] + batches[1] + [vote for batch in batches[2:] for vote in batch[:6]]
    assert new == votes.ids[: len(new)].tolist()
    assert buffer.waiting == 4
    assert as_lists(buffer.drain()) == [votes.ids[-4:].tolist()]


def test_drop_tail_gives_up_what_fills_no_batch() -> None:
    buffer = make(8, drop_tail=True)
    buffer.add(random_votes(21))
    assert buffer.drain() == []
    assert (buffer.dropped, buffer.waiting) == (5, 0)


@given(pairs, st.integers(0, 120), st.one_of(st.none(), st.integers(1, 20)))
def test_a_saved_buffer_goes_on_as_if_it_had_not_stopped(
    of: list[tuple[int, int]], stop: int, limit: int | None
) -> None:
    votes = votes_of(of)
    whole = make(5, 0.4, min_batches=1, limit=limit)
    expected = as_lists(whole.add(votes) + whole.drain())
    first, second = (make(5, 0.4, min_batches=1, limit=limit) for _ in range(2))
    batches = first.add(votes[:stop])
    second.load_state_dict(through_file(first.state_dict()))
    batches += second.add(votes[stop:]) + second.drain()
    assert as_lists(batches) == expected


def test_another_seed_draws_other_votes() -> None:
    votes = random_votes(200)
    assert as_lists(make(seed=1).add(votes)) != as_lists(make(seed=2).add(votes))


@pytest.mark.parametrize("epsilon", [0.0, 1.0, -1.0, float("nan")])
def test_a_share_that_leaves_no_new_or_no_past_votes_is_refused(epsilon: float) -> None:
    with pytest.raises(ConfigError, match="epsilon: must be above 0 and below 1"):
        make(epsilon=epsilon)


def test_a_share_of_less_than_a_vote_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"epsilon: 0\.01 of a batch of 8 is not a vote; give more"):
        make(epsilon=0.01)


def test_a_state_of_another_limit_is_refused() -> None:
    state = through_file(make(limit=10).state_dict())
    with pytest.raises(CheckpointError, match="saved with limit 10, but now limit is 0"):
        make().load_state_dict(state)
