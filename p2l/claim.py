"""A new folder that one process at a time fills, under a hidden name until it is whole.

The name is the same for all processes, and a lock on it says whether its process still lives. So of two that start at
once one gets the folder, and what a kill has left there is removed by the next.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from p2l.command import sync_path, sync_tree
from p2l.errors import InputError

__all__ = ["claimed", "try_lock"]


@contextlib.contextmanager
def claimed(folder: Path) -> Iterator[Path | None]:
    """Where to write what will be `folder` when the block ends without an error; None: it is another process's.

    Raises:
        InputError: it cannot be written (no permission, disk full).
    """
    try:
        with _locked(folder.with_name(f".{folder.name}.unfinished")) as hidden:
            if hidden is None or folder.exists():
                yield None
                return
            yield hidden
            sync_tree(hidden)
            hidden.rename(folder)
            sync_path(folder.parent)
    except OSError as error:
        raise InputError(f"{folder}: cannot be written: {error.strerror or error}") from error


@contextlib.contextmanager
def _locked(hidden: Path) -> Iterator[Path | None]:
    """An empty folder that is this process's until the block ends, and then removed; None when it is another's."""
    descriptor = _claim(hidden)
    if descriptor is None:
        yield None
        return
    try:
        for path in hidden.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        yield hidden
    finally:
        if _is_open(descriptor, hidden):  # it has not been renamed
            shutil.rmtree(hidden, ignore_errors=True)
        os.close(descriptor)


def _claim(hidden: Path) -> int | None:
    """The descriptor of the folder `hidden`, made if need be and locked; None when another process has it."""
    while True:
        hidden.mkdir(parents=True, exist_ok=True)
        try:
            descriptor = os.open(hidden, os.O_RDONLY)
        except FileNotFoundError:  # its process has just renamed or removed it
            continue
        taken = try_lock(descriptor)
        if taken and _is_open(descriptor, hidden):
            return descriptor
        os.close(descriptor)
        if not taken:
            return None


def _is_open(descriptor: int, path: Path) -> bool:
    """Whether what is open is what has this name now."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def try_lock(descriptor: int) -> bool:
    """Lock an open file or folder until it is closed, by a kill at the latest; False when another process has it."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a file system without locks
        return True
    return True
