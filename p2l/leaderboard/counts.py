"""Counts of votes that add up: of a lake, of files, of several machines.

A count is the number of votes of a group (a value of a column, or all votes; of a period, or of all time) on a pair of
models with an outcome, and the sums of their weights and of these squared: all that a leaderboard needs of votes. A
lake keeps counts of its own (`p2l.leaderboard.lake_counts`), and the coefficients of the last leaderboards beside them.

Shapes: M models, U distinct (group, model a, model b, winner).
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from p2l.common.errors import InputError, VoteError
from p2l.common.files import atomic_path, parse_json
from p2l.leaderboard.board import Leaderboard
from p2l.leaderboard.newton import Prior
from p2l.leaderboard.pair_tables import VoteCounter, check_number_of_models, distinct, every_sum, regrouped, split_keys
from p2l.votes.lake import COUNTS, Lake

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
NO_PERIOD = -(2**31)
"""The period of counts of all time."""
_KEY = b"p2l_counts"
_VERSION = 1


class Group(NamedTuple):
    """Whose votes are counted together."""

    by: str = ""
    """A column, or "" for all votes."""
    value: str = ""
    period: int = NO_PERIOD


@dataclass
class Counts:
    """Votes counted by group; groups and models are numbered as they come."""

    over: str | None = None
    """Which periods are told apart; None: groups are of all time."""
    counter: VoteCounter = field(default_factory=VoteCounter)
    groups: dict[Group, int] = field(default_factory=dict)
    names: dict[str, int] = field(default_factory=dict)

    def code(self, group: Group) -> int:
        """Return the number of a group, which may be new."""
        return self.groups.setdefault(group, len(self.groups))

    def codes_of(self, names: Sequence[str]) -> Ints:
        """Return the numbers of models, which may be new."""
        codes = [self.names.setdefault(name, len(self.names)) for name in names]
        check_number_of_models(len(self.names), "the votes")
        return np.array(codes, dtype=np.int64)

    def absorb(self, other: Counts) -> None:
        """Add counts whose models are numbered as these are."""
        codes = np.array([self.code(group) for group in other.groups], dtype=np.int64)
        keys, sums = other.counter.every_cell()
        self.counter.add_keys(regrouped(keys, codes), sums)

    def table(self) -> Any:
        """Return all counts as an Arrow table."""
        groups, names = list(self.groups), list(self.names)
        keys, sums = self.counter.every_cell()
        group, a, b, winner = split_keys(keys)

        def texts(values: list[str], codes: Ints) -> Any:
            return pa.DictionaryArray.from_arrays(pa.array(codes, pa.int32()), pa.array(values, pa.string()))

        periods = np.array([key.period for key in groups], dtype=np.int32)
        columns = {
            "by": texts([key.by for key in groups], group),
            "value": texts([key.value for key in groups], group),
            "period": pa.array(periods[group] if len(groups) else np.empty(0, np.int32)),
            "model_a": texts(names, a),
            "model_b": texts(names, b),
            "winner": pa.array(winner.astype(np.int8)),
            **{name: pa.array(row) for name, row in zip(_SUMS, every_sum(sums), strict=True)},
        }
        return pa.table(columns)

    def add_table(self, table: Any, source: str) -> None:
        """Add counts of a table as `table` returns it; raise VoteError for any other."""
        try:
            columns = {name: table.column(name).combine_chunks() for name in _COLUMNS}
            texts = {name: columns[name].dictionary_encode() for name in ("by", "value", "model_a", "model_b")}
            sums = np.stack([columns[name].to_numpy().astype(np.float64) for name in _SUMS])
            winner = columns["winner"].to_numpy().astype(np.int64)
            period = columns["period"].to_numpy().astype(np.int64)
            by, value = (texts[name].indices.to_numpy().astype(np.int64) for name in ("by", "value"))
        except (KeyError, pa.ArrowException, ValueError, AttributeError) as error:
            raise VoteError(
                f"{source}: holds no counts of votes; `p2l leaderboard --counts-only` writes them"
            ) from error
        if len(table) and not (np.isfinite(sums).all() and (sums >= 0).all() and ((winner >= 0) & (winner < 4)).all()):
            raise VoteError(f"{source}: holds counts that no votes have")
        if not len(table):
            return
        by_names, value_names = (texts[name].dictionary.to_pylist() for name in ("by", "value"))
        since = int(period.min())
        span = int(period.max()) - since + 1
        group_keys = (by * len(value_names) + value) * span + (period - since)
        keys, place = distinct(group_keys, len(by_names) * len(value_names) * span)
        columns_of, values_of = np.divmod(keys // span, len(value_names))
        periods = (keys % span + since).tolist()
        codes = [
            self.code(Group(by_names[column], value_names[text], number))
            for column, text, number in zip(columns_of.tolist(), values_of.tolist(), periods, strict=True)
        ]
        first, second = (
            self.codes_of(texts[name].dictionary.to_pylist())[texts[name].indices.to_numpy()]
            for name in ("model_a", "model_b")
        )
        if (first == second).any():
            raise VoteError(f"{source}: holds counts of a model that meets itself")
        group = np.array(codes, dtype=np.int64)[place]
        self.counter.add_cells(group, first, second, winner, sums)


_SUMS = ("votes", "weights", "squares")
_COLUMNS = ("by", "value", "period", "model_a", "model_b", "winner", *_SUMS)


def write_counts(counts: Counts, path: str | Path) -> None:
    """Write counts to a Parquet file."""
    import pyarrow.parquet as pq

    if not str(path).endswith(".parquet"):
        raise InputError(f"{path}: counts are written as .parquet")
    with atomic_path(path) as temporary:
        pq.write_table(marked(counts.table(), {"over": counts.over}), temporary, compression="zstd")


def read_counts(paths: Sequence[str | Path]) -> Counts:
    """Add up the counts of files; raise VoteError for a file that holds none, or periods of another kind."""
    import pyarrow.parquet as pq

    counts: Counts | None = None
    for path in paths:
        try:
            table = pq.read_table(path)
        except (OSError, pa.ArrowException) as error:
            raise VoteError(f"{path}: cannot be read: {(str(error).splitlines() or ['?'])[0]}") from error
        over = mark_of(table.schema, str(path)).get("over")
        if counts is None:
            counts = Counts(over)
        elif counts.over != over:
            raise VoteError(f"{path}: counts by {over or 'no period'}, {paths[0]} by {counts.over or 'none'}")
        counts.add_table(table, str(path))
    assert counts is not None
    return counts


def digest_of(facts: Any) -> str:
    """Return a name for what is kept of some facts."""
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]


def marked(table: Any, about: dict[str, Any]) -> Any:
    """Return a table that says what its counts are."""
    return table.replace_schema_metadata({_KEY: json.dumps({"version": _VERSION, **about})})


def mark_of(schema: Any, source: str) -> dict[str, Any]:
    """Return what `marked` wrote, from the schema of a table; raise VoteError where it is not there."""
    try:
        about = parse_json((schema.metadata or {})[_KEY])
    except (KeyError, ValueError) as error:
        raise VoteError(f"{source}: holds no counts of votes; `p2l leaderboard --counts-only` writes them") from error
    if not isinstance(about, dict) or about.get("version") != _VERSION:
        raise VoteError(f"{source}: holds counts of another version; count the votes again")
    return about


# Coefficients are kept beside the counts: where the fits of the next leaderboards begin. A start is never a result:
# each leaderboard is fitted to its counts, and takes one Newton step where these are those of the last run, a few where
# votes came. The figures are those of a fit from nothing to the square of the last step.
_MAX_KEPT_COEFS = 1_000_000  # the largest groups come first
_MAX_COEF = 100.0  # no coefficient of a fit is as far out


class Starts:
    """Coefficients by column and value, or by period, of leaderboards of one kind; without a lake there are none."""

    def __init__(self, lake: Lake | None = None, facts: Any = None) -> None:
        """Read those that the last run of the same kind, which `facts` tell, has kept."""
        self._lake, self._path = lake, f"{COUNTS}/{digest_of(['starts', facts])}.json"
        self._likelihood: str | None = None
        self._coefs: dict[tuple[str, str], tuple[dict[str, float], float | None]] = {}
        self._boards: list[tuple[str, str, Leaderboard]] = []
        self._kept_coefs = 0
        if lake is None or not lake.files.get_file_info(f"{lake.root}/{self._path}").is_file:
            return
        try:
            kept = parse_json(lake.read(self._path))
            for by, text, coefs, eta in kept["boards"]:
                by_name = {name: float(coef) for name, coef in coefs.items() if abs(coef) <= _MAX_COEF}
                self._coefs[by, text] = by_name, float(eta) if eta is not None and abs(eta) <= _MAX_COEF else None
            self._likelihood = kept["likelihood"]
        except (VoteError, OSError, KeyError, TypeError, ValueError, AttributeError, pa.ArrowException):
            self._coefs = {}  # a fit from nothing does as well

    def of(self, by: str, text: str, models: Sequence[str], likelihood: str, prior: Prior | None) -> Floats | None:
        """Return M coefficients, and eta behind them where there is one; None where nothing is kept."""
        coefs, eta = self._coefs.get((by, text), ({}, None))
        if not coefs or likelihood != self._likelihood:
            return None
        means = np.zeros(len(models)) if prior is None or prior.coefs is None else prior.coefs
        start = [coefs.get(name, mean) for name, mean in zip(models, means.tolist(), strict=True)]
        return np.array([*start, *([] if eta is None else [eta])])

    def add(self, by: str, text: str, board: Leaderboard) -> None:
        """Note a leaderboard for the next run."""
        self._kept_coefs += len(board.models)
        if self._lake is not None and self._kept_coefs <= _MAX_KEPT_COEFS and not board.effects:
            self._boards.append((by, text, board))

    def keep(self) -> None:
        """Write what was noted; a lake that cannot be written goes without."""
        if self._lake is None or not self._boards:
            return
        boards = [
            [by, text, dict(zip(board.models, board.coefs.tolist(), strict=True)), board.eta]
            for by, text, board in self._boards
        ]
        about = {"likelihood": self._boards[0][2].likelihood, "boards": boards}
        with contextlib.suppress(OSError, pa.ArrowException):
            self._lake.write(self._path, json.dumps(about).encode())
