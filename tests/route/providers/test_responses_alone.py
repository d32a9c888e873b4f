"""Models that have the Responses API alone: what they receive of chat completions, what is told of their answers."""

from __future__ import annotations

import json
from typing import Any

import pytest

from route.providers.base import DROPPED_FIELDS, JSON, ProviderError
from route.providers.responses import ResponsesStream, completion_of, request_of
from tests.route.providers.servers import PATIENT, answering, asking, collected, run, streaming

HI: JSON = {"role": "user", "content": "hi"}


def sent(**fields: Any) -> tuple[JSON, list[str]]:
    """The request for the model, and the names of what it does not get."""
    dropped: list[str] = []
    token = DROPPED_FIELDS.set(dropped)
    try:
        return request_of({"model": "m-1", "messages": [HI], **fields}), dropped
    finally:
        DROPPED_FIELDS.reset(token)


def message(role: str, *parts: JSON) -> JSON:
    return {"type": "message", "role": role, "content": list(parts)}


def text(words: str) -> JSON:
    return {"type": "input_text", "text": words}


def test_a_conversation_becomes_items() -> None:
    image = {"type": "image_url", "image_url": {"url": "https://x.example/i.png", "detail": "low"}}
    file = {"type": "file", "file": {"filename": "a.pdf", "file_data": "data:application/pdf;base64,aGk="}}
    call = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"a": 1}'}}
    body, dropped = sent(
        messages=[
            {"role": "system", "content": "be kind"},
            {"role": "user", "content": [{"type": "text", "text": "see"}, image, file]},
            {"role": "assistant", "content": "well", "tool_calls": [call], "reasoning_content": "hm"},
            {"role": "tool", "tool_call_id": "c1", "content": "found"},
            {"role": "assistant", "content": [{"type": "text", "text": "so"}]},
        ]
    )
    assert body["input"] == [
        message("system", text("be kind")),
        message(
            "user",
            text("see"),
            {"type": "input_image", "image_url": "https://x.example/i.png", "detail": "low"},
            {"type": "input_file", **file["file"]},
        ),
        message("assistant", {"type": "output_text", "text": "well"}),
        {"type": "function_call", "call_id": "c1", "name": "look", "arguments": '{"a": 1}'},
        {"type": "function_call_output", "call_id": "c1", "output": "found"},
        message("assistant", {"type": "output_text", "text": "so"}),
    ]
    assert body["store"] is False
    assert dropped == ["messages.reasoning_content"]


def test_settings_have_their_places() -> None:
    schema = {"name": "x", "schema": {"type": "object"}, "strict": True}
    body, dropped = sent(
        max_completion_tokens=50,
        reasoning_effort="low",
        verbosity="low",
        response_format={"type": "json_schema", "json_schema": schema},
        tools=[{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}],
        tool_choice={"type": "function", "function": {"name": "look"}},
        logprobs=True,
        top_logprobs=2,
        seed=7,
        service_tier="flex",
        stream_options={"include_usage": True},
    )
    body.pop("input")
    assert body == {
        "model": "m-1",
        "store": False,
        "max_output_tokens": 50,
        "reasoning": {"effort": "low"},
        "text": {"verbosity": "low", "format": {"type": "json_schema", **schema}},
        "tools": [{"type": "function", "name": "look", "parameters": {"type": "object"}, "strict": False}],
        "tool_choice": {"type": "function", "name": "look"},
        "include": ["message.output_text.logprobs"],
        "top_logprobs": 2,
        "service_tier": "flex",
    }
    assert dropped == ["seed"]


@pytest.mark.parametrize(
    "fields",
    [
        {"stop": ["."]},
        {"n": 2},
        {"messages": [{"role": "user", "content": [{"type": "input_audio", "input_audio": {}}]}]},
    ],
)
def test_what_it_cannot_say_goes_to_another_model(fields: JSON) -> None:
    with pytest.raises(ProviderError, match="responses cannot take"):
        sent(**fields)


RESPONSE: JSON = {
    "id": "resp_1",
    "model": "m-1",
    "status": "completed",
    "service_tier": "flex",
    "output": [
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]},
        message("assistant", {"type": "output_text", "text": "well", "logprobs": [{"token": "well", "logprob": -0.1}]}),
        {"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{}"},
        {"type": "custom_tool_call", "call_id": "c2", "name": "run", "input": "ls"},
    ],
    "usage": {"input_tokens": 9, "output_tokens": 4, "output_tokens_details": {"reasoning_tokens": 2}},
}
CALLS = [
    {"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}},
    {"id": "c2", "type": "custom", "custom": {"name": "run", "input": "ls"}},
]


def test_a_response_is_a_completion() -> None:
    completion = completion_of(RESPONSE)
    [choice] = completion["choices"]
    assert (choice["message"]["content"], choice["message"]["reasoning_content"]) == ("well", "hm")
    assert (choice["message"]["tool_calls"], choice["finish_reason"]) == (CALLS, "tool_calls")
    assert choice["logprobs"]["content"][0]["token"] == "well"
    assert (completion["usage"]["prompt_tokens"], completion["service_tier"]) == (9, "flex")


def test_custom_calls_are_streamed() -> None:
    stream = ResponsesStream(with_usage=False)
    stream.take(
        {"type": "response.output_item.added", "item": {"type": "function_call", "call_id": "c1", "name": "look"}}
    )
    [begun] = stream.take({"type": "response.output_item.added", "item": {**RESPONSE["output"][3], "input": ""}})
    [piece] = stream.take({"type": "response.custom_tool_call_input.delta", "delta": "ls"})
    call = {"index": 1, "id": "c2", "type": "custom", "custom": {"name": "run", "input": ""}}
    assert begun["choices"][0]["delta"] == {"tool_calls": [call]}
    assert piece["choices"][0]["delta"] == {"tool_calls": [{"index": 1, "custom": {"input": "ls"}}]}


def test_pieces_of_calls_may_come_in_turns() -> None:
    stream = ResponsesStream(with_usage=False)
    for place in (1, 2):
        item = {"type": "function_call", "call_id": f"c{place}", "name": "look"}
        stream.take({"type": "response.output_item.added", "output_index": place, "item": item})
    kind = "response.function_call_arguments.delta"
    pieces = [
        stream.take({"type": kind, "output_index": place, "delta": text})[0]["choices"][0]["delta"]["tool_calls"][0]
        for place, text in ((1, '{"a"'), (2, "{}"), (1, ": 1}"))
    ]
    assert [(piece["index"], piece["function"]["arguments"]) for piece in pieces] == [
        *((0, '{"a"'), (1, "{}"), (0, ": 1}"))
    ]


def test_it_is_asked_for_responses() -> None:
    async def main() -> None:
        async with asking(answering(RESPONSE), "openai-responses") as (provider, server):
            completion = await provider.chat({"model": "m-1", "messages": [HI]}, PATIENT)
            assert completion["choices"][0]["message"]["content"] == "well"
            assert "native" not in completion
            [asked] = server.asked
            assert asked.path.endswith("/responses")
            assert "stream" not in asked.body

    run(main())


def test_its_streams_are_chunks() -> None:
    events = [
        {"type": "response.created", "response": {"id": "resp_1", "model": "m-1"}},
        {"type": "keepalive", "sequence_number": 1},
        {"type": "response.output_text.delta", "delta": "well"},
        {"type": "of.next.year", "delta": {}},
        {"type": "response.completed", "response": RESPONSE},
    ]
    lines = [f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode() for event in events]

    async def main() -> None:
        async with asking(streaming(*lines), "openai-responses") as (provider, server):
            request = {"model": "m-1", "messages": [HI], "stream_options": {"include_usage": True}}
            chunks = await collected(provider, request)
            assert "".join(c["choices"][0]["delta"].get("content") or "" for c in chunks if c["choices"]) == "well"
            assert chunks[-1]["usage"]["completion_tokens"] == 4
            assert chunks[-1]["service_tier"] == "flex"
            assert not any("native" in chunk for chunk in chunks)
            assert server.asked[0].body["stream"] is True

    run(main())
