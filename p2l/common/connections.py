"""Limits of an HTTP service's connections: how long each may send a request or do nothing, and how many may be open.

A connection is in one state, and the states in which it waits for its client are queues in the order of arrival. So a
connection that is out of time, or that makes room at a cap, is always the first of a queue, or a peer's first in it.
"""

from __future__ import annotations

import argparse
import contextlib
import enum
import gc
import sys
import time
from collections import OrderedDict, deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from p2l.common.cli import above_zero, positive, whole
from p2l.common.errors import ConfigError

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop, Future, Transport

_DEFAULT_CONNECTIONS = 1024  # connections a process by default: some 7 MB
_FILES_PER_CONNECTION = 3  # itself, the router's to a provider, and another that waits to be set up
_OTHER_FILES = 128
_ENOUGH_FILES = 65536
_FLUSH_SECONDS = 5.0  # that the end of an answer may stand still in our buffer
_REPORT_SECONDS = 10.0
_BURST_CONNECTIONS = 500  # connections with memory that is worth giving back
_BYTES_AT_REST = 2**16  # received since the last look: the service is at rest
_BYTES_WORTH_TRIMMING = 2**22  # of requests, likewise: what they become in Python can be a hundred times as large
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8  # of malloc.h
_MAX_FREE_HEAP_BYTES = 2**20  # bytes


@dataclass(frozen=True)
class ConnectionLimits:
    """The limits of one process."""

    header_seconds: float
    idle_seconds: float
    total: int
    peer: int  # from one address; 0: no limit but the total


def add_connection_flags(group: argparse._ArgumentGroup, *, idle_seconds: float) -> None:
    """Add the flags that `limits_of` reads."""
    group.add_argument("--header-seconds", type=above_zero, default=10.0, help="time limit for a request's headers")
    group.add_argument(
        "--idle-seconds",
        type=above_zero,
        default=idle_seconds,
        help="how long a connection is kept open between two requests",
    )
    group.add_argument(
        "--max-connections",
        type=positive,
        help=f"open connections of a process (default: as many as open files allow, at most {_DEFAULT_CONNECTIONS})",
    )
    group.add_argument(
        "--max-peer-connections",
        type=whole,
        help="connections from one address (default: three quarters); 0: no limit; all clients of a reverse "
        "proxy count as one address, the proxy's",
    )


def limits_of(flags: argparse.Namespace) -> ConnectionLimits:
    """Return the limits of a process; raise ConfigError for more connections than it can have open files.

    Raises the soft limit of open files, which workers inherit.
    """
    fitting = max(1, (_raise_file_limit() - _OTHER_FILES) // _FILES_PER_CONNECTION)
    total = flags.max_connections or min(_DEFAULT_CONNECTIONS, fitting)
    if total > fitting:
        raise ConfigError(
            f"--max-connections {total} needs {total * _FILES_PER_CONNECTION + _OTHER_FILES} open files; allow them "
            f"(ulimit -Hn), or choose at most {fitting}"
        )
    peer = flags.max_peer_connections
    return ConnectionLimits(
        header_seconds=flags.header_seconds,
        idle_seconds=flags.idle_seconds,
        total=total,
        peer=max(1, total * 3 // 4) if peer is None else peer,
    )


def _raise_file_limit() -> int:
    """Raise the soft limit of open files to the hard one, and return it."""
    if sys.platform == "win32":
        return _ENOUGH_FILES
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    aim = _ENOUGH_FILES if hard == resource.RLIM_INFINITY else hard
    if soft != resource.RLIM_INFINITY and soft < aim:
        with contextlib.suppress(ValueError, OSError):  # a system may allow less than its hard limit
            resource.setrlimit(resource.RLIMIT_NOFILE, (aim, hard))
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _ENOUGH_FILES if soft == resource.RLIM_INFINITY else soft


class State(enum.Enum):
    """The next event that a connection waits for."""

    HEAD = "the headers of a request"
    BODY = "the body of a request"
    BUSY = "the service's answer"
    IDLE = "the next request"
    CLOSING = "its client to read the rest of an answer"

    __hash__ = object.__hash__  # in C: every connection is put into some queues


# Connections that make room at a cap, in this order, and the seconds that they must have stood still for: the request
# of a new connection is most likely on its way.
_EVICTION = ((State.HEAD, 0.2), (State.CLOSING, 1.0), (State.IDLE, 0.2), (State.BODY, 5.0))


class Connection(Protocol):
    """A connection as the limits see it."""

    transport: Transport
    peer: str
    state: State
    since: float  # when it came into its state, by `time.monotonic`
    unsent: int  # bytes of an answer at the last look

    def expire(self) -> None:
        """Answer a request that is not whole, and close."""
        ...

    def abort(self) -> None:
        """Close at once."""
        ...


# The event loop runs whatever is ready before it looks for anything new: hundreds of requests that arrive together
# would all be worked on up to their first wait, for half a second, before a connection of somebody else is accepted.
_REQUESTS_PER_TURN = 4  # begin together: with a millisecond each, others wait some milliseconds
_ARRIVALS_PER_TURN = 16  # connections of a burst that are set up together, at a quarter of a millisecond each


class Turns:
    """The requests of one process that wait for their turn, address by address; without any they can be pickled."""

    def __init__(self, at_once: int = _REQUESTS_PER_TURN) -> None:
        """Begin `at_once` requests in one turn of the event loop."""
        self._at_once = at_once
        self._begun = 0
        self._waiting: OrderedDict[str, deque[Future[None]]] = OrderedDict()

    def begins(self, loop: AbstractEventLoop) -> bool:
        """Count a request that may begin at once, as most may; return False if it may not."""
        if self._begun >= self._at_once or self._waiting:
            return False
        if not self._begun:
            loop.call_soon(self._next, loop)
        self._begun += 1
        return True

    async def take(self, loop: AbstractEventLoop, peer: str) -> None:
        """Wait until a request of an address may begin; most need not."""
        if self.begins(loop):
            return
        turn = loop.create_future()
        self._waiting.setdefault(peer, deque()).append(turn)
        await turn

    def _next(self, loop: AbstractEventLoop) -> None:
        """Begin what waits, one of each address after the other."""
        self._begun = 0
        while self._waiting and self._begun < self._at_once:
            peer, turns = next(iter(self._waiting.items()))
            turn = turns.popleft()
            if turns:
                self._waiting.move_to_end(peer)
            else:
                del self._waiting[peer]
            if not turn.done():  # a client that left while it waited
                turn.set_result(None)
                self._begun += 1
        if self._begun:
            # After the requests that begin now: they are in the event loop's queue already.
            loop.call_soon(self._next, loop)


class Connections:
    """The open connections of one process, which belong to one event loop; without any they can be pickled."""

    def __init__(self, limits: ConnectionLimits) -> None:
        """Start with none."""
        self.are_last = False  # the service ends: no connection is kept after its next answer
        self.turns = Turns()
        self.arrivals = Turns(_ARRIVALS_PER_TURN)
        self.limits = limits
        self._count = 0
        self._peers: dict[str, int] = {}
        self._queues: dict[State, OrderedDict[Connection, None]] = {state: OrderedDict() for state, _ in _EVICTION}
        self._tick = min(1.0, limits.header_seconds / 5, limits.idle_seconds / 5)
        self._swept = False
        self._peak = 0
        self.received_bytes = 0  # of requests, since memory was last given back
        self._has_garbage = False  # there was much work since garbage was last collected
        self._reported: dict[str, tuple[float, int]] = {}

    def admit(self, connection: Connection) -> bool:
        """Count a new connection; return False if it must be refused."""
        peer = connection.peer
        limits = self.limits
        open_of_peer = self._peers.get(peer, 0)
        if 0 < limits.peer <= open_of_peer and not self._evict(peer):
            self.report("--max-peer-connections", f"refused a connection of {peer}: {open_of_peer} are open")
            return False
        if self._count >= limits.total and not self._evict():
            self.report("--max-connections", f"refused a connection of {peer}: {self._count} are open")
            return False
        self._count += 1
        self._peers[peer] = self._peers.get(peer, 0) + 1  # now: one of them may have made room
        connection.state, connection.since = State.HEAD, time.monotonic()
        self._queues[State.HEAD][connection] = None
        if not self._swept:
            self._swept = True
            _loop().call_later(self._tick, self._sweep)
        return True

    def move(self, connection: Connection, state: State) -> None:
        """Put a connection into a state; its time begins anew only with another state."""
        if state is connection.state:
            return
        if connection.state is not State.BUSY:
            del self._queues[connection.state][connection]
        if state is not State.BUSY:
            self._queues[state][connection] = None
        connection.state, connection.since = state, time.monotonic()

    def remove(self, connection: Connection) -> None:
        """Forget a connection that is closed."""
        self.move(connection, State.BUSY)
        self._count -= 1
        self._peers[connection.peer] -= 1
        if not self._peers[connection.peer]:
            del self._peers[connection.peer]

    def _evict(self, peer: str | None = None) -> bool:
        """Close the connection, of a peer or any, that waits for its client longest; return whether there is one."""
        now = time.monotonic()
        for state, seconds in _EVICTION:
            for connection in self._queues[state]:
                if connection.since + seconds > now:
                    break
                if peer is None or connection.peer == peer:
                    connection.abort()
                    return True
        return False

    def _sweep(self) -> None:
        """End the connections that are out of time."""
        now, queues = time.monotonic(), self._queues
        for state, seconds in ((State.HEAD, self.limits.header_seconds), (State.IDLE, self.limits.idle_seconds)):
            while queues[state] and (oldest := next(iter(queues[state]))).since + seconds <= now:
                if state is State.HEAD:
                    self.report("--header-seconds", f"ended a connection of {oldest.peer} without a whole request")
                oldest.unsent = oldest.transport.get_write_buffer_size()
                oldest.expire()
                self.move(oldest, State.CLOSING)
        closing = queues[State.CLOSING]
        while closing and (oldest := next(iter(closing))).since + _FLUSH_SECONDS <= now:
            unsent = oldest.transport.get_write_buffer_size()
            if 0 < unsent < oldest.unsent:  # its client reads, though slowly
                oldest.unsent, oldest.since = unsent, now
                closing.move_to_end(oldest)
            else:
                oldest.abort()
        self._peak = max(self._peak, self._count)
        waiting = sum(map(len, queues.values()))
        is_over = self._peak >= _BURST_CONNECTIONS and self._count < self._peak // 8
        if is_over or (self.received_bytes >= _BYTES_WORTH_TRIMMING and waiting == self._count):
            self._peak = 0
            self.received_bytes = 0
            self._has_garbage = True
            _loop().run_in_executor(None, _give_memory_back)
        elif self._has_garbage:
            if self.received_bytes < _BYTES_AT_REST and waiting == self._count:
                # Looking for circles of references takes a moment, for which nobody waits now.
                self._has_garbage = False
                gc.collect()
                _loop().run_in_executor(None, _give_memory_back)
            self.received_bytes = 0
        self._swept = self._count > 0 or self._has_garbage
        if self._swept:
            _loop().call_later(self._tick, self._sweep)

    def report(self, flag: str, text: str) -> None:
        """Log a line, and further ones of the same flag or kind at most every ten seconds."""
        now = time.monotonic()
        until, left_out = self._reported.get(flag, (0.0, 0))
        if now < until:
            self._reported[flag] = (until, left_out + 1)
            return
        self._reported[flag] = (now + _REPORT_SECONDS, 0)
        more = f" ({left_out} more since the last such line)" if left_out else ""
        import logging

        # Both services write their other lines to this logger.
        logging.getLogger("uvicorn.error").warning("%s: %s%s", flag, text, more)


def _give_memory_back() -> None:
    """Return free memory to the system, which glibc does not do by itself."""
    with contextlib.suppress(OSError, AttributeError):  # other systems have no such call, or need none
        import ctypes

        ctypes.CDLL(None).malloc_trim(0)


def keep_little_memory() -> None:
    """Let glibc keep one heap and return a free megabyte at its end; call it before there are other threads."""
    # By itself it gives each thread a heap of its own, with holes that `malloc_trim` cannot return and no other thread
    # fills, and keeps twice the largest block that was ever freed, up to 64 MB, in each.
    with contextlib.suppress(OSError, AttributeError):
        import ctypes

        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_ARENA_MAX, 1)
        for setting in (_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD):
            mallopt(setting, _MAX_FREE_HEAP_BYTES)


def _loop() -> AbstractEventLoop:
    import asyncio  # not above: a command that only reads the flags should start at once

    return asyncio.get_running_loop()
