"""Anthropic's protocol: requests valid by the official package's types, answers and streams in OpenAI's words."""

from __future__ import annotations

import json
from typing import Any

import pytest
from anthropic import AsyncAnthropic
from anthropic.types import Message, MessageCreateParams
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from pydantic import TypeAdapter

from route.providers.anthropic import completion_of, messages_request
from route.providers.base import JSON, Fault, ProviderError
from tests.route.providers.servers import (
    KEY,
    PATIENT,
    QUICK,
    REQUEST,
    answering,
    asking,
    collected,
    failure,
    run,
    streaming,
)

PARAMS: TypeAdapter[Any] = TypeAdapter(MessageCreateParams)
TOOL = {"type": "function", "function": {"name": "look", "description": "d", "parameters": {"type": "object"}}}


def translated(**fields: Any) -> JSON:
    """The request for Anthropic, valid by the types of its package."""
    body = messages_request({"model": "claude", "messages": [user("hi")]} | fields, max_tokens=4096)
    # Their newest models have no temperature, nor has the type.
    PARAMS.validate_python({key: value for key, value in body.items() if key != "temperature"}, strict=False)
    return body


def user(content: Any) -> JSON:
    return {"role": "user", "content": content}


def call(identifier: str, name: str, arguments: str) -> JSON:
    return {"id": identifier, "type": "function", "function": {"name": name, "arguments": arguments}}


def text(words: str) -> JSON:
    return {"type": "text", "text": words}


def test_a_plain_request() -> None:
    assert translated() == {
        "model": "claude",
        "max_tokens": 4096,
        "messages": [{"role": "user", "content": [text("hi")]}],
    }


def test_system_messages_become_the_system_prompt() -> None:
    body = translated(
        messages=[
            {"role": "system", "content": "first"},
            user("a"),
            {"role": "developer", "content": [text("second"), text("third")]},
            user([text("b")]),
        ]
    )
    assert body["system"] == "first\n\nsecond\nthird"
    assert body["messages"] == [{"role": "user", "content": [text("a"), text("b")]}]


def test_tools_and_their_results_go_out() -> None:
    body = translated(
        tools=[TOOL, {"type": "function", "function": {"name": "bare"}}],
        tool_choice="required",
        parallel_tool_calls=False,
        messages=[
            user("look twice"),
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [call("c.1", "look", '{"at": 1}'), call("c2", "bare", "")],
            },
            {"role": "tool", "tool_call_id": "c.1", "content": "seen"},
            {"role": "tool", "tool_call_id": "c2", "content": [text("nothing")]},
            user("so?"),
        ],
    )
    assert body["tools"] == [
        {"name": "look", "description": "d", "input_schema": {"type": "object"}},
        {"name": "bare", "input_schema": {"type": "object", "properties": {}}},
    ]
    assert body["tool_choice"] == {"type": "any", "disable_parallel_tool_use": True}
    assert body["messages"][1]["content"] == [
        {"type": "tool_use", "id": "c_1", "name": "look", "input": {"at": 1}},
        {"type": "tool_use", "id": "c2", "name": "bare", "input": {}},
    ]
    assert body["messages"][2]["content"] == [
        {"type": "tool_result", "tool_use_id": "c_1", "content": [text("seen")]},
        {"type": "tool_result", "tool_use_id": "c2", "content": [text("nothing")]},
        text("so?"),
    ]


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        (None, None),
        ("auto", {"type": "auto"}),
        ("none", {"type": "none"}),
        ("required", {"type": "any"}),
        ({"type": "function", "function": {"name": "look"}}, {"type": "tool", "name": "look"}),
        ({"type": "any"}, {"type": "any"}),
    ],
)
def test_a_choice_of_tools(choice: Any, expected: JSON | None) -> None:
    assert translated(tools=[TOOL], tool_choice=choice).get("tool_choice") == expected
    assert "tool_choice" not in translated(tool_choice=choice)  # there are no tools


def test_one_tool_at_a_time() -> None:
    one = {"type": "auto", "disable_parallel_tool_use": True}
    assert translated(tools=[TOOL], parallel_tool_calls=False)["tool_choice"] == one
    assert translated(tools=[TOOL], parallel_tool_calls=False, tool_choice="none")["tool_choice"] == {"type": "none"}
    assert "tool_choice" not in translated(tools=[TOOL], parallel_tool_calls=True)


def test_images_and_documents_go_out() -> None:
    body = translated(
        messages=[
            user(
                [
                    text("what is this?"),
                    {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA", "detail": "low"}},
                    {"type": "image_url", "image_url": {"url": "https://host/i.png"}},
                    {"type": "file", "file": {"filename": "f", "file_data": "data:application/pdf;base64,BBBB"}},
                ]
            )
        ]
    )
    _, inline, linked, file = body["messages"][0]["content"]
    assert inline == {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}}
    assert linked == {"type": "image", "source": {"type": "url", "url": "https://host/i.png"}}
    assert file["source"]["media_type"] == "application/pdf"


def test_settings_get_their_names() -> None:
    body = translated(
        temperature=0, top_p=0.5, top_k=7, stop=["a", " ", "\n"], max_completion_tokens=9, max_tokens=10, user="u"
    )
    assert (body["temperature"], body["top_p"], body["top_k"], body["max_tokens"]) == (0, 0.5, 7, 9)
    assert body["stop_sequences"] == ["a"]
    assert body["metadata"] == {"user_id": "u"}
    assert translated(temperature=1.7)["temperature"] == 1.0
    assert translated(stop="x")["stop_sequences"] == ["x"]
    assert translated(max_tokens=5)["max_tokens"] == 5


def test_hints_are_dropped_and_unknown_fields_kept() -> None:
    hints = {"seed": 1, "frequency_penalty": 1, "store": True, "logit_bias": {}, "service_tier": "flex", "n": 1}
    thinking = {"type": "enabled", "budget_tokens": 2048}
    body = translated(**hints, stream=True, stream_options={"include_usage": True}, thinking=thinking)
    assert set(body) == {"model", "messages", "max_tokens", "thinking"}


def test_formats() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string"}}}
    wanted = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema, "strict": True}}
    assert translated(response_format=wanted, output_config={"effort": "low"})["output_config"] == {
        "effort": "low",
        "format": {"type": "json_schema", "schema": {**schema, "additionalProperties": False}},
    }
    assert "JSON" in translated(response_format={"type": "json_object"})["system"]
    assert "system" not in translated(response_format={"type": "text"})


def test_the_beginning_of_an_answer_has_no_white_space_at_its_end() -> None:
    body = translated(messages=[user("hi"), {"role": "assistant", "content": "Well, "}])
    assert body["messages"][-1]["content"] == [text("Well,")]


@pytest.mark.parametrize(
    "fields",
    [
        {"n": 2},
        {"logprobs": True},
        {"messages": [user([{"type": "input_audio", "input_audio": {}}])]},
        {"messages": [{"role": "function", "content": "x"}]},
        {"tools": [TOOL], "tool_choice": {"type": "allowed_tools"}},
    ],
)
def test_what_it_cannot_say_goes_to_another_model(fields: JSON) -> None:
    with pytest.raises(ProviderError) as caught:
        translated(**fields)
    assert caught.value.fault is Fault.UNSUPPORTED


@pytest.mark.parametrize(
    "fields", [{"messages": ["hi"]}, {"messages": 3}, {"messages": [user([None])]}, {"temperature": "hot"}]
)
def test_a_request_of_another_form_is_the_clients_fault(fields: JSON) -> None:
    error = failure(answering(ANSWER), "anthropic", stream=False, request=REQUEST | fields)
    assert error.fault is Fault.REQUEST


ANSWER: JSON = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "model": "claude-x",
    "content": [
        {"type": "thinking", "thinking": "hm", "signature": "s"},
        text("Let me "),
        text("look."),
        {"type": "tool_use", "id": "toolu_1", "name": "look", "input": {"at": [1]}},
    ],
    "stop_reason": "tool_use",
    "stop_sequence": None,
    "usage": {
        "input_tokens": 10,
        "output_tokens": 5,
        "cache_read_input_tokens": 3,
        "cache_creation_input_tokens": 2,
    },
}


def test_an_answer_comes_back() -> None:
    Message.model_validate(ANSWER)
    completion = completion_of(ANSWER, clock=lambda: 12.5)
    ChatCompletion.model_validate(completion)
    (choice,) = completion["choices"]
    assert (completion["id"], completion["model"], completion["created"]) == ("msg_1", "claude-x", 12)
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"] == {
        "role": "assistant",
        "content": "Let me look.",
        "refusal": None,
        "reasoning_content": "hm",
        "tool_calls": [call("toolu_1", "look", '{"at": [1]}')],
    }
    assert completion["usage"] == {
        "prompt_tokens": 15,
        "completion_tokens": 5,
        "total_tokens": 20,
        "prompt_tokens_details": {"cached_tokens": 3, "cache_write_tokens": 2},
    }


@pytest.mark.parametrize(
    ("reason", "finish"),
    [
        ("end_turn", "stop"),
        ("stop_sequence", "stop"),
        ("max_tokens", "length"),
        ("refusal", "content_filter"),
        ("pause_turn", "stop"),
        ("model_context_window_exceeded", "length"),
    ],
)
def test_stop_reasons(reason: str, finish: str) -> None:
    assert completion_of(ANSWER | {"stop_reason": reason})["choices"][0]["finish_reason"] == finish


def test_tools_alone_leave_the_content_null() -> None:
    message = completion_of(ANSWER | {"content": ANSWER["content"][-1:]})["choices"][0]["message"]
    assert message["content"] is None


def event(name: str, **fields: Any) -> bytes:
    return f"event: {name}\ndata: {json.dumps({'type': name, **fields})}\n\n".encode()


def block(index: int, start: JSON, *deltas: JSON) -> list[bytes]:
    return [
        event("content_block_start", index=index, content_block=start),
        *(event("content_block_delta", index=index, delta=delta) for delta in deltas),
        event("content_block_stop", index=index),
    ]


START = event("message_start", message=ANSWER | {"content": [], "usage": {"input_tokens": 10, "output_tokens": 1}})
BLOCKS = [
    *block(0, {"type": "thinking", "thinking": ""}, {"type": "thinking_delta", "thinking": "hm"}),
    event("ping"),
    *block(1, text(""), {"type": "text_delta", "text": "Let me "}, {"type": "text_delta", "text": "look."}),
    *block(
        2,
        {"type": "tool_use", "id": "toolu_1", "name": "look", "input": {}},
        {"type": "input_json_delta", "partial_json": ""},
        {"type": "input_json_delta", "partial_json": '{"at": '},
        {"type": "input_json_delta", "partial_json": "[1]}"},
    ),
    *block(3, {"type": "tool_use", "id": "toolu_2", "name": "bare", "input": {}}),
    event("something_of_tomorrow"),
]
END = [event("message_delta", delta={"stop_reason": "tool_use"}, usage={"output_tokens": 5}), event("message_stop")]
ERROR = event("error", error={"type": "overloaded_error", "message": "Overloaded"})


def merged(chunks: list[JSON]) -> JSON:
    """What a client puts together."""
    message: JSON = {"content": "", "reasoning_content": "", "tool_calls": []}
    for chunk in chunks:
        ChatCompletionChunk.model_validate(chunk)
        for choice in chunk["choices"]:
            delta = choice["delta"]
            message["content"] += delta.get("content") or ""
            message["reasoning_content"] += delta.get("reasoning_content") or ""
            for piece in delta.get("tool_calls", []):
                if "id" in piece:
                    message["tool_calls"].append([piece["id"], piece["function"]["name"], ""])
                message["tool_calls"][piece["index"]][2] += piece["function"]["arguments"]
    return message


@pytest.mark.parametrize("end", [END, END[:1]])  # the last event says nothing new
def test_a_stream_comes_back(end: list[bytes]) -> None:
    async def test() -> None:
        async with asking(streaming(START, *BLOCKS, *end), "anthropic") as (provider, server):
            chunks = await collected(provider, REQUEST | {"stream_options": {"include_usage": True}})
            assert server.asked[0].body["stream"] is True
            assert merged(chunks) == {
                "content": "Let me look.",
                "reasoning_content": "hm",
                "tool_calls": [["toolu_1", "look", '{"at": [1]}'], ["toolu_2", "bare", "{}"]],
            }
            assert chunks[0]["choices"][0]["delta"]["role"] == "assistant"
            assert chunks[-2]["choices"][0]["finish_reason"] == "tool_calls"
            assert chunks[-1]["usage"]["total_tokens"] == 15
            assert {chunk["model"] for chunk in chunks} == {"claude-x"}
            assert all("usage" not in chunk for chunk in await collected(provider, REQUEST))

    run(test())


@pytest.mark.parametrize(
    ("pieces", "fault"),
    [
        ([ERROR], Fault.SERVER),
        ([START, *BLOCKS, ERROR], Fault.SERVER),
        ([START, *BLOCKS], Fault.MALFORMED),
        ([START, *BLOCKS, "cut"], Fault.CONNECTION),
        ([START, *BLOCKS, "hang"], Fault.TIMEOUT),
        ([START, b"data: {\n\n"], Fault.MALFORMED),
        ([b'data: {"type": "content_block_delta", "delta": 7}\n\n'], Fault.MALFORMED),
        ([], Fault.MALFORMED),
    ],
)
def test_a_stream_that_goes_wrong_is_a_fault(pieces: list[Any], fault: Fault) -> None:
    timeouts = QUICK if fault is Fault.TIMEOUT else PATIENT
    assert failure(streaming(*pieces), "anthropic", stream=True, timeouts=timeouts).fault is fault


@pytest.mark.parametrize("path", ["", "/v1", "/v1/"])
def test_it_is_asked_where_its_account_says(path: str) -> None:
    async def test() -> None:
        async with asking(answering(ANSWER), "anthropic", path=path, options={"max_tokens": 7}) as (provider, server):
            assert (await provider.chat(REQUEST, PATIENT))["model"] == "claude-x"
            (asked,) = server.asked
            assert asked.path == "/v1/messages"
            assert asked.headers["x-api-key"] == KEY
            assert asked.headers["anthropic-version"]
            assert "Authorization" not in asked.headers
            assert asked.body["max_tokens"] == 7

    run(test())


def test_fields_can_be_left_out() -> None:
    async def test() -> None:
        async with asking(answering(ANSWER), "anthropic", options={"omit": ["temperature"]}) as (provider, server):
            await provider.chat(REQUEST | {"temperature": 0.5}, PATIENT)
            assert "temperature" not in server.asked[0].body

    run(test())


def test_an_answer_to_a_stream_may_be_whole() -> None:
    async def test() -> None:
        async with asking(answering(ANSWER), "anthropic") as (provider, _):
            (chunk,) = await collected(provider, REQUEST)
            assert chunk["choices"][0]["delta"]["content"] == "Let me look."

    run(test())


@pytest.mark.parametrize(
    ("body", "fault"),
    [
        ({"content": "text"}, Fault.MALFORMED),
        ({"content": [3]}, Fault.MALFORMED),
        ({"type": "error", "error": {"type": "overloaded_error", "message": "x"}}, Fault.SERVER),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_that_is_none_is_a_fault(stream: bool, body: JSON, fault: Fault) -> None:
    assert failure(answering(body), "anthropic", stream=stream).fault is fault


def test_thinking_does_not_begin_in_the_middle_of_calling_tools() -> None:
    thinking = {"type": "enabled", "budget_tokens": 2048}
    called = {"role": "assistant", "content": None, "tool_calls": [call("c", "look", "{}")]}
    result = {"role": "tool", "tool_call_id": "c", "content": "seen"}
    assert "thinking" not in translated(thinking=thinking, messages=[user("a"), called, result])
    assert translated(thinking=thinking, messages=[user("a"), {"role": "assistant", "content": "b"}, user("c")])[
        "thinking"
    ]
    adaptive = {"type": "adaptive"}
    assert translated(thinking=adaptive, messages=[user("a"), called, result])["thinking"] == adaptive


def test_marks_of_the_cache_are_kept_and_other_extras_of_a_text_are_not() -> None:
    mark = {"type": "ephemeral"}
    body = translated(messages=[user([text("a") | {"cache_control": mark, "annotations": []}])])
    assert body["messages"][0]["content"] == [text("a") | {"cache_control": mark}]


def test_the_official_client_reads_the_same_stream_in_the_same_way() -> None:
    handler = streaming(START, *BLOCKS, *END)

    async def test() -> None:
        async with asking(handler, "anthropic") as (provider, server):
            client = AsyncAnthropic(base_url=server.url, api_key=KEY, max_retries=0)
            asked: Any = {"model": "claude", "max_tokens": 9, "messages": [user("hi")]}
            async with client.messages.stream(**asked) as stream:
                official = await stream.get_final_message()
            await client.close()
            read = completion_of(official.model_dump())["choices"][0]["message"]
            ours = merged(await collected(provider, REQUEST))
            assert (ours["content"], ours["reasoning_content"]) == (read["content"], read["reasoning_content"])
            assert ours["tool_calls"] == [
                [one["id"], one["function"]["name"], one["function"]["arguments"]] for one in read["tool_calls"]
            ]

    run(test())
