"""Write a run's records and log: appended at once, on the disk a moment later.

`append` hands the line to the operating system before it returns, so a kill loses nothing that was appended; a thread
syncs the files a few times a second, so a power cut loses at most that moment.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections import Counter, OrderedDict
from collections.abc import Mapping
from functools import partialmethod
from pathlib import Path
from typing import Any

from coeval.storage.records import append_line, as_line, now, open_for_append, read_records
from coeval.storage.run import Run
from p2l.common.display import printable
from p2l.common.files import locked

_MAX_OPEN_FILES = 100  # some systems allow a process 256, of which connections take their part
_SYNC_SECONDS = 0.2  # seconds between two syncs


class Store:
    """Appends records to the files of one run; safe for threads."""

    def __init__(self, run: Run, *, is_shared: bool = False) -> None:
        """`is_shared`: other processes append to the same files, perhaps on other machines."""
        self.run = run
        self._is_shared = is_shared
        self.appended = 0
        self.stored = 0  # of the appended records, those that are on the disk
        self.shared: dict[Any, Any] = {}
        """State that the records of this start share, such as the prompts of a teacher's items."""
        self._files: OrderedDict[Path, int] = OrderedDict()
        self._dirty: set[Path] = set()
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._closed = False
        self._failure: OSError | None = None
        self._thread = threading.Thread(target=self._keep_syncing, name="coeval-fsync", daemon=True)
        self._thread.start()

    def append(self, path: Path, record: Mapping[str, Any]) -> None:
        """Append a record to a file. Raise OSError if it cannot be written, or an earlier sync failed."""
        line = as_line(record)
        with self._lock:
            if self._failure is not None:
                raise self._failure
            descriptor = self._descriptor(path)
            # A shared folder may not append in one step; with its lock a process also sees what others wrote.
            with locked(descriptor) if self._is_shared else contextlib.nullcontext():
                append_line(descriptor, line)
            self.appended += 1
            self._dirty.add(path)
        self._wake.set()

    def forget_file(self, path: Path) -> None:
        """Remove a file that is no longer needed."""
        with self._lock:
            descriptor = self._files.pop(path, None)
            self._dirty.discard(path)
        if descriptor is not None:
            os.close(descriptor)
        path.unlink(missing_ok=True)

    def error(self, phase: str, error: str, **names: str) -> None:
        """Record in `run_errors.jsonl` that a piece of work failed."""
        self.append(self.run.errors, {"phase": phase, "status": "failed", "error": error, "timestamp": now(), **names})

    def failures(self, phase: str) -> Counter[str]:
        """Count how often each piece of work failed, by the id of what it should have made."""
        errors = (error for error in read_records(self.run.errors) if error.get("phase") == phase)
        return Counter(error["id"] for error in errors if "id" in error)

    def flush(self) -> None:
        """Wait until all appended records are on the disk. Raise OSError if they cannot be written."""
        self._sync()
        if self._failure is not None:
            raise self._failure

    def close(self) -> None:
        """Sync and close all files."""
        self._closed = True
        self._wake.set()
        self._thread.join()
        try:
            self.flush()
        finally:
            with self._lock:
                for descriptor in self._files.values():
                    os.close(descriptor)
                self._files.clear()

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _descriptor(self, path: Path) -> int:
        descriptor = self._files.pop(path, None)
        if descriptor is None:
            while len(self._files) >= _MAX_OPEN_FILES:
                old, dropped = self._files.popitem(last=False)
                os.fsync(dropped)
                os.close(dropped)
                self._dirty.discard(old)
            with locked(path) if self._is_shared else contextlib.nullcontext():
                descriptor = open_for_append(path)
        self._files[path] = descriptor
        return descriptor

    def _keep_syncing(self) -> None:
        while not self._closed:
            self._wake.wait()
            self._wake.clear()
            self._sync()
            threading.Event().wait(0.0 if self._closed else _SYNC_SECONDS)

    def _sync(self) -> None:
        with self._lock:
            appended = self.appended
            copies = [os.dup(self._files[path]) for path in self._dirty]
            self._dirty.clear()
        try:
            for descriptor in copies:
                os.fsync(descriptor)
            self.stored = max(self.stored, appended)
        except OSError as error:
            self._failure = error
        finally:
            for descriptor in copies:
                os.close(descriptor)


LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR")


class Log:
    """Writes lines `time [LEVEL] message`; warnings and errors also go to stderr, the rest to stdout."""

    def __init__(self, path: Path | None = None, level: str = "INFO") -> None:
        """`path` None: lines are held until `keep_in` names a file."""
        self.path = path
        self._early: list[str] = []
        self._least = LEVELS.index(level)

    def keep_in(self, path: Path) -> None:
        """Write to a file from now on, earlier lines included."""
        self.path = path
        for line in self._early:
            _keep(path, line)
        self._early.clear()

    def write(self, level: str, message: str) -> None:
        """Log a message, if its level is not below the least."""
        if LEVELS.index(level) < self._least:
            return
        text = printable(message)
        line = f"{now()} [{level}] {text}\n"
        if self.path is None:
            self._early.append(line)
        else:
            _keep(self.path, line)
        if level != "INFO":
            text = f"{level.lower()}: {text}"
        stream = sys.stderr if level in ("WARNING", "ERROR") else sys.stdout
        if sys.stderr.isatty():  # a progress bar may be there, which a plain print would tear
            from tqdm import tqdm

            tqdm.write(text, file=stream)
        else:
            print(text, file=stream, flush=True)

    debug = partialmethod(write, "DEBUG")  # log what helps to find a fault
    info = partialmethod(write, "INFO")  # log what happens
    warning = partialmethod(write, "WARNING")  # log what is missing afterwards, or costs more
    error = partialmethod(write, "ERROR")  # log what makes the exit code 1


def _keep(path: Path, line: str) -> None:
    # Where the disk is full the terminal still has to hear of it.
    with contextlib.suppress(OSError), path.open("a", encoding="utf-8", errors="replace") as file:
        file.write(line)
