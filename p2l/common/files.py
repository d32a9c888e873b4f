"""Files and folders that are whole or absent, locks between processes, and what a disk's refusal means."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import json
import math
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from p2l.common.errors import InputError


@contextlib.contextmanager
def atomic_path(path: str | Path, *, directory: bool = False) -> Iterator[Path]:
    """Give a temporary name beside `path`; rename it to `path` when the block ends without an error.

    A kill at any moment leaves the old file or the new one, never a part. The data reach the disk before the name does.
    """
    target = Path(path)
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        if directory:
            temporary.mkdir()
        yield temporary
        sync_tree(temporary)
        os.replace(temporary, target)
        sync_path(target.parent)
    except OSError as error:
        raise InputError(f"{target}: cannot be written: {error.strerror or error}") from error
    finally:
        if temporary.is_dir():
            shutil.rmtree(temporary, ignore_errors=True)
        else:
            with contextlib.suppress(OSError):
                temporary.unlink()


@functools.cache
def user_cache(name: str) -> Path:
    """Return the folder `name` in the cache of this user (`P2L_CACHE`), or a temporary one where none can be."""
    folder = Path(os.environ.get("P2L_CACHE") or "~/.cache/p2l").expanduser() / name
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if os.access(folder, os.W_OK):
            return folder
    except OSError:  # no home, or one that is read-only
        pass
    note = f"note: {folder} cannot be written: each process makes its own; set P2L_CACHE to a folder that can be"
    print(note, file=sys.stderr)
    return Path(tempfile.mkdtemp(prefix=f"p2l-{name}-"))


STDOUT = "-"  # the output that users name for stdout
_BINARY = ("parquet", "xlsx")


def format_of(path: str, name: str | None, formats: Sequence[str]) -> str:
    """Return the format of an output: `name`, else the ending of `path`, else the first of `formats` for stdout.

    Raise InputError for an unknown ending, or for a binary format on a terminal.
    """
    kind = name or (formats[0] if path == STDOUT else Path(path).suffix.lower().removeprefix("."))
    if kind not in formats:
        raise InputError(f"{path}: the ending must be one of {', '.join(f'.{ending}' for ending in formats)}")
    if path == STDOUT and kind in _BINARY and sys.stdout.isatty():
        raise InputError(f"{kind} is not text; write it into a file or a pipe")
    return kind


@contextlib.contextmanager
def output_path(path: str | Path) -> Iterator[Path]:
    """Give a path to write an output to, as `atomic_path` does; the output `-` goes to stdout when it is whole."""
    if str(path) != STDOUT:
        with atomic_path(path) as temporary:
            yield temporary
        return
    with tempfile.TemporaryDirectory() as folder:
        whole = Path(folder) / "output"
        yield whole
        sys.stdout.flush()
        # A terminal gets text through the program's filter of control characters, a pipe or a file the very bytes.
        if sys.stdout.isatty():
            sys.stdout.write(whole.read_text(encoding="utf-8"))
        else:
            sys.stdout.buffer.write(whole.read_bytes())
        sys.stdout.flush()


def write_json(path: str | Path, value: Any, *, indent: int = 1) -> None:
    """Write indented JSON into a file, whole or not at all, with null in place of NaN."""
    with atomic_path(path) as temporary:
        text = json.dumps(no_nan(value), indent=indent, ensure_ascii=False)
        temporary.write_text(text + "\n", encoding="utf-8")


DEEPEST_JSON = 200  # levels: functions that walk through JSON call themselves for each


def parse_json(text: str | bytes, **options: Any) -> Any:
    """Parse JSON; raise ValueError for text that is not JSON, or nests deeper than `DEEPEST_JSON`."""
    try:
        content = json.loads(text, **options)
    except RecursionError:
        raise ValueError(f"is nested deeper than {DEEPEST_JSON} levels") from None
    brackets = text.count("[") + text.count("{") if isinstance(text, str) else text.count(b"[") + text.count(b"{")
    if brackets > DEEPEST_JSON and is_deeper(content, DEEPEST_JSON):
        raise ValueError(f"is nested deeper than {DEEPEST_JSON} levels")
    return content


def read_names(path: str | Path, what: str) -> list[str]:
    """Return the names of a JSON list in a file; InputError, which calls it `what`, for anything else."""
    try:
        names = parse_json(Path(path).expanduser().read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: the {what} cannot be read: {error}") from error
    if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
        raise InputError(f"{path}: a {what} is a JSON list of names")
    return names


def json_reason(error: ValueError) -> str:
    """Return why a line is not JSON, and at which of its letters; callers name the line."""
    if not isinstance(error, json.JSONDecodeError):
        return str(error)
    return f"{error.msg.removesuffix(' at')} at letter {error.pos + 1}"


_JSON_NAMES = {
    type(None): "null",
    bool: "true or false",
    str: "a text",
    int: "a number",
    float: "a number",
    list: "a list",
}


def no_object(value: Any) -> str:
    """Return a phrase for a line of JSON that is not an object: `holds a list`."""
    return f"holds {_JSON_NAMES.get(type(value), 'something else')}"


MAX_LINE_BYTES = 16 << 20  # of a line of JSON in the input of users
_PIECE_BYTES = 1 << 20


def bounded_lines(file: IO[bytes], longest: int = MAX_LINE_BYTES) -> Iterator[tuple[bytes, int]]:
    """Yield each line of a file and its bytes; a line of more than `longest` comes empty, and is never in memory."""
    while line := file.readline(longest + 1):
        length = len(line)
        if length > longest:
            while not line.endswith(b"\n") and (line := file.readline(_PIECE_BYTES)):
                length += len(line)
            line = b""
        yield line, length


_CONTAINERS = (list, dict)


def is_deeper(content: Any, levels: int) -> bool:
    """Return whether lists and objects of JSON nest deeper than this."""
    # Level by level and not by recursion, which ends where Python's stack does.
    containers = [content] if isinstance(content, _CONTAINERS) else []
    for _ in range(levels):
        containers = [
            element
            for container in containers
            for element in (container.values() if isinstance(container, dict) else container)
            if isinstance(element, _CONTAINERS)
        ]
    return any(containers)


def no_nan(value: Any) -> Any:
    """Return `value` as JSON can hold it: null for NaN and infinities at any depth, plain numbers for NumPy's."""
    if isinstance(value, dict):
        return {key: no_nan(element) for key, element in value.items()}
    if isinstance(value, list | tuple):
        return [no_nan(element) for element in value]
    value = value.item() if hasattr(value, "item") else value
    return None if isinstance(value, float) and not math.isfinite(value) else value


def check_can_write(path: str | Path, *inputs: str | Path | None) -> Path:
    """Return `path` as a Path; InputError, before a long run, where it cannot be written or is an input."""
    target = Path(path)
    if any(path is not None and _is_same(path, target) for path in inputs):
        raise InputError(f"{target}: is an input too; choose another output")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{target.parent}: cannot be made: {error.strerror or error}") from error
    if not os.access(target.parent, os.W_OK) or target.is_dir():
        raise InputError(f"{target}: cannot be written; choose another path")
    return target


def _is_same(path: str | Path, target: Path) -> bool:
    try:
        return Path(path).expanduser().resolve() == target.resolve()
    except (OSError, RuntimeError, ValueError):  # a loop of links, no such user, a NUL: whoever opens it says so
        return False


def put_folder(unfinished: Path, target: Path, replaced: Path) -> None:
    """Give a whole folder its name when every byte is on disk; one that has the name is `replaced` and removed."""
    sync_tree(unfinished)
    if target.exists():
        target.rename(replaced)
    unfinished.rename(target)
    sync_path(target.parent)
    shutil.rmtree(replaced, ignore_errors=True)


def sync_tree(path: Path) -> None:
    """Wait until a file, or everything below a folder, is on the disk."""
    for place in [*path.rglob("*"), path] if path.is_dir() else [path]:
        sync_path(place)


def sync_path(path: Path) -> None:
    """Wait until one file, or the names in one folder, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# Locks between processes. The system frees a lock when its process ends, by a kill at the latest.


def try_lock(descriptor: int, mode: int = fcntl.LOCK_EX | fcntl.LOCK_NB) -> bool:
    """Lock an open file or folder until it is closed, by a kill at the latest; False when another process has it."""
    try:
        fcntl.flock(descriptor, mode)
    except BlockingIOError:
        return False
    except OSError:  # a file system without locks
        return True
    return True


@contextlib.contextmanager
def locked(target: Path | int, *, shared: bool = False, wait: bool = True) -> Iterator[bool]:
    """Hold the lock of a file or folder for the block; on a file system without locks, hold nothing.

    Args:
        target: a path, created as a file with its folder where there is none, or a descriptor, which stays open.
        shared: whether other shared holders may be inside too.
        wait: whether to wait for another process; without waiting, the block is entered with False.
    """
    if isinstance(target, int):
        descriptor = target
    elif target.is_dir():
        descriptor = os.open(target, os.O_RDONLY)
    else:
        target.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(target, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    mode = (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB)
    try:
        yield try_lock(descriptor, mode)
    finally:
        if descriptor is target:
            with contextlib.suppress(OSError):
                fcntl.flock(descriptor, fcntl.LOCK_UN)
        else:
            os.close(descriptor)


@contextlib.contextmanager
def claimed(folder: Path) -> Iterator[Path | None]:
    """Yield where to write what becomes `folder` when the block ends without an error; None if another process does."""
    # All processes use the same hidden name, and a lock on it says whether its process still lives: of two that start
    # at once one gets the folder, and the next removes what a kill has left there.
    hidden = folder.with_name(f".{folder.name}.unfinished")
    descriptor = None
    try:
        descriptor = _claim(hidden)
        if descriptor is None or folder.exists():
            yield None
            return
        for path in hidden.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        yield hidden
        sync_tree(hidden)
        hidden.rename(folder)
        sync_path(folder.parent)
    except OSError as error:
        raise InputError(f"{folder}: cannot be written: {error.strerror or error}") from error
    finally:
        if descriptor is not None:
            if _is_open(descriptor, hidden):  # it has not been renamed
                shutil.rmtree(hidden, ignore_errors=True)
            os.close(descriptor)


def _claim(hidden: Path) -> int | None:
    """Return the descriptor of the folder `hidden`, created and locked; None when another process has it."""
    while True:
        hidden.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            hidden.mkdir()
        try:
            descriptor = os.open(hidden, os.O_RDONLY)
        except FileNotFoundError:  # its process has just renamed or removed it
            continue
        is_locked = try_lock(descriptor)
        if is_locked and _is_open(descriptor, hidden):
            return descriptor
        os.close(descriptor)
        if not is_locked:
            return None


def _is_open(descriptor: int, path: Path) -> bool:
    """Return whether the open file or folder still has this name."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


# Whether an error means that the disk refused to write, and what to do about it.

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
class _DiskError:
    """Why the disk refused to write, and what to do about it."""

    reason: str
    advice: str


def disk_error(error: BaseException) -> _DiskError | None:
    """Return the disk's reason when `error`, or what it was raised from, is its refusal to write; else None."""
    text = str(error)
    number: int | None
    if isinstance(error, OSError) and error.errno is not None:
        number = error.errno
    elif match := _NUMBER.search(text):  # safetensors and tokenizers put the number into their text
        number = int(match[1])
    elif isinstance(error, RuntimeError) and _OF_TORCH.search(text):
        # torch puts the system's words for the number there, or says only that fewer bytes arrived than it wrote.
        named = (number for number in errno.errorcode if os.strerror(number) in text)
        number = errno.ENOENT if "Parent directory" in text else next(named, None)
        if number is None:
            return _DiskError("the file was cut short", _FREE)
    else:
        return disk_error(error.__cause__) if error.__cause__ else None
    return _DiskError(os.strerror(number), _ADVICE.get(number, "see to the disk that it lies on"))
