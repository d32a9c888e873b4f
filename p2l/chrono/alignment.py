"""Which slices a checkpoint is asked about.

By number: those up to its own. By time: a checkpoint c of a run that saves every f batches is asked about the slices
that ended before T, the latest time of a vote in its last f batches (those numbered c - f to c - 1, from 0): a buffer
may have trained on votes that are older, or newer, than the batch number says.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from p2l.errors import InputError

__all__ = ["Plan", "by_number", "by_time", "read_times"]

Plan = dict[int, list[int]]
"""Checkpoint: the numbers of its slices, both in order."""


def by_number(checkpoints: Sequence[int], slices: Sequence[int], *, all_slices: bool = False) -> Plan:
    """Each checkpoint with the slices up to it, or with all of them.

    Raises:
        InputError: every slice is later than every checkpoint.
    """
    return _checked({c: [v for v in slices if all_slices or v <= c] for c in checkpoints}, slices)


def by_time(
    checkpoints: Sequence[int], slices: Sequence[int], train: Mapping[int, float], val: Mapping[int, float]
) -> Plan:
    """Each checkpoint with the slices that ended before its last votes.

    Args:
        checkpoints: their numbers, in order.
        slices: their numbers, in order.
        train: last vote time, in seconds, of each training batch.
        val: of each slice.

    Raises:
        InputError: checkpoints that are not evenly spaced, or a batch or slice without a time.
    """
    spacing = checkpoints[0]
    for place, number in enumerate(checkpoints, 1):
        if spacing < 1 or number != place * spacing:
            raise InputError(
                f"--time-align needs checkpoints at even distances, each a multiple of the first, {spacing}; "
                f"{number} is number {place}: remove it or those around it"
            )
    missing = next((number for number in slices if number not in val), None)
    if missing is not None:
        raise InputError(f"--val-time: has no time of slice {missing}")
    until = {c: _latest(train, c - spacing, c) for c in checkpoints}
    return _checked({c: [v for v in slices if val[v] < until[c]] for c in checkpoints}, slices)


def _latest(train: Mapping[int, float], first: int, end: int) -> float:
    missing = next((batch for batch in range(first, end) if batch not in train), None)
    if missing is not None:
        raise InputError(f"--train-time: has no time of batch {missing}, which checkpoint {end} was trained on")
    return max(train[batch] for batch in range(first, end))


def _checked(plan: Plan, slices: Sequence[int]) -> Plan:
    if not any(plan.values()):
        raise InputError(
            f"no checkpoint (the last is {max(plan)}) is as late as a slice (the first is {min(slices)}); "
            "give slices of the run's own time"
        )
    return plan


def read_times(path: str) -> dict[int, float]:
    """Number: time in seconds, from a JSON object of `{"end_tstamp": seconds}` by number.

    Raises:
        InputError: the file cannot be read, or holds something else.
    """
    try:
        content = json.loads(Path(path).expanduser().read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: cannot be read as JSON: {error}") from error
    if not isinstance(content, dict) or not content:
        raise InputError(f'{path}: must be an object such as {{"0": {{"end_tstamp": 1.7e9}}}}')
    return {_number(path, key): _seconds(path, key, value) for key, value in content.items()}


def _number(path: str, key: str) -> int:
    if not key.isdecimal():
        raise InputError(f"{path}: key {key!r} is no number of a batch or slice")
    return int(key)


def _seconds(path: str, key: str, value: Any) -> float:
    seconds = value.get("end_tstamp") if isinstance(value, dict) else value
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not math.isfinite(seconds):
        raise InputError(f"{path}: key {key!r} must hold {{'end_tstamp': seconds}}, not {value!r:.60}")
    return float(seconds)
