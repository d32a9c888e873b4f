"""Where votes come from: a data set on the hub, a `save_to_disk` folder, a local file, a table in memory.

Local files are read by pyarrow alone; `datasets` is imported only for the other two.
"""

from __future__ import annotations

import difflib
import re
import zlib
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from p2l.errors import VoteError
from p2l.votes.csv_rows import csv_columns, csv_stream
from p2l.votes.hub import open_folder, open_hub
from p2l.votes.json_lines import jsonl_columns, jsonl_stream
from p2l.votes.stream import RawBatch, Source

__all__ = ["FILE_ENDINGS", "file_kind", "open_source"]

FILE_ENDINGS = (".parquet", ".jsonl", ".jsonl.gz", ".csv")
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
_DATASET_MARKS = ("dataset_info.json", "dataset_dict.json", "state.json")


def open_source(source: Any, *, split: str = "train", from_disk: bool = False) -> Source:
    """Open a source without reading its rows.

    Args:
        source: a path (`~` expands), a hub id, a pandas DataFrame, or a pyarrow Table.
        split: which split of a hub data set or of a folder that holds several.
        from_disk: take the path for a `save_to_disk` folder whatever it looks like.

    Raises:
        VoteError: there is no such source, it cannot be reached, or its kind is unknown.
    """
    opened = _open(source, split, from_disk=from_disk)
    doubled = sorted({name for name in opened.columns if opened.columns.count(name) > 1})
    if doubled:
        raise VoteError(f"{opened.name}: column {doubled[0]!r} occurs twice")
    return opened


def _open(source: Any, split: str, *, from_disk: bool) -> Source:
    if not isinstance(source, str | Path):
        return _open_table(source)
    path = Path(source).expanduser()
    if from_disk or (path.is_dir() and any((path / mark).exists() for mark in _DATASET_MARKS)):
        return open_folder(path, split)
    if path.is_file():
        return _open_file(path)
    if path.is_dir():
        raise VoteError(f"{path}: is a folder that save_to_disk did not write; give one of its files")
    if _looks_like_hub_id(str(source)):
        return open_hub(str(source), split)
    raise VoteError(f"{path}: no such file{_near_file(path)}")


def _looks_like_hub_id(text: str) -> bool:
    return bool(_HUB_ID.fullmatch(text)) and not text.endswith(FILE_ENDINGS)


def _near_file(path: Path) -> str:
    names = [entry.name for entry in path.parent.iterdir()] if path.parent.is_dir() else []
    found = difflib.get_close_matches(path.name, names, n=1, cutoff=0.7)
    return f" (did you mean {str(path.with_name(found[0]))!r}?)" if found else ""


def file_kind(path: str | Path) -> str:
    """The ending of `path` that names its format.

    Raises:
        VoteError: it has none of `FILE_ENDINGS`.
    """
    for ending in FILE_ENDINGS:
        if str(path).lower().endswith(ending):
            return ending
    raise VoteError(f"{path}: unknown kind of file; votes are read and written as {', '.join(FILE_ENDINGS)}")


def _open_file(path: Path) -> Source:
    kind = file_kind(path)
    try:
        if not path.stat().st_size:
            raise VoteError(f"{path}: is empty")
        if kind == ".parquet":
            return _open_parquet(path)
        if kind == ".csv":
            return Source(str(path), csv_columns(path), partial(csv_stream, path), text_lists=True)
        return Source(str(path), jsonl_columns(path), partial(jsonl_stream, path), unit="line")
    except (OSError, EOFError, zlib.error, pa.ArrowException) as error:
        raise VoteError(f"{path}: cannot be read: {str(error).splitlines()[0]}") from error


def _open_parquet(path: Path) -> Source:
    import pyarrow.parquet as pq

    with pq.ParquetFile(path) as file:
        return Source(str(path), file.schema_arrow.names, partial(_parquet_stream, path), rows=file.metadata.num_rows)


def _parquet_stream(path: Path, columns: Sequence[str] | None, batch_size: int) -> Iterator[RawBatch]:
    import pyarrow.parquet as pq

    row = 1
    try:
        # Without pre_buffer a row group larger than memory is read page by page.
        with pq.ParquetFile(path, pre_buffer=False, buffer_size=1 << 20) as file:
            for batch in file.iter_batches(batch_size, columns=None if columns is None else list(columns)):
                yield RawBatch(batch, row)
                row += len(batch)
    except (OSError, pa.ArrowException) as error:
        raise VoteError(f"{path}: row {row}: cannot be read: {str(error).splitlines()[0]}") from error


def _open_table(table: Any) -> Source:
    if not isinstance(table, pa.Table):
        if not hasattr(table, "columns"):
            raise VoteError(f"votes are read from a path, a hub id, or a table, not from {type(table).__name__}")
        try:
            table = pa.Table.from_pandas(table, preserve_index=False)
        except (pa.ArrowException, UnicodeEncodeError) as error:
            raise VoteError(f"table: cannot be read: {str(error).splitlines()[0]}") from error
    return Source("table", table.column_names, partial(_table_stream, table), rows=table.num_rows)


def _table_stream(table: Any, columns: Sequence[str] | None, batch_size: int) -> Iterator[RawBatch]:
    row = 1
    table = table if columns is None else table.select(list(columns))
    for batch in table.to_batches(max_chunksize=batch_size):
        yield RawBatch(batch, row)
        row += len(batch)
