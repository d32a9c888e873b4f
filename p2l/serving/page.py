"""The page of the endpoint: a prompt is typed, and its leaderboard moves.

The whole page and the board alone come from the same fields of one form, so that everything works without scripts; with
them, each keystroke asks for the board, and the one before is cancelled. Where the endpoint has a key, the page asks
for it once and then lives by a session; the routes of programs take no session.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from markupsafe import Markup
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from p2l.common.access import KeyJudge
from p2l.common.errors import InputError, P2LError
from p2l.common.long_texts import LONG
from p2l.common.pages import Sessions, SignIn, form_fields, fragment, interval_svg, page, send_asset, share_svg
from p2l.common.report import render
from p2l.inference import P2L
from p2l.serving.batcher import Batcher, BusyError, TooLargeError
from p2l.serving.boards import Reference, board_of, global_board, moves, read_clusters, reference_of, to_json, topics
from p2l.serving.score_cache import Answer
from p2l.serving.settings import Settings

Ask = Callable[[Request, list[list[str]]], Awaitable[tuple[P2L, list[Answer]]]]
"""Returns the answers to prompts, and the model that gave them."""
_OTHER_FIELDS = 20  # of the form, besides turns
_MAX_KEY_BYTES = 4096
_EXAMPLES_PER_REQUEST = 8  # so that prompts of users get between
_FIRST_ROWS = 30  # of a board of hundreds of models, until all are asked for
_SIGN_IN = SignIn(
    title="Prompt to leaderboard",
    action="/page/session",
    label="Key of this endpoint",
    note="It is what --api-key or P2L_API_KEY was when the endpoint was started.",
)


@dataclass
class _Form:
    """The fields of the page: the turns of the prompt and of the one it is compared with, and a filter of names."""

    turns: list[str] = field(default_factory=list)
    others: list[str] = field(default_factory=list)
    filter: str = ""
    is_compared: bool = False
    is_json: bool = False
    is_long: bool = False
    """Every model is shown, not the first alone."""
    new: str = ""
    """The field that was added last, which gets the focus: turn or other."""

    @classmethod
    def read(cls, body: bytes, most_turns: int) -> _Form:
        """Parse the fields; HTTPException for more than the service takes."""
        try:
            pairs = form_fields(body, most_turns + _OTHER_FIELDS)
        except ValueError:
            raise HTTPException(413, f"the form has more than {most_turns} turns (--max-turns)") from None
        fields: dict[str, list[str]] = {}
        for name, content in pairs:
            fields.setdefault(name, []).append(content)
        form = cls(fields.get("turn", []), fields.get("other", []), fields.get("filter", [""])[-1])
        form.is_compared = bool(form.others)
        form.is_json = fields.get("as") == ["json"]
        form.is_long = "all" in fields.get("models", [])
        form._press(fields)
        return form

    def _press(self, fields: dict[str, list[str]]) -> None:
        """Do what a button of the form asks for."""
        examples = [prompt for prompts in topics().values() for prompt in prompts]
        example = fields.get("example", [""])[-1]
        if example.isdigit() and int(example) < len(examples):
            if self.is_compared:
                self.others = [examples[int(example)]]
            else:
                self.turns = [examples[int(example)]]
        self.new = fields.get("add", [""])[-1]
        if self.new == "turn":
            self.turns.append("")
        elif self.new == "other":
            self.others.append("")
            self.is_compared = True
        drop = fields.get("drop", [""])[-1]
        if drop == "other":
            self.others = []
            self.is_compared = False
        elif drop == "turn":
            self.turns = self.turns[:-1]
        elif drop == "all":
            self.turns = []
            self.others = []
            self.is_compared = False

    @property
    def prompts(self) -> list[list[str]]:
        """Return the prompts that have text, without empty turns."""
        written = [[turn for turn in turns if turn.strip()] for turns in (self.turns, self.others)]
        return [turns for turns in written if turns]


class Page:
    """The page of one worker."""

    def __init__(self, settings: Settings, ask: Ask) -> None:
        """Ask the model with `ask`."""
        self._settings = settings
        self._ask = ask
        self._sessions = Sessions(settings.page_secret, "p2l_endpoint")
        self._judge = KeyJudge("the page", logging.getLogger("p2l.serving"))
        self._reference: Reference | None = None

    def routes(self) -> list[Route]:
        """Return the routes of the page."""
        return [
            Route("/", self.whole, methods=["GET", "POST"]),
            Route("/page/board", self.board, methods=["POST"]),
            Route("/page/session", self.sign_in, methods=["POST"]),
            Route("/static/{digest}/{name}", send_asset, methods=["GET"]),
        ]

    async def whole(self, request: Request) -> Response:
        """Respond with the page, or with the form for the key."""
        if not self._may(request):
            return _SIGN_IN.form(request)
        form = _Form()
        try:
            form = await self._form(request)
            shown = await self._shown(request, form)
            status = 200
        except (P2LError, HTTPException, TimeoutError) as error:
            status, problem = _problem(error)
            shown = {"problem": problem}
        examples = []  # one of each topic, with its number among all
        number = 0
        for topic, prompts in topics().items():
            examples.append((topic, number, prompts[0]))
            number += len(prompts)
        return page(
            request, "p2l.serving/page.html", status=status, form=form, examples=examples, **self._empty | shown
        )

    async def board(self, request: Request) -> Response:
        """Respond with the leaderboard alone, as HTML or as JSON."""
        if not self._may(request):
            return _SIGN_IN.form(request)
        try:
            form = await self._form(request)
            shown = self._empty | await self._shown(request, form)
        except (P2LError, HTTPException, TimeoutError) as error:
            status, problem = _problem(error)
            html = render("p2l.serving/board.html", **self._empty | {"problem": problem})
            return fragment(request, html, status=status)
        if form.is_json:
            pairs = zip(form.prompts, shown["boards"], strict=False)
            boards = [to_json(turns, board, shown["revision"]) for turns, board in pairs]
            text = json.dumps(boards[0] if len(boards) == 1 else boards, ensure_ascii=False, indent=1)
            return Response(text, media_type="application/json", headers={"cache-control": "no-store"})
        return fragment(request, render("p2l.serving/board.html", **shown))

    async def sign_in(self, request: Request) -> Response:
        """Start a session for the right key."""
        body = await request.body()
        key = dict(form_fields(body[:_MAX_KEY_BYTES], 5)).get("key", "").strip(" \t")
        digest = self._settings.api_key_digest
        if digest is None:  # nobody needs a session
            return RedirectResponse("../", 303)
        # Relative: the page may stand behind a proxy, below a path of its own.
        return await _SIGN_IN.start(request, key, digest, judge=self._judge, sessions=self._sessions, home="../")

    def _may(self, request: Request) -> bool:
        return self._settings.api_key_digest is None or self._sessions.has(request)

    async def _form(self, request: Request) -> _Form:
        body, most = await request.body(), self._settings.max_turns
        return await asyncio.to_thread(_Form.read, body, most) if len(body) > LONG else _Form.read(body, most)

    @property
    def _empty(self) -> dict[str, Any]:
        """Every name that the templates use: one that is missing is an error there."""
        names = ("boards", "rows", "left_out", "is_long", "moved", "reference", "revision", "total", "asked")
        return dict.fromkeys(names) | {
            "rate_svg": lambda row, has_mark: interval_svg(
                row.rate, row.lower, row.upper, row.global_rate if has_mark else None
            ),
            "change": _change,
            "share_svg": share_svg,
            "title": "Prompt to leaderboard",
            "problem": "",
        }

    async def _shown(self, request: Request, form: _Form) -> dict[str, Any]:
        """Return what the board's template needs."""
        model, answers = await self._ask(request, form.prompts)
        reference = self._reference
        if reference is None or reference.revision != model.revision:
            reference = self._reference = await self._make_reference(request)
            if reference.revision != model.revision:  # another model came meanwhile
                model, answers = await self._ask(request, form.prompts)
        boards = [board_of(model, answer, reference) for answer in answers] or [global_board(model, reference)]
        # Each row of the first board with the same model's row of the second.
        seconds = {row.model: row for row in boards[1].rows} if len(boards) == 2 else {}
        words = form.filter.casefold().split()
        rows = [row for row in boards[0].rows if all(word in row.model.casefold() for word in words)]
        shown = rows if form.is_long else rows[:_FIRST_ROWS]
        return {
            "boards": boards,
            "rows": [(row, seconds.get(row.model)) for row in shown],
            "left_out": len(rows) - len(shown),
            "is_long": form.is_long,
            "moved": moves(boards[0], boards[1]) if len(boards) == 2 else [],
            "reference": reference,
            "revision": model.revision,
            "total": len(model.model_list),
            "asked": bool(answers),
        }

    async def _make_reference(self, request: Request) -> Reference:
        """Ask for all examples, which the limits of what others send do not count."""
        batcher: Batcher = request.app.state.service.batcher
        examples = [[prompt] for prompts in topics().values() for prompt in prompts]
        model, size = batcher.model, min(self._settings.queue_size, _EXAMPLES_PER_REQUEST)
        answers: list[Answer] = []
        for start in range(0, len(examples), size):
            answers += await batcher.ask(examples[start : start + size], model=model)
        clusters = None
        if self._settings.clusters:
            with contextlib.suppress(InputError):  # a reloaded model may have other names
                clusters = read_clusters(self._settings.clusters, model.model_list)
        return reference_of(model, answers, clusters)


def _problem(error: Exception) -> tuple[int, str]:
    """Return the status and the sentence of an error."""
    if isinstance(error, HTTPException):
        return error.status_code, str(error.detail)
    if isinstance(error, TimeoutError):
        return 504, "the deadline passed before the answer was there"
    status = 503 if isinstance(error, BusyError) else 413 if isinstance(error, TooLargeError) else 422
    return status if isinstance(error, InputError | BusyError) else 500, str(error)


def _change(gain: int, before: int, head: str) -> str:
    """Return a cell with the rank before, and how many ranks were gained since."""
    arrow = f'<span class="up">▲{gain}</span>' if gain > 0 else f'<span class="down">▼{-gain}</span>' if gain else ""
    return Markup(f'<td class="number change" data-head="{head}">{before} <span class="arrow">{arrow}</span></td>')
