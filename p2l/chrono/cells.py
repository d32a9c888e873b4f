"""The files of `p2l eval-chrono`: predictions of a checkpoint for a slice, and how well it forecast its votes.

| file | holds |
|---|---|
| checkpoint-C/checkpoint-C-val-V.json | rows of the slice as they are, with labels, coefs, eta, gamma, truncated |
| checkpoint-C/checkpoint-C-val-V.info.json | of which model and slice, votes left out, every metric |
| checkpoint-C/model_list.json | the names that labels and coefs of this checkpoint refer to |

The info file is there only when the rows are whole.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from p2l.batch_inference.output import as_batch, json_array, json_records, lock_folder
from p2l.chrono.slices import ValidationSlice
from p2l.common.errors import CheckpointError
from p2l.common.files import write_json
from p2l.metrics import METRICS, simple_metrics
from p2l.model.checkpoint import read_object
from p2l.votes.schema import IntArray

if TYPE_CHECKING:
    from p2l.inference import Prediction

_ROWS_AT_A_TIME = 1024  # that are formatted together


@dataclass(frozen=True)
class CellInputs:
    """Everything that the numbers of a cell depend on: checkpoint, slice and flags."""

    revision: str
    fingerprint: str
    model_type: str | None
    head_type: str | None
    loss_type: str | None
    max_length: int | None
    dtype: str | None


@dataclass(frozen=True)
class CellFiles:
    """The files of one checkpoint and one slice."""

    folder: Path
    checkpoint: str
    slice: int

    @property
    def rows_file(self) -> Path:
        """The rows with predictions."""
        return self.folder / f"{self.checkpoint}-val-{self.slice}.json"

    @property
    def info_file(self) -> Path:
        """The description of the rows."""
        return self.rows_file.with_suffix(".info.json")

    def info(self, source: CellInputs) -> dict[str, Any] | None:
        """Return the description of the rows, if they are whole and of this very source."""
        if not self.rows_file.is_file():
            return None
        try:
            info = read_object(self.info_file, missing={})
        except CheckpointError:  # somebody has edited it
            return None
        return info if info.get("source") == asdict(source) else None


@contextlib.contextmanager
def claimed(folder: Path) -> Iterator[None]:
    """Keep the folder of a checkpoint to this run, without what a killed run has left unfinished there."""
    lock = lock_folder(folder)
    try:
        for file in folder.glob(".*.tmp"):
            file.unlink()
        yield
    finally:
        os.close(lock)


def remove_others(folder: Path, checkpoint: str, revision: str) -> None:
    """Delete cells of another model of the same name, lest two models be mistaken for one."""
    for file in sorted(folder.glob(f"{checkpoint}-val-*.info.json")):
        if f'"revision": "{revision}"'.encode() not in file.read_bytes():  # whatever else it holds
            file.unlink()
            file.with_name(file.name.replace(".info.json", ".json")).unlink(missing_ok=True)


def write_cell(
    cell: CellFiles,
    source: CellInputs,
    votes: ValidationSlice,
    ids: IntArray,
    labels: IntArray,
    predictions: Prediction,
    about: dict[str, Any],
) -> dict[str, Any]:
    """Write the rows, then the info file; return what that holds: `about`, with `loss_type`, and more.

    `ids` (N,) are those of the slice's votes that are between models of the checkpoint's list, `labels` (N, 3) refer to
    that list, and `predictions` are for the prompt of each of the N votes.
    """
    cell.info_file.unlink(missing_ok=True)  # it is of the rows that are replaced now
    batch = as_batch(predictions)
    with json_array(cell.rows_file) as write:
        for start in range(0, len(ids), _ROWS_AT_A_TIME):
            places = slice(start, start + _ROWS_AT_A_TIME)
            rows = votes.votes.rows(ids[places])
            labelled = [row | {"labels": label} for row, label in zip(rows, labels[places].tolist(), strict=True)]
            for record in json_records(labelled, batch.slice(start, _ROWS_AT_A_TIME)):
                write(record)
    info = about | {
        "source": asdict(source),
        "checkpoint": cell.checkpoint,
        "slice": cell.slice,
        "slice_file": votes.file.name,
        "votes": len(ids),
        "left_out": len(votes.votes) - len(ids),
        "prompts": len(np.unique(votes.prompts[ids])),
        "truncated": int(predictions.truncated.sum()),
        "metrics": dict.fromkeys(METRICS),
    }
    if len(labels):
        info["metrics"] = simple_metrics(
            predictions.coefs, labels, predictions.eta, predictions.gamma, likelihood=about["loss_type"]
        )
    write_json(cell.info_file, info, indent=2)
    return info
