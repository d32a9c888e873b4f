"""A new folder that one process at a time fills, under a hidden name until it is whole.

The name is the same for all processes, and a lock on it says whether its process still lives. So of two that start at
once one gets the folder, and what a kill has left there is removed by the next.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from p2l.common.cli import sync_path, sync_tree
from p2l.common.errors import InputError


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


# Whether an error means that the disk refused to write, and what to do about it.
#
# Python's own errors have a number. safetensors and tokenizers put it into their text; torch puts the words there that
# belong to it, or says only that fewer bytes arrived than it wrote.

_NUMBER = re.compile(r"\(os error (\d+)\)")
_OF_TORCH = re.compile(r"inline_container|iostream error|fd \d+ failed with|Parent directory .* does not exist")
_FREE = "free some space"
_GONE = "leave the folder where it is as long as the run lasts"
_MODE = "change its mode or owner"
_ADVICE = {
    errno.ENOSPC: _FREE,
    errno.EDQUOT: f"{_FREE}, or have the quota raised",
    errno.EFBIG: "raise the limit on the size of files (ulimit -f)",
    errno.EMFILE: "raise the limit on open files (ulimit -n)",
    errno.EACCES: _MODE,
    errno.EPERM: _MODE,
    errno.EROFS: "mount it for writing, or move the run to another disk",
    errno.ENOENT: _GONE,
    errno.ENOTDIR: _GONE,
    errno.ESTALE: _GONE,
}


@dataclass(frozen=True)
class DiskError:
    """What the disk said."""

    reason: str
    advice: str


def disk_error(error: BaseException) -> DiskError | None:
    """What the disk said when `error`, or an error that it was raised from, is its refusal to write; else None."""
    if isinstance(error, OSError) and error.errno is not None:
        return _numbered(error.errno)
    text = str(error)
    if match := _NUMBER.search(text):
        return _numbered(int(match[1]))
    if isinstance(error, RuntimeError) and _OF_TORCH.search(text):
        named = (number for number in errno.errorcode if os.strerror(number) in text)
        number = errno.ENOENT if "Parent directory" in text else next(named, None)
        return DiskError("the file was cut short", _FREE) if number is None else _numbered(number)
    return disk_error(error.__cause__) if error.__cause__ else None


def _numbered(number: int) -> DiskError:
    return DiskError(os.strerror(number), _ADVICE.get(number, "see to the disk that it lies on"))
