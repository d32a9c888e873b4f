"""The geometric buffer against its definition, vote by vote."""

from __future__ import annotations

from collections import Counter, defaultdict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2l.common.errors import CheckpointError, ConfigError
from p2l.online_training.buffer import NewVotes
from p2l.online_training.buffers import GeometricBuffer, StraightBuffer, least_counts
from tests.p2l.online_training.buffer_helpers import as_lists, cuts, feed, pairs, random_votes, through_file, votes_of

chances = st.sampled_from([1.0, 0.9, 0.7, 0.5, 0.2, 0.05])


def make(size: int = 4, gamma: float = 0.8, epsilon: float = 0.1, seed: int = 3, **more: object) -> GeometricBuffer:
    return GeometricBuffer(size, gamma=gamma, epsilon=epsilon, seed=seed, **more)  # type: ignore[arg-type]


def by_definition(
    votes: NewVotes, size: int, gamma: float, epsilon: float, seed: int, counts: dict[int, int]
) -> tuple[list[list[int]], list[list[int]]]:
    """Batches given out, and those that wait at the end: one vote after the other, looking at every batch."""
    uniform = np.random.Generator(np.random.PCG64(seed))
    seen = Counter(counts)
    batches: defaultdict[int, list[int]] = defaultdict(list)
    current = 0
    for vote, a, b in zip(votes.ids.tolist(), votes.model_a.tolist(), votes.model_b.tolist(), strict=True):
        p = max(epsilon, gamma ** min(seen[a], seen[b]))
        u = uniform.random()
        k = 1
        while 1 - (1 - p) ** k <= u:
            k += 1
        place = current + k - 1
        while len(batches[place]) == size:
            place += 1
        batches[place].append(vote)
        seen.update([a, b])
        while len(batches[current]) == size:
            current += 1
    done = [batches[number] for number in range(current)]
    return done, [batches[number] for number in sorted(batches) if number >= current and batches[number]]


@given(pairs, st.integers(1, 7), chances, chances, st.integers(0, 5), cuts)
def test_batches_are_those_of_the_definition_however_the_stream_is_cut(
    of: list[tuple[int, int]], size: int, gamma: float, epsilon: float, seed: int, sizes: list[int]
) -> None:
    votes = votes_of(of)
    counts = {0: 3, 4: 20}
    expected, waiting = by_definition(votes, size, gamma, epsilon, seed, counts)
    buffer = make(size, gamma, epsilon, seed, initial_counts=counts)
    assert as_lists(feed(buffer, votes, sizes)) == expected
    assert buffer.waiting == sum(map(len, waiting))
    # What waits comes by the batch that it waits for, then by arrival, in full batches.
    rest = [vote for batch in waiting for vote in batch]
    assert as_lists(buffer.drain()) == [rest[start : start + size] for start in range(0, len(rest), size)]
    assert buffer.waiting == 0


def test_a_long_stream_is_that_of_the_definition_too() -> None:
    votes = random_votes(5000, models=12)
    expected, _ = by_definition(votes, 32, 0.98, 0.02, 9, {})
    assert as_lists(feed(make(32, 0.98, 0.02, 9), votes, [701])) == expected
    assert len(expected) > 100


def test_no_vote_is_lost_and_none_comes_twice() -> None:
    votes = random_votes(70_000, models=30)  # more than the buffer draws for at once
    buffer = make(64, 0.99, 0.01)
    batches = buffer.add(votes)
    assert {len(batch) for batch in batches} == {64}
    drained = buffer.drain()
    assert {len(batch) for batch in drained[:-1]} == {64}
    everything = np.concatenate(batches + drained)
    assert np.array_equal(np.sort(everything), votes.ids)
    assert buffer.dropped == 0


def test_drop_tail_gives_up_what_waits() -> None:
    votes = random_votes(1000)
    kept, dropping = make(), make(drop_tail=True)
    assert as_lists(dropping.add(votes)) == as_lists(kept.add(votes))
    waiting = kept.waiting
    assert waiting > 0
    assert dropping.drain() == []
    assert (dropping.dropped, dropping.waiting) == (waiting, 0)


def test_votes_on_a_new_model_are_in_the_very_next_batch() -> None:
    familiar = votes_of([(0, 1)] * 400)
    buffer = make(8, 0.5, 0.001)
    buffer.add(familiar)
    current = buffer.state_dict()["current"]
    newcomer = NewVotes(np.array([7]), np.array([0], np.int32), np.array([5], np.int32), np.array([1e6]))
    buffer.add(newcomer)
    state = buffer.state_dict()
    at = state["waiting.id"].tolist().index(7) if 7 in state["waiting.id"] else None
    assert at is None or state["waiting.batch"][at] == current


def test_with_gamma_one_nothing_waits() -> None:
    votes = random_votes(100)
    assert as_lists(make(10, gamma=1.0).add(votes)) == votes.ids.reshape(10, 10).tolist()


@pytest.mark.parametrize("p", [0.9, 0.3, 0.02])
def test_familiar_votes_wait_a_geometric_number_of_batches(p: float) -> None:
    count = 20_000
    votes = votes_of([(0, 1)] * count)
    buffer = make(count + 1, gamma=0.5, epsilon=p, initial_counts={0: 1000, 1: 1000})
    buffer.add(votes)  # no batch is ever full: every vote lies where its draw put it
    steps = buffer.state_dict()["waiting.batch"]
    deviation = np.sqrt(1 - p) / p / np.sqrt(count)
    assert abs(steps.mean() - (1 - p) / p) < 4 * deviation
    assert abs((steps == 0).mean() - p) < 4 * np.sqrt(p * (1 - p) / count)


def test_a_tiny_epsilon_is_no_overflow() -> None:
    buffer = make(4, gamma=0.5, epsilon=1e-320, initial_counts={0: 10_000, 1: 10_000})
    assert buffer.add(votes_of([(0, 1)] * 9)) == []
    assert sum(map(len, buffer.drain())) == 9


@given(pairs, st.integers(0, 3))
def test_counts_are_those_before_each_vote(of: list[tuple[int, int]], before: int) -> None:
    votes = votes_of(of)
    counts = np.full(5, before)
    seen = Counter(dict.fromkeys(range(5), before))
    expected = []
    for pair in of:
        expected.append(min(seen[pair[0]], seen[pair[1]]))
        seen.update(pair)
    assert least_counts(votes.model_a, votes.model_b, counts).tolist() == expected
    assert counts.tolist() == [seen[model] for model in range(5)]


def test_counts_of_more_models_than_16_bits_hold() -> None:
    counts = np.zeros(1 << 17, dtype=np.int64)
    models = np.array([0, 1 << 16, 0, 5], dtype=np.int32)
    assert least_counts(models, np.full(4, 70_000, dtype=np.int32), counts).tolist() == [0, 0, 1, 0]
    assert (counts[0], counts[1 << 16], counts[70_000]) == (2, 1, 4)


@given(pairs, st.integers(0, 120), chances)
def test_a_saved_buffer_goes_on_as_if_it_had_not_stopped(of: list[tuple[int, int]], stop: int, epsilon: float) -> None:
    votes = votes_of(of)
    whole = make(epsilon=epsilon)
    expected = as_lists(whole.add(votes) + whole.drain())
    first, second = make(epsilon=epsilon), make(epsilon=epsilon, initial_counts={1: 99})
    batches = first.add(votes[:stop])
    second.load_state_dict(through_file(first.state_dict()))
    assert second.waiting == first.waiting
    batches += second.add(votes[stop:]) + second.drain()
    assert as_lists(batches) == expected
    assert second.lag == whole.lag or np.isnan(whole.lag.median_batches)


def test_lag_is_the_wait_on_the_clock_of_the_stream() -> None:
    votes = random_votes(3000)
    size = 16
    buffer = make(size, 0.9, 0.02)
    arrival = {vote: number for number, vote in enumerate(votes.ids.tolist())}
    waits, seconds, most, gone = [], [], 0, 0
    for number in range(len(votes)):  # one at a time: what comes out leaves as this vote arrives
        for batch in buffer.add(votes[number : number + 1]):
            most = max(most, number + 1 - gone)
            gone += len(batch)
            own = np.array([arrival[vote] for vote in batch.tolist()])
            waits += (number // size - own // size).tolist()
            seconds += (votes.tstamp[number] - votes.tstamp[own]).tolist()
    lag = buffer.lag
    assert (lag.votes, lag.most_waiting) == (gone, max(most, buffer.waiting))
    assert lag.median_batches == np.quantile(waits, 0.5, method="inverted_cdf")
    assert lag.p99_batches == np.quantile(waits, 0.99, method="inverted_cdf")
    assert lag.median_seconds == pytest.approx(np.quantile(seconds, 0.5, method="inverted_cdf"), rel=0.004)
    assert lag.p99_seconds == pytest.approx(np.quantile(seconds, 0.99, method="inverted_cdf"), rel=0.004)


def test_the_lag_of_what_is_drained_lasts_to_the_end_of_the_stream() -> None:
    buffer = make(100, gamma=1.0)
    buffer.add(votes_of([(0, 1)] * 50))
    buffer.drain()
    assert (buffer.lag.votes, buffer.lag.median_batches, buffer.lag.most_waiting) == (50, 0, 50)
    assert buffer.lag.p99_seconds == pytest.approx(4900, rel=0.01)


def test_lag_without_times_is_unknown() -> None:
    votes = votes_of([(0, 1)] * 8)
    buffer = make(4, gamma=1.0)
    buffer.add(NewVotes(votes.ids, votes.model_a, votes.model_b, np.full(8, np.nan)))
    assert np.isnan(buffer.lag.median_seconds)
    assert buffer.lag.as_dict()["median_seconds"] is None
    assert buffer.lag.median_batches == 0


@pytest.mark.parametrize("wrong", [0.0, -0.1, 1.01, float("nan")])
@pytest.mark.parametrize("name", ["gamma", "epsilon"])
def test_parameters_outside_their_range_are_refused(name: str, wrong: float) -> None:
    with pytest.raises(ConfigError, match=f"{name}: must be above 0 and at most 1"):
        make(**{name: wrong})  # type: ignore[arg-type]


@pytest.mark.parametrize(("name", "other"), [("gamma", 0.7), ("epsilon", 0.2), ("seed", 4), ("drop_tail", True)])
def test_a_state_of_other_parameters_is_refused(name: str, other: float) -> None:
    state = through_file(make().state_dict())
    with pytest.raises(CheckpointError, match=f"saved with {name}"):
        make(**{name: other}).load_state_dict(state)  # type: ignore[arg-type]


def test_a_state_of_another_batch_size_or_type_is_refused() -> None:
    state = make().state_dict()
    with pytest.raises(CheckpointError, match="saved with batch_size 4, but now batch_size is 5"):
        make(5).load_state_dict(state)
    with pytest.raises(CheckpointError, match="saved with type 'geometric', but now type is 'none'"):
        StraightBuffer(4).load_state_dict(through_file(state))
    with pytest.raises(CheckpointError, match="holds no 'type'"):
        make().load_state_dict({})
