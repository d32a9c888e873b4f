"""The schedule of online training, on a stream of numbers."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from p2l.online_training.buffer import Buffer
from p2l.online_training.buffers import BufferSettings, make_buffer
from p2l.online_training.live_votes import StopRequestedError
from p2l.online_training.schedule import OnlineSchedule, count_steps

BUFFERS = [
    BufferSettings(),
    BufferSettings(type="geometric", gamma=0.8, epsilon=0.2),
    BufferSettings(type="replay", epsilon=0.3, min_batches=1, limit=7),
    BufferSettings(type="replay", on=BufferSettings(type="geometric", gamma=0.8, epsilon=0.2)),
]


class Numbers:
    """A stream of `count` votes on models that join one after the other; `there` of them have come."""

    name = "numbers"
    has_weights = False
    grows = True

    def __init__(self, count: int, come: Callable[[], int] = lambda: 10**9) -> None:
        rng = np.random.default_rng(count)
        known = 2 + np.arange(count) // 9
        self._pairs = np.stack([rng.integers(known - 1), known - 1], axis=1).astype(np.int32)
        self._there, self._come = 0, come
        self.model_list = [f"m{number}" for number in range(int(known.max()) + 1)]

    def __len__(self) -> int:
        return len(self._pairs)

    def wait_for(self, count: int) -> int:
        while self._there < min(count, len(self)):
            come = self._come()
            if not come:
                raise StopRequestedError
            self._there += come
        return min(count, len(self))

    def pairs(self, ids: Any = None) -> NDArray[np.int32]:
        return self._pairs if ids is None else self._pairs[ids]

    def tstamps(self, ids: Any = None) -> None:
        del ids

    def prompts(self, ids: Any = None) -> list[list[str]]:
        raise AssertionError(f"a schedule reads no prompts: {ids}")

    labels = weights = prompts  # type: ignore[assignment]


def buffer(settings: BufferSettings) -> Buffer:
    return make_buffer(settings, 5, seed=3)


@given(count=st.integers(1, 80), settings=st.sampled_from(BUFFERS), data=st.data())
def test_a_schedule_goes_on_from_any_step_as_if_it_had_never_stopped(
    count: int, settings: BufferSettings, data: st.DataObject
) -> None:
    whole = OnlineSchedule(Numbers(count), buffer(settings), is_saved=lambda _: True)
    steps, states, facts = [], {}, {}
    for number, ids in enumerate(whole.steps(), start=1):
        steps.append(ids)
        facts[number] = whole.facts(number)
        states[number] = dict(whole.state(number))
    assert len(steps) == count_steps(Numbers(count), buffer(settings))
    assert set(np.concatenate(steps)) == set(range(count))
    stop = data.draw(st.integers(1, len(steps)))
    assert len(steps) == count_steps(Numbers(count), buffer(settings), states[stop])
    resumed = OnlineSchedule(Numbers(count), buffer(settings))
    resumed.load_state(states[stop])
    rest = list(resumed.steps(stop))
    assert [ids.tolist() for ids in rest] == [ids.tolist() for ids in steps[stop:]]
    if rest:
        assert resumed.facts(len(steps)) == facts[len(steps)]
    assert resumed.waiting == whole.waiting == 0


@given(come=st.lists(st.integers(1, 9), min_size=1), settings=st.sampled_from(BUFFERS))
def test_when_votes_came_decides_nothing(come: list[int], settings: BufferSettings) -> None:
    slowly = iter([*come, 10**9])
    one = OnlineSchedule(Numbers(60), buffer(settings)).steps()
    two = OnlineSchedule(Numbers(60, lambda: next(slowly)), buffer(settings)).steps()
    assert [ids.tolist() for ids in one] == [ids.tolist() for ids in two]


@pytest.mark.parametrize("settings", BUFFERS)
def test_models_of_a_step_are_those_of_the_votes_that_have_come(settings: BufferSettings) -> None:
    stream = Numbers(60)
    schedule = OnlineSchedule(stream, buffer(settings), known_models=1)
    for number, ids in enumerate(schedule.steps(), start=1):
        facts = schedule.facts(number)
        assert facts.models == stream.pairs()[: facts.arrived].max() + 1
        assert stream.pairs(ids).max() < facts.models


def test_a_run_that_is_told_to_stop_stands_after_its_last_step() -> None:
    def schedule(come: Callable[[], int]) -> OnlineSchedule:
        return OnlineSchedule(Numbers(60, come), buffer(BUFFERS[1]))

    arrivals = iter([23, 0])
    stopped = schedule(lambda: next(arrivals))
    begun: list[list[int]] = []
    with pytest.raises(StopRequestedError):
        begun.extend(ids.tolist() for ids in stopped.steps())
    resumed = schedule(lambda: 60)
    resumed.load_state(stopped.state(stopped.done))
    whole = [ids.tolist() for ids in schedule(lambda: 60).steps()]
    assert [*whole[: stopped.done], *(ids.tolist() for ids in resumed.steps(stopped.done))] == whole


def test_a_state_that_was_not_kept_cannot_be_had() -> None:
    schedule = OnlineSchedule(Numbers(60), buffer(BUFFERS[0]))
    steps = schedule.steps()
    for _ in range(3):
        next(steps)
    with pytest.raises(ValueError, match="not kept"):
        schedule.state(1)
    with pytest.raises(ValueError, match="stands at step 3"):
        next(schedule.steps(1))
