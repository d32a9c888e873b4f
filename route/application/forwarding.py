"""Endpoints beside chat completions: embeddings, completions, moderations, images and audio.

Nothing is routed there: embeddings of two models do not go together, and P2L knows nothing of pictures. A request goes
to the model that it names, or to the only one that states the endpoint, at any deployment of it; the answer comes back
as the provider sends it. Keys, limits, spend, ceilings, metrics and logs are those of chat requests.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
import re
import secrets
import time
from collections.abc import Collection, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial

from starlette.datastructures import Headers
from starlette.types import Receive, Scope, Send

from p2l.common.long_texts import beside, to_json
from p2l.common.web import ClientGoneError, Deadline, alive
from route.application.chat import seen_by_hooks
from route.application.decide import check_room
from route.application.live import Live
from route.application.record import count, record_of, served_headers
from route.application.service import Service
from route.config import ROUTER_ALIAS, ROUTER_NAME, ModelConfig
from route.keep.ledger import KeyRecord, Refusal
from route.keep.reservations import Worst
from route.observability.logs import log_request
from route.providers.base import JSON, Forwarded, Forwarding, ProviderError
from route.providers.completions import BYTES_PER_TOKEN, SHAPE_ERRORS
from route.providers.usage import TokenCounts, of_chat, of_responses, read
from route.request.api_errors import ApiError, of_fault, of_refusal
from route.request.chat import count_of, parse_long, parse_object, read_body
from route.request.fields import header_of, labels_in
from route.send.charges import UNKNOWN_LONGEST, Charge
from route.send.dispatch import UNREAD, Answer
from route.send.fleet import Deployment, all_blocked

_MOST_VALUES = 1_000_000  # of a body: the tokens of many texts to embed are as many numbers
_FIELDS: Mapping[str, Collection[str]] = {
    "completions": (
        *("prompt", "suffix", "max_tokens", "temperature", "top_p", "n", "stream", "stream_options", "logprobs"),
        *("echo", "stop", "presence_penalty", "frequency_penalty", "best_of", "logit_bias", "user", "seed"),
    ),
    "embeddings": ("input", "encoding_format", "dimensions", "user", "input_type"),
    "moderations": ("input",),
    "images": (
        *("prompt", "n", "size", "quality", "style", "response_format", "background", "output_format", "user"),
        *("output_compression", "image", "image[]", "mask", "input_fidelity"),
    ),
    "speech": ("input", "voice", "instructions", "response_format", "speed"),
    "transcriptions": (
        *("file", "language", "prompt", "response_format", "temperature", "timestamp_granularities[]", "include[]"),
        "stream",
    ),
}
"""Fields that pass; others are dropped, as those of chat requests are."""
_OPERATIONS = {"completions": "text_completion", "embeddings": "embeddings"}
"""Names that traces have for endpoints which do not make content of another kind."""
_BODY_SECONDS = 60.0
_MOST_ANSWERS = 16  # of one request
_PAUSE_SECONDS = 0.2
_MILLION = 1e6
_log = logging.getLogger("route.application")


@dataclass(frozen=True)
class _Passed:
    """One request, as it goes to a provider but for the name of the model."""

    model: str | None
    """The name of the model that the client sent."""
    fields: JSON
    """The fields of a JSON body, or the texts of a form."""
    parts: list[bytes] | None
    """The sections of a form; None for JSON."""
    boundary: bytes
    size: int
    dropped: list[str]

    async def body_for(self, name: str) -> tuple[bytes, str]:
        """Return the body and its content type, with the provider's name of the model."""
        if self.parts is None:
            return await to_json({**self.fields, "model": name}), "application/json"
        disposition = b'\r\nContent-Disposition: form-data; name="model"\r\n\r\n'
        parts = [disposition + name.encode(), *self.parts]
        body = b"".join(b"--" + self.boundary + part + b"\r\n" for part in parts) + b"--" + self.boundary + b"--\r\n"
        return body, f"multipart/form-data; boundary={self.boundary.decode('latin-1')}"


def parse_passed(
    raw: bytes, content_type: str, kind: str, listed: Collection[str], decoder: json.JSONDecoder | None = None
) -> _Passed:
    """Parse a request; raise `ApiError` 400 for one that is neither JSON nor a form, or has no usable count."""
    media, _, parameters = content_type.partition(";")
    allowed = {*_FIELDS[kind], *listed}
    if media.strip().lower() == "multipart/form-data":
        return _parse_form(raw, parameters, allowed)
    body = parse_object(raw, decoder)
    model = body.pop("model", None)
    for name in ("n", "max_tokens", "best_of"):
        if body.get(name) is not None and not count_of(body[name]):
            raise ApiError(400, "invalid_value", f"{name}: must be a whole number of at least 1", param=name)
    if max(body.get("n") or 1, body.get("best_of") or 1) > _MOST_ANSWERS:
        raise ApiError(400, "invalid_value", f"n: must be at most {_MOST_ANSWERS}", param="n")
    fields = {name: value for name, value in body.items() if name in allowed}
    dropped = [name for name in body if name not in fields]
    return _Passed(
        model=model if isinstance(model, str) else None,
        fields=fields,
        parts=None,
        boundary=b"",
        size=len(raw),
        dropped=dropped,
    )


_MOST_PARTS, _LONGEST_HEAD = 1000, 4096
_BOUNDARY = re.compile(r"boundary=(?:\"([^\"\r\n]{1,70})\"|([^\s;\"]{1,70}))")
_NAME = re.compile(rb"""\ncontent-disposition:[^\r\n]*?[;\s]name=(?:"([^"\r\n]*)"|([^\s;"]+))""", re.IGNORECASE)


def _parse_form(raw: bytes, parameters: str, allowed: Collection[str]) -> _Passed:
    match = _BOUNDARY.search(parameters)
    boundary = (match[1] or match[2]).encode("latin-1") if match else b""
    sections = (b"\r\n" + raw).split(b"\r\n--" + boundary, _MOST_PARTS + 2) if boundary else []
    if len(sections) > _MOST_PARTS + 2:
        raise ApiError(413, "request_too_large", f"a form has at most {_MOST_PARTS:,} parts")
    if len(sections) < 2 or not sections[-1].startswith(b"--"):
        raise ApiError(400, "invalid_request", "the body is not complete multipart/form-data")
    texts: JSON = {}
    parts, dropped = [], []
    for section in sections[1:-1]:
        head, _, content = section.partition(b"\r\n\r\n")
        if len(head) > _LONGEST_HEAD:
            raise ApiError(400, "invalid_request", f"the head of a part has more than {_LONGEST_HEAD:,} bytes")
        named = _NAME.search(head)
        name = (named[1] or named[2] or b"").decode("utf-8", "replace") if named else ""
        if name == "model" or (name in allowed and b"filename" not in head.lower()):
            texts[name] = content.decode("utf-8", "replace")
        if name in allowed:
            parts.append(section)
        elif name != "model":
            dropped.append(name)
    number = str(texts.get("n") or 1)
    if not (number.isascii() and number.isdigit() and 0 < int(number[:9]) <= _MOST_ANSWERS):
        raise ApiError(400, "invalid_value", f"n: must be a whole number from 1 to {_MOST_ANSWERS}", param="n")
    return _Passed(
        model=texts.pop("model", None),
        fields={**texts, "n": int(number)},
        parts=parts,
        boundary=boundary,
        size=len(raw),
        dropped=dropped,
    )


class _ForwardedCharge(Charge):
    """The charge of an answer that is passed on: of its content only the counts of tokens are read."""

    def cost(self) -> float:
        """Return the cost by the provider's counts and the price, else that of an average answer."""
        price = self.price
        return self.config.cost if price is None or self.usage.prompt is None else price.cost(self.usage)


@dataclass(frozen=True)
class PassedEndpoint:
    """The ASGI application of one path."""

    live: Live
    kind: str
    """The endpoint, as a model states it in `serves`."""
    path: str
    """Below /v1."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, count and log it."""
        service, headers = self.live.service, Headers(scope=scope)
        answer = Answer(f"req-{secrets.token_hex(12)}")
        forwarding = _Forwarding(service, self.kind, self.path, answer)
        if service.tracing is not None:
            answer.trace = service.tracing.begin(scope["path"], answer.request_id, headers)
        service.metrics.running.inc()
        try:
            await forwarding.answer_request(headers, receive, send)
        except ClientGoneError:
            answer.status, answer.code = 499, "client_gone"
        except ApiError as error:
            await forwarding.refuse(error, scope, receive, send)
        except Exception:
            _log.exception("request %s failed", answer.request_id)
            internal = ApiError(500, "internal_error", "an error of the router; its log says more")
            await forwarding.refuse(internal, scope, receive, send)
        finally:
            service.metrics.running.dec()
            forwarding.keep()


@dataclass
class _Forwarding:
    """One request, with the service that it began with."""

    service: Service
    kind: str
    path: str
    answer: Answer
    charge: _ForwardedCharge | None = None
    """None before something is reserved."""
    has_begun: bool = False
    """Whether the head of the response was sent."""

    async def answer_request(self, headers: Headers, receive: Receive, send: Send) -> None:
        """Read, send and pass on; raise `ApiError` where there is no answer."""
        service, answer = self.service, self.answer
        key = await service.authenticate(headers)
        service.enter(answer, key)
        answer.labels = labels_in(headers)
        raw = await read_body(headers, receive, int(service.settings.max_body_mb * 2**20), _BODY_SECONDS)
        content_type, listed = headers.get("content-type", ""), service.config.pass_fields
        if service.hooks.has_before and "multipart" not in content_type:  # which holds files, and no conversation
            raw = await seen_by_hooks(service, raw, answer)
        parse = partial(parse_passed, raw, content_type, self.kind, listed)
        if "multipart" in content_type:  # a file has no values to count, so that its bytes alone bound the work
            request = await beside(len(raw), parse)
        else:
            request = await parse_long(raw, parse, _MOST_VALUES)
        name = self._model(key, request.model)
        allowed = await service.ledger.admit(key, [name], request.size // BYTES_PER_TOKEN, answer.labels)
        if isinstance(allowed, Refusal):
            raise of_refusal(allowed)
        expected = _expected_cost(service.config.model_configs[name], request, self.kind)
        answer.choice.allowance = service.spending.plan_cost(key, expected)
        check_room(answer.choice.allowance)
        answer.deadline = Deadline.after(service.config.timeouts.total)
        late = ApiError(504, "deadline_exceeded", "the time of this request was up before its answer was complete")
        async with alive(receive, answer.deadline, late):
            config = service.config.model_configs[name]
            highest = _highest_cost(config, request, self.kind)
            if key.max_cost_per_request is not None and highest > key.max_cost_per_request:
                raise ApiError(400, "cost_ceiling_exceeded", "the request could cost more than one of this key may")
            worst = Worst(most=highest, enough=highest, least=highest)
            reservation = await service.ledger.reserve(key, worst, answer.labels)
            if isinstance(reservation, Refusal):
                raise of_refusal(reservation)
            self.charge = _ForwardedCharge(name, config, UNREAD, reservation)
            deployment, forwarded = await self._ask(self.charge, request)
            answer.status = 200
            response = {"x-request-id": answer.request_id, "x-p2l-model": name, "content-type": forwarded.content_type}
            if request.dropped:
                response["x-p2l-dropped-fields"] = header_of(request.dropped)
            async with aclosing(forwarded.chunks) as chunks:
                try:
                    if forwarded.content_type.startswith("application/json"):
                        whole = b"".join([chunk async for chunk in chunks])
                        text = await beside(len(whole), partial(_named, whole, self.charge))
                        response |= served_headers([self.charge])
                        self.has_begun = True
                        await send(_head(response))
                        await send({"type": "http.response.body", "body": text, "more_body": True})
                    else:
                        self.has_begun = True
                        await send(_head(response))
                        async for chunk in chunks:
                            await send({"type": "http.response.body", "body": chunk, "more_body": True})
                    deployment.breaker.succeeded()
                except ProviderError as error:
                    deployment.breaker.failed(error)
                    self.answer.faults.append(error)
                    self.service.dispatcher.count_fault(deployment, error)
                    raise of_fault(error, deployment.name) from error
        await send({"type": "http.response.body", "body": b""})

    def _model(self, key: KeyRecord, sent: str | None) -> str:
        """Return the model that a request goes to; raise `ApiError` 404 if it is not clear."""
        models = self.service.config.model_configs
        serving = [name for name, model in models.items() if self.kind in model.serves]
        serving = [name for name in serving if key.models is None or name in key.models]
        if sent in serving:
            return str(sent)
        if len(serving) == 1 or (serving and sent in (ROUTER_NAME, ROUTER_ALIAS)):
            return serving[0]
        text = f"no model {sent!r} with {self.kind}; a model of the configuration states it in `serves`"
        if serving:
            text = f"no model {sent!r} with {self.kind}; name one of {', '.join(serving)}"
        raise ApiError(404, "model_not_found", text, param="model")

    async def _ask(self, charge: _ForwardedCharge, request: _Passed) -> tuple[Deployment, Forwarded]:
        """Return the answer of the first deployment that gives one, after a short pause where there is no other."""
        config, name = self.service.config, charge.model
        target = self.service.fleet.targets[name]
        asked: list[Deployment] = []
        charge.note(self.service.ledger.notes, self.answer.request_id)
        while True:
            deployment = target.pick(stream=False, without=asked) or target.pick(stream=False)
            if deployment is None:
                raise all_blocked(target.deployments, name)
            asked.append(deployment)
            try:
                provider = deployment.provider
                assert isinstance(provider, Forwarding)  # checked at start
                body, content_type = await request.body_for(deployment.config.name)
                max_bytes = int(config.max_answer_mb * 2**20)
                timeouts = config.timeouts.of_attempt(max(1e-3, self.answer.deadline.left()), max_bytes, stream=False)
                deployment.use(request.size // BYTES_PER_TOKEN)
                operation = _OPERATIONS.get(self.kind, "generate_content")
                with self.service.dispatcher.attempt(
                    self.answer, deployment, charge, request.fields, operation=operation
                ):
                    forwarded = await provider.forward(self.path, deployment.config.name, body, content_type, timeouts)
                charge.use, charge.identity = deployment.use, deployment.identity
                self.answer.shown.append(charge)
                return deployment, forwarded
            except ProviderError as error:
                if charge.trace is not None:  # the next attempt has a span of its own, and the same charge
                    charge.trace.end(TokenCounts(), 0.0)
                    charge.trace = None
                if not error.fault.is_transient or len(asked) >= config.max_attempts:
                    raise of_fault(error, name) from error
                if target.pick(stream=False, without=asked) is None:  # the next attempt goes to the same place
                    pause = error.retry_after or random.uniform(0.5, 1.0) * _PAUSE_SECONDS
                    if pause > min(config.retry_seconds, self.answer.deadline.left()):
                        raise of_fault(error, name) from error
                    await asyncio.sleep(pause)

    async def refuse(self, error: ApiError, scope: Scope, receive: Receive, send: Send) -> None:
        """Send an error, or cut the connection of an answer that has begun."""
        self.answer.code = error.code
        if self.has_begun:
            # Nothing but a connection that is cut tells of an answer that is not complete.
            raise ConnectionError("the provider's answer broke off") from error
        self.answer.status = error.status
        await error.response({"x-request-id": self.answer.request_id})(scope, receive, send)

    def keep(self) -> None:
        """Charge, count and log."""
        service, answer, cost = self.service, self.answer, 0.0
        answer.end()
        if answer.is_counted and answer.key is not None:
            service.ledger.leave(answer.key)
        if self.charge is not None:
            is_shown = bool(answer.shown)
            cost = service.dispatcher.settle(self.charge, is_shown, int(is_shown))
        if answer.choice.allowance is not None:
            answer.choice.allowance.close(cost)
        if answer.trace is not None:
            key = answer.key.name if answer.key else None
            answer.trace.end(answer.status, {"p2l.key": key, "p2l.cost": cost, "p2l.code": answer.code})
        seconds = time.perf_counter() - answer.started
        count(service, answer, seconds)
        log_request(record_of(answer, seconds, cost or None))


def _head(headers: Mapping[str, str]) -> JSON:
    return {"type": "http.response.start", "status": 200, "headers": Headers(headers).raw}


def _highest_cost(model: ModelConfig, request: _Passed, kind: str) -> float:
    """Return what a request may cost at most: no text has more tokens than bytes."""
    number = max(count_of(request.fields.get("n")) or 1, count_of(request.fields.get("best_of")) or 1)
    if model.price is None:
        return model.cost * number
    longest = 0  # tokens of an answer that is text
    if kind not in ("embeddings", "moderations"):
        longest = count_of(request.fields.get("max_tokens")) or model.longest_answer or UNKNOWN_LONGEST
    most = (request.size * model.price.input + longest * number * model.price.output) / _MILLION
    return max(most, model.cost * number)


def _expected_cost(model: ModelConfig, request: _Passed, kind: str) -> float:
    """Return what a request should cost: by its size where nothing else is paid for, else as an average answer."""
    if kind in ("embeddings", "moderations") and model.price is not None:
        return request.size / BYTES_PER_TOKEN * model.price.input / _MILLION
    return model.cost * (count_of(request.fields.get("n")) or 1)


def _named(text: bytes, charge: _ForwardedCharge) -> bytes:
    """Return a JSON answer with the configured name of its model, and note the tokens that it counts."""
    try:
        answer = json.loads(text)
        counts = answer.get("usage") or {}
        usage = read({"usage": of_chat(counts) if "prompt_tokens" in counts else of_responses(counts)})
        if usage.prompt:
            charge.usage = usage
        charge.identify(answer)
    except (*SHAPE_ERRORS, RecursionError):
        return text  # not JSON of that form; the client gets what the provider sent
    if "model" not in answer:
        return text
    return json.dumps({**answer, "model": charge.model}).encode()
