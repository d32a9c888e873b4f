"""The HTTP application: its routes and error handlers."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import asdict

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from p2l.common.cli import nearest
from p2l.common.errors import P2LError
from p2l.common.long_texts import to_json
from p2l.common.processes import end_when_orphaned
from p2l.common.web import ClientGoneError
from route.application.admin import operate, why_not_operator
from route.application.arena import Arena
from route.application.chat import ChatEndpoint, read_chat
from route.application.console import Console
from route.application.counting import ESTIMATED, count_message, count_response
from route.application.decide import decide
from route.application.feed import Feed
from route.application.forwarding import PassedEndpoint
from route.application.live import Live
from route.application.openapi import document
from route.application.record import CACHED, PASSED_OVER
from route.application.service import Service
from route.application.settings import Settings
from route.config import ROUTER_ALIAS, ROUTER_NAME, SERVED, RouterConfig
from route.keep.database import DatabaseError
from route.keep.feedback import NoVoteError, parse_vote
from route.keep.ledger import KeyRecord, Refusal
from route.keep.stored_responses import StoredResponse
from route.observability.logs import LOGGER
from route.providers.base import JSON, NATIVE, KeepsResponses, ProviderError, Timeouts
from route.providers.responses import UNDER_WAY
from route.request.api_errors import ApiError, of_fault, of_refusal, responses_unreadable
from route.request.chat import Dialect, parse_object, read_body, router_fields
from route.request.fields import decision_of
from route.request.messages import Messages
from route.request.response_stream import is_own_id
from route.request.responses import Compaction, Responses, stored_chain
from route.send.dispatch import Answer

_VOTE_BYTES = 2**16
_VOTE_SECONDS = 10.0
_EXPOSED = (
    *("x-request-id", "request-id", "retry-after", "x-p2l-model", "x-p2l-cost", "x-p2l-static", "x-p2l-average"),
    *("x-p2l-dropped-fields", ESTIMATED, "x-p2l-max-tokens", PASSED_OVER, CACHED),
)
"""Headers of answers that a page may read."""
_PREFLIGHT_SECONDS = 600
_LISTED_ITEMS = 1000  # of the input of one response, in one page
_NOT_KEPT = (404, 405, 501)  # statuses of a provider that does not have a response, or keeps none
_RECORD_TIMEOUTS = Timeouts(connect=5.0, first_token=30.0, total=30.0)
_LONGEST_PATH = 100  # letters of an unknown one that its error repeats
_LONGEST_NAME = 100  # letters of an unknown model's name that the nearest one is looked for
# New objects that the garbage collector waits for. A hundred requests under way hold more than Python's 700, so that it
# would look through them again and again: a tenth of the time of each.
_COLLECTED_OBJECTS = 10_000
_Handler = Callable[[Service, Request], Awaitable[Response]]


def build_app(config: RouterConfig, settings: Settings) -> Starlette:
    """Build the application that serves a configuration."""

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        try:
            live = Live(config, settings)
            await live.start()
        except (P2LError, ModuleNotFoundError) as error:
            app.state.problem = error  # reported by route.application.server
            raise
        app.state.live = live
        routes = _routes(live)  # now, since the parts belong to this event loop
        app.router.routes.extend(routes)
        # Past middleware and routing of Starlette, which take as long as to parse a request.
        assert isinstance(app, _Application)
        app.chats = {route.path: route.endpoint for route in routes if isinstance(route.endpoint, ChatEndpoint)}
        gc.freeze()  # so that the collector skips what lives as long as the process
        gc.set_threshold(_COLLECTED_OBJECTS)
        orphan_check = asyncio.ensure_future(end_when_orphaned(LOGGER))
        yield
        orphan_check.cancel()
        await live.close()

    handlers = {HTTPException: _http, Exception: _unexpected}
    app = _Application(lifespan=lifespan, exception_handlers=handlers, middleware=[Middleware(_Pages)])
    # A redirect would send clients, with their keys, to http: behind a proxy that speaks TLS.
    app.router.redirect_slashes = False
    return app


class _Application(Starlette):
    """Starlette's application, with a short way to the endpoints of chat requests."""

    chats: Mapping[str, ChatEndpoint] = {}
    """Endpoints of chat requests by path; empty before the start."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a chat request at once, where no page of another origin may ask; others as usual."""
        chat = self.chats.get(scope["path"]) if scope["type"] == "http" and scope["method"] == "POST" else None
        if chat is None or chat.live.service.config.cors_origins:
            await super().__call__(scope, receive, send)
        else:
            await chat(scope, receive, send)


class _Pages:
    """Lets pages of the configured origins call the router; keys come in headers, so that no cookies are needed."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._origins: list[str] = []
        self._open: ASGIApp = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        origins = scope["app"].state.live.service.config.cors_origins
        if origins != self._origins:  # a reload has changed them
            self._origins = origins
            self._open = self._app
            if origins:
                self._open = CORSMiddleware(
                    self._app,
                    allow_origins=origins,
                    allow_methods=["GET", "POST", "DELETE"],
                    allow_headers=["*"],
                    expose_headers=list(_EXPOSED),
                    max_age=_PREFLIGHT_SECONDS,
                )
        await self._open(scope, receive, send)


def _routes(live: Live) -> list[Route]:
    def operation(path: str, handle: Callable[[Live, Request], Awaitable[Response]], method: str) -> Route:
        async def endpoint(request: Request) -> Response:
            try:
                return await handle(live, request)
            except ApiError as error:
                return error.response({"x-request-id": f"req-{secrets.token_hex(12)}"})
            except ClientGoneError:
                return Response(status_code=499)  # nobody reads it

        return Route(path, endpoint, methods=[method])

    def plain(path: str, handle: _Handler, method: str) -> Route:
        return operation(path, lambda live, request: handle(live.service, request), method)

    return [
        Route("/v1/chat/completions", ChatEndpoint(live), methods=["POST"]),
        Route("/v1/messages", ChatEndpoint(live, Messages), methods=["POST"]),
        plain("/v1/messages/count_tokens", count_message, "POST"),
        Route("/v1/responses", ChatEndpoint(live, Responses), methods=["POST"]),
        Route("/v1/responses/compact", ChatEndpoint(live, Compaction), methods=["POST"]),
        plain("/v1/responses/input_tokens", count_response, "POST"),
        plain("/v1/responses/{response_id}", _response, "GET"),
        plain("/v1/responses/{response_id}", _response, "DELETE"),
        plain("/v1/responses/{response_id}/cancel", _response, "POST"),
        plain("/v1/responses/{response_id}/input_items", _input_items, "GET"),
        *(
            Route(f"/v1/{path}", PassedEndpoint(live, kind, path), methods=["POST"])
            for kind, paths in SERVED.items()
            for path in paths
        ),
        plain("/v1/route", _route, "POST"),
        plain("/v1/feedback", _feedback, "POST"),
        plain("/v1/models", _models, "GET"),
        plain("/v1/models/{name:path}", _models, "GET"),
        plain("/health", _health, "GET"),
        plain("/ready", _ready, "GET"),
        plain("/metrics", _metrics, "GET"),
        plain("/openapi.json", _openapi, "GET"),
        operation("/admin/reload", operate, "POST"),
        operation("/admin/votes", operate, "GET"),
        operation("/admin/votes", operate, "DELETE"),
        operation("/admin/keys", operate, "GET"),
        operation("/admin/keys", operate, "POST"),
        operation("/admin/keys/{name}", operate, "PATCH"),
        operation("/admin/keys/{name}", operate, "DELETE"),
        *Console(live, Feed(live)).routes(),
        *Arena(live).routes(),
    ]


async def _route(service: Service, request: Request) -> Response:
    """Answer with the decision for a chat request, without asking a model; it counts as a request of its key."""
    key = await service.authenticate(request.headers)
    answer = Answer("", key=key)
    chat = await read_chat(service, request.headers, request.receive, Dialect(), answer)
    if chat.direct is not None:
        raise ApiError(400, "invalid_value", "direct_model: leaves nothing to decide", param="direct_model")
    await decide(service, answer, chat, request.headers)
    if answer.choice.allowance is not None:
        answer.choice.allowance.pacers = ()  # nothing is asked, so nothing is spent
    service.dispatcher.first(answer)
    assert answer.choice.decision is not None
    return JSONResponse({"object": "route.decision", **decision_of(answer.choice.decision)})


async def _response(service: Service, request: Request) -> Response:
    """Answer with a response that is kept; or stop what is made of it in the background, or forget it."""
    key, identifier = await service.authenticate(request.headers), request.path_params["response_id"]
    if request.query_params.get("stream", "false") != "false":
        raise ApiError(400, "unsupported", "stream: a kept response is told whole; leave it out", param="stream")
    [row] = await stored_chain(service.responses, key.name, identifier, most=1)
    response = row.response
    if request.method == "DELETE":
        await _forget(service, key, row)
        return JSONResponse({"id": identifier, "object": "response", "deleted": True})
    is_under_way = response.get("status") in UNDER_WAY
    if request.method == "POST" and not is_under_way and not response.get("background"):
        text = f"{identifier!r} cannot be cancelled: it was not made in the background, with `background: true`"
        raise ApiError(400, "invalid_value", text, param="response_id")
    if is_under_way:
        response = await _made_meanwhile(service, key, row, is_cancelled=request.method == "POST")
    return Response(await to_json(response), media_type="application/json")


async def _input_items(service: Service, request: Request) -> Response:
    """Answer with a page of the input of a kept response's request."""
    key, identifier = await service.authenticate(request.headers), request.path_params["response_id"]
    [row] = await stored_chain(service.responses, key.name, identifier, most=1)
    query = request.query_params
    limit = query.get("limit", str(_LISTED_ITEMS))
    if not (limit.isascii() and limit.isdigit() and 1 <= int(limit[:9]) <= _LISTED_ITEMS):
        raise ApiError(400, "invalid_value", f"limit: must be 1 to {_LISTED_ITEMS:,}", param="limit")
    items = row.items if query.get("order") == "asc" else row.items[::-1]  # the newest first, as OpenAI lists them
    if "after" in query:
        places = [place for place, item in enumerate(items) if item.get("id") == query["after"]]
        if not places:
            raise ApiError(400, "invalid_value", f"after: no item {query['after']!r:.100} there", param="after")
        items = items[places[0] + 1 :]
    page = items[: int(limit)]
    first, last = (page[0].get("id"), page[-1].get("id")) if page else (None, None)
    listed = {"object": "list", "data": page, "first_id": first, "last_id": last, "has_more": len(items) > len(page)}
    return Response(await to_json(listed), media_type="application/json")


def _keepers(service: Service, response: JSON) -> list[KeepsResponses]:
    """Return the clients of those who may keep a response."""
    target = service.fleet.targets.get(response["model"])
    providers: list[object] = [] if target is None else [each.provider for each in target.deployments]
    return [each for each in providers if isinstance(each, KeepsResponses) and each.keeps(response["id"])]


async def _forget(service: Service, key: KeyRecord, row: StoredResponse) -> None:
    """Forget a response here and where its provider keeps it; raise `ApiError` where it may still be there."""
    kept = row.response
    for provider in () if is_own_id(kept["id"]) else _keepers(service, kept):
        try:
            await provider.forget(kept["id"], _RECORD_TIMEOUTS)
        except ProviderError as error:  # which another account may have, or nobody
            if error.status not in _NOT_KEPT:
                raise of_fault(error, kept["model"]) from error
    try:
        await service.responses.delete(key.name, kept["id"])
    except DatabaseError as error:
        raise responses_unreadable() from error


async def _made_meanwhile(service: Service, key: KeyRecord, row: StoredResponse, *, is_cancelled: bool) -> JSON:
    """Return what has become of a response that its provider makes in the background, and keep it once it is made.

    Stop it first where the client asks for that. Raise `ApiError` where the provider does not say.
    """
    kept = row.response
    failure = None
    for provider in _keepers(service, kept):
        try:
            ask = provider.cancel if is_cancelled else provider.recorded
            record = await ask(kept["id"], _RECORD_TIMEOUTS)
        except ProviderError as error:  # another account has it, or nobody
            failure = error
            continue
        told: JSON = {**record[NATIVE], "model": kept["model"], **router_fields(kept)}
        if kept.get("previous_response_id") is not None:
            told["previous_response_id"] = kept["previous_response_id"]
        if told.get("status") not in UNDER_WAY:
            try:
                await service.responses.renew(key.name, row, told)
            except DatabaseError as error:  # the provider is asked for it again the next time
                LOGGER.warning("a response that was made in the background is not kept: %s", error)
        return told
    if failure is not None:
        raise of_fault(failure, kept["model"])
    raise ApiError(404, "response_not_found", f"{kept['id']!r}: the model that makes it is not configured any more")


async def _feedback(service: Service, request: Request) -> Response:
    """Store a vote on an earlier answer."""
    key = await service.authenticate(request.headers)
    seconds = min(_VOTE_SECONDS, service.config.timeouts.total)
    body = parse_object(await read_body(request.headers, request.receive, _VOTE_BYTES, seconds))
    try:
        vote = parse_vote(body)
    except NoVoteError as error:
        raise ApiError(400, "invalid_value", str(error), param=error.field) from error
    stored = await service.vote(vote, key)
    if isinstance(stored, Refusal):
        refusal = of_refusal(stored)
        choice = "better" if body.get("thumbs") is None else "thumbs"
        refusal.param = {"answer_not_found": "request_id", "wrong_kind_of_vote": choice}.get(stored.code)
        raise refusal
    return JSONResponse({"object": "route.vote", **asdict(stored)}, 202 if stored.pending else 200)


async def _models(service: Service, request: Request) -> Response:
    """List what `model` may name: the router, and models that a name reaches; or answer with one of them."""
    key = await service.authenticate(request.headers)
    owners = {ROUTER_NAME: "p2l", ROUTER_ALIAS: "p2l"}
    for model_name, model in service.config.model_configs.items():
        is_named = service.settings.direct_by_name or any(kind != "chat" for kind in model.serves)
        if is_named and (key.models is None or model_name in key.models):
            owners[model_name] = model.routed(model_name).provider
    cards = {
        model_name: {"id": model_name, "object": "model", "created": service.started, "owned_by": owner}
        for model_name, owner in owners.items()
    }
    name = request.path_params.get("name")
    if name is None:
        return JSONResponse({"object": "list", "data": list(cards.values())})
    if name not in cards:
        hint = nearest(name[:_LONGEST_NAME], cards)
        raise ApiError(404, "model_not_found", f"no model {name!r}{hint}; GET /v1/models lists them", param="model")
    return JSONResponse(cards[name])


async def _health(service: Service, _: Request) -> Response:
    """Answer while the process runs, and say where P2L gives no scores what decides in their place."""
    state: JSON = {"status": "ok"}
    if not service.scorer.is_well:
        state |= {"static": service.fallback != "average", "fallback": service.fallback}
    return JSONResponse(state)


async def _ready(service: Service, request: Request) -> Response:
    """Answer 200 while a model is not blocked, and with whether there are scores; an operator, with who is blocked."""
    blocked = service.fleet.failing()
    available = [name for name in service.routable if name not in blocked]
    state: JSON = {"status": "ready" if available else "no model is well"}
    state["scores"] = service.scorer.is_well
    if not service.scorer.is_well:
        state["fallback"] = service.fallback
    state["database"] = service.database.fault is None
    shared, journal = service.ledger.shared, service.feedback.journal
    if shared is not None:
        state["limits"] = shared.fault is None
    if journal is not None:
        state["waiting_votes"] = journal.waiting
    if service.answer_cache is not None:
        state["answer_cache"] = service.answer_cache.fault is None
    if await why_not_operator(service, request) is None:
        state["blocked"] = sorted(blocked)
        if service.scorer.trouble:
            state["trouble"] = service.scorer.trouble
        faults = {"database": service.database.fault, "limits": None if shared is None else shared.fault}
        state |= {f"{name}_fault": fault for name, fault in faults.items() if fault is not None}
    return JSONResponse(state, 200 if available else 503)


async def _metrics(service: Service, request: Request) -> Response:
    """Answer an operator with the metrics, which name models, keys and what they spend."""
    refusal = await why_not_operator(service, request)
    if refusal is not None:
        raise refusal
    service.observe()
    text = await asyncio.to_thread(service.metrics.text)
    return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")


async def _openapi(_: Service, __: Request) -> Response:
    """Answer with the description of all routes, which needs no key."""
    return Response(document(), media_type="application/json")


async def _http(request: Request, error: Exception) -> Response:
    """Answer what Starlette itself refuses: unknown paths and methods."""
    assert isinstance(error, HTTPException)
    path, headers = request.url.path[:_LONGEST_PATH], error.headers or {}
    if error.status_code == 404:
        # Nearly always a client whose base URL is that of the other API.
        text = (
            f"there is no {path} here; GET /openapi.json lists what there is"
            " (the base URL of OpenAI's clients ends in /v1, that of Anthropic's does not)"
        )
        refusal = ApiError(404, "unknown_url", text)
    else:
        text = f"{path} takes {headers.get('Allow', 'another method')}, not {request.method}"
        refusal = ApiError(error.status_code, "method_not_allowed", text)
    # Anthropic's clients read errors in its form, batches and other paths that are not here included.
    body = Messages().error(refusal) if path.startswith("/v1/messages") else None
    return refusal.response(headers, body)


async def _unexpected(_: Request, __: Exception) -> Response:
    return ApiError(500, "internal_error", "an error of the router; its log says more").response()
