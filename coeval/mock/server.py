"""Mock models as a server: OpenAI's chat completions on the loopback interface, counted by model and prompt.

    with MockServer(latency=0.2) as server:
        ...  # interface: openai, parameters: {base_url: <server.url>, model: ant, skill: 0.8}

The parameters of a mock model are fields of the request. As a command:

    python -m coeval.mock.server --port 9000 --latency 0.2
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import threading
from collections import Counter, deque
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Any, TypeVar

from aiohttp import web

from coeval.mock.models import PHASE_OF, completion_for, question_of, recognise
from p2l.common.cli import run
from p2l.common.errors import ConfigError
from route.providers.base import JSON
from route.providers.mock import listening, serve, server_parser

T = TypeVar("T")
_REMEMBERED = 1000


class MockServer:
    """A server in a thread of its own, running while it is entered."""

    def __init__(
        self,
        *,
        latency: float = 0.0,
        failure_rate: float = 0.0,
        failures: Iterable[int] = (),
        retry_after: float | None = None,
        models: Mapping[str, Mapping[str, Any]] | None = None,
        only_these: bool = False,
        api_key: str | None = None,
        seed: int = 0,
        host: str = "127.0.0.1",
        port: int = 0,
    ) -> None:
        """Set up a server that listens once it is entered, by default on a free port (0).

        After `latency` seconds it answers, or refuses: the first requests with the statuses `failures` (`retry_after`
        goes with 429), a share `failure_rate` of the others with 500, wrong keys if there is an `api_key`, and models
        that are not in `models`, whose parameters lie below those in a request, if there are `only_these`.
        """
        self.latency, self.failure_rate, self.retry_after = latency, failure_rate, retry_after
        self.models, self.only_these, self.api_key = dict(models or {}), only_these, api_key
        self.failures: deque[int] = deque(failures)
        self.calls: Counter[tuple[str, str]] = Counter()
        """Answers by model and prompt."""
        self.phases: Counter[tuple[str, str]] = Counter()
        """Answers by model and phase."""
        self._items: Counter[tuple[str, str, str]] = Counter()
        self.redraws = True
        """Whether an equal question for an item brings another item, as at a temperature; False: the same."""
        self.requests = 0
        """All requests, refused ones included."""
        self.peak = 0
        """Most requests in flight."""
        self.bodies: deque[JSON] = deque(maxlen=_REMEMBERED)
        """The last bodies."""
        self.headers: deque[Mapping[str, str]] = deque(maxlen=_REMEMBERED)
        self.url = ""
        self._busy, self._random = 0, random.Random(seed)
        self._address = (host, port)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="mock server", daemon=True)
        self._stack = AsyncExitStack()

    def __enter__(self) -> MockServer:
        self._thread.start()
        try:
            listener = listening(self.application(), *self._address)
            self.url = self._run(self._stack.enter_async_context(listener))
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._run(self._stack.aclose())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def application(self) -> web.Application:
        """Build the server: OpenAI's chat completions and list of models."""
        app = web.Application(client_max_size=2**26)
        app.router.add_post("/v1/chat/completions", self._complete)
        app.router.add_get("/v1/models", self._list)
        app.router.add_get("/v1/models/{model:.+}", self._show)
        return app

    async def _complete(self, request: web.Request) -> web.Response:
        self.requests += 1
        self._busy += 1
        self.peak = max(self.peak, self._busy)
        try:
            body: JSON = json.loads(await request.read())
            self.bodies.append(body)
            self.headers.append(request.headers)
            return self._unauthorized(request) or self._refused() or await self._answered(body)
        finally:
            self._busy -= 1

    def _refused(self) -> web.Response | None:
        if self.failures:
            status = self.failures.popleft()
            is_limit = status == 429 and self.retry_after is not None
            return _refusal(
                status, "Refused as configured.", {"Retry-After": f"{self.retry_after:g}"} if is_limit else {}
            )
        is_unlucky = self.failure_rate and self._random.random() < self.failure_rate
        return _refusal(500, "The server had an error.") if is_unlucky else None

    async def _answered(self, body: JSON) -> web.Response:
        if self.latency:
            await asyncio.sleep(self.latency)
        model = str(body.get("model"))
        if refusal := self._unknown(model):
            return refusal
        try:
            answer = completion_for({**self.models.get(model, {}), **self._new_draw(body), **body})
        except ConfigError as error:
            return _refusal(400, str(error))
        prompt = recognise(question_of(body)[0]).prompt
        self.calls[model, prompt] += 1
        self.phases[model, PHASE_OF[prompt]] += 1
        return web.Response(body=json.dumps(answer).encode(), content_type="application/json")

    def _new_draw(self, body: JSON) -> JSON:
        """Number equal questions for an item: a teacher writes another each time, as one with a temperature does."""
        prompt, system = question_of(body)
        if not self.redraws or not recognise(prompt).prompt.startswith("sample"):
            return {}
        self._items[str(body.get("model")), system, prompt] += 1
        return {"attempt": self._items[str(body.get("model")), system, prompt] - 1}

    async def _list(self, request: web.Request) -> web.Response:
        models = [{"id": name, "object": "model"} for name in self.models]
        return self._unauthorized(request) or web.json_response({"object": "list", "data": models})

    async def _show(self, request: web.Request) -> web.Response:
        model = request.match_info["model"]
        refusal = self._unknown(model) or self._unauthorized(request)
        return refusal or web.json_response({"id": model, "object": "model"})

    def _unknown(self, model: str) -> web.Response | None:
        is_known = model in self.models or not self.only_these
        return None if is_known else _refusal(404, f"The model `{model}` does not exist.", code="model_not_found")

    def _unauthorized(self, request: web.Request) -> web.Response | None:
        is_known = self.api_key is None or request.headers.get("Authorization") == f"Bearer {self.api_key}"
        return None if is_known else _refusal(401, "Incorrect API key provided.", code="invalid_api_key")


def _refusal(
    status: int, message: str, headers: Mapping[str, str] | None = None, code: str | None = None
) -> web.Response:
    error = {"message": message, "type": "invalid_request_error" if status < 500 else "server_error", "code": code}
    return web.json_response({"error": error}, status=status, headers=headers)


def build_parser() -> argparse.ArgumentParser:
    """Return the command line of the server."""
    return server_parser("coeval.mock.server", "Serve mock models over OpenAI's protocol, for tests and benchmarks.")


def main(argv: Sequence[str] | None = None) -> None:
    """Serve until interrupted. Raise InputError if the address cannot be listened on."""
    flags = vars(build_parser().parse_args(argv))
    host, port = flags.pop("host"), flags.pop("port")
    asyncio.run(serve(MockServer(**flags).application(), "mock models", host, port))


if __name__ == "__main__":
    run(main)
