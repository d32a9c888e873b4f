"""Random access to more votes than memory holds.

`open_votes` streams a source once into unnamed temporary files (see `p2l.votes.spool`): the rows as Arrow
batches, and a record of 25 bytes a vote with model codes, winner, weight and time. A step of 512 votes in any order
then reads what it needs. Labels are looked up in a table of M entries on the way out: translating them to another model
list costs nothing.
"""

from __future__ import annotations

import contextlib
import copy
import errno
import hashlib
import json
import os
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.lib.recfunctions import append_fields, repack_fields
from numpy.typing import NDArray

from p2l.common import errors
from p2l.common.cli import listed, print_note, progress
from p2l.common.errors import InputError, VoteError
from p2l.votes.door import names_read
from p2l.votes.lake import is_lake
from p2l.votes.reading import VoteBatch, model_codes, open_vote_source, read_votes
from p2l.votes.rows import Source
from p2l.votes.schema import WINNERS, IntArray, hash_turns, name_lookup, numbers
from p2l.votes.spool import RecordFile, RowFile, conform

Ids = Sequence[int] | IntArray | None
RECORD = np.dtype([("a", "<i4"), ("b", "<i4"), ("winner", "i1"), ("weight", "<f8"), ("tstamp", "<f8")])
# Rows of a lake may be spread over nodes; then each record has `hash_turns` of the prompt too.
_HASHED_RECORD = np.dtype([*RECORD.descr, ("prompt", "<u8")])
_CHUNK_VOTES = 1 << 20  # in a pass over the records


class _Shard(NamedTuple):
    """The share of the prompts that a node holds, of a launch on several: by the remainder of their hash."""

    part: int
    parts: int

    @classmethod
    def of_node(cls) -> _Shard | None:
        """Return the part of this node by the variables of torchrun, or DeepSpeed's launcher; None for one node."""
        for node, nodes in (("GROUP_RANK", "GROUP_WORLD_SIZE"), ("CROSS_RANK", "CROSS_SIZE")):
            if int(os.environ.get(nodes, "1")) > 1:
                return cls(int(os.environ[node]), int(os.environ[nodes]))
        return None

    def holds(self, hashes: Any) -> NDArray[np.bool_]:
        """Return a mask (n,) of the prompts, by their hashes, that belong to this share."""
        return np.asarray(hashes % np.uint64(self.parts) == self.part)


def open_votes(
    source: Any,
    *,
    split: str = "train",
    model_list: Sequence[str] | None = None,
    drop_unknown: bool = False,
    from_disk: bool = False,
    need_prompt: bool = True,
    label_list: Sequence[str] | None = None,
    drop_bad: bool = False,
    quiet: bool = True,
) -> VoteStore:
    """Read all votes of a source into a `VoteStore`; memory stays bounded, disk space is that of the votes.

    Raise VoteError where a row is not a vote, a model is unknown, or nothing is left.

    Args:
        source, split, from_disk, need_prompt, drop_bad: as in `read_votes`.
        model_list: names that labels shall refer to, in this order; None takes the sorted names of the votes.
        drop_unknown: leave out votes with a model that `model_list` lacks, and count them, rather than refuse them.
        label_list: names that a `labels` column refers to (default: `model_list`).
        quiet: no progress bar.
    """
    opened = open_vote_source(source, split=split, from_disk=from_disk)
    names = label_list or model_list
    spool = _spool(opened, quiet=quiet, need_prompt=need_prompt, label_list=names, drop_bad=drop_bad)
    return VoteStore(spool, model_list, drop_unknown)


def _spool(opened: Source, *, quiet: bool = True, shard: _Shard | None = None, **reading: Any) -> _VoteSpool:
    """Read all votes of a source into temporary files; `reading` are options of `read_votes`."""
    spool = _VoteSpool(opened.name, RowFile(), RecordFile(RECORD if shard is None else _HASHED_RECORD), shard=shard)
    codes: dict[str, int] = {}
    try:
        votes = read_votes(opened, **reading)
        with progress(description=f"read {opened.name}", total=opened.rows, unit="votes", quiet=quiet) as bar:
            for batch in votes:
                spool.append(batch, codes)
                bar.update(len(batch))
        spool.models.extend(codes)
        if opened.spellings:
            print_note(f"{opened.name}: {names_read(opened)}")
    except BaseException:
        spool.close()
        raise
    return spool


@dataclass
class _VoteSpool:
    """All votes of a source on disk, in files without a name."""

    name: str
    rows: RowFile
    records: RecordFile
    models: list[str] = field(default_factory=list)  # in the order of their codes
    weights: bool = False
    tstamps: bool = False
    prompt_is_text: list[bool] = field(default_factory=list)  # of each batch
    dropped_bad: int = 0
    shard: _Shard | None = None  # of the prompts with rows here; None: all. There is a record of every vote
    is_lake: bool = False
    on_close: Callable[[], None] = lambda: None  # called by `close`, before the files are closed

    def __del__(self) -> None:
        self.close()

    def append(self, batch: VoteBatch, codes: dict[str, int]) -> None:
        """Write a batch; `codes` grows as models come."""
        rows = batch.batch
        names = batch.batch.schema.names
        record = np.empty(len(batch), dtype=RECORD)
        record["a"] = model_codes(rows.column("model_a"), codes)
        record["b"] = model_codes(rows.column("model_b"), codes)
        record["winner"] = pc.index_in(rows.column("winner"), value_set=pa.array(WINNERS)).to_numpy()
        record["weight"] = numbers(rows.column("weight")) if "weight" in names else 1.0
        record["tstamp"] = numbers(rows.column("tstamp")) if "tstamp" in names else np.nan
        if self.shard is not None:
            hashes = np.array([hash_turns(turns) for turns in rows.column("prompt").to_pylist()], dtype="<u8")
            record = append_fields(record, "prompt", hashes, usemask=False)
            rows = rows.filter(pa.array(self.shard.holds(hashes)))
        self.rows.append(rows)
        self.records.append(record)
        self.weights |= "weight" in names
        self.tstamps |= "tstamp" in names
        self.prompt_is_text.append(batch.prompt_is_text)
        self.dropped_bad += batch.dropped

    def close(self) -> None:
        """Close the files; their space is freed when no array is in use."""
        self.on_close()
        self.rows.close()
        self.records.close()


class VoteStore:
    """Votes by row id, 0 to len - 1, in the order of the source; ids come in any order, None means all.

    `model_list` names the models that labels refer to; `dropped` counts the votes left out for an unknown model,
    `dropped_bad` the rows that were not votes.
    Use it in a `with` block, or `close` it: its temporary files go then, and at exit.
    """

    grows = False  # whether more votes may come, as they do in a stream that is followed

    def __init__(self, spool: _VoteSpool, model_list: Sequence[str] | None, drop_unknown: bool) -> None:
        self.name = spool.name
        self.has_weights = spool.weights
        self.dropped_bad = spool.dropped_bad
        self.is_lake = spool.is_lake
        self.model_list = sorted(spool.models) if model_list is None else list(model_list)
        self._spool = spool
        self._rows = spool.rows
        self._turns: dict[int, tuple[IntArray, Any]] = {}
        try:
            self._record = spool.records.mapped()
            self._lookup = name_lookup(spool.models, self.model_list)
            self._kept = self._choose(drop_unknown)
            shard = spool.shard
            self._here = None if shard is None else self._rows_where(lambda votes: shard.holds(votes["prompt"]))
        except BaseException:
            spool.close()
            raise
        self.dropped = 0 if self._kept is None else len(self._record) - len(self._kept)

    def _choose(self, drop_unknown: bool) -> IntArray | None:
        """Return the rows with both models in the list, or None when those are all."""
        names = self._spool.models
        unknown = [name for name, code in zip(names, self._lookup, strict=True) if code < 0]
        if not unknown:
            return None
        if not drop_unknown:
            first = ", ".join(repr(name) for name in unknown[:5]) + (", ..." if len(unknown) > 5 else "")
            raise VoteError(
                f"{self.name}: {len(unknown)} of its {len(names)} models are not in the model list "
                f"of {len(self.model_list)}: {first}; drop such votes (drop_unknown) or train on them"
            )
        rows = self._rows_where(lambda votes: (self._lookup[votes["a"]] >= 0) & (self._lookup[votes["b"]] >= 0))
        if not len(rows):
            raise VoteError(f"{self.name}: no vote is left: none is between two models of the list")
        return rows

    def _rows_where(self, is_chosen: Callable[[Any], NDArray[np.bool_]]) -> IntArray:
        """Return the rows with records that `is_chosen` selects, mapped from a file."""
        chosen = RecordFile(np.dtype("<i8"))
        for start in range(0, len(self._record), _CHUNK_VOTES):
            chosen.append(np.flatnonzero(is_chosen(self._record[start : start + _CHUNK_VOTES])) + start)
        rows = chosen.mapped()
        chosen.close()
        return rows

    def __len__(self) -> int:
        return len(self._record) if self._kept is None else len(self._kept)

    def wait_for(self, count: int) -> int:
        """Return min(count, votes there), at once: as a stream of online training these are votes that all came."""
        return min(count, len(self))

    def __enter__(self) -> VoteStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Free the disk space; the store cannot be read afterwards."""
        self._turns.clear()
        self._record = np.empty(0, dtype=RECORD)
        self._kept = self._here = None
        self._spool.close()

    def _source_rows(self, ids: Ids) -> IntArray:
        rows = np.arange(len(self)) if ids is None else np.asarray(ids, dtype=np.int64)
        if len(rows) and (rows.min() < 0 or rows.max() >= len(self)):
            raise IndexError(f"vote ids must lie in 0 .. {len(self) - 1}")
        return rows if self._kept is None else self._kept[rows]

    def held(self, ids: Ids = None) -> NDArray[np.bool_] | None:
        """Return a mask of the votes with their row on this node; None where all have it here."""
        if self._spool.shard is None:
            return None
        return self._spool.shard.holds(self._record["prompt"][self._source_rows(ids)])

    @property
    def prompt_hashes(self) -> NDArray[np.uint64] | None:
        """`hash_turns` (N,) of each vote's prompt, where they were kept; None where all prompts are here."""
        return None if self._spool.shard is None else np.array(self._record["prompt"][self._source_rows(None)])

    def _places(self, ids: Ids) -> IntArray:
        """Return the places of the rows of votes among the rows of this node."""
        rows = self._source_rows(ids)
        if self._here is None:
            return rows
        held = self.held(ids)
        if held is None or not held.all():
            raise LookupError("rows of these votes are on another node")
        return np.searchsorted(self._here, rows)

    def prompts(self, ids: Ids = None) -> list[list[str]]:
        """Return the user's turns of each vote."""
        prompts = []
        for place in self._places(ids).tolist():
            number, position = self._rows.locate(place)
            if number not in self._turns:
                column = self._rows.batch(number).column("prompt")
                self._turns[number] = (column.offsets.to_numpy(), column.values)
            offsets, texts = self._turns[number]
            prompts.append([texts[turn].as_py() for turn in range(offsets[position], offsets[position + 1])])
        return prompts

    def labels(self, ids: Ids = None) -> IntArray:
        """Return `[winner, loser, tie]` (n, 3) int32 in `model_list`; tie 1 tie, 2 both bad, then model_a first."""
        votes = self._record[self._source_rows(ids)]
        b_won = votes["winner"] == 1
        labels = np.empty((len(votes), 3), dtype=np.int32)
        labels[:, 0] = self._lookup[np.where(b_won, votes["b"], votes["a"])]
        labels[:, 1] = self._lookup[np.where(b_won, votes["a"], votes["b"])]
        labels[:, 2] = np.maximum(votes["winner"] - 1, 0)
        return labels

    def pairs(self, ids: Ids = None) -> IntArray:
        """Return the positions (n, 2) int32 of model_a and model_b in `model_list`."""
        votes = self._record[self._source_rows(ids)]
        return np.stack([self._lookup[votes["a"]], self._lookup[votes["b"]]], axis=1)

    def relist(self, model_list: Sequence[str]) -> None:
        """Let labels refer to another list from now on; it must name every model of the votes."""
        lookup = name_lookup(self._spool.models, model_list)
        if self._kept is None and (lookup < 0).any():
            raise ValueError("the new model list lacks a model of the votes")
        self.model_list, self._lookup = list(model_list), lookup

    def among(self, model_list: Sequence[str]) -> VoteStore | None:
        """Return the votes between models of this list, over the same files; None when there are none."""
        subset = copy.copy(self)
        subset.model_list, subset._lookup = list(model_list), name_lookup(self._spool.models, model_list)
        try:
            subset._kept = subset._choose(drop_unknown=True)
        except VoteError:
            return None
        subset.dropped = len(self._record) - len(subset)
        return subset

    def subset(self, ids: Ids) -> VoteStore:
        """Return some votes, in this order, as a store over the same files."""
        subset = copy.copy(self)
        subset._kept = self._source_rows(ids)
        vars(subset).pop("fingerprint", None)
        return subset

    def weights(self, ids: Ids = None) -> np.ndarray[Any, np.dtype[np.float64]]:
        """Return weights (n,) float64; ones where the source has none."""
        return np.ascontiguousarray(self._record["weight"][self._source_rows(ids)])

    def tstamps(self, ids: Ids = None) -> np.ndarray[Any, np.dtype[np.float64]] | None:
        """Return seconds (n,) float64, NaN where a vote has none; None when the source has no such column."""
        if not self._spool.tstamps:
            return None
        return np.ascontiguousarray(self._record["tstamp"][self._source_rows(ids)])

    @cached_property
    def fingerprint(self) -> str:
        """A hash of names, winners, weights and times of all votes, and of 1,000 prompts."""
        digest = hashlib.blake2b(json.dumps([len(self), self._spool.models]).encode(), digest_size=16)
        names = list(RECORD.names or ())
        for start in range(0, len(self._record), _CHUNK_VOTES):
            records = self._record[start : start + _CHUNK_VOTES]
            # On one node and on several the same: the hashes of prompts are left out.
            digest.update((records if self._here is None else repack_fields(records[names])).tobytes())
        sample = np.unique(np.linspace(0, len(self) - 1, 1000).astype(np.int64))
        prompts: list[Any]
        if self._here is not None:
            prompts = self._record["prompt"][self._source_rows(sample)].tolist()
        else:
            # Of a lake their hashes, the same on one node and on several.
            prompts = self.prompts(sample)
            prompts = [hash_turns(turns) for turns in prompts] if self.is_lake else prompts
        digest.update(json.dumps(prompts).encode())
        return digest.hexdigest()

    @property
    def is_time_sorted(self) -> bool:
        """Whether every vote has a time, none before the one ahead of it."""
        times = self.tstamps()
        return times is not None and not np.isnan(times).any() and bool((np.diff(times) >= 0).all())

    def rows(self, ids: Ids = None) -> list[dict[str, Any]]:
        """Return all columns of each vote as the source has them; a prompt that is text there is text here."""
        places = [self._rows.locate(place) for place in self._places(ids).tolist()]
        positions_in: dict[int, list[int]] = {}
        for number, position in places:
            positions_in.setdefault(number, []).append(position)
        rows: dict[tuple[int, int], dict[str, Any]] = {}
        for number, positions in positions_in.items():
            # Rows of one batch together: each row alone takes five times as long.
            for position, row in zip(positions, self._rows.batch(number).take(positions).to_pylist(), strict=True):
                if self._spool.prompt_is_text[number] and row.get("prompt") is not None and len(row["prompt"]) == 1:
                    [row["prompt"]] = row["prompt"]
                rows[number, position] = row
        return [dict(rows[place]) for place in places]

    @cached_property
    def schema(self) -> Any:
        """pyarrow.Schema that all votes fit."""
        return self._rows.schema()

    def batches(self) -> Iterator[tuple[IntArray, Any]]:
        """Yield all votes as (ids, pyarrow.RecordBatch) in the order and form of the source, mapped from disk."""
        if self._here is not None:
            raise LookupError("rows of these votes are on other nodes")
        order = None if self._kept is None else np.argsort(self._kept, kind="stable")
        row = first = 0
        for batch in self._rows.batches():
            start, row = row, row + len(batch)
            if self._kept is None or order is None:
                yield np.arange(start, row), batch
                continue
            last = int(np.searchsorted(self._kept, row, sorter=order))
            ids = order[first:last]
            yield ids, batch.take(self._kept[ids] - start)
            first = last

    def take(self, ids: Ids) -> Any:
        """Return some votes, in any order, as a pyarrow.RecordBatch in the form of the schema."""
        return self._rows.take(self._places(ids), self.schema)

    @property
    def columns(self) -> list[str]:
        """Names of the columns that `rows` and `column` give."""
        return list(self.schema.names)

    def column(self, name: str) -> Any:
        """Return one column of all votes as a NumPy array, in memory."""
        if name not in self.columns:
            raise VoteError(f"{self.name}: no column {name!r}; columns: {listed(self.columns)}")
        if self._here is not None:
            raise LookupError("rows of these votes are on other nodes")
        schema = pa.schema([self.schema.field(name)])
        parts = [conform(batch, schema) for batch in self._rows.batches()]
        values = pa.Table.from_batches(parts, schema).column(0).to_numpy()
        return values if self._kept is None else values[self._kept]


# One spool of votes for all processes of a launch on one machine.
#
# Eight processes that train together need the same votes; read eight times they cost eight times the disk and the time.
# The process that first takes a name (an abstract Unix socket, which goes with the process, however it ends) reads the
# votes; the others connect to it and receive its two open files, which have no name on the disk. If the reading process
# is killed, another one reads. Where there are no such sockets each process reads for itself.

_SHARED = ("name", "models", "weights", "tstamps", "prompt_is_text", "dropped_bad", "shard", "is_lake")


def open_votes_together(
    source: str,
    *,
    model_list: Sequence[str] | None = None,
    drop_unknown: bool = False,
    from_disk: bool = False,
    spread: bool = False,
) -> VoteStore:
    """Open votes in a process of a launch: they are read once on each machine, and every process has the errors.

    With `spread`, the rows of a lake are spread over the nodes by prompt: none holds all, and each has all records.
    """
    of_lake = is_lake(source)
    shard = _Shard.of_node() if spread and of_lake else None

    def read() -> _VoteSpool:
        spool = _spool(open_vote_source(source, from_disk=from_disk), label_list=model_list, shard=shard)
        spool.is_lake = of_lake
        return spool

    address = _address(source, [from_disk, model_list, shard])
    return VoteStore(read() if address is None else _spool_together(address, read), model_list, drop_unknown)


def _address(source: str, options: Sequence[Any]) -> bytes | None:
    """Return a name that only the processes of one launch on one machine share; None without company."""
    if int(os.environ.get("WORLD_SIZE", "1")) < 2 or sys.platform != "linux":
        return None
    state: Sequence[int] = ()
    with contextlib.suppress(OSError):
        file = Path(source).expanduser().stat()
        state = (file.st_size, file.st_mtime_ns)
    launch = [os.environ.get(name) for name in ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE")]
    # One launcher on each machine starts all its processes there; after a restart it is another one.
    parts = [os.getuid(), os.getppid(), str(Path.cwd()), launch, source, state, *options]
    return b"\0p2l-votes-" + hashlib.sha256(json.dumps(parts, default=str).encode()).hexdigest().encode()


def _spool_together(address: bytes, read: Callable[[], _VoteSpool]) -> _VoteSpool:
    while True:
        listener = socket.socket(socket.AF_UNIX)
        try:
            listener.bind(address)
            listener.listen(4096)
            return _serve(listener, read)
        except OSError as error:
            listener.close()
            if error.errno != errno.EADDRINUSE:
                raise
        with socket.socket(socket.AF_UNIX) as reader, contextlib.suppress(ConnectionError, EOFError):
            # Both errors: the process that had the name ended, or does not listen yet.
            reader.connect(address)
            return _received(reader)
        time.sleep(0.01)


def _serve(listener: socket.socket, read: Callable[[], _VoteSpool]) -> _VoteSpool:
    """Read the votes, then give them to every process that asks, until they are closed."""
    try:
        spool = read()
    except BaseException as error:
        if isinstance(error, InputError):
            kind = next(kind.__name__ for kind in type(error).__mro__ if kind.__module__ == errors.__name__)
            listener.settimeout(0)  # those that wait get the error; whoever comes later reads for itself
            with contextlib.suppress(BlockingIOError):
                while True:
                    _give(listener.accept()[0], {"error": str(error), "kind": kind}, [])
        listener.close()
        raise
    about = {name: getattr(spool, name) for name in _SHARED}
    about |= {"offsets": spool.rows.offsets, "starts": spool.rows.starts}
    # Copies, so that the thread can go on giving while this process closes its own.
    files = [os.dup(file.fileno()) for file in (spool.rows.file, spool.records.file)]

    def give_to_all() -> None:
        try:
            while True:
                _give(listener.accept()[0], about, files)
        except OSError:  # the votes are no longer needed, or it failed: then each waiting process reads for itself
            _stop(listener)
            for file in files:
                os.close(file)

    threading.Thread(target=give_to_all, daemon=True).start()
    spool.on_close = partial(_stop, listener)
    return spool


def _stop(listener: socket.socket) -> None:
    with contextlib.suppress(OSError):
        listener.shutdown(socket.SHUT_RDWR)  # closing alone would leave the thread waiting
    listener.close()


def _give(reader: socket.socket, about: dict[str, Any], files: Sequence[int]) -> None:
    with reader, contextlib.suppress(OSError):  # a reader that is gone needs nothing
        if _is_ours(reader):
            socket.send_fds(reader, [b"f"], files)
            reader.sendall(json.dumps(about).encode())


def _received(reader: socket.socket) -> _VoteSpool:
    """Receive the spool of the process at the other end, once it has read all votes."""
    if not _is_ours(reader):
        raise InputError("the name for sharing votes is held by another user's process; end that process")
    _, descriptors, flags, _ = socket.recv_fds(reader, 1, 2)
    with contextlib.ExitStack() as stack:
        files = [stack.enter_context(os.fdopen(descriptor, "rb")) for descriptor in descriptors]
        if flags & socket.MSG_CTRUNC:
            raise InputError("votes take 2 open files, more than are allowed; raise `ulimit -n`")
        with reader.makefile("rb") as stream:
            text = stream.read()
        try:
            about = json.loads(text)
        except ValueError as error:  # the other process ended before it had sent everything
            raise EOFError from error
        if "error" in about:
            raise getattr(errors, about["kind"])(about["error"])
        stack.pop_all()
    rows = RowFile(files[0], about.pop("offsets"), about.pop("starts"))
    shard = about.pop("shard")
    records = RecordFile(RECORD if shard is None else _HASHED_RECORD, files[1])
    return _VoteSpool(rows=rows, records=records, shard=None if shard is None else _Shard(*shard), **about)


def _is_ours(peer: socket.socket) -> bool:
    """Return whether the process at the other end belongs to this user: anyone may take or ask for such a name."""
    credentials = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return bool(struct.unpack("3i", credentials)[1] == os.getuid())
