"""The votes of a router's database in a lake: each run adds what came since the last one.

A commit says up to which vote the database was read, so that a run that was killed reads the same votes again, and each
is there once. A vote that is changed afterwards changes exports, and no lake.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from p2l.common.errors import InputError
from p2l.online_training.router_votes import PAIR_COLUMNS, Pseudonyms, router_database, vote_of
from p2l.votes.lake import Lake
from p2l.votes.lake_writing import Added, added_by

_ROWS_AT_ONCE = 10_000
_TEXT = pa.string()
_SCHEMA = {
    "model_a": _TEXT, "model_b": _TEXT, "winner": _TEXT, "tstamp": pa.float64(), "propensity": pa.float64(),
    "model_version": pa.list_(_TEXT), "question_id": _TEXT, "voter": _TEXT,
}  # fmt: skip


def add_database(lake: Lake, location: str, *, prompts: bool = True) -> Added | None:
    """Add the votes on two answers that came since the last time; return None where there are none.

    With `prompts` those whose prompt was not stored are left out; without, there is no column `prompt`. InputError for
    what is not a router's database, and for one that has lost the last vote that was read.
    """
    with router_database(location) as connection:
        voters = Pseudonyms(connection)
        identity = voters.of("\0the database")
        cursors = [commit.cursor for commit in lake.commits if commit.identity == identity and commit.cursor]
        last = max(cursors, default=None)
        after = 0 if last is None else _place(connection, last)
        given = _Given(connection, voters, after, last, prompts=prompts)
        first = next(iter(given), None)
        if first is None:
            return None
        name = f"router-{identity}-{len(cursors):08}"
        commit = lake.add(given.with_first(first), name=name, source=f"router {identity}", identity=identity)
    return added_by(commit)


def _place(connection: Any, cursor: list[Any]) -> int:
    """Return the row of the last vote that was read, which a VACUUM may have numbered anew."""
    _, request_id = cursor
    row = connection.execute("SELECT rowid FROM votes WHERE request_id = ?", (request_id,)).fetchone()
    if row is None:
        raise InputError("the database lacks the last vote that the lake has of it; name the one it was filled from")
    return int(row[0])


class _Given:
    """Votes in the order in which they were given, as batches; `cursor` is how far they were read."""

    def __init__(
        self, connection: Any, voters: Pseudonyms, after: int, last: list[Any] | None, *, prompts: bool
    ) -> None:
        self.cursor: list[Any] | None = last
        self._voters, self._prompts = voters, prompts
        self._schema = pa.schema(({"prompt": pa.list_(_TEXT)} if prompts else {}) | _SCHEMA)
        stored = "AND prompt IS NOT NULL " if prompts else ""
        self._rows = connection.execute(
            f"SELECT {PAIR_COLUMNS}, rowid FROM votes WHERE rowid > ? AND model_b IS NOT NULL {stored}ORDER BY rowid",
            (after,),
        )
        self._number = 0 if last is None else int(last[0])

    def __iter__(self) -> Iterator[Any]:
        while rows := self._rows.fetchmany(_ROWS_AT_ONCE):
            self._number += len(rows)
            self.cursor = [self._number, rows[-1][8]]
            votes = [vote_of(self._voters, *row[:-1], prompts=self._prompts) for row in rows]
            yield pa.RecordBatch.from_pylist(votes, self._schema)

    def with_first(self, first: Any) -> _WithFirst:
        """Return the rest after a batch that was looked at already."""
        return _WithFirst(self, first)


class _WithFirst:
    def __init__(self, given: _Given, first: Any) -> None:
        self._given, self._first = given, first

    @property
    def cursor(self) -> list[Any] | None:
        return self._given.cursor

    def __iter__(self) -> Iterator[Any]:
        yield self._first
        yield from self._given
