"""Covariates of a file of votes, as `--control side,length,format,COLUMN` and the key `covariates` name them.

Shapes: N votes, n votes of a batch, C covariates.

    side      one for every vote: what being shown first is worth
    NAME      with columns NAME_a and NAME_b: (a - b) / (|a| + |b|), between -1 and 1
    format    headers, lists, bold and code, each as NAME above
    COLUMN    of numbers: as they are, counted for model_a; of text (a judge): for each value its lean towards the
              answer shown first and, where the likelihood can tell, how often it ties and how high it marks

The effects of a column of text are those against its most frequent value; without `side` every value has a lean of its
own. Votes whose value is missing count as zero. What a file decides (which columns there are, the texts in them) is a
`Design`, which reads the same covariates from other votes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from p2l.common.cli import counted, nearest
from p2l.common.errors import VoteError
from p2l.leaderboard.covariates import SIDE, covariate_table, row_keys
from p2l.leaderboard.intervals import Units, units_at
from p2l.leaderboard.pair_tables import Covariates, Ints, PairTable

# Arrow is imported where votes are read: a model holds a `Design` too, and reading one should not wait for Arrow.

Floats = npt.NDArray[np.float64]
Texts = Mapping[str, tuple[str | None, ...]]
FORMAT = ("headers", "lists", "bold", "code")
MAX_TEXTS = 200
"""Different texts of a column, each of which is up to three covariates."""


class Term(NamedTuple):
    """One covariate and what it is read from."""

    name: str
    role: str
    columns: tuple[str, ...]
    """None for side, two for a difference, one of numbers or text."""
    is_text: bool = False
    value: str | None = None
    """Of a column of text: which value counts as one; None: a vote without any."""


@dataclass(frozen=True)
class Design:
    """C covariates as one file of votes has decided them; `texts` are the values that its columns of text had."""

    terms: tuple[Term, ...]
    texts: Texts = field(default_factory=dict)

    @property
    def columns(self) -> list[str]:
        """The columns that the covariates are read from."""
        return list(dict.fromkeys(column for term in self.terms for column in term.columns))

    def pick(self, kept: Sequence[bool] | npt.NDArray[np.bool_]) -> Design:
        """Return some of the covariates."""
        return Design(tuple(term for term, keep in zip(self.terms, kept, strict=True) if keep), self.texts)

    def covariates(self, values: Floats) -> Covariates:
        """Return values (N, C) under their names and roles."""
        return Covariates(tuple(term.name for term in self.terms), tuple(term.role for term in self.terms), values)

    def read(self, batch: Any, source: str, missing: dict[str, int]) -> Floats:
        """Return the values (n, C) in an Arrow batch, seen from model_a.

        A missing value, and a text that the design does not know, counts as zero, and its vote in `missing` by column
        or name. VoteError for a column that is not there, or that holds no numbers.
        """
        there = batch.schema.names
        for term in self.terms:
            absent = next((column for column in term.columns if column not in there), None)
            if absent is not None:
                raise VoteError(f"{source}: covariate {term.name} needs a column {absent}{nearest(absent, there)}")
        texts: dict[str, list[str | None]] = {}
        for name, known in self.texts.items():
            if name in there:
                texts[name] = [None if text is None else str(text) for text in batch.column(name).to_pylist()]
                unknown = sum(count for text, count in Counter(texts[name]).items() if text not in known)
                if unknown:
                    missing[name] = missing.get(name, 0) + unknown
        values = np.ones((len(batch), len(self.terms)))
        for place, term in enumerate(self.terms):
            if term.is_text:
                values[:, place] = [text == term.value for text in texts[term.columns[0]]]
            elif term.columns:
                values[:, place] = _numeric(term.name, term.columns, batch, source, missing)
        return values

    def read_rows(self, rows: Sequence[Mapping[str, Any]], source: str, missing: dict[str, int]) -> Floats:
        """Return the values (n, C) in votes that are mappings, where whatever is not a number counts as missing."""
        import pyarrow as pa

        arrays: dict[str, Any] = {"": pa.nulls(len(rows))}  # a batch without columns would have no length
        for name in self.columns:
            column = [row.get(name) for row in rows]
            if name in self.texts:
                arrays[name] = pa.array([None if text is None else str(text) for text in column], pa.string())
            else:
                arrays[name] = pa.array([_number(number) for number in column], pa.float64())
        return self.read(pa.RecordBatch.from_pydict(arrays), source, missing)


def without_value(name: str, count: int) -> str:
    """Return the note about votes whose covariate is unknown."""
    return f"{counted(count, 'vote')} without a value of {name} {'counts' if count == 1 else 'count'} as zero."


class _Control(NamedTuple):
    name: str
    columns: tuple[str, ...]  # none for side, two for a difference


class Controls:
    """The covariates of votes read batch by batch: `add` each batch, then `design` and `covariates`."""

    def __init__(
        self,
        names: Sequence[str],
        columns: Sequence[str],
        source: str,
        *,
        key: str = "--control",
        steps: int | None = None,
    ) -> None:
        """Decide which of the source's columns the names need; VoteError, which calls them `key`, if one is absent.

        With `steps` values are `rounded`.
        """
        self._steps = steps
        self._controls = [_control(name, columns, source, key) for name in _expanded(names, columns, source, key)]
        self.columns = list(dict.fromkeys(column for control in self._controls for column in control.columns))
        self.missing: dict[str, int] = {}
        self._parts: list[list[npt.NDArray[Any]]] = []
        self._count = 0
        self._values: dict[str, dict[Any, int]] = {}  # codes of the values of columns of text
        self._frequencies: dict[str, list[int]] = {}  # of these values
        self._has_begun = False
        self._source = source

    def add(self, batch: Any) -> None:
        """Keep the controls of an Arrow batch."""
        self.hold(self.read(batch), len(batch))

    def read(self, batch: Any) -> list[npt.NDArray[Any]]:
        """Return the columns (n,) of an Arrow batch that the covariates are made of; texts are codes."""
        columns = [self._column(control, batch) for control in self._controls if control.columns]
        self._has_begun = True
        return columns

    def hold(self, columns: Sequence[npt.NDArray[Any]], count: int) -> None:
        """Keep columns (n,) of `read`; a row may stand for several votes."""
        self._parts.append(list(columns))
        self._count += count

    def _column(self, control: _Control, batch: Any) -> npt.NDArray[Any]:
        column = batch.column(control.columns[0])
        is_single = len(control.columns) == 1
        if not is_single or not (control.name in self._values or (not self._has_begun and _is_text(column))):
            numbers = _numeric(control.name, control.columns, batch, self._source, self.missing)
            return numbers if self._steps is None else rounded(numbers, self._steps, is_difference=not is_single)
        _refuse_lists(control.name, column, self._source)
        codes = self._values.setdefault(control.name, {})
        out = np.array([codes.setdefault(value, len(codes)) for value in column.to_pylist()], dtype=np.int32)
        if len(codes) > MAX_TEXTS:
            raise VoteError(
                f"{self._source}: control {control.name} has more than {MAX_TEXTS} texts, each a covariate of its "
                "own; is it the column of judges?"
            )
        counts = self._frequencies.get(control.name, [])
        counts += [0] * (len(codes) - len(counts))
        self._frequencies[control.name] = (np.array(counts) + np.bincount(out, minlength=len(codes))).tolist()
        return out

    def design(self) -> Design:
        """Return the covariates of the votes so far, without their values."""
        terms = list[Term]()
        has_side = any(not control.columns for control in self._controls)
        for control in self._controls:
            if control.name not in self._values:
                terms.append(Term(control.name, "difference", control.columns))
                continue
            # Effects are those against the most frequent value. Its own lean is that of all votes, which `side` tells.
            usual = int(np.argmax(self._frequencies[control.name]))
            terms += [
                Term(f"{control.name} = {'none' if text is None else text}", role, control.columns, True, text)
                for text, code in self._values[control.name].items()
                for role in ("difference", "ties", "level")
                if code != usual or (role == "difference" and not has_side)
            ]
        return Design(tuple(terms), {name: tuple(codes) for name, codes in self._values.items()})

    def covariates(self) -> Covariates:
        """Return the covariates of all votes so far."""
        design = self.design()
        if len(self._parts) > 1:
            self._parts = [[np.concatenate(parts) for parts in zip(*self._parts, strict=True)]]
        names = [control.name for control in self._controls if control.columns]
        columns = dict(zip(names, self._parts[0], strict=True)) if self._parts else {}
        values = np.ones((self._count, len(design.terms)))
        for place, term in enumerate(design.terms):
            if term.is_text:
                name = term.columns[0]
                values[:, place] = columns[name] == self._values[name][term.value]
            elif term.columns:
                values[:, place] = columns[term.name]
        return design.covariates(values)


def rounded(values: Floats, steps: int, *, is_difference: bool) -> Floats:
    """Return values (n,) rounded so that few are distinct: differences to 1 / steps, numbers to steps an octave."""
    if is_difference:
        return np.asarray(np.round(values * steps) / steps) + 0.0
    parts, octave = np.frexp(values)
    return np.asarray(np.ldexp(np.round(parts * (2 * steps)) / (2 * steps), octave)) + 0.0


def _expanded(names: Sequence[str], columns: Sequence[str], source: str, key: str) -> list[str]:
    out = list[str]()
    for name in (name.strip() for text in names for name in text.split(",")):
        if name == "format" and "format" not in columns:
            present = [mark for mark in FORMAT if f"{mark}_a" in columns and f"{mark}_b" in columns]
            if not present:
                pairs = ", ".join(f"{mark}_a and {mark}_b" for mark in FORMAT)
                raise VoteError(f"{source}: {key} format needs columns {pairs}")
            out += present
        elif name:
            out.append(name)
    if not out and names:
        raise VoteError(f"{source}: {key} names nothing; give {SIDE}, length, format or a column")
    return list(dict.fromkeys(out))


def _control(name: str, columns: Sequence[str], source: str, key: str) -> _Control:
    pair = (f"{name}_a", f"{name}_b")
    if all(column in columns for column in pair):
        return _Control(name, pair)
    if name in columns:
        return _Control(name, (name,))
    if name == SIDE:
        return _Control(name, ())
    hint = nearest(name, [SIDE, "format", *columns])
    raise VoteError(f"{source}: {key} {name} needs columns {pair[0]} and {pair[1]}, or {name}{hint}")


def _numeric(name: str, columns: Sequence[str], batch: Any, source: str, missing: dict[str, int]) -> Floats:
    """Return the values (n,) of a column of numbers, or the normalised difference of two; zero where one is missing."""
    first, *second = (_numbers(name, batch.column(column), source) for column in columns)
    if second:
        size = np.abs(first) + np.abs(second[0])
        # Two zeros differ by nothing; not a number stays that.
        values: Floats = np.divide(first - second[0], size, out=np.where(np.isnan(size), np.nan, 0.0), where=size > 0)
    else:
        values = first
    empty = np.isnan(values)
    if empty.any():
        missing[name] = missing.get(name, 0) + int(empty.sum())
    return np.where(empty, 0.0, values)


def _numbers(name: str, column: Any, source: str) -> Floats:
    """Return the numbers (n,) of a column, NaN where there is none; VoteError where there is something else."""
    from p2l.votes.rows import is_text
    from p2l.votes.schema import numbers

    _refuse_lists(name, column, source)
    values = np.array(numbers(column), dtype=np.float64)
    empty = ~np.isfinite(values)
    values[empty] = np.nan
    if empty.any() and is_text(getattr(column.type, "value_type", column.type)):
        wrong = next((text for text, bad in zip(column.to_pylist(), empty, strict=True) if bad and text), None)
        if wrong is not None:
            raise VoteError(f"{source}: control {name} needs numbers, not {wrong!r:.40}")
    return values


def _number(value: Any) -> float | None:
    try:
        number = None if isinstance(value, bool) or not isinstance(value, int | float | str) else float(value)
    except (ValueError, OverflowError):
        number = None
    return number if number is not None and np.isfinite(number) else None


def _refuse_lists(name: str, column: Any, source: str) -> None:
    import pyarrow as pa

    if pa.types.is_nested(column.type):
        raise VoteError(f"{source}: control {name} needs a number or a text in each row, not a list or an object")


def _is_text(column: Any) -> bool:
    """Whether a column holds names rather than numbers; those of a CSV file are all text."""
    from p2l.votes.rows import is_text
    from p2l.votes.schema import numbers

    kind = getattr(column.type, "value_type", column.type)
    if not is_text(kind):
        return False
    values = column.to_pylist()
    return not all(np.isfinite(number) for number, text in zip(numbers(column), values, strict=True) if text)


class ControlledVotes:
    """Votes with covariates, kept one by one with the groups that they are in; add batches, then ask for tables."""

    def __init__(self, controls: Controls) -> None:
        self.controls = controls
        self._votes: list[list[npt.NDArray[Any]]] = []
        self._members: list[tuple[Ints, Ints]] = []
        self._count = 0
        self._joined: tuple[list[npt.NDArray[Any]], Covariates, Ints, Ints] | None = None

    def add(self, batch: Any, votes: Sequence[npt.NDArray[Any]], groups: Sequence[tuple[Ints, Ints]]) -> None:
        """Keep a batch: models a and b, winner, weight, and cluster where there is one (n,), and (group, row) pairs."""
        self.controls.add(batch)
        self._votes.append(list(votes))
        self._members += [(group, rows + self._count) for group, rows in groups]
        self._count += len(votes[0])

    def table(self, groups: int | Sequence[int], recode: Ints, num_models: int) -> tuple[PairTable, Units | None]:
        """Return the votes of one or several groups as a table and, with clusters, as units of it.

        `recode` gives model codes.
        """
        if self._joined is None:
            columns = [np.concatenate(column) for column in zip(*self._votes, strict=True)]
            codes, rows = (np.concatenate(part) for part in zip(*self._members, strict=True))
            order = np.argsort(codes, kind="stable")
            covariates = self.controls.covariates()
            self._joined = columns, covariates, codes[order], rows[order]
            self._votes, self._members = [], []
        columns, covariates, codes, rows = self._joined
        several = [groups] if isinstance(groups, int) else groups
        members = np.concatenate([rows[slice(*np.searchsorted(codes, [group, group + 1]))] for group in several])
        a, b, winner, weights, *cluster = (column[members] for column in columns)
        picked = Covariates(covariates.names, covariates.roles, covariates.values[members])
        table, row, column = covariate_table(recode[a], recode[b], winner, num_models, weights, picked)
        return table, units_at(row, column, weights, cluster[0]) if cluster else None


_MAX_WAITING_ROWS = 1 << 20  # that are counted together
_MAX_COUNTED_ROWS = 20_000_000


class CountedVotes:
    """Votes counted by group, pair, winner and covariates, however many there are; for covariates with few values."""

    def __init__(self, controls: Controls) -> None:
        self.controls = controls
        self._waiting: list[tuple[list[npt.NDArray[Any]], Floats]] = []
        self._number_waiting, self._number_counted = 0, 0
        self._held: Covariates | None = None

    def add(self, batch: Any, votes: Sequence[npt.NDArray[Any]], groups: Sequence[tuple[Ints, Ints]]) -> None:
        """Count a batch; see `ControlledVotes`."""
        values = self.controls.read(batch)
        a, b, winner, weights = votes
        sums = np.stack([np.ones(len(a)), weights, weights**2])
        for group, rows in groups:
            columns = [group, *(column[rows] for column in (a, b, winner, *values))]
            self._waiting.append((columns, sums[:, rows]))
            self._number_waiting += len(rows)
        if self._number_waiting > max(_MAX_WAITING_ROWS, self._number_counted):
            self._count()

    def _count(self) -> tuple[list[npt.NDArray[Any]], Floats]:
        columns = [np.concatenate(parts) for parts in zip(*(rows for rows, _ in self._waiting), strict=True)]
        sums = np.concatenate([part for _, part in self._waiting], axis=1)
        keys = row_keys(columns[0], np.stack(columns[1:], axis=1))
        _, at, place = np.unique(keys, return_index=True, return_inverse=True)
        columns = [column[at] for column in columns]
        sums = np.stack([np.bincount(place.reshape(-1), row, len(at)) for row in sums])
        self._waiting, self._number_waiting, self._number_counted = [(columns, sums)], 0, len(at)
        if len(at) > _MAX_COUNTED_ROWS:
            raise VoteError(
                f"votes differ in more than {_MAX_COUNTED_ROWS:,} ways by pair and controls; name fewer controls, or "
                "fewer --control-steps"
            )
        return columns, sums

    def table(self, groups: int | Sequence[int], recode: Ints, num_models: int) -> tuple[PairTable, Units | None]:
        """Return the votes of one or several groups as a table; see `ControlledVotes`."""
        (codes, a, b, winner, *values), sums = self._count() if self._held is None else self._waiting[0]
        if self._held is None:
            self.controls.hold(values, len(codes))
            self._held = self.controls.covariates()
        several = [groups] if isinstance(groups, int) else groups
        rows = np.flatnonzero(np.isin(codes, several))
        picked = Covariates(self._held.names, self._held.roles, self._held.values[rows])
        a, b, winner = (column[rows] for column in (a, b, winner))
        table, _, _ = covariate_table(
            recode[a], recode[b], winner, num_models, None, picked, sums=np.ascontiguousarray(sums[:, rows])
        )
        return table, None
