"""One chat request, from its start to the charge, metrics and log line at its end."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from urllib.parse import quote

from route.application.service import Service
from route.keep.feedback import ShownAnswer
from route.keep.ledger import KeyRecord
from route.observability.logs import RequestRecord, log_request
from route.observability.metrics import NOBODY
from route.observability.tracing import RequestTrace
from route.providers.base import ProviderError
from route.request.api_errors import of_refusal
from route.request.chat import prompt_of
from route.request.fields import header_of
from route.routing.decision import Decision
from route.routing.spending import Allowance
from route.send.charges import Charge
from route.send.dispatch import Trip, may_have_cost

_REASONS = ("budget", "probabilities", "propensity", "explored", "static", "average", "revision")
"""Fields of a decision that are logged."""


@dataclass
class Exchange:
    """The state of a request."""

    service: Service
    request_id: str
    started: float = field(default_factory=time.perf_counter)
    key: KeyRecord | None = None
    trips: list[Trip] = field(default_factory=list)
    answers: list[Charge] = field(default_factory=list)
    """Attempts that gave an answer, or began to."""
    entered: bool = False
    """Whether it counts among the requests of its key that are under way."""
    status: int = 500
    code: str | None = None
    first_token: float | None = None
    """Seconds after the start."""
    sticky: bool = False
    allowance: Allowance | None = None
    """What it may cost in dollars, where a budget or a ceiling is in dollars."""
    trace: RequestTrace | None = None

    @property
    def decision(self) -> Decision | None:
        """Return the decision on the first model."""
        return self.trips[0].choice.decision if self.trips else None

    @property
    def attempts(self) -> list[str]:
        """Return every model that was asked, in order."""
        return [name for trip in self.trips for name in trip.tried]

    def headers(self) -> dict[str, str]:
        """Return the headers of every response; with models and cost once there is an answer."""
        headers = {"x-request-id": self.request_id, "request-id": self.request_id}  # as OpenAI and Anthropic name it
        dropped = [name for trip in self.trips for name in (*trip.incoming.hints, *trip.dropped)]
        if dropped:
            headers["x-p2l-dropped-fields"] = header_of(dropped)
        if self.answers:
            names = [answer.model for answer in self.answers]
            costs = [self.service.config.model_configs[name].cost for name in names]
            headers |= {"x-p2l-model": ",".join(map(_header_text, names)), "x-p2l-cost": f"{sum(costs):.10g}"}
            limits = [str(answer.max_tokens or "") for answer in self.answers]
            if any(limits):
                headers["x-p2l-max-tokens"] = ",".join(limits)
            decision = self.decision
            if decision is not None and decision.static:
                headers["x-p2l-static"] = "true"
            if decision is not None and decision.average:
                headers["x-p2l-average"] = "true"
        return headers

    def remember(self, propensity: float | None = None) -> None:
        """Store the answers for votes; `propensity` of a pair, by default that of the decision."""
        decision = self.decision
        if decision is None or self.key is None:
            return  # the client named the model, so a vote would have no propensity
        names = tuple(answer.model for answer in self.answers)
        offsets, coefficients = self.service.router.offsets, self.trips[0].choice.coefficients
        if offsets is not None and coefficients is not None:
            offsets.show(self.request_id, coefficients.coefs, names)
        configs = self.service.config.model_configs
        versions = tuple(configs[name].version or "" for name in names)
        self.service.feedback.remember(
            ShownAnswer(
                request_id=self.request_id,
                key=self.key.name,
                models=names,
                propensity=decision.propensity if propensity is None else propensity,
                versions=versions if any(versions) else (),
                revision=decision.revision,
                prompt=self.trips[0].incoming.turns,
            )
        )

    def enter(self, key: KeyRecord) -> None:
        """Count this request among those of its key that are under way; raise `ApiError` 429 if there are too many."""
        self.key = key
        refusal = self.service.ledger.enter(key)
        if refusal is not None:
            raise of_refusal(refusal)
        self.entered = True

    def close(self) -> None:
        """Charge the key, count and log; at once or, where an answer that nobody waits for has to be paid, later."""
        for trip in self.trips:
            trip.end()
        seconds = time.perf_counter() - self.started
        charges = [charge for trip in self.trips for charge in trip.charges if not charge.reservation.settled]
        if any(charge.pending is not None for charge in charges):
            task = asyncio.ensure_future(self._finish(charges, seconds))
            self.service.finishing.add(task)
            task.add_done_callback(self.service.finishing.discard)
        else:
            self._close(charges, seconds)

    async def _finish(self, charges: Sequence[Charge], seconds: float) -> None:
        """Wait for answers whose client has left, within the time that a provider has, and close."""
        free = []
        try:
            for charge in charges:
                if charge.pending is None:
                    continue
                try:
                    charge.complete(await charge.pending)
                except ProviderError as error:
                    if not may_have_cost(charge, error):
                        free.append(charge)
        finally:
            for charge in charges:
                if charge.pending is not None:
                    charge.pending.cancel()
            self._close([charge for charge in charges if charge not in free], seconds)
            for charge in free:
                self.service.settle(charge, False)

    def _close(self, charges: Sequence[Charge], seconds: float) -> None:
        if self.entered and self.key is not None:
            self.service.ledger.leave(self.key)
        costs = [self.service.settle(charge, True, charge.choices) for charge in charges]
        self._learn_costs()
        self._count(seconds)
        self._log(seconds, sum(costs) if costs else None)
        if self.trace is not None:
            self._end_trace(self.trace, sum(costs))

    def _end_trace(self, trace: RequestTrace, cost: float) -> None:
        decision = self.decision
        if self.trips:
            trace.tell_prompt(self.trips[0].incoming.turns)
        prompt, completion = self.answers[0].tokens if self.answers else (None, None)
        trace.end(
            self.status,
            {
                "p2l.key": self.key.name if self.key else None,
                "p2l.model": ",".join(answer.model for answer in self.answers),
                "p2l.attempts": self.attempts or None,
                "p2l.budget": None if decision is None else decision.budget,
                "p2l.expected_score": None if decision is None else decision.expected_score,
                "p2l.cost": cost,
                "gen_ai.usage.input_tokens": prompt,
                "gen_ai.usage.output_tokens": completion,
                "p2l.code": self.code,
            },
        )

    def _learn_costs(self) -> None:
        """Count the dollars of all attempts under the ceilings, and learn what answers of their models cost."""
        if self.allowance is not None:
            self.allowance.close(sum(charge.booked for trip in self.trips for charge in trip.charges))
        for charge in self.answers:
            if charge.config.price is not None and charge.is_measured:
                prompt = self.allowance.prompt if self.allowance else prompt_of(charge.incoming)
                prompt = prompt._replace(choices=max(1, charge.choices))
                self.service.spending.estimator.observe(charge.model, prompt, charge.tokens[1], charge.booked)

    def _count(self, seconds: float) -> None:
        metrics = self.service.metrics
        model = self.answers[0].model if self.answers else NOBODY
        metrics.requests.labels(model, str(self.status)).inc()
        metrics.latency.labels(model).observe(seconds)
        if self.first_token is not None:
            metrics.first_token.labels(model).observe(self.first_token)
        if self.answers and (first := self.attempts[0]) != model:
            metrics.fallbacks.labels(model, first).inc()
        decision = self.decision
        if decision is not None:
            metrics.decided(decision)

    def _log(self, seconds: float, spent: float | None) -> None:
        decision = self.decision
        first = self.trips[0].incoming if self.trips else None
        measured = bool(self.answers) and self.answers[0].is_measured
        prompt, completion = self.answers[0].tokens if measured else (None, None)
        reasons = {} if decision is None else {name: getattr(decision, name) for name in _REASONS}
        record = RequestRecord(
            request_id=self.request_id,
            key=self.key.name if self.key else "",
            status=self.status,
            seconds=seconds,
            model=",".join(answer.model for answer in self.answers) or None,
            tried=tuple(self.attempts),
            faults=tuple(error.fault.value for trip in self.trips for error in trip.faults),
            streamed=first is not None and first.stream,
            first_token_seconds=self.first_token,
            prompt_tokens=prompt,
            completion_tokens=completion,
            cost=spent,
            sticky=self.sticky,
            code=self.code,
            **reasons,
        )
        log_request(record)
        if self.service.config.admin_key is not None:  # without one there is no console
            stored = self.service.config.store_prompts and first is not None
            self.service.recent.note(record, decision, first.turns if stored and first is not None else None)


def _header_text(name: str) -> str:
    """Return a name, percent-encoded where no header could carry it."""
    return name if name.isascii() and name.isprintable() else quote(name)
