"""Where votes come from: a data set on the hub, a `save_to_disk` folder, a local file, a table in memory.

Local files are read by pyarrow alone; `datasets` is imported only for the other two.
"""

from __future__ import annotations

import contextlib
import csv
import difflib
import io
import re
import zlib
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pc_csv

from p2l.common.errors import VoteError, hub_reason
from p2l.common.files import parse_json
from p2l.common.spreadsheets import of_cells
from p2l.votes.arrow_files import check_unpacked, common_schema, conform
from p2l.votes.json_lines import has_too_many_keys, open_jsonl
from p2l.votes.lake import Lake, is_lake
from p2l.votes.parquet_files import open_parquet
from p2l.votes.schema import RawBatch, Source, check_number_of_columns, is_valid

if TYPE_CHECKING:
    import pandas as pd

_ROWS_AT_ONCE = 10_000

# Votes out of Hugging Face data sets: a hub id or a folder written by `save_to_disk`; memory-mapped by `datasets`.

_NEAR = 0.7
_UNREACHABLE = {"ConnectionError", "Timeout", "TransportError", "TimeoutException", "OfflineModeIsEnabled"}


def _open_hub(name: str, split: str) -> Source:
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


def _open_folder(path: Path, split: str) -> Source:
    """Open a `save_to_disk` folder; of a folder with several splits, the one named."""
    _check_arrow_files(path)
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


def _check_arrow_files(folder: Path) -> None:
    """Raise VoteError where a file of a `save_to_disk` folder unpacks to far more than is stored."""
    for state in folder.rglob("state.json"):
        with contextlib.suppress(OSError, ValueError, LookupError, TypeError):  # `datasets` says what is wrong with it
            for file in parse_json(state.read_bytes())["_data_files"]:
                check_unpacked(state.parent / file["filename"])


def _datasets() -> Any:
    try:
        import datasets
    except ImportError as error:
        raise VoteError("hub data sets and save_to_disk folders need `pip install datasets`") from error
    return datasets


def _data_set(name: str, data: Any) -> Source:
    def stream(columns: Sequence[str] | None, batch_size: int) -> Iterator[RawBatch]:
        chosen = data if columns is None else data.select_columns(list(columns))
        tables = chosen.with_format("arrow").iter(batch_size)
        return _numbered(batch for table in tables for batch in table.combine_chunks().to_batches())

    return Source(name, list(data.column_names), stream, rows=len(data), version=getattr(data, "_fingerprint", None))


def _numbered(batches: Iterable[Any], row: int = 1) -> Iterator[RawBatch]:
    for batch in batches:
        yield RawBatch(batch, row)
        row += len(batch)


_BLOCK = 8 << 20  # bytes, and the longest record


# CSV as Arrow batches.
#
# A CSV file has no types, so a first pass over it finds for every column beyond the vote schema the narrowest kind that
# all its values have: true/false, integer, float, JSON (objects or lists), else text. An id such as 007 is text.
# Columns of the schema are read as text and converted by the schema. An empty field is null, a quoted empty field is
# the empty text. Row 1 is the header.

_LONGEST_HEADER = 1 << 20  # characters
_TEXT = frozenset({"prompt", "model_a", "model_b", "winner", "labels", "question_id"})
_PATTERNS = {
    "bool": r"^(?i:true|false)$",
    "int": r"^-?(0|[1-9]\d{0,17})$",
    "float": r"^-?((0|[1-9]\d{0,17})(\.\d*)?|\.\d+)([eE][+-]?\d+)?$|^(?i:-?inf|nan)$",
    "json": r"(?s)^\s*[\[{].*[\]}]\s*$",
}


def _open_csv(path: Path) -> Source:
    names = _csv_columns(path)
    return Source(str(path), names, partial(_csv_stream, path, names), text_lists=True)


def _csv_columns(path: Path) -> list[str]:
    """Return the names in the header."""
    try:
        # Bytes that are not UTF-8 may lie anywhere in what is read ahead; the rows are checked one by one later.
        with path.open(newline="", encoding="utf-8-sig", errors="replace") as file:
            text = io.StringIO(file.read(_LONGEST_HEADER), newline="")
        names = next(csv.reader(text), [])
        if text.tell() == _LONGEST_HEADER:
            raise csv.Error(f"it is longer than {_LONGEST_HEADER >> 20} MiB")
    except csv.Error as error:
        raise VoteError(f"{path}: row 1: the header cannot be read: {error}") from error
    if any(mark in name for name in names for mark in "\0\ufffd"):
        raise VoteError(f"{path}: row 1: the header is not UTF-8 text; save the file as UTF-8")
    if len(names) == 1 and any(mark in names[0] for mark in ";\t|"):
        raise VoteError(f"{path}: row 1: {names[0][:60]!r} is one column; separate columns by commas")
    check_number_of_columns(str(path), len(names))
    doubled = sorted(name for name, count in Counter(names).items() if count > 1)
    if doubled:
        raise VoteError(f"{path}: row 1: column {doubled[0]!r} occurs twice")
    return names


def _csv_stream(path: Path, names: list[str], columns: Sequence[str] | None, batch_size: int) -> Iterator[RawBatch]:
    """Stream the file, extra columns converted to the kinds all their values have."""
    chosen = names if columns is None else list(columns)
    kinds = _kinds(path, names, chosen)
    row = 2
    for batch in _text_batches(path, names, chosen):
        for start in range(0, len(batch), batch_size):
            part = batch.slice(start, batch_size)
            arrays = [_convert(_entries(name, part.column(name)), kinds[name]) for name in part.schema.names]
            yield RawBatch(pa.RecordBatch.from_arrays(arrays, names=part.schema.names), row)
            row += len(part)


def _text_batches(path: Path, names: Sequence[str], columns: Sequence[str]) -> Iterator[Any]:
    """Yield all fields as text, not yet checked for UTF-8: the caller knows the row numbers."""
    convert = pc_csv.ConvertOptions(
        column_types=dict.fromkeys(names, pa.string()),
        include_columns=columns,
        null_values=[""],
        strings_can_be_null=True,
        quoted_strings_can_be_null=False,
        check_utf8=False,
    )
    read = pc_csv.ReadOptions(block_size=_BLOCK, use_threads=False)
    try:
        with pc_csv.open_csv(path, read, pc_csv.ParseOptions(newlines_in_values=True), convert) as reader:
            yield from reader
    except pa.ArrowInvalid as error:
        if str(error).startswith("Empty CSV file") or not names:
            raise VoteError(f"{path}: is empty") from error
        raise VoteError(f"{path}: is not CSV as it should be: {str(error).splitlines()[0]}") from error


def _kinds(path: Path, names: Sequence[str], columns: Sequence[str]) -> dict[str, str]:
    """Return the narrowest kind of every column."""
    left = {name: [] if name in _TEXT else list(_PATTERNS) for name in columns}
    seen: set[str] = set()
    if any(left.values()):
        for batch in _text_batches(path, names, [name for name in columns if left[name]]):
            for name in batch.schema.names:
                values = batch.column(name).drop_null()
                left[name] = [kind for kind in left[name] if _all_are(values, kind)]
                seen.update([name] if len(values) else [])
    return {name: kinds[0] if kinds and name in seen else "text" for name, kinds in left.items()}


def _all_are(values: Any, kind: str) -> bool:
    if not is_valid(values) or pc.all(pc.match_substring_regex(values, _PATTERNS[kind])).as_py() is False:
        return False
    if kind == "json":
        texts = values.to_pylist()
        try:
            _ = [parse_json(text) for text in texts]
        except ValueError:
            return False
        return not has_too_many_keys(texts)
    return True


def _entries(name: str, cells: Any) -> Any:
    """Return the text of cells; a prompt is never quoted, and may begin like a cell that is."""
    return cells if name == "prompt" else of_cells(cells)


def _convert(column: Any, kind: str) -> Any:
    if kind == "json":
        try:
            return pa.array([None if text is None else parse_json(text) for text in column.to_pylist()])
        except (pa.ArrowException, OverflowError):  # lists of this and that stay text
            return column.cast(pa.string())
    if kind == "bool":
        return pc.equal(pc.utf8_lower(column), "true")
    return column.cast({"int": pa.int64(), "float": pa.float64(), "text": pa.string()}[kind])


FILE_ENDINGS = (".parquet", ".jsonl", ".jsonl.gz", ".csv")
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
_DATASET_MARKS = ("dataset_info.json", "dataset_dict.json", "state.json")


def open_source(source: Any, *, split: str = "train", from_disk: bool = False) -> Source:
    """Open a source without reading its rows.

    Args:
        source: a path (`~` expands), a hub id, a pandas DataFrame, a pyarrow Table, or a `Source`, which is returned.
        split: which split of a hub data set or of a folder that holds several.
        from_disk: take the path for a `save_to_disk` folder whatever it looks like.
    """
    if isinstance(source, Source):
        return source
    try:
        opened = _open(source, split, from_disk=from_disk)
    except UnicodeDecodeError as error:  # of a Parquet file's footer, say
        raise VoteError(f"{source}: the name of a column is not UTF-8 text; write the file anew") from error
    check_number_of_columns(opened.name, len(opened.columns))
    doubled = sorted(name for name, count in Counter(opened.columns).items() if count > 1)
    if doubled:
        raise VoteError(f"{opened.name}: column {doubled[0]!r} occurs twice")
    return opened


def read_columns(file: Path, columns: Container[str]) -> pd.DataFrame:
    """Return those of `columns` that a file has, all of its rows at once, within the bounds of files of votes."""
    import pandas as pd

    if not file.is_file():
        raise VoteError(f"{file}: no such file")
    source = open_source(file)
    names = [name for name in source.columns if name in columns]
    batches = [raw.batch for raw in source.stream(names, _ROWS_AT_ONCE)]
    schema = common_schema(list(dict.fromkeys(batch.schema for batch in batches)))
    frames: list[pd.DataFrame] = [conform(batch, schema).to_pandas() for batch in batches]
    return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame(columns=names)


def _open(source: Any, split: str, *, from_disk: bool) -> Source:
    if not isinstance(source, str | Path):
        return _open_table(source)
    if is_lake(source):
        return Lake(source).source()
    path = Path(source).expanduser()
    if from_disk or (path.is_dir() and any((path / mark).exists() for mark in _DATASET_MARKS)):
        return _open_folder(path, split)
    if path.is_file():
        return _open_file(path)
    if path.is_dir():
        raise VoteError(f"{path}: is a folder that save_to_disk did not write; give one of its files")
    if _HUB_ID.fullmatch(str(source)) and not str(source).endswith(FILE_ENDINGS):
        return _open_hub(str(source), split)
    raise VoteError(f"{path}: no such file{_nearest_file(path)}")


def _nearest_file(path: Path) -> str:
    """Return a hint at a file whose name is near without its ending, too: endings are long, and most are alike."""
    names = [entry.name for entry in path.parent.iterdir()] if path.parent.is_dir() else []
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
    kind = file_kind(path)
    try:
        if not path.stat().st_size:
            raise VoteError(f"{path}: is empty")
        return {".parquet": open_parquet, ".csv": _open_csv}.get(kind, open_jsonl)(path)
    except (OSError, EOFError, zlib.error, pa.ArrowException) as error:
        raise VoteError(f"{path}: cannot be read: {str(error).splitlines()[0]}") from error


def _open_table(table: Any) -> Source:
    if not isinstance(table, pa.Table):
        if not hasattr(table, "columns"):
            raise VoteError(f"votes are read from a path, a hub id, or a table, not from {type(table).__name__}")
        try:
            table = pa.Table.from_pandas(table, preserve_index=False)
        except (pa.ArrowException, UnicodeEncodeError) as error:
            raise VoteError(f"table: cannot be read: {str(error).splitlines()[0]}") from error

    def stream(columns: Sequence[str] | None, batch_size: int) -> Iterator[RawBatch]:
        chosen = table if columns is None else table.select(list(columns))
        return _numbered(chosen.to_batches(max_chunksize=batch_size))

    return Source("table", table.column_names, stream, rows=table.num_rows)
