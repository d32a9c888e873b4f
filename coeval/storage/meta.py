"""The state of a run, shared by all of its processes: `meta.json`, its counters, and the locks.

`meta.json` is read and replaced whole under a lock. Calls and dollars are counted in files of their own before a call
is made, so that neither a kill nor a second process makes a model answer, or the run spend, more than it may.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import threading
import time
import weakref
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, TypeVar

from coeval.errors import RunInputError
from coeval.storage.records import now, read_json, write_json
from coeval.storage.run import Run
from p2l.common.files import locked

T = TypeVar("T")
_NUMBER_DIGITS = 20
_CALLS = "calls+"  # before a model's name
_SPENT = "spent"  # dollars times _UNITS_PER_DOLLAR
_UNITS_PER_DOLLAR = 10**9  # whole numbers add up without the errors of floats, and in any order
_MAX_DELAY_SECONDS = 1.0  # seconds that the counts in meta.json may be behind
_POLL_SECONDS = 0.5  # seconds between two attempts to get a lock


class SharedNumber:
    """A number in a file of fixed width: shared by threads and processes, and whole after a kill at any moment."""

    # Changing it takes some 20 us, far less than replacing meta.json at every call.

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        weakref.finalize(self, os.close, self._descriptor)

    def held(self) -> AbstractContextManager[bool]:
        """Lock the number against other processes; the caller keeps out threads of this one."""
        return locked(self._descriptor)

    def get(self) -> int | None:
        """Return the number; None if none was ever set, or a power cut left none."""
        return _parsed(os.pread(self._descriptor, _NUMBER_DIGITS, 0))

    def put(self, number: int) -> None:
        """Set the number in one write."""
        os.pwrite(self._descriptor, b"%0*d" % (_NUMBER_DIGITS, number), 0)


def _parsed(text: bytes) -> int | None:
    try:
        return int(text)
    except ValueError:
        return None


def _counted(data: Mapping[str, Any], counter: str) -> int:
    """Return the value of a counter in meta.json."""
    if counter == _SPENT:
        return round(float(data.get("spent_usd") or 0.0) * _UNITS_PER_DOLLAR)
    return int((data.get("quota_used") or {}).get(counter.removeprefix(_CALLS), 0))


def create_meta(run: Run, experiment: str, resume_from: str | None = None) -> Meta:
    """Write the `meta.json` of a new run."""
    created = now()
    # Counters of an earlier run in this folder would count against the limits of this one.
    for path in (*run.locks.glob(f"{_CALLS}*"), run.locks / _SPENT):
        path.unlink(missing_ok=True)
    write_json(
        run.meta,
        {
            "experiment_id": experiment,
            "status": "in_progress",
            "created_at": created,
            "updated_at": created,
            "phases_completed": [],
            "phases_in_progress": [],
            "resume_from": resume_from,
            "quota_used": {},
            "spent_usd": 0.0,
        },
    )
    return Meta(run)


class Meta:
    """The `meta.json` of a run; safe for threads and other processes."""

    def __init__(self, run: Run) -> None:
        """Read it. Raise RunInputError if it does not exist, or is not a JSON object."""
        self.run = run
        self._lock = threading.Lock()
        self._counters: dict[str, SharedNumber] = {}
        self._written = time.monotonic()
        self.data = self._read()

    @property
    def quota_used(self) -> Mapping[str, int]:
        """Calls by model, over all starts of the run."""
        calls = dict(self.data.get("quota_used") or {})
        for path in self.run.locks.glob(f"{_CALLS}*"):
            number = _parsed(path.read_bytes())
            if number is not None:
                calls[path.name.removeprefix(_CALLS)] = number
        return calls

    @property
    def spent_usd(self) -> float:
        """Dollars, over all starts of the run and by all of its processes."""
        # Not by `_counter`, which opens the file for writing: those who only look may not be allowed to.
        try:
            number = _parsed((self.run.locks / _SPENT).read_bytes())
        except FileNotFoundError:
            number = None
        return (_counted(self.data, _SPENT) if number is None else number) / _UNITS_PER_DOLLAR

    @property
    def completed(self) -> list[str]:
        """The phases of which nothing is missing."""
        return list(self.data.get("phases_completed") or [])

    @property
    def settled(self) -> list[str]:
        """The phases that are completed, or were kept as they are to their end."""
        return self.completed + list(self.data.get("phases_kept") or [])

    def reserve_call(self, model: str, limit: int | None) -> bool:
        """Count a call about to be made; return False, and count nothing, if the model has no calls left."""
        return self._add(f"{_CALLS}{model}", 1, limit)

    def add_spent(self, usd: float) -> None:
        """Count dollars."""
        self._add(_SPENT, round(usd * _UNITS_PER_DOLLAR))

    def change(self, make: Callable[[dict[str, Any]], T]) -> T:
        """Change the newest content in one replacement, on the disk when this returns; return what `make` returns."""
        with self._changing() as data:
            return make(data)

    def update(self, **keys: Any) -> None:
        """Set keys, on the disk when this returns."""
        self.change(lambda data: data.update(keys))

    def flush(self) -> None:
        """Write what is only counted so far."""
        self.update()

    def mark(self, phase: str, *, complete: bool, kept: bool = False) -> None:
        """Mark a phase as complete or in progress; `kept`: it lacks what its mode does not let it make."""
        lists = {"phases_completed": complete, "phases_in_progress": not complete, "phases_kept": kept}
        with self._changing() as data:
            for key, belongs in lists.items():
                phases = [name for name in data.get(key) or [] if name != phase]
                data[key] = [*phases, phase] if belongs else phases

    def _add(self, counter: str, amount: int, limit: int | None = None) -> bool:
        with self._lock, (number := self._counter(counter)).held():
            before = number.get()
            if before is None:
                before = _counted(self._read(), counter)
            is_granted = limit is None or before + amount <= limit
            # Written though nothing is granted: a number that a power cut lost is back then.
            number.put(before + amount if is_granted else before)
        if time.monotonic() - self._written > _MAX_DELAY_SECONDS:
            with self._changing(sync=False):
                pass
        return is_granted

    @contextlib.contextmanager
    def _changing(self, *, sync: bool = True) -> Iterator[dict[str, Any]]:
        """Yield the newest content with the newest counts, to be changed; then write it."""
        with self._lock, locked(self.run.locks / "meta"), contextlib.ExitStack() as stack:
            data = self._read()
            # In one order, so that two processes never wait for each other.
            names = [*sorted(path.name for path in self.run.locks.glob(f"{_CALLS}*")), _SPENT]
            counters = {name: self._counter(name) for name in names}
            for counter in counters.values():
                stack.enter_context(counter.held())
            numbers = {name: counter.get() for name, counter in counters.items()}
            counts = {name: _counted(data, name) if number is None else number for name, number in numbers.items()}
            data["spent_usd"] = counts.pop(_SPENT) / _UNITS_PER_DOLLAR
            calls = {name.removeprefix(_CALLS): count for name, count in counts.items()}
            stored = data.get("quota_used") or {}
            data["quota_used"] = {model: count for model, count in {**stored, **calls}.items() if count}
            yield data
            data["updated_at"] = now()
            # What rises is counted before the file says why, what falls after it: a kill between the two takes nothing
            # back that was spent, and gives nothing back twice.
            falling = {name for name, number in numbers.items() if number is not None and _counted(data, name) < number}
            for name in counters.keys() - falling:
                counters[name].put(_counted(data, name))
            (write_json if sync else _replace)(self.run.meta, data)
            for name in falling:
                counters[name].put(_counted(data, name))
            self.data = data
            self._written = time.monotonic()

    def _counter(self, name: str) -> SharedNumber:
        if name not in self._counters:
            self._counters[name] = SharedNumber(self.run.locks / name)
        return self._counters[name]

    def _read(self) -> dict[str, Any]:
        data = read_json(self.run.meta)
        if isinstance(data, dict):
            return data
        if self.run.meta.exists():
            raise RunInputError(f"{self.run.meta}: is not a JSON object")
        raise RunInputError(f"{self.run.meta}: does not exist: this is not a folder of a run")


def _replace(path: Path, data: Mapping[str, Any]) -> None:
    """Replace the file without waiting for the disk: whole after a kill, perhaps an older one after a power cut."""
    temporary = path.with_name(f".meta.json.{os.getpid()}.quick")
    temporary.write_text(json.dumps(data, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")
    temporary.replace(path)


# Which process works on what: locks on files, which a kill frees.


@contextlib.contextmanager
def main_process(run: Run, *, joined: bool = False) -> Iterator[None]:
    """Be the one process that runs all models of this run, or one of those that joined it.

    Raise RunInputError if another one is at work, or another that has not joined.
    """
    with locked(run.locks / "main", shared=joined, wait=False) as is_held:
        if not is_held:
            way = "start all of them with --join" if joined else "use --join for both, or --only-models beside it"
            raise RunInputError(f"{run.folder}: another process is at work on this run; wait for it, or {way}")
        yield


def starting(run: Run) -> AbstractContextManager[bool]:
    """Find out how a run stands and join it, while no other process does."""
    return locked(run.locks / "start")


def alone(run: Run) -> AbstractContextManager[bool]:
    """Set a run up while no other process does."""
    return locked(run.locks / "setup")


def adding(run: Run) -> AbstractContextManager[bool]:
    """Append to the records of a run, beside other processes; wait while one replaces record files."""
    return locked(run.locks / "records", shared=True)


@contextlib.contextmanager
def replacing(run: Run) -> Iterator[None]:
    """Replace or move record files. Raise RunInputError if another process appends to them, which would be lost."""
    with locked(run.locks / "records", wait=False) as is_held:
        if not is_held:
            raise RunInputError(f"{run.folder}: another process is at work on this run; wait for it")
        yield


@contextlib.asynccontextmanager
async def claimed_work(run: Run, *names: str, on_wait: Callable[[], None] = lambda: None) -> AsyncIterator[None]:
    """Have some work, such as (phase, model), to oneself; wait until no other process has it."""
    is_waiting = False
    while True:
        with free_work(run, *names) as is_held:
            if is_held:
                yield
                return
        if not is_waiting:
            on_wait()
        is_waiting = True
        await asyncio.sleep(_POLL_SECONDS)


def free_work(run: Run, *names: str) -> AbstractContextManager[bool]:
    """Have some work to oneself if no other process has it; yield whether that is so."""
    return locked(run.locks / "+".join(names), wait=False)
