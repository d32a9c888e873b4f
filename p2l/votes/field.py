"""What else is known of the field of a vote, as columns for `p2l leaderboard --control`: `p2l votes import` adds them.

    same_organisation   same or different: whether one organisation made both models
    repeated_prompt     first or repeated: whether an earlier vote is on the same prompt, but for case and blanks
    battle              blind or direct: whether the voter knew the names (of exports that say so, column `anony`)
    identity_revealed   whether an answer tells its model or maker

Shapes: n votes of a batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from p2l.votes.kinds.self_names import REVEALED, REVEALS, maker_of
from p2l.votes.rows import is_text

_ANONYMOUS = "anony"  # column of exports: whether the names were hidden


class FieldColumns:
    """Columns about the field: `add` each batch of an import, then take them back with these columns."""

    def __init__(self) -> None:
        """Begin without votes."""
        self._hashes: list[npt.NDArray[np.int64]] = []

    def add(self, batch: Any) -> None:
        """Note the prompts of a batch."""
        hashes = np.zeros(len(batch), dtype=np.int64)
        if "prompt" in batch.schema.names:
            # Python's own hash, which is another in each process: these are compared within one, and millions are made.
            hashes[:] = [hash(_plain(prompt)) for prompt in batch.column("prompt").to_pylist()]
        self._hashes.append(hashes)

    def batches(self, batches: Iterable[Any]) -> Iterator[Any]:
        """Yield the batches, in the order in which they were added, with the columns that can be told."""
        hashes = np.concatenate([np.zeros(0, dtype=np.int64), *self._hashes])
        is_first = np.zeros(len(hashes), dtype=bool)
        is_first[np.unique(hashes, return_index=True)[1]] = True
        start = 0
        for batch in batches:
            yield _with_columns(batch, is_first[start : start + len(batch)])
            start += len(batch)


def _plain(prompt: Any) -> tuple[str, ...]:
    """Return the turns of a prompt without case and further blanks."""
    turns = (prompt,) if isinstance(prompt, str) else prompt or ()
    return tuple([" ".join(turn.casefold().split()) for turn in turns])


def _with_columns(batch: Any, is_first: npt.NDArray[np.bool_]) -> Any:
    names = batch.schema.names
    more: dict[str, Any] = {}
    if {"model_a", "model_b"} <= set(names):
        makers = [_makers(batch.column(name)) for name in ("model_a", "model_b")]
        more["same_organisation"] = pc.if_else(pc.equal(*makers), "same", "different")
    if "prompt" in names:
        more["repeated_prompt"] = pc.if_else(pa.array(is_first), "first", "repeated")
    if _ANONYMOUS in names and pa.types.is_boolean(batch.schema.field(_ANONYMOUS).type):
        more["battle"] = pc.if_else(batch.column(_ANONYMOUS), "blind", "direct")
    if {f"{REVEALS}_a", f"{REVEALS}_b"} <= set(names):
        sides = [pc.greater(batch.column(f"{REVEALS}_{side}"), 0) for side in "ab"]
        more[REVEALED] = pc.or_kleene(*sides)
    for name, column in more.items():
        if name not in names:
            batch = batch.append_column(name, column)
    return batch


def _makers(column: Any) -> Any:
    """Return who made the models of a column."""
    encoded = (column if is_text(column.type) else column.cast(pa.string())).dictionary_encode()
    makers = pa.array([_maker(name) for name in encoded.dictionary.to_pylist()], pa.string())
    return pa.DictionaryArray.from_arrays(encoded.indices, makers).dictionary_decode()


@lru_cache(maxsize=4096)
def _maker(name: str) -> str:
    return maker_of(name)
