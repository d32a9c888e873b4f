"""Which questions are held out: by a seeded hash of the prompt, so that equal prompts stay on one side.

A prompt's side depends on its text and the seed alone: two tables with prompts in common are split alike, and a P2L
that was trained elsewhere on the training side of a table may be measured on the other one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from p2l.errors import InputError

__all__ = ["places", "splits"]

Rows: TypeAlias = npt.NDArray[np.intp]


def places(prompts: Sequence[str], seed: int) -> npt.NDArray[np.float64]:
    """A number from 0 to 1 for each prompt, equal for equal texts."""
    found = [
        int.from_bytes(hashlib.blake2b(f"{seed} {prompt}".encode("utf-8", "replace"), digest_size=8).digest(), "big")
        for prompt in prompts
    ]
    return np.array(found, dtype=np.float64) / 2.0**64


def splits(prompts: Sequence[str], *, share: float, folds: int, seed: int) -> Iterator[tuple[Rows, Rows]]:
    """Rows of the training and of the test side, for each fold; with one fold `share` of the prompts are held out.

    Raises:
        InputError: more folds than distinct prompts, or a side without prompts.
    """
    if folds > len(set(prompts)):
        raise InputError(f"--folds {folds} is more than the {len(set(prompts))} distinct prompts; lower it")
    place = places(prompts, seed)
    for fold in range(folds):
        held = place < share if folds == 1 else (place * folds).astype(np.int64) == fold
        if held.all() or not held.any():
            side = "training" if held.all() else "test"
            raise InputError(f"no prompt of {len(prompts)} is on the {side} side; change --share, --folds or --seed")
        yield np.flatnonzero(~held), np.flatnonzero(held)
