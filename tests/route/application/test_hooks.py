"""Hooks: a platform's own code refuses, changes and tags requests and answers, and what happens where it fails."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
import time
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from aiohttp import web

from benchmarks.recorded.streamed import streamed
from benchmarks.recorded.telling import events_of, message_of_events, response_of_events
from benchmarks.recorded.traffic import Exchange
from p2l.common.errors import ConfigError
from route.application.hooks import places_in
from route.application.service import check_together
from route.application.settings import Settings
from route.config import load_config
from route.providers.anthropic import UNSIGNED
from route.providers.base import JSON
from tests.route.clients.scripted_providers import SIGNATURE
from tests.route.clients.scripted_providers import Provider as Scripted
from tests.route.router_helpers import KEY, Running, a_router, model, served

SEEN: list[JSON] = []
"""Events that `watch` was told."""


def watch(event: JSON) -> None:
    SEEN.append(event)


def redact(event: JSON) -> JSON:
    return {"texts": [text.replace("4111-1111", "[card]").replace("good", "fine") for text in event["texts"]]}


async def tag(event: JSON) -> JSON:
    return {"tags": {"kind": "sums" if "17" in " ".join(event["texts"]) else "talk"}}


def refuse(event: JSON) -> JSON:
    return {"refuse": "no cards here"} if any("4111" in text for text in event["texts"]) else {}


def fail(_: JSON) -> JSON:
    raise RuntimeError("4111-1111 is secret")


def sleep(_: JSON) -> None:
    time.sleep(0.5)


def nonsense(_: JSON) -> Any:
    return {"texts": ["one too few"][:0]}


def hook(function: str, *, when: list[str] | None = None, **more: Any) -> JSON:
    call = function if "://" in function else f"{__name__}:{function}"
    return {"name": function[-20:], "call": call, "when": when or ["before"], **more}


def run(folder: Path, hooks: list[JSON], use: Any, **more: Any) -> None:
    async def main() -> None:
        async with a_router(folder, hooks=hooks, **more) as router:
            await use(router)

    SEEN.clear()
    asyncio.run(main())


CARD = [{"role": "user", "content": "my card is 4111-1111"}]


def test_a_hook_is_told_of_a_request_and_changes_what_the_provider_gets(tmp_path: Path) -> None:
    async def use(router: Running) -> None:
        await router.ask(CARD, user="ann")
        assert router.last("good")["messages"] == [{"role": "user", "content": "my card is [card]"}]
        assert router.endpoint.prompts == [["my card is [card]"]]
        [event] = SEEN
        assert event["texts"] == ["my card is 4111-1111"]
        assert (event["when"], event["tags"], event["key"][:4]) == ("before", {}, "key-")

    run(tmp_path, [hook("watch"), hook("redact")], use)


def test_a_hook_sees_messages_and_responses_as_they_pass(tmp_path: Path) -> None:
    provider = Scripted()
    call = {"type": "tool_use", "id": "a", "name": "look", "input": {"card": {"number": "4111-1111"}}}
    thinking = {"type": "thinking", "thinking": "4111-1111", "signature": SIGNATURE}
    result = {"type": "tool_result", "tool_use_id": "a", "content": [{"type": "text", "text": "4111-1111"}]}
    turns = [*CARD, {"role": "assistant", "content": [thinking, call]}, {"role": "user", "content": [result]}]
    tools: Any = [{"name": "look", "input_schema": {"type": "object"}}]

    async def main() -> None:
        async with served(provider.application()) as url:
            models = {
                "claude": model(url, type="anthropic", name="claude-opus-4-7"),
                "gpt": model(f"{url}/v1", name="gpt-5"),
            }
            async with a_router(tmp_path, models, hooks=[hook("redact")]) as router:
                body = {"max_tokens": 9, "messages": turns, "tools": tools, "system": "4111-1111"}
                await router.post("/v1/messages", {**body, "direct_model": "claude"})
                items = [{"role": "user", "content": [{"type": "input_text", "text": "4111-1111"}]}]
                items.append({"type": "function_call_output", "call_id": "a", "output": "4111-1111"})
                sent = {"input": items, "tools": [{"type": "function", "name": "look", "parameters": {}}]}
                await router.post("/v1/responses", {**sent, "instructions": "4111-1111", "direct_model": "gpt"})

    asyncio.run(main())
    messages, responses = (json.dumps(received.body) for received in provider.received)
    # Signed thoughts stay as they are: changed ones would be refused.
    assert (messages.count("[card]"), messages.count("4111-1111")) == (4, 1)
    assert (responses.count("[card]"), responses.count("4111-1111")) == (3, 0)


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages", "/v1/responses", "/v1/route"])
def test_a_refusal_is_the_clients_and_asks_nobody(tmp_path: Path, path: str) -> None:
    async def use(router: Running) -> None:
        body = {"input": CARD} if path.endswith("responses") else {"messages": CARD, "max_tokens": 9}
        status, told, _ = await router.post(path, body)
        assert (status, told["error"]["message"]) == (400, "refuse: no cards here")
        assert router.counts() == {"good": 0, "fair": 0, "poor": 0}
        assert not router.endpoint.prompts
        assert (await router.ask()).choices[0].message.content == "I am good"

    run(tmp_path, [hook("refuse")], use)


def test_tags_are_in_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def use(router: Running) -> None:
        with caplog.at_level(logging.INFO, "route"):
            await router.ask([{"role": "user", "content": "is 17 prime?"}])
        records = [record.fields for record in caplog.records if record.message == "request"]  # type: ignore[attr-defined]
        assert [record.tags for record in records] == [{"kind": "sums"}]

    run(tmp_path, [hook("tag")], use)


@pytest.mark.parametrize("function", ["fail", "sleep", "nonsense"])
@pytest.mark.parametrize("on_failure", ["refuse", "pass"])
def test_a_failure_is_closed_or_open_and_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, function: str, on_failure: str
) -> None:
    async def use(router: Running) -> None:
        status, told, headers = await router.post("/v1/chat/completions", {"messages": CARD})
        if on_failure == "refuse":
            assert (status, told["error"]["code"], headers["retry-after"]) == (503, "hook_failed", "1")
        else:
            assert status == 200
            assert headers["x-p2l-hooks-passed-over"] == function
        assert (
            f'p2l_router_hooks_total{{hook="{function}",outcome="failed"}} 1.0'
            in (await router.get("/metrics", None))[1]
        )
        assert "4111" not in caplog.text

    run(tmp_path, [hook(function, seconds=0.1, on_failure=on_failure)], use)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages", "/v1/responses"])
def test_a_hook_changes_answers(tmp_path: Path, path: str, stream: bool) -> None:
    async def use(router: Running) -> None:
        body: JSON = {"input": "hi"} if path.endswith("responses") else {"messages": CARD, "max_tokens": 9}
        headers = {"authorization": f"Bearer {KEY}"}
        async with router.http.post(
            f"{router.url}{path}", json={**body, "stream": stream}, headers=headers
        ) as response:
            text = await response.text()
        assert response.status == 200
        assert "I am fine" in text
        assert "I am good" not in text

    run(tmp_path, [hook("redact", when=["after"])], use)


def test_a_stream_that_a_hook_refuses_is_its_error(tmp_path: Path) -> None:
    async def use(router: Running) -> None:
        headers = {"authorization": f"Bearer {KEY}"}
        body = {"messages": CARD, "stream": True}
        async with router.http.post(f"{router.url}/v1/chat/completions", json=body, headers=headers) as response:
            text = await response.text()
        assert "4111" not in text
        assert '"code": "refused_by_hook"' in text
        assert "[DONE]" not in text

    run(tmp_path, [hook("refuse", when=["after"])], use, scripts={"good": {"text": "4111"}})


def test_a_hook_changes_an_answer_that_passes_natively(tmp_path: Path) -> None:
    def change(event: JSON) -> JSON:
        return {"texts": [text.replace("notes", "birds") for text in event["texts"]]}

    globals()["change"] = change

    async def main() -> None:
        async with served(Scripted().application()) as url:
            claude = {"claude": model(url, type="anthropic", name="claude-opus-4-7")}
            async with a_router(tmp_path, claude, hooks=[hook("change", when=["after"])]) as router:
                for stream in (False, True):
                    body = {"messages": CARD, "max_tokens": 9, "direct_model": "claude", "stream": stream}
                    headers = {"authorization": f"Bearer {KEY}"}
                    async with router.http.post(f"{router.url}/v1/messages", json=body, headers=headers) as response:
                        text = await response.text()
                    assert "All three birds are read." in text
                    assert "notes" not in text

    asyncio.run(main())


def test_what_else_a_native_answer_holds_stays_where_a_hook_changes_its_text(tmp_path: Path) -> None:
    """Signed thoughts, citations and calls of the provider's own tools, of which chat completions know nothing."""
    search = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "birds"}}
    cited = {"type": "text", "text": "good birds", "citations": [{"type": "page_location", "document_index": 0}]}
    blocks = [
        {"type": "thinking", "thinking": "hm", "signature": "signed"},
        search,
        cited,
        {"type": "text", "text": "."},
    ]

    async def answer(_: web.Request) -> web.Response:
        usage = {"input_tokens": 1, "output_tokens": 1}
        told = {"id": "m", "type": "message", "role": "assistant", "model": "c", "content": blocks, "usage": usage}
        return web.json_response({**told, "stop_reason": "end_turn", "container": {"id": "c_1"}})

    async def main() -> None:
        app = web.Application()
        app.router.add_post("/v1/messages", answer)
        async with served(app) as url:
            claude = {"claude": model(url, type="anthropic", name="claude-opus-4-7")}
            async with a_router(tmp_path, claude, hooks=[hook("redact", when=["after"])]) as router:
                body = {"messages": CARD, "max_tokens": 9, "direct_model": "claude"}
                _, told, _ = await router.post("/v1/messages", body)
                assert told["content"] == [*blocks[:2], {**cited, "text": "fine birds"}, blocks[3]]
                assert told["container"] == {"id": "c_1"}

    asyncio.run(main())


def test_what_else_a_native_stream_holds_stays_where_a_hook_changes_its_text(tmp_path: Path) -> None:
    blocks = [
        {"type": "thinking", "thinking": "hm", "signature": "signed"},
        {"type": "thinking", "thinking": "a good idea", "signature": "signed, too"},
        {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "birds"}},
        {"type": "text", "text": "these are good birds", "citations": [{"type": "page_location"}]},
    ]
    usage = {"input_tokens": 1, "output_tokens": 1}
    told = {"id": "m", "type": "message", "role": "assistant", "model": "c", "content": blocks, "usage": usage}
    recorded = Exchange("m", "anthropic", "", {}, 200, "application/json", {**told, "stop_reason": "end_turn"})

    async def answer(_: web.Request) -> web.Response:
        return web.Response(text=str(streamed(recorded).response), content_type="text/event-stream")

    async def main() -> None:
        app = web.Application()
        app.router.add_post("/v1/messages", answer)
        async with served(app) as url:
            claude = {"claude": model(url, type="anthropic", name="claude-opus-4-7")}
            async with a_router(tmp_path, claude, hooks=[hook("redact", when=["after"])]) as router:
                body = {"messages": CARD, "max_tokens": 9, "direct_model": "claude", "stream": True}
                headers = {"authorization": f"Bearer {KEY}"}
                async with router.http.post(f"{router.url}/v1/messages", json=body, headers=headers) as response:
                    text = await response.text()
        assert "good" not in text
        content = message_of_events(list(events_of(text)))["content"]
        assert content[0] == blocks[0]
        assert (content[1]["thinking"], content[1]["signature"]) == ("a fine idea", UNSIGNED)
        assert content[2]["input"] == {"query": "birds"}
        assert content[3] == {**blocks[3], "text": "these are fine birds"}

    asyncio.run(main())


def test_what_else_a_native_stream_of_responses_holds_stays_too(tmp_path: Path) -> None:
    cited = {"type": "output_text", "text": "good birds", "annotations": [{"type": "url_citation", "url": "https://b"}]}
    output = [
        {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "hidden"},
        {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search", "query": "b"}},
        {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": [cited]},
    ]
    usage = {"input_tokens": 1, "output_tokens": 1, "total_tokens": 2}
    response = {"id": "resp_1", "object": "response", "status": "completed", "model": "c", "output": output}
    recorded = Exchange("r", "openai-responses", "", {}, 200, "application/json", {**response, "usage": usage})
    forgetful = str(streamed(recorded).response).replace('"output": [{', '"output": [], "was": [{')

    async def answer(request: web.Request) -> web.Response:
        is_forgetful = (await request.json())["input"] == "forget"
        text = forgetful if is_forgetful else str(streamed(recorded).response)
        return web.Response(text=text, content_type="text/event-stream")

    async def main() -> None:
        app = web.Application()
        app.router.add_post("/v1/responses", answer)
        async with served(app) as url:
            models = {"c": model(f"{url}/v1", name="c", options={"responses": True})}
            async with a_router(tmp_path, models, hooks=[hook("redact", when=["after"])]) as router:
                for prompt in ("remember", "forget"):
                    body = {"input": prompt, "direct_model": "c", "stream": True}
                    headers = {"authorization": f"Bearer {KEY}"}
                    async with router.http.post(f"{router.url}/v1/responses", json=body, headers=headers) as told:
                        text = await told.text()
                    assert "good birds" not in text
                    events = list(events_of(text))
                    if prompt == "forget":  # the end does not say what came in pieces: told in translation
                        assert "fine birds" in text
                        continue
                    assert response_of_events(events)["output"] == [*output[:2], {**output[2], "content": [FINE]}]
                    deltas = [each["delta"] for each in events if each["type"] == "response.output_text.delta"]
                    assert "".join(deltas) == "fine birds"

    FINE = {**cited, "text": "fine birds"}
    asyncio.run(main())


def test_a_client_is_told_before_a_stream_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """By the status or a header, and in the first chunk, since the head may be sent with a sign of life."""
    monkeypatch.setattr("route.application.hooks._REPLY_BYTES", 1000)

    async def endless(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        for _ in range(100):
            await response.write(b" " * 100)
        return response

    async def main() -> None:
        app = web.Application()
        app.router.add_post("/endless", endless)
        async with served(app) as url:
            for on_failure, expected in (("refuse", 503), ("pass", 200)):
                endless_hook = hook(f"{url}/endless", when=["after"], on_failure=on_failure)
                async with a_router(tmp_path, hooks=[endless_hook]) as router:
                    headers, body = {"authorization": f"Bearer {KEY}"}, {"messages": CARD, "stream": True}
                    path = f"{router.url}/v1/chat/completions"
                    async with router.http.post(path, json=body, headers=headers) as response:
                        text = await response.text()
                    assert response.status == expected
                    name = endless_hook["name"]
                    if on_failure == "pass":
                        assert response.headers["x-p2l-hooks-passed-over"] == quote(name, safe="")
                        assert next(events_of(text))["router_hooks_passed_over"] == [name]

    with caplog.at_level(logging.INFO, "route"):
        asyncio.run(main())
    failure = next(record for record in caplog.records if record.getMessage() == "a hook failed")
    assert failure.fields["problem"] == "sent too long a reply"
    [*_, last] = [record for record in caplog.records if record.getMessage() == "request"]
    assert last.fields.hooks_passed_over


@pytest.mark.parametrize("stream", [False, True])
def test_a_changed_text_is_not_told_by_its_tokens(tmp_path: Path, stream: bool) -> None:
    logprobs = {"content": [{"token": "good", "logprob": -0.1, "top_logprobs": []}]}

    async def answer(_: web.Request) -> web.Response:
        message = {"role": "assistant", "content": "good"}
        choice = {"index": 0, "finish_reason": "stop", "logprobs": logprobs}
        if not stream:
            return web.json_response({"id": "c", "choices": [{**choice, "message": message}]})
        line = json.dumps({"id": "c", "choices": [{**choice, "delta": message}]})
        return web.Response(text=f"data: {line}\n\ndata: [DONE]\n\n", content_type="text/event-stream")

    async def main() -> None:
        app = web.Application()
        app.router.add_post("/v1/chat/completions", answer)
        async with served(app) as url:
            models = {"good": {"base_url": f"{url}/v1"}}
            async with a_router(tmp_path, models, hooks=[hook("redact", when=["after"])]) as router:
                body = {"messages": CARD, "logprobs": True, "stream": stream, "direct_model": "good"}
                headers = {"authorization": f"Bearer {KEY}"}
                async with router.http.post(
                    f"{router.url}/v1/chat/completions", json=body, headers=headers
                ) as response:
                    text = await response.text()
                assert '"fine"' in text
                assert '"token"' not in text

    asyncio.run(main())


def test_a_hook_at_an_address_gets_its_key_and_the_event(tmp_path: Path) -> None:
    asked: list[tuple[str, JSON]] = []

    async def answer(request: web.Request) -> web.Response:
        event = await request.json()
        asked.append((request.headers["authorization"], event))
        return web.json_response({"texts": ["changed"], "tags": {"a": "b"}})

    async def broken(_: web.Request) -> web.Response:
        return web.Response(status=500)

    async def main() -> None:
        app = web.Application()
        app.router.add_post("/hook", answer)
        app.router.add_post("/broken", broken)
        async with served(app) as url:
            both = [hook(f"{url}/hook", api_key="hook-key"), hook(f"{url}/broken", on_failure="pass")]
            async with a_router(tmp_path, hooks=both) as router:
                await router.ask(CARD)
                assert router.last("good")["messages"][0]["content"] == "changed"
        [(key, event)] = asked
        assert key == "Bearer hook-key"
        assert event["texts"] == ["my card is 4111-1111"]

    asyncio.run(main())


def test_embeddings_pass_hooks_too(tmp_path: Path) -> None:
    async def use(router: Running) -> None:
        status, told, _ = await router.post("/v1/embeddings", {"input": ["4111-1111"]})
        assert (status, told["error"]["code"]) == (400, "refused_by_hook")

    vectors = {"vectors": model("http://127.0.0.1:9", serves=["embeddings"])}
    run(tmp_path, [hook("refuse")], use, models=vectors)


@pytest.mark.parametrize(
    ("call", "problem"),
    [
        ("nowhere", "key 'hooks.0.call': must be package.module:function"),
        ("no.such.package:f", "hooks.0.call: 'no.such.package:f' cannot be imported"),
        ("json:nothing", "hooks.0.call: 'json:nothing' cannot be imported"),
        ("json:__name__", "hooks.0.call: 'json:__name__' is not a function"),
    ],
)
def test_a_wrong_hook_is_refused_with_its_line(tmp_path: Path, call: str, problem: str) -> None:
    path = tmp_path / "router.yaml"
    text = f"model_configs:\n  m: {{name: m, type: mock, cost: 1}}\nhooks:\n  - name: h\n    call: {call}\n"
    path.write_text(text, encoding="utf-8")
    settings = Settings(str(path), "grk-endpoint", router_model_endpoint="http://127.0.0.1:9")
    with pytest.raises(ConfigError) as caught:
        check_together(load_config(path), settings)
    assert f"router.yaml:5: {problem}" in str(caught.value)


def test_names_and_identifiers_are_no_texts() -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "look", "arguments": '{"at": 1}'}}
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk="}}
    body: Any = [
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "seen"},
        {"role": "user", "content": [image, {"type": "text", "text": "so?"}]},
    ]
    places = places_in({"model": "m", "messages": body, "user": "ann"})
    assert [container[key] for container, key in places] == ['{"at": 1}', "seen", "so?"]


def test_hooks_of_functions_do_not_hold_up_others(tmp_path: Path) -> None:
    """A function that waits does so beside the event loop."""

    async def use(router: Running) -> None:
        await asyncio.gather(*(router.ask(CARD) for _ in range(4)))
        assert {event["thread"] for event in SEEN} != {threading.main_thread().name}

    run(tmp_path, [hook("note_thread")], use)


def note_thread(event: JSON) -> None:
    SEEN.append({**event, "thread": threading.current_thread().name})
