"""The registry of kinds of files, and which of them a path is."""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import chain
from pathlib import Path

from p2l.common.cli import choose
from p2l.common.errors import VoteError
from p2l.votes.kinds import (
    agents,
    arena,
    harnesses,
    inspect_logs,
    judged,
    langfuse,
    preferences,
    services,
    tables,
    traces,
)
from p2l.votes.kinds.converting import TYPES
from p2l.votes.kinds.kind import Kind, Sample

_MAX_FILES = 200_000  # of a folder

KINDS: dict[str, Kind] = {}
"""Every kind by its name, in the order in which they are tried: the first that recognises a file reads it."""


def register(kind: Kind, *, first: bool = False) -> None:
    """Add a kind; with `first` it is tried before those that are there."""
    entries = {kind.name: kind} | KINDS if first else KINDS | {kind.name: kind}
    KINDS.clear()
    KINDS.update(entries)


for _kind in chain(
    *(inspect_logs.KINDS, harnesses.KINDS, agents.KINDS, services.KINDS, langfuse.KINDS, traces.KINDS, arena.KINDS),
    *(judged.KINDS, preferences.KINDS, tables.KINDS),
):
    register(_kind)


def files_of(folder: Path) -> tuple[str, ...]:
    """Return the names of all files below a folder, relative to it, sorted; those of hidden folders are passed over."""
    names: list[str] = []
    for root, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        place = Path(root).relative_to(folder)
        names += [(place / name).as_posix() for name in files if not name.startswith(".")]
        if len(names) > _MAX_FILES:
            raise VoteError(f"{folder}: holds more than {_MAX_FILES:,} files; name one of its folders")
    return tuple(sorted(names))


def kind_of(sample: Sample, name: str | None = None) -> Kind | None:
    """Return the kind that a path is, or that `name` says; None where no kind recognises it."""
    if name is not None:
        kind = choose("kind", name, KINDS)
    else:
        recognised = (kind for kind in KINDS.values() if kind.recognise(sample))
        first = next(recognised, None)
        if first is None:
            return None
        kind = first
        # Numbers may stand in a table of anything: a kind that is nearly recognised says more of it.
        if kind.name.startswith("wide") and nearly(sample.names, sample.name):
            return None
    if kind.refusal:
        raise VoteError(f"{sample.name}: {kind.about}: {kind.refusal}")
    return tables.fitted(kind, sample)


def known_columns() -> frozenset[str]:
    """Return the names of columns that some kind reads."""
    of_kinds = chain.from_iterable((*kind.marks, *kind.needs) for kind in KINDS.values())
    return frozenset((*chain.from_iterable(TYPES.values()), *tables.COLUMNS, *of_kinds))


def nearly(columns: Sequence[str], name: str) -> str:
    """Return a sentence on the kind that a table resembles and what it lacks for it; empty where it resembles none."""
    sample = Sample(name, Path(name), names=columns)
    lacking = [(kind, kind.lacks(sample)) for kind in KINDS.values()]
    near = min(((kind, names) for kind, names in lacking if names), key=lambda pair: len(pair[1]), default=None)
    if near is None:
        return tables.lacking(sample)
    kind, names = near
    missing = " and ".join(repr(column) for column in names)
    return f"looks like {kind.about}, but has no {missing}"
