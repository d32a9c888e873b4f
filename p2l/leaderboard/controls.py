"""Covariates of a file of votes, as `--control side,length,format,COLUMN` names them.

Shapes: N votes, n votes of a batch, C covariates.

    side      one for every vote: what being shown first is worth
    NAME      with columns NAME_a and NAME_b: (a - b) / (|a| + |b|), between -1 and 1
    format    headers, lists, bold and code, each as NAME above
    COLUMN    of numbers: as they are, counted for model_a; of text (a judge): for each value its lean towards the
              answer shown first and, where the likelihood can tell, how often it ties and how high it marks

The effects of a column of text are those against its most frequent value; without `side` every value has a lean of its
own. Votes whose value is missing count as zero.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from p2l.common.cli import nearest
from p2l.common.errors import VoteError
from p2l.leaderboard.covariates import SIDE, covariate_table
from p2l.leaderboard.intervals import Units, units_at
from p2l.leaderboard.pair_tables import Covariates, Ints, PairTable
from p2l.votes.schema import is_text, numbers

Floats = npt.NDArray[np.float64]
FORMAT = ("headers", "lists", "bold", "code")


class _Control(NamedTuple):
    name: str
    columns: tuple[str, ...]  # none for side, two for a difference


class Controls:
    """The covariates of votes read batch by batch: `add` each batch, then `covariates`."""

    def __init__(self, names: Sequence[str], columns: Sequence[str], source: str) -> None:
        self._controls = [_control(name, columns, source) for name in _expanded(names, columns, source)]
        self.columns = list(dict.fromkeys(column for control in self._controls for column in control.columns))
        self.missing: dict[str, int] = {}
        self._parts: list[list[npt.NDArray[Any]]] = []
        self._count = 0
        self._values: dict[str, dict[Any, int]] = {}  # codes of the values of columns of text
        self._source = source

    def add(self, batch: Any) -> None:
        """Keep the controls of an Arrow batch."""
        self._parts.append([self._column(control, batch) for control in self._controls if control.columns])
        self._count += len(batch)

    def _column(self, control: _Control, batch: Any) -> npt.NDArray[Any]:
        if len(control.columns) == 2:
            a, b = (self._numbers(control.name, batch.column(name)) for name in control.columns)
            size = np.abs(a) + np.abs(b)
            return np.asarray(np.divide(a - b, size, out=np.zeros(len(a)), where=size > 0))
        column = batch.column(control.columns[0])
        if control.name in self._values or (not self._parts and _is_text(column)):
            codes = self._values.setdefault(control.name, {})
            return np.array([codes.setdefault(value, len(codes)) for value in column.to_pylist()], dtype=np.int32)
        return self._numbers(control.name, column)

    def _numbers(self, name: str, column: Any) -> Floats:
        values = np.array(numbers(column), dtype=np.float64)
        missing = ~np.isfinite(values)
        if missing.any():
            empty = column.is_null().to_numpy(zero_copy_only=False)
            wrong = missing & ~empty & np.array([value != "" for value in column.to_pylist()])
            if wrong.any() and not _is_nan(column):
                text = column[int(np.argmax(wrong))].as_py()
                raise VoteError(f"{self._source}: control {name} needs numbers, not {text!r:.40}")
            self.missing[name] = self.missing.get(name, 0) + int(missing.sum())
            values[missing] = 0.0
        return values

    def covariates(self) -> Covariates:
        """Return the covariates of all votes so far."""
        columns = [np.concatenate(parts) for parts in zip(*self._parts, strict=True)]
        has_side = any(not control.columns for control in self._controls)
        names, roles, values = list[str](), list[str](), list[Floats]()
        rest = iter(columns)
        for control in self._controls:
            if not control.columns:
                made = [(SIDE, "difference", np.ones(self._count))]
            elif control.name in self._values:
                made = self._of_values(control.name, next(rest), centred=has_side)
            else:
                made = [(control.name, "difference", next(rest))]
            for name, role, column in made:
                names.append(name)
                roles.append(role)
                values.append(column)
        return Covariates(tuple(names), tuple(roles), np.stack(values, axis=1))

    def _of_values(self, name: str, codes: Ints, *, centred: bool) -> list[tuple[str, str, Floats]]:
        usual = int(np.bincount(codes).argmax())
        made = []
        for text, code in self._values[name].items():
            here = (codes == code).astype(np.float64)
            for role in ("difference", "ties", "level"):
                if code != usual or (role == "difference" and not centred):
                    made.append((f"{name} = {'none' if text is None else text}", role, here))
        return made


def _expanded(names: Sequence[str], columns: Sequence[str], source: str) -> list[str]:
    out = list[str]()
    for name in (part.strip() for text in names for part in text.split(",")):
        if name == "format" and "format" not in columns:
            present = [part for part in FORMAT if f"{part}_a" in columns and f"{part}_b" in columns]
            if not present:
                pairs = ", ".join(f"{part}_a and {part}_b" for part in FORMAT)
                raise VoteError(f"{source}: --control format needs columns {pairs}")
            out += present
        elif name:
            out.append(name)
    return list(dict.fromkeys(out))


def _control(name: str, columns: Sequence[str], source: str) -> _Control:
    pair = (f"{name}_a", f"{name}_b")
    if all(column in columns for column in pair):
        return _Control(name, pair)
    if name in columns:
        return _Control(name, (name,))
    if name == SIDE:
        return _Control(name, ())
    hint = nearest(name, [SIDE, "format", *columns])
    raise VoteError(f"{source}: --control {name} needs columns {pair[0]} and {pair[1]}, or {name}{hint}")


def _is_text(column: Any) -> bool:
    """Whether a column holds names rather than numbers; those of a CSV file are all text."""
    kind = getattr(column.type, "value_type", column.type)
    if not is_text(kind):
        return False
    values = column.to_pylist()
    return not all(np.isfinite(number) for number, text in zip(numbers(column), values, strict=True) if text)


def _is_nan(column: Any) -> bool:
    return not is_text(getattr(column.type, "value_type", column.type))


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

    def table(self, group: int, recode: Ints, num_models: int) -> tuple[PairTable, Units | None]:
        """Return the votes of one group as a table and, with clusters, as units of it; `recode` gives model codes."""
        if self._joined is None:
            columns = [np.concatenate(column) for column in zip(*self._votes, strict=True)]
            groups, rows = (np.concatenate(part) for part in zip(*self._members, strict=True))
            order = np.argsort(groups, kind="stable")
            covariates = self.controls.covariates()
            self._joined = columns, covariates, groups[order], rows[order]
            self._votes, self._members = [], []
        columns, covariates, groups, rows = self._joined
        own = rows[slice(*np.searchsorted(groups, [group, group + 1]))]
        a, b, winner, weights, *cluster = (column[own] for column in columns)
        picked = Covariates(covariates.names, covariates.roles, covariates.values[own])
        table, row, column = covariate_table(recode[a], recode[b], winner, num_models, weights, picked)
        return table, units_at(row, column, weights, cluster[0]) if cluster else None
