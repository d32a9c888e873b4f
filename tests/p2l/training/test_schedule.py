import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from p2l.training.trainer import OfflineSchedule


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


@given(
    prompts=st.lists(st.integers(0, 7), min_size=1, max_size=40),
    global_batch=st.integers(1, 20),
    seed=st.integers(0, 9),
)
def test_a_shuffle_by_prompt_keeps_the_votes_of_a_prompt_together(
    prompts: list[int], global_batch: int, seed: int
) -> None:
    codes = np.unique(prompts, return_inverse=True)[1]
    schedule = OfflineSchedule(len(prompts), global_batch, 2, shuffle=True, seed=seed, prompts=codes)
    order = np.concatenate(list(schedule.steps()))
    for epoch in np.split(order, 2):
        assert sorted(epoch) == list(range(len(prompts)))
        changes = int((np.diff(codes[epoch]) != 0).sum())
        assert changes == len(set(prompts)) - 1


def test_a_shuffle_by_prompt_moves_prompts_and_the_votes_within_them() -> None:
    codes = np.repeat(np.arange(20), 5)
    schedule = OfflineSchedule(100, 100, 2, shuffle=True, seed=1, prompts=codes)
    first, second = schedule.steps()
    assert list(codes[first]) != list(codes[second])
    within = [list(epoch[codes[epoch] == 7]) for epoch in (first, second)]
    assert within[0] != within[1]
    assert sorted(within[0]) == sorted(within[1])


def test_epochs_are_shuffled_differently_and_seeds_too() -> None:
    def order(seed: int) -> list[int]:
        return [int(i) for ids in OfflineSchedule(50, 50, 2, shuffle=True, seed=seed).steps() for i in ids]

    assert order(1) == order(1) != order(2)
    assert order(1)[:50] != order(1)[50:]
