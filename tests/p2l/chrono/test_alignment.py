"""Which slices a checkpoint is asked about."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from p2l.chrono.matrix import by_number, by_time, read_times
from p2l.common.errors import InputError

TRAIN = {batch: 10.0 * (batch + 1) for batch in range(6)}  # batch 0 ends at 10, batch 5 at 60


def test_by_number_a_checkpoint_gets_the_slices_up_to_its_own() -> None:
    assert by_number([2, 4], [1, 2, 3, 5]) == {2: [1, 2], 4: [1, 2, 3]}
    assert by_number([2, 4], [1, 5], all_slices=True) == {2: [1, 5], 4: [1, 5]}
    assert by_number([2, 4], [3]) == {2: [], 4: [3]}


def test_by_time_a_checkpoint_gets_the_slices_that_ended_before_its_last_votes() -> None:
    # Of checkpoint 4 at distance 2, batches 2 and 3 count, the later of which ends at 40; 40 itself is too late.
    plan = by_time([2, 4, 6], [2, 4, 6], TRAIN, {2: 19.9, 4: 40.0, 6: 55.0})
    assert plan == {2: [2], 4: [2], 6: [2, 4, 6]}


def test_a_buffer_may_have_trained_on_later_votes_first() -> None:
    assert by_time([2, 4], [1], {0: 90.0, 1: 20.0, 2: 30.0, 3: 31.0}, {1: 50.0}) == {2: [1], 4: []}


@pytest.mark.parametrize(
    ("checkpoints", "train", "val", "message"),
    [
        ([2, 4, 7], TRAIN, {1: 1.0}, r"even distances, each a multiple of the first, 2; 7 is number 3"),
        ([0, 2], TRAIN, {1: 1.0}, "even distances"),
        ([4, 6], TRAIN, {1: 1.0}, "even distances"),
        ([3, 6], {0: 1.0, 1: 2.0, 2: 3.0}, {1: 1.0}, "no time of batch 3, which checkpoint 6"),
        ([3, 6], TRAIN, {2: 1.0}, "--val-time: has no time of slice 1"),
        ([3, 6], TRAIN, {1: 99.0}, "no checkpoint"),
    ],
)
def test_what_cannot_be_aligned_is_refused(
    checkpoints: list[int], train: dict[int, float], val: dict[int, float], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        by_time(checkpoints, [1], train, val)


def test_slices_that_are_all_too_late_are_refused() -> None:
    with pytest.raises(InputError, match=r"the last is 4.*the first is 5"):
        by_number([2, 4], [5])


def test_times_are_read_by_number(tmp_path: Path) -> None:
    path = tmp_path / "times.json"
    path.write_text(json.dumps({"0": {"end_tstamp": 1.5}, "10": 2}), encoding="utf-8")
    assert read_times(str(path)) == {0: 1.5, 10: 2.0}


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"a": 1}', '{"1": null}', '{"1": {"end": 1}}', '{"1": NaN}', '{"1": true}']
)
def test_times_that_are_none_are_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "times.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=r"times\.json"):
        read_times(str(path))
