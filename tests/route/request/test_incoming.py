"""Whatever comes in, the answer is an answer or an error that says whose fault it is."""

from __future__ import annotations

import asyncio
import json
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from p2l.common.long_texts import dumps
from route.config import ModelConfig
from route.providers.completions import has_role
from route.request.api_errors import ApiError
from route.request.chat import ChatRequest, parse_chat, refuse_constant, tokens_of
from route.request.fields import request_for
from tests.route.router_helpers import HELLO, a_router

SCALARS = st.none() | st.booleans() | st.integers(-3, 3) | st.floats(allow_nan=False) | st.text(max_size=5)
ANYTHING = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
)
PARTS = st.lists(
    st.fixed_dictionaries({"type": st.sampled_from(["text", "image_url"])}, optional={"text": ANYTHING}) | ANYTHING,
    max_size=3,
)
MESSAGES = st.lists(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["user", "assistant", "system", "tool", "x"])},
        optional={"content": st.none() | st.text(max_size=9) | PARTS, "tool_calls": ANYTHING, "name": ANYTHING},
    )
    | ANYTHING,
    max_size=3,
)
FIELDS = ("model", "cost", "stream", "compare", "direct_model", "stream_options", "max_tokens", "tools", "n", "user")
BODIES = st.fixed_dictionaries({}, optional={"messages": MESSAGES | ANYTHING, **dict.fromkeys(FIELDS, ANYTHING)})
MODEL = ModelConfig(name="m", type="mock", cost=1, temp=0.5, max_tokens=7, system_prompt="s", context_window=9)


def read(raw: bytes, headers: dict[str, str]) -> ChatRequest | ApiError:
    try:
        return parse_chat(raw, headers, {"m": None}, by_name=True)
    except ApiError as error:
        return error


@given(BODIES, st.none() | st.text(max_size=5))
@settings(max_examples=300)
def test_any_json_is_a_request_or_a_fault_of_the_client(body: dict[str, Any], header: str | None) -> None:
    raw = json.dumps(body).encode()
    headers = {} if header is None else {"x-p2l-cost": header}
    incoming = read(raw, headers)
    if isinstance(incoming, ApiError):
        assert 400 <= incoming.status < 500
        return
    assert tokens_of(incoming, 1) is not None
    request, _ = request_for(MODEL, incoming)
    assert request["model"] == "m"
    assert not {"cost", "compare", "direct_model"} & request.keys()
    json.dumps(request)


@given(st.binary(max_size=40))
def test_any_bytes_are_json_or_a_fault_of_the_client(raw: bytes) -> None:
    with pytest.raises(ApiError) as caught:
        parse_chat(raw, {}, {}, by_name=False)
    assert caught.value.status == 400


@given(st.lists(BODIES, min_size=20, max_size=20))
@settings(max_examples=3)
def test_the_service_never_fails_for_what_a_client_sends(tmp_path_factory: Any, bodies: list[dict[str, Any]]) -> None:
    async def main(folder: Path) -> None:
        async with a_router(folder, sticky=True) as router:
            for body in [*bodies, *({"messages": HELLO} | body for body in bodies)]:
                for path in ("/v1/chat/completions", "/v1/route", "/v1/feedback"):
                    async with router.http.post(
                        f"{router.url}{path}", json=body, headers={"authorization": "Bearer test-key"}
                    ) as response:
                        assert response.status < 500, body

    asyncio.run(main(tmp_path_factory.mktemp("any")))


def test_tokens_are_estimated_only_where_they_could_matter() -> None:
    text = "word " * 400
    messages = [{"role": "user", "content": [{"type": "text", "text": text}, {"type": "image_url"}]}]
    incoming = ChatRequest({"messages": messages, "max_tokens": 300}, (text,), None, None, False, False, 2100)
    assert tokens_of(incoming, 100_000) is None
    assert tokens_of(incoming, 1000) == 2000 // 4 + 1000 + 300


def test_long_prompts_are_answered_and_parsed_in_a_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loop = threading.get_ident()
    threads: dict[int, set[int]] = {}

    def parse(raw: bytes, *args: Any, **options: Any) -> ChatRequest:
        threads.setdefault(len(raw), set()).add(threading.get_ident())
        return parse_chat(raw, *args, **options)

    async def main() -> None:
        async with a_router(tmp_path) as router:
            for turns in (["short"], ["a"] * 9_000, ["long " * 150_000]):
                body = {"messages": [{"role": "user", "content": turn} for turn in turns]}
                assert (await router.post("/v1/chat/completions", body))[0] == 200

    monkeypatch.setattr("route.application.chat.parse_chat", parse)
    asyncio.run(main())
    short, *long = (threads[size] for size in sorted(threads))
    assert short == {loop}
    assert len(long) == 2
    assert all(loop not in each for each in long)


def test_ten_thousand_messages_pass_whole_and_more_are_refused(tmp_path: Path) -> None:
    async def main() -> None:
        async with a_router(tmp_path, sticky=True, store_prompts=True, database="router.sqlite") as router:
            messages = [{"role": "user", "content": str(number)} for number in range(10_000)]
            status, answer, _ = await router.post("/v1/chat/completions", {"messages": messages})
            assert status == 200
            assert router.last(answer["model"])["messages"] == messages
            assert router.endpoint.prompts[-1][-1] == "9999", "the newest turns are scored"
            status, answer, _ = await router.post("/v1/chat/completions", {"messages": [*messages, *HELLO]})
            assert status == 413
            assert "10,001 messages, more than 10,000" in answer["error"]["message"]

    asyncio.run(main())


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages", "/v1/route"])
def test_more_values_than_so_many_messages_hold_are_refused_before_they_are_parsed(tmp_path: Path, path: str) -> None:
    async def main() -> None:
        async with a_router(tmp_path) as router:
            body = b'{"messages": [' + b"[]," * 1_000_000 + b"[]]}"
            status, answer, _ = await router.post(path, body)
            assert status == 413
            assert "more than 200,000 values" in answer["error"]["message"]
            assert not any(router.counts().values())

    asyncio.run(main())


def sent_on(text: str) -> str:
    """Return the body for a provider of OpenAI's protocol, of a request with these messages among other fields."""
    raw = f'{{"model": "m", "messages": {text}, "temperature": 1}}'.encode()
    incoming = parse_chat(raw, {}, {}, by_name=False, decoder=json.JSONDecoder(parse_constant=refuse_constant))
    request, _ = request_for(ModelConfig(name="m", type="mock", cost=1), incoming)
    written = dumps(request)
    assert json.loads(written) == {**json.loads(raw), "model": "m"}
    return written


@pytest.mark.parametrize(
    "odd",
    [
        '{"role": "user", "content": "a", "content": "b"}',
        '{"role": "user", "content": [{"type": "image_url"}], "content": "b"}',
        '{"role": "user", "c\\u006fntent": {"x": 1}, "content": "b"}',
        '{"role": "user", "content": 5, "content": "\\u0022"}',
        '{"role": "user", "content": "\\u0022", "role": "user"}',
    ],
)
def test_no_provider_reads_other_messages_than_the_router(odd: str) -> None:
    """Of a key that stands twice some take the first value, so the router writes what it has read itself."""
    usual = json.dumps({"role": "user", "content": "a"})
    written = sent_on(f"[{', '.join([usual] * 8000 + [odd])}]")
    assert odd not in written
    assert json.dumps(json.loads(odd)) in written


@pytest.mark.parametrize("messages", [None, "user", [], [{"role": "tool"}, 1], [{"role": []}]])
def test_messages_of_any_form_have_roles_or_none(messages: Any) -> None:
    assert has_role(messages, "tool", "user") is (messages == [{"role": "tool"}, 1])


def test_more_fields_than_any_api_has_are_refused() -> None:
    fields = {f"field-{number}": number for number in range(2000)}
    answer = read(json.dumps({"messages": HELLO, **fields}).encode(), {})
    assert isinstance(answer, ApiError)
    assert (answer.status, str(answer)) == (400, "the request has 2,001 fields, more than any API knows")


@pytest.mark.parametrize("padding", ["", " " * 40_000])
def test_what_nests_too_deep_for_whoever_walks_through_it_is_refused(padding: str) -> None:
    deep = '{"messages": [{"role": "user", "content": "x"}], "tools": ' + padding + "[" * 300 + "]" * 300 + "}"
    answer = read(deep.encode(), {})
    assert isinstance(answer, ApiError)
    assert (answer.status, str(answer)) == (400, "the body is nested deeper than 200 levels")


@pytest.mark.parametrize("kind", ["openai", "anthropic", "gemini"])
def test_tools_whose_arguments_nest_without_end_are_no_failure_of_the_router(tmp_path: Path, kind: str) -> None:
    deep = "[" * 100_000
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": deep}}
    messages = [
        *HELLO,
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": deep},
    ]

    async def main() -> None:
        models = {name: {"type": kind} for name in ("good", "fair", "poor")}
        async with a_router(tmp_path, models) as router:
            status, answer, _ = await router.post("/v1/chat/completions", {"messages": messages})
            assert answer.get("error", {}).get("code") != "internal_error", answer
            assert status != 500

    asyncio.run(main())
