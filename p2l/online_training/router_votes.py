"""The votes of a router's database, copied as they come into a file beside it.

The database is not a stream: users change votes, and `VACUUM` numbers the rows anew. The copy only grows, so a run that
was stopped finds what it has learned from where it was. Several runs may follow one database: whoever looks first
copies what is new.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import os
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from p2l.common.cli import counted, print_note
from p2l.common.errors import InputError
from p2l.common.files import locked, sync_path

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from p2l.votes.lake import Lake
    from p2l.votes.writing import Added

_WINNER_OF_VERDICT = {"first": "model_a", "second": "model_b", "tie": "tie", "both_bad": "tie (bothbad)"}
_OF_EVERY_VERSION = "prompt, model_a, model_b, verdict, time, propensity, version_a, version_b, request_id, key"
_OF_VISITORS = ("visitor", "prefix", "visitor_battles", "prefix_battles", "identity_revealed")


def pair_columns(connection: Any) -> str:
    """Return the columns of the router's table `votes` that make a vote, in the order of `vote_of`.

    Those that an earlier router's table lacks are null.
    """
    known = {description[0] for description in connection.execute("SELECT * FROM votes LIMIT 0").description}
    of_visitors = [name if name in known else f"NULL AS {name}" for name in _OF_VISITORS]
    return ", ".join([_OF_EVERY_VERSION, *of_visitors])


@contextlib.contextmanager
def router_database(location: str | Path) -> Iterator[Any]:
    """Open a router's database as it is at this moment, also while routers write; InputError if it is none.

    A location is the path of a SQLite file, or a `postgresql://` URL; rows of `votes` have a `rowid` in both.
    """
    if str(location).startswith(("postgresql://", "postgres://")):
        with _postgres(str(location)) as session:
            yield session
        return
    path = Path(location)
    if not path.is_file():
        raise InputError(f"{path}: no such file; name the `database` of the router's configuration")
    try:
        with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
            connection.execute("PRAGMA query_only = ON")
            connection.execute("BEGIN")
            yield connection
    except sqlite3.Error as error:
        raise InputError(f"{path}: cannot be read as the database of a router: {error}") from error


@contextlib.contextmanager
def _postgres(url: str) -> Iterator[_Postgres]:
    try:
        import psycopg
    except ImportError as error:
        raise InputError("a postgresql:// database needs the extra: pip install 'p2l[replicas]'") from error
    try:
        with psycopg.connect(url) as connection:
            connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
            connection.read_only = True
            with contextlib.closing(_Postgres(connection)) as session:
                yield session
            connection.rollback()
    except psycopg.Error as error:  # its text has no password, the URL has
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise InputError(f"the router's PostgreSQL database cannot be read: {reason}") from None


class _Postgres:
    """A connection that takes the statements of SQLite, and reads rows as they are fetched."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._number = 0
        self._cursors = contextlib.ExitStack()

    def close(self) -> None:
        """Close what was read in part."""
        self._cursors.close()

    def execute(self, query: str, parameters: Sequence[Any] = ()) -> Any:
        """Run a query with a `?` for each parameter; the cursor holds a part of its rows at a time."""
        self._number += 1
        cursor = self._cursors.enter_context(self._connection.cursor(name=f"rows_{self._number}"))
        # The number of a vote, in the order in which votes were stored.
        cursor.execute(query.replace("?", "%s").replace("rowid", "number").encode(), parameters or None)
        return cursor


class Pseudonyms:
    """Names of voters that are the same in every export of a database and cannot be traced to keys without it."""

    def __init__(self, connection: Any) -> None:
        """Read the database's secret; one that no router has opened since there are voters gets one for this time."""
        has_table: Any = True
        if isinstance(connection, sqlite3.Connection):
            has_table = connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'voters'").fetchone()
        row = connection.execute("SELECT secret FROM voters").fetchone() if has_table else None
        self._secret: bytes = row[0] if row else os.urandom(32)
        self._names: dict[str, str] = {}

    def of(self, key: str) -> str:
        """Return the pseudonym of a key's name."""
        if key not in self._names:
            # Keyed: a plain digest could be reversed by trying the few names that keys have.
            self._names[key] = hmac.new(self._secret, key.encode(), "sha256").hexdigest()[:_PSEUDONYM_DIGITS]
        return self._names[key]


def vote_of(
    voters: Pseudonyms,
    prompt: str | None,
    model_a: str,
    model_b: str,
    verdict: str,
    time: float,
    propensity: float,
    version_a: str | None,
    version_b: str | None,
    request_id: str,
    key: str,
    visitor: str | None,
    prefix: str | None,
    visitor_battles: int | None,
    prefix_battles: int | None,
    identity_revealed: int | None,
    *,
    prompts: bool = True,
) -> dict[str, Any]:
    """Return a row of `pair_columns` as a vote of the schema."""
    vote: dict[str, Any] = {"model_a": model_a, "model_b": model_b, "winner": _WINNER_OF_VERDICT[verdict]}
    vote |= {"tstamp": time, "propensity": propensity, "question_id": request_id, "voter": visitor or voters.of(key)}
    vote |= {"network": prefix, "voter_battles": visitor_battles, "network_battles": prefix_battles}
    vote["identity_revealed"] = None if identity_revealed is None else bool(identity_revealed)
    vote["model_version"] = None if version_a is None and version_b is None else [version_a, version_b]
    if prompts:
        vote["prompt"] = json.loads(prompt or "null")
    return vote


def vote_schema(*, prompts: bool) -> Any:
    """Return the Arrow schema of the votes of `vote_of`."""
    import pyarrow as pa

    text, number, count = pa.string(), pa.float64(), pa.int64()
    columns = {"model_a": text, "model_b": text, "winner": text, "tstamp": number, "propensity": number}
    columns |= {"model_version": pa.list_(text), "question_id": text, "voter": text, "network": text}
    columns |= {"voter_battles": count, "network_battles": count, "identity_revealed": pa.bool_()}
    return pa.schema(({"prompt": pa.list_(text)} if prompts else {}) | columns)


_SQLITE_MAGIC = b"SQLite format 3\0"
_BLOCK_BYTES = 1 << 16
_ROWS_PER_READ = 10_000
_PSEUDONYM_DIGITS = 16  # 64 bits: no two keys of a router share one


def is_database(path: Path) -> bool:
    """Return whether the file is an SQLite database, by its first bytes or, while it is empty, by its name."""
    try:
        with path.open("rb") as file:
            start = file.read(len(_SQLITE_MAGIC))
    except OSError:
        return False
    return start == _SQLITE_MAGIC or (not start and path.suffix in {".sqlite", ".sqlite3", ".db"})


def growing_file(path: Path, tell: Callable[[str], None]) -> tuple[Path, Callable[[], None] | None]:
    """Return the file of lines to follow; for a database its copy, and a function that appends what has come."""
    if not is_database(path):
        return path, None
    router = RouterVotes(path, path.with_name(f"{path.name}.votes.jsonl"), tell)
    return router.copy, router.gather


class RouterVotes:
    """Appends the votes of a database that a file lacks, in the order in which they were given."""

    def __init__(self, database: Path, copy: Path, tell: Callable[[str], None] = print_note) -> None:
        """Create `copy` if it is missing; InputError if it cannot be written, or the database is not a router's."""
        self.database = database
        self.copy = copy
        self._tell: Callable[[str], None] | None = tell
        """None after it has warned."""
        self._after = -1  # row of the database, and below
        self._size = -1  # bytes of the copy, as this object last saw them
        self._copied: NDArray[np.int64] | None = None  # hashes of the ids in the copy, sorted: 8 bytes a vote
        self._indexed = 0  # bytes of the copy whose ids are there
        self._state: tuple[int, ...] | None = None  # of the database: another one means other numbers of rows
        with router_database(database) as connection:
            connection.execute("SELECT 1 FROM votes LIMIT 0")  # before anything is written beside another's database
        try:
            # The copy holds prompts, as the database does: its owner alone may read it.
            self._file = os.open(copy, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
            sync_path(copy.parent)
        except OSError as error:
            raise self._unwritable(error) from error

    def __del__(self) -> None:
        self.close()

    def close(self) -> None:
        """Close the copy; nothing can be appended afterwards."""
        file, self._file = getattr(self, "_file", -1), -1
        if file >= 0:
            os.close(file)

    def gather(self) -> None:
        """Append what has come, onto the disk; InputError if the database is another one or the copy unwritable."""
        with locked(self._file), router_database(self.database) as connection:
            version = connection.execute("PRAGMA schema_version").fetchone()[0]
            file, size = self.database.stat(), os.fstat(self._file).st_size
            state = (version, file.st_dev, file.st_ino)
            # Another run may have copied since, and rows of a database that was vacuumed have new numbers.
            if (state, size) != (self._state, self._size):
                _cut_off_torn_line(self._file)
                self._after = self._row_of_newest(connection)
                self._state = state
            last = connection.execute("SELECT coalesce(max(rowid), 0) FROM votes").fetchone()[0]
            rows = connection.execute(
                f"SELECT {pair_columns(connection)}, voted FROM votes "
                "WHERE rowid > ? AND rowid <= ? AND model_b IS NOT NULL AND prompt IS NOT NULL ORDER BY rowid",
                (self._after, last),
            )
            voters = Pseudonyms(connection)
            while chunk := rows.fetchmany(_ROWS_PER_READ):
                # An answer keeps the vote that a run saw first: one changed later changes exports, and no run.
                votes = self._missing([vote_of(voters, *row) | {"voted": voted} for *row, voted in chunk])
                lines = b"".join(json.dumps(vote, ensure_ascii=False).encode() + b"\n" for vote in votes)
                try:
                    left = memoryview(lines)
                    while left:  # a write may take fewer bytes than it is given
                        left = left[os.write(self._file, left) :]
                    os.fsync(self._file)
                except OSError as error:
                    raise self._unwritable(error) from error
            self._warn_of_missing_prompts(connection)
            self._after = last
            self._size = os.fstat(self._file).st_size

    def _unwritable(self, error: OSError) -> InputError:
        return InputError(f"{self.copy}: votes cannot be copied there: {error.strerror or error}")

    def _row_of_newest(self, connection: sqlite3.Connection) -> int:
        """Return the row of the newest vote of the copy that was not changed since; 0 when there is none."""
        # Numbers of rows change with VACUUM, and votes with their users; what neither changed marks the place.
        copied = changed = False
        for line in _lines_backwards(self._file):
            copied = True
            vote = json.loads(line)
            newest = connection.execute(
                "SELECT rowid, voted FROM votes WHERE request_id = ?", (vote["question_id"],)
            ).fetchone()
            if newest is not None and newest[1] == vote["voted"]:
                return int(newest[0])
            changed |= newest is not None
        if copied and not changed:
            raise InputError(
                f"{self.database}: holds none of the votes that were copied to {self.copy} before; "
                "name the database that this run has followed, or start a new run"
            )
        return 0

    def _missing(self, votes: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return the votes on answers that the copy has no vote on."""
        import numpy as np

        # Of the copy only the lines are read that it has got since the last time.
        copied = []
        with open(self._file, "rb", closefd=False) as lines:
            lines.seek(self._indexed)
            for line in lines:
                copied.append(hash(json.loads(line)["question_id"]))
                self._indexed += len(line)
        if copied or self._copied is None:
            before = np.zeros(0, np.int64) if self._copied is None else self._copied
            self._copied = np.union1d(before, np.array(copied, dtype=np.int64))
        hashes = np.fromiter((hash(vote["question_id"]) for vote in votes), np.int64, len(votes))
        repeated = np.isin(hashes, self._copied)
        return [vote for vote, is_there in zip(votes, repeated, strict=True) if not is_there]

    def _warn_of_missing_prompts(self, connection: sqlite3.Connection) -> None:
        """Warn once when votes come without prompts: such a run would wait for ever."""
        if self._tell is None:
            return
        without = "SELECT count(*) FROM votes WHERE rowid > ? AND model_b IS NOT NULL AND prompt IS NULL"
        count = connection.execute(without, (self._after,)).fetchone()[0]
        if count:
            self._tell(
                f"warning: {self.database}: left out, {counted(count, 'vote')} without a prompt; "
                "set `store_prompts: true` in the router's configuration"
            )
            self._tell = None


def _cut_off_torn_line(file: int) -> None:
    """Remove the start of a line that a kill has left: the vote is still in the database."""
    size = os.fstat(file).st_size
    while size:
        start = max(0, size - _BLOCK_BYTES)
        end = os.pread(file, size - start, start).rfind(b"\n") + 1
        if end or not start:
            os.ftruncate(file, start + end)
            return
        size = start


def _lines_backwards(file: int) -> Iterator[bytes]:
    """Yield the whole lines of a file, the last one first."""
    at, rest = os.fstat(file).st_size, b""
    while at:
        start = max(0, at - _BLOCK_BYTES)
        *lines, last = (os.pread(file, at - start, start) + rest).split(b"\n")[::-1]
        yield from (line for line in lines if line)
        at, rest = start, last
    if rest:
        yield rest


# A database's votes in a lake: each run adds what came since the last one. A commit says up to which vote the database
# was read, so a run that was killed reads the same votes again, and each is there once.


def add_database(lake: Lake, location: str, *, prompts: bool) -> Added | None:
    """Add the votes on two answers that came since the last time to a lake; return None where there are none.

    With `prompts`, votes without a stored prompt are left out; else there is no column `prompt`. InputError for
    what is not a router's database, and for one that has lost the last vote that was read.
    """
    from p2l.votes.writing import added_by

    with router_database(location) as connection:
        voters = Pseudonyms(connection)
        identity = voters.of("\0the database")
        cursors = [commit.cursor for commit in lake.commits if commit.identity == identity and commit.cursor]
        votes = _NewVotes(connection, voters, max(cursors, default=None), prompts=prompts)
        if votes.next_batch is None:
            return None
        name = f"router-{identity}-{len(cursors):08}"
        return added_by(lake.add(votes, name=name, source=f"router {identity}", identity=identity))


class _NewVotes:
    """Votes of a database after a cursor, in the order in which they were given, as batches to be read once."""

    def __init__(self, connection: Any, voters: Pseudonyms, cursor: list[Any] | None, *, prompts: bool) -> None:
        self.cursor = cursor
        """Number of votes read so far, and the request of the last one."""
        self._voters = voters
        self._prompts = prompts
        self._schema = vote_schema(prompts=prompts)
        after = 0
        if cursor is not None:
            # By its request: a VACUUM may have given the row another number.
            row = connection.execute("SELECT rowid FROM votes WHERE request_id = ?", (cursor[1],)).fetchone()
            if row is None:
                raise InputError(
                    "the database lacks the last vote that the lake has of it; name the one it was filled from"
                )
            after = int(row[0])
        stored = "AND prompt IS NOT NULL " if prompts else ""
        self._rows = connection.execute(
            f"SELECT {pair_columns(connection)}, rowid FROM votes "
            f"WHERE rowid > ? AND model_b IS NOT NULL {stored}ORDER BY rowid",
            (after,),
        )
        self.next_batch = self._read()

    def __iter__(self) -> Iterator[Any]:
        while self.next_batch is not None:
            yield self.next_batch
            self.next_batch = self._read()

    def _read(self) -> Any:
        import pyarrow as pa

        rows = self._rows.fetchmany(_ROWS_PER_READ)
        if not rows:
            return None
        votes = [vote_of(self._voters, *row[:-1], prompts=self._prompts) for row in rows]
        self.cursor = [(0 if self.cursor is None else int(self.cursor[0])) + len(rows), votes[-1]["question_id"]]
        return pa.RecordBatch.from_pylist(votes, self._schema)
