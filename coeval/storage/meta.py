"""What a run knows of itself: `meta.json`, replaced whole, read and written under a lock by every process of the run.

Calls, before they are made, and dollars are counted in files of their own at once: so a kill takes nothing back, and
neither a kill nor a second process makes a model ask, or the run spend, more than it may.
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
from pathlib import Path
from typing import Any, TypeVar

from coeval.errors import RunInputError
from coeval.storage.jsonl import read_json, write_json
from coeval.storage.records import now
from coeval.storage.run import Run
from p2l.common.files import locked

# A number in a file that threads and processes share: some 20 us to change, whole after a kill at any moment.

_DIGITS = 20


class SharedNumber:
    """A number that is only read and set while it is held."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        weakref.finalize(self, os.close, self._descriptor)

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Keep other processes away; threads of this one are the caller's to keep away."""
        with locked(self._descriptor):
            yield

    def value(self, otherwise: Callable[[], int]) -> int:
        """The number, or what `otherwise` gives where none was ever set, or a power cut left none."""
        found = _number(os.pread(self._descriptor, _DIGITS, 0))
        return otherwise() if found is None else found

    def put(self, value: int) -> None:
        """Set the number, in one write."""
        os.pwrite(self._descriptor, b"%0*d" % (_DIGITS, value), 0)


def stored_number(path: Path) -> int | None:
    """The number in a file as it is at the moment; None where there is none."""
    return _number(path.read_bytes())


def _number(text: bytes) -> int | None:
    try:
        return int(text)
    except ValueError:
        return None


T = TypeVar("T")
_COUNT = "calls+"  # before a model's name
_SPENT = "spent"  # dollars times _UNIT
_UNIT = 10**9
_LATEST = 1.0  # seconds that meta.json may be behind


def create_meta(run: Run, experiment: str, resume_from: str | None = None) -> Meta:
    """Write the `meta.json` of a new run."""
    time_now = now()
    for path in (*run.locks.glob(f"{_COUNT}*"), run.locks / _SPENT):  # of an earlier run in this folder
        path.unlink(missing_ok=True)
    write_json(
        run.meta,
        {
            "experiment_id": experiment,
            "status": "in_progress",
            "created_at": time_now,
            "updated_at": time_now,
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
        """Read it.

        Raises:
            RunInputError: there is none, or it is no JSON object.
        """
        self.run = run
        self._lock = threading.Lock()
        self._counts: dict[str, SharedNumber] = {}
        self._latest = {
            path.name.removeprefix(_COUNT): number
            for path in run.locks.glob(f"{_COUNT}*")
            if (number := stored_number(path)) is not None
        }
        self._spent: SharedNumber | None = None
        self._written = time.monotonic()
        self.data = self._read()

    @property
    def quota_used(self) -> Mapping[str, int]:
        """Calls by model, over all starts of the run."""
        return {**(self.data.get("quota_used") or {}), **self._latest}

    @property
    def spent_usd(self) -> float:
        """Dollars, over all starts of the run and by all of its processes."""
        with self._lock:
            path, stored = self.run.locks / _SPENT, _units(self.data)
            if self._spent is None:  # who only looks may be without the right to write
                found = stored_number(path) if path.exists() else None
                return (stored if found is None else found) / _UNIT
            return self._spent.value(lambda: stored) / _UNIT

    @property
    def completed(self) -> list[str]:
        """The phases of which nothing is missing."""
        return list(self.data.get("phases_completed") or [])

    @property
    def settled(self) -> list[str]:
        """The phases that are completed, or were kept as they are to their end."""
        return self.completed + list(self.data.get("phases_kept") or [])

    def reserve_call(self, model: str, limit: int | None) -> bool:
        """Count a call about to be made; False, and nothing is counted, where the model's calls are used up."""
        with self._lock:
            count = self._count_of(model)
            with count.held():
                used = count.value(lambda: self._stored_calls(model))
                is_granted = limit is None or used < limit
                count.put(used + is_granted)
            self._latest[model] = used + is_granted
        self._write_now_and_then()
        return is_granted

    def add_spent(self, usd: float) -> None:
        """Count dollars."""
        with self._lock, self._spending() as spent:
            spent.put(spent.value(lambda: _units(self._read())) + round(usd * _UNIT))
        self._write_now_and_then()

    def change(self, make: Callable[[dict[str, Any]], T]) -> T:
        """Change the newest content, all at once, on the disk when this returns; what `make` returns."""
        with self._changing() as data:
            return make(data)

    def update(self, **keys: Any) -> None:
        """Set keys, on the disk when this returns."""
        with self._changing() as data:
            data.update(keys)

    def mark(self, phase: str, *, complete: bool, kept: bool = False) -> None:
        """A phase has nothing missing, or is at work; `kept`: it lacks what it is not to make."""
        places = {"phases_completed": complete, "phases_in_progress": not complete, "phases_kept": kept}
        with self._changing() as data:
            for key, belongs in places.items():
                others = [one for one in data.get(key) or [] if one != phase]
                data[key] = [*others, phase] if belongs else others

    def flush(self) -> None:
        """Write what is only counted so far."""
        with self._changing():
            pass

    def _write_now_and_then(self) -> None:
        if time.monotonic() - self._written > _LATEST:
            with self._changing(sync=False):
                pass

    @contextlib.contextmanager
    def _changing(self, *, sync: bool = True) -> Iterator[dict[str, Any]]:
        """The newest content, to be changed, together with what was counted here; then written."""
        with self._lock, _locked(self.run), self._all_counts() as counts, self._spending() as spent:
            data = self._read()
            stored = data.get("quota_used") or {}
            counted = {model: count.value(lambda model=model: stored.get(model, 0)) for model, count in counts.items()}  # type: ignore[misc]
            data["quota_used"] = {model: calls for model, calls in {**stored, **counted}.items() if calls}
            data["spent_usd"] = spent.value(lambda: _units(data)) / _UNIT
            yield data
            data["updated_at"] = now()
            # First the counts, which are the truth: a kill between the two takes no call back.
            self._latest = {model: data["quota_used"].get(model, 0) for model in counts}
            for model, count in counts.items():
                count.put(self._latest[model])
            spent.put(_units(data))
            (write_json if sync else _replace)(self.run.meta, data)
            self.data = data
            self._written = time.monotonic()

    def _count_of(self, model: str) -> SharedNumber:
        """The calls of a model, in a file of its own: replacing meta.json at every call takes too long."""
        if model not in self._counts:
            self._counts[model] = SharedNumber(self.run.locks / f"{_COUNT}{model}")
        return self._counts[model]

    @contextlib.contextmanager
    def _all_counts(self) -> Iterator[dict[str, SharedNumber]]:
        """The counts of all models that have one, held."""
        with contextlib.ExitStack() as stack:
            names = sorted(path.name.removeprefix(_COUNT) for path in self.run.locks.glob(f"{_COUNT}*"))
            counts = {model: self._count_of(model) for model in names}
            for count in counts.values():
                stack.enter_context(count.held())
            yield counts

    @contextlib.contextmanager
    def _spending(self) -> Iterator[SharedNumber]:
        """The dollars, held."""
        self._spent = self._spent or SharedNumber(self.run.locks / _SPENT)
        with self._spent.held():
            yield self._spent

    def _stored_calls(self, model: str) -> int:
        return int((self._read().get("quota_used") or {}).get(model, 0))

    def _read(self) -> dict[str, Any]:
        data = read_json(self.run.meta)
        if not isinstance(data, dict):
            what = "is no JSON object" if self.run.meta.exists() else "does not exist: this is no folder of a run"
            raise RunInputError(f"{self.run.meta}: {what}")
        return data


def _units(data: Mapping[str, Any]) -> int:
    """What is spent, as it is counted."""
    return round(float(data.get("spent_usd") or 0.0) * _UNIT)


@contextlib.contextmanager
def _locked(run: Run) -> Iterator[None]:
    with locked(run.locks / "meta"):
        yield


def _replace(path: Path, data: Mapping[str, Any]) -> None:
    """Replace the file without waiting for the disk: whole after a kill, perhaps an older one after a power cut."""
    temporary = path.with_name(f".meta.json.{os.getpid()}.quick")
    temporary.write_text(json.dumps(data, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")
    temporary.replace(path)


# Which process works on what: locks that a kill frees.

_LOOK = 0.5  # seconds between two looks at work that another process has


@contextlib.contextmanager
def main_process(run: Run) -> Iterator[None]:
    """Be the one process that runs all models of this run.

    Raises:
        RunInputError: another is.
    """
    with locked(run.locks / "main", wait=False) as is_held:
        if not is_held:
            raise RunInputError(
                f"{run.folder}: another process is at work on this run; wait for it, or use --only-models beside it"
            )
        yield


@contextlib.contextmanager
def alone(run: Run) -> Iterator[None]:
    """Set a run up while no other process does."""
    with locked(run.locks / "setup"):
        yield


@contextlib.contextmanager
def adding(run: Run) -> Iterator[None]:
    """Add to the records of a run, beside others; waits while a process replaces files of them."""
    with locked(run.locks / "records", shared=True):
        yield


@contextlib.contextmanager
def replacing(run: Run) -> Iterator[None]:
    """Replace or move files of a run's records: what a process adds to one that is gone would be lost.

    Raises:
        RunInputError: a process adds to them, such as one for some models.
    """
    with locked(run.locks / "records", wait=False) as is_held:
        if not is_held:
            raise RunInputError(f"{run.folder}: another process is at work on this run; wait for it")
        yield


@contextlib.asynccontextmanager
async def claimed_work(run: Run, *names: str, on_wait: Callable[[], None] = lambda: None) -> AsyncIterator[None]:
    """Have some work to oneself, such as (phase, model); waits until no other process has it."""
    is_waiting = False
    while True:
        with free_work(run, *names) as is_held:
            if is_held:
                yield
                return
        if not is_waiting:
            on_wait()
        is_waiting = True
        await asyncio.sleep(_LOOK)


@contextlib.contextmanager
def free_work(run: Run, *names: str) -> Iterator[bool]:
    """Have some work to oneself if no other process has it; whether that is so."""
    with locked(run.locks / "+".join(names), wait=False) as is_held:
        yield is_held
