"""Add files of votes to a lake, each once. `p2l.online_training.router_votes` adds those of a router."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from p2l.common.errors import InputError, VoteError
from p2l.votes.lake import Commit, Lake
from p2l.votes.reading import read_votes
from p2l.votes.rows import Source
from p2l.votes.sources import open_source

_CHUNK_BYTES = 1 << 24
_IDENTITY_DIGITS = 16


class Added(NamedTuple):
    """Number of votes that a run has added."""

    votes: int
    days: int
    dropped: int  # rows that are not votes, left out
    is_new: bool  # whether the source was not there before


def add_file(lake: Lake, name: str, *, drop_bad: bool = False, split: str = "train") -> Added:
    """Add the votes of a file or a data set, unless they are there; raise InputError for a file that has changed."""
    source = open_source(name, split=split)
    place = str(Path(source.name).expanduser().absolute()) if Path(source.name).expanduser().exists() else source.name
    identity = _identity(source)
    for commit in lake.commits:
        if commit.identity == identity:
            return Added(votes=0, days=0, dropped=0, is_new=False)
        if commit.source == place:
            # Nobody can tell which of its votes are in the lake already.
            raise InputError(
                f"{name}: has changed since it was added to {lake.name}; write the votes that are new to another file"
            )
    dropped = 0

    def batches() -> Iterator[Any]:
        nonlocal dropped
        for batch in read_votes(source, need_prompt=False, drop_bad=drop_bad):
            dropped += batch.dropped
            if len(batch):
                yield batch.batch

    commit = lake.add(batches(), name=f"file-{identity}", source=place, identity=identity)
    return added_by(commit, dropped)


def added_by(commit: Commit, dropped: int = 0) -> Added:
    """Return the number of votes and days of a commit."""
    return Added(
        votes=sum(part.rows for part in commit.parts),
        days=len({part.day for part in commit.parts}),
        dropped=dropped,
        is_new=True,
    )


def _identity(source: Source) -> str:
    """Return a digest of the content of a file, or of the fingerprint of a data set."""
    digest = hashlib.sha256()
    path = Path(source.name).expanduser()
    if path.is_file():
        try:
            with path.open("rb") as file:
                while chunk := file.read(_CHUNK_BYTES):
                    digest.update(chunk)
        except OSError as error:
            raise VoteError(f"{source.name}: cannot be read: {error.strerror or error}") from error
    elif source.version is not None:
        digest.update(f"{source.name}\0{source.version}".encode())
    else:
        raise InputError(f"{source.name}: nothing tells whether its votes are in the lake; write them to a file")
    return digest.hexdigest()[:_IDENTITY_DIGITS]
