"""The servers and supervisors of the HTTP services: uvicorn's, whose end breaks no request.

All workers listen at one socket. A connection that the system has made, and that nobody has taken when the last copy
of the socket is closed, is cut off, with the request that may be on it. So the supervisor, which in
uvicorn keeps its copy until its workers have ended, closes it first here; and a worker takes what waits before it
closes its own. Whoever comes later is refused at once, and may go elsewhere.

A reload (SIGHUP) of uvicorn starts new workers and ends the old ones. A service that can take its configuration anew
while it answers has the signal handed on to its workers instead.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
from socket import socket
from typing import TYPE_CHECKING, Any

from uvicorn import Server
from uvicorn.config import STARTUP_FAILURE
from uvicorn.supervisors import multiprocess

from p2l.common.protocol import Arrivals, waiting_at

if TYPE_CHECKING:
    from uvicorn import Config

_log = logging.getLogger("uvicorn.error")
_SWITCH_SECONDS = 0.0005
"""After which a thread that runs Python lets the event loop run, which needs the interpreter some times for an answer:
Python's own 5 ms each time make 30 ms."""


def hold_hangups() -> None:
    """Let SIGHUP wait, here and in processes started from now on, until each calls `take_hangups`."""
    if hasattr(signal, "SIGHUP"):
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})


def take_hangups() -> None:
    """Let SIGHUP in, one that has waited at once; call it in the main thread when what handles it is installed."""
    if hasattr(signal, "SIGHUP"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGHUP})


class DrainingServer(Server):
    """A server that answers whoever has connected before it ends, and whose event loop waits little for its threads."""

    async def startup(self, sockets: list[socket] | None = None) -> None:
        """Begin to listen."""
        sys.setswitchinterval(_SWITCH_SECONDS)
        await super().startup(sockets)
        self._arrivals.take_from(self._copies())

    async def shutdown(self, sockets: list[socket] | None = None) -> None:
        """Stop listening, take the connections that wait, and end when all are answered."""
        await self._arrivals.stop()
        copies = self._copies()
        for server in self.servers:
            server.close()
        for each in copies:
            with each:  # closed before anything is awaited: who comes meanwhile would be cut off instead of refused
                connections = [connection for connection, _ in waiting_at(each, sys.maxsize)]
            for connection in connections:
                await asyncio.get_running_loop().connect_accepted_socket(self._protocol, connection)
        await super().shutdown(sockets)

    @property
    def _arrivals(self) -> Arrivals:
        arrivals: Any = self.config.http_protocol_class
        assert isinstance(arrivals, Arrivals)
        return arrivals

    def _copies(self) -> list[socket]:
        """Return copies of the sockets that it listens at."""
        return [socket(fileno=os.dup(each.fileno())) for server in self.servers for each in server.sockets]

    def _protocol(self) -> asyncio.Protocol:
        return self._arrivals(config=self.config, server_state=self.server_state, app_state=self.lifespan.state)


def serve_here(config: Config) -> None:
    """Serve in this process until it is told to stop; exit as uvicorn does if the application does not start."""
    server = DrainingServer(config)
    with contextlib.suppress(KeyboardInterrupt):
        server.run()
    if not server.started:
        sys.exit(STARTUP_FAILURE)


class _Worker(multiprocess.Process):
    """A process with a draining server."""

    def start(self) -> None:
        """Start it. A new process has no handler of SIGHUP yet and would die of it."""
        hold_hangups()
        super().start()
        take_hangups()

    @property
    def server(self) -> Server:
        if self._server is None:
            self._server = DrainingServer(self.config)
        return self._server


multiprocess.Process = _Worker  # type: ignore[misc]  # uvicorn's supervisor knows no other way to say what it starts


class Supervisor(multiprocess.Multiprocess):
    """Starts the workers of a service, replaces those that die, and ends all of them."""

    def __init__(self, config: Config, sockets: list[socket], *, reloads: bool) -> None:
        """Supervise the workers of a configuration at bound sockets; with `reloads` they take SIGHUP themselves."""
        super().__init__(config, sockets)
        self._reloads = reloads
        take_hangups()

    def terminate_all(self) -> None:
        """Stop listening, then tell every worker to end when its requests are answered."""
        for listener in self.sockets:
            listener.close()
        super().terminate_all()

    def handle_hup(self) -> None:
        """Hand SIGHUP on to every worker, or replace them."""
        if not self._reloads:
            super().handle_hup()
            return
        for process in self.processes:
            if process.pid is not None:
                with contextlib.suppress(ProcessLookupError):  # it has died, and the next one reads the new file
                    os.kill(process.pid, signal.SIGHUP)
        _log.info("handed SIGHUP on to %d workers", len(self.processes))
