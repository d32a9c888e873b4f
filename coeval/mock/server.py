"""Mock models as a server: that of `route.providers.mock`, answering as the models do and counting what it is asked.

    with MockServer(latency=0.2) as server:
        ...  # interface: openai, parameters: {base_url: <server.url>, model: ant, skill: 0.8}

The parameters of a mock model are fields of the request. As a command:

    python -m coeval.mock.server --port 9000 --latency 0.2
"""

from __future__ import annotations

import argparse
import asyncio
import threading
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Any, TypeVar

from aiohttp import web

from coeval.mock.models import PHASE_OF, completion_for, question_of, recognise
from p2l.common.cli import run
from p2l.common.errors import ConfigError
from route.providers.base import JSON, Fault, ProviderError
from route.providers.mock import (
    Mock,
    Script,
    Trouble,
    application,
    error_response,
    listening,
    refusal_response,
    serve,
    server_parser,
)

T = TypeVar("T")
_CHAT_PATH = "/v1/chat/completions"
_BODIES_KEPT = 1000


class MockServer(Mock):
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
        port: int = 0,
    ) -> None:
        """Set up a server that listens once it is entered, by default on a free port (0).

        After `latency` seconds it answers, or refuses: the first requests with the statuses `failures` (`retry_after`
        goes with 429), a share `failure_rate` of the others with 500, wrong keys if there is an `api_key`, and models
        that are not in `models`, whose parameters lie below those in a request, if there are `only_these`.
        """
        has_pause = retry_after is not None
        troubles = [f"rate-limit:{retry_after}" if has_pause and each == 429 else f"status:{each}" for each in failures]
        super().__init__(
            Script(latency=latency, failures=tuple(troubles), failure_rate=failure_rate), remembered=_BODIES_KEPT
        )
        self.models = dict(models or {})
        self.only_these = only_these
        self.api_key = api_key
        self.calls: Counter[tuple[str, str]] = Counter()  # answers by model and prompt
        self.phases: Counter[tuple[str, str]] = Counter()  # answers by model and phase
        self.redraws = True  # whether an equal question for an item brings another, as at a temperature
        self.requests = 0  # all requests, refused ones included
        self.peak = 0  # most requests in flight
        self.headers: deque[Mapping[str, str]] = deque(maxlen=_BODIES_KEPT)
        self.url = ""
        self._busy = 0
        self._items: Counter[tuple[str, str, str]] = Counter()
        self._counting = threading.Lock()  # long requests are answered in threads
        self._port = port
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="mock server", daemon=True)
        self._stack = AsyncExitStack()

    def __enter__(self) -> MockServer:
        self._thread.start()
        try:
            listener = listening(self.application(), "127.0.0.1", self._port)
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

        async def listed(_: web.Request) -> web.Response:
            models = [{"id": name, "object": "model"} for name in self.models]
            return web.json_response({"object": "list", "data": models})

        async def shown(request: web.Request) -> web.Response:
            model = request.match_info["model"]
            try:
                self._check_model(model)
            except ProviderError as error:
                return error_response(error)
            return web.json_response({"id": model, "object": "model"})

        app = application(self)
        app.middlewares.append(self._admit)
        app.router.add_get("/v1/models", listed)
        app.router.add_get("/v1/models/{model:.+}", shown)
        return app

    def completion(self, request: JSON) -> JSON:
        """Return the answer of the model that a request names, and count it."""
        model = str(request.get("model"))
        self._check_model(model)
        prompt, system = question_of(request)
        kind = recognise(prompt).prompt
        parameters = dict(self.models.get(model, {}))
        with self._counting:
            if self.redraws and kind.startswith("sample"):
                # A teacher writes another item each time that it gets the same question, as at a temperature.
                parameters["attempt"] = self._items[model, system, prompt]
                self._items[model, system, prompt] += 1
            try:
                answer = completion_for({**parameters, **request})
            except ConfigError as error:
                raise ProviderError(Fault.REQUEST, str(error)) from None
            self.calls[model, kind] += 1
            self.phases[model, PHASE_OF[kind]] += 1
        return answer

    def _check_model(self, model: str) -> None:
        if self.only_these and model not in self.models:
            raise ProviderError(Fault.UNSUPPORTED, f"The model `{model}` does not exist.", status=404)

    @web.middleware
    async def _admit(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        """Count the requests for answers, and refuse wrong keys."""
        is_chat = request.path == _CHAT_PATH
        self.requests += is_chat
        self._busy += is_chat
        self.peak = max(self.peak, self._busy)
        if is_chat:
            self.headers.append(request.headers)
        try:
            if self.api_key is not None and request.headers.get("Authorization") != f"Bearer {self.api_key}":
                return refusal_response(Trouble("credentials"))
            return await handler(request)
        finally:
            self._busy -= is_chat


def build_parser() -> argparse.ArgumentParser:
    """Return the command line of the server."""
    return server_parser("coeval.mock.server", "Serve mock models over OpenAI's protocol, for tests and benchmarks.")


def main(argv: Sequence[str] | None = None) -> None:
    """Serve until interrupted. Raise InputError if the address cannot be listened on."""
    flags = build_parser().parse_args(argv)
    app = MockServer(latency=flags.latency).application()
    asyncio.run(serve(app, "mock models", flags.host, flags.port))


if __name__ == "__main__":
    run(main)
