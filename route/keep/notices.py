"""Notices between the router's processes, through the database: that keys, or a configuration, have changed.

Each subject has a number, which grows with every change. Workers see a new one with their next look at the file, every
100 ms; what has changed they read themselves.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable

from route.keep.database import Connection, Database, WriteBehind


def note_change(connection: Connection, subject: str) -> int:
    """Count a change, inside the transaction that makes it; return its number."""
    connection.execute(
        "INSERT INTO changes VALUES (?, 1) ON CONFLICT (subject) DO UPDATE SET number = changes.number + 1", (subject,)
    )
    return number_of(connection, subject)


def number_of(connection: Connection, subject: str) -> int:
    """Return the number of the last change of a subject; 0 before the first."""
    row = connection.execute("SELECT number FROM changes WHERE subject = ?", (subject,)).fetchone()
    return 0 if row is None else int(row[0])


class Changes(WriteBehind):
    """The changes that other processes tell of; used from one event loop."""

    def __init__(self, database: Database) -> None:
        """Listen to nothing yet."""
        super().__init__(database, time.time)
        self._handlers: defaultdict[str, list[Callable[[], None]]] = defaultdict(list)
        self._numbers: dict[str, int] | None = None

    def on(self, subject: str, handle: Callable[[], None]) -> None:
        """Call a function after each change of a subject that this process does not tell of itself."""
        self._handlers[subject].append(handle)

    async def tell(self, subject: str) -> None:
        """Tell the others of a change; raise DatabaseError if the database cannot be written."""
        number = await self._database.run(lambda connection: note_change(connection, subject))
        if self._numbers is not None:
            self._numbers[subject] = number

    def read(self, connection: Connection) -> dict[str, int]:
        """Return the number of each subject."""
        return dict(connection.execute("SELECT subject, number FROM changes").fetchall())

    def absorb(self, news: dict[str, int]) -> None:
        """Call the functions of what has changed."""
        before, self._numbers = self._numbers, news
        if before is None:
            return  # the state at start
        for subject, number in news.items():
            if number > before.get(subject, 0):
                for handle in self._handlers[subject]:
                    handle()
