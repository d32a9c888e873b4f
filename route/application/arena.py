"""The arena: one prompt, two anonymous answers side by side, a vote, and only then the names.

Whoever reaches the router may use it, within the limits of the key that the configuration gives the arena and of so
many prompts a minute for each address. The pair is drawn as for `compare: true`, its sides at random; propensity and
order are stored with the answers, and a vote goes where `POST /v1/feedback` goes. An answer has one vote, since the
names are told after it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from p2l.common.cache import LRUCache
from p2l.common.pages import form_fields, fragment, is_same_origin, page
from p2l.common.report import render
from p2l.common.web import Deadline
from route.application.compare import begin_sides
from route.application.decide import decide
from route.application.live import Live
from route.application.record import keep, remember
from route.application.service import Service
from route.application.views import models
from route.keep.database import DatabaseError
from route.keep.feedback import Vote
from route.keep.ledger import KeyRecord, Refusal
from route.keep.usage import Windows
from route.providers.base import JSON
from route.request.api_errors import ApiError, of_refusal
from route.request.chat import parse_chat, read_body
from route.send.asking import open_stream
from route.send.dispatch import Answer

_FORM_BYTES = 2**20
_FORM_SECONDS = 10.0
_MOST_FIELDS = 10
_ADDRESSES = 10_000  # whose prompts are counted at once
_VERDICTS = {
    "first": "A was better",
    "second": "B was better",
    "tie": "they were equally good",
    "both_bad": "both were bad",
}
_UNAVAILABLE = ApiError(503, "unavailable", "votes cannot be stored now; send it again later")
_log = logging.getLogger("route.arena")


@dataclass(frozen=True)
class Arena:
    """The arena of one worker."""

    live: Live
    prompts: LRUCache[str, Windows] = field(default_factory=lambda: LRUCache(_ADDRESSES))

    def routes(self) -> list[Route]:
        """Return its routes."""
        return [
            Route("/arena", self.whole, methods=["GET", "POST"], include_in_schema=False),
            Route("/arena/answers", self.answers, methods=["POST"], include_in_schema=False),
            Route("/arena/vote", self.vote, methods=["POST"], include_in_schema=False),
        ]

    @property
    def service(self) -> Service:
        """Return the service as it is configured now."""
        return self.live.service

    async def whole(self, request: Request) -> Response:
        """Respond with the page; to a form that was sent without scripts, with both answers."""
        if self.service.config.arena is None:
            return _closed()
        if request.method == "GET":
            return _page(request)
        texts, request_id, prompt = ["", ""], "", ""
        try:
            prompt = await self._prompt(request)
            async with contextlib.aclosing(_Battle(self, self.service, prompt).events()) as events:
                async for name, content in events:
                    if name in ("0", "1"):
                        texts[int(name)] += content
                    elif name == "done":
                        request_id = content
        except ApiError as error:
            return _page(request, status=error.status, prompt=prompt, problem=str(error))
        return _page(request, prompt=prompt, texts=texts, request_id=request_id)

    async def answers(self, request: Request) -> Response:
        """Stream both answers as events: `0` and `1` with text, then `done` with what to vote on, or `problem`."""
        if self.service.config.arena is None:
            return _closed()
        try:
            battle = _Battle(self, self.service, await self._prompt(request))
        except ApiError as error:
            return Response(str(error), error.status, media_type="text/plain")

        async def stream() -> AsyncIterator[bytes]:
            async with contextlib.aclosing(battle.events()) as events:
                try:
                    async for name, content in events:
                        yield f"event: {name}\ndata: {json.dumps(content)}\n\n".encode()
                except ApiError as error:
                    yield f"event: problem\ndata: {json.dumps(str(error))}\n\n".encode()

        headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
        return StreamingResponse(stream(), media_type="text/event-stream", headers=headers)

    async def vote(self, request: Request) -> Response:
        """Store a vote and respond with the names, what they cost, and the board."""
        if self.service.config.arena is None:
            return _closed()
        is_part = request.headers.get("hx-request") == "true"
        try:
            service = self.service
            fields = await _fields(request)
            request_id, verdict = fields.get("request_id", ""), fields.get("verdict", "")
            if verdict not in _VERDICTS or not (0 < len(request_id) <= 100 and request_id.isascii()):
                raise ApiError(400, "invalid_value", "a vote names an answer and one of four verdicts")
            try:
                if await service.feedback.has_vote(request_id):
                    raise ApiError(409, "already_voted", "this answer has its vote already; ask for another pair")
            except DatabaseError as error:
                raise _UNAVAILABLE from error
            stored = await service.vote(Vote(request_id, verdict), self.key())
            if isinstance(stored, Refusal):
                raise of_refusal(stored)
            if stored.replaced:
                raise ApiError(409, "already_voted", "this answer has its vote already; ask for another pair")
            configs = service.config.model_configs
            shown = {
                "verdict": _VERDICTS[verdict],
                "shown": [
                    (side, name, configs[name].cost if name in configs else None)
                    # There are no models while the vote waits for the database.
                    for side, name in zip("AB", stored.models, strict=False)
                ],
                "budget": self.key().cost,
                "rows": sorted(
                    (row for row in await models(service, fresh=True) if row.votes), key=lambda row: -(row.voted or 0.0)
                ),
            }
            status = 200
        except ApiError as error:
            shown, status = {"problem": str(error)}, error.status
        if is_part:
            return fragment(request, render("route.application/verdict.html", **_NOTHING | shown), status=status)
        return _page(request, status=status, **shown)

    async def _prompt(self, request: Request) -> str:
        """Return the prompt of a form; raise `ApiError` for one that cannot be asked now."""
        arena = self.service.config.arena
        assert arena is not None
        prompt = (await _fields(request)).get("prompt", "").strip()
        if not prompt:
            raise ApiError(400, "invalid_value", "type a prompt first")
        if len(prompt) > arena.max_chars:
            raise ApiError(
                413, "too_long", f"the prompt has {len(prompt):,} characters; send at most {arena.max_chars:,}"
            )
        address, now = request.client.host if request.client else "", time.time()
        # By address: a visitor of the arena has no key of his own.
        windows = self.prompts.get(address) or Windows()
        self.prompts.put(address, windows)
        wait = windows.wait("", now, most=arena.per_minute, more=1)
        if wait is not None:
            message = f"at most {arena.per_minute} prompts a minute; try again in {wait:.0f} s"
            raise ApiError(429, "rate_limit_exceeded", message, retry_after=wait)
        windows.add("", int(now), 1)
        return prompt

    def key(self) -> KeyRecord:
        """Return the key of the arena."""
        arena = self.service.config.arena
        assert arena is not None
        return next(record for record in self.service.ledger.records if record.name == arena.key)


@dataclass
class _Battle:
    """One prompt and the two answers to it."""

    arena: Arena
    service: Service
    prompt: str
    answer: Answer = field(init=False)
    queue: asyncio.Queue[tuple[str, str] | None] = field(default_factory=asyncio.Queue)

    def __post_init__(self) -> None:
        """Begin a request."""
        self.answer = Answer(self.service.feedback.ids.new())

    async def events(self) -> AsyncGenerator[tuple[str, str], None]:
        """Yield pieces of answers by side, `0` or `1`, and in the end `done` with the id to vote on.

        The id is empty unless both models answered. Raise `ApiError` where none can be asked.
        """
        answer, service = self.answer, self.service
        tasks: list[asyncio.Task[bool]] = []
        service.metrics.running.inc()
        try:
            propensity = await self._begin()
            tasks = [asyncio.ensure_future(self._ask(str(number), side)) for number, side in enumerate(answer.sides)]
            left = len(tasks)
            while left:
                event = await self.queue.get()
                if event is None:
                    left -= 1
                else:
                    yield event
            both = all([await task for task in tasks])
            complete = [side for side, task in zip(answer.sides, tasks, strict=True) if task.result()]
            answer.shown = [side.charges[-1] for side in complete]
            answer.status = 200 if answer.shown else 502
            if both:
                remember(service, answer, propensity)
            yield "done", answer.request_id if both else ""
        except ApiError as error:
            answer.status, answer.code = error.status, error.code
            raise
        except (GeneratorExit, asyncio.CancelledError):
            answer.status, answer.code = 499, "client_gone"
            raise
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            service.metrics.running.dec()
            keep(service, answer)

    async def _begin(self) -> float:
        """Choose both models; return the probability that just these two are shown."""
        answer, service = self.answer, self.service
        service.enter(answer, self.arena.key())
        body: JSON = {"messages": [{"role": "user", "content": self.prompt}], "compare": True}
        request = parse_chat(json.dumps(body).encode(), {}, service.chat_models, by_name=False)
        answer.deadline = Deadline.after(service.config.timeouts.total)
        # A client cannot ask for a comparison as a stream; the arena shows both answers as they come.
        await decide(service, answer, replace(request, stream=True), {})
        return begin_sides(service, answer)

    async def _ask(self, number: str, side: Answer) -> bool:
        """Put the pieces of one answer into the queue; return whether it is complete."""

        async def write(chunks: Sequence[JSON]) -> None:
            for choice in (choice for chunk in chunks for choice in chunk.get("choices") or []):
                text = (choice.get("delta") or {}).get("content")
                if isinstance(text, str) and text:
                    await self.queue.put((number, text))

        try:
            deployment, opened = await self.service.dispatcher.run(side, open_stream)
            await self.service.dispatcher.relay(side, deployment, opened, write)
        except Exception as error:
            if not isinstance(error, ApiError):
                _log.exception("an answer of the arena failed")
            # Without the error's text, which may name the model.
            await self.queue.put((number, "\n\n[This model could not answer.]"))
            return False
        finally:
            await self.queue.put(None)
        return True


_NOTHING: dict[str, Any] = {
    "problem": "",
    "verdict": "",
    "shown": [],
    "budget": None,
    "rows": [],
}


def _page(request: Request, *, status: int = 200, **more: Any) -> Response:
    shown = {"title": "Arena", "prompt": "", "texts": None, "request_id": "", **_NOTHING, **more}
    return page(request, "route.application/arena.html", status=status, **shown)


def _closed() -> Response:
    return ApiError(
        404, "unknown_url", "this router has no arena; a section 'arena' in its configuration opens one"
    ).response()


async def _fields(request: Request) -> dict[str, str]:
    """Return the fields of a form of the arena itself; raise `ApiError` 403 for one of another site."""
    if not is_same_origin(request):
        raise ApiError(403, "not_the_arena", "only the arena's own page may send this")
    try:
        return dict(
            form_fields(await read_body(request.headers, request.receive, _FORM_BYTES, _FORM_SECONDS), _MOST_FIELDS)
        )
    except ValueError as error:
        raise ApiError(400, "invalid_value", "the form has too many fields") from error
