"""The operator's console: what the router does, spends and decides, live; keys and reload.

It is there where the configuration has an admin key. The key is brought once and starts a session; whatever changes
something must besides come from a page of the router itself (`is_same_origin`). Live parts (`Feed`) are pushed as
server-sent events.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response, StreamingResponse
from starlette.routing import Route

from p2l.common.errors import InputError, P2LError
from p2l.common.pages import Sessions, SignIn, form_fields, fragment, interval_svg, is_same_origin, page, send_asset
from p2l.common.prompts import familiarity_note
from p2l.common.report import render
from route.application import views
from route.application.admin import change_key, end_key, make_key, reload_now
from route.application.feed import Feed
from route.application.live import Live
from route.application.service import Service
from route.providers.base import JSON
from route.request.api_errors import ApiError
from route.request.chat import read_body
from route.routing.candidates import NoModelError

_FORM_BYTES = 2**18
_FORM_SECONDS = 10.0
_MOST_FIELDS = 50
# Of one stream of events, which the page opens anew at once: a router that is told to stop waits for open streams.
_STREAM_SECONDS = 12.0
_STEPS = 100  # of the budget slider
_NUMBERS = ("spend_per_day", "requests_per_minute", "tokens_per_minute", "votes_per_day", "budget_usd")
_LISTED = 200  # keys to choose from; of more the name is typed
_Handler = Callable[["Console", Request], Awaitable[Response]]


@dataclass(frozen=True)
class Console:
    """The console of one worker."""

    live: Live
    feed: Feed

    def routes(self) -> list[Route]:
        """Return its routes."""
        return [
            # Whoever types the router's address into a browser.
            Route("/", RedirectResponse("/console", 307), methods=["GET"], include_in_schema=False),
            self._route("/console", _page, "GET"),
            self._route("/console/events", _events, "GET"),
            self._route("/console/frontier", _frontier, "POST"),
            self._route("/console/keys", _change_keys, "POST"),
            self._route("/console/key", _change_keys, "POST"),
            self._route("/console/reload", _reload, "POST"),
            self._route("/console/sign-out", _sign_out, "POST"),
            Route("/console/session", self.sign_in, methods=["POST"], include_in_schema=False),
            Route("/static/{digest}/{name}", send_asset, methods=["GET"], include_in_schema=False),
        ]

    @property
    def service(self) -> Service:
        """Return the service as it is configured now."""
        return self.live.service

    @property
    def sessions(self) -> Sessions:
        """Return the sessions of the present admin key: with another key all end."""
        secret = f"{self.service.settings.page_secret}:{self.service.config.admin_key}"
        return Sessions(secret, "p2l_console", ended=self.service.ended_sessions)

    async def sign_in(self, request: Request) -> Response:
        """Start a session for the admin key."""
        key = dict(await _fields(request)).get("key", "").strip()
        return await self.sign_in_form.start(
            request,
            key,
            self.service.config.admin_key,
            judge=self.service.key_judge,
            sessions=self.sessions,
            home="/console",
        )

    @property
    def sign_in_form(self) -> SignIn:
        """Return the form for the admin key, or that says how one is set."""
        note = "It is admin_key of the router's configuration."
        if self.service.config.admin_key is None:
            note = "Set admin_key in the router's configuration, and reload it (SIGHUP), to use the console."
        return SignIn(title="Router console", action="/console/session", label="Admin key", note=note)

    def _route(self, path: str, handle: _Handler, method: str) -> Route:
        async def endpoint(request: Request) -> Response:
            if self.service.config.admin_key is None:
                return self.sign_in_form.form(request)
            if not self.sessions.has(request):
                # Who opens the console has done nothing wrong yet: a browser logs a 403 as an error of the page.
                return self.sign_in_form.form(request, status=200 if path == "/console" else 403)
            if method == "POST" and not is_same_origin(request):
                return Response("only the console itself may send this", 403, media_type="text/plain")
            return await handle(self, request)

        return Route(path, endpoint, methods=[method], include_in_schema=False)


async def _fields(request: Request) -> list[tuple[str, str]]:
    try:
        return form_fields(await read_body(request.headers, request.receive, _FORM_BYTES, _FORM_SECONDS), _MOST_FIELDS)
    except ValueError:
        return []


async def _page(console: Console, request: Request, *, status: int = 200, **more: Any) -> Response:
    service = console.service
    names = sorted(service.keys.valid)  # those of the configuration change there
    points = list(service.recent.points)[-views.SHOWN_POINTS :]
    settings = {
        "title": "Router console",
        "parts": await console.feed.whole(),
        "series": json.dumps(points),
        "lines": views.lines(points),
        "limits": _NUMBERS,
        "teams": sorted(service.config.teams),
        "can_make": service.config.database is not None,
        "names": names if len(names) <= _LISTED else [],
        "has_made": bool(names),
        "problem": "",
        "done": "",
        "new_key": None,
        **_slider(None, "", _STEPS),
    }
    return page(request, "route.application/console.html", status=status, **settings | more)


async def _events(console: Console, _: Request) -> Response:
    headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
    return StreamingResponse(console.feed.events(_STREAM_SECONDS), media_type="text/event-stream", headers=headers)


async def _frontier(console: Console, request: Request) -> Response:
    """Respond with the frontier of a typed prompt and the mixture of a budget."""
    fields = dict(await _fields(request))
    prompt, step = fields.get("prompt", ""), fields.get("budget", "")
    number = min(_STEPS, int(step)) if step.isdigit() else _STEPS
    shown = await _decided(console.service, prompt, number)
    if request.headers.get("hx-request") != "true":
        return await _page(console, request, **shown)
    return fragment(request, render("route.application/mixture.html", **shown))


async def _decided(service: Service, prompt: str, step: int) -> dict[str, Any]:
    if not prompt.strip():
        return _slider(None, prompt, step)
    # Not through the service: a typed prompt counts neither in the average leaderboard nor in the metrics.
    coefficients = await service.scorer.coefficients([prompt], service.config.score_timeout_ms / 1000)
    budget = _budget(service, step)
    try:
        decision = service.router.decide(coefficients, budget, allowed=service.routable)
    except (InputError, NoModelError) as error:
        return _slider(None, prompt, step, str(error))
    if not decision.scores:
        trouble = (
            "P2L gives no scores now" if service.router.kind.scored else "This router has no P2L that gives scores"
        )
        return _slider(None, prompt, step, trouble)
    return _slider(decision, prompt, step)


def _budget(service: Service, step: int) -> float | None:
    """Return the budget of a place of the slider: from the cheapest model to no budget at all, evenly by ratio."""
    if step >= _STEPS:
        return None
    costs = [model.cost for name, model in service.config.model_configs.items() if name in service.routable]
    low, high = min(costs), max(costs)
    if low <= 0:
        return high * step / _STEPS
    return float(low * (high / low) ** (step / _STEPS))


def _slider(decision: Any, prompt: str, step: int, trouble: str = "") -> dict[str, Any]:
    return {
        "decision": decision,
        "prompt": prompt,
        "step": step,
        "steps": _STEPS,
        "trouble": trouble,
        "note": "" if decision is None else familiarity_note(decision.familiarity),
        "mixture_svg": "" if decision is None else views.frontier_of(decision),
        "mixture": [] if decision is None else views.reasons(decision),
        "share_svg": interval_svg,
    }


async def _change_keys(console: Console, request: Request) -> Response:
    """Make a key (`/console/keys`), or limit or end one (`/console/key`)."""
    fields = dict(await _fields(request))
    name = fields.get("name", "")
    if request.url.path == "/console/keys":
        body = {"name": fields.get("name"), **_limits(fields)}
        return await _done(console, request, lambda: make_key(console.service, body))
    if fields.get("act") == "revoke":
        return await _done(console, request, lambda: end_key(console.service, name), f"{name} is revoked.")
    limits = _limits(fields, is_change=True)
    return await _done(console, request, lambda: change_key(console.service, name, limits), f"{name} is limited.")


def _limits(fields: dict[str, str], *, is_change: bool = False) -> JSON:
    """Return the limits of a form: empty fields are left out; `none` ends a limit."""
    limits: JSON = {}
    for name in (*_NUMBERS, "team"):
        text = fields.get(f"limit_{name}", "").strip()
        if text == "none" and is_change:
            limits[name] = None
        elif text:
            limits[name] = text
            if name != "team":
                with contextlib.suppress(ValueError):  # the check of limits refuses the text by its name
                    limits[name] = int(text) if text.isdigit() else float(text)
    return limits


async def _reload(console: Console, request: Request) -> Response:
    async def work() -> JSON:
        changed = (await reload_now(console.live)).changed
        return {"text": f"Reloaded; changed: {', '.join(changed)}." if changed else "Reloaded; nothing has changed."}

    return await _done(console, request, work)


async def _done(console: Console, request: Request, work: Callable[[], Awaitable[JSON]], text: str = "") -> Response:
    """Do something and respond with the page that says what came of it."""
    try:
        outcome = await work()
    except (ApiError, P2LError) as error:
        return await _page(console, request, status=getattr(error, "status", 400), problem=str(error))
    return await _page(console, request, done=text or outcome.get("text", ""), new_key=outcome.get("key"))


async def _sign_out(console: Console, request: Request) -> Response:
    response = RedirectResponse("/console", 303)
    console.sessions.end(request, response)
    return response
