"""Cut held-out votes into slices by the time of a vote stream: what a model trained on the stream is asked as it goes.

The stream is in time order and is trained on in batches. Slice n holds held-out votes of the time of the batches up to
n, since the slice before, and only those between models that the stream has shown by then. So a checkpoint made after
n batches is of the same time as slice n.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from p2l.command import atomic_path
from p2l.errors import VoteError
from p2l.votes.codes import IntArray
from p2l.votes.sources import FILE_ENDINGS
from p2l.votes.store import VoteStore
from p2l.votes.writer import write_votes

__all__ = ["COLUMNS", "TIMES_FILE", "Slice", "cut_slices", "write_slices"]

Floats = np.ndarray[Any, np.dtype[np.float64]]
COLUMNS = ("question_id", "tstamp", "prompt", "model_a", "model_b", "winner", "labels")
"""What a slice keeps of the votes, where they have it."""
TIMES_FILE = "timestamps.json"
"""Slice number: {"end_tstamp": seconds of its last vote}; what `p2l eval-chrono --val-time` reads."""


@dataclass(frozen=True)
class Slice:
    """Some held-out votes, by their ids in the store."""

    number: int
    """How many batches of the stream were over when its last vote was cast."""
    ids: IntArray


def cut_slices(
    stream: VoteStore, held_out: VoteStore, *, batch_size: int, every: int, most: int | None = None
) -> list[Slice]:
    """Cut held-out votes into slices, one for every `every` batches of `batch_size` votes of the stream.

    Args:
        stream: the votes to train on, in time order.
        held_out: other votes of the same time, in any order.
        batch_size: votes of the stream in a batch.
        every: batches between slices.
        most: votes of a slice at most, evenly spread over its time; None keeps all.

    Raises:
        VoteError: votes without time or a stream out of order, fewer votes than one slice needs, or an empty slice.
    """
    step = batch_size * every
    ends = _ends(stream, step)
    times = _times(held_out)
    order = np.argsort(times, kind="stable")
    place = np.searchsorted(ends, times[order], side="left")
    known = _seen_by(stream, held_out, step, len(ends))
    slices = []
    for number in range(len(ends)):
        ids = order[place == number]
        ids = ids[(known[held_out.labels(ids)[:, :2]] <= number).all(axis=1)]
        if not len(ids):
            raise VoteError(
                f"{held_out.name}: no vote falls into slice {(number + 1) * every}; give more held-out votes"
            )
        slices.append(Slice((number + 1) * every, _thinned(ids, most)))
    return slices


def _ends(stream: VoteStore, step: int) -> Floats:
    """Time of the last vote of the stream that each slice may know of."""
    times = _times(stream)
    early = np.diff(times) < 0
    if early.any():
        vote = int(early.argmax()) + 2
        raise VoteError(f"{stream.name}: vote {vote} is older than the one before it; sort the votes by tstamp first")
    if len(times) < step:
        raise VoteError(f"{stream.name}: holds {len(times)} votes; the first slice needs {step} (batch size x every)")
    return np.asarray(times[step - 1 :: step])


def _times(store: VoteStore) -> Floats:
    times = store.tstamps()
    if times is None:
        raise VoteError(f"{store.name}: no column 'tstamp' to slice by; columns: {', '.join(store.columns)}")
    if np.isnan(times).any():
        raise VoteError(f"{store.name}: vote {int(np.isnan(times).argmax()) + 1} has no tstamp to slice by")
    return np.asarray(times)


def _seen_by(stream: VoteStore, held_out: VoteStore, step: int, slices: int) -> IntArray:
    """(M,) the first slice at whose end the stream has shown each model of the held-out votes."""
    models = stream.labels()[:, :2]
    first = np.full(len(stream.model_list), slices, dtype=np.int64)
    seen, rows = np.unique(models.ravel(), return_index=True)
    first[seen] = rows // 2 // step
    place = dict(zip(stream.model_list, first.tolist(), strict=True))
    return np.array([place.get(name, slices) for name in held_out.model_list])


def _thinned(ids: IntArray, most: int | None) -> IntArray:
    if most is None or len(ids) <= most:
        return ids
    return np.asarray(ids[np.linspace(0, len(ids) - 1, most).round().astype(np.int64)])


def write_slices(
    held_out: VoteStore, slices: Sequence[Slice], folder: Path, *, columns: Sequence[str] = ()
) -> list[Path]:
    """Write each slice as `validation-NUMBER.csv`, oldest vote first, and their times as `timestamps.json`.

    Args:
        held_out: the votes that were cut.
        slices: the pieces.
        folder: made if need be.
        columns: kept beside `COLUMNS`.

    Raises:
        VoteError: a column is missing, or the folder holds slices of another cut.
        InputError: a file cannot be written.
    """
    import pyarrow as pa

    missing = [name for name in columns if name not in held_out.columns]
    if missing:
        raise VoteError(f"{held_out.name}: no column {missing[0]!r}; columns: {', '.join(held_out.columns)}")
    schema = pa.schema([held_out.schema.field(name) for name in _kept(held_out, columns)])
    width = len(str(slices[-1].number))
    files = [folder / f"validation-{one.number:0{width}d}.csv" for one in slices]
    _refuse_others(folder, files)
    table = pa.Table.from_batches([batch.select(schema.names) for _, batch in held_out.batches()], schema)
    for one, file in zip(slices, files, strict=True):
        write_votes(table.take(one.ids).combine_chunks().to_batches(), schema, file)
    times = held_out.tstamps()
    ends = {str(one.number): {"end_tstamp": float(times[one.ids].max())} for one in slices if times is not None}
    with atomic_path(folder / TIMES_FILE) as temporary:
        temporary.write_text(json.dumps(ends, indent=1) + "\n", encoding="utf-8")
    return files


def _kept(held_out: VoteStore, columns: Sequence[str]) -> Iterator[str]:
    yield from (name for name in held_out.columns if name in {*COLUMNS, *columns})


def _refuse_others(folder: Path, files: Sequence[Path]) -> None:
    there = sorted(folder.iterdir()) if folder.is_dir() else []
    for path in there:
        if path not in files and path.name.endswith(FILE_ENDINGS) and re.search(r"\d", path.name):
            raise VoteError(f"{path}: is a slice of another cut; delete it, or choose another --output")
