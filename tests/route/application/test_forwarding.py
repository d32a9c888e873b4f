"""Endpoints beside chat completions: passed to the models that state them, and back."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
import warnings
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import openai
import pytest
from aiohttp import web

from p2l.common.errors import ConfigError
from route.application.forwarding import parse_passed
from route.config import load_config
from route.send.fleet import make_fleet
from tests.route.router_helpers import Running, a_router, model, served


@dataclass
class Upstream:
    """A provider with all endpoints, which notes what it gets."""

    bodies: list[Any] = field(default_factory=list)
    failures: list[int] = field(default_factory=list)

    def application(self) -> web.Application:
        app = web.Application()
        app.router.add_post("/v1/{path:.*}", self.answer)
        return app

    async def answer(self, request: web.Request) -> web.StreamResponse:
        path = request.match_info["path"]
        if request.content_type == "multipart/form-data":
            form = await request.post()
            body = {name: part.file.read() if hasattr(part, "file") else part for name, part in form.items()}
        else:
            body = await request.json()
        self.bodies.append((path, body))
        status = self.failures.pop(0) if self.failures else 200
        if status != 200:
            return web.json_response({"error": {"message": "not now"}}, status=status)
        if path == "embeddings":
            vector = {"object": "embedding", "index": 0, "embedding": [0.5, 0.25]}
            usage = {"prompt_tokens": 1000, "total_tokens": 1000}
            return web.json_response({"object": "list", "data": [vector], "model": body["model"], "usage": usage})
        if path == "audio/speech":
            return web.Response(body=b"RIFF", content_type="audio/wav")
        if path == "completions" and body.get("stream"):
            return await self.stream(request)
        answers: dict[str, Any] = {
            "completions": {"choices": [{"index": 0, "text": " a river", "finish_reason": "stop"}]},
            "moderations": {"id": "m", "model": "x", "results": [{"flagged": False}]},
            "images/generations": {"created": 1, "data": [{"b64_json": "AAAA"}]},
            "images/edits": {"created": 1, "data": [{"b64_json": "BBBB"}]},
            "audio/transcriptions": {"text": "hello"},
            "audio/translations": {"text": "hello"},
        }
        return web.json_response(answers[path])

    async def stream(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        for text in (" a", " river"):
            part = {"id": "c", "choices": [{"index": 0, "text": text, "finish_reason": None}]}
            await response.write(f"data: {json.dumps(part)}\n\n".encode())
        await response.write(b"data: [DONE]\n\n")
        return response


@contextlib.asynccontextmanager
async def passing(folder: Path, upstream: Upstream, **changes: Any) -> AsyncIterator[Running]:
    """A router with one more model, `all`, that states every endpoint, and `vectors` with embeddings."""
    async with served(upstream.application()) as url:
        kinds = ["completions", "embeddings", "moderations", "images", "speech", "transcriptions"]
        models = {
            "all": model(f"{url}/v1", serves=kinds, **changes.pop("all", {})),
            "vectors": model(f"{url}/v1", name="vectors-3", serves=["embeddings"]),
        }
        async with a_router(folder, models, **changes) as router:
            yield router


def test_the_official_client_gets_what_the_provider_answers(tmp_path: Path) -> None:
    async def main() -> None:
        upstream = Upstream()
        async with passing(tmp_path, upstream) as router:
            client = router.client
            vectors = await client.embeddings.create(model="vectors", input="a heron", encoding_format="float")
            assert (vectors.data[0].embedding, vectors.model) == ([0.5, 0.25], "vectors")
            assert upstream.bodies[-1][1]["model"] == "vectors-3"
            text = await client.completions.create(model="all", prompt="By the", max_tokens=5)
            assert text.choices[0].text == " a river"
            stream = await client.completions.create(model="all", prompt="By the", stream=True)
            assert "".join([chunk.choices[0].text async for chunk in stream]) == " a river"
            assert not (await client.moderations.create(model="any name", input="x")).results[0].flagged
            image = await client.images.generate(model="auto", prompt="a heron", n=1)
            assert image.data[0].b64_json == "AAAA"
            edited = await client.images.edit(model="all", image=("a.png", b"\x89PNG\r\n--x\r\n"), prompt="redder")
            assert edited.data[0].b64_json == "BBBB"
            assert upstream.bodies[-1][1] == {"model": "upstream", "image": b"\x89PNG\r\n--x\r\n", "prompt": "redder"}
            speech = await client.audio.speech.create(model="all", input="hello", voice="a")
            assert (speech.content, speech.response.headers["content-type"]) == (b"RIFF", "audio/wav")
            assert (await client.audio.transcriptions.create(model="all", file=("a.wav", b"RIFF"))).text == "hello"
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)  # of newer clients
                assert (await client.audio.translations.create(model="all", file=("a.wav", b"RIFF"))).text == "hello"
            assert router.counts() == {"good": 0, "fair": 0, "poor": 0}
            listed = [card.id async for card in client.models.list()]
            assert listed == ["p2l-router", "auto", "all", "vectors"]

    asyncio.run(main())


def test_models_without_chat_are_never_routed_to(tmp_path: Path) -> None:
    async def main() -> None:
        async with passing(tmp_path, Upstream()) as router:
            assert (await router.ask()).router_outputs.keys() == {"good", "fair", "poor"}
            with pytest.raises(openai.NotFoundError):
                await router.ask(extra_body={"direct_model": "all"})

    asyncio.run(main())


def test_a_model_must_be_named_where_several_state_the_endpoint(tmp_path: Path) -> None:
    async def main() -> None:
        async with passing(tmp_path, Upstream()) as router:
            with pytest.raises(openai.NotFoundError, match="name one of all, vectors"):
                await router.client.embeddings.create(model="text-embedding-9", input="x", encoding_format="float")
        async with a_router(tmp_path) as router:
            with pytest.raises(openai.NotFoundError, match="serves"):
                await router.client.embeddings.create(model="good", input="x", encoding_format="float")

    asyncio.run(main())


def test_a_short_fault_is_waited_for_and_a_long_one_is_the_clients_to_know(tmp_path: Path) -> None:
    async def main() -> None:
        upstream = Upstream(failures=[500, 200, 400, 503, 503, 503])
        async with passing(tmp_path, upstream) as router:
            await router.client.moderations.create(model="all", input="x")
            with pytest.raises(openai.BadRequestError):
                await router.client.moderations.create(model="all", input="x")
            with pytest.raises(openai.InternalServerError):
                await router.client.moderations.create(model="all", input="x")
            assert len(upstream.bodies) == 2 + 1 + 3
            assert {each.in_flight for each in router.service.fleet.deployments} == {0}

    asyncio.run(main())


def test_a_model_that_keeps_failing_is_no_limit(tmp_path: Path) -> None:
    async def main() -> None:
        async with passing(tmp_path, Upstream(failures=[503] * 9), breaker={"failures": 3, "seconds": 60}) as router:
            codes = []
            for _ in range(2):
                status, told, headers = await router.post("/v1/embeddings", {"model": "all", "input": "x"})
                codes.append((status, told["error"]["code"]))
            assert codes == [(502, "provider_error"), (502, "models_unavailable")]
            assert 0 < int(headers["retry-after"]) <= 60
            assert "all has been failing" in told["error"]["message"]

    asyncio.run(main())


def test_keys_limits_and_spend_are_those_of_chat(tmp_path: Path) -> None:
    async def main() -> None:
        keys = [
            {"key": "poor-key", "name": "little", "spend_per_day": 0.001},
            {"key": "chat-key", "name": "chat", "models": ["good"]},
            {"key": "one-key", "name": "one", "requests_per_minute": 1},
        ]
        price = {"price": {"input": 1.0, "output": 0.0}, "cost": 0.0001}
        async with passing(tmp_path, Upstream(), all=price, keys=keys) as router:
            ask = {"model": "all", "input": "x"}
            for key, statuses in {"poor-key": (200, 429), "chat-key": (404,), "one-key": (200, 429)}.items():
                for expected in statuses:
                    headers = {"authorization": f"Bearer {key}"}
                    status, _, _ = await router.post("/v1/embeddings", ask, headers)
                    assert status == expected, key
            status, body, _ = await router.post("/v1/embeddings", ask, {"authorization": "Bearer wrong"})
            assert (status, body["error"]["code"]) == (401, "invalid_api_key")
            _, metrics = await router.get("/metrics")
            assert 'p2l_router_spend_total{key="little"} 0.001' in metrics
            assert 'p2l_router_tokens_total{kind="prompt",model="all"} 2000.0' in metrics

    asyncio.run(main())


def test_an_average_ceiling_counts_all_endpoints(tmp_path: Path) -> None:
    """Of the 0.0025 that 1,000 requests may cost, three embeddings of 0.001 leave nothing, for chats neither."""

    async def main() -> None:
        keys = [{"key": "poor-key", "name": "little", "budget_usd": 2.5e-6}]
        price = {"price": {"input": 1.0, "output": 0.0}, "cost": 0.0001}
        headers = {"authorization": "Bearer poor-key"}
        async with passing(tmp_path, Upstream(), all=price, keys=keys) as router:
            ask = {"model": "all", "input": "x"}
            statuses = [(await router.post("/v1/embeddings", ask, headers))[0] for _ in range(5)]
            assert statuses == [200, 200, 200, 429, 429]
            status, body, _ = await router.post(
                "/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}]}, headers
            )
            assert (status, body["error"]["code"]) == (429, "insufficient_quota")

    asyncio.run(main())


@pytest.mark.parametrize("form", [False, True])
def test_fields_that_command_the_provider_are_dropped_and_named(tmp_path: Path, form: bool) -> None:
    async def main() -> None:
        upstream = Upstream()
        async with passing(tmp_path, upstream) as router:
            fields = {"model": "all", "prompt": "x", "api_base": "http://elsewhere"}
            if not form:
                status, _, headers = await router.post("/v1/images/generations", fields)
            else:
                sent = {**fields, "image": b"PNG"}
                url, bearer = f"{router.url}/v1/images/edits", {"authorization": "Bearer test-key"}

                data = aiohttp.FormData()
                for name, value in sent.items():
                    data.add_field(name, value, filename="a.png" if name == "image" else None)
                async with router.http.post(url, data=data, headers=bearer) as response:
                    status, headers = response.status, response.headers
            assert (status, headers["x-p2l-dropped-fields"]) == (200, "api_base")
            assert "api_base" not in upstream.bodies[-1][1]
            assert upstream.bodies[-1][1]["prompt"] == "x"

    asyncio.run(main())


@pytest.mark.parametrize(
    ("body", "content_type"),
    [
        ("[]", "application/json"),
        ('{"model": "all", "n": 0}', "application/json"),
        ('{"model": "all", "n": 99}', "application/json"),
        ("--x\r\nnothing", "multipart/form-data; boundary=x"),
        ("", "multipart/form-data"),
        ('--x\r\nContent-Disposition: form-data; name="n"\r\n\r\n-4\r\n--x--', "multipart/form-data; boundary=x"),
    ],
)
def test_what_is_no_request_is_refused(tmp_path: Path, body: str, content_type: str) -> None:
    async def main() -> None:
        async with passing(tmp_path, Upstream()) as router:
            status, told, _ = await router.post("/v1/images/generations", body, {"content-type": content_type})
            assert status == 400
            assert told["error"]["message"]

    asyncio.run(main())


HEAD = b'--x\r\nContent-Disposition: form-data; name="model"\r\n\r\nears\r\n'


@pytest.mark.parametrize(
    ("rest", "status", "message"),
    [
        (b"--x\r\n\r\n\r\n" * 200_000, 413, "at most 1,000 parts"),
        (b"--x\r\n" + b"a: b\r\n" * 200_000 + b"\r\n\r\n", 400, "more than 4,096 bytes"),
        (b"--x\r\n" + b"content-disposition:" * 100_000 + b"\r\n\r\n\r\n", 400, "more than 4,096 bytes"),
    ],
    ids=["parts", "heads", "names"],
)
def test_a_form_is_bounded_and_read_beside_the_event_loop(
    tmp_path: Path, rest: bytes, status: int, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[str] = []

    def parse(*arguments: Any) -> Any:
        threads.append(threading.current_thread().name)
        return parse_passed(*arguments)

    monkeypatch.setattr("route.application.forwarding.parse_passed", parse)

    async def main() -> None:
        async with passing(tmp_path, Upstream()) as router:
            headers = {"content-type": "multipart/form-data; boundary=x"}
            answer = await router.post("/v1/audio/transcriptions", HEAD + rest + b"--x--", headers)
            assert answer[0] == status
            assert message in answer[1]["error"]["message"]

    asyncio.run(main())
    assert len(threads) == 1
    assert "p2l-long" in threads[0]


def test_only_providers_of_openais_protocol_have_other_endpoints(tmp_path: Path) -> None:
    path = tmp_path / "router.yaml"
    text = "{name: v, type: anthropic, api_key: k, cost: 1, serves: [embeddings]}"
    chat = "{name: c, type: mock, cost: 1}"
    path.write_text(f"model_configs:\n  chat: {chat}\n  vectors: {text}\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"model_configs\.vectors: serves: .*anthropic"):
        make_fleet(load_config(path), {})
    path.write_text(f"model_configs:\n  vectors: {text}\n", encoding="utf-8")
    with pytest.raises(ConfigError, match="no model serves chat"):
        load_config(path)


def test_pages_of_listed_origins_may_call_the_router(tmp_path: Path) -> None:
    async def main() -> None:
        page = {"origin": "https://chat.example.com", "access-control-request-method": "POST"}
        path = "/v1/chat/completions"
        async with a_router(tmp_path, cors_origins=["https://chat.example.com"]) as router:
            asks = {**page, "access-control-request-headers": "authorization,content-type"}
            async with router.http.options(f"{router.url}{path}", headers=asks) as response:
                assert response.status == 200
                assert response.headers["access-control-allow-origin"] == page["origin"]
                assert "authorization" in response.headers["access-control-allow-headers"]
            body = {"messages": [{"role": "user", "content": "x"}], "stream": True}
            _, text, headers = await raw(router, path, body, page["origin"])
            assert headers["access-control-allow-origin"] == page["origin"]
            assert "x-p2l-model" in headers["access-control-expose-headers"]
            assert text.endswith("[DONE]\n\n")
            _, _, headers = await raw(router, path, body, "https://elsewhere.example.com")
            assert "access-control-allow-origin" not in headers
        async with a_router(tmp_path) as router, router.http.options(f"{router.url}{path}", headers=page) as response:
            assert "access-control-allow-origin" not in response.headers

    asyncio.run(main())


async def raw(router: Running, path: str, body: Any, origin: str) -> tuple[int, str, Any]:
    headers = {"authorization": "Bearer test-key", "origin": origin}
    async with router.http.post(f"{router.url}{path}", json=body, headers=headers) as response:
        return response.status, await response.text(), response.headers
