import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from p2l.schedule import OfflineSchedule


@given(
    num_votes=st.integers(1, 60),
    global_batch=st.integers(1, 20),
    epochs=st.integers(1, 3),
    shuffle=st.booleans(),
    data=st.data(),
)
def test_each_epoch_takes_every_vote_once_and_a_resumed_run_takes_the_rest(
    num_votes: int, global_batch: int, epochs: int, shuffle: bool, data: st.DataObject
) -> None:
    schedule = OfflineSchedule(num_votes, global_batch, epochs, shuffle=shuffle, seed=3)
    steps = list(schedule.steps())
    assert len(steps) == schedule.total_steps
    per_epoch = schedule.steps_per_epoch
    for epoch in range(epochs):
        taken = np.concatenate(steps[epoch * per_epoch : (epoch + 1) * per_epoch])
        assert sorted(taken) == list(range(num_votes))
        if not shuffle:
            assert list(taken) == list(range(num_votes))
    start = data.draw(st.integers(0, schedule.total_steps))
    resumed = list(schedule.steps(start))
    assert len(resumed) == len(steps) - start
    assert all(np.array_equal(a, b) for a, b in zip(resumed, steps[start:], strict=True))


def test_epochs_are_shuffled_differently_and_seeds_too() -> None:
    def order(seed: int) -> list[int]:
        return [int(i) for ids in OfflineSchedule(50, 50, 2, shuffle=True, seed=seed).steps() for i in ids]

    assert order(1) == order(1) != order(2)
    assert order(1)[:50] != order(1)[50:]
