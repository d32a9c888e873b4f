"""Open a source of votes: a data set on the hub, a `save_to_disk` folder, a lake, a file, a table in memory.

Each kind of file has one function in `FORMATS`, by the ending of its name, which names its columns and yields its rows
as Arrow batches; the guard at the door of every source is `p2l.votes.rows`.
"""

from __future__ import annotations

import difflib
import re
import zlib
from collections.abc import Callable, Container, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from p2l.common.errors import VoteError, first_line
from p2l.votes.csv_files import open_csv
from p2l.votes.data_sets import open_folder, open_hub
from p2l.votes.json_lines import open_jsonl
from p2l.votes.lake import Lake, is_lake
from p2l.votes.parquet_files import open_parquet
from p2l.votes.rows import Source, numbered
from p2l.votes.spool import common_schema, conform

if TYPE_CHECKING:
    import pandas as pd

FORMATS: dict[str, Callable[[Path], Source]] = {
    ".parquet": open_parquet,
    ".jsonl": open_jsonl,
    ".jsonl.gz": open_jsonl,
    ".csv": open_csv,
}
FILE_ENDINGS = tuple(FORMATS)
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
_DATASET_MARKS = ("dataset_info.json", "dataset_dict.json", "state.json")
_BATCH_ROWS = 10_000
_NEAR = 0.7  # similarity of the names of two files


def open_source(source: Any, *, split: str = "train", from_disk: bool = False) -> Source:
    """Open a source without reading its rows.

    Args:
        source: a path (`~` expands), a hub id, a pandas DataFrame, a pyarrow Table, or a `Source`, which is returned.
        split: which split of a hub data set or of a folder that holds several.
        from_disk: take the path for a `save_to_disk` folder whatever it looks like.
    """
    if isinstance(source, Source):
        return source
    if not isinstance(source, str | Path):
        return _open_table(source)
    if is_lake(source):
        return Lake(source).source()
    path = Path(source).expanduser()
    if from_disk or (path.is_dir() and any((path / mark).exists() for mark in _DATASET_MARKS)):
        return open_folder(path, split)
    if path.is_file():
        return _open_file(path)
    if path.is_dir():
        raise VoteError(f"{path}: is a folder that save_to_disk did not write; give one of its files")
    if _HUB_ID.fullmatch(str(source)) and not str(source).endswith(FILE_ENDINGS):
        return open_hub(str(source), split)
    raise VoteError(f"{path}: no such file{_nearest_file(path)}")


def read_frame(file: Path, columns: Container[str]) -> pd.DataFrame:
    """Return those of `columns` that a file has, all of its rows at once, within the bounds of files of votes."""
    import pandas as pd

    if not file.is_file():
        raise VoteError(f"{file}: no such file")
    source = open_source(file)
    names = [name for name in source.columns if name in columns]
    batches = [raw.batch for raw in source.stream(names, _BATCH_ROWS)]
    schema = common_schema(list(dict.fromkeys(batch.schema for batch in batches)))
    frames: list[pd.DataFrame] = [conform(batch, schema).to_pandas() for batch in batches]
    return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame(columns=names)


def _nearest_file(path: Path) -> str:
    """Return a hint at the file with the most similar name; empty where none is near."""
    names = [entry.name for entry in path.parent.iterdir()] if path.parent.is_dir() else []
    # Similar without their endings too: endings are long, and most are alike.
    stem = path.name.partition(".")[0]
    near = [name for name in names if difflib.SequenceMatcher(None, stem, name.partition(".")[0]).ratio() >= _NEAR]
    match = next(iter(difflib.get_close_matches(path.name, near, n=1, cutoff=_NEAR)), None)
    return f" (did you mean {str(path.with_name(match))!r}?)" if match else ""


def file_kind(path: str | Path) -> str:
    """Return the ending of `path` that names its format."""
    for ending in FILE_ENDINGS:
        if str(path).lower().endswith(ending):
            return ending
    raise VoteError(f"{path}: unknown kind of file; votes are read and written as {', '.join(FILE_ENDINGS)}")


def _open_file(path: Path) -> Source:
    open_format = FORMATS[file_kind(path)]
    try:
        if not path.stat().st_size:
            raise VoteError(f"{path}: is empty")
        return open_format(path)
    except UnicodeDecodeError as error:  # of a Parquet file's footer, say
        raise VoteError(f"{path}: the name of a column is not UTF-8 text; write the file anew") from error
    except (OSError, EOFError, zlib.error, pa.ArrowException) as error:
        raise VoteError(f"{path}: cannot be read: {first_line(error)}") from error


def _open_table(table: Any) -> Source:
    if not isinstance(table, pa.Table):
        if not hasattr(table, "columns"):
            raise VoteError(f"votes are read from a path, a hub id, or a table, not from {type(table).__name__}")
        try:
            table = pa.Table.from_pandas(table, preserve_index=False)
        except (pa.ArrowException, UnicodeEncodeError) as error:
            raise VoteError(f"table: cannot be read: {first_line(error)}") from error

    def read(columns: Sequence[str] | None, batch_size: int) -> Any:
        chosen = table if columns is None else table.select(list(columns))
        return numbered(chosen.to_batches(max_chunksize=batch_size))

    return Source("table", table.column_names, read, rows=table.num_rows)
