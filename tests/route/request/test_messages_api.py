"""The Messages API at its edges: short counts, paths that are not there, tools of Anthropic, ends without a reason."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from route.providers.base import JSON
from tests.route.clients.scripted_providers import Provider
from tests.route.providers.servers import serving, streaming
from tests.route.router_helpers import KEY, Running, a_router, model, served

BODY: JSON = {"max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]}
BASH = {"type": "bash_20250124", "name": "bash"}


def run(folder: Path, use: Any, *args: Any, **more: Any) -> None:
    async def main() -> None:
        async with a_router(folder, *args, **more) as router:
            await use(router)

    asyncio.run(main())


def test_a_short_prompt_has_a_token(tmp_path: Path) -> None:
    async def use(router: Running) -> None:
        status, counted, headers = await router.post("/v1/messages/count_tokens", {"messages": BODY["messages"]})
        assert (status, counted, headers["x-p2l-estimated"]) == (200, {"input_tokens": 1}, "true")

    run(tmp_path, use)


@pytest.mark.parametrize("path", ["/v1/messages/batches", "/v1/messages/batches/b1/results", "/v1/messages/nothing"])
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_errors_below_messages_are_anthropics(tmp_path: Path, path: str, method: str) -> None:
    async def use(router: Running) -> None:
        headers = {"authorization": f"Bearer {KEY}"}
        async with router.http.request(method, f"{router.url}{path}", headers=headers) as response:
            told = await response.json()
        assert response.status == 404
        assert (told["type"], told["error"]["type"]) == ("error", "not_found_error")

    run(tmp_path, use)


def test_keys_of_the_configuration_are_listed_with_their_limits(tmp_path: Path) -> None:
    async def use(router: Running) -> None:
        headers = {"authorization": "Bearer a-long-admin-key"}
        async with router.http.get(f"{router.url}/admin/keys", headers=headers) as response:
            listed = await response.json()
        [entry] = [each for each in listed["data"] if each["name"] == "app"]
        assert entry["limits"] | limits == entry["limits"]

    limits = {"spend_per_day": 5, "requests_per_minute": 7}
    keys = [{"key": "key-of-the-application", "name": "app", **limits}]
    run(tmp_path, use, keys=keys, admin_key="a-long-admin-key")


def test_anthropics_client_tools_pass_where_every_candidate_is_anthropics(tmp_path: Path) -> None:
    provider = Provider()

    async def main() -> None:
        async with served(provider.application()) as url:
            claude = {"type": "anthropic", "base_url": url}
            async with a_router(tmp_path, dict.fromkeys(("good", "fair", "poor"), claude)) as router:
                status, _, headers = await router.post("/v1/messages", {**BODY, "tools": [BASH]})
                assert (status, headers.get("x-p2l-dropped-fields")) == (200, None)

    asyncio.run(main())
    assert provider.received[0].body["tools"] == [BASH]


@pytest.mark.parametrize("reason", ["", "unheard-of", None])
def test_an_end_without_a_reason_follows_from_what_was_sent(tmp_path: Path, reason: str | None) -> None:
    call = {"index": 0, "id": "a", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    choices: list[JSON] = [{"index": 0, "delta": {"role": "assistant", "tool_calls": [call]}}]
    if reason is not None:
        choices.append({"index": 0, "delta": {}, "finish_reason": reason})
    chunks = [{"id": "c", "model": "m", "choices": [choice]} for choice in choices]
    events = [b"data: " + json.dumps(chunk).encode() + b"\n\n" for chunk in chunks] + [b"data: [DONE]\n\n"]

    async def main() -> None:
        async with serving(streaming(*events)) as provider:
            models = {"good": model(provider.url, name="good-1", cost=3.0, options={"responses": False})}
            async with a_router(tmp_path, models) as router:
                headers = {"authorization": f"Bearer {KEY}"}
                body = {**BODY, "stream": True, "direct_model": "good"}
                async with router.http.post(f"{router.url}/v1/messages", json=body, headers=headers) as response:
                    text = await response.text()
        assert '"stop_reason":"tool_use"' in text

    asyncio.run(main())
