"""What a model said so far of a data set, on disk: a folder of parts, each there whole or not at all.

A part is an Arrow file with one record batch for each of its chunks (see `p2l.batch_inference.prompts`); its schema's
metadata say which chunks these are. `job.json` says what the parts are of. Any process may write any chunk: a later
run, with more or fewer processes, takes what is there and adds what is not.

Shapes: n prompts of a chunk, M models, D hidden.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from p2l.checkpoint import read_object, write_json
from p2l.claim import try_lock
from p2l.command import atomic_path
from p2l.errors import InputError

if TYPE_CHECKING:
    from p2l.inference import Prediction

__all__ = ["Job", "Parts", "as_batch", "discard_parts", "open_parts"]

JOB_FILE = "job.json"
_CHUNKS = b"chunks"


@dataclass(frozen=True)
class Job:
    """What decides the numbers: two runs with the same job may share their parts."""

    model: str
    revision: str
    head_type: str
    dtype: str
    max_length: list[int]
    """of each member"""
    hidden: bool
    dataset: str
    fingerprint: str

    def difference(self, other: Mapping[str, Any]) -> str | None:
        """The first thing in which another job's record differs; names alone do not count."""
        for key, value in asdict(self).items():
            if key not in ("model", "dataset") and other.get(key) != value:
                return _WORDS[key].format(was=other.get(key), now=value, job=self, other=other)
        return None


_WORDS = {
    "revision": "the model was {other[model]} at revision {was}, now it is {job.model} at revision {now}",
    "head_type": "the head was {was}, now it is {now}",
    "dtype": "the numbers were {was}, now they are {now}",
    "max_length": "--max-length was {was}, now it is {now}",
    "hidden": "hidden states were kept: {was}, now: {now}",
    "fingerprint": "the data set was {other[dataset]}, now it is {job.dataset}, or its content has changed",
}


@dataclass
class Parts:
    """The folder of parts of one job."""

    folder: Path
    lock: int | None = None
    """The open folder, locked by the first process as long as it runs."""
    _found: dict[int, tuple[Path, int, int]] = field(default_factory=dict)
    _open: tuple[Path, Any] | None = None

    def refresh(self) -> dict[int, int]:
        """Look which chunks are saved now: their numbers and how many rows they hold."""
        self._found = {}
        for path in sorted(self.folder.glob("part-*.arrow")):
            for place, (chunk, rows) in enumerate(_chunks_of(path)):
                if rows >= self._found.get(chunk, (path, 0, 0))[2]:
                    self._found[chunk] = (path, place, rows)
        return {chunk: rows for chunk, (_, _, rows) in self._found.items()}

    def write(self, chunks: Mapping[int, Any]) -> None:
        """Save record batches by chunk number, as one part.

        Raises:
            InputError: the folder cannot be written (disk full, no permission).
        """
        held = [[chunk, len(batch)] for chunk, batch in chunks.items()]
        rows = sum(count for _, count in held)
        schema = next(iter(chunks.values())).schema.with_metadata({_CHUNKS: json.dumps(held).encode()})
        path = self.folder / f"part-{held[0][0]:08d}-{rows}.arrow"
        with (
            atomic_path(path) as temporary,
            pa.OSFile(str(temporary), "wb") as file,
            pa.ipc.new_file(file, schema) as out,
        ):
            for batch in chunks.values():
                out.write_batch(batch)

    def saved_rows(self) -> int:
        """How many rows all processes have saved, as the names of the parts tell."""
        return sum(int(path.stem.rpartition("-")[2]) for path in self.folder.glob("part-*.arrow"))

    def sweep(self, *, everything: bool) -> None:
        """Delete what a kill has left unfinished, or everything that a run may leave."""
        for pattern in (".*.tmp", "output.*", *(["part-*.arrow", JOB_FILE] if everything else [])):
            for path in self.folder.glob(pattern):
                path.unlink(missing_ok=True)

    def read(self, chunk: int) -> Any:
        """The record batch of a saved chunk, mapped; `refresh` has found it."""
        path, place, _ = self._found[chunk]
        if self._open is None or self._open[0] != path:
            self._open = (path, pa.ipc.open_file(pa.memory_map(str(path))))
        return self._open[1].get_batch(place)

    def remove(self) -> None:
        """Delete the folder: what it held is in the output."""
        self._open = None
        self.sweep(everything=True)
        with contextlib.suppress(OSError):  # somebody else's file is in it
            self.folder.rmdir()
        self.close()

    def close(self) -> None:
        """Let another run have the folder."""
        if self.lock is not None:
            os.close(self.lock)
            self.lock = None


def open_parts(folder: Path, job: Job, *, restart: bool = False) -> Parts:
    """The folder of parts, made if need be, and locked against other runs.

    Args:
        folder: where; its parent is made too.
        job: what the parts are of.
        restart: throw parts of another job away.

    Raises:
        InputError: parts of another job are in it, another run is writing, or it cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = os.open(folder, os.O_RDONLY)
    except OSError as error:
        raise InputError(f"{folder}: cannot be written: {error.strerror or error}") from error
    if not try_lock(lock):
        os.close(lock)
        raise InputError(f"{folder}: another run is writing there; wait for it, or choose another --output-dir")
    parts = Parts(folder, lock)
    try:
        _claim(parts, job, restart=restart)
    except BaseException:
        parts.close()
        raise
    return parts


def discard_parts(folder: Path, job: Job) -> None:
    """Delete the parts of this job, whose output is whole: a kill came before their end."""
    if folder.is_dir() and not job.difference(read_object(folder / JOB_FILE, missing=asdict(job))):
        Parts(folder).remove()


def _claim(parts: Parts, job: Job, *, restart: bool) -> None:
    record = parts.folder / JOB_FILE
    before = read_object(record, missing={}) if not restart else {}
    different = job.difference(before) if before else None
    if different:
        raise InputError(
            f"{parts.folder}: holds an unfinished run of something else: {different}; "
            "finish that one, choose another --output-dir, or give --restart to throw it away"
        )
    parts.sweep(everything=not before)
    with atomic_path(record) as temporary:
        write_json(temporary, asdict(job))


def _chunks_of(path: Path) -> list[tuple[int, int]]:
    """(chunk, rows) of a part; nothing if the file is damaged: then its chunks are computed again."""
    try:
        with pa.memory_map(str(path)) as file:
            metadata = pa.ipc.open_file(file).schema.metadata or {}
        return [(int(chunk), int(rows)) for chunk, rows in json.loads(metadata[_CHUNKS])]
    except (pa.ArrowException, OSError, KeyError, ValueError):
        return []


def as_batch(said: Prediction) -> Any:
    """A prediction as a record batch: coefs (n, M) and hidden (n, D) as lists of fixed size, eta, gamma, truncated."""
    columns = {"coefs": _matrix(said.coefs)}
    for name, values in (("eta", said.eta), ("gamma", said.gamma), ("truncated", said.truncated)):
        if values is not None:
            columns[name] = pa.array(values)
    if said.hidden is not None:
        columns["last_hidden_state"] = _matrix(said.hidden)
    return pa.RecordBatch.from_pydict(columns)


def _matrix(values: Any) -> Any:
    return pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1)), values.shape[1])
