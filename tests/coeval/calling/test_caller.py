from __future__ import annotations

import asyncio
import sqlite3
import time
from pathlib import Path
from typing import Any

import pytest

from coeval.calling.calls import CallError, Reason, Reply, chat_request, usage_of
from coeval.calling.limits import MemoryLedger, Retries, most_tokens
from coeval.mock.server import MockServer
from coeval.schema import Model
from route.providers.usage import TokenCounts
from tests.coeval.calling.calling_helpers import call, caller_of, model_at, replies, run


def reply(found: Reply | CallError) -> Reply:
    assert isinstance(found, Reply), found
    return found


def error(found: Reply | CallError) -> CallError:
    assert isinstance(found, CallError), found
    return found


def test_an_answer_comes_with_its_tokens_its_cost_and_its_time(tmp_path: Path) -> None:
    with MockServer(latency=0.02) as server:
        caller = caller_of(tmp_path, price=(2.0, 8.0))
        answer = reply(replies(caller, [call(model_at(server.url, text="  Good morning. "), "Hello there")])[0])
    assert answer.text == "Good morning."
    assert (answer.prompt_tokens, answer.completion_tokens, answer.counted) == (2, 4, True)
    assert answer.cost_usd == pytest.approx((2 * 2 + 4 * 8) / 1e6)
    assert answer.seconds >= 0.02
    assert caller.totals.cost_usd == pytest.approx(answer.cost_usd)
    assert server.headers[0]["Authorization"] == "Bearer a-key-of-ours"


def test_tokens_that_nobody_counts_are_guessed() -> None:
    completion = {"choices": [{"message": {"content": "x" * 41}}], "usage": None}
    request = {"messages": [{"role": "user", "content": "y" * 80}]}
    assert usage_of(completion, request) == (TokenCounts(20, 10), False)


def test_an_interface_has_so_many_calls_in_flight_and_no_more(tmp_path: Path) -> None:
    with MockServer(latency=0.02) as server:
        calls = [call(model_at(server.url), f"Hello {n}") for n in range(24)]
        assert all(map(reply, replies(caller_of(tmp_path, concurrency={"openai": 6}), calls)))
    assert (server.requests, server.peak) == (24, 6)


def test_a_rate_limit_spreads_calls_over_the_minute(tmp_path: Path) -> None:
    with MockServer() as server:
        calls = [call(model_at(server.url), f"Hello {n}") for n in range(5)]
        started = time.monotonic()
        replies(caller_of(tmp_path, rate_limit={"openai": 1200.0}), calls)
        assert time.monotonic() - started >= 4 * 60 / 1200


@pytest.mark.parametrize("status", [429, 500, 502, 503, 529, 408])
def test_what_may_pass_is_asked_again(tmp_path: Path, status: int) -> None:
    with MockServer(failures=[status, status], retry_after=0) as server:
        caller = caller_of(tmp_path)
        reply(replies(caller, [call(model_at(server.url))])[0])
    assert (server.requests, caller.totals.requests, caller.totals.retries) == (3, 3, 2)


def test_a_provider_that_is_full_is_left_alone_for_as_long_as_it_asks(tmp_path: Path) -> None:
    with MockServer(failures=[429], retry_after=0.2) as server:
        model = model_at(server.url)

        async def work(caller: Any) -> float:
            first = asyncio.create_task(caller.ask(call(model, "first")))
            while server.requests == 0 or caller.totals.retries == 0:
                await asyncio.sleep(0.001)
            started = time.monotonic()
            await caller.ask(call(model, "second"))
            await first
            return time.monotonic() - started

        assert run(work, caller_of(tmp_path)) > 0.15


def test_a_call_fails_after_all_its_requests(tmp_path: Path) -> None:
    with MockServer(failures=[500] * 3) as server:
        model = model_at(server.url)
        failed = replies(caller_of(tmp_path, retries=Retries(attempts=3, base=0.0)), [call(model)])[0]
        answered = replies(caller_of(tmp_path), [call(model)])[0]
    assert error(failed).reason is Reason.FAILED
    assert "500" in str(failed)
    reply(answered)


@pytest.mark.parametrize(("status", "stops"), [(401, True), (403, True), (404, False)])
def test_a_refused_key_or_model_stops_this_model_alone(tmp_path: Path, status: int, stops: bool) -> None:
    with MockServer(failures=[status]) as server:
        ant, bee = model_at(server.url), model_at(server.url, "bee")
        caller = caller_of(tmp_path, concurrency=1)
        calls = [call(ant, "first"), call(ant, "second"), call(bee), call(ant, "third", role="judge")]
        first, second, other, judged = replies(caller, calls)
    assert [error(one).reason for one in (first, second)] == [Reason.FATAL, Reason.FATAL]
    reply(other)
    # A model that cannot do what a student asks of it may still do what a judge does.
    assert isinstance(judged, CallError) is stops
    assert server.requests == (2 if stops else 3)
    assert "a-key-of-ours" not in str(first)


def test_a_model_that_is_not_there_is_named_in_the_providers_words(tmp_path: Path) -> None:
    with MockServer(only_these=True) as server:
        found = error(replies(caller_of(tmp_path), [call(model_at(server.url))])[0])
    assert found.reason is Reason.FATAL
    assert "The model `ant-1` does not exist" in str(found)


def test_a_request_that_is_wrong_every_time_stops_the_model(tmp_path: Path) -> None:
    with MockServer() as server:
        calls = [call(model_at(server.url, skill="high"), f"Hello {n}") for n in range(8)]
        found = [error(one) for one in replies(caller_of(tmp_path, concurrency=1), calls)]
    assert [one.reason for one in found] == [Reason.FAILED] * 4 + [Reason.FATAL] * 4
    assert server.requests == 5


def test_a_model_without_a_key_is_named(tmp_path: Path) -> None:
    found = error(replies(caller_of(tmp_path), [call(Model("ant", "openai", ("student",)))])[0])
    assert (found.reason, str(found)) == (Reason.FATAL, "no key for openai")


def test_an_answer_that_takes_too_long_is_given_up(tmp_path: Path) -> None:
    with MockServer(latency=2.0) as server:  # a request has to reach the server in its time on a busy machine too
        caller = caller_of(tmp_path, request_timeout=0.5, retries=Retries(timed_out=2, base=0.0))
        found = error(replies(caller, [call(model_at(server.url))])[0])
    assert found.reason is Reason.FAILED
    assert (server.requests, caller.totals.requests) == (2, 2)
    assert caller.totals.cost_usd > 0  # the provider may well charge for it


def test_an_empty_answer_is_none(tmp_path: Path) -> None:
    with MockServer() as server:
        caller = caller_of(tmp_path, retries=Retries(attempts=2, base=0.0))
        found = error(replies(caller, [call(model_at(server.url, text="  "))])[0])
    assert (found.reason, str(found)) == (Reason.FAILED, "the answer is empty")
    assert caller.totals.prompt_tokens == 2  # and paid for


def test_a_quota_counts_real_requests_and_is_never_exceeded(tmp_path: Path) -> None:
    ledger = MemoryLedger()
    with MockServer(failures=[500]) as server:
        calls = [call(model_at(server.url), f"Hello {n}") for n in range(8)]
        found = replies(caller_of(tmp_path, ledger=ledger, quota={"ant": 5}), calls)
        other = replies(caller_of(tmp_path, ledger=ledger, quota={"ant": 5}), [call(model_at(server.url))])
        probe = replies(caller_of(tmp_path, ledger=ledger, quota={"ant": 5}), [call(model_at(server.url), phase=None)])
    assert sum(isinstance(one, Reply) for one in found) == 4
    assert {one.reason for one in found if isinstance(one, CallError)} == {Reason.QUOTA}
    assert error(other[0]).reason is Reason.QUOTA  # of the next start of the run too
    reply(probe[0])
    assert (server.requests, ledger.quota_used) == (6, {"ant": 5})


def test_a_budget_is_not_exceeded_whatever_is_in_flight(tmp_path: Path) -> None:
    ledger = MemoryLedger()
    with MockServer(latency=0.01) as server:
        model = model_at(server.url, max_tokens=20, text="x" * 80)  # which cost 20 tokens exactly
        calls = [call(model, f"{n:030d}") for n in range(40)]
        caller = caller_of(tmp_path, ledger=ledger, budget_usd=500e-6, concurrency=16)
        found = replies(caller, calls)
    answered = [one for one in found if isinstance(one, Reply)]
    assert {one.reason for one in found if isinstance(one, CallError)} == {Reason.BUDGET}
    set_aside = sum(most_tokens(chat_request(model, "student", "0" * 30))) / 1e6
    assert 500e-6 - set_aside <= ledger.spent_usd <= 500e-6
    assert ledger.spent_usd == pytest.approx(sum(one.cost_usd for one in answered))
    assert "budget of $0.0005" in str(next(one for one in found if isinstance(one, CallError)))


def test_what_costs_nothing_is_asked_when_the_budget_is_gone(tmp_path: Path) -> None:
    ledger = MemoryLedger()
    ledger.add_spent(1.0)
    caller = caller_of(tmp_path, ledger=ledger, budget_usd=1.0, price=(0.0, 0.0))
    reply(replies(caller, [call(Model("ant", "mock", ("student",)))])[0])


def test_a_kept_answer_costs_nothing_and_survives_the_process(tmp_path: Path) -> None:
    ledger = MemoryLedger()
    with MockServer() as server:
        asked = call(model_at(server.url))
        first = reply(replies(caller_of(tmp_path, cache=True, ledger=ledger), [asked])[0])
        later = caller_of(tmp_path, cache=True, ledger=ledger, quota={"ant": 1})
        second = reply(replies(later, [asked])[0])
    assert server.requests == 1
    assert (second.text, second.cached, second.cost_usd, first.cached) == (first.text, True, 0.0, False)
    assert (later.totals.cached, later.totals.requests, ledger.quota_used) == (1, 0, {"ant": 1})


@pytest.mark.parametrize(
    "changes",
    [
        {"prompt": "Hello!"},
        {"attempt": 1},
        {"temperature": 0.1},
        {"system_prompt": "Be brief."},
        {"model": "ant-2"},
        {"anything": [1]},
    ],
)
def test_everything_that_decides_an_answer_is_part_of_its_key(tmp_path: Path, changes: dict[str, Any]) -> None:
    parameters = {key: value for key, value in changes.items() if key not in ("prompt", "attempt")}
    with MockServer() as server:
        other = call(
            model_at(server.url, **parameters), changes.get("prompt", "Hello"), attempt=changes.get("attempt", 0)
        )
        replies(caller_of(tmp_path, cache=True), [call(model_at(server.url)), other])
    assert server.requests == 2


def test_only_whole_answers_of_a_run_are_kept_and_no_key_or_prompt(tmp_path: Path) -> None:
    with MockServer() as server:
        asked = [
            call(model_at(server.url, text=" ")),
            call(model_at(server.url), "Probe", phase=None),
            call(Model("bee", "mock", ("student",))),
        ]
        replies(caller_of(tmp_path, cache=True), asked)
        assert not (tmp_path / "cache.sqlite").exists()
        reply(replies(caller_of(tmp_path, cache=True), [call(model_at(server.url), "My secret plan")])[0])
    with sqlite3.connect(tmp_path / "cache.sqlite") as file:
        assert file.execute("SELECT count(*) FROM answers").fetchone() == (1,)
    file.close()
    content = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    assert b"a-key-of-ours" not in content
    assert b"secret plan" not in content


def test_mock_models_draw_anew_for_each_attempt_and_fail_as_they_are_told(tmp_path: Path) -> None:
    model = Model("ant", "mock", ("student",), {"noise": 0.3, "failure_rate": 0.4, "latency": 0.001})
    found = [reply(one).text for one in replies(caller_of(tmp_path), [call(model, attempt=n % 2) for n in range(6)])]
    assert (found[0], found[1]) == (found[2], found[3])
    assert found[0] != found[1]
    broken = Model("bee", "mock", ("student",), {"skill": 3})
    refused = error(replies(caller_of(tmp_path), [call(broken)])[0])
    assert refused.reason is Reason.FATAL
    assert "skill" in str(refused)
