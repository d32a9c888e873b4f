"""Which of several processes makes which record, on one machine or on several that share the run's folder.

Every process that joined a run has a name, a lock that it holds while it lives, and files of its own that say what it
is at: a line `+ID` where it takes a record, `=ID` once that is settled, stored or failed, `-ID` where it gives it back.
What is taken or settled is nobody else's. A process that was killed has lost its lock: what it had not settled is free
for whoever reads the records after that, since it may have stored some of it.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import socket
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import TypeVar

from coeval.storage.run import Run
from p2l.common.files import locked

T = TypeVar("T")
_RECORDS_PER_CLAIM = 8  # records that are taken at a time
_TAKEN, _SETTLED, _RETURNED = "+", "=", "-"


@dataclass
class _Ledger:
    """What one process says about one kind of work, as far as it was read."""

    offset: int = 0
    taken: set[str] = field(default_factory=set)  # and not settled
    settled: set[str] = field(default_factory=set)
    returned: set[str] = field(default_factory=set)

    def read(self, path: Path) -> None:
        """Read the lines that are new."""
        with path.open("rb") as file:
            file.seek(self.offset)
            lines = file.read()
        whole = lines[: lines.rfind(b"\n") + 1]
        self.offset += len(whole)
        for line in whole.splitlines():
            sign, identity = chr(line[0]), json.loads(line[1:])
            for one in (self.taken, self.returned):
                one.discard(identity)
            {_TAKEN: self.taken, _SETTLED: self.settled, _RETURNED: self.returned}[sign].add(identity)


class Claims:
    """The claims of one process, from when it joins until it leaves."""

    def __init__(self, run: Run) -> None:
        """Join. Where no other process lives, the claims of earlier ones are forgotten."""
        self._folder = run.locks / "claims"
        host = "".join(letter if letter.isalnum() else "-" for letter in socket.gethostname())[:40]
        self.name = f"{host}-{os.getpid()}-{secrets.token_hex(3)}"
        self._ledgers: dict[Path, _Ledger] = {}
        self._dead: dict[str, set[str]] = {}  # by work that was begun: since before its records were read
        self._stack = contextlib.ExitStack()
        with self._held():
            if not any(self._lives(path.stem) for path in self._folder.glob("*.lock")):
                shutil.rmtree(self._folder, ignore_errors=True)
            self._stack.enter_context(locked(self._folder / f"{self.name}.lock"))

    def close(self) -> None:
        """Leave."""
        self._stack.close()

    def __enter__(self) -> Claims:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def begin(self, work: str) -> None:
        """Note who is dead by now: records that are read from here on hold all that these have made."""
        self._dead[work] = {path.stem for path in self._folder.glob("*.lock") if not self._lives(path.stem)}

    def is_begun(self, work: str) -> bool:
        """Return whether this process shares some work now."""
        return work in self._dead

    def take(
        self, work: str, records: Iterator[T], identity: Callable[[T], str], leave_out: Callable[[int], None]
    ) -> Iterator[T]:
        """Yield those of the records that are this process's to make, taking a few at a time.

        `leave_out` receives how many are not.
        """
        while chunk := list(islice(records, _RECORDS_PER_CLAIM)):
            with self._held():
                self._read(work)
                others = set[str]().union(*(self._blocked(work, path) for path in self._ledgers_of(work)))
                mine = [record for record in chunk if identity(record) not in others]
                self._write(work, _TAKEN, [identity(record) for record in mine])
            if len(mine) < len(chunk):
                leave_out(len(chunk) - len(mine))
            yield from mine

    def settle(self, work: str, identity: str) -> None:
        """Note that a record is stored, or failed for good."""
        self._write(work, _SETTLED, [identity])

    def end(self, work: str) -> None:
        """End some work; let others make what this process took and did not settle."""
        self._read(work)
        own = self._ledgers.get(self._path(work))
        self._write(work, _RETURNED, sorted(own.taken) if own is not None else ())
        self._dead.pop(work, None)

    def is_awaited(self, work: str) -> bool:
        """Return whether a living process is still at some of this work."""
        self._read(work)
        return any(
            self._ledgers[path].taken and self._lives(_owner(path))
            for path in self._ledgers_of(work)
            if path != self._path(work)
        )

    def is_left(self, work: str) -> bool:
        """Return whether something was taken that is neither settled nor at work: given back, or its process killed."""
        self._read(work)
        paths = self._ledgers_of(work)
        settled = set[str]().union(*(self._ledgers[path].settled for path in paths))
        at_work, left = set[str](), set[str]()
        for path in paths:
            ledger, owner = self._ledgers[path], _owner(path)
            left |= ledger.returned
            if self._lives(owner):
                at_work |= ledger.taken
            elif owner not in self._dead.get(work, ()):
                left |= ledger.taken
        return bool(left - settled - at_work)

    def _blocked(self, work: str, path: Path) -> set[str]:
        """Return what may not be taken as of one process."""
        ledger = self._ledgers[path]
        return ledger.settled if _owner(path) in self._dead.get(work, ()) else ledger.settled | ledger.taken

    def _held(self) -> contextlib.AbstractContextManager[bool]:
        return locked(self._folder.with_name("claims.lock"))

    def _lives(self, name: str) -> bool:
        if name == self.name:
            return True
        with locked(self._folder / f"{name}.lock", wait=False) as is_free:
            return not is_free

    def _path(self, work: str) -> Path:
        return self._folder / f"{work}+{self.name}.txt"

    def _ledgers_of(self, work: str) -> Collection[Path]:
        return [path for path in self._ledgers if path.name.rpartition("+")[0] == work]

    def _read(self, work: str) -> None:
        for path in self._folder.glob(f"{work}+*.txt"):
            if path.name.rpartition("+")[0] == work:
                self._ledgers.setdefault(path, _Ledger()).read(path)

    def _write(self, work: str, sign: str, identities: Sequence[str]) -> None:
        if identities:
            with self._path(work).open("a", encoding="ascii") as file:
                # As JSON in ASCII, since an id of somebody's benchmark may hold anything that ends a line.
                file.write("".join(f"{sign}{json.dumps(identity)}\n" for identity in identities))


def _owner(path: Path) -> str:
    return path.stem.rpartition("+")[2]
