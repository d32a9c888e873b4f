"""A number in a file that threads and processes share: some 20 us to change, whole after a kill at any moment."""

from __future__ import annotations

import contextlib
import fcntl
import os
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path

__all__ = ["SharedNumber", "stored_number"]

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
        fcntl.flock(self._descriptor, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)

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
