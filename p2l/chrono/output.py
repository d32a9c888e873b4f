"""The files of `p2l eval-chrono`: what a checkpoint says of a slice, and how well it forecast its votes.

| file | holds |
|---|---|
| checkpoint-C/checkpoint-C-val-V.json | rows of the slice as they are, with labels, coefs, eta, gamma, truncated |
| checkpoint-C/checkpoint-C-val-V.info.json | of which model and slice, votes left out, every metric |
| checkpoint-C/model_list.json | the names that labels and coefs of this checkpoint refer to |

The info file is there only when the rows are whole.

Shapes: N votes of a slice that count, M models.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from p2l.batch_inference.output import json_records
from p2l.batch_inference.parts import as_batch
from p2l.checkpoint import MODEL_LIST_FILE, read_object, write_json
from p2l.chrono.slices import Slice
from p2l.claim import try_lock
from p2l.command import atomic_path
from p2l.errors import CheckpointError, InputError
from p2l.inference import Prediction
from p2l.metrics import METRICS, simple_metrics
from p2l.votes.codes import IntArray

__all__ = ["Cell", "Source", "claimed", "remove_others", "write_cell", "write_model_list"]

_ROWS = 1024  # formatted at a time


@dataclass(frozen=True)
class Source:
    """What decides the numbers of a cell."""

    revision: str
    """of the checkpoint"""
    fingerprint: str
    """of the slice"""
    model_type: str | None
    head_type: str | None
    loss_type: str | None
    max_length: int | None
    dtype: str | None


@dataclass(frozen=True)
class Cell:
    """The files of one checkpoint and one slice."""

    folder: Path
    checkpoint: str
    slice: int

    @property
    def rows_file(self) -> Path:
        """The rows and what the model says of them."""
        return self.folder / f"{self.checkpoint}-val-{self.slice}.json"

    @property
    def info_file(self) -> Path:
        """What the rows are of."""
        return self.rows_file.with_suffix(".info.json")

    def info(self, source: Source) -> dict[str, Any] | None:
        """What is known of the rows, if they are there, whole, and of this very source."""
        if not self.rows_file.is_file():
            return None
        try:
            found = read_object(self.info_file, missing={})
        except CheckpointError:  # somebody has edited it
            return None
        return found if found.get("source") == asdict(source) else None


@contextlib.contextmanager
def claimed(folder: Path) -> Iterator[None]:
    """Keep the folder of a checkpoint to this run, without what a kill has left unfinished there.

    Raises:
        InputError: another run is writing there, or the folder cannot be made.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = os.open(folder, os.O_RDONLY)
    except OSError as error:
        raise InputError(f"{folder}: cannot be written: {error.strerror or error}") from error
    try:
        if not try_lock(lock):
            raise InputError(f"{folder}: another run is writing there; wait for it, or choose another --output-dir")
        for file in folder.glob(".*.tmp"):
            file.unlink()
        yield
    finally:
        os.close(lock)


def remove_others(folder: Path, checkpoint: str, revision: str) -> None:
    """Delete cells of another model that was called so, lest two models be taken for one."""
    for file in sorted(folder.glob(f"{checkpoint}-val-*.info.json")):
        if f'"revision": "{revision}"'.encode() not in file.read_bytes():  # whatever else it holds
            file.unlink()
            file.with_name(file.name.replace(".info.json", ".json")).unlink(missing_ok=True)


def write_model_list(folder: Path, names: list[str]) -> None:
    """Say what labels and coefficients in the folder refer to."""
    with atomic_path(folder / MODEL_LIST_FILE) as temporary:
        write_json(temporary, names)


def write_cell(
    cell: Cell, source: Source, votes: Slice, ids: IntArray, labels: IntArray, said: Prediction, about: dict[str, Any]
) -> dict[str, Any]:
    """Write the rows, then the info file; returns what that holds.

    Args:
        cell: where.
        source: what decided the numbers.
        votes: the slice.
        ids: (N,) those of its votes that are between models of the list.
        labels: (N, 3) in the list of the checkpoint.
        said: of each of the N votes' prompts.
        about: `loss_type` and whatever else the info file shall say.

    Raises:
        InputError: a file cannot be written.
    """
    cell.info_file.unlink(missing_ok=True)  # it is of the rows that are replaced now
    _write_rows(cell.rows_file, votes, ids, labels, said)
    info = about | {
        "source": asdict(source),
        "checkpoint": cell.checkpoint,
        "slice": cell.slice,
        "slice_file": votes.file.name,
        "votes": len(ids),
        "left_out": len(votes.votes) - len(ids),
        "prompts": len(np.unique(votes.prompts[ids])),
        "truncated": int(said.truncated.sum()),
        "metrics": _metrics(said, labels, about["loss_type"]),
    }
    with atomic_path(cell.info_file) as temporary:
        write_json(temporary, info)
    return info


def _write_rows(path: Path, votes: Slice, ids: IntArray, labels: IntArray, said: Prediction) -> None:
    batch, between = as_batch(said), "[\n"
    with atomic_path(path) as temporary, temporary.open("w", encoding="utf-8") as file:
        for start in range(0, len(ids), _ROWS):
            part = slice(start, start + _ROWS)
            rows = votes.votes.rows(ids[part])
            named = [row | {"labels": label} for row, label in zip(rows, labels[part].tolist(), strict=True)]
            for record in json_records(named, batch.slice(start, _ROWS)):
                file.write(between + record)
                between = ",\n"
        file.write("\n]\n" if len(ids) else "[]\n")


def _metrics(said: Prediction, labels: IntArray, loss_type: str) -> dict[str, float | None]:
    if not len(labels):
        return dict.fromkeys(METRICS)
    return simple_metrics(said.coefs, labels, said.eta, said.gamma, likelihood=loss_type)
