"""Validation slices: files of votes whose names contain a number, read once for all checkpoints.

Shapes: N votes of a slice.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from p2l.errors import InputError
from p2l.votes import VoteStore, open_votes
from p2l.votes.codes import IntArray
from p2l.votes.sources import FILE_ENDINGS
from p2l.votes.splitting import hash_prompts

__all__ = ["Slice", "find_slices", "open_slices"]

_BLOCK = 1 << 20


@dataclass(frozen=True)
class Slice:
    """One slice, its votes on disk."""

    number: int
    file: Path
    votes: VoteStore
    fingerprint: str
    """24 hexadecimal digits of the file's bytes and of the list that its labels refer to."""
    prompts: IntArray
    """(N,) 64-bit hash of each vote's prompt."""


def find_slices(folder: str) -> dict[int, Path]:
    """The files of votes in a folder by the last number in their names, in its order.

    Raises:
        InputError: no such folder, no file with a number, or two files with one number.
    """
    root = Path(folder).expanduser()
    if not root.is_dir():
        raise InputError(f"{root}: no such folder; --val-dir holds validation slices such as validation-512.csv")
    found: dict[int, Path] = {}
    for file in sorted(root.iterdir()):
        numbers = re.findall(r"\d+", _stem(file.name)) if file.name.endswith(FILE_ENDINGS) else []
        if not numbers or file.name.startswith("."):
            continue
        number = int(numbers[-1])
        if number in found:
            raise InputError(f"{file}: has the number {number} of {found[number].name}; each slice needs its own")
        found[number] = file
    if not found:
        raise InputError(f"{root}: holds no slices; their names end with {', '.join(FILE_ENDINGS)} after a number")
    return dict(sorted(found.items()))


def _stem(name: str) -> str:
    return next(name.removesuffix(ending) for ending in sorted(FILE_ENDINGS, reverse=True) if name.endswith(ending))


@contextlib.contextmanager
def open_slices(files: dict[int, Path], label_list: str | None = None) -> Iterator[dict[int, Slice]]:
    """Read the slices, each checked from end to end; the space that they take is free again afterwards.

    Args:
        files: by number.
        label_list: a JSON list of names that a `labels` column refers to, for slices without names.

    Raises:
        InputError: a row is no vote, or the list cannot be read.
    """
    names = _read_names(label_list)
    with contextlib.ExitStack() as stack:
        yield {number: _open(number, file, names, stack) for number, file in files.items()}


def _open(number: int, file: Path, names: list[str] | None, stack: contextlib.ExitStack) -> Slice:
    votes = stack.enter_context(open_votes(file, label_list=names))
    return Slice(number, file, votes, _fingerprint(file, names), np.asarray(hash_prompts(votes)))


def _fingerprint(file: Path, names: Sequence[str] | None) -> str:
    digest = hashlib.blake2b(json.dumps(names).encode() if names else b"", digest_size=12)
    with file.open("rb") as stream:
        while block := stream.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()


def _read_names(path: str | None) -> list[str] | None:
    if path is None:
        return None
    try:
        names = json.loads(Path(path).expanduser().read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: the label list cannot be read: {error}") from error
    if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
        raise InputError(f"{path}: a label list is a JSON list of model names")
    return names
