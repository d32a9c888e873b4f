"""The prompts of a data set, in chunks of fixed size, and its rows as they are.

A data set needs the one column `prompt`: a text, or the list of the user's turns. Every other column is copied as it
is. Chunk c holds the rows from c * ROWS on, whatever batches the source yields, so that it is the same for several
processes and for a later run.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from p2l.common.cli import progress
from p2l.common.errors import InputError
from p2l.votes.reading import find_problems, first_problem
from p2l.votes.rows import Source, missing_column
from p2l.votes.schema import is_one_text, normalise
from p2l.votes.sources import open_source
from p2l.votes.spool import common_schema

ROWS = 512  # prompts in a chunk: encoded and sorted by length together, and saved as a whole
RESULTS = ("coefs", "eta", "gamma", "truncated", "familiarity", "last_hidden_state")  # columns that the model adds
_BATCH_ROWS = 1024  # rows of the source that are in memory at once
_BLOCK_BYTES = 1 << 20
_DIGEST_BYTES = 12


@dataclass(frozen=True)
class Survey:
    """Size, columns and fingerprint of a data set, after one pass over it."""

    rows: int
    schema: Any  # of all columns, the prompt as `PromptSet.tables` gives it
    fingerprint: str  # of the data set without limit

    @property
    def chunks(self) -> range:
        """The numbers of its chunks."""
        return range(-(-self.rows // ROWS))


@dataclass(frozen=True)
class PromptSet:
    """A data set of prompts, read any number of times; memory holds a batch."""

    source: Source
    path: str
    limit: int | None = None

    def survey(self, *, quiet: bool = True) -> Survey:
        """Read everything once: count the rows, check each prompt, find the type of each column.

        Raise InputError for a row without a prompt, a column that the model would write, or no rows.
        """
        rows = 0
        schemas: dict[Any, None] = {}
        with progress(description=f"read {self.source.name}", total=self.source.rows, unit="rows", quiet=quiet) as bar:
            for batch, first_row in self._batches(None):
                _check_prompts(self.source, batch, first_row)
                schemas[batch.schema] = None
                rows += len(batch)
                bar.update(len(batch))
        if not rows:
            raise InputError(f"{self.source.name}: holds no prompts")
        schema = common_schema(list(schemas))
        for name in RESULTS:
            if name in schema.names:
                raise InputError(
                    f"{self.source.name}: has a column {name!r}, which the model writes; rename or drop it"
                )
        # Text where the prompts of all batches are texts, else lists.
        is_text = all(pa.types.is_string(batch_schema.field("prompt").type) for batch_schema in schemas)
        prompt = pa.field("prompt", pa.string() if is_text else pa.list_(pa.string()))
        schema = schema.set(schema.get_field_index("prompt"), prompt)
        # It changes with the data: with a file's bytes, or with the version that the source records.
        file = Path(self.path).expanduser()
        if file.is_file():
            return Survey(rows, schema, file_digest(file))
        text = f"{self.source.version or self.source.name} {self.source.rows} {self.source.columns}"
        return Survey(rows, schema, hashlib.blake2b(text.encode(), digest_size=_DIGEST_BYTES).hexdigest())

    def chunks(self) -> Iterator[Any]:
        """Yield the prompts, chunk by chunk, as Arrow lists of user turns; all hold `ROWS` but the last."""
        pieces: list[Any] = []
        held = 0
        for batch, _ in self._batches(["prompt"]):
            turns = as_turns(batch.column("prompt"))
            while len(turns):
                chunk = turns.slice(0, ROWS - held)
                turns = turns.slice(len(chunk))
                pieces.append(chunk)
                held += len(chunk)
                if held == ROWS:
                    yield pa.concat_arrays(pieces)
                    pieces, held = [], 0
        if pieces:
            yield pa.concat_arrays(pieces)

    def tables(self) -> Iterator[tuple[int, Any]]:
        """Yield (chunk, rows of it with all columns) in order; a chunk may come in several pieces.

        Raise InputError for a row without a prompt.
        """
        row = 0
        for batch, first_row in self._batches(None):
            _check_prompts(self.source, batch, first_row)
            while len(batch):
                piece = batch.slice(0, ROWS - row % ROWS)
                batch = batch.slice(len(piece))
                yield row // ROWS, piece
                row += len(piece)

    def _batches(self, columns: list[str] | None) -> Iterator[tuple[Any, int]]:
        """Yield batches and the number of their first row as the user sees it, up to the limit."""
        left = self.limit
        for raw in self.source.stream(columns, _BATCH_ROWS):
            batch = raw.batch if left is None else raw.batch.slice(0, left)
            if len(batch):
                place = batch.schema.get_field_index("prompt")
                if place < 0:  # a block of JSON lines none of which has the key
                    batch = batch.append_column("prompt", pa.nulls(len(batch), pa.string()))
                else:
                    batch = batch.set_column(place, "prompt", _prompts(self.source, batch.column(place)))
                yield batch, raw.first_row
            if left is not None:
                left -= len(batch)
                if not left:
                    return


def open_prompts(path: str, *, split: str = "train", limit: int | None = None) -> PromptSet:
    """Open a data set as `p2l.votes.sources.open_source` does; InputError if it has no column `prompt`."""
    source = open_source(path, split=split)
    if "prompt" not in source.columns:
        raise missing_column(source, "prompt", because=" (the one column that is needed)")
    return PromptSet(source, path, limit)


def as_turns(column: Any) -> Any:
    """Return a column of prompts, texts or lists of texts, as lists of texts."""
    if not pa.types.is_string(column.type):
        return column
    offsets = pa.array(range(len(column) + 1), pa.int32())
    return pa.ListArray.from_arrays(offsets, column, mask=column.is_null() if column.null_count else None)


def _prompts(source: Source, column: Any) -> Any:
    """Return a column of prompts as texts where the source has texts, else as lists of turns."""
    kind = column.type
    if pa.types.is_struct(kind) or (hasattr(kind, "value_type") and pa.types.is_struct(kind.value_type)):
        raise InputError(
            f"{source.name}: column 'prompt' holds chat messages; it must hold a text or the list of the user's turns, "
            "that is the content of the messages whose role is user"
        )
    batch, unreadable = normalise(source, pa.RecordBatch.from_arrays([column], names=["prompt"]))
    if unreadable:
        raise InputError(f"{source.name}: {next(iter(unreadable.values()))}")
    turns = batch.column("prompt")
    return column.cast(pa.string()) if is_one_text(column, turns) else turns


def _check_prompts(source: Source, batch: Any, first_row: int) -> None:
    turns = pa.RecordBatch.from_arrays([as_turns(batch.column("prompt"))], names=["prompt"])
    problem = first_problem(find_problems(turns))
    if problem:
        raise InputError(f"{source.place(first_row + problem[0])}: {problem[1]}")


def file_digest(file: Path, start: bytes = b"") -> str:
    """Return 24 hex digits of the bytes of a file, after those of `start`."""
    digest = hashlib.blake2b(start, digest_size=_DIGEST_BYTES)
    with file.open("rb") as stream:
        while block := stream.read(_BLOCK_BYTES):
            digest.update(block)
    return digest.hexdigest()
