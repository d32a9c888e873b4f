"""Open a source of votes: a data set on the hub, a `save_to_disk` folder, a lake, a file, a table in memory.

Each kind of file has one function in `FORMATS`, by the ending of its name, which names its columns and yields its rows
as Arrow batches; the guard at the door of every source is `p2l.votes.rows`.
"""

from __future__ import annotations

import difflib
import re
import zlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from p2l.common.errors import VoteError, first_line
from p2l.votes.containers import (
    TableFile,
    as_utf8,
    head_of,
    is_object,
    sniff_separator,
    text_kind,
    unpack,
    what_else,
)
from p2l.votes.csv_files import open_csv
from p2l.votes.data_sets import open_folder, open_hub
from p2l.votes.json_lines import begins_object, open_json, open_jsonl, open_rows
from p2l.votes.kinds.promptfoo_tables import PROMPTS_NOTE, is_promptfoo_table, promptfoo_results
from p2l.votes.lake import Lake, is_lake
from p2l.votes.parquet_files import open_parquet
from p2l.votes.rows import Source, numbered

FORMATS: dict[str, Callable[[TableFile], Source]] = {
    ".parquet": open_parquet,
    ".jsonl": open_jsonl,
    ".jsonl.gz": open_jsonl,
    ".csv": open_csv,
}
FILE_ENDINGS = tuple(FORMATS)
_PACKED_ENDINGS = (".gz", ".zst", ".bz2", ".xz", ".zip")
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
_DATASET_MARKS = ("dataset_info.json", "dataset_dict.json", "state.json")
_ADDRESS = re.compile(r"https?://")
_SHOWN_NAME = 60
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
    path = as_path(source)
    if from_disk or is_data_set(path):
        return open_folder(path, split)
    if path.is_file():
        return open_file(path).source
    if path.is_dir():
        raise VoteError(f"{path}: is a folder that save_to_disk did not write; give one of its files")
    if _HUB_ID.fullmatch(str(source)) and not str(source).endswith(FILE_ENDINGS):
        return open_hub(str(source), split)
    if _ADDRESS.match(str(source)):
        raise VoteError(f"{source}: is an address of the web; download the file, and name that")
    if path.is_symlink():
        raise VoteError(f"{path}: is a link to what is not there")
    raise VoteError(f"{path}: no such file{_nearest_file(path)}")


def as_path(source: str | Path) -> Path:
    """Return what the user named as a path (`~` expands); VoteError where no path can be so."""
    name = str(source)
    reason = "names nothing" if not name else "has a letter that no name of a file has" if "\0" in name else ""
    if not name.isascii() and not reason:
        try:
            name.encode()
        except UnicodeEncodeError:
            reason = "is not UTF-8; give the file another name"
    try:
        path = Path(source).expanduser()
        path.exists()
    except (OSError, RuntimeError, ValueError) as error:
        reason = reason or f"cannot be a path: {getattr(error, 'strerror', None) or first_line(error)}"
    if reason:
        shown = name[:_SHOWN_NAME] + ("..." if len(name) > _SHOWN_NAME else "")
        raise VoteError(f"{shown!r}: {reason}")
    return path


def is_data_set(path: Path) -> bool:
    """Return whether a path is a folder that `save_to_disk` of datasets wrote."""
    return path.is_dir() and any((path / mark).exists() for mark in _DATASET_MARKS)


def _nearest_file(path: Path) -> str:
    """Return a hint at the file with the most similar name; empty where none is near."""
    names = [entry.name for entry in path.parent.iterdir() if entry != path] if path.parent.is_dir() else []
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


class OpenFile(NamedTuple):
    """A file that was opened as a table."""

    file: TableFile  # unpacked, in UTF-8
    source: Source
    is_document: bool  # whether it is one JSON value rather than rows


def refuse_pipe(path: Path) -> None:
    """Raise VoteError for a pipe, before anything of it is read."""
    if path.is_fifo():
        raise VoteError(f"{path}: is a pipe, which can be read once only; `p2l votes import` takes it")


def open_file(path: Path, name: str = "") -> OpenFile:
    """Open a file, called `name` in messages, as a table, by its content; VoteError where it is none."""
    name = name or str(path)
    try:
        refuse_pipe(path)
        if not path.stat().st_size:
            raise VoteError(f"{name}: is empty")
        return _open_content(TableFile(path, name))
    except UnicodeDecodeError as error:  # of a Parquet file's footer, say
        raise VoteError(f"{name}: the name of a column is not UTF-8 text; write the file anew") from error
    except (OSError, EOFError, zlib.error, pa.ArrowException) as error:
        raise VoteError(f"{name}: cannot be read: {first_line(error)}") from error


def _open_content(file: TableFile) -> OpenFile:
    """Open a file by its first bytes; its name decides where these leave more than one reading."""
    name = file.name.lower()
    if name.endswith(".jsonl.gz") and begins_object(file):  # read as it unpacks
        return OpenFile(file, open_jsonl(file), is_document=False)
    file = unpack(file)
    for ending in _PACKED_ENDINGS:
        name = name.removesuffix(ending)
    head = head_of(file.path, 4096)
    if head.startswith(b"PAR1"):
        return OpenFile(file, open_parquet(file), is_document=False)
    if head[:1] == b"\x80" and head[1:2] in b"\x02\x03\x04\x05":
        raise VoteError(
            f"{file}: is a pickle, which runs whatever code it holds when it is opened and is not read here; where you "
            "trust it, convert it with pandas: pandas.read_pickle(FILE).to_parquet(NEW)"
        )
    if other := what_else(file.path):
        raise VoteError(f"{file}: {other}")
    file = as_utf8(file)
    if b"\0" in head and not file.note and not name.endswith((".csv", ".jsonl")):
        raise VoteError(
            f"{file}: is neither text nor a file that is known; votes are read from Parquet, JSON, JSON lines and CSV, "
            "also packed by gzip, Zstandard, bzip2, xz or zip, and from logs of evaluation tools"
        )
    kind = text_kind(file)
    if kind == "json":
        source = open_json(file)
        return OpenFile(file, _noted(source, file), source.unit == "document")
    # A header may begin like an object, and is none.
    is_lines = kind == "lines" and (not name.endswith((".csv", ".tsv")) or is_object(head.partition(b"\n")[0]))
    if is_lines or name.endswith(".jsonl"):
        return OpenFile(file, _noted(open_jsonl(file), file), is_document=False)
    file = replace(file, separator=sniff_separator(file))
    if is_promptfoo_table(head_of(file.path), file.separator):
        results = open_rows(file, promptfoo_results(file.path, file.name, file.separator))
        return OpenFile(file, replace(results, unit="result", notes=[PROMPTS_NOTE]), is_document=False)
    return OpenFile(file, _noted(open_csv(file), file), is_document=False)


def _noted(source: Source, file: TableFile) -> Source:
    separators = {"\t": "tabs", ";": "semicolons", "|": "bars"}
    notes = [file.note] if file.note.startswith("text") else []
    if file.separator in separators and not file.name.lower().endswith(".tsv"):
        notes.append(f"columns are separated by {separators[file.separator]}")
    return replace(source, notes=notes) if notes else source


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
