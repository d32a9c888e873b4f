"""Votes out of Hugging Face data sets: a hub id or a folder written by `save_to_disk`; memory-mapped by `datasets`.

The Arrow files of a folder may have compressed buffers, which are unpacked whole when a batch is read. So the sizes
that stand before the buffers are added up first. Messages are flatbuffers, of which four tables are read here:
https://arrow.apache.org/docs/format/Columnar.html#serialization-and-interprocess-communication-ipc
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from p2l.common.errors import VoteError, first_line, hub_reason
from p2l.common.files import parse_json
from p2l.votes.rows import RawBatch, Source, numbered

_UNREACHABLE = {"ConnectionError", "Timeout", "TransportError", "TimeoutException", "OfflineModeIsEnabled"}


def open_hub(name: str, split: str) -> Source:
    """Open one split of a data set on the hub, downloaded into the cache of `datasets` if needed."""
    datasets = _datasets()
    try:
        with _offline_when_unreachable(name):
            return _data_set(name, datasets.load_dataset(name, split=split))
    except Exception as error:  # the hub's client raises a dozen unrelated kinds
        problem = f"split {split!r} of a hub data set of that name cannot be loaded: {hub_reason(error)}"
        raise VoteError(f"{name}: no such local file, and {problem}") from error


@contextlib.contextmanager
def _offline_when_unreachable(name: str) -> Iterator[None]:
    """Ask the hub once; when it cannot be reached, use the cache alone rather than retry for half a minute."""
    from huggingface_hub import HfApi, constants

    before = constants.HF_HUB_OFFLINE
    try:
        HfApi().dataset_info(name, timeout=10)
    except Exception as error:  # told apart by name, as the classes differ between versions of the client
        if not {kind.__name__ for kind in type(error).__mro__} & _UNREACHABLE:
            raise
        constants.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = before


def open_folder(path: Path, split: str) -> Source:
    """Open a `save_to_disk` folder; of a folder with several splits, the one named."""
    for state in path.rglob("state.json"):
        with contextlib.suppress(OSError, ValueError, LookupError, TypeError):  # `datasets` says what is wrong with it
            for file in parse_json(state.read_bytes())["_data_files"]:
                _check_unpacked(state.parent / file["filename"])
    try:
        data = _datasets().load_from_disk(str(path))
    except Exception as error:  # its files can be wrong in a dozen ways, each with an error of its own
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise VoteError(f"{path}: is not a folder that save_to_disk wrote ({reason:.200})") from error
    if isinstance(data, dict):
        if split not in data:
            raise VoteError(f"{path}: no split {split!r}; splits: {', '.join(data)}")
        data = data[split]
    return _data_set(str(path), data)


def _datasets() -> Any:
    try:
        import datasets
    except ImportError as error:
        raise VoteError("hub data sets and save_to_disk folders need `pip install datasets`") from error
    return datasets


def _data_set(name: str, data: Any) -> Source:
    def read(columns: Sequence[str] | None, batch_size: int) -> Iterator[RawBatch]:
        chosen = data if columns is None else data.select_columns(list(columns))
        tables = chosen.with_format("arrow").iter(batch_size)
        return numbered(batch for table in tables for batch in table.combine_chunks().to_batches())

    return Source(name, list(data.column_names), read, rows=len(data), version=getattr(data, "_fingerprint", None))


_DICTIONARY, _BATCH = 2, 3  # kinds of messages with buffers
_LENGTH, _BUFFERS, _COMPRESSION = 0, 2, 3  # fields of a batch; a dictionary has its batch in field 1
_BYTES_PER_ROW = 8  # even where a column stores nothing
_SMALL_BYTES = 1 << 30  # what any machine can take
_MAX_EXPANSION = 100  # bytes that one of the file may stand for beyond that: all of them come into memory


def _check_unpacked(path: Path) -> None:
    """Raise VoteError where the batches of an Arrow stream unpack to far more than is stored."""
    try:
        stored = path.stat().st_size
        with pa.memory_map(str(path)) as file:
            messages = pa.ipc.MessageReader.open_stream(file)
            unpacked = sum(_message_size(message.metadata.to_pybytes(), message.body) for message in messages)
    except (pa.ArrowException, OSError, struct.error, ValueError) as error:
        reason = first_line(error)
        raise VoteError(f"{path}: cannot be read as an Arrow stream: {reason}") from error
    if unpacked > max(_SMALL_BYTES, _MAX_EXPANSION * stored):
        raise VoteError(
            f"{path}: its {stored / 1e3:,.0f} kB unpack to some {unpacked / 1e9:,.1f} GB, which votes do not; "
            "write it anew without compression"
        )


def _message_size(metadata: bytes, body: Any) -> int:
    message = _Table(metadata, _number(metadata, 0, "<I"))
    kind, batch = message.field(1), message.table(2)
    if kind is None or batch is None or metadata[kind] not in (_DICTIONARY, _BATCH):
        return 0
    if metadata[kind] == _DICTIONARY:
        batch = batch.table(1)
        if batch is None:
            return 0
    length, buffers = batch.field(_LENGTH), batch.field(_BUFFERS)
    size = 0 if length is None else _BYTES_PER_ROW * max(0, _number(metadata, length, "<q"))
    if buffers is None:
        return size
    start = buffers + _number(metadata, buffers, "<I")
    is_compressed = batch.field(_COMPRESSION) is not None
    for place in range(start + 4, start + 4 + 16 * _number(metadata, start, "<I"), 16):
        offset, stored = _number(metadata, place, "<q"), _number(metadata, place + 8, "<q")
        if is_compressed and stored >= 8:  # the size when unpacked stands before the content; -1: it is not packed
            unpacked = _number(memoryview(body), offset, "<q")
            stored = stored - 8 if unpacked == -1 else unpacked
        size += stored
    return size


class _Table:
    """A table of a flatbuffer."""

    def __init__(self, buffer: bytes, start: int) -> None:
        self._buffer = buffer
        self._start = start
        self._vtable = start - _number(buffer, start, "<i")

    def field(self, number: int) -> int | None:
        """Return the place of a field; None for a field that is left out."""
        place = 4 + 2 * number
        if place >= _number(self._buffer, self._vtable, "<H"):
            return None
        offset = _number(self._buffer, self._vtable + place, "<H")
        return self._start + offset if offset else None

    def table(self, number: int) -> _Table | None:
        """Return the table that a field refers to."""
        place = self.field(number)
        return None if place is None else _Table(self._buffer, place + _number(self._buffer, place, "<I"))


def _number(buffer: bytes | memoryview, place: int, form: str) -> int:
    if place < 0:
        raise ValueError("an offset before its beginning")
    return int(struct.unpack_from(form, buffer, place)[0])
