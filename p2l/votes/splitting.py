"""Split votes into a train and a validation part: by prompt, or the newest votes.

By prompt, every vote of one prompt is on one side, or the validation loss would reward memory: prompts are ordered by
a seeded 64-bit hash and taken until N votes are reached, as nearly as whole prompts allow. By time, the N newest votes
are the validation part. Memory holds a few numbers a vote.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from p2l.common.cli import counted, listed, progress
from p2l.common.errors import VoteError
from p2l.common.files import check_can_write, write_json
from p2l.votes.schema import IntArray, hash_turns
from p2l.votes.sources import FILE_ENDINGS, file_kind
from p2l.votes.spool import RecordFile
from p2l.votes.store import VoteStore
from p2l.votes.writing import open_writer, write_votes

_CHUNK_VOTES = 1 << 16
_ODD = np.uint64(0x9E3779B97F4A7C15)  # numbers times it are in an order of their own
Floats = np.ndarray[Any, np.dtype[np.float64]]


class Split(NamedTuple):
    """Result of a split."""

    train: int
    val: int
    removed_models: list[str]  # models with too few votes in the train part, whose votes are in neither
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

    `val` votes are for validation, split off by `prompt` (in an order that `seed` gives) or by `time`. A model with
    fewer than `min_votes_per_model` votes in the train part leaves both parts, so that validation only asks about
    models that training saw; repeated until it holds, as a removed model takes votes from others.
    """
    for path in (train_output, val_output):
        file_kind(check_can_write(path))
    if Path(train_output).resolve() == Path(val_output).resolve():
        raise VoteError(f"{train_output}: both parts would be written there; name two files")
    if not 0 < val < len(store):
        raise VoteError(
            f"{store.name}: {counted(val, 'validation vote')} cannot be taken from {counted(len(store), 'vote')}; "
            f"ask for 1 to {len(store) - 1:,}"
        )
    chosen = split_by_prompt(store, val, seed, quiet=quiet) if by == "prompt" else newest(store, val)
    is_val = np.zeros(len(store), dtype=bool)
    is_val[chosen] = True
    pairs = store.labels()[:, :2]
    alive = _models_to_keep(store, pairs, is_val, min_votes_per_model)
    stays = alive[pairs].all(axis=1)
    sides = (stays & ~is_val, stays & is_val)
    with ExitStack() as stack:  # both files appear only when both are whole
        writers = [stack.enter_context(open_writer(path, store.schema)) for path in (train_output, val_output)]
        bar = stack.enter_context(progress(description="write", total=len(store), unit="votes", quiet=quiet))
        for ids, batch in store.batches():
            for write, mask in zip(writers, sides, strict=True):
                write(batch.filter(pa.array(mask[ids])))
            bar.update(len(ids))
    removed = [name for name, is_alive in zip(store.model_list, alive, strict=True) if not is_alive]
    return Split(int(sides[0].sum()), int(sides[1].sum()), removed, int((~stays).sum()))


def hash_prompts(store: VoteStore, seed: int = 0, *, quiet: bool = True) -> IntArray:
    """Return `hash_turns` (N,) of each vote's prompt, on disk; of a lake, a hash of that which knows the seed."""
    if store.is_lake and seed:  # nodes have one hash of each prompt, and the text of some
        return np.asarray((hash_prompts(store, quiet=quiet) ^ np.uint64(seed)) * _ODD)
    if (spread := store.prompt_hashes) is not None:
        return spread
    hashes = RecordFile(np.dtype("<u8"))
    with progress(description="hash prompts", total=len(store), unit="votes", quiet=quiet) as bar:
        for start in range(0, len(store), _CHUNK_VOTES):
            ids = np.arange(start, min(start + _CHUNK_VOTES, len(store)))
            hashes.append(np.array([hash_turns(turns, seed) for turns in store.prompts(ids)], dtype="<u8"))
            bar.update(len(ids))
    return hashes.mapped()


def split_by_prompt(store: VoteStore, val: int, seed: int, *, quiet: bool = True) -> IntArray:
    """Return the ascending ids of the votes of whole prompts, as nearly `val` as they can be; one prompt is left."""
    hashed = hash_prompts(store, seed, quiet=quiet)
    values, sizes = np.unique(hashed, return_counts=True)
    totals = np.cumsum(sizes)[:-1]
    if not len(totals):
        raise VoteError(f"{store.name}: all votes share one prompt; split by time instead")
    return np.flatnonzero(hashed <= values[np.argmin(np.abs(totals - val))])


def newest(store: VoteStore, val: int) -> IntArray:
    """Return the ascending ids of the `val` newest votes; of equal times, the later rows."""
    return np.sort(np.argsort(_times(store, "split"), kind="stable")[-val:])


def _times(store: VoteStore, purpose: str) -> Floats:
    times = store.tstamps()
    if times is None:
        raise VoteError(f"{store.name}: no column 'tstamp' to {purpose} by; columns: {listed(store.columns)}")
    if np.isnan(times).any():
        raise VoteError(f"{store.name}: vote {int(np.isnan(times).argmax()) + 1} has no tstamp to {purpose} by")
    return times


def _models_to_keep(store: VoteStore, pairs: IntArray, is_val: IntArray, least: int) -> IntArray:
    """Return a mask (M,) of the models with at least `least` train votes against models that stay."""
    alive = np.ones(len(store.model_list), dtype=bool)
    while True:
        stays = alive[pairs].all(axis=1)
        train, val = (np.bincount(pairs[stays & side].ravel(), minlength=len(alive)) for side in (~is_val, is_val))
        if not train.any() or not val.any():
            empty = "validation" if train.any() else "train"
            raise VoteError(
                f"{store.name}: no {empty} vote is left; lower the votes needed per model, or split otherwise"
            )
        few = alive & (train < max(least, 1))
        if not few.any():
            return alive
        if least < 1 and (few & (val > 0)).any():
            name = store.model_list[int(np.argmax(few & (val > 0)))]
            raise VoteError(f"{store.name}: {name!r} is only in the validation part; ask for a vote per model or more")
        alive &= ~few


# Cut held-out votes into slices by the time of a vote stream, to evaluate models that are trained on the stream.
#
# The stream is in time order and is trained on in batches. Slice n holds held-out votes of the time of the batches up
# to n, since the slice before, and only those between models that the stream has shown by then. So a checkpoint made
# after n batches is of the same time as slice n.

# Columns that a slice keeps, where the votes have them.
COLUMNS = ("question_id", "tstamp", "prompt", "model_a", "model_b", "winner", "labels")
# Slice number: {"end_tstamp": seconds of its last vote}, which `p2l eval-chrono --val-time` reads.
_TIMES_FILE = "timestamps.json"


@dataclass(frozen=True)
class _VoteSlice:
    """Some held-out votes, by their ids in the store."""

    number: int  # number of batches of the stream before its last vote
    ids: IntArray


def cut_slices(
    stream: VoteStore, held_out: VoteStore, *, batch_size: int, every: int, most: int | None = None
) -> list[_VoteSlice]:
    """Cut held-out votes, in any order, into slices: one for every `every` batches of `batch_size` votes of the stream.

    The stream must be in time order. A slice holds at most `most` votes, evenly spread over its time; None keeps all.
    """
    step = batch_size * every
    times = _times(stream, "slice")
    early = np.diff(times) < 0
    if early.any():
        vote = int(early.argmax()) + 2
        raise VoteError(f"{stream.name}: vote {vote} is older than the one before it; sort the votes by tstamp first")
    if len(times) < step:
        raise VoteError(
            f"{stream.name}: holds {counted(len(times), 'vote')}; the first slice needs {step} (batch size x every)"
        )
    ends = times[step - 1 :: step]  # the last vote of the stream that each slice may know of
    held_times = _times(held_out, "slice")
    order = np.argsort(held_times, kind="stable")
    place = np.searchsorted(ends, held_times[order], side="left")
    # The first slice at the end of which the stream has shown a model; a model that it never shows is in none.
    models, rows = np.unique(stream.labels()[:, :2].ravel(), return_index=True)
    first = {stream.model_list[model]: row // 2 // step for model, row in zip(models, rows.tolist(), strict=True)}
    first_slice = np.array([first.get(name, len(ends)) for name in held_out.model_list])
    slices = []
    for number in range(len(ends)):
        ids = order[place == number]
        ids = ids[(first_slice[held_out.labels(ids)[:, :2]] <= number).all(axis=1)]
        if not len(ids):
            raise VoteError(
                f"{held_out.name}: no vote falls into slice {(number + 1) * every}; give more held-out votes"
            )
        if most is not None and len(ids) > most:
            ids = ids[np.linspace(0, len(ids) - 1, most).round().astype(np.int64)]
        slices.append(_VoteSlice((number + 1) * every, ids))
    return slices


def write_slices(
    held_out: VoteStore, slices: Sequence[_VoteSlice], folder: Path, *, columns: Sequence[str] = ()
) -> list[Path]:
    """Write each slice as `validation-NUMBER.csv`, oldest vote first, and their times as `timestamps.json`.

    A slice keeps `columns` beside `COLUMNS`.
    """
    missing = [name for name in columns if name not in held_out.columns]
    if missing:
        raise VoteError(f"{held_out.name}: no column {missing[0]!r}; columns: {listed(held_out.columns)}")
    schema = pa.schema([held_out.schema.field(name) for name in held_out.columns if name in {*COLUMNS, *columns}])
    width = len(str(slices[-1].number))
    files = [folder / f"validation-{piece.number:0{width}d}.csv" for piece in slices]
    for path in sorted(folder.iterdir()) if folder.is_dir() else []:
        if path not in files and path.name.endswith(FILE_ENDINGS) and re.search(r"\d", path.name):
            raise VoteError(f"{path}: is a slice of another cut; delete it, or choose another --output")
    table = pa.Table.from_batches([batch.select(schema.names) for _, batch in held_out.batches()], schema)
    times = _times(held_out, "slice")
    ends: dict[str, dict[str, float]] = {}
    for piece, file in zip(slices, files, strict=True):
        write_votes(table.take(piece.ids).combine_chunks().to_batches(), schema, file)
        ends[str(piece.number)] = {"end_tstamp": float(times[piece.ids].max())}
    write_json(folder / _TIMES_FILE, ends)
    return files
