"""What Linux says of processes."""

from __future__ import annotations

import contextlib
from pathlib import Path

__all__ = ["descendants", "words_of"]


def descendants(pid: int) -> list[int]:
    """All processes that a process has started, and theirs."""
    with contextlib.suppress(OSError):
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()
        others = {
            int(text) for path in Path(f"/proc/{pid}/task").glob("*/children") for text in path.read_text().split()
        }
        return [each for child in {*map(int, children), *others} for each in (child, *descendants(child))]
    return []


def words_of(pid: int) -> str:
    """The command line of a process; empty when it is gone."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
    return ""
