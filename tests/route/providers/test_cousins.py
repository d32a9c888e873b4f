"""OpenAI's cousins: one answer of each as it writes them, whole and streamed, read as OpenAI's own.

Each row of `COUSINS` is one of the table in docs/route/providers.md: the same answer, thoughts, text and a call of a
tool, in the fields and the order of that service.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from route.providers.base import JSON, Fault
from route.providers.cousins import ThinkTags
from route.providers.registry import PROVIDERS
from tests.conftest import ROOT
from tests.route.providers.servers import PATIENT, REQUEST, answering, asking, collected, failure, run, streaming

ARGUMENTS = '{"at": "pond 1"}'
USAGE: JSON = {"prompt_tokens": 9, "completion_tokens": 5, "total_tokens": 14}
BODY = REQUEST | {"stream": True, "stream_options": {"include_usage": True}}


def call(arguments: Any = ARGUMENTS, *, name: str | None = "look", **more: Any) -> JSON:
    function = ({"name": name} if name else {}) | ({} if arguments is None else {"arguments": arguments})
    return {**more, "function": function}


def openais(identifier: str) -> JSON:
    return call(id=identifier, type="function", index=0)


@dataclass
class Cousin:
    """An answer with thoughts "hm", the text "a heron" and a call of `look`."""

    message: JSON
    deltas: list[JSON]
    finish: str | None = "tool_calls"
    usage: JSON = field(default_factory=lambda: dict(USAGE))
    usage_in: str = "chunk"
    """Where a stream has its usage: a `chunk` of its own, the last `choice`, or the field of that name."""
    tokens: tuple[int, int, int] = (9, 5, 0)
    """Tokens of the prompt and the answer, and those of the prompt that were cached."""
    choice: JSON = field(default_factory=dict)
    """What else the last choice has."""

    def whole(self) -> JSON:
        choice = {"index": 0, "message": {"role": "assistant", **self.message}, "finish_reason": self.finish}
        return {"id": "c", "model": "m-1", "choices": [choice | self.choice], "usage": self.usage}

    def events(self) -> list[bytes]:
        frame = {"id": "c", "object": "chat.completion.chunk", "model": "m-1"}
        choices: list[JSON] = [{"index": 0, "delta": delta, "finish_reason": None} for delta in self.deltas]
        choices.append({"index": 0, "delta": {}, "finish_reason": self.finish} | self.choice)
        chunks: list[JSON] = [{**frame, "choices": [choice]} for choice in choices]
        match self.usage_in:
            case "chunk":
                chunks.append({**frame, "choices": [], "usage": self.usage})
            case "choice":
                chunks[-1]["choices"][0]["usage"] = self.usage
            case name:
                chunks[-1][name] = {"usage": self.usage}
        return [b"data: " + json.dumps(chunk).encode() + b"\n\n" for chunk in chunks] + [b"data: [DONE]\n\n"]


def same(name: str, identifier: str = "call_1") -> Cousin:
    """Thoughts in a field of some name; the rest as OpenAI has it."""
    pieces = [
        call("", id=identifier, type="function", index=0),
        call(ARGUMENTS[:7], name=None, index=0),
        call(ARGUMENTS[7:], name=None, index=0),
    ]
    return Cousin(
        {name: "hm", "content": "a heron", "tool_calls": [openais(identifier)]},
        [{"role": "assistant", name: "h"}, {name: "m"}, {"content": "a heron"}, *({"tool_calls": [p]} for p in pieces)],
    )


THINKING: JSON = {"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}
OF_MISTRAL = call({"at": "pond 1"}, id="abcdefghi", index=0)
TAGGED = "<think>\nhm\n</think>\n\na heron"
IN_PIECES = ["<thi", "nk>\nh", "m</", "think>", "\n\na", " heron"]

COUSINS = {
    "deepseek": replace(
        same("reasoning_content"),
        usage={**USAGE, "prompt_cache_hit_tokens": 4, "prompt_cache_miss_tokens": 5},
        tokens=(9, 5, 4),
    ),
    "mistral": Cousin(
        {"content": [THINKING, {"type": "text", "text": "a heron"}], "tool_calls": [OF_MISTRAL]},
        [{"content": [THINKING]}, {"content": "a heron"}, {"content": "", "tool_calls": [OF_MISTRAL]}],
    ),
    "xai": replace(
        same("reasoning_content"),
        deltas=[{"reasoning_content": "hm"}, {"content": "a heron", "tool_calls": [openais("call_1")]}],
        usage={**USAGE, "completion_tokens": 2, "completion_tokens_details": {"reasoning_tokens": 3}},
    ),
    "moonshot": replace(
        same("reasoning_content", "look:0"), usage={**USAGE, "cached_tokens": 4}, usage_in="choice", tokens=(9, 5, 4)
    ),
    "groq": replace(same("reasoning"), usage_in="x_groq"),
    "together": replace(same("reasoning"), choice={"seed": 1}),
    "fireworks": replace(
        same("reasoning_content"),
        deltas=[
            {"reasoning_content": "hm"},
            {"content": "a heron"},
            {"tool_calls": [call(None, id="call_1", type="function", index=0)]},
        ],
        choice={"delta": {"tool_calls": [call(name=None, index=0)]}},
    ),
    "vllm": replace(same("reasoning"), choice={"stop_reason": None}),
    "sglang": Cousin(
        {"content": TAGGED, "tool_calls": [call(id="call_1", type="function", index=-1)]},
        [
            *({"content": piece} for piece in IN_PIECES),
            {"tool_calls": [call("", id=None, type="function", index=0)]},
            {"tool_calls": [call(ARGUMENTS[:7], name=None, id=None, index=0)]},
            {"tool_calls": [call(ARGUMENTS[7:], name=None, id="call_b", index=0)]},
        ],
        choice={"matched_stop": 151645},
    ),
    "llama-cpp": Cousin(
        {"content": TAGGED, "tool_calls": [openais("")]},
        [
            {"content": TAGGED},
            {"tool_calls": [call("", id="call_1", index=0)]},
            *({"tool_calls": [call(letter, name=None, index=0)]} for letter in ARGUMENTS),
        ],
        choice={"timings": {"cache_n": 4}},
    ),
    "ollama": Cousin(
        {"reasoning": "hm", "content": "a heron", "tool_calls": [call({"at": "pond 1"})]},
        [{"reasoning": "hm"}, {"content": "a heron"}, {"tool_calls": [call({"at": "pond 1"})]}],
        finish="",
    ),
    "openrouter": replace(
        same("reasoning"), choice={"native_finish_reason": "tool_use"}, usage={**USAGE, "cost": 0.002}
    ),
}


def joined(chunks: list[JSON]) -> tuple[JSON, str, JSON | None]:
    """The message, the finish and the usage that a stream tells, put together as OpenAI's client does."""
    message: JSON = {"content": "", "reasoning_content": "", "tool_calls": {}}
    finish, usage = "", None
    for chunk in chunks:
        usage = chunk.get("usage") or usage
        for choice in chunk["choices"]:
            finish = choice["finish_reason"] or finish
            for name in ("content", "reasoning_content"):
                message[name] += choice["delta"].get(name) or ""
            for piece in choice["delta"].get("tool_calls") or []:
                whole = message["tool_calls"].setdefault(piece["index"], {"id": "", "name": "", "arguments": ""})
                whole["id"] += piece.get("id") or ""
                for name in ("name", "arguments"):
                    whole[name] += piece["function"].get(name) or ""
    calls = [
        {"id": each["id"], "function": {"name": each["name"], "arguments": each["arguments"]}}
        for each in message["tool_calls"].values()
    ]
    return {**message, "tool_calls": calls}, finish, usage


def check(cousin: Cousin, message: JSON, finish: str, usage: JSON | None) -> None:
    assert (message["content"], message["reasoning_content"].strip()) == ("a heron", "hm")
    [told] = message["tool_calls"]
    assert told["function"]["name"] == "look"
    assert json.loads(told["function"]["arguments"]) == {"at": "pond 1"}
    assert told["id"]
    assert finish == "tool_calls"
    assert usage is not None
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
    assert (usage["prompt_tokens"], usage["completion_tokens"], cached) == cousin.tokens


@pytest.mark.parametrize("kind", COUSINS)
def test_a_whole_answer_reads_as_openais(kind: str) -> None:
    async def test() -> None:
        async with asking(answering(COUSINS[kind].whole()), kind, options=PROVIDERS[kind].options) as (provider, _):
            answer = await provider.chat(REQUEST, PATIENT)
        [choice] = answer["choices"]
        check(COUSINS[kind], choice["message"], choice["finish_reason"], answer["usage"])

    run(test())


@pytest.mark.parametrize("kind", COUSINS)
def test_a_stream_reads_as_openais(kind: str) -> None:
    async def test() -> None:
        async with asking(streaming(*COUSINS[kind].events()), kind, options=PROVIDERS[kind].options) as (provider, _):
            check(COUSINS[kind], *joined(await collected(provider, BODY)))

    run(test())


def test_the_page_has_a_row_for_each() -> None:
    page = (ROOT / "docs" / "route" / "providers.md").read_text(encoding="utf-8")
    table = page.partition("## OpenAI's cousins")[2].partition("## ")[0]
    rows = [line.split("|")[1].strip().lower().replace(".", "-") for line in table.split("\n") if line.startswith("| ")]
    assert set(rows[1:]) == set(COUSINS)


@pytest.mark.parametrize(
    ("finish", "expected"),
    [("eos", "stop"), ("model_length", "length"), ("end_turn", "stop"), ("sensitive", "content_filter")],
)
def test_a_finish_of_a_services_own_is_one_of_openais(finish: str, expected: str) -> None:
    async def test() -> None:
        cousin = Cousin({"content": "a"}, [{"content": "a"}], finish=finish)
        async with asking(answering(cousin.whole())) as (provider, _):
            assert (await provider.chat(REQUEST, PATIENT))["choices"][0]["finish_reason"] == expected
        async with asking(streaming(*cousin.events())) as (provider, _):
            assert joined(await collected(provider, BODY))[1] == expected

    run(test())


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_that_its_service_gave_up_is_a_failure(stream: bool) -> None:
    cousin = Cousin({"content": "a"}, [{"content": "a"}], finish="insufficient_system_resource")
    handler = streaming(*cousin.events()) if stream else answering(cousin.whole())
    assert failure(handler, "deepseek", stream=stream, request=BODY).fault is Fault.MALFORMED


@pytest.mark.parametrize(
    ("text", "thoughts", "rest"),
    [
        ("<think>hm</think>a", "hm", "a"),
        ("\n<think>\n\n</think>\n\na", "", "a"),
        ("<think>never ends </thin", "never ends </thin", ""),
        ("Write <think> first.</think>", "", "Write <think> first.</think>"),
        ("  <thin ice", "", "  <thin ice"),
        ("<think>a < b </th</think> so <think>", "a < b </th", "so <think>"),
        ("", "", ""),
    ],
)
@pytest.mark.parametrize("length", [1, 3, 100])
def test_thoughts_within_a_text(text: str, thoughts: str, rest: str, length: int) -> None:
    tags, told = ThinkTags(), ["", ""]
    pieces = [text[start : start + length] for start in range(0, len(text), length)]
    for piece, ends in [*((piece, False) for piece in pieces), ("", True)]:
        for place, part in enumerate(tags.split(piece, ends=ends)):
            told[place] += part
    assert (told[0].strip(), told[1]) == (thoughts, rest)


def test_other_accounts_keep_the_tags_of_a_text() -> None:
    async def test() -> None:
        cousin = Cousin({"content": TAGGED}, [], finish="stop")
        async with asking(answering(cousin.whole()), "groq") as (provider, _):  # whose clients ask for them
            [choice] = (await provider.chat(REQUEST, PATIENT))["choices"]
        assert choice["message"]["content"] == TAGGED

    run(test())


@pytest.mark.parametrize("stream", [False, True])
def test_an_empty_call_of_a_function_is_none(stream: bool) -> None:
    """As Snowflake writes beside each text."""
    empty: JSON = {"content": "a heron", "function_call": {"name": "", "arguments": ""}}
    cousin = Cousin(empty, [empty], finish="stop")

    async def main() -> None:
        if stream:
            async with asking(streaming(*cousin.events())) as (provider, _):
                message, finish, _ = joined(await collected(provider, BODY))
        else:
            async with asking(answering(cousin.whole())) as (provider, _):
                [choice] = (await provider.chat(REQUEST, PATIENT))["choices"]
                message, finish = choice["message"], choice["finish_reason"]
        assert (message["content"], finish) == ("a heron", "stop")
        assert not message.get("tool_calls")

    run(main())
