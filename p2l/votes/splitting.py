"""Split votes into a train and a validation part: by prompt, or the newest votes.

By prompt, every vote of one prompt is on one side, or the validation loss would reward memory: prompts are ordered by
a seeded 64-bit hash and taken until N votes are reached, as nearly as whole prompts allow. By time, the N newest votes
are the validation part. Memory holds O(N) numbers of the validation part and a batch of votes.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from p2l.command import check_can_write, progress
from p2l.errors import VoteError
from p2l.votes.codes import IntArray
from p2l.votes.schema import hash_turns
from p2l.votes.sources import file_kind
from p2l.votes.spool import RecordFile
from p2l.votes.store import VoteStore
from p2l.votes.writer import open_writer

__all__ = ["Split", "hash_prompts", "newest", "split_by_prompt", "split_votes"]

_CHUNK = 1 << 20
_BINS = 1 << 16


class Split(NamedTuple):
    """What a split did."""

    train: int
    val: int
    removed_models: list[str]
    """Models with too few votes in the train part, whose votes are in neither."""
    removed_votes: int


def split_votes(
    store: VoteStore,
    *,
    by: str,
    val: int,
    train_output: str | Path,
    val_output: str | Path,
    min_votes_per_model: int = 1,
    seed: int = 42,
    quiet: bool = True,
) -> Split:
    """Write two files of votes, in the order of the source; their endings name their formats.

    Args:
        store: the votes.
        by: `prompt` or `time`.
        val: votes for validation.
        train_output, val_output: where to write.
        min_votes_per_model: a model with fewer votes in the train part leaves both parts, so that validation only asks
            about models that training saw; repeated until it holds, as a removed model takes votes from others.
        seed: of the order of prompts.
        quiet: no progress bar.

    Raises:
        VoteError: there are not that many votes, a part is left empty, or votes have no prompt or time to split by.
    """
    for path in (train_output, val_output):
        file_kind(check_can_write(path))
    if Path(train_output).resolve() == Path(val_output).resolve():
        raise VoteError(f"{train_output}: both parts would be written there; name two files")
    if not 0 < val < len(store):
        raise VoteError(f"{store.name}: {val} validation votes cannot be taken from {len(store)}; ask for fewer")
    chosen = split_by_prompt(store, val, seed, quiet=quiet) if by == "prompt" else newest(store, val)
    alive = _models_to_keep(store, chosen, min_votes_per_model)
    train, validation = _write(store, chosen, alive, train_output, val_output, quiet=quiet)
    removed = [name for name, stays in zip(store.model_list, alive, strict=True) if not stays]
    return Split(train, validation, removed, len(store) - train - validation)


def hash_prompts(store: VoteStore, seed: int = 0, *, quiet: bool = True) -> IntArray:
    """(N,) `hash_turns` of each vote's prompt, on disk."""
    hashes = RecordFile(np.dtype("<u8"))
    with progress(description="hash prompts", total=len(store), unit="votes", quiet=quiet) as bar:
        for ids in _chunks(len(store), 1 << 16):
            hashes.append(np.array([hash_turns(turns, seed) for turns in store.prompts(ids)], dtype="<u8"))
            bar.update(len(ids))
    return hashes.mapped()


def split_by_prompt(store: VoteStore, val: int, seed: int, *, quiet: bool = True) -> IntArray:
    """Ascending ids of the votes of whole prompts, about `val` of them.

    Raises:
        VoteError: there is but one prompt.
    """
    hashed = hash_prompts(store, seed, quiet=quiet)
    bound = _bound(hashed, val)
    if bound is None:
        raise VoteError(f"{store.name}: all votes share one prompt; split by time instead")
    return np.concatenate([np.flatnonzero(hashed[ids] <= np.uint64(bound)) + ids[0] for ids in _chunks(len(hashed))])


def _bound(hashed: IntArray, val: int) -> int | None:
    """The hash up to which prompts hold as nearly `val` votes as whole prompts allow; one prompt is left at least.

    None when there is but one prompt.
    """
    shift = np.uint64(48)
    counts = sum(np.bincount(hashed[ids] >> shift, minlength=_BINS) for ids in _chunks(len(hashed)))
    # The bin in which `val` is reached holds the prompts on either side of that point, so no later one can be nearer.
    last = np.searchsorted(np.cumsum(counts), val)
    low = np.concatenate([part[(part >> shift) <= last] for part in (hashed[ids] for ids in _chunks(len(hashed)))])
    values, sizes = np.unique(low, return_counts=True)
    totals = np.cumsum(sizes)
    totals = totals[totals < len(hashed)]
    return int(values[np.argmin(np.abs(totals - val))]) if len(totals) else None


def newest(store: VoteStore, val: int) -> IntArray:
    """Ascending ids of the `val` newest votes; of equal times, the later rows.

    Raises:
        VoteError: there is no `tstamp` column, or a vote has no time.
    """
    best_times, best_ids = np.empty(0), np.empty(0, dtype=np.int64)
    for ids in _chunks(len(store)):
        times = store.tstamps(ids)
        if times is None:
            raise VoteError(f"{store.name}: no column 'tstamp' to split by; columns: {', '.join(store.columns)}")
        if np.isnan(times).any():
            raise VoteError(f"{store.name}: vote {ids[np.isnan(times).argmax()] + 1} has no tstamp to split by")
        best_times, best_ids = np.concatenate([best_times, times]), np.concatenate([best_ids, ids])
        order = np.lexsort((best_ids, best_times))[-val:]
        best_times, best_ids = best_times[order], best_ids[order]
    return np.sort(best_ids)


def _chunks(count: int, size: int = _CHUNK) -> Iterator[IntArray]:
    return (np.arange(start, min(start + size, count)) for start in range(0, count, size))


def _models_to_keep(store: VoteStore, chosen: IntArray, least: int) -> IntArray:
    """(M,) bool: which models have at least `least` train votes against models that stay.

    Raises:
        VoteError: a part would be empty; with `least` 0, a validation model is not in the train part.
    """
    alive = np.ones(len(store.model_list), dtype=bool)
    while True:
        train, val = _counts(store, chosen, alive)
        if not train.any() or not val.any():
            part = "validation" if train.any() else "train"
            raise VoteError(
                f"{store.name}: no {part} vote is left; lower the votes needed per model, or split otherwise"
            )
        few = alive & (train < max(least, 1))
        if not few.any():
            return alive
        if least < 1 and (few & (val > 0)).any():
            name = store.model_list[int(np.argmax(few & (val > 0)))]
            raise VoteError(f"{store.name}: {name!r} is only in the validation part; ask for a vote per model or more")
        alive &= ~few


def _counts(store: VoteStore, chosen: IntArray, alive: IntArray) -> tuple[IntArray, IntArray]:
    """Votes of each model in the train and in the validation part, (M,) each, between models that are alive."""
    counts = np.zeros((2, len(alive)), dtype=np.int64)
    for ids in _chunks(len(store)):
        pairs = store.labels(ids)[:, :2]
        stays, is_val = alive[pairs].all(axis=1), _among(ids, chosen)
        for side, mask in enumerate((stays & ~is_val, stays & is_val)):
            counts[side] += np.bincount(pairs[mask].ravel(), minlength=len(alive))
    return counts[0], counts[1]


def _among(ids: IntArray, chosen: IntArray) -> IntArray:
    """Which of consecutive ids are among the ascending `chosen`."""
    mask = np.zeros(len(ids), dtype=bool)
    first, last = np.searchsorted(chosen, [ids[0], ids[-1] + 1])
    mask[chosen[first:last] - ids[0]] = True
    return mask


def _write(
    store: VoteStore,
    chosen: IntArray,
    alive: IntArray,
    train_output: str | Path,
    val_output: str | Path,
    *,
    quiet: bool,
) -> tuple[int, int]:
    """Write both parts; both files appear only when both are whole."""
    counts = [0, 0]
    with ExitStack() as stack:
        writers = [stack.enter_context(open_writer(path, store.schema)) for path in (train_output, val_output)]
        bar = stack.enter_context(progress(description="write", total=len(store), unit="votes", quiet=quiet))
        for ids, batch in store.batches():
            stays, is_val = alive[store.labels(ids)[:, :2]].all(axis=1), _among(ids, chosen)
            for side, mask in enumerate((stays & ~is_val, stays & is_val)):
                writers[side](batch.filter(pa.array(mask)))
                counts[side] += int(mask.sum())
            bar.update(len(ids))
    return counts[0], counts[1]
