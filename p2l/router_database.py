"""The votes in a router's database, read by its schema, also while routers are writing to it."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from p2l.errors import InputError

__all__ = ["PAIR_COLUMNS", "router_database", "vote_of"]

_WINNER = {"first": "model_a", "second": "model_b", "tie": "tie", "both_bad": "tie (bothbad)"}
PAIR_COLUMNS = "prompt, model_a, model_b, verdict, time, propensity, version_a, version_b, request_id"
"""Columns of the router's table `votes` that make a vote, in the order of `vote_of`."""


@contextlib.contextmanager
def router_database(path: Path) -> Iterator[sqlite3.Connection]:
    """A router's database as it is at this moment, whatever is written meanwhile.

    Raises:
        InputError: there is no such file, or it is no database of a router.
    """
    if not path.is_file():
        raise InputError(f"{path}: no such file; name the `database` of the router's configuration")
    try:
        with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
            connection.execute("PRAGMA query_only = ON")
            connection.execute("BEGIN")
            yield connection
    except sqlite3.Error as error:
        raise InputError(f"{path}: cannot be read as the database of a router: {error}") from error


def vote_of(
    prompt: str | None,
    model_a: str,
    model_b: str,
    verdict: str,
    time: float,
    propensity: float,
    version_a: str | None,
    version_b: str | None,
    request_id: str,
    *,
    prompts: bool = True,
) -> dict[str, Any]:
    """A row of PAIR_COLUMNS as a vote of the schema."""
    vote: dict[str, Any] = {"model_a": model_a, "model_b": model_b, "winner": _WINNER[verdict]}
    vote |= {"tstamp": time, "propensity": propensity, "question_id": request_id}
    vote["model_version"] = None if version_a is None and version_b is None else [version_a, version_b]
    if prompts:
        vote["prompt"] = json.loads(prompt or "null")
    return vote
