"""The arena: one prompt, two anonymous answers side by side, a vote, and only then the names.

Whoever reaches the router may use it, within the limits of the key that the configuration gives the arena and of each
network of visitors (`route.keep.visitors`). The pair is drawn as for `compare: true`, its sides at random, whoever
asks; propensity and order are stored with the answers, and a vote goes where `POST /v1/feedback` goes. A battle can be
voted on by the visitor who was shown both answers, once, since the names are told after it.

Where the configuration asks for it, a vote carries a proof of work: a number behind the token of its battle whose hash
begins with zero bits. The token is signed and good for one vote, so that nothing has to be kept for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from p2l.common.pages import form_fields, fragment, is_same_origin, is_secure, page
from p2l.common.report import render
from p2l.common.web import Deadline
from route.application.compare import begin_sides
from route.application.decide import decide
from route.application.live import Live
from route.application.record import keep, remember
from route.application.service import Service
from route.application.views import models
from route.keep.database import DatabaseError
from route.keep.feedback import Vote, VoteLimits
from route.keep.ledger import KeyRecord, Refusal
from route.keep.visitors import SALT_SECONDS, Visitor, is_cookie, new_cookie
from route.key_config import ArenaConfig
from route.providers.base import JSON
from route.request.api_errors import ApiError, of_refusal
from route.request.chat import parse_chat, read_body
from route.send.asking import open_stream
from route.send.dispatch import Answer

if TYPE_CHECKING:
    from p2l.votes import SelfNames

_FORM_BYTES = 2**20
_FORM_SECONDS = 10.0
_MOST_FIELDS = 10
_COOKIE = "p2l-visitor"
_LONGEST_TOKEN = 100
_LONGEST_WORK = 20
_VERDICTS = {
    "first": "A was better",
    "second": "B was better",
    "tie": "they were equally good",
    "both_bad": "both were bad",
}
_UNAVAILABLE = ApiError(503, "unavailable", "the arena cannot keep votes now; come again later")
_log = logging.getLogger("route.arena")


@dataclass(frozen=True)
class Arena:
    """The arena of one worker."""

    live: Live

    def routes(self) -> list[Route]:
        """Return its routes."""
        return [
            Route("/arena", self.whole, methods=["GET", "POST"], include_in_schema=False),
            Route("/arena/answers", self.answers, methods=["POST"], include_in_schema=False),
            Route("/arena/vote", self.vote, methods=["POST"], include_in_schema=False),
        ]

    @property
    def settings(self) -> ArenaConfig:
        """Return its settings; an arena that is closed has none."""
        settings = self.service.config.arena
        assert settings is not None
        return settings

    @property
    def service(self) -> Service:
        """Return the service as it is configured now."""
        return self.live.service

    async def whole(self, request: Request) -> Response:
        """Respond with the page; to a form that was sent without scripts, with both answers."""
        if self.service.config.arena is None:
            return _closed()
        cookie = _cookie_of(request)
        if request.method == "GET":
            return _keeping(cookie, request, self._page(request))
        texts = ["", ""]
        token = ""
        prompt = ""
        try:
            prompt = await self._prompt(request)
            battle = await self._battle(request, prompt, cookie)
            async with contextlib.aclosing(battle.events()) as events:
                async for name, content in events:
                    if name in ("0", "1"):
                        texts[int(name)] += content
                    elif name == "done":
                        token = content
        except ApiError as error:
            return self._page(request, status=error.status, prompt=prompt, problem=str(error))
        return _keeping(cookie, request, self._page(request, prompt=prompt, texts=texts, token=token))

    async def answers(self, request: Request) -> Response:
        """Stream both answers as events: `0` and `1` with text, then `done` with what to vote on, or `problem`."""
        if self.service.config.arena is None:
            return _closed()
        cookie = _cookie_of(request)
        try:
            battle = await self._battle(request, await self._prompt(request), cookie)
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
        return _keeping(cookie, request, StreamingResponse(stream(), media_type="text/event-stream", headers=headers))

    async def vote(self, request: Request) -> Response:
        """Store a vote and respond with the names, what they cost, and the board."""
        if self.service.config.arena is None:
            return _closed()
        is_part = request.headers.get("hx-request") == "true"
        try:
            service = self.service
            fields = await _fields(request)
            token, verdict = fields.get("battle", ""), fields.get("verdict", "")
            if verdict not in _VERDICTS or not (0 < len(token) <= _LONGEST_TOKEN and token.isascii()):
                raise ApiError(400, "invalid_value", "a vote names a battle and one of four verdicts")
            request_id = service.feedback.ids.shown_to(token, _cookie_of(request))
            if request_id is None:
                raise ApiError(403, "not_shown", "this browser was not shown these answers, or keeps no cookies")
            if not _is_work(token, fields.get("work", ""), self.settings.work_bits):
                raise ApiError(403, "no_work", "this arena asks for a proof of work, which its page does with scripts")
            limits = VoteLimits(of_prefix=self.settings.votes_per_day, once=True)
            stored = await service.vote(Vote(request_id, verdict), self.key(), visitors=limits)
            if isinstance(stored, Refusal):
                raise of_refusal(stored)
            configs = service.config.model_configs
            shown = {
                "verdict": _VERDICTS[verdict],
                "shown": [
                    (side, name, configs[name].cost if name in configs else None)
                    for side, name in zip("AB", stored.models, strict=True)
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
        return self._page(request, status=status, **shown)

    def _page(self, request: Request, *, status: int = 200, **more: Any) -> Response:
        nothing = {"title": "Arena", "prompt": "", "texts": None, "token": "", **_NOTHING}
        shown = nothing | {"work_bits": self.settings.work_bits} | more
        return page(request, "route.application/arena.html", status=status, **shown)

    async def _prompt(self, request: Request) -> str:
        """Return the prompt of a form; raise `ApiError` for one that cannot be asked now."""
        arena = self.settings
        prompt = (await _fields(request)).get("prompt", "").strip()
        if not prompt:
            raise ApiError(400, "invalid_value", "type a prompt first")
        if len(prompt) > arena.max_chars:
            raise ApiError(
                413, "too_long", f"the prompt has {len(prompt):,} characters; send at most {arena.max_chars:,}"
            )
        return prompt

    async def _battle(self, request: Request, prompt: str, cookie: str) -> _Battle:
        """Return a battle of a visitor; raise `ApiError` 429 where his network has begun as many as it may."""
        service, arena = self.service, self.settings
        try:
            visitor = await service.visitors.of(cookie, _address_of(request, arena.proxies))
        except DatabaseError as error:
            raise _UNAVAILABLE from error
        # A visitor has no key: what is counted is a key of the network, which no request can name.
        network = KeyRecord(f"network:{visitor.prefix}", digest="", requests_per_minute=arena.per_minute)
        refusal = await service.ledger.count(network)
        if refusal is not None and refusal.status == 429:
            wait = refusal.retry_after or 0.0
            message = f"at most {arena.per_minute} prompts a minute; try again in {wait:.0f} s"
            refusal = replace(refusal, message=message)
        if refusal is not None:
            raise of_refusal(refusal)
        return _Battle(self, service, prompt, cookie, visitor)

    def key(self) -> KeyRecord:
        """Return the key of the arena."""
        return next(record for record in self.service.ledger.records if record.name == self.settings.key)


@dataclass
class _Battle:
    """One prompt and the two answers to it."""

    arena: Arena
    service: Service
    prompt: str
    cookie: str
    visitor: Visitor
    answer: Answer = field(init=False)
    names: SelfNames = field(init=False)
    queue: asyncio.Queue[tuple[str, str] | None] = field(default_factory=asyncio.Queue)

    def __post_init__(self) -> None:
        """Begin a request."""
        # The package of votes imports Arrow, which a router without an arena does without.
        from p2l.votes import SelfNames

        self.names = SelfNames.of(self.service.config.model_configs)
        self.answer = Answer(self.service.feedback.ids.new())

    async def events(self) -> AsyncGenerator[tuple[str, str], None]:
        """Yield pieces of answers by side, `0` or `1`, and in the end `done` with the token to vote with.

        The token is empty unless both models answered. Raise `ApiError` where none can be asked.
        """
        answer, service = self.answer, self.service
        texts = {"0": "", "1": ""}
        tasks: list[asyncio.Task[bool]] = []
        service.metrics.running.inc()
        try:
            propensity = await self._begin()
            service.visitors.begin(self.visitor)  # also if he leaves before the end, as one who dislikes the pair does
            tasks = [asyncio.ensure_future(self._ask(str(number), side)) for number, side in enumerate(answer.sides)]
            left = len(tasks)
            while left:
                event = await self.queue.get()
                if event is None:
                    left -= 1
                else:
                    texts[event[0]] += event[1]
                    yield event
            both = all([await task for task in tasks])
            complete = [side for side, task in zip(answer.sides, tasks, strict=True) if task.result()]
            answer.shown = [side.charges[-1] for side in complete]
            answer.status = 200 if answer.shown else 502
            if both:
                revealed = any(map(self.names.revealed, texts.values()))
                remember(service, answer, propensity, visitor=self.visitor, identity_revealed=revealed)
            yield "done", service.feedback.ids.token(answer.request_id, self.cookie) if both else ""
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

        mask = self.names.mask() if self.arena.settings.mask_names else None

        async def show(text: str) -> None:
            shown = text if mask is None else mask.feed(text)
            if shown:
                await self.queue.put((number, shown))

        async def write(chunks: Sequence[JSON]) -> None:
            for choice in (choice for chunk in chunks for choice in chunk.get("choices") or []):
                text = (choice.get("delta") or {}).get("content")
                if isinstance(text, str) and text:
                    await show(text)

        try:
            deployment, opened = await self.service.dispatcher.run(side, open_stream)
            await self.service.dispatcher.relay(side, deployment, opened, write)
            if mask is not None and (rest := mask.end()):
                await self.queue.put((number, rest))
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


def _cookie_of(request: Request) -> str:
    """Return the cookie of a visitor, a new one where the browser has none."""
    cookie = request.cookies.get(_COOKIE, "")
    return cookie if is_cookie(cookie) else new_cookie()


def _keeping(cookie: str, request: Request, response: Response) -> Response:
    """Return a response that leaves the browser its cookie."""
    if request.cookies.get(_COOKIE) != cookie:
        secure = is_secure(request)
        response.set_cookie(
            _COOKIE, cookie, max_age=SALT_SECONDS, path="/arena", httponly=True, samesite="strict", secure=secure
        )
    return response


def _address_of(request: Request, proxies: int) -> str:
    """Return the address of a visitor, as the outermost of the router's own proxies saw it."""
    forwarded = [part.strip() for line in request.headers.getlist("x-forwarded-for") for part in line.split(",")]
    if 0 < proxies <= len(forwarded):
        return forwarded[-proxies]
    return request.client.host if request.client else ""


def _is_work(token: str, work: str, bits: int) -> bool:
    """Return whether a number behind a token makes a hash that begins with so many zero bits; with 0 anything does."""
    if not bits:
        return True
    if not (work.isascii() and work.isdigit() and len(work) <= _LONGEST_WORK):
        return False
    digest = hashlib.sha256(f"{token}.{work}".encode()).digest()
    return int.from_bytes(digest, "big") >> (8 * len(digest) - bits) == 0


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
