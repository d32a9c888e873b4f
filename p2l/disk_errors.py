"""Whether an error means that the disk refused to write, and what to do about it.

Python's own errors have a number. safetensors and tokenizers put it into their text; torch puts the words there that
belong to it, or says only that fewer bytes arrived than it wrote.
"""

from __future__ import annotations

import errno
import os
import re
from dataclasses import dataclass

__all__ = ["DiskError", "disk_error"]

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
