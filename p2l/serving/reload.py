"""A worker follows: it loads the model that the service is to serve, without dropping a request."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import json
import logging
import os
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from p2l.common.errors import CheckpointError, InputError, P2LError
from p2l.common.files import locked
from p2l.common.processes import is_alive
from p2l.inference import P2L, choose_device
from p2l.model.checkpoint import Stamp, check_contents, stamp_of
from p2l.model.model import to_dtype
from p2l.model.openvino import CompiledBackbone, is_light, layers_of, text_model
from p2l.model.precision import PROBES, choose_dtype, in_dtype, quantize
from p2l.serving.batcher import Batcher, BatchLimits
from p2l.serving.metrics import Metrics
from p2l.serving.probing import check_model
from p2l.serving.settings import Settings
from p2l.serving.watching import Settled, Watch, models_in, newest_model, written_at

# How the workers of one service agree on the model: files in a folder that only this service can read.
#
# `target.json` says which model every worker is to serve, with a number that grows; each worker answers in a file of
# its own when it serves that model, or why it does not. A worker that is started anew begins with the target, or with
# the last one that could be loaded, which `kept.json` names.


@dataclass(frozen=True)
class Target:
    """The model that every worker is to serve."""

    generation: int
    model_path: str


@dataclass(frozen=True)
class Status:
    """How far one worker has followed the targets."""

    pid: int
    generation: int
    revision: str
    problem: str | None = None
    """Why the worker serves the model before."""


class Control:
    """The control folder of a service, which exists."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def target(self) -> Target | None:
        """Return what is to be served; None before the first `set_target`."""
        content = _read(self._folder / "target.json")
        return None if content is None else Target(**content)

    def set_target(self, model_path: str) -> Target:
        """Let every worker load a model (again); return the target."""
        with locked(self._folder / "target.lock"):
            last = self.target()
            target = Target(1 if last is None else last.generation + 1, model_path)
            _write(self._folder / "target.json", asdict(target))
            return target

    def turn(self, purpose: Literal["reload", "watch"]) -> contextlib.AbstractContextManager[bool]:
        """Yield whether it is this caller's turn; it is nobody else's until the block ends."""
        return locked(self._folder / f"{purpose}.lock", wait=False)

    def loading(self) -> contextlib.AbstractContextManager[bool]:
        """Wait until no other worker loads a model; none does until the end."""
        return locked(self._folder / "load.lock")

    def settled(self) -> dict[str, Settled] | None:
        """Return what the worker that watched before had decided on; None before the first."""
        content = _read(self._folder / "settled.json")
        if content is None:
            return None
        return {path: Settled(Stamp(*stamp), revision) for path, (stamp, revision) in content.items()}

    def settle(self, settled: Mapping[str, Settled]) -> None:
        """Keep what was decided on, for the worker that watches next."""
        entries = {path: [entry.stamp, entry.revision] for path, entry in settled.items()}
        _write(self._folder / "settled.json", entries)

    def kept(self) -> str | None:
        """Return the path of the last target that could be loaded."""
        content = _read(self._folder / "kept.json")
        return None if content is None else str(content)

    def keep(self, model_path: str) -> None:
        """Record a target that could be loaded."""
        _write(self._folder / "kept.json", model_path)

    def report(self, status: Status) -> None:
        """Record what this worker serves."""
        _write(self._folder / f"worker-{status.pid}.json", asdict(status))

    def statuses(self) -> list[Status]:
        """Return the last report of each living worker."""
        contents = [_read(file) for file in sorted(self._folder.glob("worker-*.json"))]
        statuses = [Status(**content) for content in contents if content is not None]
        return [status for status in statuses if is_alive(status.pid)]


def _read(file: Path) -> Any:
    try:
        return json.loads(file.read_text("utf-8"))
    except FileNotFoundError:
        return None


def _write(file: Path, content: Any) -> None:
    # Others read at any time, and find the file whole.
    temporary = file.with_suffix(f".{os.getpid()}.tmp")
    temporary.write_text(json.dumps(content), "utf-8")
    temporary.replace(file)


# A model as it is served: where it runs, in which precision, and why.

_CPU_BATCH_TOKENS = 1024
_COMPILED_BATCH_TOKENS = 256  # under one mask: twice as many tokens attend four times as long
_GPU_BATCH_TOKENS = 16_384
_GPU_WAIT_MS = 2.0
_COMPANY_SECONDS = 0.004
_MAX_BATCH_PROMPTS = 256
_MAX_STREAMS = 4
_SHORT_PROMPT_TOKENS = 2048  # tokens that a light model reads in some hundredths of a second


@dataclass(frozen=True)
class Served:
    """A loaded model and how its precision was chosen."""

    model: P2L
    path: str
    dtype: str
    reason: str
    stamp: Stamp | None = None
    """Of the files that it was loaded from, for a model in a watched folder."""

    @property
    def transformer_dtype(self) -> str:
        """The precision that its transformers compute in."""
        return "bfloat16" if "bfloat16" in self.dtype else "float32"


def load(settings: Settings, path: str | None = None) -> Served:
    """Load the model of the settings, or of `path` as they say, and make it ready to answer; InputError if unusable."""
    # In a thread of its own, whose OpenMP helpers end with it (see `start_streams`).
    with ThreadPoolExecutor(1) as thread:
        served = thread.submit(_load, settings, path).result()
    return_freed_memory()
    return served


def _load(settings: Settings, path: str | None) -> Served:
    if path is not None:
        settings = replace(settings, model_path=path)
    folder = None
    if settings.watch is not None:
        # A model in the watched folder may be half copied.
        watched, model_folder = Path(settings.watch), Path(settings.model_path)
        folder = model_folder if watched in (model_folder, model_folder.parent) else None
    stamp = None if folder is None else stamp_of(folder)
    check_model(settings.model_path, settings.max_length, Path(settings.control) if settings.control else None)
    model = P2L.from_pretrained(
        settings.model_path,
        device=settings.device,
        # What is measured, rounded or laid out on a CPU starts from float32.
        dtype="float32" if choose_device(settings.device).type == "cpu" else settings.dtype,
        model_type=settings.model_type,
        head_type=settings.head_type,
        loss_type=settings.loss_type,
        max_length=settings.max_length,
    )
    if not np.isfinite(model.predict([list(prompt) for prompt in PROBES[:1]]).coefs).all():
        raise CheckpointError(f"{settings.model_path}: its coefficients are not finite numbers; copy the folder again")
    dtype, reason = _prepare(model, settings)
    _ = model.revision  # computed here and kept, not when the first answer needs it
    if folder is not None:
        check_contents(folder, model.digests)
        if stamp is None or stamp_of(folder) != stamp:
            raise CheckpointError(f"{folder}: changed while it was loaded; it is loaded again when its files rest")
    return Served(model=model, path=settings.model_path, dtype=dtype, reason=reason, stamp=stamp)


def _prepare(p2l: P2L, settings: Settings) -> tuple[str, str]:
    """Bring the model into the form that answers fastest; return its dtype, and why."""
    p2l.tokenizer.forget_words()
    model, tokenizer, cores = p2l.model, p2l.tokenizer, settings.cores
    if settings.quantize:
        dtype, reason = settings.quantize, str(quantize(model, tokenizer, settings.quantize, threads=cores))
    else:
        if settings.dtype is None:
            choice = choose_dtype(model, tokenizer, threads=cores)
        else:
            choice = in_dtype(model, tokenizer, to_dtype(settings.dtype), settings.dtype_reason, threads=cores)
        p2l.model = choice.model
        dtype, reason = str(choice.dtype).removeprefix("torch."), choice.reason
    backbone = text_model(p2l.model)
    if isinstance(backbone, CompiledBackbone):
        # Laid out for as many passes as threads will compute, and its code made before the first request.
        backbone.divide(batch_limits(settings, p2l).streams)
        backbone.warm_up(p2l.tokenizer.max_length)
    return dtype, reason


def batch_limits(settings: Settings, model: P2L) -> BatchLimits:
    """Return what shares a forward pass and how many threads compute, where the settings do not say it."""
    on_cpu = model.device.type == "cpu"
    compiled = isinstance(text_model(model.model), CompiledBackbone)
    usual_tokens = _GPU_BATCH_TOKENS
    if on_cpu:
        usual_tokens = _COMPILED_BATCH_TOKENS if compiled else _CPU_BATCH_TOKENS
    # On a CPU a pass takes what is there at once: its time grows with its tokens, so waiting for company gains nothing.
    wait_ms = settings.max_wait_ms if settings.max_wait_ms is not None else (0.0 if on_cpu else _GPU_WAIT_MS)
    light = on_cpu and is_light(model.model)
    reads_tokens = compiled or bool(layers_of(model.model))  # others take no longer for a longer prompt
    # The event loop may not be held up: neither by waiting for company nor by a long prompt.
    short = not wait_ms and (not reads_tokens or model.tokenizer.max_length <= _SHORT_PROMPT_TOKENS)
    cores = settings.cores or torch.get_num_threads()
    streams = settings.streams
    if streams is None:
        streams = 1 if light or not on_cpu else min(_MAX_STREAMS, cores)
        streams = 0 if light and short else streams
    return BatchLimits(
        tokens=settings.max_batch_tokens or usual_tokens,
        prompts=_MAX_BATCH_PROMPTS,
        wait=wait_ms / 1000,
        company=_COMPANY_SECONDS if on_cpu and settings.max_wait_ms is None else 0.0,
        threads=1 if light else settings.cores,
        streams=streams,
    )


def return_freed_memory() -> bool:
    """Let glibc hand all freed blocks of this process to the system, once; False where it is not there."""
    if not sys.platform.startswith("linux"):
        return False
    try:
        trim = ctypes.CDLL("libc.so.6").malloc_trim
    except (OSError, AttributeError):
        return False
    return bool(trim(0))


_log = logging.getLogger("p2l.serving")
_SECONDS_BETWEEN_LOOKS = 0.25
_SECONDS_BETWEEN_WATCHES = 1.0
_LOOKS_UNTIL_TIDY = 8


def catch_up(settings: Settings, control: Control) -> tuple[Served, int]:
    """Load the model that a worker begins with, and return it with the generation of the target that this follows.

    InputError if no model can be loaded.
    """
    target = control.target()
    if target is None:
        return load(settings), 0
    # A worker that was replaced may find that the target cannot be loaded, now or ever, or that the one of its settings
    # was removed long ago; then it serves what the others serve, or the newest model there is.
    newest = newest_model(Path(settings.watch)) if settings.watch else None
    paths = [target.model_path, control.kept(), settings.model_path, None if newest is None else str(newest)]
    *others, last = dict.fromkeys(path for path in paths if path)
    for path in others:
        try:
            return load(settings, path), target.generation
        except InputError as error:
            _log.error("%s", error)
    return load(settings, last), target.generation


class Follower:
    """Holds what is served and replaces it when the control folder, or a watched folder, says so."""

    def __init__(self, settings: Settings, served: Served, generation: int, batcher: Batcher, metrics: Metrics) -> None:
        """Report the model that the worker starts with."""
        self.served = served
        # What was measured when the machine was quiet holds for later models too.
        measured = replace(settings, dtype=served.transformer_dtype, dtype_reason=served.reason)
        self._settings = settings if settings.quantize else measured
        self._batcher = batcher
        self._metrics = metrics
        self.generation = generation
        """Number of the target that was followed last, whether it could be loaded or not."""
        self._control = Control(Path(settings.control))
        self._looks_until_tidy = 0
        self._told: tuple[str, str] | None = None
        self._report(None)

    async def run(self) -> None:
        """Follow until cancelled."""
        watching = asyncio.ensure_future(self._watch()) if self._settings.watch else None
        try:
            while True:
                target = self._control.target()
                if target is not None and target.generation > self.generation:
                    await self._follow(target)
                # The memory of the model before is given back a few looks after its last answer.
                self._looks_until_tidy -= 1
                if self._looks_until_tidy == 0:
                    gc.collect()
                    return_freed_memory()
                await asyncio.sleep(_SECONDS_BETWEEN_LOOKS)
        finally:
            if watching:
                watching.cancel()

    async def _follow(self, target: Target) -> None:
        problem = None
        try:
            self.served = await asyncio.to_thread(self._load, target.model_path)
            self._batcher.replace_model(self.served.model, batch_limits(self._settings, self.served.model))
            self._control.keep(target.model_path)
            self._looks_until_tidy = _LOOKS_UNTIL_TIDY
            _log.info("now serving %s, revision %s", self.served.path, self.served.model.revision)
        except P2LError as error:
            problem = str(error)
        except Exception as error:
            problem = f"{target.model_path}: cannot be loaded ({type(error).__name__})"
        if problem and self._settings.watch and not Path(target.model_path).exists():
            _log.info("%s was taken out before it was loaded", target.model_path)  # a rollback, after another one
        elif problem and self._told != (target.model_path, problem):
            _log.error("still serving revision %s: %s", self.served.model.revision, problem)
        self._told = (target.model_path, problem) if problem else None
        self._metrics.reloads.labels("failed" if problem else "done").inc()
        self.generation = target.generation
        self._report(problem)

    def _load(self, path: str) -> Served:
        # Workers that load at once would need the memory of a model each, beside what they serve.
        with self._control.loading() if self._settings.in_turn else contextlib.nullcontext():
            return load(self._settings, path)

    async def _watch(self) -> None:
        """Make each model that arrives in the watched folder the target, if no other worker does."""
        folder, problem = Path(str(self._settings.watch)), None
        while True:
            try:
                with self._control.turn("watch") as is_mine:
                    if is_mine:
                        await self._watch_for_all(folder)
            except P2LError as error:
                if str(error) != problem:  # logged once, however long it lasts
                    _log.error("%s", error)
                problem = str(error)
            await asyncio.sleep(_SECONDS_BETWEEN_WATCHES)

    async def _watch_for_all(self, folder: Path) -> None:
        settled = self._control.settled()
        watch = Watch(folder, await asyncio.to_thread(self._already_there, folder) if settled is None else settled)
        while True:
            self._control.settle(watch.settled)
            await asyncio.sleep(_SECONDS_BETWEEN_WATCHES)
            path = await asyncio.to_thread(watch.look)
            if path is None:
                continue
            if await self._is_loaded(self._control.set_target(str(path))):
                watch.loaded(path, self.served.model.revision if Path(self.served.path) == path else None)
            else:
                watch.failed(path)

    def _already_there(self, folder: Path) -> dict[str, Settled]:
        """Return what is no news at the start: the model that is served, and those with older weights."""
        served = Path(self.served.path)
        settled = {}
        for path in models_in(folder):
            stamp = stamp_of(path)
            if stamp is not None and path != served and 0 < written_at(path) <= written_at(served):
                settled[str(path)] = Settled(stamp)
        if self.served.stamp is not None:
            settled[str(served)] = Settled(self.served.stamp, self.served.model.revision)
        return settled

    async def _is_loaded(self, target: Target) -> bool:
        """Wait for all workers; return whether each could load the target, or somebody has set another."""
        while True:
            await asyncio.sleep(_SECONDS_BETWEEN_LOOKS)
            statuses = self._control.statuses()
            if self._control.target() != target:
                return True
            if statuses and all(status.generation >= target.generation for status in statuses):
                return not any(status.problem for status in statuses)

    def _report(self, problem: str | None) -> None:
        self._control.report(Status(os.getpid(), self.generation, self.served.model.revision, problem))
