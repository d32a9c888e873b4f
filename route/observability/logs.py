"""The logs of the router: JSON lines, which hold no prompts, answers or keys.

A request is logged by a record with fixed fields, so that nothing else can slip in. Of an unexpected error the type and
the place are logged, not its text, which may quote the request.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import time
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TextIO

LOGGER = logging.getLogger("route")
"""The logger of everything but requests: `LOGGER.warning("...", extra={"fields": {...}})`."""
_SAME_IN_ALL = vars(logging.LogRecord(LOGGER.name, logging.INFO, "", 0, "request", None, None))
# Lines of this time are written together: a write takes longer than all else that logs a request.
_TOGETHER_SECONDS = 0.05


@dataclass
class RequestRecord:
    """One request that has ended; nothing changes it afterwards."""

    request_id: str
    key: str
    """Name of the key, never the key."""
    status: int
    """Status of HTTP; 499: the client went away."""
    seconds: float
    model: str | None = None
    """Which answered, if any."""
    served_model: str | None = None
    """The same as the provider names it."""
    fingerprint: str = ""
    """Of the provider's system, where it says so."""
    tier: str = ""
    """The provider's service tier, where it says so."""
    unexpected_model: bool = False
    """Whether the provider names another model than it was asked for."""
    tried: tuple[str, ...] = ()
    """Every model that was asked, in order."""
    faults: tuple[str, ...] = ()
    """Faults of failed attempts, in order (`route.providers.base.Fault`)."""
    streamed: bool = False
    first_token_seconds: float | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cost: float | None = None
    cost_is_estimated: bool = False
    budget: float | None = None
    probabilities: Mapping[str, float] | None = None
    """Probabilities of the mixture that the model was drawn from."""
    propensity: float | None = None
    """Probability of the choice, exploring included."""
    explored: bool = False
    static: bool = False
    average: bool = False
    sticky: bool = False
    revision: str = ""
    """Revision of the P2L model."""
    familiarity: float | None = None
    """Share of the prompt's own departure from the overall leaderboard that is kept."""
    code: str | None = None
    """Code of the error that the client got."""
    trial: Mapping[str, Any] | None = None
    """What it tells of an experiment's policies (`route.routing.experiments.Trial`)."""
    tags: Mapping[str, str] | None = None
    hooks_passed_over: tuple[str, ...] = ()
    """Hooks that failed and were passed over."""


def log_request(record: RequestRecord) -> None:
    """Write one line; fields that are None, False or empty are left out."""
    if LOGGER.isEnabledFor(logging.INFO):
        # By hand: what else Python's logging finds out for a line, and no line says, takes longer than all of it.
        line = logging.LogRecord.__new__(logging.LogRecord)
        # The record itself, so that its text is made when lines are written together.
        vars(line).update(_SAME_IN_ALL, created=time.time(), fields=record)
        LOGGER.handle(line)


def _short(entry: Any) -> Any:
    """Round numbers to six digits."""
    if isinstance(entry, float):
        return float(f"{entry:.6g}")
    if isinstance(entry, dict):
        return {name: _short(part) for name, part in entry.items()}
    return entry


def set_up_logs(stream: TextIO | None = None) -> None:
    """Log everything, uvicorn's lines too, to `stream` (standard error) as JSON lines.

    Uvicorn's line per request is left out, since the router writes its own. Start uvicorn with `log_config=None`.
    """
    # What no line says: finding it would take as long as writing the line.
    logging._srcfile = None
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    handler = _Together(stream or sys.stderr)
    handler.setFormatter(_JsonLines())
    logging.basicConfig(handlers=[handler], level=logging.INFO, force=True)
    for name in ("uvicorn", "uvicorn.error", "uvicorn.access"):  # which may have been configured before
        logging.getLogger(name).handlers.clear()
        logging.getLogger(name).propagate = True
    for chatty in ("uvicorn.access", "httpx2"):  # which log a line for every request
        logging.getLogger(chatty).setLevel(logging.WARNING)


class _Together(logging.StreamHandler[TextIO]):
    """Writes what an event loop logs after a moment, in its order; warnings, and what no loop logs, at once."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__(stream)
        self._records: list[logging.LogRecord] = []
        self._loop: asyncio.AbstractEventLoop | None = None

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._records.append(record)
            loop: asyncio.AbstractEventLoop | None
            try:
                loop = asyncio.get_running_loop()
            except RuntimeError:  # in a thread, as of the database
                loop = None
            if loop is None or record.levelno > logging.INFO:
                self.flush()
            elif len(self._records) == 1 or loop is not self._loop:  # a loop that has ended flushes nothing
                self._loop = loop
                loop.call_later(_TOGETHER_SECONDS, self.flush)
        except Exception:  # as of any handler: what is logged ends nothing
            self.handleError(record)

    def flush(self) -> None:
        self.acquire()
        try:
            if self._records:
                records, self._records = self._records, []
                self.stream.write("".join(map(self._line, records)))
            super().flush()
        finally:
            self.release()

    def _line(self, record: logging.LogRecord) -> str:
        try:
            return self.format(record) + self.terminator
        except Exception:
            self.handleError(record)
            return ""


_JSON = json.JSONEncoder(default=str)


class _JsonLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": f"{_iso_second(int(record.created))}.{int(record.created % 1 * 1000):03d}Z",
            "level": record.levelname.lower(),
            "event": record.getMessage(),
        }
        if record.name != LOGGER.name:
            line["logger"] = record.name
        fields = getattr(record, "fields", {})
        if isinstance(fields, RequestRecord):
            for name, entry in vars(fields).items():
                if entry is not None and entry is not False and entry != "" and entry != ():
                    line[name] = entry if isinstance(entry, str) else _short(entry)
        else:
            line.update(fields)
        if record.exc_info and record.exc_info[0]:
            # Type and place alone, innermost last: the text of an error may quote the request.
            line["error"] = record.exc_info[0].__name__
            frames = traceback.extract_tb(record.exc_info[2])
            line["at"] = [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in frames]
        return _JSON.encode(line).replace("\x7f", "")  # it escapes all else that `printable` would remove


@lru_cache(maxsize=1)
def _iso_second(second: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second))
