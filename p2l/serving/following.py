"""A worker follows: it loads the model that the service is to serve, without dropping a request."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import shutil
import signal
from dataclasses import replace
from multiprocessing import parent_process
from pathlib import Path

from p2l.allocator import return_freed_memory
from p2l.errors import InputError, P2LError
from p2l.serving.control import Control, Status, Wanted
from p2l.serving.engine import Engine
from p2l.serving.loading import Served, batch_limits, load, newest_model, written_at
from p2l.serving.metrics import Metrics
from p2l.serving.settings import Settings

__all__ = ["Follower", "catch_up"]

_log = logging.getLogger("p2l.serving")
_SECONDS_BETWEEN_LOOKS = 0.25
_SECONDS_BETWEEN_WATCHES = 2.0
_LOOKS_UNTIL_TIDY = 8


def catch_up(settings: Settings, control: Control) -> tuple[Served, int]:
    """What a worker that starts is to serve, and the generation of the wish that this follows.

    A worker that was replaced may find that the wanted model cannot be loaded, now or ever, or that the one of its
    settings was removed long ago; then it serves what the others serve, or the newest model there is.

    Raises:
        InputError: no model can be loaded.
    """
    wanted = control.wanted()
    if wanted is None:
        return load(settings), 0
    newest = newest_model(Path(settings.watch)) if settings.watch else None
    paths = [wanted.model_path, control.kept(), settings.model_path, None if newest is None else str(newest)]
    *others, last = dict.fromkeys(path for path in paths if path)
    for path in others:
        try:
            return load(settings, path), wanted.generation
        except InputError as error:
            _log.error("%s", error)
    return load(settings, last), wanted.generation


class Follower:
    """Holds what is served and replaces it when the control folder, or a watched folder, says so."""

    def __init__(self, settings: Settings, served: Served, generation: int, engine: Engine, metrics: Metrics) -> None:
        """Report the model that the worker starts with."""
        self.served = served
        # What was measured when the machine was quiet holds for later models too.
        kept = replace(settings, dtype=served.transformer_dtype, dtype_reason=served.reason)
        self._settings = settings if settings.quantize else kept
        self._engine = engine
        self._metrics = metrics
        self._generation = generation
        self._control = Control(Path(settings.control))
        self._tidy_in = 0
        self._seen = written_at(Path(served.path))
        self._report(None)

    async def run(self) -> None:
        """Follow until cancelled."""
        watching = asyncio.ensure_future(self._watch()) if self._settings.watch else None
        try:
            while not self._end_if_orphaned():
                wanted = self._control.wanted()
                if wanted is not None and wanted.generation > self._generation:
                    await self._follow(wanted)
                self._tidy()
                await asyncio.sleep(_SECONDS_BETWEEN_LOOKS)
        finally:
            if watching:
                watching.cancel()

    async def _follow(self, wanted: Wanted) -> None:
        problem = None
        try:
            self.served = await asyncio.to_thread(load, self._settings, wanted.model_path)
            self._engine.replace_model(self.served.model, batch_limits(self._settings, self.served.model))
            self._control.keep(wanted.model_path)
            self._tidy_in = _LOOKS_UNTIL_TIDY
            _log.info("now serving %s, revision %s", self.served.path, self.served.model.revision)
        except P2LError as error:
            problem = str(error)
        except Exception as error:
            problem = f"{wanted.model_path}: cannot be loaded ({type(error).__name__})"
        if problem:
            _log.error("still serving revision %s: %s", self.served.model.revision, problem)
        self._metrics.reloads.labels("failed" if problem else "done").inc()
        self._generation = wanted.generation
        self._report(problem)

    def _end_if_orphaned(self) -> bool:
        """A worker whose supervisor was killed ends as if told to: nobody else could, and it would keep the port."""
        supervisor = parent_process()
        if self._settings.workers == 1 or supervisor is None or supervisor.is_alive():
            return False
        _log.error("the process that started this worker is gone; shutting down")
        shutil.rmtree(self._settings.control, ignore_errors=True)
        os.kill(os.getpid(), signal.SIGTERM)
        return True

    def _tidy(self) -> None:
        """Give the memory of the model before back, a few looks after its last answer."""
        self._tidy_in -= 1
        if self._tidy_in == 0:
            gc.collect()
            return_freed_memory()

    async def _watch(self) -> None:
        """Wish for each newer model of the watched folder; the first worker that sees it speaks for all."""
        while True:
            await asyncio.sleep(_SECONDS_BETWEEN_WATCHES)
            try:
                newest = await asyncio.to_thread(newest_model, Path(str(self._settings.watch)))
            except P2LError as error:
                _log.error("%s", error)
                continue
            stamp = 0 if newest is None else written_at(newest)
            if stamp > self._seen:
                self._seen = stamp
                self._control.want_newer(str(newest), stamp)

    def _report(self, problem: str | None) -> None:
        self._control.report(Status(os.getpid(), self._generation, self.served.model.revision, problem))
