"""A file that others append lines to, read as it grows.

A last line without an end waits until its end comes. What was read is known by its offset, so it can be read again at
any time; a file that was replaced or cut short is another stream, and said to be so.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from p2l.errors import VoteError

__all__ = ["GrowingFile", "Line"]

_BLOCK = 8 << 20  # bytes
_PARQUET = b"PAR1"


class Line(NamedTuple):
    """A whole line without its line feed."""

    text: bytes
    at: int
    """Offset of its first byte."""
    number: int
    """From 1."""


class GrowingFile:
    """Gives out each line once, and any part of what it gave out again; threads may share it."""

    def __init__(self, path: Path) -> None:
        """Open the file; nothing is read yet.

        Raises:
            VoteError: it is not there, cannot be read, or is nothing that lines are appended to.
        """
        if path.exists() and not path.is_file():
            raise VoteError(f"{path}: cannot be followed: is no file; name a JSONL file or a router's database")
        self.path = path
        self._end, self._number = 0, 1
        try:
            self._file = os.open(path, os.O_RDONLY)
        except OSError as error:
            hint = "; make it, empty, if its votes are still to come" if isinstance(error, FileNotFoundError) else ""
            raise VoteError(f"{path}: cannot be followed: {error.strerror or error}{hint}") from error
        if os.pread(self._file, len(_PARQUET), 0) == _PARQUET:
            raise VoteError(f"{path}: cannot be followed: is Parquet, which does not grow; set it as train_data_path")

    def __del__(self) -> None:
        self.close()

    def close(self) -> None:
        """Nothing can be read afterwards."""
        file, self._file = getattr(self, "_file", -1), -1
        if file >= 0:
            os.close(file)

    @property
    def torn(self) -> int:
        """Bytes after the end of the last line that has one."""
        return os.fstat(self._file).st_size - self._end

    def lines(self) -> Iterator[Line]:
        """The lines that have come since; one that is given out counts as read.

        Raises:
            VoteError: the file was replaced, cut short or removed.
        """
        self._check_same()
        size = _BLOCK
        while text := os.pread(self._file, size, self._end):
            whole = text.rfind(b"\n") + 1
            if not whole and len(text) < size:
                return
            size = _BLOCK if whole else 2 * size  # a line longer than the block
            start = 0
            while start < whole:
                end = text.index(b"\n", start)
                line = Line(text[start:end], self._end, self._number)
                self._end, self._number = self._end + end + 1 - start, self._number + 1
                start = end + 1
                yield line

    def _check_same(self) -> None:
        opened = os.fstat(self._file)
        try:
            named = self.path.stat()
        except OSError as error:
            raise VoteError(f"{self.path}: is gone ({error.strerror or error}); put it back and start again") from error
        if not os.path.samestat(opened, named) or opened.st_size < self._end:
            how = "cut short" if os.path.samestat(opened, named) else "replaced by another file"
            raise VoteError(
                f"{self.path}: was {how} while it was followed; put the old one back, or start a new run on this one"
            )

    def read(self, at: int, size: int) -> bytes:
        """Bytes that were given out before.

        Raises:
            VoteError: they are not there any more.
        """
        text = os.pread(self._file, size, at)
        if len(text) < size:
            raise VoteError(f"{self.path}: was cut short while it was followed; put the old one back and start again")
        return text
