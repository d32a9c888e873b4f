"""OpenAI's protocol against servers that answer well, badly, late, in pieces or not at all."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Sequence
from typing import Any

import pytest
from aiohttp import web

from route.providers.accounts import make_provider
from route.providers.base import JSON, Account, Fault, ProviderError, Timeouts
from tests.route.providers.servers import (
    KEY,
    PATIENT,
    QUICK,
    REQUEST,
    Piece,
    answering,
    asking,
    chunks,
    collected,
    failure,
    refusing,
    run,
    serving,
    streaming,
)

COMPLETION: JSON = {
    "id": "c",
    "object": "chat.completion",
    "created": 1,
    "model": "m-1",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "hi"}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
    "a_field_of_tomorrow": {"kept": None},
}
TEXT = [{"role": "assistant", "content": ""}, {"content": "he"}, {"content": "ron"}]


def text_of(chunks: list[JSON]) -> str:
    return "".join(choice["delta"].get("content") or "" for chunk in chunks for choice in chunk["choices"])


def test_a_request_goes_out_as_it_came_and_so_does_the_answer() -> None:
    request = REQUEST | {
        "temperature": 0,
        "seed": None,
        "a_field_of_tomorrow": [1],
        "messages": [
            {"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]},
            {"role": "user", "content": []},
        ],
    }

    async def test() -> None:
        async with asking(answering(COMPLETION), path="/v1") as (provider, server):
            assert await provider.chat(request, PATIENT) == COMPLETION
            (asked,) = server.asked
            assert asked.body == request
            assert asked.path == "/v1/chat/completions"
            assert asked.headers["Authorization"] == f"Bearer {KEY}"

    run(test())


def test_a_stream_is_asked_for_only_where_there_is_one() -> None:
    request = REQUEST | {"stream": True, "stream_options": {"include_usage": True}}

    async def test() -> None:
        async with asking(answering(COMPLETION)) as (provider, server):
            await provider.chat(request, PATIENT)
            assert server.asked[0].body == REQUEST
            await collected(provider, request)
            assert server.asked[1].body == request

    run(test())


def test_fields_that_a_provider_refuses_are_left_out() -> None:
    async def test() -> None:
        async with asking(streaming(*chunks(*TEXT)), "mistral", options={"omit": "stream_options"}) as (
            provider,
            server,
        ):
            await collected(provider, REQUEST | {"stream_options": {"include_usage": True}})
            assert server.asked[0].body == REQUEST | {"stream": True}

    run(test())


def test_a_classic_provider_hears_the_first_names() -> None:
    messages = [{"role": "developer", "content": "d"}, {"role": "user", "content": "u"}]
    request = REQUEST | {"messages": messages, "max_completion_tokens": 9}

    async def test() -> None:
        async with asking(answering(COMPLETION), options={"dialect": "classic"}) as (provider, server):
            await provider.chat(request, PATIENT)
            assert server.asked[0].body == REQUEST | {
                "messages": [messages[0] | {"role": "system"}, messages[1]],
                "max_tokens": 9,
            }
            await provider.chat(REQUEST | {"messages": None}, PATIENT)

    run(test())


@pytest.mark.parametrize("size", [1, 7, 10_000])
def test_a_stream_is_whole_however_it_was_cut(size: int) -> None:
    stream = b": OPENROUTER PROCESSING\n\n" + b"".join(chunks(*TEXT)).replace(b"\n\n", b"\r\n\r\n")
    pieces = [stream[at : at + size] for at in range(0, len(stream), size)]

    async def test() -> None:
        async with asking(streaming(*pieces)) as (provider, _):
            got = await collected(provider, REQUEST)
            assert text_of(got) == "heron"
            assert got[-1]["choices"][0]["finish_reason"] == "stop"
            assert [chunk["choices"][0]["delta"] for chunk in got] == [*TEXT, {}]

    run(test())


def test_chunks_without_choices_and_with_usage_are_kept() -> None:
    filters = b'data: {"choices": [], "prompt_filter_results": []}\n\n'
    usage = b'data: {"choices": null, "usage": {"total_tokens": 3}}\n\n'
    stream = [filters, *chunks(*TEXT, done=False), usage, b"data: [DONE]\n\n"]

    async def test() -> None:
        async with asking(streaming(*stream)) as (provider, _):
            got = await collected(provider, REQUEST)
            assert got[0]["prompt_filter_results"] == []
            assert got[-1] == {"choices": [], "usage": {"total_tokens": 3}}

    run(test())


def test_a_missing_done_is_no_fault_when_every_choice_has_finished() -> None:
    """With one choice of two still open it is one."""
    stream = chunks(*TEXT, done=False)

    async def test() -> None:
        async with asking(streaming(*stream)) as (provider, _):
            assert text_of(await collected(provider, REQUEST)) == "heron"
        async with asking(streaming(*stream, "cut")) as (provider, _):
            assert text_of(await collected(provider, REQUEST)) == "heron"

    run(test())
    assert failure(streaming(*stream), stream=True, request=REQUEST | {"n": 2}).fault is Fault.MALFORMED


def test_a_whole_answer_to_a_stream_becomes_chunks() -> None:
    async def test() -> None:
        async with asking(answering(COMPLETION)) as (provider, _):
            got = await collected(provider, REQUEST | {"stream_options": {"include_usage": True}})
            assert text_of(got) == "hi"
            assert got[0]["object"] == "chat.completion.chunk"
            assert got[0]["choices"][0]["finish_reason"] == "stop"
            assert got[1]["choices"] == []
            assert got[1]["usage"] == COMPLETION["usage"]

    run(test())


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("status", "headers", "code", "fault", "retry_after"),
    [
        (429, {"Retry-After": "3"}, "rate_limit_exceeded", Fault.RATE_LIMIT, 3.0),
        (429, {}, "rate_limit_exceeded", Fault.RATE_LIMIT, None),
        (500, {}, "server_error", Fault.SERVER, None),
        (503, {"Retry-After": "60"}, None, Fault.SERVER, 60.0),
        (400, {}, "context_length_exceeded", Fault.CONTEXT_LENGTH, None),
        (400, {}, "content_filter", Fault.CONTENT_FILTER, None),
        (400, {}, None, Fault.REQUEST, None),
        (401, {}, "invalid_api_key", Fault.CREDENTIALS, None),
        (404, {}, "model_not_found", Fault.UNSUPPORTED, None),
    ],
)
def test_a_refusal_is_a_fault(
    stream: bool, status: int, headers: dict[str, str], code: str, fault: Fault, retry_after: float | None
) -> None:
    error = failure(refusing(status, f"no, {KEY}", headers, code=code), stream=stream)
    assert (error.fault, error.status, error.retry_after) == (fault, status, retry_after)
    assert KEY not in f"{error} {error.detail} {error!r} {error.__cause__} {error.__context__!r}"


def test_an_assistant_prefill_may_be_rejected() -> None:
    error = failure(refusing(400, "This model does not support assistant message prefill."), stream=True)
    assert error.fault is Fault.UNSUPPORTED


HALF = chunks(*TEXT, finish=None, done=False)
MISBEHAVIOUR: dict[str, tuple[Sequence[Any], Fault]] = {
    "reset before any chunk": (["cut"], Fault.CONNECTION),
    "no chunk": (["hang"], Fault.TIMEOUT),
    "slow first token": ([5.0, *chunks(*TEXT)], Fault.TIMEOUT),
    "comments instead of a first token": (
        [*[b": wait\n\n", 0.05] * 8, *chunks(*TEXT)],
        Fault.TIMEOUT,
    ),
    "cut in the middle": ([*HALF, "cut"], Fault.CONNECTION),
    "ended in the middle": (HALF, Fault.MALFORMED),
    "stalled in the middle": ([*HALF, "hang"], Fault.TIMEOUT),
    "malformed chunk": ([*HALF, b'data: {"choices": [{"ind\n\n', *chunks({})], Fault.MALFORMED),
    "chunk that is not an object": ([*HALF, b"data: 12\n\n"], Fault.MALFORMED),
    "chunk of another shape": ([*HALF, b'data: {"choices": [7]}\n\n'], Fault.MALFORMED),
    "chunk of another choice": ([*HALF, b'data: {"choices": [{"delta": "text"}]}\n\n', *chunks({})], Fault.MALFORMED),
    "chunk of an object of choices": ([*HALF, b'data: {"choices": {"0": {}}}\n\n'], Fault.MALFORMED),
    "chunk that nests": (
        [*HALF, b'data: {"choices": [], "x": ' + b"[" * 300 + b"]" * 300 + b"}\n\n", *chunks({})],
        Fault.MALFORMED,
    ),
    "chunk of something else": ([*HALF, b'data: {"type": "greeting"}\n\n'], Fault.MALFORMED),
    "half of a chunk at the end": ([*HALF, b'data: {"choices": ['], Fault.MALFORMED),
    "nothing": ([b""], Fault.MALFORMED),
    "nothing but the end": ([b"data: [DONE]\n\n"], Fault.MALFORMED),
    "error at first": ([b'data: {"error": {"code": 502, "message": "upstream"}}\n\n'], Fault.SERVER),
    "error in the middle": ([*HALF, b'data: {"error": {"code": "rate_limit_exceeded"}}\n\n'], Fault.RATE_LIMIT),
    "error as an event": ([*HALF, b'event: error\ndata: {"message": "oh"}\n\n'], Fault.SERVER),
}


@pytest.mark.parametrize("name", MISBEHAVIOUR)
def test_a_stream_that_goes_wrong_is_a_fault(name: str) -> None:
    pieces, fault = MISBEHAVIOUR[name]
    timeouts = QUICK if fault is Fault.TIMEOUT else PATIENT
    assert failure(streaming(*pieces), stream=True, timeouts=timeouts).fault is fault


def test_events_of_another_kind_say_nothing_of_an_answer() -> None:
    async def test() -> None:
        greeting = b'event: greeting\ndata: {"type": "greeting"}\n\n'
        first, *rest = chunks(*TEXT)
        async with asking(streaming(first, greeting, *rest)) as (provider, _):
            assert text_of(await collected(provider, REQUEST)) == "heron"

    run(test())


def test_what_came_before_a_fault_was_handed_on() -> None:
    async def test() -> None:
        async with asking(streaming(*HALF, "cut")) as (provider, _):
            stream = provider.stream(REQUEST, PATIENT)
            assert text_of([await anext(stream) for _ in HALF]) == "heron"
            with pytest.raises(ProviderError):
                await anext(stream)

    run(test())


def test_a_comment_shows_that_a_provider_is_alive() -> None:
    waiting: list[Piece] = [b": wait\n\n", 0.2] * 4

    async def test() -> None:
        async with asking(streaming(*HALF, *waiting, *chunks({"content": "!"}))) as (provider, _):
            assert text_of(await collected(provider, REQUEST, Timeouts(stall=0.6))) == "heron!"

    run(test())
    short = Timeouts(total=0.3)
    assert failure(streaming(*HALF, *waiting, *chunks({})), stream=True, timeouts=short).fault is Fault.TIMEOUT


@pytest.mark.parametrize(
    ("body", "fault"),
    [
        (b"<html>", Fault.MALFORMED),
        ({"choices": [{"index": 0}]}, Fault.MALFORMED),
        ({"choices": [{"index": 0, "message": None}]}, Fault.MALFORMED),
        (b"", Fault.MALFORMED),
        (b"[" * 100_000, Fault.MALFORMED),
        (b"[]", Fault.MALFORMED),
        ({"choices": []}, Fault.MALFORMED),
        ({"choices": [None]}, Fault.MALFORMED),
        ({"choices": {}}, Fault.MALFORMED),
        ({"object": "list"}, Fault.MALFORMED),
        ({"error": {"code": 503, "message": "in a 200"}}, Fault.SERVER),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_that_is_none_is_a_fault(stream: bool, body: object, fault: Fault) -> None:
    assert failure(answering(body), stream=stream).fault is fault


@pytest.mark.parametrize("stream", [False, True])
def test_silence_is_a_timeout_and_ends_at_the_provider_too(stream: bool) -> None:
    async def hang(_: web.Request) -> web.StreamResponse:
        await asyncio.sleep(60)
        raise AssertionError

    async def test() -> None:
        async with asking(hang) as (provider, server):
            with pytest.raises(ProviderError) as caught:
                await (collected(provider, REQUEST, QUICK) if stream else provider.chat(REQUEST, QUICK))
            assert caught.value.fault is Fault.TIMEOUT
            await asyncio.wait_for(server.gone.wait(), 5)

    run(test())


@pytest.mark.parametrize("stream", [False, True])
def test_a_provider_that_is_not_there_is_a_fault(stream: bool) -> None:
    async def test() -> None:
        async with serving(answering({})) as server:
            url = server.url
        provider = make_provider("openai", Account(url, KEY))
        with pytest.raises(ProviderError, match="cannot be reached") as caught:
            await (collected(provider, REQUEST) if stream else provider.chat(REQUEST, PATIENT))
        assert caught.value.fault is Fault.CONNECTION
        assert str(caught.value).endswith("cannot be reached: Connection refused")
        await provider.close()

    run(test())


@pytest.mark.parametrize("greeting", [b"SSH-2.0-server\r\n", b"HTTP/1.1 abc\r\n\r\n"])
def test_a_server_that_speaks_no_http_is_a_fault(greeting: bytes) -> None:
    async def speak(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(greeting)
        await writer.drain()
        writer.close()

    async def test() -> None:
        listening = await asyncio.start_server(speak, "127.0.0.1", 0)
        port = listening.sockets[0].getsockname()[1]
        provider = make_provider("openai", Account(f"http://127.0.0.1:{port}", KEY))
        with pytest.raises(ProviderError) as caught:
            await provider.chat(REQUEST, PATIENT)
        assert caught.value.fault in (Fault.MALFORMED, Fault.CONNECTION)
        await provider.close()
        listening.close()

    run(test())


def test_a_redirect_is_not_followed_with_the_key() -> None:
    async def test() -> None:
        async with serving(answering(COMPLETION)) as elsewhere:
            move = answering(b"", 307, {"Location": elsewhere.url})
            async with asking(move) as (provider, _):
                with pytest.raises(ProviderError) as caught:
                    await provider.chat(REQUEST, PATIENT)
            assert caught.value.fault is Fault.MALFORMED
            assert elsewhere.asked == []

    run(test())


def test_a_proxy_of_the_environment_is_asked_for_providers_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        async with serving(answering(COMPLETION)) as proxy:
            monkeypatch.setenv("http_proxy", proxy.url)
            monkeypatch.delenv("no_proxy", raising=False)
            monkeypatch.delenv("NO_PROXY", raising=False)
            provider = make_provider("openai", Account("http://provider.example/v1", KEY))
            assert await provider.chat(REQUEST, PATIENT) == COMPLETION
            assert proxy.asked[0].headers["Host"] == "provider.example"
            await provider.close()
            async with asking(answering(COMPLETION)) as (local, server):
                await local.chat(REQUEST, PATIENT)
                assert (len(proxy.asked), len(server.asked)) == (1, 1)

    run(test())


def test_a_client_may_close_while_a_stream_runs_out() -> None:
    """The server sends its last event, and keeps the connection."""

    async def test() -> None:
        async with asking(streaming(*chunks(*TEXT), "hang")) as (provider, _):
            assert text_of(await collected(provider, REQUEST)) == "heron"

    run(test())


def test_closing_a_stream_ends_it_at_the_provider() -> None:
    async def test() -> None:
        async with asking(streaming(*HALF, *itertools.repeat(0.01, 500))) as (provider, server):
            stream = provider.stream(REQUEST, PATIENT)
            await anext(stream)
            await stream.aclose()  # type: ignore[attr-defined]
            await asyncio.wait_for(server.gone.wait(), 5)

    run(test())


def test_connections_are_kept_after_whole_answers_and_streams() -> None:
    ports = set()

    async def handle(request: web.Request) -> web.StreamResponse:
        assert request.transport is not None
        ports.add(request.transport.get_extra_info("peername"))
        body = json.loads(await request.read())
        return await (streaming(*chunks(*TEXT)) if body.get("stream") else answering(COMPLETION))(request)

    async def test() -> None:
        async with asking(handle) as (provider, _):
            for _ in range(3):
                await collected(provider, REQUEST)
                await asyncio.sleep(0.02)
                await provider.chat(REQUEST, PATIENT)
        assert len(ports) == 1

    run(test())


def test_many_requests_at_once_do_not_disturb_each_other() -> None:
    async def echo(request: web.Request) -> web.StreamResponse:
        body = json.loads(await request.read())
        return await streaming(*chunks({"content": body["messages"][0]["content"]}))(request)

    async def test() -> None:
        async with asking(echo) as (provider, _):
            texts = [f"text {number}" for number in range(50)]
            requests = [REQUEST | {"messages": [{"role": "user", "content": text}]} for text in texts]
            got = await asyncio.gather(*(collected(provider, request, Timeouts()) for request in requests))
            assert [text_of(one) for one in got] == texts

    run(test())


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999", "-1E+400"])
def test_numbers_that_json_does_not_have_are_not_passed_on(number: str) -> None:
    usage = b'"usage": {"prompt_tokens": 3, "completion_tokens": %s}' % number.encode()
    whole = b'{"choices": [{"message": {"content": "hi"}, "finish_reason": "stop"}], %s}' % usage
    piece = b'data: {"choices": [{"delta": {"content": "hi"}, "finish_reason": "stop"}], %s}\n\n' % usage

    async def test() -> None:
        async with asking(answering(whole)) as (provider, _):
            assert (await provider.chat(REQUEST, PATIENT))["usage"] == {"prompt_tokens": 3, "completion_tokens": None}
        async with asking(streaming(piece, b"data: [DONE]\n\n")) as (provider, _):
            (chunk,) = await collected(provider, REQUEST)
            assert chunk["usage"] == {"prompt_tokens": 3, "completion_tokens": None}

    run(test())
