"""Buffers by name, and on top of each other."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from p2l.online_training.buffers import BUFFERS, BufferSettings, StraightBuffer, make_buffer, register
from tests.p2l.online_training.buffer_helpers import as_lists, cuts, feed, pairs, random_votes, through_file, votes_of

GEOMETRIC = {"type": "geometric", "gamma": 0.8, "epsilon": 0.1}
ALL: list[dict[str, Any]] = [
    {"type": "none"},
    GEOMETRIC,
    {"type": "replay", "epsilon": 0.4, "min_batches": 1},
    {"type": "replay", "epsilon": 0.4, "min_batches": 1, "on": GEOMETRIC},
    {"type": "replay", "epsilon": 0.4, "min_batches": 2, "limit": 9, "keep_size": True, "on": GEOMETRIC},
]


@given(st.sampled_from(ALL), pairs, cuts, st.integers(0, 120), st.booleans())
def test_every_buffer_keeps_its_promises(
    settings: dict[str, Any], of: list[tuple[int, int]], sizes: list[int], stop: int, drop: bool
) -> None:
    votes = votes_of(of)
    made = BufferSettings(**settings, drop_tail=drop)
    whole = make_buffer(made, 5, seed=1)
    added, drained = whole.add(votes), whole.drain()
    expected = as_lists(added + drained)
    # Cut in any way, and saved and loaded anywhere, it gives the same batches.
    first, second = make_buffer(made, 5, seed=1), make_buffer(made, 5, seed=1)
    batches = feed(first, votes[:stop], sizes)
    second.load_state_dict(through_file(first.state_dict()))
    batches += feed(second, votes[stop:], sizes) + second.drain()
    assert as_lists(batches) == expected
    # Every vote comes out, once as a new one.
    given_out = {vote for batch in expected for vote in batch}
    assert given_out <= set(votes.ids.tolist())
    assert len(given_out) == len(votes) - whole.dropped
    assert whole.waiting == 0
    assert drop or whole.dropped == 0
    assert {len(batch) for batch in added} <= {whole.batch_size, *range(whole.batch_size, whole.full_size + 1)}


def test_replay_takes_the_batches_of_the_buffer_below() -> None:
    votes = random_votes(2003)
    below = make_buffer(BufferSettings(**GEOMETRIC), 16, seed=7)
    on_top = make_buffer(BufferSettings(type="replay", epsilon=0.2, on=BufferSettings(**GEOMETRIC)), 16, seed=7)
    expected, batches = below.add(votes), on_top.add(votes)
    assert [batch[:16].tolist() for batch in batches] == as_lists(expected)
    assert [len(batch) for batch in batches] == [16] * 5 + [20] * (len(batches) - 5)
    assert (on_top.waiting, on_top.lag) == (below.waiting, below.lag)
    expected, batches = below.drain(), on_top.drain()
    assert [batch[:16].tolist() for batch in batches] == as_lists(expected)
    assert (len(batches[0]), len(batches[-1])) == (20, 3)  # the last one takes none of the past along


def test_without_a_buffer_votes_keep_their_order() -> None:
    votes = random_votes(23)
    buffer = make_buffer(BufferSettings(), 5, seed=0)
    assert np.concatenate(feed(buffer, votes, [1, 7]) + buffer.drain()).tolist() == votes.ids.tolist()
    assert (buffer.lag.votes, buffer.lag.p99_batches, buffer.lag.most_waiting) == (23, 0, 5)


def test_the_older_key_keeps_the_batch_size() -> None:
    settings = BufferSettings.of_experience_replay(limit=100, ratio=0.75, min_iter=3)
    buffer = make_buffer(settings, 8, seed=0)
    assert (buffer.batch_size, buffer.full_size) == (6, 8)
    batches = buffer.add(random_votes(60))
    assert [len(batch) for batch in batches] == [8] * 9
    assert BufferSettings.of_experience_replay(limit=100, ratio=1.0, min_iter=3).type == "none"


def test_initial_counts_make_models_familiar() -> None:
    votes = votes_of([(0, 1)] * 60)
    fresh = make_buffer(BufferSettings(**GEOMETRIC), 5, seed=1)
    familiar = make_buffer(BufferSettings(**GEOMETRIC), 5, seed=1, initial_counts={0: 500, 1: 500})
    fresh.add(votes)
    familiar.add(votes)
    assert fresh.lag.votes > familiar.lag.votes


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"type": "geometrical"}, "must be one of none, geometric, replay.*did you mean 'geometric'"),
        ({"type": "geometric", "gamma": 0}, "greater than 0"),
        ({"type": "geometric", "gamma": 1.5}, "less than or equal to 1"),
        ({"type": "geometric", "epsilon": 0.0}, "greater than 0"),
        ({"type": "geometric", "epsilon": True}, "must be a number"),
        ({"type": "geometric", "limit": 5}, "limit: a buffer of type 'geometric' does not read it"),
        ({"type": "replay", "epsilon": 1}, "would leave no room"),
        ({"type": "replay", "on": {"type": "none", "gamma": 0.5}}, "gamma: a buffer of type 'none' does not read it"),
        ({"type": "replay", "size": 3}, "Extra inputs are not permitted"),
        ({"type": "replay", "min_batches": -1}, "greater than or equal to 0"),
    ],
)
def test_settings_that_mean_nothing_are_refused(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        BufferSettings(**wrong)


def test_a_further_type_is_one_function(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("p2l.online_training.buffers.BUFFERS", known := dict(BUFFERS))

    @register("ours", keys={"epsilon"})
    def make_ours(parts: Any) -> StraightBuffer:
        return StraightBuffer(parts.batch_size * 2)

    assert make_buffer(BufferSettings(type="ours", epsilon=0.5), 4, seed=0).batch_size == 8
    assert set(known) - set(BUFFERS) == {"ours"}
