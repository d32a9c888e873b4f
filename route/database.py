"""The router's one file: SQLite, written in a thread of its own, so that no request waits for a disk.

Several workers open the same file (write-ahead log). Without a path everything is in memory and ends with the process.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

__all__ = ["FLUSH_SECONDS", "Database"]

T = TypeVar("T")

FLUSH_SECONDS = 0.1
"""How long what happened waits in memory."""


class Database:
    """One connection, used by one thread; transactions run one after the other."""

    def __init__(self, path: Path | None = None) -> None:
        """Nothing is opened yet; a `path` of None is memory."""
        self.path = path
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="route-database")
        self._connection: sqlite3.Connection | None = None

    async def start(self) -> None:
        """Open or make the file.

        Raises:
            ConfigError: it cannot be opened, is no database of the router, or of a newer one.
        """

    async def close(self) -> None:
        """Finish what is under way and close the file."""
        await asyncio.get_running_loop().run_in_executor(None, self._thread.shutdown)

    async def run(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Do `work` in one transaction, in the thread; it is on the disk when this returns.

        Raises:
            sqlite3.Error: nothing of it was written.
        """
        raise NotImplementedError
