"""Batch jobs on the loopback interface, as their providers offer them, in one server.

What it says in each protocol is in `served_openai`, `served_anthropic`, `served_gemini` and `served_clouds`; in
`test_official_clients` the providers' own clients read it.

with BatchServer() as server:
    ...  # OpenAI at server.url + "/v1", Anthropic at server.url, Azure at server.url, Google at server.url + "/v1beta"
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from coeval.mock.models import answer
from tests.coeval.batch.served_anthropic import AnthropicSide
from tests.coeval.batch.served_clouds import CloudSide
from tests.coeval.batch.served_gemini import GeminiSide
from tests.coeval.batch.served_openai import OpenAISide

Answer = Callable[[str, dict[str, Any]], "str | int | None"]
"""(prompt, body) -> text; a number is the status of a refusal; None: never asked."""


def by_brain(prompt: str, body: dict[str, Any]) -> str:
    """What a mock model says, its parameters being in the request."""
    return answer(prompt, "", body)


@dataclass
class ServedJob:
    """A job at the server."""

    id: str
    requests: list[tuple[str, dict[str, Any]]]
    """(custom id, body)."""
    told: dict[str, Any]
    """What came with it."""
    made: float = field(default_factory=time.time)
    looks: int = 0
    cancelled: bool = False
    answers: list[str | int | None] | None = None

    @property
    def tokens(self) -> int:
        """Of its prompts, about."""
        return sum(len(prompt_in(body)) // 4 for _, body in self.requests)


@dataclass(frozen=True)
class Heard:
    """A request, as far as it matters."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: bytes


class BatchServer:
    """The server, for as long as it is entered."""

    def __init__(self, say: Answer = by_brain) -> None:
        self.say = say
        self.looks = 1
        """Looks at a job before it is done."""
        self.held: int | None = None
        """Jobs from this one on, counted from 0, do not end."""
        self.end = "completed"
        """How jobs end: completed, expired, cancelled or failed."""
        self.crowded = 0
        """Jobs, from the first one on, that find no room for their tokens, whatever they are."""
        self.room: int | None = None
        """Tokens of jobs at work, at most."""
        self.tells_room = False
        """Whether a job that finds no room is told how much there is."""
        self.processing = 0
        """Looks at a file before it may be used."""
        self.keyless = False
        """Whether Google's answers come without the keys of their requests."""
        self.refused_looks: deque[int] = deque()
        """Statuses of the next looks at jobs and files."""
        self.torn = 0
        """Downloads that end in the middle."""
        self.lost = False
        """Whether results are gone."""
        self.key = ""
        """The only one that is accepted, if it is not empty."""
        self.backwards = True
        """Whether results come in another order than requests."""
        self.repeats = False
        """Whether each answer comes again, as an error."""
        self.noise: list[str] = []
        """Lines among the results that are none."""
        self.stuck = False
        """Whether jobs are made without ever telling so."""
        self.lose_replies = 0
        """Jobs that are made without telling so: the connection breaks."""
        self.refusals: deque[int | str] = deque()
        """Statuses of the next requests that would make jobs, or codes of errors."""
        self.jobs: list[ServedJob] = []
        self.files: dict[str, bytes] = {}
        self.removed: list[str] = []
        self.asked: Counter[str] = Counter()
        """Prompts that were paid for."""
        self.heard: list[Heard] = []
        self.url = ""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def __enter__(self) -> BatchServer:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._start(), self._loop).result()
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._runner.cleanup(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _start(self) -> None:
        app = web.Application(client_max_size=2**28, middlewares=[self._noted])
        for side in (OpenAISide(self), AnthropicSide(self), GeminiSide(self), CloudSide(self)):
            app.router.add_routes(side.routes())
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.0)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"

    @property
    def headers(self) -> list[dict[str, str]]:
        """Of all requests."""
        return [one.headers for one in self.heard]

    @property
    def paths(self) -> list[str]:
        """Method, path and query of all requests."""
        return [
            f"{one.method} {one.path}"
            + ("?" + "&".join(f"{key}={value}" for key, value in one.query.items())) * bool(one.query)
            for one in self.heard
        ]

    @web.middleware
    async def _noted(self, request: web.Request, handler: Any) -> web.StreamResponse:
        headers = {name.lower(): value for name, value in request.headers.items()}
        body = await request.read()
        self.heard.append(Heard(request.method, request.path, dict(request.query), headers, body))
        if self.key and not any(self.key in value for value in headers.values()):
            raise refused(401)
        if request.method == "GET" and self.refused_looks and (status := self.refused_looks.popleft()):
            raise refused(status)
        response: web.StreamResponse = await handler(request)
        return response

    async def results(self, request: web.Request, lines: list[dict[str, Any]]) -> web.StreamResponse:
        """A file of results, or what there is of it."""
        if self.lost:
            raise refused(404)
        whole = "\n".join([*self.noise, *(json.dumps(line) for line in lines)]).encode()  # no newline at the end
        if not self.torn:
            return web.Response(body=whole, content_type="application/x-jsonl")
        self.torn -= 1
        response = web.StreamResponse(headers={"Content-Length": str(len(whole))})
        await response.prepare(request)
        await response.write(whole[: len(whole) // 2])
        assert request.transport is not None
        request.transport.close()
        return response

    def make(self, name: str, requests: list[tuple[str, dict[str, Any]]], told: dict[str, Any]) -> ServedJob:
        if self.refusals:
            raise refused(self.refusals.popleft())
        job = ServedJob(f"{name}{len(self.jobs)}", requests, told)
        self.jobs.append(job)
        return job

    async def reply(self, request: web.Request, body: dict[str, Any]) -> web.Response:
        while self.stuck:
            await asyncio.sleep(0.01)
        if self.lose_replies:
            self.lose_replies -= 1
            assert request.transport is not None
            request.transport.close()
        return web.json_response(body)

    def job(self, name: str) -> ServedJob:
        found = next((job for job in self.jobs if job.id == name), None)
        if found is None:
            raise refused(404)
        return found

    def after(self, last: str | None) -> list[ServedJob]:
        """The jobs, the newest first, those after one of them."""
        newest = self.jobs[::-1]
        return newest if last is None else newest[[job.id for job in newest].index(last) + 1 :]

    def status(self, job: ServedJob, *, look: bool = True) -> str:
        """Where a job is; its requests are answered when it ends."""
        job.looks += look
        held = self.held is not None and self.jobs.index(job) >= self.held
        if job.answers is None and job.cancelled and not held:
            job.answers = [None] * len(job.requests)
        if job.answers is not None:
            return "cancelled" if job.cancelled else self.end
        if self.has_no_room(job):
            return "failed"
        if held or job.looks <= self.looks:
            return "in_progress"
        job.answers = [] if self.end == "failed" else [self._answer(body) for _, body in job.requests]
        return self.end

    def has_no_room(self, job: ServedJob) -> bool:
        """Whether a job was turned down for its tokens."""
        if "full" not in job.told:
            others = [one for one in self.jobs if one is not job and one.answers is None and not one.told.get("full")]
            tokens = sum(one.tokens for one in [*others, job])
            job.told["full"] = self.jobs.index(job) < self.crowded or (self.room is not None and tokens > self.room)
        return bool(job.told["full"])

    def _answer(self, body: dict[str, Any]) -> str | int | None:
        prompt = prompt_in(body)
        # As at a temperature: an equal question for an item brings another item.
        body["attempt"] = self.asked[prompt]
        said = self.say(prompt, body)
        del body["attempt"]
        self.asked[prompt] += isinstance(said, str)
        return said

    def answers(self, job: ServedJob) -> list[tuple[str, dict[str, Any], str | int | None]]:
        found = [(custom, body, said) for (custom, body), said in zip(job.requests, job.answers or [], strict=False)]
        found = found[::-1] if self.backwards else found
        return [*found, *((custom, body, 500) for custom, body, _ in found)] if self.repeats else found


def prompt_in(body: dict[str, Any]) -> str:
    """The prompt of a request in any of the protocols."""
    if "contents" in body:
        return str(body["contents"][-1]["parts"][0]["text"])
    content = body["messages"][-1]["content"]
    return str(content if isinstance(content, str) else content[0]["text"])


def refused(status: int | str) -> web.HTTPException:
    """A refusal, in the shape of OpenAI and nearly that of the others."""
    code, status = (status, 400) if isinstance(status, str) else (None, status)
    kinds = {
        400: web.HTTPBadRequest,
        401: web.HTTPUnauthorized,
        404: web.HTTPNotFound,
        429: web.HTTPTooManyRequests,
        503: web.HTTPServiceUnavailable,
    }
    body = {"type": "error", "error": {"message": "As it was told.", "type": "some_error", "code": code}}
    headers = {"Retry-After": "0"} if status == 429 else {}
    kind = kinds.get(status, web.HTTPInternalServerError)
    return kind(text=json.dumps(body), content_type="application/json", headers=headers)
