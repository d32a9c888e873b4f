"""Votes out of Parquet files, in batches of a size that is known before they are read.

A few bytes of a Parquet file may stand for gigabytes: pages are compressed, a text that repeats is stored once, a run
of equal rows is a count. So what a file unpacks to is estimated from its metadata and its dictionaries, and a batch has
as many rows as fit into `_BATCH_BYTES` where each holds the longest text that it may hold.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from p2l.common.errors import VoteError, first_line
from p2l.votes.containers import TableFile
from p2l.votes.rows import RawBatch, Source, check_number_of_columns

_BATCH_BYTES = 64 << 20
_MAX_CELL_BYTES = 16 << 20
_SMALL_BYTES = 1 << 30  # what any machine can take
_MAX_EXPANSION = 5_000  # bytes that one of the file may stand for beyond that
_BYTES_PER_LEVEL = 8  # where a value belongs, or its absence


def open_parquet(path: TableFile) -> Source:
    """Open a Parquet file; VoteError, before a row is read, where it holds more columns or more bytes than votes do."""
    import pyarrow.parquet as pq

    with pq.ParquetFile(path.path) as file:
        names = file.schema_arrow.names
        check_number_of_columns(str(path), file.metadata.num_columns)  # those within objects count too
        return Source(str(path), names, partial(_read, path), rows=file.metadata.num_rows)


def _read(path: TableFile, columns: Sequence[str] | None, batch_size: int) -> Iterator[RawBatch]:
    import pyarrow.parquet as pq

    row = 1
    try:
        sizes = _group_sizes(path, columns)
        _check_size(path, sizes)
        # Without pre_buffer a row group larger than memory is read page by page.
        with pq.ParquetFile(path.path, pre_buffer=False, buffer_size=1 << 20) as file:
            for group, size in enumerate(sizes):
                rows = max(1, min(batch_size, int(_BATCH_BYTES / max(size.longest_row, 1))))
                for batch in file.iter_batches(rows, row_groups=[group], columns=columns and list(columns)):
                    yield RawBatch(batch, row)
                    row += len(batch)
    except (OSError, pa.ArrowException) as error:
        raise VoteError(f"{path}: row {row}: cannot be read: {first_line(error)}") from error


class _Size(NamedTuple):
    """Bytes that a row group, or a column of it, unpacks to: in all, and of its longest row as far as is known."""

    unpacked: float = 0.0
    longest_row: float = 0.0
    longest_cell: float = 0.0
    column: str = ""


def _group_sizes(path: TableFile, columns: Sequence[str] | None) -> list[_Size]:
    """Return the size of each row group, of the columns that are read."""
    import pyarrow.parquet as pq

    sizes = []
    metadata = pq.read_metadata(path.path)
    leaves = [metadata.schema.column(place) for place in range(metadata.num_columns)]
    # A leaf of a nested column has a path of several names; those of columns may hold dots too.
    places = [
        place
        for place, leaf in enumerate(leaves)
        if columns is None or any(f"{leaf.path}.".startswith(f"{column}.") for column in columns)
    ]
    texts = [leaves[place].path for place in places if leaves[place].physical_type == "BYTE_ARRAY"]
    # Opened once: to parse the metadata for each chunk takes a time that grows with the square of the row groups.
    options = {"metadata": metadata, "pre_buffer": False, "buffer_size": 1 << 20}
    with pq.ParquetFile(path.path, read_dictionary=texts, **options) as file:
        for group in range(metadata.num_row_groups):
            about = metadata.row_group(group)
            parts = [_chunk_size(file, group, about.column(place), about.num_rows) for place in places]
            longest = max(parts, key=lambda part: part.longest_cell, default=_Size())
            unpacked, longest_row = sum(part.unpacked for part in parts), sum(part.longest_row for part in parts)
            sizes.append(_Size(unpacked, longest_row, longest.longest_cell, longest.column))
    return sizes


def _chunk_size(file: Any, group: int, chunk: Any, rows: int) -> _Size:
    """Return the size of one column of a row group."""
    stored = chunk.total_uncompressed_size
    values = chunk.num_values + rows
    plain = stored + _BYTES_PER_LEVEL * values
    if chunk.physical_type != "BYTE_ARRAY" or not chunk.has_dictionary_page or values * stored <= _BATCH_BYTES:
        return _Size(plain, plain / max(rows, 1), 0.0, chunk.path_in_schema)
    if stored > _SMALL_BYTES and stored > _MAX_EXPANSION * chunk.total_compressed_size:
        return _Size(stored, stored, 0.0, chunk.path_in_schema)
    # The bytes of each text that the column holds once and refers to.
    batch = next(file.iter_batches(1, row_groups=[group], columns=[chunk.path_in_schema]), None)
    texts = batch.column(0) if batch is not None else pa.nulls(0, pa.string())
    while pa.types.is_nested(texts.type) and not pa.types.is_dictionary(texts.type):
        texts = texts.field(0) if pa.types.is_struct(texts.type) else texts.values
    lengths = pc.binary_length(texts.dictionary if pa.types.is_dictionary(texts.type) else texts)
    mean, longest = (pc.mean(lengths).as_py() or 0.0, pc.max(lengths).as_py() or 0.0) if len(lengths) else (0.0, 0.0)
    repeated = mean * chunk.num_values + _BYTES_PER_LEVEL * values
    per_row = max(1.0, values / max(rows, 1))
    return _Size(max(plain, repeated), max(plain / max(rows, 1), longest * per_row), longest, chunk.path_in_schema)


def _check_size(path: TableFile, sizes: Sequence[_Size]) -> None:
    """Raise VoteError where a text is longer than any prompt, or the file unpacks to far more than it is."""
    unpacked, stored = sum(size.unpacked for size in sizes), path.path.stat().st_size
    if unpacked > max(_SMALL_BYTES, _MAX_EXPANSION * stored):
        raise VoteError(
            f"{path}: its {stored / 1e3:,.0f} kB unpack to some {unpacked / 1e9:,.1f} GB, which votes do not; "
            "name the columns that are needed, or write it anew"
        )
    for group, size in enumerate(sizes, 1):
        if size.longest_cell > _MAX_CELL_BYTES:
            raise VoteError(
                f"{path}: row group {group}: {size.column} holds a text of {size.longest_cell / 1e6:,.1f} MB, "
                f"of at most {_MAX_CELL_BYTES >> 20} MiB; leave that row out"
            )
