"""Messages between the workers of one machine: datagrams between Unix sockets in their control folder.

Each worker has a socket there and knows those of the others: by name at its start, when it says hello, and by their
hello. A message is lost where the receiver's buffer is full; so counts are told again every second.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import secrets
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

_LOGGER = logging.getLogger("route")
_SUFFIX = ".peer"
_MOST_MESSAGE_BYTES = 65_536
# Messages that are read before the event loop goes on to requests.
_MESSAGES_PER_TURN = 256
_BEAT_SECONDS = 1.0
# After five beats that were missed a worker counts as dead, and what it had under way as ended.
_FORGOTTEN_AFTER_SECONDS = 5.0


class Peers:
    """The other workers of one machine; used from one event loop."""

    def __init__(self, folder: Path | None = None, *, clock: Callable[[], float] = time.monotonic) -> None:
        """Open nothing yet; without a folder there are no others."""
        self.name = secrets.token_hex(6)
        self.clock = clock
        self._folder = folder
        self._socket: socket.socket | None = None
        self._others: set[str] = set()
        self._handlers: dict[str, Callable[[str, Any], None]] = {}
        self._counts: list[SharedCounts] = []
        self._beating: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Open the socket, and say hello; a machine without such sockets has workers that know nothing of others."""
        if self._folder is None or not hasattr(socket, "AF_UNIX"):  # as on Windows
            return
        opened = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        opened.setblocking(False)
        try:
            opened.bind(str(self._path(self.name)))
        except OSError as error:
            opened.close()
            # A path of the socket may be too long: then limits hold for each worker, and none for the machine.
            _LOGGER.warning("workers share neither ratings nor requests under way: %s", error)
            return
        self._socket = opened
        self._others = {path.stem for path in self._folder.glob(f"*{_SUFFIX}")} - {self.name}
        asyncio.get_running_loop().add_reader(opened, self._read)
        self._beating = asyncio.create_task(self._beat(), name="route-peers")
        self.tell("hello", None)

    async def close(self) -> None:
        """Close the socket; a second call does nothing."""
        if self._socket is None or self._beating is None:
            return
        self._beating.cancel()
        await asyncio.gather(self._beating, return_exceptions=True)
        asyncio.get_running_loop().remove_reader(self._socket)
        self._socket.close()
        self._socket = None
        self._path(self.name).unlink(missing_ok=True)

    def on(self, subject: str, handle: Callable[[str, Any], None]) -> None:
        """Call a function with the worker and the body of each message on a subject, in place of an earlier one."""
        self._handlers[subject] = handle

    def tell(self, subject: str, body: Any, *, to: str | None = None) -> None:
        """Send a message to all others, or to one; what cannot be sent at once is lost."""
        if self._socket is None:
            return
        text = json.dumps([self.name, subject, body]).encode()
        for other in [to] if to is not None else list(self._others):
            try:
                self._socket.sendto(text, str(self._path(other)))
            except (ConnectionRefusedError, FileNotFoundError):  # it has ended
                self._others.discard(other)
                self._path(other).unlink(missing_ok=True)
            except OSError:  # its buffer is full
                continue

    def count(self, counts: SharedCounts) -> None:
        """Tell these counts again every second."""
        self._counts.append(counts)

    def _path(self, name: str) -> Path:
        assert self._folder is not None
        return self._folder / f"{name}{_SUFFIX}"

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(_BEAT_SECONDS)
            for counts in self._counts:
                counts.tell_all()

    def _read(self) -> None:
        for _ in range(_MESSAGES_PER_TURN):
            try:
                assert self._socket is not None
                text = self._socket.recv(_MOST_MESSAGE_BYTES)
            except (BlockingIOError, InterruptedError):
                return
            with contextlib.suppress(ValueError):  # cut, or of another program
                worker, subject, body = json.loads(text)
                self._others.add(worker)
                if subject in self._handlers:
                    self._handlers[subject](worker, body)


class SharedCounts:
    """Counts of work under way in the workers of one machine, by name."""

    def __init__(self, peers: Peers, subject: str) -> None:
        """Count nothing yet."""
        self._peers, self._subject = peers, subject
        self._own: dict[str, int] = {}
        self._others: dict[str, tuple[float, dict[str, int]]] = {}
        peers.on(subject, self._take)
        peers.count(self)

    def set(self, name: str, count: int) -> None:
        """Set the count of this worker, and tell the others."""
        if count:
            self._own[name] = count
        else:
            self._own.pop(name, None)
        self._peers.tell(self._subject, {name: count})

    def elsewhere(self, name: str) -> int:
        """Return the sum of the other workers' counts."""
        if not self._others:
            return 0
        oldest = self._peers.clock() - _FORGOTTEN_AFTER_SECONDS
        return sum(counts.get(name, 0) for heard_at, counts in self._others.values() if heard_at >= oldest)

    def tell_all(self) -> None:
        """Tell the others all counts of this worker, so that they do not forget them."""
        if self._own:
            self._peers.tell(self._subject, dict(self._own))

    def _take(self, worker: str, body: dict[str, int]) -> None:
        _, counts = self._others.get(worker, (0.0, {}))
        self._others[worker] = self._peers.clock(), counts | body
