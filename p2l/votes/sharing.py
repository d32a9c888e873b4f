"""One spool of votes for all processes of a launch on one machine.

Eight processes that train together need the same votes; read eight times they cost eight times the disk and the time.
The process that first takes a name (an abstract Unix socket, which goes with the process, however it ends) reads the
votes; the others connect to it and are given its open files, which have no name on the disk. Nothing needs to be told
about ranks, and a kill leaves nothing behind: if the reading process goes, another one reads. Where there are no such
sockets each process reads for itself.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from p2l import errors
from p2l.errors import InputError
from p2l.votes.spool import RecordFile, RowFile
from p2l.votes.store import RECORD, VoteFlags, VoteSpool, VoteStore, spool_votes

__all__ = ["open_votes_together"]

_FILES_AT_ONCE = 200  # the system passes at most 253 in one message
_SIZE = struct.Struct("<q")


def open_votes_together(
    source: str,
    *,
    split: str = "train",
    model_list: Sequence[str] | None = None,
    drop_unknown: bool = False,
    from_disk: bool = False,
) -> VoteStore:
    """`open_votes` for a process of a launch: the votes are read once on each machine.

    Raises:
        VoteError: as `open_votes` does, in every process.
    """

    def make() -> VoteSpool:
        return spool_votes(source, split=split, from_disk=from_disk, label_list=model_list)

    address = _address([source, split, from_disk, _state_of(source), model_list])
    return VoteStore(make() if address is None else _spool_together(address, make), model_list, drop_unknown)


def _address(what: Sequence[Any]) -> bytes | None:
    """A name that the processes of one launch on one machine share, and no other; None without company."""
    if int(os.environ.get("WORLD_SIZE", "1")) < 2 or sys.platform != "linux":
        return None
    launch = [os.environ.get(name) for name in ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE")]
    # One launcher on each machine starts all its processes there; after a restart it is another one.
    text = json.dumps([os.getuid(), os.getppid(), str(Path.cwd()), launch, what], default=str)
    return b"\0p2l-votes-" + hashlib.sha256(text.encode()).hexdigest().encode()


def _state_of(source: str) -> list[int] | None:
    try:
        found = Path(source).expanduser().stat()
    except OSError:
        return None
    return [found.st_size, found.st_mtime_ns]


def _spool_together(address: bytes, make: Callable[[], VoteSpool]) -> VoteSpool:
    while True:
        listener = _take(address)
        if listener is not None:
            return _serve(listener, make)
        with socket.socket(socket.AF_UNIX) as reader, contextlib.suppress(ConnectionError, EOFError):
            # Both errors: the process that had the name ended, or does not listen yet.
            reader.connect(address)
            return _received(reader)
        time.sleep(0.01)


def _take(address: bytes) -> socket.socket | None:
    """A socket that listens under this name, or None when another process has it."""
    listener = socket.socket(socket.AF_UNIX)
    try:
        listener.bind(address)
        listener.listen(4096)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            return None
        raise
    return listener


def _serve(listener: socket.socket, make: Callable[[], VoteSpool]) -> VoteSpool:
    try:
        spool = make()
    except BaseException as error:
        if isinstance(error, InputError):
            listener.settimeout(0)
            with contextlib.suppress(BlockingIOError):
                while True:
                    _give(listener.accept()[0], {"error": str(error), "kind": _public_kind(error)}, [])
        listener.close()
        raise
    # Copies, so that the thread can go on giving while this process closes its own.
    files = [os.dup(file.fileno()) for file in (spool.records.file, *spool.rows.files)]
    about = {"name": spool.name, "names": spool.names, "flags": asdict(spool.flags)}
    threading.Thread(target=_give_to_all, args=(listener, about, files), daemon=True).start()
    spool.on_close = lambda: _stop(listener)
    return spool


def _public_kind(error: InputError) -> str:
    return next(kind.__name__ for kind in type(error).__mro__ if kind.__module__ == errors.__name__)


def _give_to_all(listener: socket.socket, about: dict[str, Any], files: Sequence[int]) -> None:
    try:
        while True:
            _give(listener.accept()[0], about, files)
    except OSError:  # it was closed: the votes are needed no more; or it failed, and whoever waits reads for itself
        _stop(listener)
        for file in files:
            os.close(file)


def _give(reader: socket.socket, about: dict[str, Any], files: Sequence[int]) -> None:
    with reader, contextlib.suppress(OSError):  # a reader that is gone needs nothing
        if not _is_ours(reader):
            return
        text = json.dumps({**about, "files": len(files)}).encode()
        reader.sendall(_SIZE.pack(len(text)) + text)
        for start in range(0, len(files), _FILES_AT_ONCE):
            socket.send_fds(reader, [b"f"], files[start : start + _FILES_AT_ONCE])


def _stop(listener: socket.socket) -> None:
    with contextlib.suppress(OSError):
        listener.shutdown(socket.SHUT_RDWR)  # closing alone would leave the thread waiting
    listener.close()


def _received(reader: socket.socket) -> VoteSpool:
    """The spool of the process at the other end, once it has read all votes."""
    if not _is_ours(reader):
        raise InputError("the name for sharing votes is held by another user's process; end that process")
    about = json.loads(_exactly(reader, _SIZE.unpack(_exactly(reader, _SIZE.size))[0]))
    if "error" in about:
        raise getattr(errors, about["kind"])(about["error"])
    descriptors: list[int] = []
    while len(descriptors) < about["files"]:
        mark, found, flags, _ = socket.recv_fds(reader, 1, _FILES_AT_ONCE)
        descriptors += found
        if not mark or flags & socket.MSG_CTRUNC:
            for descriptor in descriptors:
                os.close(descriptor)
            if mark:
                raise InputError(f"votes take {about['files']} open files, more than are allowed; raise `ulimit -n`")
            raise EOFError
    records, *rows = [os.fdopen(descriptor, "rb") for descriptor in descriptors]
    kept = VoteFlags(**about["flags"])
    return VoteSpool(about["name"], RowFile.of(rows), RecordFile(RECORD, records), about["names"], kept)


def _exactly(reader: socket.socket, size: int) -> bytes:
    parts = bytearray()
    while len(parts) < size:
        part = reader.recv(min(size - len(parts), 1 << 20))
        if not part:
            raise EOFError
        parts += part
    return bytes(parts)


def _is_ours(other: socket.socket) -> bool:
    """Whether the process at the other end belongs to this user: anyone may take or ask for such a name."""
    credentials = other.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return bool(struct.unpack("3i", credentials)[1] == os.getuid())
