"""Read votes from any source as a stream of validated batches in the form of the schema."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from p2l.common.cli import listed, nearest_of
from p2l.common.errors import VoteError
from p2l.votes.door import announce, open_votes_source, why_none
from p2l.votes.kinds.converting import TYPES
from p2l.votes.kinds.registry import nearly
from p2l.votes.kinds.self_names import REVEALED
from p2l.votes.kinds.texts import HOLDS_NUL
from p2l.votes.rows import Source, missing_column
from p2l.votes.schema import (
    NUMBER_COLUMNS,
    WINNERS,
    IntArray,
    is_one_text,
    name_lookup,
    normalise,
    numbers,
    parse_labels,
    unknown_winner,
)
from p2l.votes.scores import votes_of_source
from p2l.votes.spool import as_type, common_type

# Faults of votes, looked for in a whole batch at once: reading stops at the first row that has one, checking lists all.


class Finding(NamedTuple):
    """One kind of fault and the rows that have it."""

    kind: str
    rows: IntArray  # positions in the batch, ascending
    describe: Callable[[int], str]


def find_problems(batch: Any, label_names: dict[int, str] | None = None) -> list[Finding]:
    """Return every fault in the columns of a batch in schema form.

    `label_names` are the names of label indices in earlier batches; those of this one are added.
    """
    columns = dict(zip(batch.schema.names, batch.columns, strict=True))
    findings: list[Finding] = []
    if "prompt" in columns:
        prompts = columns["prompt"]
        empty = pc.equal(pc.list_value_length(prompts), 0)
        findings.append(_finding("prompt", prompts.is_null(), "prompt is missing"))
        findings.append(_finding("prompt", empty, "prompt has no turns"))
        if prompts.flatten().null_count:
            parents = pc.list_parent_indices(prompts).filter(prompts.flatten().is_null())
            rows = np.unique(parents.to_numpy(zero_copy_only=False))
            findings.append(Finding("prompt", rows, lambda _: "prompt holds a turn that is missing"))
        holds_nul = pc.match_substring(prompts.flatten(), "\0")
        if pc.any(holds_nul).as_py():
            rows = np.unique(pc.list_parent_indices(prompts).filter(holds_nul.fill_null(False)).to_numpy())
            findings.append(Finding("prompt", rows, lambda _: HOLDS_NUL))
    for name in ("model_a", "model_b"):
        if name in columns:
            is_empty = pc.equal(pc.utf8_trim_whitespace(columns[name]), "")
            findings.append(_finding("model name", pc.fill_null(is_empty, True), f"{name} has no name"))
    if {"model_a", "model_b"} <= columns.keys():
        first = columns["model_a"]
        same = pc.and_(pc.equal(first, columns["model_b"]), pc.not_equal(first, ""))
        findings.append(
            _finding("same model twice", same, lambda row: f"model_a and model_b are both {first[row].as_py()!r}")
        )
    if "winner" in columns:
        winner = columns["winner"]
        unknown = pc.invert(pc.is_in(winner, value_set=pa.array(WINNERS)))
        findings.append(_finding("winner", unknown, lambda row: unknown_winner(winner[row].as_py())))
    findings += [_number_problem(name, columns[name]) for name in NUMBER_COLUMNS if name in columns]
    if "labels" in columns:
        findings += _label_problems(batch, label_names)
    return [finding for finding in findings if len(finding.rows)]


def first_problem(findings: list[Finding]) -> tuple[int, str] | None:
    """Return the row and the sentence of the first row with a fault."""
    if not findings:
        return None
    first = min(findings, key=lambda finding: int(finding.rows[0]))
    row = int(first.rows[0])
    return row, first.describe(row)


def _finding(kind: str, wrong: Any, sentence: Callable[[int], str] | str) -> Finding:
    if not isinstance(wrong, np.ndarray):
        wrong = pc.fill_null(wrong, False).to_numpy(zero_copy_only=False)
    return Finding(kind, np.flatnonzero(wrong), (lambda _: sentence) if isinstance(sentence, str) else sentence)


def _number_problem(name: str, column: Any) -> Finding:
    values = numbers(column)
    # A vote may lack a propensity or a time; pyarrow's null and NaN are told apart by the column.
    missing = column.is_null().to_numpy(zero_copy_only=False)
    if name == "weight":
        wrong, must = ~np.isfinite(values) | (values < 0), "a finite number, zero or more"
    elif name == "propensity":
        wrong, must = ~missing & ~((values > 0) & (values <= 1)), "a probability above 0 and at most 1"
    else:
        wrong, must = ~missing & ~np.isfinite(values), "seconds since 1970, or a date and time"
    return _finding(name, wrong, lambda row: f"{name} is {column[row].as_py()!r}; it must be {must}")


def _label_problems(batch: Any, names: dict[int, str] | None) -> list[Finding]:
    column = batch.column("labels")
    labels = parse_labels(column)
    winner, loser, flag = labels.triples.T

    def show(row: int) -> str:
        return f"labels {column[row].as_py()!r}"

    wrong = ~labels.valid | (winner < 0) | (loser < 0) | (winner == loser) | (flag < 0) | (flag > 2)
    text = "are not [winner, loser, tie]: two different positions and a tie flag of 0, 1 or 2"
    findings = [_finding("labels", wrong, lambda row: f"{show(row)} {text}")]
    if not {"model_a", "model_b", "winner"} <= set(batch.schema.names):
        return findings
    # A flag of 1 also fits `tie (bothbad)`, which some losses do not tell apart. An unknown winner has
    # code -1, the last entry of both tables: it is a fault of its own, and any flag fits it.
    outcome = batch.column("winner")
    code = pc.index_in(outcome, value_set=pa.array(WINNERS)).fill_null(-1).to_numpy(zero_copy_only=False)
    lowest, highest = np.array([0, 0, 1, 1, 0])[code], np.array([0, 0, 1, 2, 2])[code]
    clash = ~wrong & ((flag < lowest) | (flag > highest))
    findings.append(_finding("labels", clash, lambda row: f"{show(row)} contradict winner {outcome[row].as_py()!r}"))
    if names is not None and not wrong.any():
        findings += _index_problems(batch, labels.triples[:, :2], names, show)
    return findings


def _index_problems(batch: Any, pairs: IntArray, names: dict[int, str], show: Callable[[int], str]) -> list[Finding]:
    """Check that every index stands for one model throughout: the winner's (model_a's in a tie), then the other's."""
    # An index with a name that changes betrays a mix of model lists.
    b_won = pc.equal(batch.column("winner"), "model_b")
    first, second = batch.column("model_a"), batch.column("model_b")
    sides = pa.concat_arrays([pc.if_else(b_won, second, first), pc.if_else(b_won, first, second)])
    # Row by row, as a reader would meet them: winner, loser, next winner, ...
    name = sides.take(pa.array(np.arange(len(sides)).reshape(2, -1).T.ravel()))
    index = pairs.ravel()
    encoded = name.dictionary_encode()
    codes = encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
    distinct, places = np.unique(np.stack([index, codes], axis=1), axis=0, return_index=True)
    findings = []
    in_order = sorted(zip(distinct.tolist(), places.tolist(), strict=True), key=lambda item: item[1])
    for (position, code), place in in_order:
        model = encoded.dictionary[code].as_py() if code >= 0 else None
        if model is None or names.setdefault(position, model) == model:
            continue
        text = f"place {model!r} at {position}, where an earlier row has {names[position]!r}"
        text += "; labels and names contradict each other, or the rows come from several model lists"
        row = place // 2
        findings.append(_finding("labels", np.arange(len(batch)) == row, f"{show(row)} {text}"))
    return findings


class FaultyRowError(VoteError):
    """A readable row that is not a vote; `drop_bad` leaves such rows out."""


_NAMED = ("model_a", "model_b", "winner")
_SAMPLE_ROWS = 20


@dataclass(frozen=True)
class VoteBatch:
    """Consecutive votes in the form of `p2l.votes.schema`, with their place in the source."""

    batch: Any
    """pyarrow.RecordBatch; `prompt` is a list of text, all columns beyond the schema are as in the source."""
    source: Source
    first_row: int
    """Number of the first row as the user sees it."""
    prompt_is_text: bool = False
    """Whether the source holds each prompt as one text rather than a list."""
    dropped: int = 0
    """Number of faulty rows left out here; with any, `place` does not apply."""
    revealed: int = 0
    """Number of votes left out here because an answer named its model; with any, `place` does not apply."""

    def __len__(self) -> int:
        return len(self.batch)

    def place(self, position: int) -> str:
        """Return the words that name the row at a position of this batch: `votes.jsonl: line 7`."""
        return self.source.place(self.first_row + position)


def open_vote_source(source: Any, *, split: str = "train", from_disk: bool = False) -> Source:
    """Open whatever holds votes: graded answers become votes as `p2l votes from-scores` makes them by default.

    What a file of another tool was taken for is said once.
    """
    opened = open_votes_source(source, split=split, from_disk=from_disk)
    if opened is not source:
        announce(opened)
    return votes_of_source(opened) if opened.gives == "scores" else opened


def read_votes(
    source: Any,
    *,
    columns: Sequence[str] | None = None,
    split: str = "train",
    from_disk: bool = False,
    batch_size: int = 65536,
    need_prompt: bool = True,
    label_list: Sequence[str] | None = None,
    drop_bad: bool = False,
) -> Iterator[VoteBatch]:
    """Stream votes, each checked; memory holds a batch at a time.

    Raise VoteError where the source or a column is missing, there are no votes, or a row, named, is not a vote.

    Args:
        source: a hub id, a `save_to_disk` folder, a .parquet / .jsonl / .jsonl.gz / .csv file, a table in memory, or a
            `Source`.
        columns: read and check these alone; each must be there. None reads all of them.
        split: which split of a hub data set or of a folder with several.
        from_disk: take the path for a `save_to_disk` folder whatever it looks like.
        batch_size: votes per batch, at most.
        need_prompt: with `columns=None`, whether votes without a prompt column are an error (leaderboards need none).
        label_list: model names that a `labels` column refers to; needed where model names or winner are absent.
        drop_bad: leave out rows that are not votes rather than refuse the first; batches count them in `dropped`.
    """
    opened = open_vote_source(source, split=split, from_disk=from_disk)
    check_columns(opened, columns, need_prompt=need_prompt, label_list=label_list)
    return _checked(opened, scan(opened, columns, batch_size, label_list), drop_bad)


def _checked(source: Source, scanned: Iterator[tuple[VoteBatch, list[Finding]]], drop_bad: bool) -> Iterator[VoteBatch]:
    kept, lost = 0, 0
    for batch, findings in scanned:
        problem = first_problem(findings)
        if problem and not drop_bad:
            raise FaultyRowError(f"{batch.place(problem[0])}: {problem[1]}")
        batch = without_bad(batch, findings)
        kept += len(batch)
        lost += batch.dropped
        yield batch
    if not kept:
        raise VoteError(f"{source.name}: holds no votes{why_none(source, lost)}")


def without_bad(batch: VoteBatch, findings: list[Finding]) -> VoteBatch:
    """Return the batch less every row that has a fault."""
    if not findings:
        return batch
    good = np.ones(len(batch), dtype=bool)
    for finding in findings:
        good[finding.rows] = False
    return replace(batch, batch=batch.batch.filter(pa.array(good)), dropped=int((~good).sum()))


def without_revealed(batch: VoteBatch) -> VoteBatch:
    """Return a batch less the votes on answers that tell their model or maker."""
    column = batch.batch.column(REVEALED)
    if not pa.types.is_boolean(column.type):
        column = pc.is_in(pc.utf8_lower(column.cast(pa.string())), pa.array(["true", "1"]))
    kept = pc.invert(pc.fill_null(column, False))
    rows = batch.batch.filter(kept)
    return replace(batch, batch=rows, revealed=batch.revealed + len(batch) - len(rows))


def check_columns(
    source: Source, columns: Sequence[str] | None, *, need_prompt: bool, label_list: Sequence[str] | None
) -> None:
    """Refuse a source that lacks a needed column, before any row is read."""
    has_labels = "labels" in source.columns
    required = list(columns) if columns is not None else ["prompt"] if need_prompt else []
    for name in required:
        if name not in source.columns:
            is_export = name == "prompt" and "conversation_a" in source.columns
            hint = " (a raw arena export: `p2l votes import` makes votes of it)" if is_export else ""
            raise missing_column(source, name, because=hint)
    absent = [name for name in _NAMED if name not in source.columns]
    if columns is not None or not absent or (has_labels and label_list is not None):
        return
    if has_labels:
        raise VoteError(
            f"{source.name}: no column {absent[0]!r}, and labels are positions in a model list that is not stated; "
            "state the list, or add model_a, model_b and winner"
        )
    near = nearly(source.columns, source.name)
    if near:
        raise VoteError(f"{source.name}: {near}; columns: {listed(source.columns)}")
    raise missing_column(source, absent[0], hint=len(absent) == 1 and _could_be(source, absent[0]))


def _could_be(source: Source, name: str) -> bool:
    """Return whether the column with the name nearest to one that lacks holds what that would."""
    column = nearest_of(name, [other for other in source.columns if other not in (*_NAMED, "prompt", "labels")])
    if column is None:
        return False
    first = next(iter(source.stream([column], _SAMPLE_ROWS, with_faults=True)), None)
    values = [] if first is None else first.batch.column(0).to_pylist()
    if name == "winner":
        return all(value in WINNERS for value in values)
    return all(isinstance(value, str) and value for value in values)


def scan(
    source: Source, columns: Sequence[str] | None, batch_size: int, label_list: Sequence[str] | None
) -> Iterator[tuple[VoteBatch, list[Finding]]]:
    """Stream batches in the form of the schema, each with its faults."""
    label_names: dict[int, str] = {}
    for raw in source.stream(columns, batch_size, with_faults=True):
        # A block of JSON lines may lack keys that others have.
        for name in columns if columns is not None else source.columns:
            if name not in raw.batch.schema.names:
                kind = TYPES["votes"].get(name, pa.string())
                raw = raw._replace(batch=raw.batch.append_column(name, pa.nulls(len(raw.batch), kind)))
        batch, unreadable = normalise(source, raw.batch)
        unreadable |= source.faults_of(raw)
        is_text = "prompt" in batch.schema.names and is_one_text(raw.batch.column("prompt"), batch.column("prompt"))
        findings: list[Finding] = []
        if columns is None and not set(_NAMED) <= set(batch.schema.names) and label_list is not None:
            batch, findings = _named(batch, label_list)
        if unreadable:
            rows = np.array(sorted(unreadable))
            findings.insert(0, Finding("unreadable row", rows, unreadable.__getitem__))
            findings += _unless(unreadable, find_problems(batch, label_names))
        yield VoteBatch(batch, source, raw.first_row, is_text), findings or find_problems(batch, label_names)


def _unless(unreadable: dict[int, str], findings: list[Finding]) -> list[Finding]:
    """Return findings without the rows that could not be read: what these lack is no second fault."""
    kept = [finding._replace(rows=finding.rows[~np.isin(finding.rows, [*unreadable])]) for finding in findings]
    return [finding for finding in kept if len(finding.rows)]


def _named(batch: Any, label_list: Sequence[str]) -> tuple[Any, list[Finding]]:
    """Add model_a, model_b and winner from the labels: by name, else by the winner, else with the winner first."""
    column = batch.column("labels")
    labels = parse_labels(column)
    pair, flag = labels.triples[:, :2], labels.triples[:, 2]
    wrong = ~labels.valid | ((pair < 0) | (pair >= len(label_list))).any(axis=1) | (flag < 0) | (flag > 2)
    if wrong.any():
        text = f"are not [winner, loser, tie] within the stated list of {len(label_list)} models"
        return batch, [Finding("labels", np.flatnonzero(wrong), lambda row: f"labels {column[row].as_py()!r} {text}")]
    names = pa.array(list(label_list))
    if "winner" in batch.schema.names and not {"model_a", "model_b"} & set(batch.schema.names):
        lost = pc.equal(batch.column("winner"), "model_b").fill_null(False).to_numpy(zero_copy_only=False)
        pair = np.where((lost & (flag == 0))[:, None], pair[:, ::-1], pair)
    added = {"model_a": names.take(pa.array(pair[:, 0])), "model_b": names.take(pa.array(pair[:, 1]))}
    b_won = np.zeros(len(batch), dtype=bool)
    if "model_a" in batch.schema.names and "model_b" in batch.schema.names:
        swapped = pc.equal(batch.column("model_a"), added["model_b"]).fill_null(False)
        b_won = swapped.to_numpy(zero_copy_only=False)
        findings = _other_models(batch, added, b_won)
        if findings:
            return batch, findings
    code = np.where(flag == 0, b_won.astype(np.int64), flag + 1)
    added["winner"] = pa.array(WINNERS).take(pa.array(code))
    for name, values in added.items():
        if name not in batch.schema.names:
            batch = batch.append_column(name, values)
    return batch, []


def _other_models(batch: Any, labelled: dict[str, Any], swapped: Any) -> list[Finding]:
    first, second = batch.column("model_a"), batch.column("model_b")
    as_labelled = pc.and_(pc.equal(first, labelled["model_a"]), pc.equal(second, labelled["model_b"]))
    turned = pc.and_(pc.equal(second, labelled["model_a"]), pa.array(swapped))
    wrong = ~pc.fill_null(pc.or_(as_labelled, turned), False).to_numpy(zero_copy_only=False)

    def describe(row: int) -> str:
        names = f"{labelled['model_a'][row].as_py()!r} and {labelled['model_b'][row].as_py()!r}"
        return f"labels mean {names} in the stated list, the row names {first[row].as_py()!r}, {second[row].as_py()!r}"

    return [Finding("labels", np.flatnonzero(wrong), describe)] if wrong.any() else []


def read_columns(source: Any, columns: Sequence[str], *, split: str = "train") -> dict[str, Any]:
    """Read some columns of all votes as Arrow arrays, checked as by `read_votes`; text is dictionary-encoded.

    This is the cheap way to what a leaderboard needs: `encode_votes(c["model_a"], c["model_b"], c["winner"])`.
    Four bytes a vote and text column stay in memory.
    """
    chunks: dict[str, list[Any]] = {name: [] for name in columns}
    for batch in read_votes(source, columns=columns, split=split):
        for name in columns:
            values = batch.batch.column(name)
            chunks[name].append(values.dictionary_encode() if values.type == pa.string() else values)
    joined: dict[str, Any] = {}
    for name, arrays in chunks.items():
        # JSON lines may change the type of a column as they go.
        kind = common_type([array.type for array in arrays])
        column = pa.chunked_array([as_type(array, kind) for array in arrays])
        if pa.types.is_dictionary(kind):
            column = column.unify_dictionaries()
        whole = column.combine_chunks()
        joined[name] = whole if isinstance(whole, pa.Array) else whole.chunk(0)
    return joined


def model_codes(names: Any, codes: dict[str, int]) -> Any:
    """Return codes (N,) int32 of a text column by a table of names, which grows as new names come."""
    encoded = names.dictionary_encode()
    values = encoded.dictionary.to_pylist()
    for name in values:
        codes.setdefault(name, len(codes))
    return name_lookup(values, list(codes))[encoded.indices.to_numpy(zero_copy_only=False)]
