"""Keep: charge the key for an answer, remember it for votes, count it and log it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any
from urllib.parse import quote

from route.application.service import Service
from route.keep.feedback import ShownAnswer
from route.observability.logs import RequestRecord, log_request
from route.observability.metrics import NOBODY
from route.providers.base import ProviderError
from route.request.chat import prompt_of
from route.request.fields import header_of
from route.send.charges import Charge
from route.send.dispatch import UNREAD, Answer, failed_at_cost

CACHED = "x-p2l-answer-cache"
"""Header of an answer that was kept from an earlier request."""
PASSED_OVER = "x-p2l-hooks-passed-over"
"""Header with the names of hooks that failed, where the request may go on without them."""
_LOGGED_REASONS = (
    *("budget", "probabilities", "propensity", "explored", "static", "average", "revision", "familiarity"),
)
"""Fields of a decision."""


def headers_of(answer: Answer) -> dict[str, str]:
    """Return the headers of a response; with models and cost once there is an answer."""
    headers = {"x-request-id": answer.request_id, "request-id": answer.request_id}  # as OpenAI and Anthropic name it
    dropped = [name for part in answer.parts for name in part.dropped]
    if dropped:
        headers["x-p2l-dropped-fields"] = header_of(dropped)
    if answer.labels.passed_over:
        headers[PASSED_OVER] = header_of(answer.labels.passed_over)
    if answer.shown:
        headers["x-p2l-model"] = _listed(_models_of(answer))
        headers |= served_headers(answer.shown)
        headers["x-p2l-cost"] = f"{sum(charge.config.cost for charge in answer.shown):.10g}"
        limits = [str(charge.max_tokens or "") for charge in answer.shown]
        if any(limits):
            headers["x-p2l-max-tokens"] = ",".join(limits)
        if any(charge.is_cached for charge in answer.shown):
            headers[CACHED] = "hit"
        decision = answer.choice.decision
        if decision is not None and decision.static:
            headers["x-p2l-static"] = "true"
        if decision is not None and decision.average:
            headers["x-p2l-average"] = "true"
    return headers


def served_headers(charges: Sequence[Charge]) -> dict[str, str]:
    """Return the headers that say who answered, as far as the providers do."""
    headers = {}
    if any(charge.served.model for charge in charges):
        headers["x-p2l-served-model"] = _listed([charge.served.model for charge in charges])
    if not all(charge.is_expected for charge in charges):
        headers["x-p2l-unexpected-model"] = "true"
    return headers


def _listed(names: Sequence[str]) -> str:
    """Return names as the text of a header, percent-encoded where none could carry them."""
    return ",".join(name if name.isascii() and name.isprintable() else quote(name) for name in names)


def _models_of(answer: Answer) -> list[str]:
    return [charge.model for charge in answer.shown]


def remember(service: Service, answer: Answer, propensity: float | None = None, **of_arena: Any) -> None:
    """Store an answer for votes; `propensity` of a pair, by default that of the decision.

    `of_arena` are the visitor, and whether an answer told its model: fields of `ShownAnswer`.
    """
    decision, key = answer.choice.decision, answer.key
    if decision is None or key is None:
        return  # the client named the model, so a vote would have no propensity
    names = tuple(_models_of(answer))
    # A rating that comes later moves the offsets by how far it is from what P2L expected of this answer.
    offsets, coefficients = service.router.offsets, answer.choice.coefficients
    if offsets is not None and coefficients is not None:
        offsets.show(answer.request_id, coefficients.coefs, names)
    versions = tuple(charge.config.version or "" for charge in answer.shown)
    service.feedback.remember(
        ShownAnswer(
            request_id=answer.request_id,
            key=key.name,
            models=names,
            propensity=decision.propensity if propensity is None else propensity,
            versions=versions if any(versions) else (),
            revision=decision.revision,
            prompt=answer.request.turns,
            **of_arena,
        )
    )


def keep(service: Service, answer: Answer) -> None:
    """Charge, count and log; at once or, where an answer that nobody waits for has to be paid, later."""
    for part in answer.parts:
        part.end()
    seconds = time.perf_counter() - answer.started
    charges = [charge for part in answer.parts for charge in part.charges if not charge.reservation.settled]
    for charge in charges:
        if charge.pending is None:
            charge.ended = time.perf_counter()
    if any(charge.pending is not None or (charge.is_estimated and charge.has_record) for charge in charges):
        task = asyncio.ensure_future(_keep_later(service, answer, charges, seconds))
        service.finishing.add(task)
        task.add_done_callback(service.finishing.discard)
    else:
        _keep(service, answer, charges, seconds)


async def _keep_later(service: Service, answer: Answer, charges: Sequence[Charge], seconds: float) -> None:
    """Wait, within the time that providers have, for answers whose client has left and for their records of streams."""
    waits_for_answer = any(charge.pending is not None for charge in charges)
    if not waits_for_answer and answer.is_counted and answer.key is not None:  # the request itself is over
        answer.is_counted = False
        service.ledger.leave(answer.key)
    free = []
    try:
        for charge in charges:
            if charge.pending is None:
                if charge.is_estimated and charge.has_record:
                    await charge.look_up()
                continue
            try:
                charge.complete(await charge.pending)
            except ProviderError as error:
                if not failed_at_cost(charge, error):
                    free.append(charge)
    finally:  # also where the router ends and cancels this: what was reserved is booked then
        for charge in charges:
            if charge.pending is not None:
                charge.pending.cancel()
        _keep(service, answer, [charge for charge in charges if charge not in free], seconds)
        for charge in free:
            service.dispatcher.settle(charge, False)


def _keep(service: Service, answer: Answer, charges: Sequence[Charge], seconds: float) -> None:
    if answer.is_counted and answer.key is not None:
        service.ledger.leave(answer.key)
    for charge in charges:
        service.dispatcher.settle(charge, True, charge.choices)
    attempts = [charge for part in answer.parts for charge in part.charges]
    cost = sum(charge.booked for charge in attempts)  # those that failed are billed, too
    allowance = answer.choice.allowance
    if allowance is not None:
        allowance.close(cost)
    for charge in answer.shown:
        if charge.config.price is not None and charge.is_measured:
            prompt = allowance.prompt if allowance else prompt_of(charge.request)
            prompt = prompt._replace(choices=max(1, charge.choices))
            service.spending.estimator.observe(charge.model, prompt, charge.tokens[1], charge.booked)
    count(service, answer, seconds)
    record = record_of(answer, seconds, cost if charges or cost else None)
    log_request(record)
    if service.config.admin_key is not None:  # without one there is no console
        is_stored = service.config.store_prompts and answer.request is not UNREAD
        service.recent.note(record, answer.choice.decision, answer.request.turns if is_stored else None)
    if answer.trace is not None:
        decision = answer.choice.decision
        prompt_tokens, completion_tokens = answer.shown[0].tokens if answer.shown else (None, None)
        answer.trace.end(
            answer.status,
            {
                "p2l.key": answer.key.name if answer.key else None,
                "p2l.model": ",".join(_models_of(answer)),
                "p2l.attempts": answer.attempts or None,
                "p2l.budget": None if decision is None else decision.budget,
                "p2l.expected_score": None if decision is None else decision.expected_score,
                "p2l.cost": cost,
                "gen_ai.usage.input_tokens": prompt_tokens,
                "gen_ai.usage.output_tokens": completion_tokens,
                "p2l.code": answer.code,
            },
            turns=answer.request.turns,
        )


def count(service: Service, answer: Answer, seconds: float) -> None:
    """Count an answer in the metrics."""
    metrics = service.metrics
    model = answer.shown[0].model if answer.shown else NOBODY
    metrics.requests.labels(model, str(answer.status)).inc()
    metrics.latency.labels(model).observe(seconds)
    for charge in answer.shown:
        if charge.served.model and charge.identity is not None:
            label = charge.identity.label_of(charge.served)
            metrics.served.labels(charge.model, label, "yes" if charge.is_expected else "no").inc()
    if answer.first_token is not None:
        metrics.first_token.labels(model).observe(answer.first_token)
    if answer.shown and (first := answer.attempts[0]) != model:  # the model that was chosen first did not answer
        metrics.fallbacks.labels(model, first).inc()
    if answer.choice.decision is not None:
        metrics.decided(answer.choice.decision)


def record_of(answer: Answer, seconds: float, spent: float | None) -> RequestRecord:
    """Return what the log says of an answer."""
    decision = answer.choice.decision
    is_measured = bool(answer.shown) and answer.shown[0].is_measured
    prompt, completion = answer.shown[0].tokens if is_measured else (None, None)
    reasons = {} if decision is None else {name: getattr(decision, name) for name in _LOGGED_REASONS}
    return RequestRecord(
        request_id=answer.request_id,
        key=answer.key.name if answer.key else "",
        status=answer.status,
        seconds=seconds,
        model=",".join(_models_of(answer)) or None,
        served_model=",".join(charge.served.model for charge in answer.shown) or None,
        fingerprint=answer.shown[0].served.fingerprint if answer.shown else "",
        tier=answer.shown[0].served.tier if answer.shown else "",
        unexpected_model=not all(charge.is_expected for charge in answer.shown),
        tried=tuple(answer.attempts),
        faults=tuple(error.fault.value for part in answer.parts for error in part.faults),
        streamed=answer.request.stream,
        first_token_seconds=answer.first_token,
        prompt_tokens=prompt,
        completion_tokens=completion,
        cost=spent,
        cost_is_estimated=any(
            charge.booked > 0 and charge.is_estimated for part in answer.parts for charge in part.charges
        ),
        sticky=answer.choice.fixed is not None,
        code=answer.code,
        trial=None if answer.trial is None else {name: part for name, part in asdict(answer.trial).items() if part},
        tags=answer.labels.tags or None,
        hooks_passed_over=tuple(answer.labels.passed_over),
        **reasons,
    )
