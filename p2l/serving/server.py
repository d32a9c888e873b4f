"""Processes: one server in this process, or several workers under uvicorn's supervisor.

The settings reach workers through a file in the control folder, which only this user can read; of the keys it holds the
digests alone.
"""

from __future__ import annotations

import logging
import os
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING

from p2l.common.access import digest_of, is_loopback, new_key
from p2l.common.connections import ConnectionLimits
from p2l.common.display import printable
from p2l.common.errors import InputError
from p2l.common.processes import control_folder, read_settings, run_server, write_settings
from p2l.public import PUBLIC
from p2l.serving.settings import Settings

if TYPE_CHECKING:
    from fastapi import FastAPI


_log = logging.getLogger("p2l.serving")


def serve(settings: Settings, host: str, port: int, limits: ConnectionLimits, *, reload: bool) -> int | None:
    """Serve until SIGINT or SIGTERM, and answer what was accepted; InputError if the model cannot be served so."""
    several = settings.workers > 1 or reload
    settings, made_key = with_key(settings, host)
    with control_folder("p2l-endpoint-", shared=several) as control:
        settings = replace(settings, control=str(control), model_path=first_model(settings))
        log_to_stderr()
        _log.info("reading %s: it answers once the model is read and tried", settings.model_path)
        if several:
            [settings] = check_elsewhere(settings)
            write_settings(settings, control)
        app = "p2l.serving.server:worker" if several else _app(settings)
        print_key(made_key)
        run_server(
            app,
            host,
            port,
            workers=settings.workers,
            reload=reload,
            request_seconds=settings.deadline,
            limits=limits,
            log_level="info",
        )
    return None


def worker() -> FastAPI:
    """Return the application of one worker; uvicorn calls this in a new process."""
    return _app(read_settings(Settings))


def _app(settings: Settings) -> FastAPI:
    import torch

    from p2l.serving.app import build_app
    from p2l.serving.boards import read_clusters
    from p2l.serving.reload import Control, catch_up

    log_to_stderr()
    if settings.workers > 1:
        # Several workers on one machine have their share of the cores each.
        torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // settings.workers))
    # Read once: computing light models changes what torch says.
    settings = replace(settings, cores=torch.get_num_threads())
    served, generation = catch_up(settings, Control(Path(settings.control)))
    model = served.model
    if settings.clusters:
        read_clusters(settings.clusters, model.model_list)  # a mistake ends the start, not the first page
    if served.path == PUBLIC:
        from p2l.public.model import public_note

        _log.info("no --model was given: %s", public_note())
    _log.info("serving %s, revision %s, on %s; %s", served.path, model.revision, model.device, served.reason)
    return build_app(settings, served, generation)


def with_key(settings: Settings, host: str) -> tuple[Settings, str | None]:
    """Return the settings with a random key, and the key, where other machines can connect and none was given."""
    if settings.api_key_digest is not None or is_loopback(host):
        return settings, None
    key = new_key()
    return replace(settings, api_key_digest=digest_of(key)), key


def print_key(key: str | None) -> None:
    """Print the random key, if one was made; call it once nothing but listening can fail."""
    if key is not None:
        print(f"no --api-key was given; clients send this one as api-key: {key}", flush=True)


def first_model(settings: Settings) -> str:
    """Return the model to begin with, the newest of a watched folder if none is named; InputError without any."""
    from p2l.serving.watching import newest_model

    if settings.model_path or settings.watch is None:
        return settings.model_path
    newest = newest_model(Path(settings.watch))
    if newest is None:
        raise InputError(f"{settings.watch}: no complete model in it yet; train one first, or give --model")
    return str(newest)


def check_elsewhere(*every: Settings) -> list[Settings]:
    """Load each model once, and return the settings with what was measured, for the workers to take over."""
    # In a process of its own: a fault is told once, and no worker disturbs what is measured.
    checked = []
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        for settings in every:
            try:
                dtype, reason = pool.submit(_measured, settings).result()
            except BrokenProcessPool as error:
                raise InputError(
                    f"{settings.model_path}: the process that loads it was killed; is there enough memory?"
                ) from error
            checked.append(replace(settings, dtype=None if settings.quantize else dtype, dtype_reason=reason))
    log_to_stderr()
    for settings in checked:
        _log.info("%s", settings.dtype_reason)
    return checked


def _measured(settings: Settings) -> tuple[str, str]:
    from p2l.serving.reload import load

    served = load(settings)
    return served.transformer_dtype, served.reason


def log_to_stderr() -> None:
    """Write the service's log to stderr."""
    if not _log.handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(LineFormatter("%(asctime)s %(levelname)s %(message)s"))
        _log.addHandler(handler)
        _log.setLevel(logging.INFO)


class LineFormatter(logging.Formatter):
    """A log's lines: a message is one line whatever it quotes, and only a traceback adds others."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  (logging's own name)
        """Return the line of a record."""
        return printable(super().formatMessage(record))

    def format(self, record: logging.LogRecord) -> str:
        """Return the line and its traceback."""
        return printable(super().format(record), keep="\n")
