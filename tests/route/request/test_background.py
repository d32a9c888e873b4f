"""Responses that their provider makes in the background: passed, fetched later, and booked when they are made."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from route.send import charges
from tests.route.router_helpers import KEY, Running, a_router, served

USAGE = {"input_tokens": 100, "output_tokens": 1000, "total_tokens": 1100}
ANSWER = [{"type": "message", "id": "msg_1", "role": "assistant", "content": [{"type": "output_text", "text": "done"}]}]
ASKED: dict[str, Any] = {"input": "think long", "background": True, "direct_model": "good"}


class Upstream:
    """A service that makes one response, which is ready when a test says so."""

    def __init__(self) -> None:
        self.is_ready = False
        self.is_gone = False
        self.is_cancelled = False
        self.deleted: list[str] = []
        self.bodies: list[dict[str, Any]] = []
        self.asked = 0

    def response(self) -> dict[str, Any]:
        ready = {"status": "completed", "output": ANSWER, "usage": USAGE}
        under_way = {"status": "queued", "output": [], "usage": None}
        told = ready if self.is_ready else under_way
        if self.is_cancelled:
            told = {"status": "cancelled", "output": [], "usage": None}
        return {"id": "resp_9", "object": "response", "model": "o-1", "background": self.is_background, **told}

    @property
    def is_background(self) -> bool:
        return bool(self.bodies[-1].get("background"))

    async def create(self, request: web.Request) -> web.Response:
        self.bodies.append(await request.json())
        if not self.bodies[-1].get("background"):
            self.is_ready = True
        return web.json_response(self.response())

    async def fetch(self, request: web.Request) -> web.Response:
        self.asked += 1
        assert request.match_info["identifier"] == "resp_9"
        if self.is_gone:
            return web.json_response({"error": {"message": "no response"}}, status=404)
        return web.json_response(self.response())

    async def cancel(self, request: web.Request) -> web.Response:
        if self.is_gone:
            return web.json_response({"error": {"message": "no response"}}, status=404)
        assert request.match_info["identifier"] == "resp_9"
        self.is_cancelled = True
        return web.json_response(self.response())

    async def delete(self, request: web.Request) -> web.Response:
        self.deleted.append(request.match_info["identifier"])
        if self.is_gone:
            return web.json_response({"error": {"message": "an outage"}}, status=500)
        return web.json_response({"id": "resp_9", "object": "response", "deleted": True})

    def application(self) -> web.Application:
        app = web.Application()
        app.router.add_post("/responses", self.create)
        app.router.add_get("/responses/{identifier}", self.fetch)
        app.router.add_post("/responses/{identifier}/cancel", self.cancel)
        app.router.add_delete("/responses/{identifier}", self.delete)
        return app


def model_at(url: str) -> dict[str, Any]:
    return {"type": "openai-responses", "base_url": url, "api_key": "k", "price": {"input": 1, "output": 10}}


async def delete(router: Running, path: str) -> tuple[int, str]:
    """Status and text."""
    async with router.http.delete(f"{router.url}{path}", headers={"authorization": f"Bearer {KEY}"}) as response:
        return response.status, await response.text()


def test_a_response_in_the_background_is_fetched_and_booked_when_it_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(charges, "_RECORD_PAUSES", (0.01, 0.02))

    async def main() -> None:
        upstream = Upstream()
        async with served(upstream.application()) as url:
            config: dict[str, Any] = {"database": str(tmp_path / "router.db")}
            async with a_router(tmp_path, {"good": model_at(url)}, **config) as router:
                status, told, headers = await router.post("/v1/responses", ASKED)
                assert (status, told["status"], told["id"], told["model"]) == (200, "queued", "resp_9", "good")
                assert "x-p2l-dropped-fields" not in headers
                assert upstream.bodies == [{"input": "think long", "background": True, "model": "good-1"}]
                _, text = await router.get("/v1/responses/resp_9")
                assert '"queued"' in text
                spent = router.service.metrics.cost.labels("good")
                assert spent._value.get() == 0
                upstream.is_ready = True
                _, text = await router.get("/v1/responses/resp_9")
                assert '"completed"' in text
                assert '"model":"good"' in text.replace(" ", "")
                while not spent._value.get():
                    await asyncio.sleep(0.01)
                assert spent._value.get() == pytest.approx((100 * 1 + 1000 * 10) / 1e6)
                asked = upstream.asked
                upstream.is_gone = True
                status, _ = await router.get("/v1/responses/resp_9")
                assert (status, upstream.asked) == (200, asked), "it is kept once it is made"
                status, text = await router.get("/v1/responses/resp_9?stream=true")
                assert (status, "stream" in text) == (400, True)

    asyncio.run(main())


def test_a_response_that_its_provider_does_not_know_is_no_answer_that_is_under_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(charges, "_RECORD_PAUSES", (0.01,))

    async def main() -> None:
        upstream = Upstream()
        async with served(upstream.application()) as url:
            config: dict[str, Any] = {"database": str(tmp_path / "router.db")}
            async with a_router(tmp_path, {"good": model_at(url)}, **config) as router:
                await router.post("/v1/responses", ASKED)
                upstream.is_gone = True
                status, text = await router.get("/v1/responses/resp_9")
                assert (status >= 400, "error" in text) == (True, True)

    asyncio.run(main())


def test_where_nothing_is_kept_the_answer_comes_at_once_and_that_is_told(tmp_path: Path) -> None:
    async def main() -> None:
        upstream = Upstream()
        async with served(upstream.application()) as url, a_router(tmp_path, {"good": model_at(url)}) as router:
            _, told, headers = await router.post("/v1/responses", ASKED)
            assert (told["status"], headers["x-p2l-dropped-fields"]) == ("completed", "background")
            assert "background" not in upstream.bodies[0]

    asyncio.run(main())


def test_a_response_in_the_background_is_cancelled_where_it_is_made_and_booked_as_an_estimate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(charges, "_RECORD_PAUSES", (0.01, 0.02))

    async def main() -> None:
        upstream = Upstream()
        async with served(upstream.application()) as url:
            config: dict[str, Any] = {"database": str(tmp_path / "router.db")}
            async with a_router(tmp_path, {"good": model_at(url)}, **config) as router:
                await router.post("/v1/responses", ASKED)
                for _ in range(2):  # a second time changes nothing
                    status, told, _ = await router.post("/v1/responses/resp_9/cancel", {})
                    assert (status, told["status"], told["model"]) == (200, "cancelled", "good")
                    assert upstream.is_cancelled
                    upstream.is_gone = True
                _, text = await router.get("/v1/responses/resp_9")
                assert '"cancelled"' in text
                spent = router.service.metrics.cost.labels("good")
                while not spent._value.get():  # it was under way for some time
                    await asyncio.sleep(0.01)

    asyncio.run(main())


def test_a_stream_of_the_background_that_its_client_left_can_be_fetched_and_cancelled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(charges, "_RECORD_PAUSES", (0.01, 0.02))

    async def main() -> None:
        upstream = Upstream()

        async def stream(request: web.Request) -> web.StreamResponse:
            upstream.bodies.append(await request.json())
            response = web.StreamResponse(headers={"content-type": "text/event-stream"})
            await response.prepare(request)
            begun = {"type": "response.created", "response": upstream.response()}
            said = {"type": "response.output_text.delta", "delta": "so", "output_index": 0, "content_index": 0}
            for event in (begun, said):
                await response.write(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode())
            await asyncio.sleep(600.0)
            return response

        upstream.create = stream  # type: ignore[method-assign]
        async with served(upstream.application()) as url:
            config: dict[str, Any] = {"database": str(tmp_path / "router.db")}
            async with a_router(tmp_path, {"good": model_at(url)}, **config) as router:
                headers = {"authorization": f"Bearer {KEY}"}
                body = {**ASKED, "stream": True}
                async with router.http.post(f"{router.url}/v1/responses", json=body, headers=headers) as response:
                    while b'"so"' not in await response.content.readline():
                        pass
                while (await router.get("/v1/responses/resp_9"))[0] == 404:  # it has not noticed yet
                    await asyncio.sleep(0.01)
                _, text = await router.get("/v1/responses/resp_9")
                assert (json.loads(text)["status"], json.loads(text)["model"]) == ("queued", "good")
                _, told, _ = await router.post("/v1/responses/resp_9/cancel", {})
                assert (told["status"], upstream.is_cancelled) == ("cancelled", True)

    asyncio.run(main())


def test_what_cannot_be_cancelled_is_refused_in_openais_form(tmp_path: Path) -> None:
    async def main() -> None:
        upstream = Upstream()
        async with served(upstream.application()) as url:
            config: dict[str, Any] = {"database": str(tmp_path / "router.db")}
            async with a_router(tmp_path, {"good": model_at(url)}, **config) as router:
                status, told, _ = await router.post("/v1/responses/resp_8/cancel", {})
                assert (status, told["error"]["code"]) == (404, "response_not_found")
                await router.post("/v1/responses", {**ASKED, "background": False})
                status, told, _ = await router.post("/v1/responses/resp_9/cancel", {})
                assert (status, told["error"]["param"]) == (400, "response_id")
                assert "not made in the background" in told["error"]["message"]
                assert not upstream.is_cancelled
        async with a_router(tmp_path, {"good": model_at(url)}) as router:
            status, told, _ = await router.post("/v1/responses/resp_9/cancel", {})
            assert (status, told["error"]["code"]) == (400, "responses_not_stored")

    asyncio.run(main())


def test_a_response_is_forgotten_where_its_provider_keeps_it_too(tmp_path: Path) -> None:
    async def main() -> None:
        upstream = Upstream()
        async with served(upstream.application()) as url:
            config: dict[str, Any] = {"database": str(tmp_path / "router.db")}
            async with a_router(tmp_path, {"good": model_at(url)}, **config) as router:
                await router.post("/v1/responses", {**ASKED, "background": False})
                upstream.is_gone = True
                status, _ = await delete(router, "/v1/responses/resp_9")
                assert (status, upstream.deleted) == (502, ["resp_9"]), "it may still be there"
                upstream.is_gone = False
                status, text = await delete(router, "/v1/responses/resp_9")
                assert (status, '"deleted":true' in text, upstream.deleted) == (200, True, ["resp_9"] * 2)
                status, _ = await router.get("/v1/responses/resp_9")
                assert status == 404

    asyncio.run(main())


def test_the_input_of_a_response_is_listed_page_by_page(tmp_path: Path) -> None:
    async def main() -> None:
        upstream = Upstream()
        async with served(upstream.application()) as url:
            config: dict[str, Any] = {"database": str(tmp_path / "router.db")}
            async with a_router(tmp_path, {"good": model_at(url)}, **config) as router:
                items = [{"type": "message", "id": f"m{n}", "role": "user", "content": str(n)} for n in range(5)]
                await router.post("/v1/responses", {**ASKED, "input": items, "background": False})
                path, told, after = "/v1/responses/resp_9/input_items?order=asc&limit=2", [], ""
                for more in (True, True, False):
                    _, text = await router.get(path + after)
                    page = json.loads(text)
                    told += page["data"]
                    assert page["has_more"] is more
                    after = f"&after={page['last_id']}"
                assert told == items
                for query in ("limit=none", "limit=0", "after=m9"):
                    status, text = await router.get(f"/v1/responses/resp_9/input_items?{query}")
                    assert (status, json.loads(text)["error"]["param"]) == (400, query.partition("=")[0])

    asyncio.run(main())
