"""Votes from the stream through the buffer to optimizer steps.

The stream is read a batch of new votes at a time, so what a step knows of it does not depend on when votes came. What
is read ahead of training would be lost at a kill; so the state is kept at every step that will be saved.
"""

from __future__ import annotations

import hashlib
import json
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from p2l.common.errors import CheckpointError, InputError
from p2l.model.checkpoint import read_json
from p2l.online_training.buffer import Buffer, Ids, NewVotes, saved_arrays, with_prefix, without_prefix
from p2l.online_training.stream import StepFacts, VoteStream

_BUFFER_PREFIX = "buffer."
_STEPS_REMEMBERED = 4  # steps, more than are read ahead


class OnlineSchedule:
    """A `Schedule` of the trainer; steps are named by how many are done after them."""

    def __init__(
        self,
        stream: VoteStream,
        buffer: Buffer,
        *,
        known_models: int = 0,
        total_steps: int | None = None,
        is_saved: Callable[[int], bool] = lambda _: False,
    ) -> None:
        """Begin at the first vote of the stream, with the first `known_models` of its list.

        `total_steps` are those of the whole stream, None where it grows; `is_saved` tells the steps that will be saved,
        which `state` is called for.
        """
        self.total_steps = total_steps
        self.stream = stream
        self.buffer = buffer
        self.began_with = known_models
        """Models that the run knew before its first vote."""
        self.done = 0
        """Steps whose votes were yielded."""
        self.arrived = 0
        """Votes taken from the stream."""
        self._models = known_models
        self._is_saved = is_saved
        self._ready: deque[Ids] = deque()
        self._ended = False
        self._facts: dict[int, StepFacts] = {}
        self._kept: dict[int, dict[str, Any]] = {}

    def steps(self, start: int = 0) -> Iterator[Ids]:
        """Yield the vote ids of each step, from step `start` on: the first one, or the one whose state was loaded."""
        if start != self.done:
            raise ValueError(f"the schedule stands at step {self.done}, not {start}")
        while self._ready or not self._ended:
            if not self._ready:
                self._take()
                continue
            ids = self._ready.popleft()
            self.done += 1
            lag = {name: value for name, value in self.buffer.lag.as_dict().items() if value is not None}
            self._facts[self.done] = StepFacts(arrived=self.arrived, waiting=self.waiting, models=self._models, lag=lag)
            self._facts.pop(self.done - _STEPS_REMEMBERED, None)
            # Training reads ahead: by the time of the checkpoint the buffer has moved on.
            if self._is_saved(self.done):
                self._kept[self.done] = self._state()
            yield ids

    def repeat(self, ids: Ids) -> None:
        """Train on votes that have arrived once more, in the next steps."""
        size = self.buffer.batch_size
        again = [ids[start : start + size] for start in range(0, len(ids), size)]
        self._ready.extendleft(reversed(again))  # which puts the last one first

    @property
    def waiting(self) -> int:
        """Votes that have arrived and were not trained on yet."""
        return self.buffer.waiting + sum(map(len, self._ready))

    def facts(self, step: int) -> StepFacts:
        """Return where the stream stood when the votes of a recent step were chosen."""
        return self._facts[step]

    def state(self, step: int) -> Mapping[str, Any]:
        """Return what `load_state` needs to go on after `step`, the last one yielded or one that `is_saved`."""
        if step in self._kept:
            # Nobody asks for an earlier step once a later one is saved.
            self._kept = {number: state for number, state in self._kept.items() if number >= step}
            return self._kept[step]
        if step != self.done:
            raise ValueError(f"the state after step {step} was not kept")
        return self._state()

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on after the step that the state was saved at; CheckpointError if it belongs to another buffer."""
        self.buffer.load_state_dict(without_prefix(_BUFFER_PREFIX, state))
        self.arrived = int(state["arrived"])
        self._models = int(state["models"])
        self.began_with = int(state["began_with"])
        self.done = int(state["done"])
        ends = np.cumsum(state["ready_sizes"])[:-1]
        # Of no sizes `np.split` makes one batch, without votes.
        self._ready = deque(np.split(state["ready"], ends)) if len(state["ready_sizes"]) else deque()

    def _state(self) -> dict[str, Any]:
        empty = np.zeros(0, dtype=np.int64)
        return {
            "arrived": self.arrived,
            "models": self._models,
            "began_with": self.began_with,
            "done": self.done,
            "ready": np.concatenate([empty, *self._ready]),
            "ready_sizes": np.array([len(ids) for ids in self._ready], dtype=np.int64),
            **with_prefix(_BUFFER_PREFIX, self.buffer.state_dict()),
        }

    def _take(self) -> None:
        """Add a batch of new votes to the buffer, or what is left of the stream, and end it."""
        end = self.arrived + self.buffer.batch_size
        there = self.stream.wait_for(end)
        if there > self.arrived:
            new = NewVotes.of(self.stream, np.arange(self.arrived, there))
            self.arrived = there
            self._models = max(self._models, int(new.model_a.max()) + 1, int(new.model_b.max()) + 1)
            self._ready.extend(batch for batch in self.buffer.add(new) if len(batch))
        if there < end:
            self._ready.extend(ids for ids in self.buffer.drain() if len(ids))
            self._ended = True


def count_steps(stream: VoteStream, buffer: Buffer, state: Mapping[str, Any] | None = None) -> int:
    """Count the steps of a data set by running all of it, or what follows `state`, through `buffer`."""
    schedule = OnlineSchedule(stream, buffer)
    if state is not None:
        schedule.load_state(state)
    return schedule.done + sum(1 for _ in schedule.steps(schedule.done))


# The stream in a checkpoint, `stream_state.npz`: where it stood, what waits in the buffer and what it counts, which
# batches were ready, the rows of the head and the model list. The votes are not in it: a fingerprint tells whether the
# run goes on with the same ones, followed by any that have come since.

STREAM_STATE = "stream_state.npz"
_MODEL_LIST_KEY, _HEAD_ROWS_KEY = "model_list", "head_rows"
_VOTES_HASHED_TOGETHER = 1 << 18
_VOTE_RECORD = np.dtype([("labels", "<i4", 3), ("weight", "<f8"), ("tstamp", "<f8")])


def write_stream_state(folder: Path, state: Mapping[str, Any], model_list: list[str], head_rows: int) -> None:
    """Write the state of a schedule, the models known at its step, and the rows of the head."""
    values: dict[str, Any] = {**state, _MODEL_LIST_KEY: json.dumps(model_list), _HEAD_ROWS_KEY: head_rows}
    with (folder / STREAM_STATE).open("wb") as file:
        np.savez(file, **values)


def read_stream_state(checkpoint: Path, model_list: list[str]) -> tuple[dict[str, Any], int]:
    """Read the state of the schedule and the rows of the head; `model_list` is that of the checkpoint.

    CheckpointError if the file is missing (a checkpoint of offline training), damaged, or of another model list.
    """
    path = checkpoint / STREAM_STATE
    if not path.is_file():
        raise CheckpointError(
            f"{checkpoint}: is a checkpoint of offline training and holds no {STREAM_STATE}; "
            "name the finished model in the folder above it, whose weights a new online run can start from"
        )
    with saved_arrays(path) as state:
        names, rows = json.loads(str(state.pop(_MODEL_LIST_KEY))), int(state.pop(_HEAD_ROWS_KEY))
    if names != model_list:
        raise CheckpointError(
            f"{checkpoint}: its model_list.json is not the list that it was trained with "
            f"({len(model_list)} names, {len(names)} were trained); put the right one back"
        )
    return {name: value.item() if value.ndim == 0 else value for name, value in state.items()}, rows


def read_counts(path: Path, model_list: list[str]) -> dict[int, int]:
    """Read `--initial-counts`: how many votes each model had, by its place in the list; InputError if malformed."""
    if not path.is_file():
        raise InputError(f"{path}: no such file; --initial-counts takes a JSON object of model names and counts")
    counts = read_json(path)
    if not isinstance(counts, dict):
        raise InputError(f"{path}: must be a JSON object of model names and how often each was seen")
    place = {name: position for position, name in enumerate(model_list)}
    for name, count in counts.items():
        if isinstance(count, bool) or not isinstance(count, int) or count < 0:
            raise InputError(f"{path}: key {name!r}: must be a whole number of votes, got {count!r}")
        if name not in place:
            raise InputError(f"{path}: key {name!r}: is not a model of the checkpoint's model_list.json; remove it")
    return {place[name]: count for name, count in counts.items()}


class StreamFingerprint:
    """Tells the first votes of a stream from others: a hash of labels, weights, times and names, and of 1,000 prompts.

    At rising counts it reads each vote once.
    """

    def __init__(self, stream: VoteStream) -> None:
        """Read nothing yet."""
        self._stream = stream
        self._digest = hashlib.blake2b(digest_size=16)
        self._count = 0
        self._models = 0

    def of_first(self, count: int) -> str:
        """Return the fingerprint of the first `count` votes."""
        if count < self._count:
            self._digest = hashlib.blake2b(digest_size=16)
            self._count = 0
            self._models = 0
        for start in range(self._count, count, _VOTES_HASHED_TOGETHER):
            ids = np.arange(start, min(start + _VOTES_HASHED_TOGETHER, count))
            votes = np.zeros(len(ids), dtype=_VOTE_RECORD)
            votes["labels"] = self._stream.labels(ids)
            votes["weight"] = self._stream.weights(ids)
            times = self._stream.tstamps(ids)
            # A NaN has many bit patterns, and bytes are hashed.
            votes["tstamp"] = 0.0 if times is None else np.nan_to_num(times, nan=-1.0)
            self._models = max(self._models, int(votes["labels"][:, :2].max()) + 1)
            self._digest.update(votes.tobytes())
        self._count = count
        # Reading all prompts again would take longer than going on does.
        sample = np.unique(np.linspace(0, max(count - 1, 0), 1000).astype(np.int64))[:count]
        whole = self._digest.copy()
        names = self._stream.model_list[: self._models]
        whole.update(json.dumps([count, names, self._stream.prompts(sample)]).encode())
        return whole.hexdigest()
