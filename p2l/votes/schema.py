"""The vote schema: what each column means, and how the spellings of the sources become one form.

| column | form here | also read |
|---|---|---|
| prompt | list of text: the user's turns | text (one turn); messages; in CSV a JSON (or Python) list of either |
| model_a, model_b | text | dictionary-encoded text |
| winner | one of WINNERS | |
| labels | used where model names or winner are absent, else checked | lists of three, text such as "[ 1 2 0]" |
| weight, propensity, tstamp | kept as they are, read as float64 by `numbers` | numbers as text; dates and times |

Labels are positions in a model list and mean nothing without it. So where a row has model_a, model_b and winner, these
decide and its labels are only checked against them; where names or winner are absent, the list must be stated.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from p2l.common.cli import nearest
from p2l.common.errors import VoteError
from p2l.votes.kinds.texts import RowError, clean_name, prompt_turns
from p2l.votes.rows import Source, is_text

# Votes as integers: model names and winners to codes, labels from one model list to another.
#
# Shapes: N votes, M models. Arrow's dictionary encoding hashes strings once, so that 2.2 million votes between 130
# models take about a tenth of a second; everything after that is arithmetic on the few distinct names.

WINNERS = ("model_a", "model_b", "tie", "tie (bothbad)")
"""The four outcomes of a vote; a winner code is the position in this tuple."""
IntArray = np.ndarray[Any, np.dtype[Any]]


class TextCodes(NamedTuple):
    """A column of text as codes: `values[codes[n]]` is the text of row n; a missing text has code -1."""

    values: list[str]
    codes: IntArray  # (N,) int32


class VoteCodes(NamedTuple):
    """Votes as codes: which two models met, and who won."""

    models: list[str]  # (M,) sorted names of the models that occur
    model_a: IntArray  # (N,) int32 positions in `models`
    model_b: IntArray  # (N,) int32
    winner: IntArray  # (N,) int8 positions in WINNERS


def encode_column(values: Any) -> TextCodes:
    """Encode a column of text: an Arrow array, a pandas Series, a NumPy array, a sequence, or an `TextCodes` itself.

    Values are in order of first appearance; a null is -1. Raise VoteError where the column holds no text.
    """
    if isinstance(values, TextCodes):
        return values
    array = _as_dictionary(values)
    codes = array.indices.fill_null(-1) if array.indices.null_count else array.indices
    names = array.dictionary.to_pylist()
    return TextCodes(names, codes.to_numpy(zero_copy_only=False).astype(np.int32, copy=False))


def _as_dictionary(values: Any) -> Any:
    try:
        is_list = isinstance(values, list) or (isinstance(values, np.ndarray) and values.dtype.kind == "O")
        if is_list and len(values) and isinstance(values[0], str):
            # Python strings are hashed as they are met, which saves writing them out.
            values = pa.array(values, pa.dictionary(pa.int32(), pa.string()), from_pandas=True)
        array = values if isinstance(values, pa.Array | pa.ChunkedArray) else pa.array(values, from_pandas=True)
    except (pa.ArrowInvalid, pa.ArrowTypeError, UnicodeEncodeError) as error:
        raise VoteError(f"a column of model names or winners holds something else than text: {error}") from error
    if not pa.types.is_dictionary(array.type):
        if pa.types.is_null(array.type):
            array = array.cast(pa.string())
        if not is_text(array.type):
            raise VoteError(f"a column of model names or winners holds {array.type}; it must hold text")
        array = array.dictionary_encode()
    if isinstance(array, pa.ChunkedArray):
        array = array.unify_dictionaries().combine_chunks()
        array = array if isinstance(array, pa.Array) else array.chunk(0)
    return array


def encode_votes(model_a: Any, model_b: Any, winner: Any) -> VoteCodes:
    """Encode three columns of text (N,) as integer codes; see `encode_column` for what a column may be.

    Raise VoteError where the columns differ in length or are empty, a winner is none of `WINNERS`, a name is missing,
    or a model meets itself; rows are counted from 1.
    """
    first, second, won = encode_column(model_a), encode_column(model_b), encode_column(winner)
    if not len(first.codes) == len(second.codes) == len(won.codes):
        sizes = f"{len(first.codes)}, {len(second.codes)} and {len(won.codes)}"
        raise VoteError(f"model_a, model_b and winner differ in length: {sizes} rows")
    if not len(first.codes):
        raise VoteError("there are no votes")
    used = [np.unique(column.codes[column.codes >= 0]) for column in (first, second)]
    pairs = zip((first, second), used, strict=True)
    models = sorted({column.values[code] for column, codes in pairs for code in codes} - {""})
    a, b = (name_lookup(column.values, models, spare=True)[column.codes] for column in (first, second))
    outcome = name_lookup(won.values, WINNERS, spare=True)[won.codes].astype(np.int8)
    _refuse(a < 0, lambda _: "model_a has no name")
    _refuse(b < 0, lambda _: "model_b has no name")
    _refuse(a == b, lambda row: f"model_a and model_b are both {models[a[row]]!r}")
    _refuse(outcome < 0, lambda row: unknown_winner(won.values[won.codes[row]] if won.codes[row] >= 0 else None))
    return VoteCodes(models, a, b, outcome)


def unknown_winner(value: str | None) -> str:
    """Return the sentence about a winner that is not one of the four."""
    if value is None:
        return f"winner is missing; it must be one of {', '.join(WINNERS)}"
    return f"unknown winner {value!r}; it must be one of {', '.join(WINNERS)}{nearest(value, WINNERS)}"


def name_lookup(source: Iterable[str], target: Sequence[str], *, spare: bool = False) -> IntArray:
    """Return the position in `target` of every name of `source`, -1 where it has none: int32 of length len(source).

    With `spare` one more -1 follows, so that the code -1 of a missing name looks up -1.
    """
    position = {name: index for index, name in enumerate(target)}
    positions = [position.get(name, -1) for name in source]
    return np.array(positions + [-1] * spare, dtype=np.int32)


def _refuse(wrong: Any, describe: Any) -> None:
    if wrong.any():
        row = int(np.argmax(wrong))
        raise VoteError(f"row {row + 1}: {describe(row)}")


def translate_labels(labels: IntArray, source: Sequence[str], target: Sequence[str]) -> IntArray:
    """Translate labels (N, 3) `[winner, loser, tie]` by model name: from positions in `source` to those in `target`.

    Return (N, 3) int32; a model that `target` lacks becomes -1, so `(out[:, :2] >= 0).all(axis=1)` are the usable
    votes. Raise VoteError where a label lies outside `source`.
    """
    labels = np.asarray(labels)
    pair = labels[:, :2]
    _refuse(
        ((pair < 0) | (pair >= len(source))).any(axis=1),
        lambda row: f"labels {labels[row].tolist()} lie outside the model list of {len(source)} names",
    )
    moved = np.empty(labels.shape, dtype=np.int32)
    moved[:, :2] = name_lookup(source, target)[pair]
    moved[:, 2] = labels[:, 2]
    return moved


_TEXT_COLUMNS = ("model_a", "model_b", "winner")
NUMBER_COLUMNS = ("weight", "tstamp", "propensity")
_LIKE_JSON = r"(?s)^\s*(\[.*\]|\{.*\})\s*$"
_LABEL = r"^\s*[\[(]\s*(?P<i>\d{1,9})\s*[\s,]\s*(?P<j>\d{1,9})\s*[\s,]\s*(?P<t>\d{1,9})\s*[\])]\s*$"


def normalise(source: Source, batch: Any) -> tuple[Any, dict[int, str]]:
    """Bring prompt, model names and winner of a batch into the form of the schema; every other column stays.

    Return the batch, and by position the rows whose prompts cannot be read, which are null, with the reason. Names that
    change are told in `spellings` of the source.
    """
    arrays = []
    unreadable: dict[int, str] = {}
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        if name == "prompt":
            column, faults = _turns(source, column)
            unreadable |= faults
        elif name in _TEXT_COLUMNS:
            if not (is_text(column.type) or pa.types.is_null(column.type)):
                unreadable |= _filled(column, f"column {name!r} holds {column.type}; it must hold text")
                column = pa.nulls(len(column))
            column = column.cast(pa.string())
            if name != "winner":
                column = clean_names(source, column)
        arrays.append(column)
    return pa.RecordBatch.from_arrays(arrays, names=batch.schema.names), unreadable


def _filled(column: Any, why: str) -> dict[int, str]:
    """Return a reason for each row that has a value."""
    return dict.fromkeys(np.flatnonzero(column.is_valid().to_numpy(zero_copy_only=False)).tolist(), why)


def clean_names(source: Source, column: Any) -> Any:
    """Return names of models, a column of text, as people see them; `spellings` of the source tells what changed."""
    encoded = column.dictionary_encode()
    names = encoded.dictionary.to_pylist()
    cleaned = [clean_name(name) for name in names]
    if cleaned == names:
        return column
    source.spellings.update({name: clean for name, clean in zip(names, cleaned, strict=True) if name != clean})
    return pa.DictionaryArray.from_arrays(encoded.indices, pa.array(cleaned, pa.string())).dictionary_decode()


def _turns(source: Source, column: Any) -> tuple[Any, dict[int, str]]:
    kind = column.type
    if is_text(kind) or pa.types.is_null(kind):
        texts = column.cast(pa.string())
        # In CSV a text may itself be a list, or an object of messages.
        if source.text_lists and pc.any(pc.match_substring_regex(texts, _LIKE_JSON)).as_py():
            return _parsed(texts.to_pylist())
        # Each text is a list of one turn; the text itself is not copied.
        filled = texts.is_valid().to_numpy(zero_copy_only=False)
        offsets = np.concatenate([[0], np.cumsum(filled)]).astype(np.int32)
        mask = pa.array(~filled) if texts.null_count else None
        return pa.ListArray.from_arrays(pa.array(offsets), texts.drop_null(), mask=mask), {}
    is_list = pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    if is_list and (is_text(kind.value_type) or pa.types.is_null(kind.value_type)):
        return column.cast(pa.list_(pa.string())), {}
    if is_list and pa.types.is_struct(kind.value_type):
        return _parsed(column.to_pylist())
    why = f"column 'prompt' holds {kind}; it must hold text or a list of the user's turns"
    return pa.nulls(len(column), pa.list_(pa.string())), _filled(column, why)


def _parsed(prompts: Sequence[Any]) -> tuple[Any, dict[int, str]]:
    """Return prompts as lists of turns; null, with the reason by position, where one cannot be read."""
    rows: list[list[str] | None] = []
    unreadable: dict[int, str] = {}
    for position, prompt in enumerate(prompts):
        try:
            rows.append(None if prompt is None else prompt_turns(prompt))
        except RowError as error:
            rows.append(None)
            unreadable[position] = str(error)
    return pa.array(rows, pa.list_(pa.string())), unreadable


def is_one_text(raw: Any, turns: Any) -> bool:
    """Return whether the source holds each of these prompts as a text, rather than a list or the text of a list."""
    if not is_text(raw.type) or len(turns.flatten()) != len(raw) - raw.null_count:
        return False
    return pc.all(pc.equal(turns.flatten(), raw.drop_null().cast(pa.string()))).as_py() is not False


class Labels(NamedTuple):
    """Label triples of a batch; `valid` is False where a row holds no three whole numbers."""

    triples: IntArray  # (N, 3) int64, zero where not valid
    valid: IntArray  # (N,) bool


def parse_labels(column: Any) -> Labels:
    """Read a `labels` column: lists of three integers, or text such as `[ 1 2 0]` or `[1, 2, 0]`."""
    if is_text(column.type):
        matches = pc.extract_regex(column, _LABEL)
        valid = matches.is_valid().to_numpy(zero_copy_only=False)
        columns = [
            pc.if_else(matches.is_valid(), pc.struct_field(matches, place), "0").cast(pa.int64()) for place in range(3)
        ]
        return Labels(np.stack([labels.to_numpy(zero_copy_only=False) for labels in columns], axis=1), valid)
    triples = np.zeros((len(column), 3), dtype=np.int64)
    if not hasattr(column.type, "value_type") or not pa.types.is_integer(column.type.value_type):
        return Labels(triples, np.zeros(len(column), dtype=bool))
    lists = column.cast(pa.list_(pa.int64()))
    valid = pc.equal(pc.list_value_length(lists), 3).fill_null(False).to_numpy(zero_copy_only=False)
    flat = pc.list_flatten(lists.filter(pa.array(valid)))
    triples[valid] = flat.fill_null(-1).to_numpy(zero_copy_only=False).reshape(-1, 3)
    return Labels(triples, valid)


def numbers(column: Any) -> IntArray:
    """Return numbers, numbers as text, or times (seconds since 1970, UTC without a zone) as float64.

    Nulls, and values that are not numbers, become NaN.
    """
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if pa.types.is_timestamp(column.type) or pa.types.is_date(column.type):
        return _seconds(column)
    for kind in (pa.float64(), *[pa.timestamp("us")] * is_text(column.type)):
        with contextlib.suppress(pa.ArrowException):
            converted = column.cast(kind)
            if pa.types.is_timestamp(kind):
                return _seconds(converted)
            return np.asarray(converted.to_numpy(zero_copy_only=False), dtype=np.float64)
    return np.array([_number(text) for text in column.to_pylist()], dtype=np.float64)


def _seconds(column: Any) -> IntArray:
    micros = column.cast(pa.timestamp("us", getattr(column.type, "tz", None)), safe=False).cast(pa.int64())
    return np.asarray(micros.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)) / 1e6


def _number(text: Any) -> float:
    """Return a text alone as a number or a time: one that is neither must not spoil those of the other rows."""
    if not isinstance(text, str):
        return float("nan")
    with contextlib.suppress(ValueError):
        return float(text)
    for kind in (pa.timestamp("us"), pa.timestamp("us", "UTC")):  # Arrow reads a zone into the second alone
        with contextlib.suppress(pa.ArrowException):
            return float(_seconds(pa.array([text]).cast(kind))[0])
    return float("nan")


def hash_turns(turns: list[str], seed: int = 0) -> int:
    """Return a 64-bit hash of a prompt that is the same in every process and differs with the seed."""
    text = turns[0] if len(turns) == 1 else json.dumps(turns)
    return int.from_bytes(blake2b(text.encode(), digest_size=8, key=f"{len(turns)},{seed}".encode()).digest(), "little")
