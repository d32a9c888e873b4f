"""Metrics of the router for Prometheus, summed over its workers."""

from __future__ import annotations

from functools import cache, partial

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Summary

from p2l.common.processes import exposition, over_workers
from route.observability.recent import Counts
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
        counter = partial(Counter, namespace="p2l_router", registry=self.registry)
        summary = partial(Summary, namespace="p2l_router", registry=self.registry)
        gauge = partial(Gauge, namespace="p2l_router", registry=self.registry)
        histogram = partial(Histogram, namespace="p2l_router", registry=self.registry, buckets=_SECONDS)

        self.requests = counter("requests", "Chat requests answered.", ["model", "status"])
        self.errors = counter("errors", "Faults of models, those that were made up for included.", ["model", "fault"])
        text = "Answers that came in place of another model's, the first one asked."
        self.fallbacks = counter("fallbacks", text, ["model", "instead_of"])
        text = "Answers by the model that the provider names, and whether that is the one asked for: yes or no."
        self.served = counter("served", text, ["model", "served", "expected"])
        self.tokens = counter("tokens", "Tokens as the providers count them.", ["model", "kind"])
        self.cost = counter("cost", "Cost of the answers, in the unit of the configuration.", ["model"])
        self.spend = counter("spend", "The same by key.", ["key"])
        self.unscored = counter("unscored", "Requests routed without scores, by what decided.", ["by"])
        text = "Replies of hooks: passed, changed, refused or failed."
        self.hooks = counter("hooks", text, ["hook", "outcome"])
        text = "Requests that may be answered from the cache: hit, miss, or failed where it cannot be used."
        self.answer_cache = counter("answer_cache", text, ["outcome"])
        self.expected_score = summary("expected_score", "Expected score of the decisions.")
        self.budget = summary("budget", "Budgets of requests that have one.")
        self.expected_cost = summary("expected_cost", "Expected cost of the decisions.")
        # Over all workers the worst counts: one that has no scores or cannot write is a problem.
        self.scored = gauge("p2l_up", "Whether P2L scores prompts: 1 or 0.", multiprocess_mode="livemin")
        text = "Whether the database can be written: 1 or 0."
        self.database = gauge("database_up", text, multiprocess_mode="livemin")
        text = "Whether limits are shared as configured: 1 or 0."
        self.limits = gauge("limits_up", text, multiprocess_mode="livemin")
        text = "Votes that wait for the database on disk."
        self.waiting_votes = gauge("waiting_votes", text, multiprocess_mode="livemax")
        text = "Stored responses that left before their time, to make room for newer ones."
        self.evicted_responses = gauge("evicted_responses", text, multiprocess_mode="livesum")
        text = "Circuit breakers: 0 closed, 1 half open, 2 open."
        self.breakers = gauge("breaker", text, ["model", "deployment"], multiprocess_mode="livemax")
        text = "Seconds from request to the end of the answer."
        self.latency = histogram("request_seconds", text, ["model"])
        text = "Seconds from request to the first token of a stream."
        self.first_token = histogram("first_token_seconds", text, ["model"])
        self.scoring = histogram("scoring_seconds", "Seconds until the scores were there.")
        self.running = gauge("running", "Chat requests under way.", multiprocess_mode="livesum")
        # Every request looks for seven children, for which the library takes a lock; none is ever removed.
        counters = (self.requests, self.errors, self.fallbacks, self.tokens, self.cost, self.spend, self.unscored)
        for metric in (*counters, self.served):
            metric.labels = cache(metric.labels)  # type: ignore[method-assign]
        for timer in (self.latency, self.first_token):
            timer.labels = cache(timer.labels)  # type: ignore[method-assign]

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
