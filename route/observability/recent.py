"""The last hour, for the console: the latest requests, a sample of decisions, and rates over time.

Everything is bounded and in memory. Rates are differences of the metrics, which count over all workers, taken every two
seconds; requests and decisions are those of this worker alone.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import TypeAlias

from prometheus_client.metrics_core import Metric

from route.observability.logs import RequestRecord
from route.routing.decision import Decision

POINT_SECONDS = 2.0
_HOUR = 3600.0
_MINUTE = 60.0
_LATEST = 100  # requests
_SAMPLE_SECONDS = 1.0  # between two decisions of the sample
_NAMES = {
    "p2l_router_requests_total": "requests",
    "p2l_router_errors_total": "errors",
    "p2l_router_fallbacks_total": "fallbacks",
    "p2l_router_cost_total": "cost",
}
_BUCKETS = "p2l_router_request_seconds_bucket"
_RUNNING = "p2l_router_running"
Point: TypeAlias = "dict[str, float | None]"


@dataclass(frozen=True)
class RecentRequest:
    """A request that has ended, as the console shows it."""

    record: RequestRecord
    time: float
    """Seconds since 1970, of its end."""
    decision: Decision | None
    prompt: Sequence[str] | None = None
    """Only where prompts are stored."""


@dataclass
class _DecisionSums:
    """Sums over decisions that had scores."""

    decisions: int = 0
    cost: float = 0.0
    """Sum of their expected costs."""
    scored: int = 0
    score: float = 0.0
    """Sum of the expected scores, which `scored` of them have."""
    costs: dict[str, tuple[int, float]] = field(default_factory=dict)
    """Decisions in which a model had a cost, and the sum of these costs, by model."""
    scores: dict[str, tuple[int, float]] = field(default_factory=dict)

    def add(self, decision: Decision) -> None:
        """Add a decision."""
        self.decisions += 1
        self.cost += decision.expected_cost
        if decision.expected_score is not None:
            self.scored += 1
            self.score += decision.expected_score
        _add(self.costs, {name: (1, cost) for name, cost in decision.costs.items()})
        _add(self.scores, {name: (1, score) for name, score in decision.scores.items()})

    def join(self, other: _DecisionSums) -> None:
        """Add the sums of other decisions."""
        self.decisions += other.decisions
        self.cost += other.cost
        self.scored += other.scored
        self.score += other.score
        _add(self.costs, other.costs)
        _add(self.scores, other.scores)


def _add(sums: dict[str, tuple[int, float]], more: Mapping[str, tuple[int, float]]) -> None:
    for name, (number, total) in more.items():
        before = sums.get(name, (0, 0.0))
        sums[name] = before[0] + number, before[1] + total


@dataclass
class Counts:
    """Sums of the metrics over all workers at one moment."""

    sums: dict[str, float] = field(default_factory=lambda: dict.fromkeys(_NAMES.values(), 0.0))
    failed: float = 0.0
    """Requests that ended with a status of 500 or more."""
    running: float = 0.0
    answers: dict[str, float] = field(default_factory=dict)
    """Answered requests by model."""
    buckets: dict[float, float] = field(default_factory=dict)
    """Requests by the bound, in seconds, that they took at most."""

    @classmethod
    def of(cls, families: Iterable[Metric]) -> Counts:
        """Read the metrics of the router."""
        counts = cls()
        for sample in (sample for family in families for sample in family.samples):
            name, labels = sample.name, sample.labels
            if name in _NAMES:
                counts.sums[_NAMES[name]] += sample.value
                if name == "p2l_router_requests_total" and labels["status"] == "200":
                    model = labels["model"]
                    counts.answers[model] = counts.answers.get(model, 0.0) + sample.value
                elif name == "p2l_router_requests_total" and labels["status"] >= "500":
                    counts.failed += sample.value
            elif name == _BUCKETS:
                most = float(labels["le"])
                counts.buckets[most] = counts.buckets.get(most, 0.0) + sample.value
            elif name == _RUNNING:
                counts.running += sample.value
        return counts


class Recent:
    """The last hour of one worker; used from its event loop."""

    def __init__(self) -> None:
        """Start empty."""
        self.requests: deque[RecentRequest] = deque(maxlen=_LATEST)
        self.noted = 0
        """Requests since the start; the last of them are `requests`."""
        self.points: deque[Point] = deque(maxlen=int(_HOUR / POINT_SECONDS))
        self.counts = Counts()
        self.expected: dict[str, tuple[int, float]] = {}
        """Scored decisions for a model, and the sum of its scores there, by model."""
        self.voted: dict[str, tuple[float, int]] = {}
        """Points of a model in votes and its comparisons, by model; read anew after `voted_until`."""
        self.voted_until = 0.0
        self._minutes: deque[tuple[float, _DecisionSums]] = deque(maxlen=int(_HOUR / _MINUTE))
        self._sampled = 0.0
        self._before: tuple[float, Counts] | None = None

    def note(self, record: RequestRecord, decision: Decision | None, prompt: Sequence[str] | None) -> None:
        """Remember a request that has ended."""
        now = time.time()
        self.noted += 1
        self.requests.append(RecentRequest(record, now, decision, prompt))
        if decision is None or not decision.scores:
            return
        number, total = self.expected.get(decision.model, (0, 0.0))
        self.expected[decision.model] = number + 1, total + decision.scores.get(decision.model, 0.0)
        # Adding a decision walks over all its models, so that only one a second is added.
        if now - self._sampled >= _SAMPLE_SECONDS:
            self._sampled = now
            if not self._minutes or now - self._minutes[-1][0] >= _MINUTE:
                self._minutes.append((now, _DecisionSums()))
            self._minutes[-1][1].add(decision)

    def hour(self) -> _DecisionSums:
        """Return sums over a sample of the decisions of the last hour that had scores."""
        sums, since = _DecisionSums(), time.time() - _HOUR
        for when, minute in self._minutes:
            if when >= since:
                sums.join(minute)
        return sums

    def since(self, when: float) -> list[Point]:
        """Return the points after a time, in their order."""
        later = takewhile(lambda point: (point["time"] or 0.0) > when, reversed(self.points))
        return list(later)[::-1]

    def observe(self, counts: Counts) -> None:
        """Add a point of rates: what changed since the last counts, per second."""
        now = time.time()
        if self._before is not None:
            then, before = self._before
            seconds = max(now - then, 1e-3)
            rates = {name: max(0.0, total - before.sums[name]) / seconds for name, total in counts.sums.items()}
            self.points.append(
                {
                    "time": round(now, 1),
                    **{name: round(rate, 4) for name, rate in rates.items()},
                    "failed": round(max(0.0, counts.failed - before.failed) / seconds, 4),
                    "running": counts.running,
                    "p50": quantile(before.buckets, counts.buckets, 0.5),
                    "p95": quantile(before.buckets, counts.buckets, 0.95),
                }
            )
        self._before, self.counts = (now, counts), counts


def quantile(before: Mapping[float, float], after: Mapping[float, float], share: float) -> float | None:
    """Return the seconds within which a share of the requests between two counts ended; None where there were none.

    Between two bounds of the histogram it is interpolated; beyond the last it is that bound.
    """
    bounds = sorted(after)
    sums = [after[bound] - before.get(bound, 0.0) for bound in bounds]
    if not sums or sums[-1] <= 0:
        return None
    target, low, below = share * sums[-1], 0.0, 0.0
    for bound, total in zip(bounds, sums, strict=True):
        if total >= target:
            if bound == float("inf"):
                break
            return round(low + (bound - low) * (target - below) / max(total - below, 1e-9), 4)
        low, below = bound, total
    return round(low, 4)
