"""What the HTTP services share: limits of a request, and the processes under uvicorn."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from dataclasses import asdict, dataclass
from logging import Logger
from multiprocessing import parent_process
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from p2l.common.connections import ConnectionLimits, Connections

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

    from p2l.common.protocol import ErrorBody

T = TypeVar("T")
_UNHEARD_SECONDS = 0.05  # for which a client that leaves is not noticed: what is over by then needs no listener

# A request lives as long as its client is connected and its deadline has not passed. Its own task does the work: a
# timer and a listener for the end of the connection cancel that task, so nothing else has to be cleaned up.


class ClientGoneError(Exception):
    """The client closed its connection; nobody reads an answer."""


@dataclass(frozen=True)
class Deadline:
    """When a request has to be over, by the clock of the event loop."""

    at: float

    @classmethod
    def after(cls, seconds: float) -> Deadline:
        """Return the deadline `seconds` from now."""
        return cls(asyncio.get_running_loop().time() + seconds)

    def left(self) -> float:
        """Return the seconds left; negative once it has passed."""
        return self.at - asyncio.get_running_loop().time()


class _Cancellation:
    """Runs a block in the current task, which is cancelled for a reason; other cancellations stay what they are.

    Every request enters some, so that this is a class: a generator, or a cancel scope of anyio, takes several times as
    long.
    """

    def __init__(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        self._before = _cancellations(task)
        self._reason: Exception | None = None

    def cancel(self, reason: Exception) -> None:
        """Cancel the task; the first reason counts."""
        if self._reason is None:
            self._reason = reason
            self._task.cancel()

    def __enter__(self) -> None:
        """Begin the block."""

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        """Raise the reason in place of the cancellation that `cancel` caused."""
        if self._reason is None or not isinstance(error, asyncio.CancelledError):
            return
        if hasattr(self._task, "uncancel"):  # from Python 3.11
            self._task.uncancel()
        if _cancellations(self._task) <= self._before:  # else somebody has cancelled the block around this one
            raise self._reason from None


_cancellations: Callable[[asyncio.Task[Any]], int] = getattr(asyncio.Task, "cancelling", lambda _: 0)
"""How often a task was asked to end; known from Python 3.11 on."""


class _TimeLimit(_Cancellation):
    def __init__(self, seconds: float, late: Exception) -> None:
        super().__init__()
        self._timer = asyncio.get_running_loop().call_later(seconds, self.cancel, late)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        self._timer.cancel()
        super().__exit__(kind, error, trace)


def time_limit(seconds: float, late: Exception) -> AbstractContextManager[None]:
    """Run the block, or raise `late` when it takes longer."""
    return _TimeLimit(seconds, late)


class _Life(_Cancellation):
    def __init__(self, receive: Receive, deadline: Deadline, late: Exception) -> None:
        super().__init__()
        self._receive = receive
        self._listener: asyncio.Future[None] | None = None
        loop = asyncio.get_running_loop()
        self._timers = loop.call_at(deadline.at, self.cancel, late), loop.call_later(_UNHEARD_SECONDS, self._listen)

    def _listen(self) -> None:
        self._listener = asyncio.ensure_future(_disconnected(self._receive))
        self._listener.add_done_callback(lambda task: None if task.cancelled() else self.cancel(ClientGoneError()))

    async def __aenter__(self) -> None:
        self.__enter__()

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        for timer in self._timers:
            timer.cancel()
        if self._listener is not None:
            self._listener.cancel()
        self.__exit__(kind, error, trace)


def alive(receive: Receive, deadline: Deadline, late: Exception) -> AbstractAsyncContextManager[None]:
    """Run the block, or raise ClientGoneError soon after the client has left, or `late` at the deadline.

    The body must have been read: what arrives after it can only be the end of the connection.
    """
    return _Life(receive, deadline, late)


async def within(request: Request, seconds: float, work: Awaitable[T]) -> T:
    """Await `work`; raise TimeoutError after `seconds`, ClientGoneError when the client leaves."""
    async with alive(request.receive, Deadline.after(seconds), TimeoutError()):
        return await work


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class _Bodies:
    """Bytes of bodies that are not whole yet, of all requests of the process."""

    most = 2**30
    size = 0


async def read_body(headers: Headers, receive: Receive, max_bytes: int, seconds: float) -> bytes:
    """Read the body of a request; raise ClientGoneError where the client left while it sent.

    Raise HTTPException 413 for one larger than `max_bytes`, 408 for one that did not arrive within `seconds`, 503 where
    all that arrive together would fill the memory.
    """
    # The rest of a refused body is never read, so the connection cannot be used again.
    close = {"connection": "close"}
    declared = headers.get("content-length", "")
    if declared.isdigit() and int(declared) > max_bytes:
        raise _too_large(max_bytes, close)
    chunks: list[bytes] = []
    size = 0
    try:
        with time_limit(seconds, HTTPException(408, f"the body did not arrive within {seconds:g} seconds", close)):
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise ClientGoneError
                chunks.append(message.get("body", b""))
                size += len(chunks[-1])
                _Bodies.size += len(chunks[-1])
                if size > max_bytes:
                    raise _too_large(max_bytes, close)
                if not message.get("more_body", False):
                    return b"".join(chunks)
                if _Bodies.size > _Bodies.most:
                    text = "too many large requests arrive at once; try again in a moment"
                    raise HTTPException(503, text, {**close, "retry-after": "1"})
    finally:
        _Bodies.size -= size


def _too_large(max_bytes: int, headers: dict[str, str]) -> HTTPException:
    return HTTPException(413, f"the request is larger than {max_bytes / 2**20:g} MiB; send less at once", headers)


class BodyLimit:
    """Middleware that reads each body within its limits, and answers 413 or 408 to one that exceeds them."""

    def __init__(self, app: ASGIApp, max_bytes: int, seconds: float) -> None:
        """Wrap `app`."""
        self.app = app
        self.max_bytes = max_bytes
        self.seconds = seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on with its whole body."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        try:
            body = await read_body(Headers(scope=scope), receive, self.max_bytes, self.seconds)
        except HTTPException as error:
            response = JSONResponse({"detail": error.detail}, error.status_code, error.headers)
            await response(scope, receive, send)
        except ClientGoneError:
            pass
        else:
            await self.app(scope, _replay(body, receive), send)


def _replay(body: bytes, receive: Receive) -> Receive:
    """Receive `body` once, then what comes after it."""
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replayed() -> Message:
        return messages.pop() if messages else await receive()

    return replayed


def bearer_of(headers: Headers) -> str | None:
    """Return the token of `Authorization: Bearer TOKEN`; None for another scheme or none."""
    scheme, _, token = headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else None


# Processes: one server in this process, or several workers under uvicorn's supervisor. Workers get their settings
# through a file in a control folder that only this user can read.

_SETTINGS = "P2L_SERVICE_SETTINGS"
"""Environment variable with the path of a worker's settings."""
_WORKER_SECONDS = 30
"""For a worker to say that it lives, before its supervisor takes it for hung: it says nothing yet while it imports."""
_ORPHAN_SECONDS = 1.0
S = TypeVar("S")


@contextlib.contextmanager
def control_folder(prefix: str, *, shared: bool) -> Iterator[Path]:
    """Make the folder of one service, and remove it when the service ends; `shared` by several processes or not."""
    signal.signal(signal.SIGTERM, _exit)  # uvicorn hands the signal on when it has shut down
    folder = Path(tempfile.mkdtemp(prefix=prefix))
    try:
        if shared:
            (folder / "metrics").mkdir()
            os.environ["PROMETHEUS_MULTIPROC_DIR"] = str(folder / "metrics")
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _exit(*_: object) -> None:
    """A service that is told to stop has done its work: exit with 0."""
    sys.exit(0)


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
    import uvicorn

    from p2l.common.protocol import Arrivals, detail_body
    from p2l.common.supervisor import Supervisor, serve_here

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
    if workers == 1:
        serve_here(config)
    else:
        Supervisor(config, [config.bind_socket()], reloads=takes_hangups).run()


async def end_when_orphaned(log: Logger) -> None:
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


# What Prometheus reads, and which processes are there to be counted.


def exposition(registry: CollectorRegistry) -> bytes:
    """Return what a registry counts, in Prometheus' text format, summed over all workers of a service."""
    from prometheus_client import generate_latest

    return generate_latest(over_workers(registry))


def over_workers(registry: CollectorRegistry) -> CollectorRegistry:
    """Return a registry that counts over all workers of a service: `registry` itself where there is only one."""
    from prometheus_client import CollectorRegistry
    from prometheus_client.multiprocess import MultiProcessCollector

    folder = os.environ.get("PROMETHEUS_MULTIPROC_DIR")
    if folder is None:
        return registry
    _forget_the_dead(Path(folder))
    everything = CollectorRegistry()
    MultiProcessCollector(everything)  # type: ignore[no-untyped-call]
    return everything


def _forget_the_dead(folder: Path) -> None:
    """Drop the gauges of workers that were killed and replaced: nothing waits in them."""
    from prometheus_client.multiprocess import mark_process_dead

    for file in folder.glob("gauge_live*_*.db"):
        pid = int(file.stem.rsplit("_", 1)[1])
        if not is_alive(pid):
            with contextlib.suppress(FileNotFoundError):  # another worker was faster
                mark_process_dead(pid, str(folder))  # type: ignore[no-untyped-call]


def is_alive(pid: int) -> bool:
    """Return whether there is a process of this number."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
