"""Counters for Prometheus, of one process or summed over the workers of a service."""

from __future__ import annotations

import time
from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from p2l.common.processes import exposition

_SECOND_BUCKETS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60)
_PROMPT_BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
_TOKEN_BUCKETS = (32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768)


class Metrics:
    """The counters of one endpoint."""

    def __init__(self) -> None:
        """Start at zero."""
        self.registry = CollectorRegistry()
        self.requests = Counter("p2l_requests", "Requests answered.", ["route", "status"], registry=self.registry)
        self.latency = self._histogram(
            "p2l_request_seconds", "Seconds from request to response.", _SECOND_BUCKETS, ["route"]
        )
        self.batch_prompts = self._histogram("p2l_batch_prompts", "Prompts in a forward pass.", _PROMPT_BUCKETS)
        self.batch_tokens = self._histogram("p2l_batch_tokens", "Tokens in a forward pass.", _TOKEN_BUCKETS)
        self.batch_seconds = self._histogram("p2l_batch_seconds", "Seconds of a forward pass.", _SECOND_BUCKETS)
        self.prompts = Counter("p2l_prompts", "Prompts looked up.", registry=self.registry)
        self.cache_hits = Counter("p2l_cache_hits", "Prompts answered from the cache.", registry=self.registry)
        self.shared_hits = Counter("p2l_shared_cache_hits", "Prompts other workers knew.", registry=self.registry)
        self.gone = Counter(
            "p2l_dropped", "Prompts dropped: the client left or its time was up.", registry=self.registry
        )
        self.full = Counter("p2l_refused", "Prompts refused because the queue was full.", registry=self.registry)
        self.reloads = Counter("p2l_reloads", "Models loaded while serving.", ["result"], registry=self.registry)
        self.pending = Gauge(
            "p2l_pending_prompts",
            "Prompts between arrival and answer.",
            registry=self.registry,
            multiprocess_mode="livesum",
        )

    def text(self) -> bytes:
        """Return all of it in Prometheus' text format, over all workers."""
        return exposition(self.registry)

    def _histogram(
        self, name: str, text: str, buckets: tuple[float, ...], labels: list[str] | None = None
    ) -> Histogram:
        return Histogram(name, text, labels or [], buckets=buckets, registry=self.registry)


class RequestCounter:
    """Middleware that counts requests and their time by route; unknown paths are one."""

    def __init__(self, app: ASGIApp, metrics: Metrics, routes: Iterable[str]) -> None:
        """Count into `metrics`."""
        self.app = app
        self._metrics = metrics
        self._routes = frozenset(routes)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on and note its status."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        route = scope["path"] if scope["path"] in self._routes else "other"
        started = time.perf_counter()

        async def counted(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._metrics.requests.labels(route, str(message["status"])).inc()
                self._metrics.latency.labels(route).observe(time.perf_counter() - started)
            await send(message)

        await self.app(scope, receive, counted)
