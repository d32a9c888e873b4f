"""Cohere's own protocol both ways."""

from __future__ import annotations

import json
from typing import Any

import pytest
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from route.providers.base import DROPPED_FIELDS, JSON, OWN_HISTORY, Fault, ProviderError
from route.providers.cohere import chat_request, completion_of
from tests.route.providers.servers import (
    KEY,
    PATIENT,
    REQUEST,
    answering,
    asking,
    collected,
    failure,
    run,
    streaming,
)

LOOK = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
WAIT = {"type": "function", "function": {"name": "wait"}}
CALL = {"id": "look_1", "type": "function", "function": {"name": "look", "arguments": '{"at": "sky"}'}}
USAGE = {"billed_units": {"input_tokens": 5, "output_tokens": 7}, "tokens": {"input_tokens": 90, "output_tokens": 9}}


def user(content: Any) -> JSON:
    return {"role": "user", "content": content}


def translated(**fields: Any) -> JSON:
    return chat_request({"model": "command-a-03-2025", "messages": [user("hi")], **fields})


def answer(message: JSON, finish: str = "COMPLETE", **more: Any) -> JSON:
    return {"id": "a-1", "message": {"role": "assistant", **message}, "finish_reason": finish, "usage": USAGE, **more}


def events(*told: JSON) -> list[bytes]:
    return [f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode() for event in told]


def delta(kind: str, message: JSON, **more: Any) -> JSON:
    return {"type": kind, "delta": {"message": message}, **more}


def ending(finish: str = "COMPLETE", **more: Any) -> JSON:
    return {"type": "message-end", "delta": {"finish_reason": finish, "usage": USAGE, **more}}


def test_sampling_has_cohere_s_names() -> None:
    asked = {"temperature": 0.5, "top_p": 0.9, "top_k": 5, "max_completion_tokens": 99, "stop": "end", "seed": 3}
    body = translated(**asked, frequency_penalty=0.1, presence_penalty=0.2, documents=["d"], user="u", store=True)
    assert body == {
        "model": "command-a-03-2025",
        "messages": [user("hi")],
        "temperature": 0.5,
        "p": 0.9,
        "k": 5,
        "max_tokens": 99,
        "stop_sequences": ["end"],
        "seed": 3,
        "frequency_penalty": 0.1,
        "presence_penalty": 0.2,
        "documents": ["d"],
    }


def test_a_conversation_with_tools_keeps_roles_calls_and_results() -> None:
    messages = [
        {"role": "developer", "content": "be kind"},
        user(
            [
                {"type": "text", "text": "what"},
                {"type": "image_url", "image_url": {"url": "data:image/jpg;base64,AA=="}},
            ]
        ),
        {"role": "assistant", "content": "\n\n", "tool_calls": [CALL], "reasoning_content": "another's thoughts"},
        {"role": "tool", "tool_call_id": "look_1", "content": [{"type": "text", "text": "a heron"}]},
        {"role": "tool", "tool_call_id": "look_2", "content": ""},
        {"role": "assistant", "content": " "},
        user(" "),
    ]
    assert translated(messages=messages)["messages"] == [
        {"role": "system", "content": "be kind"},
        user(
            [
                {"type": "text", "text": "what"},
                {"type": "image_url", "image_url": {"url": "data:image/jpeg;base64,AA=="}},
            ]
        ),
        {"role": "assistant", "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "look_1", "content": "a heron"},
        {"role": "tool", "tool_call_id": "look_2", "content": "(no output)"},
    ]


def test_images_of_tools_follow_all_their_results_as_the_user_s() -> None:
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgoA"}}
    messages = [
        {"role": "assistant", "content": None, "tool_calls": [CALL, {**CALL, "id": "look_2"}]},
        {"role": "tool", "tool_call_id": "look_1", "content": [image]},
        {"role": "tool", "tool_call_id": "look_2", "content": "a pond"},
    ]
    told = translated(messages=[*messages, user("and now?")])["messages"]
    assert [message["role"] for message in told] == ["assistant", "tool", "tool", "user", "user"]
    assert told[3]["content"] == [image]
    assert translated(messages=messages)["messages"][-1] == user([image])


def test_thoughts_go_back_to_the_model_that_had_them() -> None:
    messages = [
        user("hi"),
        {"role": "assistant", "content": None, "tool_calls": [CALL], "reasoning_content": "I look."},
        {"role": "assistant", "content": "done", "reasoning_content": "It is done."},
    ]
    token = OWN_HISTORY.set(True)
    try:
        told = translated(messages=messages)["messages"][1:]
    finally:
        OWN_HISTORY.reset(token)
    assert told == [
        {"role": "assistant", "tool_calls": [CALL], "tool_plan": "I look."},
        {
            "role": "assistant",
            "content": [{"type": "thinking", "thinking": "It is done."}, {"type": "text", "text": "done"}],
        },
    ]


@pytest.mark.parametrize(
    ("choice", "names", "sent"),
    [
        (None, ["look", "wait"], None),
        ("auto", ["look", "wait"], None),
        ("required", ["look", "wait"], "REQUIRED"),
        ("none", ["look", "wait"], "NONE"),
        ({"type": "function", "function": {"name": "wait"}}, ["wait"], "REQUIRED"),
    ],
)
def test_a_choice_of_tools(choice: Any, names: list[str], sent: str | None) -> None:
    body = translated(tools=[LOOK, WAIT], tool_choice=choice)
    assert [tool["function"]["name"] for tool in body["tools"]] == names
    assert all(tool["function"]["parameters"]["type"] == "object" for tool in body["tools"])
    assert body.get("tool_choice") == sent


def test_a_choice_of_a_tool_that_is_not_there_is_refused_by_its_name() -> None:
    with pytest.raises(ProviderError) as refused:
        translated(tools=[LOOK], tool_choice={"type": "function", "function": {"name": "leap"}})
    assert (refused.value.fault, refused.value.detail) == (Fault.REQUEST, "tool_choice: no tool is named 'leap'")


def test_that_calls_may_not_be_parallel_has_no_counterpart_which_is_told() -> None:
    for wish, told in ((True, []), (False, ["parallel_tool_calls"])):
        dropped: list[str] = []
        token = DROPPED_FIELDS.set(dropped)
        try:
            assert "parallel_tool_calls" not in translated(tools=[LOOK], parallel_tool_calls=wish)
        finally:
            DROPPED_FIELDS.reset(token)
        assert dropped == told


def test_schemas_and_efforts() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
    assert translated(response_format=form)["response_format"] == {"type": "json_object", "json_schema": schema}
    assert translated(response_format={"type": "json_object"})["response_format"] == {"type": "json_object"}
    thinker = "command-a-reasoning-08-2025"
    sent = [translated(model=thinker, reasoning_effort=level)["thinking"] for level in ("none", "low", "high")]
    assert sent[0] == {"type": "disabled"}
    assert sent[1]["token_budget"] < sent[2]["token_budget"]
    assert "thinking" not in translated(reasoning_effort="low")


def test_a_whole_answer_is_a_chat_completion() -> None:
    told = answer({"content": [{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "yes"}]})
    completion = completion_of(told)
    ChatCompletion.model_validate({**completion, "model": "m"})
    choice = completion["choices"][0]
    assert (choice["message"]["content"], choice["message"]["reasoning_content"]) == ("yes", "hm")
    assert (choice["finish_reason"], completion["id"], completion["usage"]["total_tokens"]) == ("stop", "a-1", 12)
    calling = completion_of(answer({"tool_plan": "I look.", "tool_calls": [CALL]}, "TOOL_CALL"))["choices"][0]
    assert calling["message"]["tool_calls"] == [CALL]
    assert (calling["finish_reason"], calling["message"]["reasoning_content"]) == ("tool_calls", "I look.")


@pytest.mark.parametrize(
    ("reason", "finish"), [("MAX_TOKENS", "length"), ("STOP_SEQUENCE", "stop"), ("NEW_ONE", "stop"), (None, "stop")]
)
def test_reasons_of_an_end(reason: Any, finish: str) -> None:
    assert completion_of(answer({"content": []}, reason))["choices"][0]["finish_reason"] == finish


def test_a_stream_is_told_piece_by_piece() -> None:
    told = events(
        {**delta("message-start", {"role": "assistant", "content": [], "tool_calls": []}), "id": "a-2"},
        delta("content-start", {"content": {"type": "thinking", "thinking": ""}}, index=0),
        delta("content-delta", {"content": {"thinking": "hm"}}, index=0),
        {"type": "content-end", "index": 0},
        delta("content-start", {"content": {"type": "text", "text": ""}}, index=1),
        delta("content-delta", {"content": {"text": "I "}}, index=1),
        delta("citation-start", {"citations": {"start": 0, "end": 1}}, index=0),
        delta("tool-plan-delta", {"tool_plan": " look"}),
        delta("tool-call-start", {"tool_calls": {**CALL, "function": {"name": "look", "arguments": ""}}}, index=0),
        delta("tool-call-delta", {"tool_calls": {"function": {"arguments": '{"at": '}}}, index=0),
        delta("tool-call-delta", {"tool_calls": {"function": {"arguments": '"sky"}'}}}, index=0),
        {"type": "tool-call-end", "index": 0},
        delta(
            "tool-call-start", {"tool_calls": {"id": "w", "type": "function", "function": {"name": "wait"}}}, index=1
        ),
        ending("TOOL_CALL"),
    )

    async def main() -> list[JSON]:
        async with asking(streaming(*told), "cohere") as (provider, server):
            got = await collected(provider, {**REQUEST, "stream_options": {"include_usage": True}})
            asked = server.asked[0]
            assert (asked.path, asked.headers["Authorization"]) == ("/v2/chat", f"Bearer {KEY}")
            assert asked.body == {**REQUEST, "stream": True}
            return got

    got = run(main())
    for chunk in got:
        ChatCompletionChunk.model_validate({**chunk, "model": "m"})
    deltas = [choice["delta"] for chunk in got for choice in chunk["choices"]]
    assert "".join(each.get("content") or "" for each in deltas) == "I "
    assert "".join(each.get("reasoning_content") or "" for each in deltas) == "hm look"
    pieces = [piece for each in deltas for piece in each.get("tool_calls") or []]
    joined = {
        index: "".join(piece["function"].get("arguments") or "" for piece in pieces if piece["index"] == index)
        for index in (0, 1)
    }
    assert joined == {0: '{"at": "sky"}', 1: ""}
    assert [piece["id"] for piece in pieces if "id" in piece] == ["look_1", "w"]
    assert got[-2]["choices"][0]["finish_reason"] == "tool_calls"
    assert (got[-1]["usage"]["prompt_tokens"], got[0]["id"]) == (5, "a-2")


@pytest.mark.parametrize(
    ("handler", "stream", "fault"),
    [
        (streaming(*events(delta("content-delta", {"content": {"text": "a"}}))), True, Fault.MALFORMED),
        (streaming(*events(ending("ERROR"))), True, Fault.MALFORMED),
        (streaming(*events(ending("ERROR", error="out of capacity"))), True, Fault.SERVER),
        (answering({"id": "e", "message": "no such model"}), False, Fault.SERVER),
        (answering(answer({"content": []}, "TIMEOUT")), False, Fault.MALFORMED),
        (answering({"message": "invalid api token"}, 401), False, Fault.CREDENTIALS),
        (answering({"message": "too many tokens: size limit exceeded"}, 400), False, Fault.CONTEXT_LENGTH),
    ],
)
def test_what_is_no_answer_is_a_fault(handler: Any, stream: bool, fault: Fault) -> None:
    assert failure(handler, "cohere", stream=stream).fault is fault


def test_the_compatible_interface_is_asked_where_the_address_is_its_own() -> None:
    completion = {"choices": [{"index": 0, "message": {"role": "assistant", "content": "hi"}, "finish_reason": "stop"}]}

    async def main() -> None:
        async with asking(answering(completion), "cohere", path="/compatibility/v1") as (provider, server):
            told = await provider.chat({**REQUEST, "max_completion_tokens": 5}, PATIENT)
            assert told["choices"][0]["message"]["content"] == "hi"
            assert server.asked[0].path == "/compatibility/v1/chat/completions"
            assert server.asked[0].body["max_tokens"] == 5

    run(main())
