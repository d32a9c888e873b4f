"""Providers that fail: what the client of the router sees, against real servers that misbehave."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import openai
import pytest
from aiohttp import web

from tests.route.router_helpers import HELLO, Endpoint, a_router, model, served

QUICK = {"timeouts": {"connect": 1, "first_token": 0.3, "answer": 0.3, "stall": 0.3, "total": 20}}
BEFORE_THE_FIRST_TOKEN = (
    "rate-limit:20",
    "reset",
    "silence",
    "slow:5",
    "credentials",
    "status:404",
)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("trouble", BEFORE_THE_FIRST_TOKEN)
def test_the_next_best_model_answers_when_the_best_one_fails(tmp_path: Path, trouble: str, stream: bool) -> None:
    async def main() -> None:
        async with a_router(tmp_path, scripts={"good": {"failures": [trouble]}}, **QUICK) as router:
            if stream:
                chunks = [chunk async for chunk in await router.ask(stream=True)]
                assert {chunk.model for chunk in chunks} == {"fair"}
                text = "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)
                outputs = chunks[0].router_decision
            else:
                answer = await router.ask()
                text, outputs = answer.choices[0].message.content, answer.router_decision
                assert answer.model == answer.choices[0].message.model == "fair"
                assert answer.usage.completion_tokens == 3
            assert text == "I am fair"
            assert outputs["attempts"] == ["good", "fair"]
            assert router.counts() == {"good": 1, "fair": 1, "poor": 0}

    asyncio.run(main())


@pytest.mark.parametrize("trouble", ["cut", "malformed"])
def test_an_answer_that_breaks_off_before_it_was_sent_is_asked_for_elsewhere(tmp_path: Path, trouble: str) -> None:
    async def main() -> None:
        async with a_router(tmp_path, scripts={"good": {"failures": [trouble]}}, **QUICK) as router:
            assert (await router.ask()).model == "fair"

    asyncio.run(main())


@pytest.mark.parametrize("trouble", ["cut", "malformed", "stall", "no-done"])
def test_a_stream_that_breaks_ends_with_an_error_and_never_cleanly(tmp_path: Path, trouble: str) -> None:
    async def main() -> None:
        async with a_router(tmp_path, scripts={"good": {"failures": [trouble] * 2}}, **QUICK) as router:
            seen: list[Any] = []
            with pytest.raises(openai.APIError):
                await collect(await router.ask(stream=True), seen)
            assert seen
            assert {chunk.model for chunk in seen} == {"good"}
            assert not [choice for chunk in seen for choice in chunk.choices if choice.finish_reason]
            raw = await events(router.http, router.url)
            assert "error" in json.loads(raw[-1])
            assert "[DONE]" not in raw
            assert router.counts()["fair"] == 0

    asyncio.run(main())


async def collect(stream: Any, seen: list[Any]) -> None:
    async for chunk in stream:
        seen.append(chunk)


async def events(http, url: str) -> list[str]:
    """The data of every event of one stream."""
    body = {"messages": HELLO, "stream": True}
    async with http.post(f"{url}/v1/chat/completions", json=body, headers={"authorization": "Bearer test-key"}) as sent:
        assert sent.status == 200
        text = await sent.text()
    return [line.removeprefix("data: ") for line in text.split("\n\n") if line]


@pytest.mark.parametrize("path", ["chat/completions", "messages", "responses"])
def test_a_long_chunk_of_a_stream_reaches_the_client_whole(tmp_path: Path, path: str) -> None:
    text = "as long as a provider sends that answers a stream in one piece " * 1000
    prompt = {"input": "hello"} if path == "responses" else {"messages": HELLO}

    async def answer(_: web.Request) -> web.Response:
        choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
        return web.json_response({"id": "c", "object": "chat.completion", "model": "m", "choices": [choice]})

    async def main() -> None:
        app = web.Application()
        app.router.add_post("/v1/chat/completions", answer)
        async with served(app) as upstream, a_router(tmp_path, {"whole": model(f"{upstream}/v1")}) as router:
            body = {"model": "-", "stream": True, "direct_model": "whole", "max_tokens": 9, **prompt}
            headers = {"authorization": "Bearer test-key"}
            async with router.http.post(f"{router.url}/v1/{path}", json=body, headers=headers) as sent:
                told = await sent.text()
            assert sent.status == 200
            assert text in told

    asyncio.run(main())


def test_the_budget_holds_for_the_model_that_steps_in(tmp_path: Path) -> None:
    async def main() -> None:
        async with a_router(tmp_path, scripts={"fair": {"failures": ["reset"]}}) as router:
            answer = await router.ask(extra_body={"cost": 2.5})
            assert answer.model == "poor"
            assert answer.router_decision["attempts"] == ["fair", "poor"]
            assert router.counts()["good"] == 0

    asyncio.run(main())


def test_the_only_model_within_the_budget_is_asked_again(tmp_path: Path) -> None:
    async def main() -> None:
        async with a_router(tmp_path, scripts={"poor": {"failures": ["status:500", "reset"]}}) as router:
            answer = await router.ask(extra_body={"cost": 1})
            assert answer.router_decision["attempts"] == ["poor"] * 3

    asyncio.run(main())


def test_retry_after_is_waited_for_where_there_is_no_other_model(tmp_path: Path) -> None:
    async def main() -> None:
        async with a_router(tmp_path, scripts={"poor": {"failures": ["rate-limit:1"]}}) as router:
            began = asyncio.get_running_loop().time()
            assert (await router.ask(extra_body={"cost": 1})).model == "poor"
            assert asyncio.get_running_loop().time() - began >= 1

    asyncio.run(main())


def test_a_long_retry_after_is_handed_to_the_client(tmp_path: Path) -> None:
    async def main() -> None:
        async with a_router(tmp_path, scripts={"poor": {"failures": ["rate-limit:90"]}}) as router:
            for _ in range(2):  # the second one does not ask the provider again
                with pytest.raises(openai.RateLimitError) as caught:
                    await router.ask(extra_body={"cost": 1})
                assert 80 < int(caught.value.response.headers["retry-after"]) <= 91
            assert router.counts()["poor"] == 1

    asyncio.run(main())


def test_attempts_are_counted_over_all_models(tmp_path: Path) -> None:
    async def main() -> None:
        fail = {"failure": "reset", "failure_rate": 1.0}
        scripts = {"good": fail, "fair": fail, "poor": fail}
        async with a_router(tmp_path, scripts=scripts, max_attempts=2) as router:
            with pytest.raises(openai.InternalServerError) as caught:
                await router.ask()
            assert caught.value.status_code == 502
            assert router.counts() == {"good": 1, "fair": 1, "poor": 0}

    asyncio.run(main())


def test_when_all_take_too_long_the_client_hears_504(tmp_path: Path) -> None:
    async def main() -> None:
        slow = {"latency": 60}
        times = {"answer": 0.1, "total": 0.8}
        async with a_router(tmp_path, scripts=dict.fromkeys(("good", "fair", "poor"), slow), timeouts=times) as router:
            with pytest.raises(openai.InternalServerError) as caught:
                await router.ask()
            assert caught.value.status_code == 504

    asyncio.run(main())


def test_the_deadline_of_the_request_ends_everything(tmp_path: Path) -> None:
    async def main() -> None:
        slow = {"latency": 60}
        async with a_router(tmp_path, scripts={"good": slow}, timeouts={"answer": 50, "total": 0.3}) as router:
            status, body, _ = await router.post("/v1/chat/completions", {"messages": HELLO})
            assert status == 504
            assert body["error"]["type"] == "server_error"

    asyncio.run(main())


def test_a_stream_that_is_not_complete_at_the_deadline_ends_with_an_error(tmp_path: Path) -> None:
    async def main() -> None:
        slow = {"tokens": 50, "token_seconds": 0.05, "text": None}
        async with a_router(tmp_path, scripts={"good": slow}, timeouts={"total": 0.4}) as router:
            told = await events(router.http, router.url)
            assert json.loads(told[-1])["error"]["code"] == "deadline_exceeded"
            assert len(told) > 2

    asyncio.run(main())


def test_refused_content_is_told_and_not_tried_elsewhere(tmp_path: Path) -> None:
    async def main() -> None:
        async with a_router(tmp_path, scripts={"good": {"failures": ["content-filter"]}}) as router:
            with pytest.raises(openai.APIStatusError) as caught:
                await router.ask()
            assert (caught.value.status_code, caught.value.code) == (400, "content_filter")
            assert router.counts() == {"good": 1, "fair": 0, "poor": 0}

    asyncio.run(main())


def test_a_request_is_invalid_when_two_models_say_so(tmp_path: Path) -> None:
    async def main() -> None:
        scripts = {name: {"failures": ["status:422"]} for name in ("good", "fair")}
        async with a_router(tmp_path, scripts=scripts) as router:
            with pytest.raises(openai.APIStatusError) as caught:
                await router.ask()
            assert (caught.value.status_code, caught.value.code) == (422, "invalid_request")
            assert router.counts() == {"good": 1, "fair": 1, "poor": 0}
            assert not router.service.fleet.failing()

    asyncio.run(main())


def test_a_model_that_alone_finds_requests_invalid_is_to_blame(tmp_path: Path) -> None:
    async def main() -> None:
        scripts = {"good": {"failures": ["status:400"] * 9}}
        async with a_router(tmp_path, scripts=scripts, breaker={"failures": 3, "seconds": 60}) as router:
            for _ in range(5):
                assert (await router.ask()).model == "fair"
            assert router.counts() == {"good": 3, "fair": 5, "poor": 0}
            assert router.service.fleet.failing() == {"good"}

    asyncio.run(main())


def test_a_model_that_does_not_go_on_with_an_answer_is_replaced(tmp_path: Path) -> None:
    async def main() -> None:
        async with a_router(tmp_path, scripts={"good": {"failures": ["prefill"]}}) as router:
            messages = [*HELLO, {"role": "assistant", "content": "Sure:"}]
            assert (await router.ask(messages)).model == "fair"

    asyncio.run(main())


def test_a_prompt_that_is_too_long_goes_to_a_larger_window(tmp_path: Path) -> None:
    async def main() -> None:
        windows = {"good": {"context_window": 1000}, "fair": {"context_window": 1000}, "poor": {"context_window": 9000}}
        async with a_router(tmp_path, windows, scripts={"good": {"failures": ["context-length"]}}) as router:
            assert (await router.ask()).model == "poor"
            assert router.counts() == {"good": 1, "fair": 0, "poor": 1}

    asyncio.run(main())


def test_an_oversize_prompt_never_meets_a_small_window(tmp_path: Path) -> None:
    async def main() -> None:
        windows = {"good": {"context_window": 1000}, "fair": {"context_window": 50_000}}
        async with a_router(tmp_path, windows) as router:
            long = [{"role": "user", "content": "many words " * 2000}]
            assert (await router.ask(long)).model == "fair"
            assert router.counts()["good"] == 0

    asyncio.run(main())


def test_no_window_is_large_enough(tmp_path: Path) -> None:
    async def main() -> None:
        windows = {key: {"context_window": 1000} for key in ("good", "fair", "poor")}
        async with a_router(tmp_path, windows) as router:
            with pytest.raises(openai.BadRequestError) as caught:
                await router.ask([{"role": "user", "content": "many words " * 2000}])
            assert caught.value.code == "context_length_exceeded"

    asyncio.run(main())


def test_an_outage_costs_no_time_once_the_breaker_is_open_and_the_model_comes_back(tmp_path: Path) -> None:
    async def main() -> None:
        scripts = {"good": {"failures": ["status:503"] * 3}}
        async with a_router(tmp_path, scripts=scripts, breaker={"failures": 2, "seconds": 0.5}) as router:
            assert [(await router.ask()).model for _ in range(4)] == ["fair"] * 4
            assert router.counts()["good"] == 2
            await asyncio.sleep(0.6)
            assert (await router.ask()).router_decision["attempts"] == ["good", "fair"]  # the probe fails
            assert (await router.ask()).router_decision["attempts"] == ["fair"]
            await asyncio.sleep(0.6)
            assert [(await router.ask()).model for _ in range(2)] == ["good"] * 2

    asyncio.run(main())


def test_a_request_whose_only_model_rests_is_told_when_to_come_again(tmp_path: Path) -> None:
    async def main() -> None:
        fail = {"failure": "status:503", "failure_rate": 1.0}
        settings = {"breaker": {"failures": 1, "seconds": 40}, "max_attempts": 1}
        async with a_router(
            tmp_path, scripts={"poor": fail, "fair": {"failures": ["rate-limit:9"]}}, **settings
        ) as router:
            for extra in ({"cost": 1}, {"direct_model": "poor"}, {"direct_model": "fair"}):
                for _ in range(2):
                    with pytest.raises(openai.APIStatusError) as caught:
                        await router.ask(extra_body=extra)
                waits = 9 if extra == {"direct_model": "fair"} else 40
                assert waits - 2 <= int(caught.value.response.headers["retry-after"]) <= waits
                assert caught.value.status_code == (429 if waits == 9 else 502)
            assert router.counts()["poor"] == 1

    asyncio.run(main())


def test_only_one_request_tries_a_model_that_was_down(tmp_path: Path) -> None:
    async def main() -> None:
        # The trial stays open until the others are answered, however slow the machine: its success would let them in.
        scripts = {"good": {"failures": ["status:503"], "latency": 60.0}}
        async with a_router(tmp_path, scripts=scripts, breaker={"failures": 1, "seconds": 0.2}) as router:
            await router.ask()
            await asyncio.sleep(0.3)
            waiting = {asyncio.ensure_future(router.ask()) for _ in range(5)}
            answers = []
            while len(waiting) > 1:
                done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                answers.extend(task.result().model for task in done)
            assert answers == ["fair"] * 4
            assert router.counts() == {"good": 2, "fair": 5, "poor": 0}
            for trial in waiting:
                trial.cancel()
            await asyncio.wait(waiting)

    asyncio.run(main())


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_ends_the_call_to_the_provider(tmp_path: Path, stream: bool) -> None:
    async def main() -> None:
        ended = asyncio.Event()

        async def hang(request: web.Request) -> web.StreamResponse:
            response = web.StreamResponse(headers={"content-type": "text/event-stream"})
            try:
                if stream:
                    await response.prepare(request)
                    chunk = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m"}
                    chunk["choices"] = [{"index": 0, "delta": {"content": "a"}, "finish_reason": None}]
                    await response.write(f"data: {json.dumps(chunk)}\n\n".encode())
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                ended.set()
                raise
            return response

        app = web.Application()
        app.router.add_post("/v1/chat/completions", hang)
        async with served(app) as upstream, a_router(tmp_path, {"hung": model(f"{upstream}/v1")}) as router:
            asking = asyncio.ensure_future(first_of(router, stream))
            await asyncio.sleep(0.3)
            asking.cancel()
            await asyncio.wait([asking])
            await asyncio.wait_for(ended.wait(), 5)

    async def first_of(router, stream: bool) -> None:
        answer = await router.ask(stream=stream, extra_body={"direct_model": "hung"})
        async for _ in answer:
            pass

    asyncio.run(main())


@pytest.mark.parametrize("how", ["down", "slow"])
def test_without_scores_the_static_order_decides_and_the_answer_says_so(tmp_path: Path, how: str) -> None:
    async def main() -> None:
        endpoint = Endpoint({"good": 2.0, "fair": 1.0, "poor": 0.0}, is_down=how == "down", pause=5.0)
        order = ["fair", "good"]
        async with a_router(tmp_path, endpoint=endpoint, static_order=order, score_timeout_ms=50) as router:
            raw = await router.client.chat.completions.with_raw_response.create(model="-", messages=HELLO)
            assert raw.headers["x-p2l-static"] == "true"
            answer = raw.parse()
            assert answer.model == "fair"
            assert answer.router_decision["static"] is True

    asyncio.run(main())


def test_the_endpoint_is_used_when_it_comes_back(tmp_path: Path) -> None:
    async def main() -> None:
        endpoint = Endpoint({"good": 2.0, "fair": 1.0, "poor": 0.0}, is_down=True)
        async with a_router(tmp_path, endpoint=endpoint, static_order=["poor"]) as router:
            assert (await router.ask()).model == "poor"
            endpoint.is_down = False
            for _ in range(100):
                await asyncio.sleep(0.05)
                if (await router.ask()).model == "good":
                    break
            else:
                pytest.fail("still routed without scores")

    asyncio.run(main())


def test_nothing_is_left_behind_by_clients_that_come_and_go(tmp_path: Path) -> None:
    async def main() -> None:
        slow = {"token_seconds": 0.05, "latency": 0.05}
        async with a_router(tmp_path, scripts=dict.fromkeys(("good", "fair", "poor"), slow)) as router:
            body = {"messages": HELLO}

            async def one(number: int) -> None:
                sent = {**body, "stream": number % 2 == 0}
                await router.post("/v1/chat/completions", sent) if not sent["stream"] else await drain(sent)

            async def drain(sent: Any) -> None:
                headers = {"authorization": "Bearer test-key"}
                async with router.http.post(
                    f"{router.url}/v1/chat/completions", json=sent, headers=headers
                ) as response:
                    await response.read()

            tasks = [asyncio.ensure_future(one(number)) for number in range(80)]
            while sum(router.counts().values()) < 40:
                await asyncio.sleep(0.002)
            leaving = {task for task in tasks[::3] if not task.done()}
            for task in leaving:
                task.cancel()
            results = await asyncio.gather(*tasks, return_exceptions=True)
            left_early = [isinstance(result, asyncio.CancelledError) for result in results]
            assert left_early == [task in leaving for task in tasks]
            assert [result for result in results[1::3] if result is not None] == []
            lines = [""]
            while "p2l_router_running 0.0" not in lines:
                await asyncio.sleep(0.01)
                lines = (await router.get("/metrics"))[1].splitlines()
            left = [line for line in lines if 'status="499"' in line and "requests_total" in line]
            assert left
            assert (await router.ask()).model == "good"

    asyncio.run(main())
