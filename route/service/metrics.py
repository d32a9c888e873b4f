"""Counters of the router for Prometheus, of one process or summed over its workers."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from p2l.serving.metrics import exposition
from route.providers.base import ProviderError

__all__ = ["NOBODY", "RouterMetrics"]

NOBODY = "none"
"""The model of a request that none answered."""

_SECONDS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600)


class RouterMetrics:
    """What the router counts."""

    def __init__(self) -> None:
        """Start at zero."""
        self.registry = CollectorRegistry()
        self.requests = self._counter("requests", "Chat requests answered.", "model", "status")
        self.errors = self._counter(
            "errors", "Faults of models, those that were made up for included.", "model", "fault"
        )
        self.fallbacks = self._counter("fallbacks", "Answers that came in place of another model's.", "model")
        self.tokens = self._counter("tokens", "Tokens as the providers count them.", "model", "kind")
        self.cost = self._counter("cost", "Cost of the answers, in the unit of the configuration.", "model")
        self.spend = self._counter("spend", "The same by key.", "key")
        self.static = self._counter("static", "Requests routed without scores.")
        self.latency = self._histogram("request_seconds", "Seconds from request to the end of the answer.")
        self.first_token = self._histogram(
            "first_token_seconds", "Seconds from request to the first token of a stream."
        )
        self.scoring = Histogram(
            "p2l_router_scoring_seconds",
            "Seconds until the scores were there.",
            buckets=_SECONDS,
            registry=self.registry,
        )
        self.running = Gauge(
            "p2l_router_running",
            "Chat requests under way.",
            registry=self.registry,
            multiprocess_mode="livesum",
        )

    def failed(self, model: str, error: ProviderError) -> None:
        """A model gave no answer."""
        self.errors.labels(model, error.fault.value).inc()

    def used(self, model: str, tokens: tuple[int | None, int | None]) -> None:
        """Tokens of prompt and answer."""
        for kind, count in zip(("prompt", "completion"), tokens, strict=True):
            if count:
                self.tokens.labels(model, kind).inc(count)

    def text(self) -> bytes:
        """All of it in Prometheus' text format, over all workers."""
        return exposition(self.registry)

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"p2l_router_{name}", text, labels, registry=self.registry)

    def _histogram(self, name: str, text: str) -> Histogram:
        return Histogram(f"p2l_router_{name}", text, ["model"], buckets=_SECONDS, registry=self.registry)
