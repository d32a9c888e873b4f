"""Processes: one server in this process, or several workers under uvicorn's supervisor.

Workers share limits through the database, which is in the control folder when the configuration names none, and tell
one another what cannot wait for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable
from dataclasses import replace
from typing import Any

from starlette.applications import Starlette
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from p2l.common.connections import ConnectionLimits, keep_little_memory
from p2l.common.errors import P2LError
from p2l.common.processes import control_folder, hold_hangups, read_settings, run_server, write_settings
from route.application.app import build_app
from route.application.service import Service
from route.application.settings import Settings
from route.config import load_config
from route.observability.logs import set_up_logs
from route.request.api_errors import early_body


def serve(settings: Settings, host: str, port: int, limits: ConnectionLimits, *, reload: bool) -> int | None:
    """Serve until stopped by SIGINT or SIGTERM; what was accepted is answered first."""
    set_up_logs()
    keep_little_memory()
    hold_hangups()  # a reload that comes before the service can take it waits
    several = settings.workers > 1 or reload
    with control_folder("p2l-router-", shared=several) as control:
        if not several:
            _serve_here(settings, host, port, limits)
            return None
        if load_config(settings.config).database is None:
            settings = replace(settings, database=str(control / "router.sqlite"))
        settings = replace(settings, peers=str(control))
        # A mistake is reported here, once, and not by each worker that the supervisor starts again and again.
        asyncio.run(_start_once(settings))
        write_settings(settings, control)
        _run("route.application.server:worker", settings, host, port, limits, reload=reload)
    return None


def worker() -> ASGIApp:
    """Return the application of one worker; uvicorn calls this in a new process."""
    set_up_logs()
    keep_little_memory()
    settings = read_settings(Settings)
    return _without_traceback(build_app(load_config(settings.config), settings))


def _serve_here(settings: Settings, host: str, port: int, limits: ConnectionLimits) -> None:
    app = build_app(load_config(settings.config), settings)

    def is_news(record: logging.LogRecord) -> bool:
        if hasattr(app.state, "problem"):
            return False  # what uvicorn says of a failed start would stand around the one line that says what to do
        return hasattr(app.state, "live") or record.levelno >= logging.WARNING

    log = logging.getLogger("uvicorn.error")
    log.addFilter(is_news)
    try:
        _run(_without_traceback(app), settings, host, port, limits, reload=False)
    except SystemExit:
        # uvicorn exits with its own status whatever failed; a mistake of the user is 2.
        if (problem := getattr(app.state, "problem", None)) is not None:
            raise problem from None
        raise
    finally:
        log.removeFilter(is_news)


def _without_traceback(app: Starlette) -> ASGIApp:
    """Wrap the application so that a start that fails with a `P2LError` is reported in one line."""

    async def started(scope: Scope, receive: Receive, send: Send) -> None:
        # Starlette sends a traceback with the failure, and raises the error as well.
        async def shortened(message: Message) -> None:
            if message["type"] == "lifespan.startup.failed" and hasattr(app.state, "problem"):
                message = {**message, "message": str(app.state.problem)}
            await send(message)

        with contextlib.suppress(P2LError, ModuleNotFoundError):
            await app(scope, receive, shortened)

    def wrapped(scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        return (started if scope["type"] == "lifespan" else app)(scope, receive, send)

    return wrapped


async def _start_once(settings: Settings) -> None:
    """Start and stop everything."""
    service = Service(load_config(settings.config), settings)
    await service.start()
    await service.close()


def _run(app: Any, settings: Settings, host: str, port: int, limits: ConnectionLimits, *, reload: bool) -> None:
    run_server(
        app,
        host,
        port,
        workers=settings.workers,
        reload=reload,
        request_seconds=load_config(settings.config).timeouts.total,
        proxy_headers=False,
        limits=limits,
        error_body=early_body,
        takes_hangups=True,
        log_config=None,
    )
