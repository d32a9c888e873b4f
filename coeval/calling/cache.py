"""The response cache: replies that were paid for once, in one SQLite file that several runs may share.

A key is a hash of everything that decides a reply; neither prompts nor API keys are stored. The cache is a convenience:
where the file cannot be read or written, calls are made.
"""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

from coeval.calling.calls import Reply

_VARIABLE = "COEVAL_CACHE"
_PATIENCE = 5.0  # seconds that another run may lock the file
_TABLE = """CREATE TABLE IF NOT EXISTS answers (
    key BLOB PRIMARY KEY, text TEXT NOT NULL, prompt_tokens INTEGER NOT NULL, completion_tokens INTEGER NOT NULL,
    counted INTEGER NOT NULL, seconds REAL NOT NULL
) WITHOUT ROWID"""
# A table of its own, as files of earlier versions have no such column.
_TOKENS = "CREATE TABLE IF NOT EXISTS tokens (key BLOB PRIMARY KEY, tokens TEXT NOT NULL) WITHOUT ROWID"


def cache_file(storage_folder: Path) -> Path:
    """Return the path of the cache: in the folder that `COEVAL_CACHE` names, or in that of the runs."""
    folder = os.environ.get(_VARIABLE)
    return Path(folder).expanduser() / "responses.sqlite" if folder else storage_folder / "coeval-cache.sqlite"


def key_of(interface: str, base_url: str, request: dict[str, Any], attempt: int) -> bytes:
    """Return the hash of what decides a reply: provider, address, request, and the number of the attempt."""
    text = json.dumps([interface, base_url, request, attempt], sort_keys=True, default=str)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()


class Cache:
    """The replies in one file, which is opened, and created, on first use."""

    def __init__(self, path: Path, warn: Callable[[str], None]) -> None:
        """`warn` receives, once, why replies are not cached."""
        self._path, self._warn = path, warn
        self._file: sqlite3.Connection | None = None
        self._is_broken = False

    def get(self, key: bytes) -> Reply | None:
        """Return a cached reply, if there is one."""
        if self._file is None and not self._path.exists():
            return None
        row = self._do(
            "SELECT text, prompt_tokens, completion_tokens, counted, seconds FROM answers WHERE key = ?", (key,)
        )
        if row is None:
            return None
        tokens = self._do("SELECT tokens FROM tokens WHERE key = ?", (key,))
        pairs = tuple((token, logprob) for token, logprob in json.loads(tokens[0])) if tokens else None
        return Reply(row[0], row[1], row[2], 0.0, row[4], counted=bool(row[3]), cached=True, tokens=pairs)

    def put(self, key: bytes, reply: Reply) -> None:
        """Store a reply; it survives a kill right after."""
        if reply.tokens:  # first, so that a reply that is there has them
            self._do("INSERT OR REPLACE INTO tokens VALUES (?, ?)", (key, json.dumps(reply.tokens)))
        columns = (reply.text, reply.prompt_tokens, reply.completion_tokens, reply.counted, reply.seconds)
        self._do("INSERT OR REPLACE INTO answers VALUES (?, ?, ?, ?, ?, ?)", (key, *columns))

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _do(self, statement: str, parameters: tuple[Any, ...]) -> Any:
        """Return the first row; None if there is none, or the file cannot be used."""
        if self._is_broken:
            return None
        try:
            self._file = self._file or self._opened()
            return self._file.execute(statement, parameters).fetchone()
        except UnicodeError:  # text that SQLite cannot store
            return None
        except (sqlite3.Error, OSError) as error:
            self._is_broken = True
            self._warn(f"{self._path}: {error}; answers are not kept from here on")
            return None

    def _opened(self) -> sqlite3.Connection:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        # Without transactions of several statements: runs that share the file wait for one statement at most.
        file = sqlite3.connect(self._path, timeout=_PATIENCE, isolation_level=None)
        # A crash of the machine may lose the last replies, never the file; a kill loses nothing.
        for statement in ("PRAGMA journal_mode = WAL", "PRAGMA synchronous = NORMAL", _TABLE, _TOKENS):
            file.execute(statement)
        return file
