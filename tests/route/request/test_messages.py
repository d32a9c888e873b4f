"""Anthropic's Messages API in OpenAI's words and back: what goes out, what comes in, and that nothing gets lost."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from anthropic.types import Message, MessageCreateParams, RawMessageStreamEvent
from hypothesis import given
from hypothesis import strategies as st
from openai.types.chat import CompletionCreateParams
from pydantic import TypeAdapter

from p2l.common.errors import InputError
from route.providers.anthropic import UNSIGNED, AnthropicStream, completion_of, messages_request
from route.providers.base import JSON, ProviderError
from route.providers.completions import chunk, completion, usage
from route.request.api_errors import ApiError
from route.request.message_stream import MessageStream, message_of
from route.request.messages import Messages, chat_request

ASKED: TypeAdapter[Any] = TypeAdapter(CompletionCreateParams)
GIVEN: TypeAdapter[Any] = TypeAdapter(MessageCreateParams)
EVENT: TypeAdapter[Any] = TypeAdapter(RawMessageStreamEvent)
FRAME = {"id": "c", "created": 1, "model": "good"}
IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aGk="}}
IMAGE_PART = {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk="}}
SCHEMA = {"type": "object", "properties": {"at": {"type": "integer"}}}
TOOL = {"name": "look", "description": "d", "input_schema": SCHEMA}


def text(words: str) -> JSON:
    return {"type": "text", "text": words}


def user(content: Any) -> JSON:
    return {"role": "user", "content": content}


def use(identifier: str, **given: Any) -> JSON:
    return {"type": "tool_use", "id": identifier, "name": "look", "input": given}


def result(identifier: str, content: Any, **more: Any) -> JSON:
    return {"type": "tool_result", "tool_use_id": identifier, "content": content, **more}


def asked(**fields: Any) -> JSON:
    """The chat completion that a message asks for, valid by the types of both official packages."""
    body = {"model": "m", "max_tokens": 9, "messages": [user("hi")], **fields}
    GIVEN.validate_python(
        {key: value for key, value in body.items() if key in MessageCreateParams.__args__[0].__annotations__}
    )
    chat = chat_request(body)
    ASKED.validate_python(chat)
    return chat


def test_a_plain_request() -> None:
    assert asked() == {"model": "m", "max_tokens": 9, "messages": [user("hi")]}


def test_sampling_and_the_user_have_their_names() -> None:
    chat = asked(
        temperature=0,
        top_p=0.5,
        top_k=3,
        stop_sequences=["a", "b"],
        metadata={"user_id": "u"},
        cost=2,
        direct_model="good",
        seed=4,
    )
    del chat["messages"]
    kept = {"temperature": 0, "top_p": 0.5, "top_k": 3, "cost": 2, "direct_model": "good", "seed": 4}
    assert chat == {"model": "m", "max_tokens": 9, "stop": ["a", "b"], "user": "u", **kept}


def test_a_stream_always_tells_its_usage() -> None:
    assert asked(stream=True)["stream_options"] == {"include_usage": True}
    assert "stream_options" not in asked(stream=False)


@pytest.mark.parametrize(
    "system", ["be\n\nkind", [text("be"), {**text("kind"), "cache_control": {"type": "ephemeral"}}]]
)
def test_the_system_prompt_comes_first(system: Any) -> None:
    assert asked(system=system)["messages"] == [{"role": "system", "content": "be\n\nkind"}, user("hi")]


def test_hints_to_anthropics_models_are_left_out() -> None:
    hints = {"thinking": {"type": "enabled", "budget_tokens": 1024}, "service_tier": "auto"}
    assert asked(**hints, output_config={"effort": "low"}, cache_control={"type": "ephemeral"}) == asked()


def test_a_schema_of_the_answer() -> None:
    wanted = asked(output_config={"format": {"type": "json_schema", "schema": SCHEMA}})["response_format"]
    assert wanted == {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA, "strict": True}}


def test_content_of_users() -> None:
    plain = {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "a book"}}
    paper = {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": "aGk="}}
    remote = {"type": "image", "source": {"type": "url", "url": "https://there/a.png"}}
    [message] = asked(messages=[user([text("see"), IMAGE, remote, plain, paper])])["messages"]
    file = {"filename": "document.pdf", "file_data": "data:application/pdf;base64,aGk="}
    remote_part = {"type": "image_url", "image_url": {"url": "https://there/a.png"}}
    assert message["content"] == [text("see"), IMAGE_PART, remote_part, text("a book"), {"type": "file", "file": file}]


def test_tools_and_calls_and_results() -> None:
    thought = {"type": "thinking", "thinking": "hm", "signature": "s"}
    turns = [
        user("look twice"),
        {"role": "assistant", "content": [thought, text("Well"), text(": "), use("a", at=1), use("b")]},
        user([result("a", [text("seen"), IMAGE]), result("b", "dark", is_error=True), text("so?")]),
    ]
    chat = asked(tools=[TOOL, {"type": "custom", "name": "bare", "input_schema": {"type": "object"}}], messages=turns)
    assert chat["tools"] == [
        {"type": "function", "function": {"name": "look", "description": "d", "parameters": SCHEMA}},
        {"type": "function", "function": {"name": "bare", "parameters": {"type": "object"}}},
    ]
    look = [
        {"id": name, "type": "function", "function": {"name": "look", "arguments": given}}
        for name, given in (("a", '{"at": 1}'), ("b", "{}"))
    ]
    assert chat["messages"][1:] == [
        {"role": "assistant", "content": "Well: ", "tool_calls": look},
        {"role": "tool", "tool_call_id": "a", "content": "seen"},
        {"role": "tool", "tool_call_id": "b", "content": "The tool failed: dark"},
        user([IMAGE_PART, text("so?")]),
    ]


def test_results_alone_make_no_further_turn() -> None:
    turns = [
        user("hi"),
        {"role": "assistant", "content": [use("a")]},
        user([{"type": "tool_result", "tool_use_id": "a"}]),
    ]
    messages = asked(messages=turns)["messages"]
    assert messages[1]["content"] is None
    assert messages[2:] == [{"role": "tool", "tool_call_id": "a", "content": ""}]


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        ({"type": "auto"}, "auto"),
        ({"type": "any"}, "required"),
        ({"type": "none"}, "none"),
        ({"type": "tool", "name": "look"}, {"type": "function", "function": {"name": "look"}}),
    ],
)
def test_a_choice_of_tools(choice: JSON, expected: Any) -> None:
    assert asked(tools=[TOOL], tool_choice=choice)["tool_choice"] == expected
    one_by_one = asked(tools=[TOOL], tool_choice={**choice, "disable_parallel_tool_use": True})
    assert one_by_one["parallel_tool_calls"] is False


@pytest.mark.parametrize(
    ("fields", "where"),
    [
        ({"messages": None}, "messages: "),
        ({"messages": []}, "messages: "),
        ({"messages": ["hi"]}, r"messages\[0\]: "),
        ({"messages": [{"role": "tool", "content": "x"}]}, r"messages\[0\]\.role: "),
        ({"messages": [user(None)]}, r"messages\[0\]\.content: "),
        ({"messages": [user(["hi"])]}, r"messages\[0\]\.content: "),
        ({"messages": [user([text("a"), {"type": "text"}])]}, r"messages\[0\]\.content\[1\]: "),
        ({"messages": [user([{"type": "text", "text": 4}])]}, r"messages\[0\]\.content\[0\]: "),
        ({"messages": [user([{"type": "image"}])]}, r"messages\[0\]\.content\[0\]: .*image"),
        ({"messages": [user([{"type": "image", "source": {"type": "file", "file_id": "f"}}])]}, "source"),
        ({"messages": [user([{"type": "document", "source": {"type": "url", "url": "u"}}])]}, "document"),
        ({"messages": [user([{"type": "tool_result"}])]}, "tool_use_id"),
        ({"messages": [user([result("a", [{"type": "tool_reference"}])])]}, r"\.content\[0\]\.content\[0\]: "),
        ({"messages": [{"role": "assistant", "content": [{"type": "tool_use", "id": "a"}]}]}, "id, name and input"),
        ({"messages": [{"role": "assistant", "content": [IMAGE]}]}, "must be text"),
        ({"system": 3}, "system: "),
        ({"tools": "look"}, "tools: "),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, r"tools\[0\]: .*web_search_20250305"),
        ({"tools": [{}]}, r"tools\[0\]: "),
        ({"tools": [TOOL], "tool_choice": "any"}, "tool_choice: "),
        ({"tools": [TOOL], "tool_choice": {"type": "tool"}}, "tool_choice: "),
        ({"stop_sequences": "a"}, "stop_sequences: "),
        ({"metadata": "u"}, "metadata: "),
        ({"output_config": {"format": {"type": "text"}}}, r"output_config\.format: "),
        ({"compare": True}, "compare: "),
        ({"mcp_servers": [{}]}, "mcp_servers: "),
    ],
)
def test_what_cannot_be_routed_is_refused_with_its_place(fields: JSON, where: str) -> None:
    body = {"model": "m", "max_tokens": 9, "messages": [user("hi")], **fields}
    with pytest.raises(InputError, match=where):
        chat_request(body)


KEYS = st.sampled_from(["type", "role", "content", "text", "source", "data", "id", "name", "input", "tool_use_id"]) | (
    st.sampled_from(
        ["tool_calls", "function", "arguments", "refusal", "format", "index", "finish_reason", "prompt_tokens"]
    )
)
words = st.text(st.characters(codec="utf-8"), min_size=1, max_size=9).filter(str.strip)
names = st.text("abcXYZ019_-", min_size=1, max_size=9)
inputs = st.dictionaries(names, st.none() | st.booleans() | st.integers() | words | st.lists(words), max_size=3)
uses = st.builds(lambda name, tool, given: {**use(name, **given), "name": tool}, names, names, inputs)
contents = st.builds(
    lambda said, calls: [*map(text, said), *calls], st.lists(words, max_size=1), st.lists(uses, max_size=3)
)


@st.composite
def conversations(draw: st.DrawFn) -> list[JSON]:
    turns = [user([text(draw(words)), *draw(st.sampled_from([[], [IMAGE]]))])]
    for content in draw(st.lists(contents.filter(bool), max_size=3)):
        turns.append({"role": "assistant", "content": content})
        results = [result(block["id"], [text(draw(words))]) for block in content if block["type"] == "tool_use"]
        turns.append(user([*results, text(draw(words))]))
    return turns


values = st.recursive(
    st.sampled_from([None, True, 3, "", "text", "user", "auto", "tool_use"]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=8,
)
FIELDS = ("messages", "system", "tools", "tool_choice", "stop_sequences", "metadata", "output_config", "stream")


@given(st.dictionaries(st.sampled_from(FIELDS), values, max_size=4), values, values)
def test_whatever_comes_is_translated_or_refused(body: JSON, content: Any, block: Any) -> None:
    turns = [{"role": "user", "content": content}, {"role": "assistant", "content": [block]}]
    for each in (body, {"messages": turns[:1], **body}, {"messages": turns}):
        with contextlib.suppress(InputError):
            json.dumps(chat_request(each))


@given(values, values)
def test_whatever_a_provider_says_is_a_message_or_a_fault(choice: Any, delta: Any) -> None:
    for each in ({"choices": [choice], "usage": delta}, {"choices": [{"message": delta, "delta": delta}]}):
        with contextlib.suppress(ApiError):
            json.dumps(Messages().answer(each))
        events = Messages()
        with contextlib.suppress(ProviderError):
            events.take(each)
        assert b"message_stop" in events.end()


@given(conversations(), st.lists(words, max_size=2))
def test_a_request_survives_the_way_to_an_anthropic_model(turns: list[JSON], stops: list[str]) -> None:
    body: JSON = {"model": "m", "max_tokens": 9, "system": "be kind", "messages": turns, "tools": [TOOL]}
    body |= {"tool_choice": {"type": "any", "disable_parallel_tool_use": True}, "temperature": 0.5}
    body |= {"metadata": {"user_id": "u"}, "top_p": 0.5} | ({"stop_sequences": stops} if stops else {})
    assert messages_request(chat_request(body), max_tokens=1) == body


ENDS = st.sampled_from([("end_turn", None), ("max_tokens", None), ("refusal", None), ("stop_sequence", "###")])
counts = st.integers(0, 99)


@st.composite
def messages(draw: st.DrawFn) -> JSON:
    content = draw(contents)
    calls = any(block["type"] == "tool_use" for block in content)
    reason, sequence = ("tool_use", None) if calls else draw(ENDS)
    used = {"input_tokens": draw(counts), "cache_read_input_tokens": draw(counts), "output_tokens": draw(counts)}
    frame = {"id": "msg_1", "type": "message", "role": "assistant", "model": "claude"}
    ending = {"stop_reason": reason, "stop_sequence": sequence}
    return {**frame, "content": content, **ending, "usage": {**used, "cache_creation_input_tokens": 0}}


@given(messages())
def test_an_answer_of_an_anthropic_model_comes_back_as_it_was(message: JSON) -> None:
    assert message_of(completion_of(message)) == message
    Message.model_validate(message)


@given(messages(), st.data())
def test_a_stream_of_an_anthropic_model_comes_back_as_it_was(message: JSON, data: st.DataObject) -> None:
    translator, stream = AnthropicStream(with_usage=True), MessageStream()
    given = list(events_of(message, data))
    told = [told for event in given for part in translator.take(event) for told in stream.take(part)] + stream.end()
    for event in told:
        if event["type"] != "ping":
            EVENT.validate_python(event, strict=True)
    assert accumulated(told) == message


def events_of(message: JSON, data: st.DataObject) -> Any:
    """The events that Anthropic would send of a message, its texts cut anywhere."""
    yield {"type": "message_start", "message": {**message, "content": [], "stop_reason": None}}
    for index, block in enumerate(message["content"]):
        is_text = block["type"] == "text"
        whole = block["text"] if is_text else json.dumps(block["input"])
        yield {
            "type": "content_block_start",
            "index": index,
            "content_block": block | ({"text": ""} if is_text else {"input": {}}),
        }
        cut = data.draw(st.integers(0, len(whole)))
        for piece in (whole[:cut], whole[cut:]):
            delta = (
                {"type": "text_delta", "text": piece}
                if is_text
                else {"type": "input_json_delta", "partial_json": piece}
            )
            yield {"type": "content_block_delta", "index": index, "delta": delta}
        yield {"type": "content_block_stop", "index": index}
    ending = {key: message[key] for key in ("stop_reason", "stop_sequence")}
    yield {"type": "message_delta", "delta": ending, "usage": {"output_tokens": message["usage"]["output_tokens"]}}
    yield {"type": "message_stop"}


def accumulated(events: list[JSON]) -> JSON:
    """The message that the events of a stream tell; checks their order."""
    first, ping, *middle, ending, last = events
    assert (first["type"], ping["type"], last["type"]) == ("message_start", "ping", "message_stop")
    message, pieces, is_open = first["message"], "", False
    for event in middle:
        kind, index = event["type"], event["index"]
        assert is_open == (kind != "content_block_start")
        assert index == len(message["content"]) - is_open
        if kind == "content_block_start":
            message["content"].append(event["content_block"])
            pieces, is_open = "", True
        elif event.get("delta", {}).get("type") == "signature_delta":
            message["content"][index]["signature"] += event["delta"]["signature"]
        elif kind == "content_block_delta":
            delta = event["delta"]
            pieces += delta.get("text") or delta.get("thinking") or delta.get("partial_json") or ""
        else:
            block, is_open = message["content"][index], False
            is_call = block["type"] == "tool_use"
            block |= {"input": json.loads(pieces or "{}")} if is_call else {block["type"]: pieces}
    return {**message, **ending["delta"], "usage": ending["usage"]}


@pytest.mark.parametrize(
    ("finish", "said", "expected"),
    [
        ("stop", {"content": "a"}, "end_turn"),
        ("length", {"content": "a"}, "max_tokens"),
        ("content_filter", {"content": ""}, "refusal"),
        ("stop", {"content": None, "refusal": "no"}, "refusal"),
        ("stop", {"tool_calls": [{"id": "a", "function": {"name": "f", "arguments": "{}"}}]}, "tool_use"),
        ("tool_calls", {"tool_calls": [{"id": "a", "function": {"name": "f", "arguments": ""}}]}, "tool_use"),
        (None, {"content": "a"}, "end_turn"),
    ],
)
def test_why_it_ended(finish: Any, said: JSON, expected: str) -> None:
    counted = usage(3, 4, cached=1)
    assert message_of(completion("m", said, finish, counted))["stop_reason"] == expected
    stream = MessageStream()
    stream.take({**chunk(FRAME, said, finish), "usage": counted})
    *_, ending, _ = stream.end()
    assert ending["delta"] == {"stop_reason": expected, "stop_sequence": None}
    assert ending["usage"]["input_tokens"] == 2


def test_what_a_model_made_up_as_arguments_is_an_object_still() -> None:
    call = {"id": None, "function": {"name": "f", "arguments": "[1, 2"}}
    [block] = message_of(completion("m", {"tool_calls": [call]}, "tool_calls", None))["content"]
    assert block["input"] == {"arguments": "[1, 2"}
    assert block["id"]


def test_texts_in_parts_and_arguments_that_are_an_object() -> None:
    said = {"content": [{"type": "thinking", "thinking": []}, text("a")]}
    said |= {"tool_calls": [{"index": 0, "id": "a", "function": {"name": "look", "arguments": {"at": 1}}}]}
    content = [text("a"), use("a", at=1)]
    assert message_of(completion("m", said, "tool_calls", None))["content"] == content
    stream = MessageStream()
    assert accumulated(stream.take(chunk(FRAME, said, "tool_calls")) + stream.end())["content"] == content


def test_the_routers_own_fields_are_kept() -> None:
    answer = completion("good", {"content": [text("a"), text("b")]}, "stop", None) | {"router_outputs": {"good": 0.5}}
    message = message_of(answer)
    assert (message["router_outputs"], message["content"]) == ({"good": 0.5}, [text("ab")])
    [start, _] = MessageStream().take({**chunk(FRAME, {}), "router_outputs": {"good": 0.5}})
    assert start["message"]["router_outputs"] == {"good": 0.5}


def piece(index: int | None, identifier: str | None, name: str | None, arguments: str | None) -> JSON:
    call = {"index": index, "id": identifier, "function": {"name": name, "arguments": arguments}}
    return chunk(FRAME, {"tool_calls": [call]})


@pytest.mark.parametrize(
    "pieces",
    [
        [(0, "a", "look", ""), (0, None, None, '{"at":'), (0, None, None, "1}"), (1, "b", "look", "{}")],
        [(0, "a", "look", '{"at":'), (0, "a", "look", "1}"), (0, "b", "look", None)],  # all of one index
        [(None, "a", "look", '{"at": 1}'), (None, "b", "look", "{}")],
    ],
)
def test_calls_in_the_pieces_that_providers_send(pieces: Any) -> None:
    stream = MessageStream()
    told = [event for each in pieces for event in stream.take(piece(*each))] + stream.end()
    assert accumulated(told)["content"] == [use("a", at=1), use("b")]


@pytest.mark.parametrize(
    "pieces",
    [
        [(0, "a", "look", '{"at"'), (1, "b", "look", "{"), (0, None, None, ": 1}"), (1, None, None, "}")],
        [(0, "a", "look", ""), (1, "b", "look", "{}"), (0, None, None, '{"at": 1}')],
        [(0, "a", None, '{"at'), (0, None, "look", '": 1}'), (1, "b", "look", "{}"), (0, None, None, " ")],  # late name
    ],
)
def test_calls_that_come_in_turns_are_whole(pieces: Any) -> None:
    stream = MessageStream()
    told = []
    for each in pieces:
        told += stream.take(piece(*each)) + stream.take(chunk(FRAME, {"content": "\n"}))
    content = accumulated(told + stream.end())["content"]
    assert [block for block in content if block["type"] == "tool_use"] == [use("a", at=1), use("b")]
    assert "".join(block["text"] for block in content if block["type"] == "text") == "\n" * len(pieces)


def test_a_call_that_goes_on_after_its_end_breaks_the_stream() -> None:
    stream = MessageStream()
    stream.take(piece(0, "a", "look", "{}"))
    stream.take(chunk(FRAME, {"content": "so"}))
    with pytest.raises(ProviderError, match="had ended"):
        stream.take(piece(0, None, None, "more"))


def test_thoughts_of_other_models_have_a_signature_by_which_they_are_known() -> None:
    thinking = {"type": "thinking", "thinking": "hm", "signature": UNSIGNED}
    said = {"reasoning_content": "hm", "content": "a"}
    assert message_of(completion("m", said, "stop", None))["content"] == [thinking, text("a")]
    stream = MessageStream()
    assert accumulated(stream.take(chunk(FRAME, said)) + stream.end())["content"] == [thinking, text("a")]


def test_thoughts_that_nobody_signed_go_back_as_such() -> None:
    """To a provider that wants its own back; others do not get them."""
    thoughts = [{"type": "thinking", "thinking": "hm", "signature": mark} for mark in (UNSIGNED, "", "s")]
    [_, answer] = asked(messages=[user("hi"), {"role": "assistant", "content": [*thoughts, text("a")]}])["messages"]
    assert answer == {"role": "assistant", "content": "a", "reasoning_content": "hm\nhm"}


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, "invalid_request_error"),
        (401, "authentication_error"),
        (403, "permission_error"),
        (404, "not_found_error"),
        (413, "request_too_large"),
        (429, "rate_limit_error"),
        (502, "api_error"),
        (504, "timeout_error"),
    ],
)
def test_errors_have_anthropics_shape(status: int, kind: str) -> None:
    expected = {"type": "error", "error": {"type": kind, "message": "no", "code": "c"}}
    assert Messages().error(ApiError(status, "c", "no")) == expected


def test_the_summary_of_a_compacted_conversation_is_said_to_other_models() -> None:
    summary = {"type": "compaction", "content": "They looked for herons."}
    answer = {"role": "assistant", "content": [summary, text(" Go on?")]}
    chat = chat_request({"messages": [user("hi"), answer, user("yes")]})
    assert chat["messages"][1] == {"role": "assistant", "content": "They looked for herons. Go on?"}
