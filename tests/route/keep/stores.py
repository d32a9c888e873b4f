"""Where tests keep the database of a router: a SQLite file, or a schema of its own on a PostgreSQL server.

The third store has its limits in Redis, too.
The servers are those of `make services`, or what `P2L_TEST_POSTGRES` and `P2L_TEST_REDIS` name.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

POSTGRES = os.environ.get("P2L_TEST_POSTGRES", "postgresql://postgres@127.0.0.1:5432/test")
REDIS = os.environ.get("P2L_TEST_REDIS", "redis://127.0.0.1:6379/0")
KINDS = ("sqlite", "postgres", "redis")
"""The last one is PostgreSQL with limits in Redis."""
every_store = pytest.mark.parametrize("store", KINDS, indirect=True)
"""Runs a test over each of them."""
every_database = pytest.mark.parametrize("store", KINDS[:2], indirect=True)
"""Runs a test that has nothing to do with limits over both databases."""


@cache
def why_not(kind: str) -> str | None:
    """Why there is no such store here; None: there is one."""
    try:
        if kind in ("postgres", "redis"):
            import psycopg

            psycopg.connect(POSTGRES, connect_timeout=3).close()
        if kind == "redis":
            import redis

            with redis.Redis.from_url(REDIS, socket_connect_timeout=3) as client:
                client.ping()
    except ImportError as error:
        return f"{error}: pip install 'p2l[replicas]'"
    except Exception as error:
        text = str(error).strip().splitlines()[0]
        return f"no {'Redis' if 'redis' in type(error).__module__ else 'PostgreSQL'} (make services starts one): {text}"
    return None


@dataclass
class Store:
    """Databases by the paths that tests give them, and the Redis of their limits."""

    kind: str = "sqlite"
    schemas: dict[Path | None, str] = field(default_factory=dict)
    limits: str | None = None

    def location(self, path: Path | None) -> str | Path | None:
        """The path, or the URL of the schema that stands for it; each None is another one."""
        if self.kind == "sqlite":
            return path
        if path is None or path not in self.schemas:
            name = f"test_{secrets.token_hex(6)}"
            self.schemas[path or Path(name)] = name
            self.execute(f"CREATE SCHEMA {name}")
        else:
            name = self.schemas[path]
        return f"{POSTGRES}?options={quote(f'-c search_path={name} -c synchronous_commit=off')}"

    def rows(self, path: Path, query: str) -> list[tuple[Any, ...]]:
        """What another program finds there."""
        location = self.location(path)
        if not isinstance(location, str):
            with contextlib.closing(sqlite3.connect(path)) as connection:
                return connection.execute(query).fetchall()
        import psycopg

        with psycopg.connect(location) as session:
            return session.execute(query.encode()).fetchall()

    def execute_in(self, path: Path, statement: str) -> None:
        """Change what is there, as another program."""
        location = self.location(path)
        if not isinstance(location, str):
            with contextlib.closing(sqlite3.connect(path)) as connection, connection:
                connection.execute(statement)
            return
        import psycopg

        with psycopg.connect(location) as session:
            session.execute(statement.encode())

    @staticmethod
    def execute(statement: str) -> None:
        import psycopg

        with psycopg.connect(POSTGRES) as session:
            session.execute(statement.encode())

    def clear(self) -> None:
        """Remove what tests have made on servers."""
        for name in self.schemas.values():
            self.execute(f"DROP SCHEMA {name} CASCADE")
        if self.limits is not None:
            import redis

            with redis.Redis.from_url(REDIS) as client:
                for key in client.scan_iter(f"{{{self.limits.rpartition('=')[2]}}}:*"):
                    client.delete(key)


@contextlib.contextmanager
def a_store(kind: str) -> Iterator[Store]:
    """A store of one kind, removed at the end."""
    store = Store(kind)
    if kind == "redis":
        store.limits = f"{REDIS}?prefix=test_{secrets.token_hex(6)}"
    try:
        yield store
    finally:
        store.clear()
