"""A chat request, in any dialect: read it, decide which model answers, send it there, keep what came of it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from starlette.types import Receive, Scope, Send

from p2l.common.long_texts import LONG, holds_more, long_dumps, patiently, to_json
from p2l.common.web import ClientGoneError, Deadline, alive, headers_in
from route.application.cached_calls import CachedCalls
from route.application.compare import answer_of_two
from route.application.decide import decide
from route.application.hooks import About
from route.application.live import Live
from route.application.record import headers_of, keep, remember
from route.application.service import Service
from route.application.trials import ask_unseen
from route.providers.base import JSON
from route.request.api_errors import ApiError
from route.request.chat import MOST_VALUES, ChatRequest, Dialect, parse_chat, parse_long, parse_object, read_body
from route.request.fields import labels_in, mark_answer, user_in
from route.send.asking import Opened, ask_whole, open_stream
from route.send.charges import served_of
from route.send.dispatch import Answer, Write
from route.send.fleet import Deployment

_BODY_SECONDS = 60.0
_LONG_CHUNK_VALUES = 1000
_STREAM_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # nginx would hold chunks back
]
_log = logging.getLogger("route.application")


@dataclass(frozen=True)
class ChatEndpoint:
    """The ASGI application of one route; it writes streams itself, to be able to end them with an error."""

    live: Live
    dialect: type[Dialect] = Dialect
    """The API that the clients speak."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        # A reload puts another service in place; this request keeps the one that it began with.
        service, headers = self.live.service, headers_in(scope)
        answer = Answer(service.feedback.ids.new())
        if service.tracing is not None:
            answer.trace = service.tracing.begin(scope["path"], answer.request_id, headers)
        reply = _Reply(send, self.dialect())
        service.metrics.running.inc()
        try:
            await _answer(service, answer, headers, receive, reply)
        except ClientGoneError:
            answer.status, answer.code = 499, "client_gone"
            await reply.dialect.leave()
        except ApiError as error:
            await reply.fail(answer, error)
        except Exception:
            _log.exception("request %s failed", answer.request_id)
            await reply.fail(answer, ApiError(500, "internal_error", "an error of the router; its log says more"))
        finally:
            service.metrics.running.dec()
            keep(service, answer)  # after the answer: it is sent when its end is written


async def _answer(
    service: Service, answer: Answer, headers: Mapping[str, str], receive: Receive, reply: _Reply
) -> None:
    # Read.
    key = await service.authenticate(headers)
    service.enter(answer, key)
    answer.labels = labels_in(headers)
    request = await read_chat(service, headers, receive, reply.dialect, answer)
    max_bytes = service.settings.max_body_mb * 2**20
    request = await reply.dialect.prepare(request, service.responses, key.name, max_bytes)
    answer.deadline = Deadline.after(service.config.timeouts.total)
    late = ApiError(504, "deadline_exceeded", "the time of this request was up before its answer was complete")
    whole: JSON | None = None
    async with alive(receive, answer.deadline, late):
        # Decide.
        conversation = await decide(service, answer, request, headers)
        # Send.
        calls = None
        if service.answer_cache is not None and not request.compare:
            calls = CachedCalls(service.answer_cache, answer, service.metrics)
        if request.compare:
            whole = await answer_of_two(service, answer)
        elif request.stream:
            async with _lively(reply, answer, service.config.timeouts.ping):
                deployment, opened = await service.dispatcher.run(answer, calls.stream if calls else open_stream)
                answer.first_token = time.perf_counter() - answer.started
                answer.shown.append(answer.charges[-1])
                await _relay(service, answer, deployment, opened, reply)
        else:
            deployment, completion = await service.dispatcher.run(answer, calls.whole if calls else ask_whole)
            answer.shown.append(answer.charges[-1])
            if answer.unseen is not None:
                answer.unseen.hear([completion])
            whole = mark_answer(completion, deployment.name, answer.choice.decision, answer.tried)
            whole |= served_of(answer.shown)
    if whole is not None and service.hooks.has_after:
        whole = await service.hooks.after(whole, about(answer))
    # Only after `alive` has ended: the server reports the connection as closed when the response is complete.
    answer.status = 200
    if whole is None:
        await reply.end()
    else:
        await reply.answer(whole, headers_of(answer))
    # Keep, which nobody waits for; `ChatEndpoint` charges and logs every request, also one that failed.
    if not request.compare:
        remember(service, answer)
    if conversation is not None:
        service.sticky.remember(conversation, answer.shown[0].model)
    ask_unseen(service, answer)


async def _relay(service: Service, answer: Answer, deployment: Deployment, opened: Opened, reply: _Reply) -> None:
    """Send a stream; where hooks see answers, once they have seen all of it."""
    # The head not before the first token, if that comes soon: until then another model may answer, and it names the
    # model, and the hooks that failed.
    if not service.hooks.has_after:
        await reply.start(answer)
        await service.dispatcher.relay(answer, deployment, opened, _heard(answer, reply.write))
        return
    chunks: list[JSON] = []
    await service.dispatcher.relay(answer, deployment, opened, _heard(answer, _held_in(chunks)))
    chunks = await service.hooks.after_stream(chunks, about(answer))
    if answer.labels.passed_over and chunks:  # the head may have been sent with a sign of life
        chunks[0] = {**chunks[0], "router_hooks_passed_over": answer.labels.passed_over}
    await reply.start(answer)
    await reply.write(chunks)


def _heard(answer: Answer, write: Write) -> Write:
    """Return a stream's `write` that also tells its text to the unseen answer, if there is to be one."""
    unseen = answer.unseen
    if unseen is None:
        return write

    async def hear_and_write(chunks: Sequence[JSON]) -> None:
        unseen.hear(chunks)
        await write(chunks)

    return hear_and_write


def _held_in(chunks: list[JSON]) -> Write:
    """Return a function that keeps the chunks of a stream until hooks have seen all of it."""

    async def hold(new_chunks: Sequence[JSON]) -> None:
        chunks.extend(new_chunks)

    return hold


async def read_chat(
    service: Service, headers: Mapping[str, str], receive: Receive, dialect: Dialect, answer: Answer
) -> ChatRequest:
    """Read and check a request, as hooks leave it; raise `ApiError` if it cannot be used."""
    # A client that sends a byte a second would else hold its place among the requests for as long as it likes.
    seconds = min(_BODY_SECONDS, service.config.timeouts.total)
    raw = await read_body(headers, receive, int(service.settings.max_body_mb * 2**20), seconds)
    if service.hooks.has_before:
        raw = await seen_by_hooks(service, raw, answer)

    def parse(decoder: json.JSONDecoder) -> ChatRequest:
        by_name = service.settings.direct_by_name
        return parse_chat(raw, headers, service.chat_models, by_name=by_name, dialect=dialect, decoder=decoder)

    request = await parse_long(raw, parse, MOST_VALUES)
    answer.labels.user = answer.labels.user or user_in(request.body)
    return request


async def seen_by_hooks(service: Service, raw: bytes, answer: Answer) -> bytes:
    """Return the JSON body of a request as hooks leave it; raise `ApiError` where one refuses it."""
    body = await parse_long(raw, partial(parse_object, raw), MOST_VALUES)
    return await to_json(body) if await service.hooks.before(body, about(answer)) else raw


def about(answer: Answer) -> About:
    """Return what hooks are told of a request beside its texts."""
    return About(answer.request_id, answer.key.name if answer.key else "", answer.labels)


@contextlib.asynccontextmanager
async def _lively(reply: _Reply, answer: Answer, seconds: float) -> AsyncIterator[None]:
    """Send a sign of life whenever the client has heard nothing for so long, until the block ends.

    The provider may think for minutes, and clients and proxies close what is silent. One that is silent itself is given
    up by the limits of its own.
    """

    async def beat() -> None:
        while True:
            silence = time.monotonic() - reply.last
            if silence >= seconds:
                await reply.live(answer)
            await asyncio.sleep(max(0.0, seconds - silence) or seconds)

    reply.last = time.monotonic()
    task = asyncio.ensure_future(beat())
    try:
        yield
    finally:
        # What is being sent is sent whole.
        async with reply.turn:
            task.cancel()


@dataclass
class _Reply:
    """The response under way, in the client's dialect."""

    send: Send
    dialect: Dialect
    has_begun: bool = False
    """Whether its head was sent."""
    last: float = field(default_factory=time.monotonic)
    """When the client of a stream last heard of it."""
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while a part of a stream is sent, since signs of life come from a task of their own."""

    async def answer(self, completion: JSON, headers: dict[str, str]) -> None:
        translated = self.dialect.answer(completion)
        await self.dialect.keep()
        await self._send_whole(200, await to_json(translated), headers)

    async def fail(self, answer: Answer, error: ApiError) -> None:
        """Send an error, as a response or as the last event of a stream that has begun."""
        answer.code = error.code
        if self.has_begun:  # its status is sent, and stays 200 in the log
            await self.send({"type": "http.response.body", "body": self.dialect.fail(error)})
        else:
            answer.status = error.status
            response = error.response(headers_of(answer), self.dialect.error(error))
            await self._send_whole(response.status_code, bytes(response.body), dict(response.headers))

    async def _send_whole(self, status: int, body: bytes, headers: Mapping[str, str]) -> None:
        self.has_begun = True
        # By hand: an object of Starlette's for it takes several times as long.
        named = {"content-length": str(len(body)), "content-type": "application/json", **headers}
        raw = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in named.items()]
        await self.send({"type": "http.response.start", "status": status, "headers": raw})
        await self.send({"type": "http.response.body", "body": body})

    async def start(self, answer: Answer) -> None:
        """Send the head of a stream, unless a sign of life was sent before."""
        async with self.turn:
            await self._start(answer)

    async def _start(self, answer: Answer) -> None:
        if self.has_begun:
            return
        # By hand: a StreamingResponse of Starlette could not end a broken stream with an error event.
        self.has_begun = True
        answer.status, headers = 200, headers_of(answer)
        raw = _STREAM_HEADERS + [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
        await self.send({"type": "http.response.start", "status": 200, "headers": raw})

    async def write(self, chunks: Sequence[JSON]) -> None:
        take, events = self.dialect.take, b""
        for chunk in chunks:
            # A provider may send anything in one chunk, but hardly any is long.
            is_long = holds_more(chunk, _LONG_CHUNK_VALUES, LONG)
            events += await patiently(partial(take, chunk, long_dumps)) if is_long else take(chunk)
        if events:
            async with self.turn:
                await self._part(events)

    async def live(self, answer: Answer) -> None:
        """Tell the client of a stream that it goes on."""
        async with self.turn:
            await self._start(answer)
            await self._part(self.dialect.sign_of_life)

    async def _part(self, events: bytes) -> None:
        self.last = time.monotonic()
        await self.send({"type": "http.response.body", "body": events, "more_body": True})

    async def end(self) -> None:
        await self.dialect.keep()
        await self.send({"type": "http.response.body", "body": self.dialect.end()})
