"""Import whatever holds votes or scores: paths of any kind into one file of votes, or one table of graded answers."""

from __future__ import annotations

import csv
import glob
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
import pyarrow.compute as pc

from p2l.common.cli import counted, progress
from p2l.common.errors import InputError, VoteError
from p2l.votes.door import Copied, arena_source, left_out, names_read, open_votes_source, together, why_none
from p2l.votes.field import FieldColumns
from p2l.votes.kinds.texts import clean_name
from p2l.votes.reading import check_columns, read_votes
from p2l.votes.rows import RawBatch, Source, is_text
from p2l.votes.schema import clean_names
from p2l.votes.scores import ScoreOptions, votes_of_source
from p2l.votes.sources import as_path
from p2l.votes.spool import RowFile, common_schema
from p2l.votes.writing import write_votes

STDIN = "-"
_BATCH_ROWS = 10_000


@dataclass(frozen=True)
class ImportOptions:
    """How paths are imported."""

    kind: str | None = None  # the kind that the paths are, rather than what they are recognised as
    columns: Mapping[str, str] | None = None  # column of the schema -> column of the file
    as_votes: bool = False  # write votes where the paths hold graded answers
    rename: str | Path | None = None  # CSV of names and what they are to be called
    drop_bad: bool = False  # leave out rows that cannot be read
    split: str = "train"
    quiet: bool = True


@dataclass(frozen=True)
class Imported:
    """Result of an import."""

    rows: int  # votes, or graded answers
    dropped: int  # rows left out because they could not be read
    gives: str  # `votes` or `scores`
    models: int
    about: str = ""  # what the paths were taken for and how their fields were read
    notes: tuple[str, ...] = ()  # what was left out or changed


def import_votes(
    source: Any, output: str | Path, options: ImportOptions | None = None, *, drop_bad: bool = False
) -> Imported:
    """Write what a path, several paths or a table hold into a file, whose ending names its format, streaming."""
    options = options or ImportOptions(drop_bad=drop_bad)
    paths = list(source) if isinstance(source, list | tuple) else [source]
    with tempfile.TemporaryDirectory(prefix="p2l-votes-") as folder:
        opened = _open_all(paths, options, Path(folder))
        if opened.gives == "scores" and options.as_votes:
            opened = votes_of_source(opened, ScoreOptions(), drop_bad=options.drop_bad)
        renames = {} if options.rename is None else read_renames(options.rename)
        met: set[str] = set()
        done = _write(_called(opened, renames, met), output, options)
    strange = [name for name in renames if name not in met]
    if not strange:
        return done
    shown = ", ".join(map(repr, strange[:3])) + (", ..." if len(strange) > 3 else "")
    return replace(done, notes=(*done.notes, f"--rename: no model is called {shown}"))


def _open_all(paths: Sequence[Any], options: ImportOptions, folder: Path) -> Source:
    opened = []
    for path in _expanded(paths, folder):
        source = open_votes_source(path, split=options.split, kind=options.kind, columns=options.columns)
        if not source.kind and source.gives == "votes":
            check_columns(source, None, need_prompt=False, label_list=None)
        opened.append(source if source.kind else arena_source(source))
    return together(opened, f"{len(opened)} files")


def _expanded(paths: Sequence[Any], folder: Path) -> Iterator[Any]:
    """Yield the paths that globs stand for, and stdin as a file."""
    for number, path in enumerate(paths):
        if not isinstance(path, str | Path):
            yield path
            continue
        text = str(path)
        if text == STDIN:
            yield _copied(sys.stdin.buffer, folder / "stdin", "stdin")
            continue
        place = as_path(path)
        if place.is_fifo():
            with place.open("rb") as pipe:
                yield _copied(pipe, folder / f"pipe-{number}", text)
        elif glob.has_magic(text) and not place.exists():
            matches = sorted(glob.glob(str(place), recursive=True))  # noqa: PTH207 (absolute too)
            if not matches:
                raise VoteError(f"{text}: no file matches")
            yield from matches
        else:
            yield path


def _copied(stream: IO[bytes], path: Path, name: str) -> Copied:
    """Return a file with the bytes of a stream, which can be read once only."""
    with path.open("wb") as file:
        shutil.copyfileobj(stream, file)
    if not path.stat().st_size:
        raise VoteError(f"{name}: is empty")
    return Copied(path, name)


def read_renames(path: str | Path) -> dict[str, str]:
    """Read a CSV file of two columns without a header: a name, and what it is to be called."""
    file = Path(path).expanduser()
    renames: dict[str, str] = {}
    try:
        with file.open(newline="", encoding="utf-8-sig") as lines:
            for number, row in enumerate(csv.reader(lines), 1):
                if not row:
                    continue
                if len(row) != 2 or not all(map(clean_name, row)):
                    raise InputError(f"{file}: line {number}: must be two names: one as it stands, one as it is to be")
                renames[clean_name(row[0])] = clean_name(row[1])
    except (OSError, ValueError, csv.Error) as error:
        raise InputError(f"{file}: cannot be read: {error}") from error
    return renames


def _called(source: Source, renames: Mapping[str, str], met: set[str]) -> Source:
    """Return a source whose models have their new names; `met` gathers the names that it has once it is read."""
    if not renames:
        return source

    def read(columns: Sequence[str] | None, batch_size: int) -> Iterator[RawBatch]:
        for raw in source.stream(columns, batch_size, with_faults=True):
            arrays = []
            for name, column in zip(raw.batch.schema.names, raw.batch.columns, strict=True):
                if name in {"model_a", "model_b", "model"} and is_text(column.type):
                    encoded = column.cast(pa.string()).dictionary_encode()
                    names = [clean_name(text or "") for text in encoded.dictionary.to_pylist()]
                    met.update(names)
                    called = pa.array([renames.get(text, text) for text in names], pa.string())
                    column = pa.DictionaryArray.from_arrays(encoded.indices, called).dictionary_decode()
                arrays.append(column)
            yield RawBatch(pa.RecordBatch.from_arrays(arrays, names=raw.batch.schema.names), raw.first_row)

    return replace(source, read=read)


def _write(source: Source, output: str | Path, options: ImportOptions) -> Imported:
    rows, dropped, marked = RowFile(), 0, 0
    field = FieldColumns() if source.gives == "votes" else None
    models: set[str] = set()
    try:
        noun = "votes" if source.gives == "votes" else "answers"
        with progress(description=f"import {source.name}", total=source.rows, unit=noun, quiet=options.quiet) as bar:
            for batch, lost in _batches(source, options):
                dropped += lost
                bar.update(len(batch) + lost)
                if not len(batch):
                    continue
                rows.append(batch)
                if field is not None:
                    field.add(batch)
                for name in {"model_a", "model_b", "model"} & {*batch.schema.names}:
                    models.update(batch.column(name).unique().to_pylist())
                marked += _markers(batch)
        with progress(rows.batches(), description=f"write {output}", unit="batches", quiet=options.quiet) as batches:
            if field is None:
                written = write_votes(batches, rows.schema(), output)
            else:
                schemas = dict.fromkeys(batch.schema for batch in field.batches(rows.batches()))
                written = write_votes(field.batches(batches), common_schema(list(schemas)), output)
    finally:
        rows.close()
    return Imported(written, dropped, source.gives, len(models), source.about, tuple(_notes(source, marked)))


def _markers(batch: Any) -> int:
    """Return how many prompts of votes hold a part that is no text, kept as a marker."""
    if "prompt" not in batch.schema.names or not pa.types.is_list(batch.column("prompt").type):
        return 0
    prompts = batch.column("prompt")
    marked = pc.match_substring_regex(
        prompts.flatten(), r"(?m)^\[(image|audio|video|file|tool use|tool result|part)\]$"
    )
    return pc.count_distinct(pc.list_parent_indices(prompts).filter(marked.fill_null(False))).as_py() or 0


def _batches(source: Source, options: ImportOptions) -> Iterator[tuple[Any, int]]:
    """Yield batches with the number of rows that were left out of each."""
    if source.gives == "votes":
        for votes in read_votes(source, need_prompt=False, drop_bad=options.drop_bad):
            yield votes.batch, votes.dropped
        return
    kept, lost = 0, 0
    for raw in source.stream(None, _BATCH_ROWS, with_faults=True):
        place = raw.batch.schema.get_field_index("model")
        batch = raw.batch.set_column(place, "model", clean_names(source, raw.batch.column(place)))
        nameless = pc.indices_nonzero(pc.equal(batch.column("model"), "")).to_pylist()
        bad = dict.fromkeys(nameless, "model has no name") | source.faults_of(raw)
        if bad and not options.drop_bad:
            row = min(bad)
            raise VoteError(
                f"{source.place(raw.first_row + row)}: {bad[row]}; add --drop-bad to leave out what cannot be read"
            )
        if bad:
            batch = batch.filter(pa.array([row not in bad for row in range(len(batch))]))
        kept += len(batch)
        lost += len(bad)
        yield batch, len(bad)
    if not kept:
        raise VoteError(f"{source.name}: holds no graded answers{why_none(source, lost)}")


def _notes(source: Source, marked: int) -> Iterator[str]:
    yield from source.notes
    if marked:
        yield f"{counted(marked, 'prompt')} with parts that are no text: markers such as [image] stand for them"
    if source.left_out:
        yield f"left out: {left_out(source)}"
    if source.spellings:
        yield names_read(source)
