"""Answers that were paid for once, in one SQLite file: by a hash of everything that matters, without prompts or keys.

Several runs may use the file at once. It is a convenience: where it cannot be read or written, calls are made.
"""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_VARIABLE = "COEVAL_CACHE"
_PATIENCE = 5.0  # seconds that another run may hold the file
_TABLE = """CREATE TABLE IF NOT EXISTS answers (
    key BLOB PRIMARY KEY, text TEXT NOT NULL, prompt_tokens INTEGER NOT NULL, completion_tokens INTEGER NOT NULL,
    counted INTEGER NOT NULL, seconds REAL NOT NULL
) WITHOUT ROWID"""
_TOKENS = "CREATE TABLE IF NOT EXISTS tokens (key BLOB PRIMARY KEY, tokens TEXT NOT NULL) WITHOUT ROWID"
"""Beside the answers, so that a file has one form with and without."""


@dataclass(frozen=True)
class Answer:
    """What a model answered."""

    text: str
    prompt_tokens: int
    completion_tokens: int
    counted: bool
    """Whether the provider counted the tokens."""
    seconds: float
    tokens: tuple[tuple[str, float], ...] | None = None
    """What its first token could have been; see `coeval.calling.calls`."""


def cache_file(storage_folder: Path) -> Path:
    """Where answers are kept: in the folder that `COEVAL_CACHE` names, or in that of the runs."""
    named = os.environ.get(_VARIABLE)
    return Path(named).expanduser() / "responses.sqlite" if named else storage_folder / "coeval-cache.sqlite"


def key_of(interface: str, base_url: str, request: dict[str, Any], attempt: int) -> bytes:
    """The hash of what decides an answer: who is asked, where, with which parameters and words, for which time."""
    text = json.dumps([interface, base_url, request, attempt], sort_keys=True, default=str)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()


class Cache:
    """The answers in one file, which is made when the first is kept."""

    def __init__(self, path: Path, warn: Callable[[str], None]) -> None:
        """Nothing is opened yet; `warn` hears why answers are not kept, once."""
        self._path, self._warn = path, warn
        self._file: sqlite3.Connection | None = None
        self._is_broken = False

    def get(self, key: bytes) -> Answer | None:
        """The answer that was kept, if there is one."""
        if self._file is None and not self._path.exists():
            return None
        row = self._do(
            "SELECT text, prompt_tokens, completion_tokens, counted, seconds FROM answers WHERE key = ?", (key,)
        )
        return Answer(row[0], row[1], row[2], bool(row[3]), row[4], self._tokens(key)) if row else None

    def _tokens(self, key: bytes) -> tuple[tuple[str, float], ...] | None:
        row = self._do("SELECT tokens FROM tokens WHERE key = ?", (key,))
        return tuple((token, logprob) for token, logprob in json.loads(row[0])) if row else None

    def put(self, key: bytes, answer: Answer) -> None:
        """Keep an answer; a process that is killed after this has kept it."""
        if answer.tokens:  # first, so that an answer that is there has them
            self._do("INSERT OR REPLACE INTO tokens VALUES (?, ?)", (key, json.dumps(answer.tokens)))
        values = (answer.text, answer.prompt_tokens, answer.completion_tokens, answer.counted, answer.seconds)
        self._do("INSERT OR REPLACE INTO answers VALUES (?, ?, ?, ?, ?, ?)", (key, *values))

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _do(self, statement: str, values: tuple[Any, ...]) -> Any:
        """The first row, or None where there is none, or no file that works."""
        if self._is_broken:
            return None
        try:
            self._file = self._file or self._opened()
            return self._file.execute(statement, values).fetchone()
        except (sqlite3.Error, OSError, UnicodeError) as error:
            # Words that SQLite cannot hold are the answer's fault, not the file's.
            self._is_broken = not isinstance(error, UnicodeError)
            if self._is_broken:
                self._warn(f"{self._path}: {error}; answers are not kept from here on")
            return None

    def _opened(self) -> sqlite3.Connection:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        file = sqlite3.connect(self._path, timeout=_PATIENCE, isolation_level=None)
        # A crash of the machine may lose the last answers, never the file; one of the process loses nothing.
        for statement in ("PRAGMA journal_mode = WAL", "PRAGMA synchronous = NORMAL", _TABLE, _TOKENS):
            file.execute(statement)
        return file
