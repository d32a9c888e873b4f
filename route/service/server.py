"""Processes: one server in this process, or several workers under uvicorn's supervisor.

The settings reach workers through a file in a control folder that only this user can read; of clients' keys it holds
the digests alone. Workers share limits through the database, which is in that folder when the configuration names none.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import sys
import tempfile
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from p2l.common.errors import InputError, P2LError
from route.config import load_config
from route.service.observability import set_up_logs
from route.service.state import SETTINGS_VARIABLE, Settings

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.types import ASGIApp, Message, Receive, Scope, Send


_KEEP_ALIVE_SECONDS = 75  # longer than clients keep idle connections, so that none is closed under a request


def serve(settings: Settings, host: str, port: int, *, reload: bool) -> int | None:
    """Serve until stopped by SIGINT or SIGTERM; what was accepted is answered first.

    Raises:
        InputError: the configuration and what it names do not go together.
    """
    signal.signal(signal.SIGTERM, _leave)  # uvicorn hands the signal on when it is done with it
    set_up_logs()
    control = Path(tempfile.mkdtemp(prefix="p2l-router-"))
    try:
        if settings.workers > 1 or reload:
            settings = _shared(settings, control)
            asyncio.run(_try_out(settings))
            _keep(settings, control)
            _run("route.service.server:worker", settings, host, port, reload=reload)
        else:
            _serve_here(settings, host, port)
    finally:
        shutil.rmtree(control, ignore_errors=True)
    return None


def worker() -> ASGIApp:
    """The application of one worker; uvicorn calls this in a new process."""
    content = json.loads(Path(os.environ[SETTINGS_VARIABLE]).read_text("utf-8"))
    set_up_logs()
    return _brief(_app(Settings(**{**content, "api_keys": tuple(content["api_keys"])})))


def _app(settings: Settings) -> Starlette:
    from route.service.app import build_app

    return build_app(load_config(settings.config), settings)


def _serve_here(settings: Settings, host: str, port: int) -> None:
    app = _app(settings)
    try:
        _run(_brief(app), settings, host, port, reload=False)
    except SystemExit:
        problem = getattr(app.state, "problem", None)
        if isinstance(problem, InputError):
            raise problem from None
        raise


def _brief(app: Starlette) -> ASGIApp:
    """The application, but a start that fails for a reason we know is told without a traceback."""

    async def called(scope: Scope, receive: Receive, send: Send) -> None:
        async def short(message: Message) -> None:
            if message["type"] == "lifespan.startup.failed" and hasattr(app.state, "problem"):
                message = {**message, "message": str(app.state.problem)}
            await send(message)

        try:
            await app(scope, receive, short if scope["type"] == "lifespan" else send)
        except P2LError:
            if scope["type"] != "lifespan":
                raise

    return called


async def _try_out(settings: Settings) -> None:
    """Start everything once, so that a mistake is told once and not by each worker for ever."""
    from route.service.state import make_service

    service = make_service(load_config(settings.config), settings)
    await service.start()
    await service.close()


def _run(app: Any, settings: Settings, host: str, port: int, *, reload: bool) -> None:
    import uvicorn

    seconds = load_config(settings.config).timeouts.total
    uvicorn.run(
        app,
        host=host,
        port=port,
        workers=settings.workers,
        reload=reload,
        factory=isinstance(app, str),
        http="p2l.serving.http:OneWriteProtocol",
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=_KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=int(seconds) + 1,
        log_config=None,
        access_log=False,
    )


def _shared(settings: Settings, control: Path) -> Settings:
    """What several processes share: counters and, where the configuration has none, a database."""
    (control / "metrics").mkdir()
    os.environ["PROMETHEUS_MULTIPROC_DIR"] = str(control / "metrics")
    if load_config(settings.config).database is not None:
        return settings
    return replace(settings, database=str(control / "router.sqlite"))


def _keep(settings: Settings, control: Path) -> None:
    file = control / "settings.json"
    file.touch(mode=0o600)
    file.write_text(json.dumps(asdict(settings)), "utf-8")
    os.environ[SETTINGS_VARIABLE] = str(file)


def _leave(*_: object) -> None:
    """A service that is told to stop has done what it should."""
    sys.exit(0)
