"""Metrics of the router for Prometheus, and its logs as JSON lines, which hold no prompts, answers or keys.

A request is logged by a record with fixed fields, so that nothing else can slip in. Of an unexpected error the type and
the place are logged, not its text, which may quote the request.
"""

from __future__ import annotations

import json
import logging
import sys
import time
import traceback
from collections.abc import Mapping
from dataclasses import dataclass, fields
from types import TracebackType
from typing import Any, Literal, TextIO

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Summary

from p2l.common.display import printable
from p2l.common.web import exposition
from route.providers.base import ProviderError
from route.routing.decision import Decision

NOBODY = "none"
"""The label of a request that no model answered."""
_SECONDS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600)


class RouterMetrics:
    """The metrics of one worker."""

    def __init__(self) -> None:
        """Start at zero."""
        self.registry = CollectorRegistry()
        self.requests = self._counter("requests", "Chat requests answered.", "model", "status")
        self.errors = self._counter(
            "errors", "Faults of models, those that were made up for included.", "model", "fault"
        )
        self.fallbacks = self._counter(
            "fallbacks", "Answers that came in place of another model's, the first one asked.", "model", "instead_of"
        )
        self.tokens = self._counter("tokens", "Tokens as the providers count them.", "model", "kind")
        self.cost = self._counter("cost", "Cost of the answers, in the unit of the configuration.", "model")
        self.spend = self._counter("spend", "The same by key.", "key")
        self.unscored = self._counter("unscored", "Requests routed without scores, by what decided.", "by")
        self.expected_score = self._summary("expected_score", "Expected score of the decisions.")
        self.budget = self._summary("budget", "Budgets of requests that have one.")
        self.expected_cost = self._summary("expected_cost", "Expected cost of the decisions.")
        self.scored = self._gauge("p2l_up", "Whether P2L scores prompts: 1 or 0.", "livemin")
        self.breakers = self._gauge(
            "breaker", "Circuit breakers: 0 closed, 1 half open, 2 open.", "livemax", "model", "deployment"
        )
        self.latency = self._histogram("request_seconds", "Seconds from request to the end of the answer.", "model")
        self.first_token = self._histogram(
            "first_token_seconds", "Seconds from request to the first token of a stream.", "model"
        )
        self.scoring = self._histogram("scoring_seconds", "Seconds until the scores were there.")
        self.running = Gauge(
            "p2l_router_running", "Chat requests under way.", registry=self.registry, multiprocess_mode="livesum"
        )

    def failed(self, model: str, error: ProviderError) -> None:
        """Count a fault of a model."""
        self.errors.labels(model, error.fault.value).inc()

    def decided(self, decision: Decision) -> None:
        """Count a decision."""
        if decision.static or decision.average:
            self.unscored.labels("average" if decision.average else "static").inc()
        if decision.expected_score is not None:
            self.expected_score.observe(decision.expected_score)
        if decision.budget is not None:
            self.budget.observe(decision.budget)
        self.expected_cost.observe(decision.expected_cost)

    def used(self, model: str, tokens: tuple[int | None, int | None]) -> None:
        """Count the tokens of prompt and answer."""
        for kind, count in zip(("prompt", "completion"), tokens, strict=True):
            if count:
                self.tokens.labels(model, kind).inc(count)

    def text(self) -> bytes:
        """Return all metrics in Prometheus' text format, summed over workers."""
        return exposition(self.registry)

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"p2l_router_{name}", text, labels, registry=self.registry)

    def _summary(self, name: str, text: str) -> Summary:
        return Summary(f"p2l_router_{name}", text, registry=self.registry)

    def _gauge(self, name: str, text: str, mode: Literal["livemin", "livemax"], *labels: str) -> Gauge:
        return Gauge(f"p2l_router_{name}", text, labels, registry=self.registry, multiprocess_mode=mode)

    def _histogram(self, name: str, text: str, *labels: str) -> Histogram:
        return Histogram(f"p2l_router_{name}", text, labels, buckets=_SECONDS, registry=self.registry)


LOGGER = logging.getLogger("route")
"""The logger of everything but requests: `LOGGER.warning("...", extra={"fields": {...}})`."""


@dataclass(frozen=True)
class RequestRecord:
    """One request that has ended."""

    request_id: str
    key: str
    """Name of the key, never the key."""
    status: int
    """Of HTTP; 499: the client went away."""
    seconds: float
    model: str | None = None
    """Which answered, if any."""
    tried: tuple[str, ...] = ()
    """Every model that was asked, in order."""
    faults: tuple[str, ...] = ()
    """Of those that failed, in order (`route.providers.base.Fault`)."""
    streamed: bool = False
    first_token_seconds: float | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cost: float | None = None
    budget: float | None = None
    probabilities: Mapping[str, float] | None = None
    """Of the mixture that was drawn from."""
    propensity: float | None = None
    """Probability of the choice, exploring included."""
    explored: bool = False
    static: bool = False
    average: bool = False
    sticky: bool = False
    revision: str = ""
    """Of the P2L model."""
    code: str | None = None
    """Of the error the client got."""


def log_request(record: RequestRecord) -> None:
    """Write one line; fields that are None, False or empty are left out."""
    if LOGGER.isEnabledFor(logging.INFO):
        entries = {field.name: getattr(record, field.name) for field in fields(record)}
        LOGGER.info(
            "request", extra={"fields": {name: _short(entry) for name, entry in entries.items() if _is_set(entry)}}
        )


def _is_set(entry: Any) -> bool:
    return entry is not None and entry is not False and entry not in ("", ())


def _short(entry: Any) -> Any:
    """Round numbers to six digits."""
    if isinstance(entry, float):
        return float(f"{entry:.6g}")
    if isinstance(entry, Mapping):
        return {name: _short(part) for name, part in entry.items()}
    return entry


def set_up_logs(stream: TextIO | None = None, level: int = logging.INFO) -> None:
    """Log everything, uvicorn's lines too, to `stream` (standard error) as JSON lines.

    Uvicorn's line per request is left out, since the router writes its own. Start uvicorn with `log_config=None`.
    """
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(_JsonLines())
    logging.basicConfig(handlers=[handler], level=level, force=True)
    for name in ("uvicorn", "uvicorn.error", "uvicorn.access"):  # which may have been configured before
        logging.getLogger(name).handlers.clear()
        logging.getLogger(name).propagate = True
    for chatty in ("uvicorn.access", "httpx2"):  # which log a line for every request
        logging.getLogger(chatty).setLevel(logging.WARNING)


class _JsonLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": _iso(record.created),
            "level": record.levelname.lower(),
            "event": record.getMessage(),
        }
        if record.name != LOGGER.name:
            line["logger"] = record.name
        line.update(getattr(record, "fields", {}))
        if record.exc_info and record.exc_info[0]:
            line["error"], line["at"] = record.exc_info[0].__name__, _places(record.exc_info[2])
        return printable(json.dumps(line, default=str))  # JSON escapes all of it but DEL


def _iso(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds)) + f".{int(seconds % 1 * 1000):03d}Z"


def _places(trace: TracebackType | None) -> list[str]:
    """Return file, line and function of each frame, innermost last, without the texts of errors."""
    return [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in traceback.extract_tb(trace)]
