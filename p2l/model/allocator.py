"""Memory on a CPU: what is freed is kept for the next tensor, or handed back once."""

from __future__ import annotations

import ctypes
import sys

# Parameters of glibc's mallopt, from its malloc.h.
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8
_LARGEST = 2**30


def keep_freed_memory(arenas: int | None = None) -> bool:
    """Let glibc hand freed blocks of up to a gibibyte to the next tensor of this process; False where it is not there.

    `arenas` is how many pools of blocks its threads may have: each keeps what was freed in it to itself, so in a
    service that runs for months, and loads model after model in thread after thread, few hold less.

    By default it returns large blocks to the system at once, which then clears every page again for the next tensor:
    several hundredths of a training step go there. Results do not change.
    """
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL("libc.so.6").mallopt
    except (OSError, AttributeError):
        return False
    if arenas is not None and not mallopt(_ARENA_MAX, arenas):
        return False
    return bool(mallopt(_MMAP_THRESHOLD, _LARGEST) and mallopt(_TRIM_THRESHOLD, 2 * _LARGEST - 1))


def return_freed_memory() -> bool:
    """Let glibc hand all freed blocks of this process to the system, once; False where it is not there."""
    if not sys.platform.startswith("linux"):
        return False
    try:
        trim = ctypes.CDLL("libc.so.6").malloc_trim
    except (OSError, AttributeError):
        return False
    return bool(trim(0))
