"""The door of files of votes and scores: whatever a path holds becomes one source in the form of the schema.

Tables of votes (model_a, model_b, winner) pass as they are. Files of other tools are recognised by their content, and
each of their records becomes votes or graded answers; a record that cannot be read is a faulty row of the source, which
readers refuse by its place or drop and count, and one that says nothing (an error, a chat without a vote) is counted.
"""

from __future__ import annotations

import contextlib
import re
from collections import Counter
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from p2l.common.cli import counted, print_note
from p2l.common.errors import VoteError
from p2l.votes.kinds.converting import (
    NEEDED,
    TYPES,
    Converted,
    FlatRows,
    Piece,
    as_rows,
    converted,
    converted_batch,
    converted_piece,
)
from p2l.votes.kinds.inspect_logs import is_eval_file
from p2l.votes.kinds.kind import Kind, Record, Sample
from p2l.votes.kinds.registry import files_of, kind_of, known_columns
from p2l.votes.kinds.tables import is_own_form
from p2l.votes.kinds.texts import RowError, turns, unquoted
from p2l.votes.kinds.values import BOTH_BAD, MEASURES, measures, voter_and_source, winner_of
from p2l.votes.lake import is_lake
from p2l.votes.rows import MODEL_COLUMNS, RawBatch, Source, is_text, missing_column
from p2l.votes.schema import WINNERS, numbers
from p2l.votes.sources import as_path, is_data_set, open_file, open_source, refuse_pipe
from p2l.votes.spool import common_schema, conform

if TYPE_CHECKING:
    import pandas as pd

_BATCH_ROWS = 10_000
_RECORDS_AT_ONCE = 1_000
_SAMPLE_ROWS = 20
_PEEKED_ROWS = 1_000  # rows whose fields are the columns of a source
_VOTE_COLUMNS = frozenset({"model_a", "model_b", "winner"})
_JUDGED_MARKS = frozenset({"judge", "response_a", "conversation_a"})  # of tables of votes that say more than votes do
_LISTED_LABELS = 3
_CONVERSATIONS = ("conversation_a", "conversation_b", "full_conversation")

_TABLE_FILE = re.compile(r"\.(csv|tsv|json|jsonl|ndjson|parquet|eval)(\.(gz|zst|bz2|xz|zip))?$")
_BESIDE_VOTES = ("model_list.json", "export.json")  # what an export of CoEval's has beside its parts


class Copied(NamedTuple):
    """A copy of what can be read once only, and what it is called in messages."""

    path: Path
    name: str


def open_votes_source(
    source: Any,
    *,
    split: str = "train",
    from_disk: bool = False,
    kind: str | None = None,
    columns: Mapping[str, str] | None = None,
) -> Source:
    """Open whatever holds votes or graded answers, of any kind; `gives` of the source says which.

    Args:
        source, split, from_disk: as in `open_source`; also a folder of logs.
        kind: name of the kind that the path is, rather than the one that recognises it.
        columns: names that the schema has -> columns of the file that are to be taken for them.
    """
    if isinstance(source, Source):
        return source
    if isinstance(source, Copied):
        return _of_file(source.path, kind, columns, source.name)
    path = as_path(source) if isinstance(source, str | Path) else None
    if path is None or from_disk or is_lake(source) or not path.exists() or is_data_set(path):
        opened = open_source(source, split=split, from_disk=from_disk)
        if path is not None and is_lake(source) and kind is None and not columns:
            return opened  # votes in the form of the schema, which we wrote
        return _of_table(opened, Path(opened.name), kind, columns)
    if path.is_dir():
        return _of_folder(path, kind)
    return _of_file(path, kind, columns)


def _of_file(path: Path, kind: str | None, columns: Mapping[str, str] | None, copied_from: str = "") -> Source:
    refuse_pipe(path)
    name = copied_from or str(path)
    if is_eval_file(path):  # a zip, and no table
        sample = Sample(name, path, is_copy=bool(copied_from))
        chosen = kind_of(sample, kind)
        if chosen is not None:
            return _translated(chosen, sample)
    opened = open_file(path, name)
    unpacked, is_document = opened.file.path, opened.is_document
    sample = Sample(name, path, unpacked=unpacked, is_document=is_document, is_copy=bool(copied_from))
    return _of_table(opened.source, path, kind, columns, sample)


def _of_table(
    table: Source, path: Path, kind: str | None, columns: Mapping[str, str] | None, sample: Sample | None = None
) -> Source:
    """Return a table as votes or graded answers; as it is where it holds votes, or where no kind recognises it."""
    table = _renamed(table, columns or {})
    sample = sample or Sample(table.name, path)
    sample.names, sample.rows_of = table.columns, lambda _: _rows(table)
    if kind is None and is_arena_export(table.columns):
        return arena_source(_with_voters(table))
    has_votes = sample.columns >= _VOTE_COLUMNS
    if kind is None and has_votes and not _JUDGED_MARKS & sample.columns:
        return _with_winners(table)
    records = islice(_rows(table, _SAMPLE_ROWS), _SAMPLE_ROWS)
    sample.rows = [
        {name: unquoted(value) for name, value in record.content.items()} for record in records if not record.fault
    ]
    chosen = kind_of(sample, kind)
    # A table of votes may have columns like those of scores besides.
    if chosen is None and not has_votes:
        return _in_small_letters(table, path, sample)
    if chosen is None or (kind is None and chosen.gives == "scores" and (has_votes or sample.has("labels"))):
        return _with_winners(_with_voters(table)) if has_votes else table
    return _translated(chosen, sample, table)


def _in_small_letters(table: Source, path: Path, sample: Sample) -> Source:
    """Return a table whose columns are called by names that are known, but for capitals and blanks, as what it is."""
    known = known_columns()
    plain = {name: re.sub(r"\s+", "_", name.strip().lower()) for name in table.columns}
    columns = {plain[name]: name for name in table.columns if plain[name] != name and plain[name] in known}
    if not columns or len({columns.get(plain[name], name) for name in table.columns}) < len(table.columns):
        return table
    renamed = _of_table(_renamed(table, columns), path, None, None, replace(sample))
    if renamed.kind:
        return renamed
    if {*renamed.columns} >= _VOTE_COLUMNS:
        return replace(renamed, notes=[*renamed.notes, "names of columns are read in small letters"])
    return table


def _with_voters(table: Source) -> Source:
    """Return a table of votes whose column `judge` says who voted: a person is a voter, and a model a source."""
    added = [name for name in ("source", "voter") if name not in table.columns]
    if "judge" not in table.columns or not added:
        return table

    def read(columns: Sequence[str] | None, batch_size: int) -> Iterator[RawBatch]:
        wanted = [name for name in added if columns is None or name in columns]
        chosen = columns
        if columns is not None and wanted:
            chosen = list(dict.fromkeys([*(name for name in columns if name not in added), "judge"]))
        for raw in table.stream(chosen, batch_size, with_faults=True):
            batch = raw.batch
            if wanted and "judge" in batch.schema.names:
                who = [voter_and_source(judge) for judge in batch.column("judge").to_pylist()]
                for name in wanted:
                    batch = batch.append_column(name, pa.array([told.get(name) for told in who], pa.string()))
            names = [name for name in batch.schema.names if columns is None or name in columns]
            yield RawBatch(batch.select(names), raw.first_row)

    note = "judge -> source, and voter where it is a person"
    if "source" not in added:
        note = "judge -> voter where it is a person; source is kept as it stands"
    return replace(table, columns=[*table.columns, *added], read=read, texts=None, notes=[*table.notes, note])


def _with_winners(table: Source) -> Source:
    """Return a table of votes whose winners are the outcomes; where they are names or words, by what these mean."""
    first = next(iter(table.stream([*_VOTE_COLUMNS], _PEEKED_ROWS, with_faults=True)), None)
    if first is None or not _are_texts(first.batch):
        return table
    winner, sides = first.batch.column("winner"), pa.array(["model_a", "model_b"])
    # A table in which some winners are sides already is of the schema: what else stands there is a fault.
    if pc.any(pc.is_in(winner, sides)).as_py() or not pc.any(pc.is_in(_outcomes(first.batch), sides)).as_py():
        return table

    def read(columns: Sequence[str] | None, batch_size: int) -> Iterator[RawBatch]:
        needed = None if columns is None else list(dict.fromkeys([*columns, *_VOTE_COLUMNS]))
        for raw in table.stream(needed if columns and "winner" in columns else columns, batch_size, with_faults=True):
            batch = raw.batch
            if _are_texts(batch):
                batch = batch.set_column(batch.schema.get_field_index("winner"), "winner", _outcomes(batch))
            chosen = [name for name in batch.schema.names if columns is None or name in columns]
            yield RawBatch(batch.select(chosen), raw.first_row)

    note = "winners are names of models or words such as 'A' and 'left', read as the sides that they mean"
    return replace(table, read=read, texts=None, notes=[*table.notes, note])


def _are_texts(batch: Any) -> bool:
    names = batch.schema.names
    return all(name in names and is_text(batch.column(name).type) for name in _VOTE_COLUMNS)


def _outcomes(batch: Any) -> Any:
    """Return the winners of votes: names of models and words as the outcomes they mean, all else as it stands."""
    winner, first, second = (batch.column(name).cast(pa.string()) for name in ("winner", "model_a", "model_b"))
    encoded = winner.dictionary_encode()
    words = [_outcome(word) for word in encoded.dictionary.to_pylist()]
    spelled = pa.DictionaryArray.from_arrays(encoded.indices, pa.array(words, pa.string())).dictionary_decode()
    is_first, is_second = (pc.fill_null(pc.equal(winner, name), False) for name in (first, second))
    return pc.if_else(is_first, "model_a", pc.if_else(is_second, "model_b", spelled))


def _outcome(word: str) -> str:
    try:
        return winner_of(word)
    except RowError:
        return word


def _of_folder(path: Path, kind: str | None) -> Source:
    files = files_of(path)
    if not files:
        raise VoteError(f"{path}: is an empty folder")
    sample = Sample(str(path), path, files=files, rows_of=lambda name: _rows(open_file(path / name).source))
    chosen = kind_of(sample, kind)
    if chosen is not None:
        return _translated(chosen, sample)
    parts = [name for name in files if _TABLE_FILE.search(name.lower()) and name not in _BESIDE_VOTES]
    others = [name for name in files if name not in parts]
    shown = ", ".join(others[:_LISTED_LABELS]) + (", ..." if len(others) > _LISTED_LABELS else "")
    if not parts:
        raise VoteError(f"{path}: holds no file of votes or scores, only {shown}; name a file where one is a table")
    source = together([open_votes_source(path / name) for name in parts], str(path))
    return replace(source, notes=[*source.notes, f"passed over what is no table: {shown}"]) if others else source


def together(sources: Sequence[Source], name: str) -> Source:
    """Return the rows of several sources as those of one; VoteError where some hold votes and others scores."""
    if len(sources) == 1:
        return sources[0]
    gives = {source.gives for source in sources}
    if len(gives) > 1:
        first = {kind: next(source.name for source in sources if source.gives == kind) for kind in ("votes", "scores")}
        raise VoteError(f"{name}: {first['votes']} holds votes and {first['scores']} graded answers; import them apart")
    places: dict[int, tuple[Source, int]] = {}
    faults: dict[int, str] = {}
    names = list(dict.fromkeys(column for source in sources for column in source.columns))

    def read(columns: Sequence[str] | None, batch_size: int) -> Iterator[RawBatch]:
        start = 1
        for source in sources:
            chosen = None if columns is None else [column for column in columns if column in source.columns]
            for raw in source.stream(chosen, batch_size, with_faults=True):
                places[start] = (source, raw.first_row)
                faults.update({start + position: why for position, why in source.faults_of(raw).items()})
                yield RawBatch(raw.batch, start)
                start += len(raw.batch)

    def place(row: int) -> str:
        start = max(begin for begin in places if begin <= row)
        source, first = places[start]
        return source.place(first + row - start)

    abouts = list(dict.fromkeys(source.about for source in sources if source.about))
    return Source(
        name,
        names,
        read,
        text_lists=any(source.text_lists for source in sources),
        kind=sources[0].kind,
        about="; ".join(abouts),
        gives=sources[0].gives,
        notes=[f"{source.name}: {note}" for source in sources for note in source.notes],
        places=place,
        faults=faults,
        left_out=sources[0].left_out,
        spellings=sources[0].spellings,
    )


def _renamed(table: Source, columns: Mapping[str, str]) -> Source:
    """Return a table whose columns are called as the schema calls them."""
    if not columns:
        return table
    names = {actual: wanted for wanted, actual in columns.items()}
    loose: dict[str, set[int]] = {}
    for actual in names:
        if actual not in table.columns:
            raise missing_column(table, actual, because=" that --columns could name")
    renamed = [names.get(name, name) for name in table.columns if name in names or name not in columns]

    def read(wanted: Sequence[str] | None, batch_size: int, *, as_texts: bool = False) -> Iterator[RawBatch]:
        chosen = None if wanted is None else [columns.get(name, name) for name in wanted]
        for raw in table.stream(chosen, batch_size, as_texts=as_texts, with_faults=True):
            kept = [name for name in raw.batch.schema.names if name in names or name not in columns]
            batch = raw.batch.select(kept).rename_columns([names.get(name, name) for name in kept])
            for name, rows in table.loose.items():
                loose[names.get(name, name)] = rows
                if names.get(name) in MODEL_COLUMNS:
                    table.faults.update(dict.fromkeys(rows, f"{names[name]} is not text"))
            yield RawBatch(batch, raw.first_row)

    about = ", ".join(f"{actual} -> {wanted}" for wanted, actual in columns.items())
    texts = partial(read, as_texts=True)
    return replace(table, columns=renamed, read=read, texts=texts, about=f"columns {about}", loose=loose)


def _translated(kind: Kind, sample: Sample, table: Source | None = None) -> Source:
    """Return the votes or graded answers of a recognised path, whose rows are `table` where it is one."""
    types = TYPES[kind.gives]
    about = kind.about + (f": {kind.reads}" if kind.reads else "")
    if table is not None and table.about:  # renamed columns
        about += f"; {table.about}"
    if kind.records is None and table is None:
        raise VoteError(f"{sample.name}: is a folder, which {kind.about} are not; name the files")
    recent: list[tuple[int, Piece]] = []  # number of the first row, of the piece that a reader may still ask for

    def read(columns: Sequence[str] | None, batch_size: int) -> Iterator[RawBatch]:
        source.left_out.clear()
        source.faults.clear()
        first = 1
        for piece in _pieces(kind, sample, table, source.left_out, min(batch_size, _BATCH_ROWS)):
            recent[:] = [(first, piece)]
            source.faults.update({first + position: fault for position, fault in piece.faults.items()})
            filled = [name for name in types if piece.batch.column(name).null_count < len(piece.batch)]
            names = [name for name in types if name in source.columns or name in filled]
            batch = piece.batch.select([name for name in names if columns is None or name in columns])
            for start in range(0, len(batch), batch_size):
                yield RawBatch(batch.slice(start, batch_size), first + start)
            first += len(batch)

    def place(row: int) -> str:
        first, piece = recent[0] if recent else (row + 1, None)
        if piece is None or not 0 <= row - first < len(piece.batch):
            return f"{sample.name}: row {row}"
        return piece.place(row - first)

    peeked = [row.content for row in islice(_one_by_one(kind, sample, table, Counter()), _PEEKED_ROWS) if not row.fault]
    source = Source(
        sample.name,
        [name for name in types if any(row.get(name) is not None for row in peeked)] or [*NEEDED[kind.gives]],
        read,
        kind=kind.name,
        about=about,
        gives=kind.gives,
        is_own_form=kind.name == "score-table" and is_own_form(sample),
        notes=table.notes if table is not None else (),
        places=place,
    )
    return source


def _pieces(kind: Kind, sample: Sample, table: Source | None, left_out: Counter[str], size: int) -> Iterator[Piece]:
    if kind.convert_batch is not None and kind.records is None and table is not None:
        for raw in table.stream(None, size, as_texts=True, with_faults=True):
            columns = [column.cast(pa.string()) if is_text(column.type) else column for column in raw.batch.columns]
            batch = pa.RecordBatch.from_arrays(columns, names=raw.batch.schema.names)
            flat = FlatRows(batch, table.faults_of(raw), table.loose_of(raw), partial(_place_of, table, raw.first_row))
            yield converted_batch(kind, flat, left_out)
        return
    rows = _one_by_one(kind, sample, table, left_out)
    while chunk := list(islice(rows, size)):
        yield converted_piece(kind, chunk)


def _place_of(table: Source, first_row: int, position: int) -> str:
    return table.place(first_row + position)


def _one_by_one(kind: Kind, sample: Sample, table: Source | None, left_out: Counter[str]) -> Iterator[Converted]:
    records = kind.records(sample) if kind.records else _rows(table) if table is not None else iter(())
    return converted(kind, _guarded(kind, sample, records), left_out)


def _rows(table: Source, at_once: int = _RECORDS_AT_ONCE) -> Iterator[Record]:
    """Yield the rows of a table as records."""
    for raw in table.stream(None, at_once, as_texts=True, with_faults=True):
        rows = as_rows(raw.batch, table.loose_of(raw))
        for number, row in enumerate(rows, raw.first_row):
            yield Record(table.place(number), row, table.faults.get(number, ""))


def _guarded(kind: Kind, sample: Sample, records: Iterator[Record]) -> Iterator[Record]:
    """Yield records; VoteError where the file around them is not as its tool writes it."""
    try:
        yield from records
    except (AttributeError, KeyError, TypeError, IndexError, ValueError) as error:
        raise VoteError(f"{sample.name}: is not as {kind.about} are, in what stands around the records") from error


_announced: set[str] = set()


def announce(source: Source) -> None:
    """Say once what a path was taken for, where it is not a table of votes already."""
    text = f"{source.name}: read as {source.about}" if source.kind and not source.is_own_form else ""
    for line in [*source.notes, *([text] if text else [])]:
        line = line if line.startswith(source.name) else f"{source.name}: {line}"
        if line not in _announced:
            _announced.add(line)
            print_note(line)


def left_out(source: Source) -> str:
    """Return how many records of a source held no vote or grade, and why; empty where all did."""
    counts = source.left_out.most_common(_LISTED_LABELS)
    parts = [f"{counted(count, 'record')} ({reason})" for reason, count in counts]
    more = sum(source.left_out.values()) - sum(count for _, count in counts)
    return ", ".join(parts + ([f"{more:,} others"] if more else []))


def names_read(source: Source) -> str:
    """Return which names of models were read as others, of a source that was read; empty where none was."""
    if not source.spellings:
        return ""
    shown = ", ".join(f"{name!r} -> {clean!r}" for name, clean in list(source.spellings.items())[:_LISTED_LABELS])
    more = ", ..." if len(source.spellings) > _LISTED_LABELS else ""
    names = counted(len(source.spellings), "name")
    return f"{names} of models read without invisible letters and blank ends: {shown}{more}"


def why_none(source: Source, lost: int) -> str:
    """Return why a source of which nothing was kept holds nothing; `lost` rows of it could not be read."""
    reasons = [left_out(source)] if source.left_out else []
    reasons += [f"{counted(lost, 'row')} cannot be read"] if lost else []
    return ": " + ", ".join(reasons) if reasons else ""


def read_frame(
    source: str | Path | Source, columns: Container[str], *, kind: str | None = None, drop_bad: bool = False
) -> pd.DataFrame:
    """Return those of `columns` that a table, or a file of graded answers of any kind, has: all rows at once.

    Rows that cannot be read are refused, or with `drop_bad` counted in `left_out` of the source.
    """
    import pandas as pd

    if not isinstance(source, Source):
        source = scores_source(source, kind=kind)
        announce(source)
    names = [name for name in source.columns if name in columns]
    batches = []
    for raw in source.stream(names, _BATCH_ROWS, with_faults=drop_bad):
        bad = source.faults_of(raw)
        source.left_out.update(["cannot be read"] * len(bad))
        batches.append(raw.batch.filter(pa.array([row not in bad for row in range(len(raw.batch))])))
    schema = common_schema(list(dict.fromkeys(batch.schema for batch in batches)))
    frames: list[pd.DataFrame] = [conform(batch, schema).to_pandas() for batch in batches]
    return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame(columns=names)


def scores_source(source: str | Path, *, kind: str | None = None) -> Source:
    """Open a file or folder of graded answers, by its kind."""
    path = Path(source).expanduser()
    if not path.exists():
        raise VoteError(f"{path}: no such file")
    return open_votes_source(path, kind=kind)


# Raw arena exports: their columns become those of votes a batch at a time.


def is_arena_export(columns: Container[str]) -> bool:
    """Return whether these are the columns of a raw arena export, rather than of a judge's verdicts on "
    "conversations."""
    named = all(name in columns for name in ("conversation_a", "model_a", "model_b", "winner"))
    return named and not ("judge" in columns and "turn" in columns)


def arena_source(source: Source) -> Source:
    """Return a source whose rows are those of an arena export, as votes; it is read whole."""
    names = [name for name in source.columns if name not in _CONVERSATIONS]
    if "conversation_a" in source.columns and "prompt" not in names:
        names = ["prompt", *names]
    if "timestamp" in names and "tstamp" not in names:
        names.append("tstamp")
    if "judge_hash" in names and "voter" not in names:  # of who voted, as arena-human-preference-100k has it
        names[names.index("judge_hash")] = "voter"
    sides = []
    for side in "ab":
        measures = [f"{measure}_{side}" for measure in MEASURES]
        if f"conversation_{side}" in source.columns and not {*measures} & {*names}:
            sides.append(side)
            names += measures

    def read(columns: Sequence[str] | None, batch_size: int) -> Iterator[RawBatch]:
        chosen, read_sides = None, sides
        if columns is not None:
            read_sides = [side for side in sides if any(f"{measure}_{side}" in columns for measure in MEASURES)]
            derived = [*(f"conversation_{side}" for side in read_sides)]
            derived += ["conversation_a"] if "prompt" in columns else []
            derived += ["timestamp"] if "tstamp" in columns else []
            derived += ["judge_hash"] if "voter" in columns else []
            chosen = [name for name in source.columns if name in columns or name in derived]
        for raw in source.stream(chosen, batch_size, with_faults=True):
            batch = _as_votes(source, raw, read_sides, with_prompt=columns is None or "prompt" in columns)
            if columns is not None:
                batch = batch.select([name for name in columns if name in batch.schema.names])
            yield RawBatch(batch, raw.first_row)

    return replace(source, columns=names, read=read)


def _as_votes(source: Source, raw: RawBatch, sides: Sequence[str], *, with_prompt: bool) -> Any:
    """Return a batch as votes, with the measures of the answers of some sides."""
    columns = dict(zip(raw.batch.schema.names, raw.batch.columns, strict=True))
    texts = {name: columns.pop(name) for name in _CONVERSATIONS if name in columns}
    texts.pop("full_conversation", None)
    if "judge_hash" in columns and "voter" not in columns:
        columns["voter"] = columns.pop("judge_hash")
    conversations = {name: column.to_pylist() for name, column in texts.items()}
    for side in sides:
        columns |= _measures(conversations[f"conversation_{side}"], side)
    if "conversation_a" in conversations and with_prompt:
        prompts: list[list[str] | None] = []
        for row, conversation in enumerate(conversations["conversation_a"], raw.first_row):
            try:
                talk = None if conversation is None else turns(conversation, "user", "conversation_a")
                prompts.append(talk)
            except RowError as error:
                prompts.append(None)
                source.faults[row] = str(error)
        columns = {"prompt": pa.array(prompts, pa.list_(pa.string())), **columns}
    if "winner" in columns and (is_text(columns["winner"].type) or pa.types.is_null(columns["winner"].type)):
        # Each different spelling is looked at once.
        encoded = columns["winner"].cast(pa.string()).dictionary_encode()
        winners = []
        for text in encoded.dictionary.to_pylist():
            word = (text or "").strip().lower()
            winners.append("tie (bothbad)" if word in BOTH_BAD else word if word in WINNERS else text)
        spelled = pa.DictionaryArray.from_arrays(encoded.indices, pa.array(winners, pa.string()))
        columns["winner"] = spelled.dictionary_decode()
    if "timestamp" in columns and "tstamp" not in columns:
        # Null where there is no time; NaN, which is refused, where a time cannot be read.
        times = columns["timestamp"]
        seconds = numbers(times)
        is_none = times.is_null().to_numpy(zero_copy_only=False) if is_text(times.type) else np.isnan(seconds)
        columns["tstamp"] = pa.array(seconds, mask=is_none)
    return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


def _measures(conversations: Sequence[Any], side: str) -> dict[str, Any]:
    """Return the columns of the measures of one side."""
    rows: list[list[int] | list[None]] = []
    for conversation in conversations:
        answers = None
        # An answer that is not text (an image, say) has no measures, but its vote counts.
        with contextlib.suppress(RowError):
            answers = None if conversation is None else turns(conversation, "assistant", f"conversation_{side}")
        counts = [None] * len(MEASURES) if answers is None else list(measures("\n\n".join(answers), side).values())
        rows.append(counts)
    return {
        f"{measure}_{side}": pa.array([counts[number] for counts in rows], pa.int64())
        for number, measure in enumerate(MEASURES)
    }
