"""OpenAI's Responses API, through the official client: items, streams, tools, structured output, and what is kept."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import openai
import pytest
from aiohttp import web
from pydantic import BaseModel

from tests.route.router_helpers import KEY, Running, a_router, model, served

LOOK = {
    "type": "function",
    "name": "look",
    "description": "Look at something.",
    "parameters": {"type": "object", "properties": {"place": {"type": "string"}}, "required": ["place"]},
    "strict": True,
}
KEPT = {"database": "router.sqlite"}


def create(router: Running, content: Any = "hello there", **extra: Any) -> Any:
    return router.client.responses.create(model="p2l-router", input=content, **extra)


def test_a_response_has_the_answer_the_model_and_the_decision(tmp_path: Path) -> None:
    async def main() -> None:
        async with a_router(tmp_path) as router:
            response = await create(router, instructions="Be brief.", temperature=0.3, max_output_tokens=50)
            assert response.output_text == "I am good"
            assert (response.status, response.model, response.object) == ("completed", "good", "response")
            assert (response.usage.output_tokens, response.usage.total_tokens) == (3, 7)
            assert response.router_decision["attempts"] == ["good"]
            assert (response.instructions, response.temperature, response.store) == ("Be brief.", 0.3, False)
            sent = router.last("good")
            assert sent["messages"] == [
                {"role": "system", "content": "Be brief."},
                {"role": "user", "content": "hello there"},
            ]
            assert (sent["temperature"], sent["max_completion_tokens"]) == (0.3, 50)
            cheap = await create(router, extra_body={"cost": 1})
            assert cheap.model == "poor"
            assert router.endpoint.prompts[0] == ["hello there"]

    asyncio.run(main())


def test_items_of_every_kind_become_messages(tmp_path: Path) -> None:
    async def main() -> None:
        async with a_router(tmp_path) as router:
            image = "data:image/png;base64,AAAA"
            items = [
                {"role": "developer", "content": "Be brief."},
                {
                    "role": "user",
                    "content": [
                        {"type": "input_text", "text": "What is this?"},
                        {"type": "input_image", "image_url": image, "detail": "low"},
                    ],
                },
                {
                    "type": "reasoning",
                    "id": "rs_1",
                    "summary": [],
                    "content": [{"type": "reasoning_text", "text": "Hm"}],
                },
                {"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{}"},
                {"type": "function_call", "call_id": "c2", "name": "look", "arguments": "{}"},
                {"type": "function_call_output", "call_id": "c1", "output": "a heron"},
                {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "a pond"}]},
                {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "A heron."}]},
                {"role": "user", "content": "And now?"},
            ]
            await create(router, items)
            call = {"type": "function", "function": {"name": "look", "arguments": "{}"}}
            assert router.last("good")["messages"] == [
                {"role": "developer", "content": "Be brief."},
                {
                    "role": "user",
                    "content": [
                        {"type": "text", "text": "What is this?"},
                        {"type": "image_url", "image_url": {"url": image, "detail": "low"}},
                    ],
                },
                {"role": "assistant", "content": None, "tool_calls": [{"id": "c1", **call}, {"id": "c2", **call}]},
                {"role": "tool", "tool_call_id": "c1", "content": "a heron"},
                {"role": "tool", "tool_call_id": "c2", "content": "a pond"},
                {"role": "assistant", "content": "A heron."},
                {"role": "user", "content": "And now?"},
            ]

    asyncio.run(main())


def test_an_image_that_a_tool_returns_reaches_a_chat_provider_after_the_tools_result(tmp_path: Path) -> None:
    async def main() -> None:
        async with a_router(tmp_path) as router:
            image = "data:image/png;base64,AAAA"
            await create(
                router,
                [
                    {"role": "user", "content": "Take a picture."},
                    {"type": "function_call", "call_id": "c1", "name": "shot", "arguments": "{}"},
                    {
                        "type": "function_call_output",
                        "call_id": "c1",
                        "output": [
                            {"type": "input_text", "text": "done"},
                            {"type": "input_image", "image_url": image},
                        ],
                    },
                ],
            )
            result, picture = router.last("good")["messages"][-2:]
            assert (result["role"], result["tool_call_id"]) == ("tool", "c1")
            assert "done" in result["content"]
            assert picture["role"] == "user"
            assert [part["image_url"]["url"] for part in picture["content"] if part["type"] == "image_url"] == [image]

    asyncio.run(main())


def test_a_stream_has_the_events_of_the_api_in_order(tmp_path: Path) -> None:
    async def main() -> None:
        async with a_router(tmp_path) as router:
            events = [event async for event in await create(router, stream=True)]
            assert [event.sequence_number for event in events] == list(range(len(events)))
            kinds = [event.type for event in events]
            assert kinds[:4] == [
                "response.created",
                "response.in_progress",
                "response.output_item.added",
                "response.content_part.added",
            ]
            assert kinds[4:-4] == ["response.output_text.delta"] * 3
            assert kinds[-4:] == [
                "response.output_text.done",
                "response.content_part.done",
                "response.output_item.done",
                "response.completed",
            ]
            assert "".join(event.delta for event in events[4:-4]) == events[-4].text == "I am good"
            last = events[-1].response
            assert (last.output_text, last.model, last.usage.output_tokens) == ("I am good", "good", 3)
            assert events[0].response.id == last.id
            assert last.output[0].id == events[2].item.id == events[4].item_id
            async with router.client.responses.stream(model="-", input="hello") as stream:
                async for _ in stream:
                    pass
                assert (await stream.get_final_response()).output_text == "I am good"

    asyncio.run(main())


@pytest.mark.parametrize("stream", [False, True])
def test_functions_are_called_and_their_results_answered(tmp_path: Path, stream: bool) -> None:
    async def main() -> None:
        async with a_router(tmp_path) as router:
            response = await complete(router, [{"role": "user", "content": "Look."}], stream, tools=[LOOK])
            [call] = response.output
            assert (call.type, call.name, json.loads(call.arguments)) == ("function_call", "look", {"place": "text"})
            function = {key: LOOK[key] for key in ("name", "description", "parameters", "strict")}
            assert router.last("good")["tools"] == [{"type": "function", "function": function}]
            items = [
                {"role": "user", "content": "Look."},
                *(item.model_dump(exclude_none=True) for item in response.output),
                {"type": "function_call_output", "call_id": call.call_id, "output": "a heron"},
            ]
            done = await complete(router, items, stream, tools=[LOOK])
            assert done.output_text == "I am good"
            named = await complete(
                router, "Go.", stream, tools=[LOOK], tool_choice={"type": "function", "name": "look"}
            )
            assert named.output[0].type == "function_call"
            assert (await complete(router, "Go.", stream, tools=[LOOK], tool_choice="none")).output_text == "I am good"

    asyncio.run(main())


async def complete(router: Running, content: Any, stream: bool, **extra: Any) -> Any:
    """A whole response, or the one at the end of a stream."""
    if not stream:
        return await create(router, content, **extra)
    events = [event async for event in await create(router, content, stream=True, **extra)]
    return events[-1].response


class Bird(BaseModel):
    name: str
    legs: int


def test_structured_output_is_parsed_by_the_client(tmp_path: Path) -> None:
    async def main() -> None:
        async with a_router(tmp_path) as router:
            response = await router.client.responses.parse(model="-", input="A bird?", text_format=Bird)
            assert response.output_parsed == Bird(name="text", legs=1)
            form = router.last("good")["response_format"]
            assert (form["type"], form["json_schema"]["name"], form["json_schema"]["strict"]) == (
                *("json_schema", "Bird"),
                True,
            )

    asyncio.run(main())


@pytest.mark.parametrize("stream", [False, True])
def test_thoughts_are_reasoning_items(tmp_path: Path, stream: bool) -> None:
    async def main() -> None:
        async def think(request: web.Request) -> web.StreamResponse:
            body = await request.json()
            frame = {"id": "c", "created": 1, "model": "m"}
            if not body.get("stream"):
                message = {"role": "assistant", "content": "17.", "reasoning_content": "Let me see."}
                choice = {"index": 0, "message": message, "finish_reason": "length"}
                return web.json_response({**frame, "object": "chat.completion", "choices": [choice]})
            response = web.StreamResponse(headers={"content-type": "text/event-stream"})
            await response.prepare(request)
            for delta in ({"reasoning_content": "Let me"}, {"reasoning_content": " see."}, {"content": "17."}):
                part = {**frame, "object": "chat.completion.chunk", "choices": [{"index": 0, "delta": delta}]}
                await response.write(f"data: {json.dumps(part)}\n\n".encode())
            part["choices"] = [{"index": 0, "delta": {}, "finish_reason": "length"}]
            await response.write(f"data: {json.dumps(part)}\n\ndata: [DONE]\n\n".encode())
            return response

        app = web.Application()
        app.router.add_post("/v1/chat/completions", think)
        async with served(app) as url, a_router(tmp_path, {"thinker": model(f"{url}/v1")}) as router:
            response = await complete(
                router, "A prime?", stream, reasoning={"effort": "low"}, extra_body={"direct_model": "thinker"}
            )
            thoughts, message = response.output
            assert (thoughts.type, thoughts.content[0].text) == ("reasoning", "Let me see.")
            assert message.content[0].text == "17."
            assert (response.status, response.incomplete_details.reason) == ("incomplete", "max_output_tokens")
            assert response.reasoning.effort == "low"

    asyncio.run(main())


def test_a_stream_that_breaks_ends_with_a_failed_response(tmp_path: Path) -> None:
    async def main() -> None:
        async with a_router(tmp_path, scripts={"good": {"failures": ["cut"]}}) as router:
            events = [event async for event in await create(router, stream=True)]
            assert events[-1].type == "response.failed"
            assert events[-1].response.error.code == "provider_error"
            assert events[-1].response.status == "failed"

    asyncio.run(main())


@pytest.mark.parametrize("stream", [False, True])
def test_a_conversation_goes_on_from_a_response_that_is_kept(tmp_path: Path, stream: bool) -> None:
    async def main() -> None:
        async with a_router(tmp_path, **KEPT) as router:
            first = await complete(router, "Look.", stream, tools=[LOOK], instructions="Be brief.")
            assert first.store
            output = {"type": "function_call_output", "call_id": first.output[0].call_id, "output": "a heron"}
            second = await complete(router, [output], stream, previous_response_id=first.id)
            third = await complete(router, "And?", stream, previous_response_id=second.id, instructions="Shout.")
            roles = [message["role"] for message in router.last("good")["messages"]]
            assert roles == ["system", "user", "assistant", "tool", "assistant", "user"]
            assert router.last("good")["messages"][0]["content"] == "Shout."  # the first ones do not carry over
            assert third.previous_response_id == second.id
        async with a_router(tmp_path, **KEPT) as router:  # after a restart
            again = await router.client.responses.retrieve(third.id)
            assert (again.id, again.output_text) == (third.id, "I am good")
            items = await router.client.responses.input_items.list(first.id)
            assert [item.role for item in items.data] == ["user"]
            await router.client.responses.delete(third.id)
            with pytest.raises(openai.NotFoundError):
                await router.client.responses.retrieve(third.id)
            with pytest.raises(openai.NotFoundError):
                await create(router, previous_response_id=third.id)

    asyncio.run(main())


def test_nothing_is_kept_without_a_database_against_the_clients_will_or_for_another_key(tmp_path: Path) -> None:
    async def main() -> None:
        async with a_router(tmp_path) as router:
            with pytest.raises(openai.BadRequestError) as caught:
                await create(router, previous_response_id="resp_1")
            assert caught.value.code == "responses_not_stored"
        keys = [{"key": "other-key", "name": "other"}]
        async with a_router(tmp_path, keys=keys, **KEPT) as router:
            response = await create(router, store=False)
            assert response.store is False
            with pytest.raises(openai.NotFoundError):
                await router.client.responses.retrieve(response.id)
            response = await create(router)
            other = router.client.with_options(api_key="other-key")
            with pytest.raises(openai.NotFoundError):
                await other.responses.retrieve(response.id)
            with pytest.raises(openai.NotFoundError):
                await other.responses.create(model="-", input="x", previous_response_id=response.id)
        async with a_router(tmp_path, store_responses=False, **KEPT) as router:
            assert (await create(router)).store is False

    asyncio.run(main())


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({}, "input: must be text"),
        ({"input": []}, "input: must be text"),
        ({"input": [{"role": "robot", "content": "x"}]}, "input[0].role"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "previous_response_id"),
        ({"input": [{"type": "computer_call"}]}, "items of the type computer_call"),
        ({"input": [{"role": "user", "content": [{"type": "input_file", "file_id": "f"}]}]}, "content[0]"),
        ({"input": "x", "background": "yes"}, "background"),
        ({"input": "x", "prompt": {"id": "p"}}, "prompt"),
        ({"input": "x", "conversation": "c"}, "conversation"),
        ({"input": "x", "n": 2}, "n: a response has one answer"),
        ({"input": "x", "max_output_tokens": 0}, "max_output_tokens: must be a whole number of at least 1"),
        ({"input": "x", "max_output_tokens": 10**30}, "max_output_tokens: must be a whole number"),
        ({"input": "x", "store": "no"}, "store: must be true or false"),
        ({"input": "x", "text": {"format": {"type": "grammar"}}}, "text.format"),
        ({"input": "x", "tools": [{"type": "function"}]}, "tools[0]"),
        ({"input": "x", "tools": [LOOK], "tool_choice": "perhaps"}, "tool_choice"),
        ({"input": "x", "tools": [LOOK], "tool_choice": {"type": "allowed_tools", "tools": 5}}, "tool_choice.tools"),
        ({"input": "x", "include": True}, "include: must be a list"),
        ({"input": [{"type": "reasoning", "content": 5}]}, "input[0].content: must be a list"),
    ],
)
def test_what_cannot_be_routed_is_refused_with_its_place(tmp_path: Path, body: Any, words: str) -> None:
    async def main() -> None:
        async with a_router(tmp_path) as router:
            status, told, _ = await router.post("/v1/responses", body)
            assert status == 400
            assert words in told["error"]["message"]
            assert told["error"]["message"].startswith(f"{told['error']['param']}: ")

    asyncio.run(main())


SHELL = {"type": "local_shell_call", "id": "lsh_1", "call_id": "c1", "status": "completed", "action": {"type": "exec"}}
OPENAIS_ITEMS = [
    {"type": "compaction", "id": "cmp_1", "encrypted_content": "what came before"},
    {"role": "user", "content": "go on"},
    SHELL,
    {"type": "local_shell_call_output", "id": "c1", "output": "a file"},
    {"type": "mcp_call", "id": "mcp_1", "name": "read", "arguments": "{}", "server_label": "s", "output": "x"},
    {"type": "thing_of_tomorrow", "id": "t_1"},
]


def test_items_that_only_their_own_api_knows_go_to_a_model_that_has_it(tmp_path: Path) -> None:
    """A history without them would be another one: elsewhere they are refused, all named, with who takes them."""
    received: list[Any] = []

    async def answer(request: web.Request) -> web.Response:
        received.append(await request.json())
        content = [{"type": "output_text", "text": "done", "annotations": []}]
        item = {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": content}
        told = {"id": "resp_1", "object": "response", "model": "o-1", "status": "completed", "output": [item]}
        return web.json_response({**told, "usage": {"input_tokens": 1, "output_tokens": 1, "total_tokens": 2}})

    async def main() -> None:
        app = web.Application()
        app.router.add_post("/responses", answer)
        async with served(app) as url:
            native = {"type": "openai-responses", "name": "o-1", "base_url": url, "api_key": "k", "cost": 9.0}
            async with a_router(tmp_path) as router:
                status, told, _ = await router.post("/v1/responses", {"input": OPENAIS_ITEMS})
                message = told["error"]["message"]
                assert (status, told["error"]["param"]) == (400, "input[0]")
                assert all(str(item["type"]) in message for item in OPENAIS_ITEMS if "type" in item)
                assert "openai-responses" in message
                assert not any(mock.bodies for mock in router.mocks.values())
            async with a_router(tmp_path, {"poor": native}) as router:
                status, told, headers = await router.post("/v1/responses", {"input": OPENAIS_ITEMS})
                assert (status, told.get("model")) == (200, "poor"), told
                assert "x-p2l-dropped-fields" not in headers
                body = {"input": OPENAIS_ITEMS, "direct_model": "good"}
                status, told, _ = await router.post("/v1/responses", body)
                assert (status, "compaction" in told["error"]["message"]) == (400, True)
        assert [body["input"] for body in received] == [OPENAIS_ITEMS]

    asyncio.run(main())


def test_tools_that_a_provider_runs_are_dropped_and_named(tmp_path: Path) -> None:
    async def main() -> None:
        async with a_router(tmp_path) as router:
            body = {"input": "x", "tools": [{"type": "web_search"}], "truncation": "auto"}
            status, _, headers = await router.post("/v1/responses", body)
            assert status == 200
            assert set(headers["x-p2l-dropped-fields"].split(", ")) == {"truncation", "tools.web_search"}
            assert "tools" not in router.last("good")

    asyncio.run(main())


def test_items_that_are_kept_may_be_referred_to(tmp_path: Path) -> None:
    async def main() -> None:
        async with a_router(tmp_path, database="router.sqlite") as router:
            _, first, _ = await router.post("/v1/responses", {"input": "hello"})
            reference = {"type": "item_reference", "id": first["output"][0]["id"]}
            history = [{"role": "user", "content": "hello"}, reference, {"role": "user", "content": "and now?"}]
            status, second, _ = await router.post("/v1/responses", {"input": history})
            assert status == 200, second
            told = first["output"][0]["content"][0]["text"]
            assert [message["content"] for message in router.last("good")["messages"]][1] == told
            status, error, _ = await router.post("/v1/responses", {"input": [{**reference, "id": "msg_unknown"}]})
            assert (status, error["error"]["param"]) == (400, "input[0]")

    asyncio.run(main())


def test_custom_tools_are_functions_of_one_text_elsewhere(tmp_path: Path) -> None:
    async def main() -> None:
        async with a_router(tmp_path) as router:
            tools = [{"type": "custom", "name": "patch", "description": "Apply a patch."}]
            for stream in (False, True):
                body = {"input": "go", "tools": tools, "stream": stream}
                if stream:
                    async with router.http.post(
                        f"{router.url}/v1/responses", json=body, headers={"authorization": f"Bearer {KEY}"}
                    ) as response:
                        events = await response.text()
                    data = [json.loads(line[6:]) for line in events.splitlines() if line.startswith("data: {")]
                    assert "response.custom_tool_call_input.done" in [event["type"] for event in data]
                    answer = data[-1]["response"]
                else:
                    _, answer, _ = await router.post("/v1/responses", body)
                function = router.last("good")["tools"][0]["function"]
                assert (function["name"], list(function["parameters"]["properties"])) == ("patch", ["input"])
                [call] = [item for item in answer["output"] if item["type"] == "custom_tool_call"]
                assert (call["name"], isinstance(call["input"], str)) == ("patch", True)
            output = {"type": "custom_tool_call_output", "call_id": call["call_id"], "output": "done"}
            asked = [{"role": "user", "content": "go"}, call, output]
            status, _, _ = await router.post("/v1/responses", {"input": asked, "tools": tools})
            sent = router.last("good")["messages"]
            assert status == 200
            assert json.loads(sent[1]["tool_calls"][0]["function"]["arguments"]) == {"input": call["input"]}
            assert sent[2] == {"role": "tool", "tool_call_id": call["call_id"], "content": "done"}

    asyncio.run(main())
