"""The estimate of a run's length, on a clock that the tests turn."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2l.training.trainer import TimeLeft, in_words


class Clock:
    """A clock that stands still until it is moved."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def run(steps: int, seconds: float, *, total: int = 100, first: float = 0.0) -> tuple[TimeLeft, list[str]]:
    """Steps of 10 votes and 500 tokens, of `total` such steps; the first takes `first` seconds longer."""
    clock = Clock()
    left, said = TimeLeft(10 * total, clock=clock), []
    for step in range(steps):
        clock.now += seconds + (first if step == 0 else 0.0)
        left.step(10, 500)
        if (line := left.announcement()) is not None:
            said.append(line)
    return left, said


def test_nothing_is_said_before_a_minute_and_then_once() -> None:
    assert run(59, 1.0)[1] == []
    left, said = run(70, 1.0)
    assert said == ["training will take about 40 seconds more (60% done, 500 tokens/s)"]
    assert left.seconds == pytest.approx(30.0)


def test_one_time_work_in_the_first_step_does_not_count() -> None:
    left, said = run(2, 3.0, first=90.0)
    assert said == ["training will take about 5 minutes more (2% done, 167 tokens/s)"]
    assert left.seconds == pytest.approx(98 * 3.0)


def test_what_happens_between_steps_counts() -> None:
    clock = Clock()
    left = TimeLeft(40, clock=clock)
    for saving in (0.0, 8.0, 8.0):
        clock.now += saving
        clock.now += 2.0
        left.step(10, 100)
    assert left.seconds == pytest.approx(10.0)


def test_one_step_says_nothing_and_the_last_steps_neither() -> None:
    assert run(1, 100.0)[0].seconds is None
    assert run(1, 100.0)[1] == []
    assert run(100, 0.601)[1] == []


@given(
    lengths=st.lists(st.integers(50, 200), min_size=40, max_size=40),
    rate=st.floats(10, 1e5),
    seen=st.integers(10, 39),
)
def test_the_estimate_is_right_within_the_spread_of_the_lengths(lengths: list[int], rate: float, seen: int) -> None:
    clock = Clock()
    left = TimeLeft(40, clock=clock)
    for length in lengths[:seen]:
        clock.now += length / rate
        left.step(1, length)
    truth = sum(lengths[seen:]) / rate
    assert left.seconds is not None
    assert truth / 4 <= left.seconds <= truth * 4
    assert left.tokens_per_second == pytest.approx(rate, rel=1e-3)


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0.2, "1 second"),
        (40, "40 seconds"),
        (100, "2 minutes"),
        (3000, "50 minutes"),
        (7200, "2.0 hours"),
        (86400 * 3.25, "3.2 days"),
    ],
)
def test_durations_read_like_durations(seconds: float, words: str) -> None:
    assert in_words(seconds) == words
