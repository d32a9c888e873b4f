"""A router on the loopback interface in this process: mock providers and a P2L endpoint of the tests behind it."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import socket
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import uvicorn
import yaml
from aiohttp import web
from openai import AsyncOpenAI
from starlette.applications import Starlette

from p2l.common.access import digest_of
from route.application.app import build_app
from route.application.service import Service
from route.application.settings import Settings
from route.config import load_config
from route.providers.mock import Mock, Script, running

KEY = "test-key"
HELLO = [{"role": "user", "content": "hello there"}]
COEFS = {"good": 2.0, "fair": 1.0, "poor": 0.0}


@dataclass
class Running:
    """A router that answers, and what is behind it."""

    url: str
    app: Starlette
    client: AsyncOpenAI
    http: aiohttp.ClientSession
    mocks: Mapping[str, Mock]
    endpoint: Endpoint

    @property
    def service(self) -> Service:
        return self.app.state.live.service

    def last(self, model: str) -> dict[str, Any]:
        """The last request that a provider got."""
        return self.mocks[model].bodies[-1]

    def counts(self) -> dict[str, int]:
        """How many requests each provider got."""
        return {name: len(mock.bodies) for name, mock in self.mocks.items()}

    async def ask(self, messages: Any = HELLO, **extra: Any) -> Any:
        """A whole answer through the official client; fields beyond OpenAI's in `extra_body`."""
        return await self.client.chat.completions.create(model="-", messages=messages, **extra)

    async def post(self, path: str, body: Any, headers: Mapping[str, str] | None = None) -> tuple[int, Any, Any]:
        """Status, body and headers of a bare request."""
        sent = {"authorization": f"Bearer {KEY}", **(headers or {})}
        text = body if isinstance(body, (bytes, str)) else json.dumps(body)
        data = io.BytesIO(text.encode() if isinstance(text, str) else text)
        async with self.http.post(f"{self.url}{path}", data=data, headers=sent) as response:
            return response.status, await response.json(), response.headers

    async def get(self, path: str, key: str | None = KEY) -> tuple[int, str]:
        """Status and text."""
        headers = {} if key is None else {"authorization": f"Bearer {key}"}
        async with self.http.get(f"{self.url}{path}", headers=headers) as response:
            return response.status, await response.text()


@dataclass
class Endpoint:
    """A P2L endpoint with the same coefficients for every prompt."""

    coefs: Mapping[str, float]
    pause: float = 0.0
    familiarity: float | None = None
    """None as of an older endpoint, which does not send it."""
    is_down: bool = False
    prompts: list[list[str]] = field(default_factory=list)
    headers: list[Mapping[str, str]] = field(default_factory=list)

    def application(self) -> web.Application:
        app = web.Application()
        app.router.add_get("/info", self.info)
        app.router.add_get("/models", self.models)
        app.router.add_post("/predict", self.predict)
        return app

    async def info(self, _: web.Request) -> web.Response:
        return self.answer({"likelihood": "grk", "revision": "r1"})

    async def models(self, _: web.Request) -> web.Response:
        return self.answer({"models": list(self.coefs), "revision": "r1"})

    async def predict(self, request: web.Request) -> web.Response:
        self.prompts.append((await request.json())["prompt"])
        self.headers.append(request.headers)
        await asyncio.sleep(self.pause)
        coefs = list(self.coefs.values())
        answer = {"coefs": coefs, "eta": 0.0, "truncated": False, "revision": "r1"}
        return self.answer(answer if self.familiarity is None else answer | {"familiarity": self.familiarity})

    def answer(self, body: Any) -> web.Response:
        return web.json_response({"detail": "down"}, status=500) if self.is_down else web.json_response(body)


def model(url: str | None = None, **changes: Any) -> dict[str, Any]:
    """A model of the configuration at a loopback server."""
    settings = {"name": "upstream", "type": "openai", "base_url": url, "api_key": "upstream-key", "cost": 1.0}
    return {key: value for key, value in (settings | changes).items() if value is not None}


@contextlib.asynccontextmanager
async def serving(app: Starlette) -> AsyncIterator[str]:
    """The application under uvicorn; gives its address."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        config = uvicorn.Config(app, log_config=None, lifespan="on", timeout_graceful_shutdown=2)
        server = uvicorn.Server(config)
        task = asyncio.ensure_future(server.serve(sockets=[listener]))
        while not server.started:
            assert not task.done(), "the router did not start"
            await asyncio.sleep(0.005)
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            await task


@contextlib.asynccontextmanager
async def served(app: web.Application) -> AsyncIterator[str]:
    """An aiohttp application; gives its address."""
    runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.0)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


@contextlib.asynccontextmanager
async def a_router(
    folder: Path,
    models: Mapping[str, Mapping[str, Any]] | None = None,
    *,
    settings: Mapping[str, Any] | None = None,
    scripts: Mapping[str, Mapping[str, Any]] | None = None,
    coefs: Mapping[str, float] = COEFS,
    endpoint: Endpoint | None = None,
    **config: Any,
) -> AsyncIterator[Running]:
    """A router over three mocks, good (cost 3), fair (2) and poor (1), or over `models`.

    `scripts` says how the mocks behave, `models` changes or replaces what the configuration says of a model.
    """
    endpoint = endpoint or Endpoint(coefs)
    async with contextlib.AsyncExitStack() as stack:
        mocks, configs = {}, {}
        for name, cost in {"good": 3.0, "fair": 2.0, "poor": 1.0}.items():
            mocks[name] = Mock(Script.of({"text": f"I am {name}", **(scripts or {}).get(name, {})}), remembered=1000)
            url = await stack.enter_async_context(running(mocks[name]))
            configs[name] = model(url, **{"name": f"{name}-1", "cost": cost, **(models or {}).get(name, {})})
        configs |= {name: dict(each) for name, each in (models or {}).items() if name not in configs}
        path = folder / "router.yaml"
        path.write_text(yaml.safe_dump({"model_configs": configs, **config}, sort_keys=False), encoding="utf-8")
        flags = {
            "router_type": "grk-endpoint",
            "cost_optimizer": "strict",
            "router_model_endpoint": await stack.enter_async_context(served(endpoint.application())),
            "api_keys": (digest_of(KEY),),
        }
        app = build_app(load_config(path), Settings(config=str(path), **flags | dict(settings or {})))
        url = await stack.enter_async_context(serving(app))
        client = await stack.enter_async_context(AsyncOpenAI(base_url=f"{url}/v1", api_key=KEY, max_retries=0))
        http = await stack.enter_async_context(aiohttp.ClientSession())
        yield Running(url, app, client, http, mocks, endpoint)
