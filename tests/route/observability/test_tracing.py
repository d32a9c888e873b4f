"""Traces: one span a request with its children, in the client's trace, and nothing of the prompt."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import openai
import pytest
from aiohttp import web
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.conftest import Command
from tests.route.providers.servers import answering, serving
from tests.route.router_helpers import HELLO, Running, a_router, served

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
COMPLETION = {
    "choices": [{"message": {"role": "assistant", "content": "hi"}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 7, "completion_tokens": 3},
}


class Collector:
    """Takes spans as an OpenTelemetry collector does."""

    def __init__(self) -> None:
        self.spans: list[Any] = []

    async def take(self, request: web.Request) -> web.Response:
        body = ExportTraceServiceRequest.FromString(await request.read())
        for resource in body.resource_spans:
            self.spans += [span for scope in resource.scope_spans for span in scope.spans]
        return web.Response()

    def named(self, name: str) -> list[Any]:
        return [span for span in self.spans if span.name == name]


def attributes(span: Any) -> dict[str, Any]:
    return {pair.key: getattr(pair.value, pair.value.WhichOneof("value")) for pair in span.attributes}


@contextlib.asynccontextmanager
async def traced(folder: Path, *, prompts: bool = False, **config: Any) -> AsyncIterator[tuple[Running, Collector]]:
    collector = Collector()
    app = web.Application()
    app.router.add_post("/v1/traces", collector.take)
    async with served(app) as url:
        settings = {"traces": url, "trace_prompts": prompts}
        async with a_router(folder, settings=settings, **config) as router:
            yield router, collector


async def sent(router: Running) -> None:
    assert router.service.tracing is not None
    await asyncio.to_thread(router.service.tracing.flush)


def test_a_request_goes_on_with_the_trace_of_its_client_down_to_the_provider(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(answering(COMPLETION)) as provider:
            models = {"good": {"base_url": provider.url, "price": {"input": 1, "output": 2}}}
            async with traced(tmp_path, models=models) as (router, collector):
                _, _, headers = await router.post("/v1/chat/completions", {"messages": HELLO}, {"traceparent": PARENT})
                await sent(router)
        (request,) = collector.named("POST /v1/chat/completions")
        (call,) = collector.named("chat good-1")
        assert {span.trace_id.hex() for span in collector.spans} == {PARENT.split("-")[1]}
        assert request.parent_span_id.hex() == PARENT.split("-")[2]
        children = [span for span in collector.spans if span.parent_span_id == request.span_id]
        assert [span.name for span in children] == ["score", "choose", "chat good-1"]
        told = provider.asked[0].headers["traceparent"].split("-")
        assert told[1:3] == [call.trace_id.hex(), call.span_id.hex()]
        scored = router.endpoint.headers[-1]["traceparent"].split("-")
        assert scored[1:3] == [children[0].trace_id.hex(), children[0].span_id.hex()], (
            "the P2L endpoint goes on with it"
        )
        about = attributes(request)
        assert about["p2l.request_id"] == headers["x-request-id"]
        assert (about["p2l.model"], about["http.response.status_code"]) == ("good", 200)
        for span in (request, call):
            counts = attributes(span)
            assert (counts["gen_ai.usage.input_tokens"], counts["gen_ai.usage.output_tokens"]) == (7, 3)
            assert counts["p2l.cost"] == pytest.approx(13e-6)

    asyncio.run(main())


@pytest.mark.parametrize("stream", [False, True])
def test_each_attempt_has_a_span_and_no_span_has_the_prompt(tmp_path: Path, stream: bool) -> None:
    async def main() -> None:
        for prompts in (False, True):
            async with traced(tmp_path, prompts=prompts) as (router, collector):
                router.mocks["good"].fail_next("status:500", "status:500")
                answer = await router.ask(stream=stream)
                if stream:
                    _ = [chunk async for chunk in answer]
                await sent(router)
                failed, answered = collector.named("chat good-1"), collector.named("chat fair-1")
                assert [attributes(span)["error.type"] for span in failed] == ["server", "server"]
                assert [attributes(span)["gen_ai.usage.output_tokens"] for span in answered] == [3]
                (request,) = collector.named("POST /v1/chat/completions")
                assert attributes(request).get("p2l.prompt") == ("hello there" if prompts else None)
                assert ("hello there" in str(collector.spans)) is prompts

    asyncio.run(main())


def genai_of(span: Any) -> dict[str, Any]:
    """Return the attributes that the conventions name, lists as such."""
    told = {name: part for name, part in attributes(span).items() if name.startswith(("gen_ai.", "server."))}
    return {
        name: [each.string_value for each in part.values] if hasattr(part, "values") else part
        for name, part in told.items()
    }


@pytest.mark.parametrize("stream", [False, True])
def test_a_call_has_the_names_of_the_conventions_for_generative_ai(tmp_path: Path, stream: bool) -> None:
    async def main() -> None:
        async with traced(tmp_path, models={"good": {"type": "xai"}}) as (router, collector):
            asked: dict[str, Any] = {"temperature": 0, "top_p": 0.5, "seed": 7, "max_tokens": 99, "stop": ["a", "b"]}
            asked |= {"response_format": {"type": "json_object"}, "reasoning_effort": "low"}
            headers = {"x-p2l-conversation": "conversation-9"}
            answer = await router.ask(stream=stream, extra_headers=headers, **asked)
            if stream:
                _ = [chunk async for chunk in answer]
            await sent(router)
            url = str(router.service.config.model_configs["good"].base_url)
        (call,) = collector.named("chat good-1")
        told = genai_of(call)
        assert told.pop("gen_ai.response.id")
        tokens = {name: told.pop(f"gen_ai.usage.{name}") for name in ("input_tokens", "output_tokens")}
        assert all(count > 0 for count in tokens.values())
        if stream:
            assert told.pop("gen_ai.request.stream") is True
            assert told.pop("gen_ai.response.time_to_first_chunk") > 0
        assert told == {
            "gen_ai.operation.name": "chat",
            "gen_ai.provider.name": "x_ai",
            "server.address": "127.0.0.1",
            "server.port": urlsplit(url).port,
            "gen_ai.conversation.id": "conversation-9",
            "gen_ai.request.model": "good-1",
            "gen_ai.request.temperature": 0,
            "gen_ai.request.top_p": 0.5,
            "gen_ai.request.seed": 7,
            "gen_ai.request.max_tokens": 99,
            "gen_ai.request.stop_sequences": ["a", "b"],
            "gen_ai.request.reasoning.level": "low",
            "gen_ai.output.type": "json",
            "gen_ai.response.model": "good-1",
            "gen_ai.response.finish_reasons": ["stop"],
        }

    asyncio.run(main())


def test_a_call_in_the_clients_own_protocol_has_the_same_names(tmp_path: Path) -> None:
    usage = {"input_tokens": 9, "output_tokens": 8, "output_tokens_details": {"reasoning_tokens": 5}}
    usage["input_tokens_details"] = {"cached_tokens": 4, "cache_write_tokens": 2}
    response = {"id": "resp_1", "object": "response", "status": "completed", "model": "o-1", "usage": usage}
    response["output"] = [{"type": "message", "content": [{"type": "output_text", "text": "hi", "annotations": []}]}]

    async def main() -> None:
        async with serving(answering(response)) as provider:
            models = {"good": {"type": "openai-responses", "base_url": provider.url, "api_key": "k"}}
            async with traced(tmp_path, models=models) as (router, collector):
                form = {"type": "json_schema", "name": "a", "schema": {"type": "object"}}
                body: dict[str, Any] = {
                    "input": "hello",
                    "direct_model": "good",
                    "max_output_tokens": 50,
                    "store": False,
                }
                body |= {"reasoning": {"effort": "high"}, "text": {"format": form}}
                status, _, _ = await router.post("/v1/responses", {**body, "conversation": {"id": "conv_7"}}, {})
                await sent(router)
        assert status == 200
        (call,) = collector.named("chat good-1")
        told = genai_of(call)
        assert {name.removeprefix("gen_ai."): part for name, part in told.items() if "server." not in name} == {
            "operation.name": "chat",
            "provider.name": "openai",
            "conversation.id": "conv_7",
            "request.model": "good-1",
            "request.max_tokens": 50,
            "request.reasoning.level": "high",
            "output.type": "json",
            "response.id": "resp_1",
            "response.model": "o-1",
            "response.finish_reasons": ["stop"],
            "usage.input_tokens": 9,
            "usage.output_tokens": 8,
            "usage.cache_read.input_tokens": 4,
            "usage.cache_write.input_tokens": 2,
            "usage.cache_creation.input_tokens": 2,
            "usage.reasoning.output_tokens": 5,
        }

    asyncio.run(main())


def test_texts_of_clients_are_cut(tmp_path: Path) -> None:
    async def main() -> None:
        async with traced(tmp_path) as (router, collector):
            body = {"messages": HELLO, "stop": ["s" * 9000], "reasoning_effort": "e" * 9000}
            await router.post("/v1/chat/completions", body, {})
            await sent(router)
        call, *_ = collector.named("chat good-1")
        told = genai_of(call)
        assert told["gen_ai.request.stop_sequences"] == ["s" * 256]
        assert told["gen_ai.request.reasoning.level"] == "e" * 256

    asyncio.run(main())


def test_fields_of_any_shape_do_not_break_the_spans_of_a_request(tmp_path: Path) -> None:
    async def main() -> None:
        async with traced(tmp_path) as (router, collector):
            odd: dict[str, Any] = {"stop": 5, "reasoning_effort": {"a": 1}, "seed": [1], "modalities": "text"}
            status, _, _ = await router.post("/v1/chat/completions", {"messages": HELLO, **odd}, {})
            assert status == 200
            status, _, _ = await router.post("/v1/chat/completions", {"messages": HELLO, "response_format": "json"}, {})
            assert status == 400  # the provider's word, not an error of the router
            await sent(router)
        call, *_ = collector.named("chat good-1")
        assert "gen_ai.request.stop_sequences" not in attributes(call)

    asyncio.run(main())


def test_the_span_of_a_stream_that_breaks_says_so(tmp_path: Path) -> None:
    async def main() -> None:
        async with traced(tmp_path) as (router, collector):
            router.mocks["good"].fail_next("cut")
            with pytest.raises(openai.APIError):
                _ = [chunk async for chunk in await router.ask(stream=True)]
            await sent(router)
        (call,) = collector.named("chat good-1")
        assert "error.type" in attributes(call)
        assert genai_of(call)["gen_ai.response.finish_reasons"] == ["error"]

    asyncio.run(main())


def test_a_collector_that_is_away_costs_no_request(tmp_path: Path) -> None:
    async def main() -> None:
        async with a_router(tmp_path, settings={"traces": "http://127.0.0.1:9"}) as router:
            assert (await router.ask()).model == "good"
            assert router.service.tracing is not None
            router.service.tracing = None  # its end would wait for the collector

    asyncio.run(main())


def test_without_the_flag_nothing_of_it_is_imported_and_a_wrong_address_is_told(command: Command) -> None:
    script = (
        "import sys, route.application.app; print([name for name in sys.modules if name.startswith('opentelemetry')])"
    )
    assert command("python", "-c", script).stdout.strip() == "[]"
    flags = ("-c", os.devnull, "--traces", "localhost:4318")
    done = command("python", "-m", "route.openai_server", *flags)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "--traces localhost:4318: must be the http://" in done.stderr
