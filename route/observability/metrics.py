"""Metrics of the router for Prometheus, summed over its workers."""

from __future__ import annotations

from functools import cache
from typing import Literal, TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Summary

from p2l.common.processes import exposition, over_workers
from route.observability.recent import Counts
from route.providers.base import ProviderError
from route.routing.decision import Decision

M = TypeVar("M", Counter, Histogram)
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
        self.database = self._gauge("database_up", "Whether the database can be written: 1 or 0.", "livemin")
        self.limits = self._gauge("limits_up", "Whether limits are shared as configured: 1 or 0.", "livemin")
        self.waiting_votes = self._gauge("waiting_votes", "Votes that wait for the database on disk.", "livemax")
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

    def counts(self) -> Counts:
        """Return what the console shows of them, summed over workers."""
        return Counts.of(over_workers(self.registry).collect())

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return _remembering(Counter(f"p2l_router_{name}", text, labels, registry=self.registry))

    def _summary(self, name: str, text: str) -> Summary:
        return Summary(f"p2l_router_{name}", text, registry=self.registry)

    def _gauge(self, name: str, text: str, mode: Literal["livemin", "livemax"], *labels: str) -> Gauge:
        return Gauge(f"p2l_router_{name}", text, labels, registry=self.registry, multiprocess_mode=mode)

    def _histogram(self, name: str, text: str, *labels: str) -> Histogram:
        return _remembering(Histogram(f"p2l_router_{name}", text, labels, buckets=_SECONDS, registry=self.registry))


def _remembering(metric: M) -> M:
    """Let a metric find its children faster, which are never removed; every request looks for six of them."""
    metric.labels = cache(metric.labels)  # type: ignore[method-assign]
    return metric
