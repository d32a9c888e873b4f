"""The location of the router's database: a path or a URL of the configuration, with its variables filled in."""

from __future__ import annotations

import os
import re
from pathlib import Path

from route.keep.database import FLUSH_SECONDS, Database

_VARIABLE = re.compile(r"\$\{(\w+)\}")


def open_database(location: str | Path | None, *, flush_seconds: float = FLUSH_SECONDS) -> Database:
    """Return the database of a location, not opened yet: a `postgresql://` URL, a path, or None for memory."""
    if isinstance(location, str) and _is_url(location):
        # Its driver comes with the extra `replicas`, which most routers do without.
        from route.keep.postgres import PostgresDatabase

        return PostgresDatabase(location, flush_seconds=flush_seconds)
    from route.keep.sqlite import SqliteDatabase

    return SqliteDatabase(None if location is None else Path(location), flush_seconds=flush_seconds)


def _is_url(location: str) -> bool:
    """Return whether a location is that of a PostgreSQL server."""
    return location.startswith(("postgresql://", "postgres://"))


def filled(text: str) -> str:
    """Return a text with the environment's variables for each `${NAME}`; raise ValueError for one that is not set."""
    # Not `os.path.expandvars`: it leaves what is not set, which would be a password of the letters ${NAME}.
    for name in _VARIABLE.findall(text):
        if name not in os.environ:
            raise ValueError(f"the environment variable {name} is not set")
    return _VARIABLE.sub(lambda match: os.environ[match[1]], text)


def location_in(text: str, *, redis: bool = False) -> str:
    """Return a location with its variables filled in; raise ValueError for one that is not a URL of the right kind."""
    location = filled(text).strip()
    scheme, mark, rest = location.partition("://")
    schemes = ("redis", "rediss") if redis else ("sqlite", "postgresql", "postgres")
    # A database without a scheme is a path; Redis is always a URL.
    if (redis or mark) and scheme not in schemes:
        raise ValueError(f"must begin with {'://, '.join(schemes)}://")
    if scheme == "sqlite" and not rest.startswith("/"):
        raise ValueError("a SQLite file is sqlite:///FILE, with a fourth slash where the path is absolute")
    if mark and scheme != "sqlite" and rest.partition("/")[0].count("@") > 1:
        # Drivers would take what follows the first '@' for the host, and name that part of the password in errors.
        raise ValueError("write an '@' of the password as %40")
    return location


def located(database: str, path: str | Path) -> str:
    """Return a `postgresql://` URL as it is, and the path of a SQLite file as seen from the configuration's folder."""
    if _is_url(database):
        return database
    # From the configuration's folder, so that a router that is started elsewhere finds the same file.
    return str(Path(path).expanduser().parent / Path(database.removeprefix("sqlite:///")).expanduser())
