"""Write votes in the format that a file's ending names: whole or not at all, a batch at a time.

In CSV, which has no lists, a prompt is the JSON text of its turns, and other lists and objects are JSON text too; an
empty field is null; a text that a spreadsheet would run is quoted (`p2l.common.spreadsheets`). JSON lines hold null for
NaN.
"""

from __future__ import annotations

import base64
import contextlib
import gzip
import json
import re
import tempfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from p2l.common.cli import progress
from p2l.common.errors import VoteError
from p2l.common.files import atomic_path, no_nan, parse_json
from p2l.common.spreadsheets import formulas, to_cell, to_cells
from p2l.votes.reading import read_votes
from p2l.votes.rows import RawBatch, Source, is_text
from p2l.votes.schema import WINNERS, numbers
from p2l.votes.sources import file_kind, open_source
from p2l.votes.spool import RowFile, conform

Write = Callable[[Any], None]
_GZIP_LEVEL = 5  # a third of the time of the default, for files a twentieth larger


def write_votes(batches: Iterable[Any], schema: Any, path: str | Path) -> int:
    """Write Arrow batches to `path`; returns the number of rows."""
    count = 0
    with open_writer(path, schema) as write:
        for batch in batches:
            write(batch)
            count += len(batch)
    return count


def holds(path: str | Path, batch: Any) -> bool:
    """Whether a file holds the very rows of an Arrow batch and nothing else, as `write_votes` would write them."""
    import pyarrow.parquet as pq

    kind = file_kind(path)
    try:
        if kind == ".parquet":  # bytes differ between versions of the writer
            return bool(pq.ParquetFile(path).read().equals(pa.Table.from_batches([batch])))
        with tempfile.TemporaryDirectory() as folder:
            written = Path(folder) / f"rows{kind}"
            write_votes([batch], batch.schema, written)
            contents = [Path(path).read_bytes(), written.read_bytes()]
            if kind.endswith(".gz"):
                contents = [gzip.decompress(content) for content in contents]
    except (pa.ArrowException, OSError, EOFError, zlib.error):
        return False
    return contents[0] == contents[1]


@contextlib.contextmanager
def open_writer(path: str | Path, schema: Any = None) -> Iterator[Write]:
    """Yield a function that appends batches to `path`, each brought to `schema` first; see `write_votes`.

    Without a schema it is that of the first batch, and there must be one.
    """
    open_format = _WRITERS[file_kind(path)]
    with atomic_path(path) as temporary, contextlib.ExitStack() as files:
        writer = None if schema is None else files.enter_context(open_format(schema, temporary))

        def write(batch: Any) -> None:
            nonlocal writer, schema
            if writer is None:
                schema = batch.schema
                writer = files.enter_context(open_format(schema, temporary))
            if len(batch):
                writer(conform(batch, schema))

        yield write


@contextlib.contextmanager
def _parquet(schema: Any, path: Path) -> Iterator[Write]:
    import pyarrow.parquet as pq

    with pq.ParquetWriter(path, schema, compression="zstd") as writer:
        yield writer.write_batch


@contextlib.contextmanager
def _jsonl(_: Any, path: Path, *, compress: bool = False) -> Iterator[Write]:
    with contextlib.ExitStack() as stack:
        file: Any = stack.enter_context(path.open("wb"))
        if compress:
            # Neither name nor time inside, so that the same votes give the same bytes.
            file = stack.enter_context(gzip.GzipFile("", "wb", _GZIP_LEVEL, file, mtime=0))
        yield lambda batch: file.writelines(_lines(batch))


def _lines(batch: Any) -> Iterator[bytes]:
    for row in batch.to_pylist():
        try:
            text = json.dumps(row, ensure_ascii=False, allow_nan=False, default=as_text)
        except ValueError:
            text = json.dumps(no_nan(row), ensure_ascii=False, default=as_text)
        yield text.encode() + b"\n"


@contextlib.contextmanager
def _csv(schema: Any, path: Path) -> Iterator[Write]:
    import pyarrow.csv as pc_csv

    # An integer, a number and a truth value stay as they are.
    plain = pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean
    is_plain = [any(test(field.type) for test in plain) for field in schema]
    kinds = [field.type if stays else pa.string() for field, stays in zip(schema, is_plain, strict=True)]
    flat = pa.schema(list(zip(map(to_cell, schema.names), kinds, strict=True)))

    def write(batch: Any) -> None:
        columns = zip(schema.names, batch.columns, is_plain, strict=True)
        arrays = [column if stays else _cells(name, _text(column)) for name, column, stays in columns]
        writer.write_batch(pa.RecordBatch.from_arrays(arrays, schema=flat))

    with pc_csv.CSVWriter(path, flat) as writer:
        yield write


def _cells(name: str, texts: Any) -> Any:
    """Return text of a column of which a spreadsheet runs nothing; a prompt that begins a formula becomes a list."""
    if name != "prompt":
        return to_cells(texts)
    begun = formulas(texts)
    if not pc.any(begun).as_py():
        return texts
    pairs = zip(texts.to_pylist(), begun.to_pylist(), strict=True)
    return pa.array(
        [json.dumps([text], ensure_ascii=False) if is_formula else text for text, is_formula in pairs], pa.string()
    )


def _text(column: Any) -> Any:
    if pa.types.is_nested(column.type):
        dump = json.JSONEncoder(ensure_ascii=False, default=as_text).encode
        return pa.array([None if value is None else dump(value) for value in column.to_pylist()], pa.string())
    try:
        return column.cast(pa.string())
    except pa.ArrowException:  # bytes, lengths of time
        return pa.array([None if value is None else as_text(value) for value in column.to_pylist()], pa.string())


def as_text(value: Any) -> str:
    """Convert a value that JSON and CSV lack: bytes to base64, times and the like as Python writes them."""
    return base64.b64encode(value).decode() if isinstance(value, bytes) else str(value)


_WRITERS: dict[str, Callable[[Any, Path], contextlib.AbstractContextManager[Write]]] = {
    ".parquet": _parquet,
    ".jsonl": _jsonl,
    ".jsonl.gz": lambda schema, path: _jsonl(schema, path, compress=True),
    ".csv": _csv,
}

# Raw arena exports into votes.
#
# An export holds the two conversations of a battle as lists of `{role, content}` messages, content being text or a list
# of parts with text. The user's turns become `prompt`; the conversations go, every other column stays. `both_bad` and
# its spellings become `tie (bothbad)`; a `timestamp` column becomes `tstamp` where there is none.

# Of the answers stay what `p2l leaderboard --control length,format` needs: for each side characters, and Markdown's
# headers, list items, bold passages and fenced blocks of code, over all of the model's turns.

_CONVERSATIONS = ("conversation_a", "conversation_b", "full_conversation")
_BOTH_BAD = {"both_bad", "bothbad", "both bad", "tie (both_bad)", "tie (both bad)", "tie(bothbad)", "tie (bothbad)"}


class Imported(NamedTuple):
    """Result of an import."""

    votes: int
    dropped: int
    """Rows left out because they were not votes."""


def import_votes(
    source: Any,
    output: str | Path,
    *,
    split: str = "train",
    from_disk: bool = False,
    drop_bad: bool = False,
    quiet: bool = True,
) -> Imported:
    """Convert a raw arena export to a file of votes, streaming; the ending of `output` names its format."""
    opened = _arena_source(open_source(source, split=split, from_disk=from_disk))
    rows, dropped = RowFile(), 0
    try:
        with progress(description=f"import {opened.name}", total=opened.rows, unit="votes", quiet=quiet) as bar:
            for batch in read_votes(opened, need_prompt=False, drop_bad=drop_bad):
                rows.append(batch.batch)
                dropped += batch.dropped
                bar.update(len(batch) + batch.dropped)
        with progress(rows.batches(), description=f"write {output}", unit="batches", quiet=quiet) as batches:
            return Imported(write_votes(batches, rows.schema(), output), dropped)
    finally:
        rows.close()


def _arena_source(source: Source) -> Source:
    """Return a source whose rows are those of an arena export, as votes."""
    names = [name for name in source.columns if name not in _CONVERSATIONS]
    if "conversation_a" in source.columns and "prompt" not in names:
        names = ["prompt", *names]
    if "timestamp" in names and "tstamp" not in names:
        names.append("tstamp")
    derived = {side: [f"{measure}_{side}" for measure in MEASURES] for side in "ab"}
    sides = [side for side in "ab" if f"conversation_{side}" in source.columns and not {*derived[side]} & {*names}]
    names += [name for side in sides for name in derived[side]]

    def read(columns: Sequence[str] | None, batch_size: int) -> Iterator[RawBatch]:
        measured = [side for side in sides if columns is None or {*derived[side]} & {*columns}]
        used = {*(columns or ()), "conversation_a", *(f"conversation_{side}" for side in measured)}
        needed = None if columns is None else [name for name in source.columns if name in used]
        for raw in source.stream(needed, batch_size):
            yield RawBatch(_as_votes(source, raw, measured), raw.first_row)

    return replace(source, columns=names, read=read)


def _as_votes(source: Source, raw: RawBatch, measured: Sequence[str]) -> Any:
    columns = dict(zip(raw.batch.schema.names, raw.batch.columns, strict=True))
    for side in measured:
        columns |= _measures(source, raw, columns[f"conversation_{side}"], side)
    if "conversation_a" in columns:
        columns = {"prompt": _user_turns(source, raw, columns["conversation_a"]), **columns}
    if "winner" in columns:
        columns["winner"] = _winners(columns["winner"])
    if "timestamp" in columns and "tstamp" not in columns:
        columns["tstamp"] = _times(columns["timestamp"])
    for name in _CONVERSATIONS:
        columns.pop(name, None)
    return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


def _times(column: Any) -> Any:
    """Return times in seconds: null where there is none, not a number, which is refused, where one cannot be read."""
    seconds = numbers(column)
    is_none = column.is_null().to_numpy(zero_copy_only=False)
    return pa.array(seconds, mask=is_none if is_text(column.type) else np.isnan(seconds))


def _winners(column: Any) -> Any:
    if not pa.types.is_dictionary(column.type):
        column = column.cast(pa.string()).dictionary_encode()
    spelled = []
    for text in column.dictionary.to_pylist():
        word = (text or "").strip().lower()
        spelled.append("tie (bothbad)" if word in _BOTH_BAD else word if word in WINNERS else text)
    return pa.DictionaryArray.from_arrays(column.indices, pa.array(spelled, pa.string())).dictionary_decode()


def _user_turns(source: Source, raw: RawBatch, column: Any) -> Any:
    """Return the contents of the user's messages of each conversation: a list of text."""
    kind = column.type
    is_list = pa.types.is_list(kind) and pa.types.is_struct(kind.value_type)
    if is_list and {"role", "content"} <= {field.name for field in kind.value_type}:
        messages = column.flatten()
        if pa.types.is_string(messages.type.field("content").type):
            return _pick_user(column, messages)
    return pa.array(
        [_turns_of(source.place(raw.first_row + row), value) for row, value in enumerate(column.to_pylist())],
        pa.list_(pa.string()),
    )


def _pick_user(column: Any, messages: Any) -> Any:
    """Do the same within Arrow, for contents that are plain text."""
    is_user = pc.equal(pc.struct_field(messages, "role"), "user").fill_null(False)
    before = np.concatenate([[0], np.cumsum(is_user.to_numpy(zero_copy_only=False))])
    lengths = pc.list_value_length(column).fill_null(0).to_numpy(zero_copy_only=False)
    offsets = before[np.concatenate([[0], np.cumsum(lengths)])].astype(np.int32)
    mask = column.is_null() if column.null_count else None
    turns = pc.struct_field(messages, "content").filter(is_user)
    return pa.ListArray.from_arrays(pa.array(offsets), turns, mask=mask)


_FENCED = re.compile(r"^ {0,3}(```|~~~).*?(?:^ {0,3}\1|\Z)", re.MULTILINE | re.DOTALL)
_MARKDOWN = {
    "headers": re.compile(r"^ {0,3}#{1,6}[ \t]+\S", re.MULTILINE),
    "lists": re.compile(r"^[ \t]*(?:[-*+]|\d{1,9}[.)])[ \t]+\S", re.MULTILINE),
    "bold": re.compile(r"\*\*[^*\n]+\*\*|__[^_\n]+__"),
}
MEASURES = ("length", *_MARKDOWN, "code")
"""What is counted in the answers of each side."""


def _measure_answers(text: str) -> list[int]:
    """Return the `MEASURES` of a model's answers; Markdown inside fenced code does not count."""
    prose, blocks = _FENCED.subn("", text)
    return [len(text), *(len(pattern.findall(prose)) for pattern in _MARKDOWN.values()), blocks]


def _measures(source: Source, raw: RawBatch, column: Any, side: str) -> dict[str, Any]:
    rows: list[list[int | None]] = []
    for row, conversation in enumerate(column.to_pylist()):
        turns = None
        # An answer that is not text (an image, say) has no measures, but its vote counts.
        with contextlib.suppress(VoteError):
            turns = _turns_of(source.place(raw.first_row + row), conversation, f"conversation_{side}", "assistant")
        rows.append([None] * len(MEASURES) if turns is None else [*_measure_answers("\n\n".join(turns))])
    counts = zip(*rows, strict=True) if rows else [()] * len(MEASURES)
    return {f"{name}_{side}": pa.array(list(column), pa.int64()) for name, column in zip(MEASURES, counts, strict=True)}


def _turns_of(place: str, conversation: Any, name: str = "conversation_a", role: str = "user") -> list[str] | None:
    if isinstance(conversation, str):
        try:
            conversation = parse_json(conversation)
        except ValueError as error:
            raise VoteError(f"{place}: {name} is text that is not JSON: {error}") from error
    if conversation is None:
        return None
    if not isinstance(conversation, list) or not all(isinstance(part, dict) for part in conversation):
        raise VoteError(f"{place}: {name} must be a list of {{role, content}} messages")
    return [_content(place, message.get("content"), name) for message in conversation if message.get("role") == role]


def _content(place: str, content: Any, name: str) -> str:
    """Return text as it is, and the texts of a list of parts joined by line feeds."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, dict):
        content = [content]
    parts = content if isinstance(content, list) else [None]
    texts = [part if isinstance(part, str) else part.get("text") for part in parts if isinstance(part, str | dict)]
    if len(texts) < len(parts):
        raise VoteError(f"{place}: a message of {name} holds neither text nor parts with text")
    return "\n".join(text for text in texts if text)
