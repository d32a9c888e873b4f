"""The benchmark of online training: what its strategies train on, and how its figures are reckoned."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks.online.measures import measure
from benchmarks.online.report import bars
from benchmarks.online.running import Outcome
from benchmarks.online.strategies import PREFIX, STRATEGIES, rescaled_gamma
from benchmarks.online.streams import BATCHES, SLICES, Stream

BATCH = 3


@pytest.fixture(scope="module")
def stream() -> Stream:
    rng = np.random.default_rng(0)
    votes, held = BATCHES * BATCH, SLICES * 8
    first = np.minimum(np.arange(votes) // 1200, 9)
    pairs = np.stack([first, first + 1], axis=1)
    slices = np.repeat(np.arange(1, SLICES + 1), 8)
    held_pairs = pairs[(slices - 1) * 256 * BATCH]
    return Stream(
        name="made up",
        folder=Path("nowhere"),
        model_list=[f"model-{number}" for number in range(11)],
        pairs=pairs,
        tstamp=np.arange(votes, dtype=float),
        slices=slices,
        held_pairs=held_pairs,
        outcomes=rng.dirichlet(np.ones(4), size=held),
    )


def outcome(loss: float, **fields: float) -> Outcome:
    """The same loss everywhere."""
    losses = np.full((SLICES + 2, SLICES * 8), loss, dtype=np.float32)
    plain = Outcome(
        losses, None, most_waiting=0, median_lag=0, dropped=0, trained=BATCHES * BATCH, steps=1, seconds=1.0
    )
    return replace(plain, **fields)


@pytest.mark.parametrize("name", ["naive", "oracle", "replay 0.19", "geometric 0.995 0.001"])
def test_every_strategy_trains_on_every_vote(stream: Stream, name: str) -> None:
    order = STRATEGIES[name].make(stream, 0)
    votes = np.concatenate(order.batches)
    assert set(votes) == set(range(len(stream.pairs)))
    assert order.dropped == 0
    assert len(order.batches) == BATCHES
    assert len(order.checkpoints) == SLICES + 1
    assert (len(votes) > len(stream.pairs)) == name.startswith("replay")


def test_naive_training_waits_for_nothing_and_reads_its_checkpoints_at_the_ends_of_slices(stream: Stream) -> None:
    order = STRATEGIES["naive"].make(stream, 0)
    assert order.checkpoints == [256 * number for number in range(1, SLICES + 1)] + [BATCHES]
    assert order.median_lag == 0


def test_an_oracle_of_some_slices_has_seen_no_later_vote(stream: Stream) -> None:
    order = STRATEGIES[PREFIX.format(3)].make(stream, 0)
    assert np.concatenate(order.batches).max() < stream.positions[2]
    assert len(order.batches) == 3 * 256


def test_a_dropped_tail_costs_votes_and_no_steps(stream: Stream) -> None:
    name = next(name for name in STRATEGIES if "dropped" in name)
    order = STRATEGIES[name].make(stream, 0)
    assert order.dropped > 0
    assert len(order.batches) == BATCHES
    assert len(set(np.concatenate(order.batches))) == len(stream.pairs) - order.dropped


def test_gamma_means_the_same_number_of_votes_of_an_average_model(stream: Stream) -> None:
    ours, published = stream.pairs.size / len(stream.model_list), 2 * 2_247_925 / 130
    assert rescaled_gamma(0.995, stream) ** ours == pytest.approx(0.995**published, rel=1e-6)


def test_the_gap_is_zero_for_naive_training_and_one_for_the_oracle(stream: Stream) -> None:
    runs = {"naive": [outcome(1.5)] * 2, "oracle": [outcome(1.0)] * 2, "half": [outcome(1.25)]}
    rows = {row.name: row for row in measure(stream, runs, []).rows}
    for name, share in {"naive": 0.0, "oracle": 1.0, "half": 0.5}.items():
        assert rows[name].gap_closed == pytest.approx(share)
        assert rows[name].interval == pytest.approx((share, share))
        assert rows[name].gap_closed_before_drain == pytest.approx(share)
        assert np.isnan(rows[name].gap_closed_on_the_way)
    assert rows["half"].backward_transfer == pytest.approx(0)


def test_on_the_way_the_oracle_is_that_of_the_votes_so_far(stream: Stream) -> None:
    runs = {"naive": [outcome(1.5)], "oracle": [outcome(1.0)], "half": [outcome(1.25)]}
    rows = {row.name: row for row in measure(stream, runs, [outcome(1.3)] * SLICES).rows}
    assert rows["half"].gap_closed_on_the_way == pytest.approx((1.5 - 1.25) / (1.5 - 1.3))


def test_who_waits_too_long_misses_a_bar(stream: Stream) -> None:
    votes = len(stream.pairs)
    runs = {
        "naive": [outcome(1.5), outcome(1.5)],
        "oracle": [outcome(1.0), outcome(1.0)],
        "good": [outcome(1.02)],
        "late": [outcome(1.02, most_waiting=votes // 5)],
        "dear": [outcome(1.02, trained=2 * votes)],
        "poor": [outcome(1.2)],
    }
    table = measure(stream, runs, [outcome(1.0)] * SLICES)
    missed = {name: [bar.text for bar in bars(table, name)[2:] if not bar.holds] for name in runs}
    assert missed["good"] == []
    assert missed["late"] == ["at most 10 % of the stream waits"]
    assert missed["dear"] == ["at most 1.25 times the compute of naive"]
    assert missed["poor"][0] == "ours closes at least 90 %"
