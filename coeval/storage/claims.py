"""Claims of several processes on the records to be made, on one machine or on several that share the run's folder.

Every process that joined a run has a name, a lock that it holds while it lives, and for each kind of work a file of its
own with a line for each claim: `+ID` where it takes a record, `=ID` once that is settled, stored or failed, `-ID` where
it gives it back. A record that is taken or settled is nobody else's. A process that was killed has lost its lock:
records that it had not settled are free for others, who read first which of them it had stored.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import socket
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import TypeVar

from coeval.storage.run import Run
from p2l.common.files import locked

T = TypeVar("T")
# More would leave one process at work after the others; fewer would cost more locks, and looks at the others' files.
_RECORDS_PER_CLAIM = 8
_TAKEN, _SETTLED, _RETURNED = "+", "=", "-"


@dataclass
class _Ledger:
    """The claims of one process on one kind of work, as far as its file was read."""

    offset: int = 0
    taken: set[str] = field(default_factory=set)  # and not settled
    settled: set[str] = field(default_factory=set)
    returned: set[str] = field(default_factory=set)


class Claims:
    """The claims of one process, from when it joins until it leaves."""

    def __init__(self, run: Run) -> None:
        """Join. Where no other process lives, the claims of earlier ones are forgotten."""
        self._folder = run.locks / "claims"
        self._lock = run.locks / "claims.lock"
        # Process ids repeat on other machines, and on this one in time.
        host = "".join(letter if letter.isalnum() else "-" for letter in socket.gethostname())[:40]
        self.name = f"{host}-{os.getpid()}-{secrets.token_hex(3)}"
        self.begun: dict[str, set[str]] = {}  # work that this process shares now -> processes that were dead before
        self._ledgers: defaultdict[str, dict[str, _Ledger]] = defaultdict(dict)  # work -> process -> claims
        self._stack = contextlib.ExitStack()
        with locked(self._lock):
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
        self.begun[work] = {path.stem for path in self._folder.glob("*.lock") if not self._lives(path.stem)}

    def take(
        self, work: str, records: Iterator[T], identity: Callable[[T], str], leave_out: Callable[[int], None]
    ) -> Iterator[T]:
        """Yield those of the records that are this process's to make, taking a few at a time.

        `leave_out` receives how many are not.
        """
        while chunk := list(islice(records, _RECORDS_PER_CLAIM)):
            with locked(self._lock):
                blocked = set[str]()
                for process, ledger in self._read(work).items():
                    blocked |= ledger.settled
                    # What a dead process took and did not settle it may have stored or not: the records tell.
                    if process not in self.begun.get(work, ()):
                        blocked |= ledger.taken
                mine = [record for record in chunk if identity(record) not in blocked]
                self._write(work, _TAKEN, [identity(record) for record in mine])
            if len(mine) < len(chunk):
                leave_out(len(chunk) - len(mine))
            yield from mine

    def settle(self, work: str, identity: str) -> None:
        """Note that a record is stored, or failed for good."""
        self._write(work, _SETTLED, [identity])

    def end(self, work: str) -> None:
        """End some work; let others make what this process took and did not settle."""
        ledger = self._read(work).get(self.name, _Ledger())
        self._write(work, _RETURNED, sorted(ledger.taken))
        self.begun.pop(work, None)

    def is_awaited(self, work: str) -> bool:
        """Return whether a living process is still at some of this work."""
        ledgers = self._read(work).items()
        return any(ledger.taken and process != self.name and self._lives(process) for process, ledger in ledgers)

    def is_left(self, work: str) -> bool:
        """Return whether something was taken that is neither settled nor at work: given back, or its process killed."""
        settled, at_work, left = set[str](), set[str](), set[str]()
        for process, ledger in self._read(work).items():
            settled |= ledger.settled
            left |= ledger.returned
            if self._lives(process):
                at_work |= ledger.taken
            # Of those that were dead at the beginning this process has read all records already.
            elif process not in self.begun.get(work, ()):
                left |= ledger.taken
        return bool(left - settled - at_work)

    def _lives(self, name: str) -> bool:
        if name == self.name:
            return True
        with locked(self._folder / f"{name}.lock", wait=False) as is_free:
            return not is_free

    def _read(self, work: str) -> Mapping[str, _Ledger]:
        """Read the lines that are new; return the claims on some work by process."""
        ledgers = self._ledgers[work]
        for path in self._folder.glob(f"{work}+*.txt"):
            named_work, _, process = path.stem.rpartition("+")
            if named_work != work:  # a model's name may hold a plus sign
                continue
            ledger = ledgers.setdefault(process, _Ledger())
            with path.open("rb") as file:
                file.seek(ledger.offset)
                lines = file.read()
            whole = lines[: lines.rfind(b"\n") + 1]  # the rest is being written
            ledger.offset += len(whole)
            sets = {_TAKEN: ledger.taken, _SETTLED: ledger.settled, _RETURNED: ledger.returned}
            for line in whole.splitlines():
                identity = json.loads(line[1:])
                ledger.taken.discard(identity)
                ledger.returned.discard(identity)
                sets[chr(line[0])].add(identity)
        return ledgers

    def _write(self, work: str, sign: str, identities: Sequence[str]) -> None:
        if identities:
            with (self._folder / f"{work}+{self.name}.txt").open("a", encoding="ascii") as file:
                # As JSON in ASCII, since an id of somebody's benchmark may hold anything that ends a line.
                file.write("".join(f"{sign}{json.dumps(identity)}\n" for identity in identities))
