"""Gemini's protocol both ways."""

from __future__ import annotations

import json
from typing import Any

import pytest
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from route.providers.base import JSON, Fault, ProviderError
from route.providers.gemini import completion_of, generate_request
from tests.route.providers.servers import (
    KEY,
    PATIENT,
    QUICK,
    REQUEST,
    answering,
    asking,
    collected,
    failure,
    refusing,
    run,
    streaming,
)

TOOL = {"type": "function", "function": {"name": "look", "description": "d", "parameters": {"type": "object"}}}
UNSIGNED = "skip_thought_signature_validator"


def translated(**fields: Any) -> JSON:
    return generate_request({"model": "gemini-2.5-pro", "messages": [user("hi")]} | fields)


def user(content: Any) -> JSON:
    return {"role": "user", "content": content}


def text(words: str) -> JSON:
    return {"type": "text", "text": words}


def call(identifier: str, arguments: str, **more: Any) -> JSON:
    return {"id": identifier, "type": "function", "function": {"name": "look", "arguments": arguments}, **more}


def test_a_plain_request() -> None:
    assert translated() == {"contents": [{"role": "user", "parts": [{"text": "hi"}]}]}


def test_roles_get_their_names_and_neighbours_are_joined() -> None:
    messages = [
        {"role": "system", "content": "be kind"},
        user("a"),
        user([text("b")]),
        {"role": "assistant", "content": "c"},
        {"role": "developer", "content": "and short"},
        user("d"),
    ]
    body = translated(messages=messages)
    assert body["systemInstruction"] == {"parts": [{"text": "be kind\n\nand short"}]}
    assert body["contents"] == [
        {"role": "user", "parts": [{"text": "a"}, {"text": "b"}]},
        {"role": "model", "parts": [{"text": "c"}]},
        {"role": "user", "parts": [{"text": "d"}]},
    ]


def test_tools_and_their_results_go_out() -> None:
    calls = [call("1", '{"at": 1}'), call("2", "no json")]
    messages = [
        user("look"),
        {"role": "assistant", "content": None, "tool_calls": calls},
        {"role": "tool", "tool_call_id": "1", "content": '{"seen": true}'},
        {"role": "tool", "tool_call_id": "2", "content": [text("nothing")]},
    ]
    body = translated(messages=messages, tools=[TOOL, {"googleSearch": {}}], tool_choice="required")
    assert body["tools"] == [
        {"functionDeclarations": [{"name": "look", "description": "d", "parametersJsonSchema": {"type": "object"}}]},
        {"googleSearch": {}},
    ]
    assert body["toolConfig"] == {"functionCallingConfig": {"mode": "ANY"}}
    assert body["contents"][1]["parts"] == [
        {"functionCall": {"name": "look", "args": {"at": 1}}},
        {"functionCall": {"name": "look", "args": {"arguments": "no json"}}},
    ]
    assert body["contents"][2]["parts"] == [
        {"functionResponse": {"name": "look", "response": {"seen": True}}},
        {"functionResponse": {"name": "look", "response": {"result": "nothing"}}},
    ]


def test_a_signature_comes_back_with_its_call() -> None:
    signed = call("1", "{}", extra_content={"google": {"thought_signature": "S"}})

    def signatures(model: str, *calls: JSON) -> list[str | None]:
        body = translated(model=model, messages=[user("a"), {"role": "assistant", "tool_calls": list(calls)}])
        return [part.get("thoughtSignature") for part in body["contents"][1]["parts"]]

    assert signatures("gemini-3-pro", signed, call("2", "{}")) == ["S", None]
    assert signatures("gemini-3-pro", call("1", "{}"), call("2", "{}")) == [UNSIGNED, None]
    assert signatures("gemini-2.5-pro", call("1", "{}")) == [None]


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        ("auto", {"mode": "AUTO"}),
        ("none", {"mode": "NONE"}),
        ({"type": "function", "function": {"name": "look"}}, {"mode": "ANY", "allowedFunctionNames": ["look"]}),
    ],
)
def test_a_choice_of_tools(choice: Any, expected: JSON) -> None:
    assert translated(tools=[TOOL], tool_choice=choice)["toolConfig"] == {"functionCallingConfig": expected}
    assert "toolConfig" not in translated(tool_choice=choice)


def test_images_and_sound_go_inline() -> None:
    parts = [
        {"type": "image_url", "image_url": {"url": "data:image/jpeg;base64,AAAA"}},
        {"type": "image_url", "image_url": "gs://bucket/i.png"},
        {"type": "input_audio", "input_audio": {"format": "wav", "data": "BBBB"}},
        {"type": "file", "file": {"file_data": "data:application/pdf;base64,CCCC"}},
        {"type": "refusal", "refusal": "no"},
    ]
    assert translated(messages=[user(parts)])["contents"][0]["parts"] == [
        {"inlineData": {"mimeType": "image/jpeg", "data": "AAAA"}},
        {"fileData": {"fileUri": "gs://bucket/i.png"}},
        {"inlineData": {"mimeType": "audio/wav", "data": "BBBB"}},
        {"inlineData": {"mimeType": "application/pdf", "data": "CCCC"}},
        {"text": "no"},
    ]


def test_settings_get_their_names() -> None:
    schema = {"type": "object"}
    body = translated(
        temperature=0,
        top_p=0.5,
        top_k=4,
        max_tokens=9,
        seed=3,
        stop="x",
        frequency_penalty=None,
        response_format={"type": "json_schema", "json_schema": {"schema": schema}},
        generationConfig={"thinkingConfig": {"thinkingBudget": 0}},
        store=True,
        stream=True,
        safetySettings=[],
    )
    assert set(body) == {"contents", "generationConfig", "safetySettings"}
    assert body["generationConfig"] == {
        "temperature": 0,
        "topP": 0.5,
        "topK": 4,
        "maxOutputTokens": 9,
        "seed": 3,
        "stopSequences": ["x"],
        "responseMimeType": "application/json",
        "responseJsonSchema": schema,
        "thinkingConfig": {"thinkingBudget": 0},
    }


@pytest.mark.parametrize(
    "fields",
    [
        {"n": 2},
        {"logprobs": True},
        {"messages": [user([{"type": "image_url", "image_url": {"url": "https://host/i.png"}}])]},
        {"messages": [user([{"type": "hologram"}])]},
        {"messages": [{"role": "function", "content": "x"}]},
        {"tools": [TOOL], "tool_choice": {"type": "allowed_tools"}},
    ],
)
def test_what_it_cannot_say_goes_to_another_model(fields: JSON) -> None:
    with pytest.raises(ProviderError) as caught:
        translated(**fields)
    assert caught.value.fault is Fault.UNSUPPORTED


def test_a_request_of_another_form_is_the_clients_fault() -> None:
    error = failure(answering(ANSWER), "gemini", stream=True, request=REQUEST | {"messages": ["hi"]})
    assert error.fault is Fault.REQUEST


def piece(*parts: JSON, finish: str | None = None, **more: Any) -> JSON:
    candidate: JSON = {"content": {"role": "model", "parts": list(parts)}, "index": 0}
    return {
        "candidates": [candidate | ({"finishReason": finish} if finish else {})],
        "modelVersion": "gemini-x",
        "responseId": "r1",
        **more,
    }


LOOK = {"functionCall": {"name": "look", "args": {"at": 1}}, "thoughtSignature": "S"}
COUNTS = {"promptTokenCount": 10, "candidatesTokenCount": 4, "thoughtsTokenCount": 6, "cachedContentTokenCount": 3}
USAGE = {
    "prompt_tokens": 10,
    "completion_tokens": 10,
    "total_tokens": 20,
    "prompt_tokens_details": {"cached_tokens": 3},
    "completion_tokens_details": {"reasoning_tokens": 6},
}
ANSWER = piece({"text": "hm", "thought": True}, {"text": "Let me "}, {"text": "look."}, finish="STOP")
ANSWER["usageMetadata"] = COUNTS


def test_an_answer_comes_back() -> None:
    completion = completion_of(ANSWER)
    ChatCompletion.model_validate(completion)
    (choice,) = completion["choices"]
    assert (completion["id"], completion["model"]) == ("r1", "gemini-x")
    assert choice["finish_reason"] == "stop"
    assert choice["message"]["content"] == "Let me look."
    assert choice["message"]["reasoning_content"] == "hm"
    assert completion["usage"] == USAGE


def test_calls_come_back() -> None:
    (choice,) = completion_of(piece(LOOK, LOOK, finish="STOP"))["choices"]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] is None
    first, second = choice["message"]["tool_calls"]
    assert first["id"] != second["id"]
    assert first["function"] == {"name": "look", "arguments": '{"at": 1}'}
    assert first["extra_content"] == {"google": {"thought_signature": "S"}}


@pytest.mark.parametrize(
    ("reason", "finish"),
    [
        ("STOP", "stop"),
        ("MAX_TOKENS", "length"),
        ("SAFETY", "content_filter"),
        ("RECITATION", "content_filter"),
        ("PROHIBITED_CONTENT", "content_filter"),
        ("OTHER", "stop"),
    ],
)
def test_finish_reasons(reason: str, finish: str) -> None:
    answer = {"candidates": [{"finishReason": reason}]}
    choice = completion_of(answer)["choices"][0]
    assert choice["finish_reason"] == finish
    assert choice["message"]["content"] == ""


def events(*pieces: object) -> list[bytes]:
    return [b"data: " + json.dumps(piece).encode() + b"\r\n\r\n" for piece in pieces]


STREAM = [
    piece({"text": "hm", "thought": True}, usageMetadata={"promptTokenCount": 10}),
    piece({"text": "Let me "}),
    piece({"text": "look."}, LOOK),
    piece({"text": ""}, finish="STOP", usageMetadata=COUNTS),
]


def test_a_stream_comes_back() -> None:
    async def test() -> None:
        async with asking(streaming(*events(*STREAM)), "gemini", path="/v1beta") as (provider, server):
            chunks = await collected(provider, REQUEST | {"stream_options": {"include_usage": True}})
            for chunk in chunks:
                ChatCompletionChunk.model_validate(chunk)
            deltas = [choice["delta"] for chunk in chunks for choice in chunk["choices"]]
            assert deltas[0] == {"role": "assistant", "content": ""}
            assert "".join(delta.get("content", "") for delta in deltas) == "Let me look."
            assert "".join(delta.get("reasoning_content", "") for delta in deltas) == "hm"
            ((called,),) = [delta["tool_calls"] for delta in deltas if "tool_calls" in delta]
            assert (called["index"], called["function"]["arguments"]) == (0, '{"at": 1}')
            assert chunks[-2]["choices"][0]["finish_reason"] == "tool_calls"
            assert chunks[-1]["usage"] == USAGE
            assert {(chunk["id"], chunk["model"]) for chunk in chunks} == {("r1", "gemini-x")}
            (asked,) = server.asked
            assert asked.path == "/v1beta/models/m-1:streamGenerateContent?alt=sse"
            assert asked.headers["x-goog-api-key"] == KEY
            assert "model" not in asked.body

    run(test())


def test_a_whole_answer_is_asked_for_by_its_method() -> None:
    async def test() -> None:
        async with asking(answering(ANSWER), "gemini", options={"omit": ["seed"]}) as (provider, server):
            await provider.chat(REQUEST | {"model": "models/g", "seed": 1}, PATIENT)
            assert server.asked[0].path == "/models/g:generateContent"
            assert "generationConfig" not in server.asked[0].body

    run(test())


BLOCKED = {"promptFeedback": {"blockReason": "PROHIBITED_CONTENT"}}


@pytest.mark.parametrize(
    ("body", "fault"),
    [
        (BLOCKED, Fault.CONTENT_FILTER),
        ({"candidates": []}, Fault.MALFORMED),
        ({"candidates": [3]}, Fault.MALFORMED),
        (piece(finish="MALFORMED_FUNCTION_CALL"), Fault.MALFORMED),
        ({"error": {"code": 503, "message": "overloaded", "status": "UNAVAILABLE"}}, Fault.SERVER),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_that_is_none_is_a_fault(stream: bool, body: JSON, fault: Fault) -> None:
    handler = streaming(*events(body)) if stream else answering(body)
    assert failure(handler, "gemini", stream=stream).fault is fault


@pytest.mark.parametrize(
    ("pieces", "fault"),
    [
        ([*events(*STREAM[:3])], Fault.MALFORMED),
        ([*events(*STREAM[:3]), "cut"], Fault.CONNECTION),
        ([*events(*STREAM[:3]), "hang"], Fault.TIMEOUT),
        ([*events(*STREAM[:3]), b"data: [\n\n"], Fault.MALFORMED),
        ([*events(STREAM[0], {"error": {"code": 429, "status": "RESOURCE_EXHAUSTED"}})], Fault.RATE_LIMIT),
        ([], Fault.MALFORMED),
    ],
)
def test_a_stream_that_goes_wrong_is_a_fault(pieces: list[Any], fault: Fault) -> None:
    timeouts = QUICK if fault is Fault.TIMEOUT else PATIENT
    assert failure(streaming(*pieces), "gemini", stream=True, timeouts=timeouts).fault is fault


def test_a_wrong_key_is_the_routers_fault() -> None:
    error = failure(refusing(400, "API key not valid. Please pass a valid API key."), "gemini", stream=False)
    assert error.fault is Fault.CREDENTIALS


def test_images_and_files_of_a_tool_follow_its_result_as_the_user_s() -> None:
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgoA"}}
    messages = [
        user("look"),
        {"role": "assistant", "content": None, "tool_calls": [call("c1", "{}")]},
        {"role": "tool", "tool_call_id": "c1", "content": [text("a heron"), image]},
    ]
    [*_, results] = translated(messages=messages)["contents"]
    assert results == {
        "role": "user",
        "parts": [
            {"functionResponse": {"name": "look", "response": {"result": "a heron"}}},
            {"inlineData": {"mimeType": "image/png", "data": "iVBORw0KGgoA"}},
        ],
    }
