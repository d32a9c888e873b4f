"""What providers publish of their rules is kept before a request is sent: schemas, blank text, tools, media types."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from route.providers.anthropic import messages_request, native_body
from route.providers.base import DROPPED_FIELDS, JSON, NativeRequest, ProviderError
from route.providers.bedrock import converse_request
from route.providers.cohere import chat_request
from route.providers.cousins import ChunkReader, completion
from route.providers.errors import refusal
from route.providers.gemini import generate_request
from route.providers.responses import request_of
from route.providers.schemas import for_anthropic

HI = {"role": "user", "content": "hi"}
CALL = {"id": "a", "type": "function", "function": {"name": "look", "arguments": "{}"}}
ROUND = [HI, {"role": "assistant", "content": "\n\n", "tool_calls": [CALL]}]
ROUND += [{"role": "tool", "tool_call_id": "a", "content": " "}, {"role": "user", "content": "so?"}]
MARK = {"type": "ephemeral"}


def sent(**fields: Any) -> tuple[JSON, list[str]]:
    """What Anthropic gets, and the names of what it does not."""
    dropped: list[str] = []
    token = DROPPED_FIELDS.set(dropped)
    try:
        return messages_request({"messages": [HI], **fields}, max_tokens=4096), dropped
    finally:
        DROPPED_FIELDS.reset(token)


def test_schemas_are_closed_and_keywords_become_words() -> None:
    item = {"type": "object", "properties": {"n": {"type": "integer", "minimum": 1, "description": "A number."}}}
    schema = {"type": "object", "properties": {"items": {"type": "array", "items": item, "maxItems": 3}}}
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    body, dropped = sent(response_format=form)
    adapted = body["output_config"]["format"]["schema"]
    assert adapted["additionalProperties"] is False
    items = adapted["properties"]["items"]
    assert items["description"] == '{"maxItems": 3}'
    assert items["items"]["additionalProperties"] is False
    assert items["items"]["properties"]["n"] == {"type": "integer", "description": 'A number.\n\n{"minimum": 1}'}
    assert sorted(dropped) == ["response_format.maxItems", "response_format.minimum"]


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        ({"type": ["string", "null"]}, {"anyOf": [{"type": "string"}, {"type": "null"}]}),
        ({"oneOf": [{"type": "string"}]}, {"anyOf": [{"type": "string"}]}),
        ({"enum": ["a"]}, {"enum": ["a"]}),
        ({"type": "string", "format": "email"}, {"type": "string", "format": "email"}),
        (
            {"$ref": "#/definitions/A", "definitions": {"A": {"properties": {}}}},
            {
                "$ref": "#/$defs/A",
                "$defs": {"A": {"type": "object", "properties": {}, "additionalProperties": False}},
            },
        ),
    ],
)
def test_schemas_of_every_form(schema: JSON, expected: JSON) -> None:
    assert for_anthropic(schema, lambda _: None) == expected
    assert for_anthropic(expected, lambda _: None) == expected


def test_a_schema_of_anything_goes_to_another_model() -> None:
    with pytest.raises(ProviderError, match="schema"):
        sent(response_format={"type": "json_schema", "json_schema": {"schema": {"type": "array", "items": {}}}})


def test_blank_text_is_left_out() -> None:
    body, _ = sent(messages=ROUND)
    assert [block["type"] for turn in body["messages"] for block in turn["content"]] == [
        *("text", "tool_use", "tool_result", "text")
    ]
    assert body["tools"] == [{"name": "look", "input_schema": {"type": "object"}}]
    assert body["tool_choice"] == {"type": "none"}
    with pytest.raises(ProviderError, match="no text"):
        sent(messages=[{"role": "user", "content": " "}])
    turns = [{"role": "assistant", "content": [{"type": "text", "text": "\n"}]}, HI]
    native = NativeRequest("messages", {"messages": [HI, *turns], "max_tokens": 9})
    assert native_body(native, max_tokens=1)["messages"] == [HI, HI]


def test_converse_is_told_of_the_tools_of_a_conversation() -> None:
    spec = {"toolSpec": {"name": "look", "inputSchema": {"json": {"type": "object"}}}}
    body = converse_request({"messages": ROUND})
    assert body["toolConfig"] == {"tools": [spec]}
    assert body["messages"][2]["content"][0]["toolResult"]["content"] == [{"text": "(no output)"}]
    tools = [{"type": "function", "function": {"name": "look"}}]
    assert converse_request({"messages": ROUND, "tools": tools, "tool_choice": "none"})["toolConfig"]["tools"] == [spec]
    assert "toolConfig" not in converse_request({"messages": [HI], "tools": tools, "tool_choice": "none"})


@pytest.mark.parametrize(
    ("named", "content", "kind"),
    [
        ("image/jpg", "aGk=", "jpeg"),
        ("image/pjpeg", "aGk=", "jpeg"),
        ("IMAGE/JPG;name=a.jpg", "aGk=", "jpeg"),
        ("image/png", "/9j/4AAQSkZJ", "jpeg"),
        ("image/jpeg", "iVBORw0KGgoAAAANSUhEUg==", "png"),
        ("application/octet-stream", "R0lGODlhAQAB", "gif"),
        ("image/x-png", "aGk=", "png"),
    ],
)
def test_images_have_the_names_of_their_types(named: str, content: str, kind: str) -> None:
    part = {"type": "image_url", "image_url": {"url": f"data:{named};base64,{content}"}}
    body, _ = sent(messages=[{"role": "user", "content": [part]}])
    assert body["messages"][0]["content"][0]["source"]["media_type"] == f"image/{kind}"
    [turn] = converse_request({"messages": [{"role": "user", "content": [part]}]})["messages"]
    assert turn["content"][0]["image"]["format"] == kind


def test_caching_marks_keep_their_places() -> None:
    system = {"role": "system", "content": [{"type": "text", "text": "long", "cache_control": MARK}]}
    tool = {"type": "function", "function": {"name": "look"}, "cache_control": MARK}
    body, dropped = sent(messages=[system, HI], tools=[tool])
    assert body["system"] == [{"type": "text", "text": "long", "cache_control": MARK}]
    assert body["tools"][0]["cache_control"] == MARK
    assert dropped == []


def test_a_mark_of_a_message_is_that_of_its_last_part() -> None:
    system = {"role": "system", "content": "long", "cache_control": MARK}
    body, dropped = sent(messages=[system, {**HI, "cache_control": MARK}])
    assert body["system"] == [{"type": "text", "text": "long", "cache_control": MARK}]
    assert body["messages"][0]["content"] == [{"type": "text", "text": "hi", "cache_control": MARK}]
    assert dropped == []


@pytest.mark.parametrize("translate", [generate_request, chat_request, request_of, converse_request])
@pytest.mark.parametrize("place", ["message", "part", "tool"])
def test_a_mark_that_a_protocol_has_no_place_for_is_named(translate: Callable[[JSON], JSON], place: str) -> None:
    marks: dict[str, JSON] = {key: {} for key in ("message", "part", "tool")} | {place: {"cache_control": MARK}}
    message = {"role": "user", "content": [{"type": "text", "text": "hi", **marks["part"]}], **marks["message"]}
    tool = {"type": "function", "function": {"name": "look"}, **marks["tool"]}
    dropped: list[str] = []
    token = DROPPED_FIELDS.set(dropped)
    try:
        body = translate({"model": "m", "messages": [message], "tools": [tool]})
    finally:
        DROPPED_FIELDS.reset(token)
    assert set(dropped) == {"cache_control"}
    assert "cache_control" not in str(body)


def test_results_of_tools_come_before_what_the_user_says() -> None:
    calls = [{**CALL, "id": "a"}, {**CALL, "id": "b"}]
    results = [{"role": "tool", "tool_call_id": name, "content": name} for name in ("b", "a")]
    messages = [HI, {"role": "assistant", "content": None, "tool_calls": calls}, results[0], HI, results[1]]
    body, _ = sent(messages=messages)
    last = body["messages"][-1]["content"]
    assert [block.get("tool_use_id") for block in last] == ["b", "a", None]
    last = converse_request({"messages": messages})["messages"][-1]["content"]
    assert ["toolResult" in block for block in last] == [True, True, False]


def test_a_tools_parameters_are_an_object_though_nobody_says_so() -> None:
    function = {"name": "look", "parameters": {"properties": {"at": {"type": "string"}}}}
    body, _ = sent(tools=[{"type": "function", "function": function}])
    assert body["tools"][0]["input_schema"] == {"type": "object", "properties": {"at": {"type": "string"}}}


@pytest.mark.parametrize("content", ["aGk/\naGk+", "aGk_aGk-", "aGk/ aGk+"])
def test_files_are_in_the_usual_alphabet_on_one_line(content: str) -> None:
    part = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{content}"}}
    body, _ = sent(messages=[{"role": "user", "content": [part]}])
    assert body["messages"][0]["content"][0]["source"]["data"] == "aGk/aGk+"


def test_what_thinking_does_not_go_with() -> None:
    thinking = {"type": "enabled", "budget_tokens": 8000}
    body, dropped = sent(thinking=thinking, temperature=0.2, top_k=4, top_p=0.99, max_tokens=4000)
    assert not {"temperature", "top_k"} & body.keys()
    assert body["top_p"] == 0.99
    assert body["thinking"]["budget_tokens"] == 3999
    assert dropped == ["top_k", "temperature", "thinking.budget_tokens"]
    tools = [{"type": "function", "function": {"name": "look"}}]
    body, dropped = sent(thinking=thinking, tools=tools, tool_choice="required")
    assert "thinking" not in body
    assert dropped == ["thinking"]


@pytest.mark.parametrize(
    "words",
    [
        "You have reached your specified API usage limits. You will regain access on 2026-12-01 at 00:00 UTC.",
        "Your account has run out of credits",
        "This organization has exceeded its budget",
        "Billing hard limit has been reached",
        "The account associated with this API key has been deactivated",
        "The billing account for the owning project is disabled in state absent",
        "API key expired. Please renew the API key.",
        "This API key has been revoked",
        "User location is not supported for the API use.",
        "Operation not allowed",
    ],
)
def test_a_spent_account_is_not_the_clients_fault(words: str) -> None:
    error = refusal("host", 400, {}, {"error": {"type": "invalid_request_error", "message": words}})
    assert error.fault.value == "credentials"


@pytest.mark.parametrize(
    "words",
    [
        "Your organization has disabled web search",
        "The account type is restricted to text",
        "messages.0: unknown block 'my billing account'",
    ],
)
def test_words_about_an_account_that_is_well_do_not_put_it_aside(words: str) -> None:
    error = refusal("host", 400, {}, {"error": {"type": "invalid_request_error", "message": words}})
    assert error.fault.value == "request"


def test_whole_answers_of_cousins() -> None:
    parts = [{"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}, {"type": "text", "text": "a"}]
    call = {"function": {"name": "look", "arguments": {"at": 1}}}
    choice = {"message": {"role": "assistant", "content": parts, "tool_calls": [call]}, "finish_reason": ""}
    [read] = completion({"choices": [choice]})["choices"]
    assert (read["message"]["content"], read["message"]["reasoning_content"]) == ("a", "hm")
    assert read["message"]["tool_calls"][0]["function"]["arguments"] == '{"at": 1}'
    assert read["message"]["tool_calls"][0]["id"]
    assert read["finish_reason"] == "tool_calls"


def piece(name: str | None, arguments: Any, **where: Any) -> JSON:
    function = {"arguments": arguments} | ({"name": name} if name else {})
    return {"choices": [{"index": 0, "delta": {"tool_calls": [{**where, "function": function}]}}]}


A, B = ("look", '{"at": 1}'), ("see", "{}")


@pytest.mark.parametrize(
    "pieces",
    [
        [piece("look", '{"at"', index=0, id="a"), piece("see", "{}", index=1, id="b"), piece(None, ": 1}", index=0)],
        [piece("look", '{"at": 1}', id="a"), piece("see", "{}", id="b")],  # no index
        [piece("look", {"at": 1}), piece("see", {})],  # Ollama: neither, and objects
        [piece("look", '{"at": 1}', index=0, id="a"), piece("see", "{}", index=0, id="b")],  # all of one index
        [piece("look", '{"at"', index=0, id="a"), piece(None, ": 1}", index=0, id="z"), piece("see", "{}", index=1)],
        [piece(None, '{"at"', index=0), piece("look", ": 1}", index=0, id="a"), piece("see", "{}", index=1)],
        [piece("look", "", index=0, id="a"), piece("look", '{"at": 1}', index=0, id="a"), piece("see", "{}", index=1)],
    ],
)
def test_pieces_of_calls_share_an_index(pieces: list[JSON]) -> None:
    reader, calls = ChunkReader(), dict[int, list[Any]]()
    for each in pieces:
        [choice] = reader.read(each)["choices"]
        for told in choice["delta"]["tool_calls"]:
            call = calls.setdefault(told["index"], [told.get("id"), "", ""])
            call[1] += told["function"].get("name", "")
            call[2] += told["function"]["arguments"]
    assert [(name, arguments) for _, name, arguments in calls.values()] == [A, B]
    assert all(identifier for identifier, _, _ in calls.values())
    [end] = reader.ending()[0]["choices"]
    assert end["finish_reason"] == "tool_calls"
