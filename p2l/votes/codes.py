"""Votes as integers: model names and winners to codes, labels from one model list to another.

Shapes: N votes, M models. Strings are hashed once by Arrow's dictionary encoding, so that 2.2 million votes between 130
models take about a tenth of a second, whether they come from a NumPy object array, a pandas column or an Arrow one;
everything after that is arithmetic on the few distinct names.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from p2l.command import nearest
from p2l.errors import VoteError

__all__ = ["WINNERS", "Encoded", "VoteCodes", "encode_column", "encode_votes", "name_lookup", "translate_labels"]

WINNERS = ("model_a", "model_b", "tie", "tie (bothbad)")
"""The four outcomes of a vote; a winner code is the position in this tuple."""

IntArray = np.ndarray[Any, np.dtype[Any]]


class Encoded(NamedTuple):
    """A column of text as codes: `values[codes[n]]` is the text of row n; a missing text has code -1."""

    values: list[str]
    codes: IntArray  # (N,) int32


class VoteCodes(NamedTuple):
    """Votes as codes: which two models met, and who won."""

    models: list[str]  # (M,) sorted names of the models that occur
    model_a: IntArray  # (N,) int32 positions in `models`
    model_b: IntArray  # (N,) int32
    winner: IntArray  # (N,) int8 positions in WINNERS


def encode_column(values: Any) -> Encoded:
    """Encode a column of text: an Arrow array, a pandas Series, a NumPy array, a sequence, or an `Encoded` itself.

    Values are in order of first appearance; a null is -1.

    Raises:
        VoteError: the column holds something else than text.
    """
    if isinstance(values, Encoded):
        return values
    array = _as_dictionary(values)
    codes = array.indices.fill_null(-1) if array.indices.null_count else array.indices
    names = array.dictionary.to_pylist()
    return Encoded(names, codes.to_numpy(zero_copy_only=False).astype(np.int32, copy=False))


def _as_dictionary(values: Any) -> Any:
    try:
        if _holds_python_text(values):
            # Python strings are hashed as they are met, which saves writing them out.
            values = pa.array(values, pa.dictionary(pa.int32(), pa.string()), from_pandas=True)
        array = values if isinstance(values, pa.Array | pa.ChunkedArray) else pa.array(values, from_pandas=True)
    except (pa.ArrowInvalid, pa.ArrowTypeError, UnicodeEncodeError) as error:
        raise VoteError(f"a column of model names or winners holds something else than text: {error}") from error
    if not pa.types.is_dictionary(array.type):
        if pa.types.is_null(array.type):
            array = array.cast(pa.string())
        if not _is_text(array.type):
            raise VoteError(f"a column of model names or winners holds {array.type}; it must hold text")
        array = array.dictionary_encode()
    if isinstance(array, pa.ChunkedArray):
        array = array.unify_dictionaries().combine_chunks()
        array = array if isinstance(array, pa.Array) else array.chunk(0)
    return array


def _holds_python_text(values: Any) -> bool:
    plain = isinstance(values, list) or (isinstance(values, np.ndarray) and values.dtype.kind == "O")
    return plain and len(values) > 0 and isinstance(values[0], str)


def _is_text(kind: Any) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def encode_votes(model_a: Any, model_b: Any, winner: Any) -> VoteCodes:
    """Encode three columns of text (see `encode_column` for what a column may be) as integer codes.

    Args:
        model_a: (N,) names of the models shown first.
        model_b: (N,) names of the models shown second.
        winner: (N,) one of `WINNERS` for each vote.

    Raises:
        VoteError: the columns differ in length or are empty, a winner is unknown, a name is missing, or a model meets
            itself; rows are counted from 1.
    """
    first, second, won = encode_column(model_a), encode_column(model_b), encode_column(winner)
    if not len(first.codes) == len(second.codes) == len(won.codes):
        sizes = f"{len(first.codes)}, {len(second.codes)} and {len(won.codes)}"
        raise VoteError(f"model_a, model_b and winner differ in length: {sizes} rows")
    if not len(first.codes):
        raise VoteError("there are no votes")
    models = sorted(_used(first) | _used(second))
    a, b = _recode(first, models), _recode(second, models)
    outcome = _recode(won, WINNERS).astype(np.int8)
    _refuse(a < 0, lambda _: "model_a has no name")
    _refuse(b < 0, lambda _: "model_b has no name")
    _refuse(a == b, lambda row: f"model_a and model_b are both {models[a[row]]!r}")
    _refuse(outcome < 0, lambda row: unknown_winner(won.values[won.codes[row]] if won.codes[row] >= 0 else None))
    return VoteCodes(models, a, b, outcome)


def unknown_winner(value: str | None) -> str:
    """The sentence about a winner that is none of the four."""
    if value is None:
        return f"winner is missing; it must be one of {', '.join(WINNERS)}"
    return f"unknown winner {value!r}; it must be one of {', '.join(WINNERS)}{nearest(value, WINNERS)}"


def _used(column: Encoded) -> set[str]:
    seen = np.bincount(column.codes[column.codes >= 0], minlength=len(column.values)) > 0
    return {name for name, used in zip(column.values, seen, strict=True) if used and name}


def _recode(column: Encoded, names: Sequence[str]) -> IntArray:
    return name_lookup(column.values, names, spare=True)[column.codes]


def name_lookup(source: Iterable[str], target: Sequence[str], *, spare: bool = False) -> IntArray:
    """Position in `target` of every name of `source`, -1 where it has none: int32 of length len(source).

    With `spare` one more -1 follows, so that the code -1 of a missing name looks up -1.
    """
    position = {name: index for index, name in enumerate(target)}
    found = [position.get(name, -1) for name in source]
    return np.array(found + [-1] * spare, dtype=np.int32)


def _refuse(wrong: Any, say: Any) -> None:
    if wrong.any():
        row = int(np.argmax(wrong))
        raise VoteError(f"row {row + 1}: {say(row)}")


def translate_labels(labels: IntArray, source: Sequence[str], target: Sequence[str]) -> IntArray:
    """Translate label triples by model name from one model list to another.

    Args:
        labels: (N, 3) integers `[winner, loser, tie]`, positions in `source`.
        source: names the labels refer to now.
        target: names they shall refer to.

    Returns:
        (N, 3) int32; a model that `target` lacks becomes -1, so `(out[:, :2] >= 0).all(axis=1)` are the usable votes.

    Raises:
        VoteError: a label lies outside `source`.
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
