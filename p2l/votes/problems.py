"""What can be wrong with a vote, found for a whole batch at once.

`find_problems` returns every fault of a batch as a `Finding`; reading stops at the first row that has one, checking
lists them all. Rows are positions in the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from p2l.votes.codes import WINNERS, IntArray, unknown_winner
from p2l.votes.schema import NUMBER_COLUMNS, Labels, numbers, parse_labels

__all__ = ["Finding", "LabelNames", "find_problems", "first_problem"]


class Finding(NamedTuple):
    """One kind of fault and the rows that have it."""

    kind: str
    rows: IntArray  # positions in the batch, ascending
    say: Callable[[int], str]


class LabelNames:
    """Which model name each label index stood for so far: an index that changes its name betrays a mix of lists."""

    def __init__(self) -> None:
        self.names: dict[int, str] = {}

    def clashes(self, index: IntArray, name: Any) -> Iterator[tuple[int, str]]:
        """Places where (index, name) contradicts an earlier one, with what that was: one for each clashing pair."""
        encoded = name.dictionary_encode()
        codes = encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
        pairs, rows = np.unique(np.stack([index, codes], axis=1), axis=0, return_index=True)
        for (position, code), row in sorted(zip(pairs.tolist(), rows.tolist(), strict=True), key=lambda item: item[1]):
            this = encoded.dictionary[code].as_py() if code >= 0 else None
            if this is not None and self.names.setdefault(position, this) != this:
                yield row, self.names[position]


def find_problems(batch: Any, labels: LabelNames | None = None) -> list[Finding]:
    """Every fault in the columns that a batch in schema form has."""
    names = batch.schema.names
    found: list[Finding] = []
    if "prompt" in names:
        found += _prompt_problems(batch.column("prompt"))
    for name in ("model_a", "model_b"):
        if name in names:
            found.append(_finding("model name", _blank(batch.column(name)), _sentence(f"{name} has no name")))
    if "model_a" in names and "model_b" in names:
        found.append(_same_model(batch.column("model_a"), batch.column("model_b")))
    if "winner" in names:
        found.append(_winner_problem(batch.column("winner")))
    found += [_number_problem(name, batch.column(name)) for name in NUMBER_COLUMNS if name in names]
    if "labels" in names:
        found += _label_problems(batch, labels)
    return [finding for finding in found if len(finding.rows)]


def first_problem(found: list[Finding]) -> tuple[int, str] | None:
    """Row and sentence of the first row with a fault."""
    if not found:
        return None
    first = min(found, key=lambda finding: int(finding.rows[0]))
    row = int(first.rows[0])
    return row, first.say(row)


def _finding(kind: str, wrong: Any, say: Callable[[int], str]) -> Finding:
    if not isinstance(wrong, np.ndarray):
        wrong = pc.fill_null(wrong, False).to_numpy(zero_copy_only=False)
    return Finding(kind, np.flatnonzero(wrong), say)


def _sentence(text: str) -> Callable[[int], str]:
    return lambda _: text


def _blank(column: Any) -> Any:
    return pc.or_(column.is_null(), pc.equal(pc.utf8_trim_whitespace(column), "").fill_null(False))


def _prompt_problems(column: Any) -> list[Finding]:
    empty = pc.equal(pc.list_value_length(column), 0)
    found = [
        _finding("prompt", column.is_null(), _sentence("prompt is missing")),
        _finding("prompt", empty, _sentence("prompt has no turns")),
    ]
    if column.flatten().null_count:
        parents = pc.list_parent_indices(column).filter(column.flatten().is_null())
        rows = np.unique(parents.to_numpy(zero_copy_only=False))
        found.append(Finding("prompt", rows, _sentence("prompt holds a turn that is missing")))
    return found


def _same_model(first: Any, second: Any) -> Finding:
    def say(row: int) -> str:
        return f"model_a and model_b are both {first[row].as_py()!r}"

    same = pc.and_(pc.equal(first, second), pc.not_equal(first, ""))
    return _finding("same model twice", same, say)


def _winner_problem(column: Any) -> Finding:
    known = pc.is_in(column, value_set=pa.array(WINNERS))
    return _finding("winner", pc.invert(known), lambda row: unknown_winner(column[row].as_py()))


def _number_problem(name: str, column: Any) -> Finding:
    values = numbers(column)
    if name == "weight":
        wrong, must = ~np.isfinite(values) | (values < 0), "a finite number, zero or more"
    elif name == "propensity":
        # A vote may lack one; pyarrow's null and NaN are told apart by the column.
        missing = column.is_null().to_numpy(zero_copy_only=False)
        wrong, must = ~missing & ~((values > 0) & (values <= 1)), "a probability above 0 and at most 1"
    else:
        missing = column.is_null().to_numpy(zero_copy_only=False)
        wrong, must = ~missing & ~np.isfinite(values), "seconds since 1970, or a date and time"
    return _finding(name, wrong, lambda row: f"{name} is {column[row].as_py()!r}; it must be {must}")


def _label_problems(batch: Any, names: LabelNames | None) -> list[Finding]:
    column = batch.column("labels")
    labels = parse_labels(column)
    one, two, tie = labels.triples.T

    def show(row: int) -> str:
        return f"labels {column[row].as_py()!r}"

    wrong = ~labels.valid | (one < 0) | (two < 0) | (one == two) | (tie < 0) | (tie > 2)
    text = "are not [winner, loser, tie]: two different positions and a tie flag of 0, 1 or 2"
    found = [_finding("labels", wrong, lambda row: f"{show(row)} {text}")]
    if not {"model_a", "model_b", "winner"} <= set(batch.schema.names):
        return found
    winner = batch.column("winner")
    found.append(_tie_flag_problem(labels, wrong, winner, show))
    if names is not None and not wrong.any():
        found += _index_problems(batch, labels, names, show)
    return found


def _tie_flag_problem(labels: Labels, wrong: IntArray, winner: Any, show: Callable[[int], str]) -> Finding:
    """The flag must fit the winner; 1 is also right for `tie (bothbad)`, which some losses do not tell apart."""
    flag = labels.triples[:, 2]
    code = pc.index_in(winner, value_set=pa.array(WINNERS)).fill_null(-1).to_numpy(zero_copy_only=False)
    lowest, highest = np.array([0, 0, 1, 1, 0])[code], np.array([0, 0, 1, 2, 2])[code]
    clash = ~wrong & ((flag < lowest) | (flag > highest))
    return _finding("labels", clash, lambda row: f"{show(row)} contradict winner {winner[row].as_py()!r}")


def _index_problems(batch: Any, labels: Labels, names: LabelNames, show: Callable[[int], str]) -> list[Finding]:
    """Every index must stand for one model throughout: the winner's (model_a's in a tie), then the other's."""
    b_won = pc.equal(batch.column("winner"), "model_b")
    first, second = batch.column("model_a"), batch.column("model_b")
    sides = pa.concat_arrays([pc.if_else(b_won, second, first), pc.if_else(b_won, first, second)])
    # Row by row, as a reader would meet them: winner, loser, next winner, ...
    name = sides.take(pa.array(np.arange(len(sides)).reshape(2, -1).T.ravel()))
    index = labels.triples[:, :2].ravel()
    found = []
    for place, before in names.clashes(index, name):
        text = f"place {name[place].as_py()!r} at {index[place]}, where an earlier row has {before!r}"
        text += "; labels and names contradict each other, or the rows come from several model lists"
        found.append(Finding("labels", np.array([place // 2]), _sentence(f"{show(place // 2)} {text}")))
    return found
