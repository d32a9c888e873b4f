"""What a checkpoint holds of the stream: `stream_state.npz`, beside the model and the optimizer's state.

Where the stream stood, what waits in the buffer and what it counts, which batches were ready, the room of the head and
the model list. No pickle. The votes themselves are not in it: a fingerprint tells whether the run goes on with the
same ones, followed by any that have come since.

Shapes: n votes.
"""

from __future__ import annotations

import hashlib
import json
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from p2l.checkpoint import read_json
from p2l.errors import CheckpointError, InputError
from p2l.online_training.stream import VoteStream

__all__ = ["STREAM_STATE", "StreamFingerprint", "read_counts", "read_stream_state", "write_stream_state"]

STREAM_STATE = "stream_state.npz"
_NAMES, _ROWS = "model_list", "head_rows"
_CHUNK = 1 << 18
_VOTE = np.dtype([("labels", "<i4", 3), ("weight", "<f8"), ("tstamp", "<f8")])


def write_stream_state(folder: Path, state: Mapping[str, Any], model_list: list[str], head_rows: int) -> None:
    """Write the state of a schedule, the models known at its step, and the rows of the head."""
    values: dict[str, Any] = {**state, _NAMES: json.dumps(model_list), _ROWS: head_rows}
    with (folder / STREAM_STATE).open("wb") as file:
        np.savez(file, **values)


def read_stream_state(checkpoint: Path, model_list: list[str]) -> tuple[dict[str, Any], int]:
    """The state of the schedule and the rows of the head; `model_list` is the checkpoint's own.

    Raises:
        CheckpointError: there is none (the checkpoint is of offline training), it is damaged, or of another model list.
    """
    path = checkpoint / STREAM_STATE
    if not path.is_file():
        raise CheckpointError(
            f"{checkpoint}: is a checkpoint of offline training and holds no {STREAM_STATE}; "
            "give the finished model in the folder above it, whose weights a new online run can take over"
        )
    try:
        with path.open("rb") as opened, np.load(opened, allow_pickle=False) as file:
            state = {name: file[name] for name in file.files}
        names, rows = json.loads(str(state.pop(_NAMES))), int(state.pop(_ROWS))
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise CheckpointError(f"{path}: damaged or cut short ({error}); copy the checkpoint again") from error
    if names != model_list:
        raise CheckpointError(
            f"{checkpoint}: its model_list.json is not the list that it was trained with "
            f"({len(model_list)} names, {len(names)} were trained); put the right one back"
        )
    return {name: value.item() if value.ndim == 0 else value for name, value in state.items()}, rows


def read_counts(path: Path, model_list: list[str]) -> dict[int, int]:
    """`--initial-counts`: how often each model was seen, by its position in the list.

    Raises:
        InputError: the file is no JSON object of names and counts, or names a model that is not in the list.
    """
    if not path.is_file():
        raise InputError(f"{path}: no such file; --initial-counts takes a JSON object of model names and counts")
    found = read_json(path)
    if not isinstance(found, dict):
        raise InputError(f"{path}: must be a JSON object of model names and how often each was seen")
    place = {name: position for position, name in enumerate(model_list)}
    for name, count in found.items():
        if isinstance(count, bool) or not isinstance(count, int) or count < 0:
            raise InputError(f"{path}: key {name!r}: must be a whole number of votes, got {count!r}")
        if name not in place:
            raise InputError(f"{path}: key {name!r}: is no model of the checkpoint's model_list.json; remove it")
    return {place[name]: count for name, count in found.items()}


class StreamFingerprint:
    """Tells the first votes of a stream from others: a hash of labels, weights, times and names, and of 1,000 prompts.

    Asked for at rising counts, it reads each vote once.
    """

    def __init__(self, stream: VoteStream) -> None:
        """Read nothing yet."""
        self._stream = stream
        self._digest, self._count, self._models = hashlib.blake2b(digest_size=16), 0, 0

    def of_first(self, count: int) -> str:
        """The fingerprint of the first `count` votes."""
        if count < self._count:
            self._digest, self._count, self._models = hashlib.blake2b(digest_size=16), 0, 0
        for start in range(self._count, count, _CHUNK):
            self._see(np.arange(start, min(start + _CHUNK, count)))
        self._count = count
        sample = np.unique(np.linspace(0, max(count - 1, 0), 1000).astype(np.int64))[:count]
        whole = self._digest.copy()
        names = self._stream.model_list[: self._models]
        whole.update(json.dumps([count, names, self._stream.prompts(sample)]).encode())
        return whole.hexdigest()

    def _see(self, ids: np.ndarray[Any, np.dtype[np.int64]]) -> None:
        votes = np.zeros(len(ids), dtype=_VOTE)
        votes["labels"], votes["weight"] = self._stream.labels(ids), self._stream.weights(ids)
        times = self._stream.tstamps(ids)
        votes["tstamp"] = 0.0 if times is None else np.nan_to_num(times, nan=-1.0)
        self._models = max(self._models, int(votes["labels"][:, :2].max()) + 1)
        self._digest.update(votes.tobytes())
