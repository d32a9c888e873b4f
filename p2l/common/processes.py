"""The processes of an HTTP service: started, given their settings, replaced, ended without breaking a request, counted.

One server runs in this process, or several workers under uvicorn's supervisor. All workers listen at one socket.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import math
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict
from functools import partial
from multiprocessing import parent_process
from pathlib import Path
from socket import socket
from typing import TYPE_CHECKING, Any, TypeVar

import uvicorn
from uvicorn.config import STARTUP_FAILURE
from uvicorn.supervisors import multiprocess

from p2l.common.connections import ConnectionLimits, Connections
from p2l.common.protocol import Arrivals, ErrorBody, detail_body, waiting_at

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

S = TypeVar("S")
_log = logging.getLogger("uvicorn.error")
_SETTINGS = "P2L_SERVICE_SETTINGS"  # environment variable with the path of a worker's settings
_WORKER_SECONDS = 30  # of silence before a worker counts as hung: it says nothing yet while it imports
_ORPHAN_SECONDS = 1.0  # between two looks at whether the supervisor lives
# After which a thread that runs Python lets the event loop run, which needs the interpreter some times for an answer:
# Python's own 5 ms each time make 30 ms.
_SWITCH_SECONDS = 0.0005


@contextlib.contextmanager
def control_folder(prefix: str, *, shared: bool) -> Iterator[Path]:
    """Make the folder of one service, and remove it when the service ends; `shared` by several processes or not."""
    # Uvicorn hands the signal on when it has shut down: a service that was told to stop has done its work.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    folder = Path(tempfile.mkdtemp(prefix=prefix))
    try:
        if shared:
            (folder / "metrics").mkdir()
            os.environ["PROMETHEUS_MULTIPROC_DIR"] = str(folder / "metrics")
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def write_settings(settings: Any, control: Path) -> None:
    """Write a dataclass of settings for the workers that are started next."""
    file = control / "settings.json"
    file.touch(mode=0o600)
    file.write_text(json.dumps(asdict(settings)), "utf-8")
    os.environ[_SETTINGS] = str(file)


def read_settings(kind: type[S]) -> S:
    """Read what `write_settings` wrote, in a worker."""
    content = json.loads(Path(os.environ[_SETTINGS]).read_text("utf-8"))
    return kind(**{name: tuple(field) if isinstance(field, list) else field for name, field in content.items()})


def run_server(
    app: Any,
    host: str,
    number: int,
    *,
    workers: int,
    reload: bool,
    request_seconds: float,
    limits: ConnectionLimits,
    error_body: ErrorBody | None = None,
    takes_hangups: bool = False,
    **options: Any,
) -> None:
    """Serve an application, or the one that `module:function` returns in each worker, until stopped.

    A request may go on for `request_seconds` after the signal to stop, connections within `limits`. `error_body`, a
    function of a module, is for what is refused before it is a request, by default FastAPI's. With `takes_hangups` the
    application itself takes SIGHUP, in each worker; `options` are uvicorn's.
    """
    # Uvicorn hands it to its workers.
    protocol: Any = Arrivals(Connections(limits), error_body or detail_body)
    options |= {
        "host": host,
        "port": number,
        "workers": workers,
        "reload": reload,
        "factory": isinstance(app, str),
        "interface": "asgi3",
        "server_header": False,
        "access_log": False,
        "use_colors": False,  # escape sequences, which `p2l.common.display` lets nobody print
        "timeout_graceful_shutdown": int(request_seconds) + 1,
        "timeout_worker_healthcheck": _WORKER_SECONDS,
        "timeout_keep_alive": math.ceil(limits.idle_seconds),
        "http": protocol,
        "ws": "none",
    }
    if reload:
        uvicorn.run(app, **options)
        return
    config = uvicorn.Config(app, **options)
    if workers > 1:
        _Supervisor(config, [config.bind_socket()], reloads=takes_hangups).run()
        return
    server = _DrainingServer(config)
    with contextlib.suppress(KeyboardInterrupt):
        server.run()
    if not server.started:
        sys.exit(STARTUP_FAILURE)  # as uvicorn's own command does where the application does not start


def hold_hangups() -> None:
    """Let SIGHUP wait, here and in processes started from now on, until each calls `take_hangups`."""
    if hasattr(signal, "SIGHUP"):
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})


def take_hangups() -> None:
    """Let SIGHUP in, one that has waited at once; call it in the main thread when what handles it is installed."""
    if hasattr(signal, "SIGHUP"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGHUP})


class _DrainingServer(uvicorn.Server):
    """A server that answers every client that has connected before it ends."""

    async def startup(self, sockets: list[socket] | None = None) -> None:
        """Begin to listen."""
        sys.setswitchinterval(_SWITCH_SECONDS)
        await super().startup(sockets)
        self._arrivals.listeners = self._copies()

    async def shutdown(self, sockets: list[socket] | None = None) -> None:
        """Stop listening, take the connections that wait, and end when all are answered."""
        # A connection that the system has made, and that nobody has taken when the last copy of the socket is closed,
        # is cut off, with the request that may be on it.
        await self._arrivals.stop()
        copies = self._copies()
        for server in self.servers:
            server.close()
        make = partial(
            self._arrivals,
            config=self.config,
            server_state=self.server_state,
            app_state=self.lifespan.state,
        )
        for listener in copies:
            with listener:  # closed before anything is awaited: who comes meanwhile would be cut off, not refused
                connections = [connection for connection, _ in waiting_at(listener, sys.maxsize)]
            for connection in connections:
                await asyncio.get_running_loop().connect_accepted_socket(make, connection)
        await super().shutdown(sockets)

    @property
    def _arrivals(self) -> Arrivals:
        arrivals: Any = self.config.http_protocol_class
        assert isinstance(arrivals, Arrivals)
        return arrivals

    def _copies(self) -> list[socket]:
        """Return copies of the sockets that it listens at."""
        return [socket(fileno=os.dup(each.fileno())) for server in self.servers for each in server.sockets]


class _WorkerProcess(multiprocess.Process):
    """A process with a draining server."""

    def start(self) -> None:
        """Start it. A new process has no handler of SIGHUP yet and would die of it."""
        hold_hangups()
        super().start()
        take_hangups()

    @property
    def server(self) -> uvicorn.Server:
        if self._server is None:
            self._server = _DrainingServer(self.config)
        return self._server


multiprocess.Process = _WorkerProcess  # type: ignore[misc]  # uvicorn's supervisor has no option for its processes


class _Supervisor(multiprocess.Multiprocess):
    """Starts the workers of a service, replaces those that die, and ends all of them."""

    def __init__(self, config: uvicorn.Config, sockets: list[socket], *, reloads: bool) -> None:
        """Supervise the workers of a configuration at bound sockets; with `reloads` they take SIGHUP themselves."""
        super().__init__(config, sockets)
        self._reloads = reloads
        take_hangups()

    def terminate_all(self) -> None:
        """Stop listening, then tell every worker to end when its requests are answered."""
        # Uvicorn keeps its copy of the socket until the workers have ended: connections would wait there in vain.
        for listener in self.sockets:
            listener.close()
        super().terminate_all()

    def handle_hup(self) -> None:
        """Hand SIGHUP on to every worker, or start new ones in their place, as uvicorn does."""
        if not self._reloads:
            super().handle_hup()
            return
        for process in self.processes:
            if process.pid is not None:
                with contextlib.suppress(ProcessLookupError):  # it has died, and the next one reads the new file
                    os.kill(process.pid, signal.SIGHUP)
        _log.info("handed SIGHUP on to %d workers", len(self.processes))


async def end_when_orphaned(log: logging.Logger) -> None:
    """Stop this worker once its supervisor was killed: nobody else could, and it would keep the port."""
    supervisor = parent_process()
    if supervisor is None:
        return
    while supervisor.is_alive():
        await asyncio.sleep(_ORPHAN_SECONDS)
    log.error("the process that started this worker was killed; shutting down")
    settings = os.environ.get(_SETTINGS)
    if settings:
        shutil.rmtree(Path(settings).parent, ignore_errors=True)
    os.kill(os.getpid(), signal.SIGTERM)


def exposition(registry: CollectorRegistry) -> bytes:
    """Return the counts of a registry in Prometheus' text format, summed over all workers of a service."""
    from prometheus_client import generate_latest

    return generate_latest(over_workers(registry))


def over_workers(registry: CollectorRegistry) -> CollectorRegistry:
    """Return a registry that counts over all workers of a service: `registry` itself where there is only one."""
    from prometheus_client import CollectorRegistry
    from prometheus_client.multiprocess import MultiProcessCollector, mark_process_dead

    folder = os.environ.get("PROMETHEUS_MULTIPROC_DIR")
    if folder is None:
        return registry
    # Workers that were killed and replaced leave their gauges behind, in which nothing waits any more.
    for file in Path(folder).glob("gauge_live*_*.db"):
        pid = int(file.stem.rsplit("_", 1)[1])
        if not is_alive(pid):
            with contextlib.suppress(FileNotFoundError):  # another worker was faster
                mark_process_dead(pid, folder)  # type: ignore[no-untyped-call]
    everything = CollectorRegistry()
    MultiProcessCollector(everything)  # type: ignore[no-untyped-call]
    return everything


def is_alive(pid: int) -> bool:
    """Return whether there is a process of this number."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
