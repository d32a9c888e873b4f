"""Agents: rounds of tools stay with their model, turns with its prompt cache, and failures move both."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from tests.route.router_helpers import Endpoint, Running, a_router

TOOLS = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}]
MIXED = {"cost_optimizer": "simple-lp"}
BUDGET = {"cost": 2.0}
"""Between the dear model and the cheap one: half of the requests go to each."""
LONG = "Here is the whole file. " * 400


def start(number: int, text: str = "") -> list[dict[str, Any]]:
    return [{"role": "system", "content": "You mend code."}, {"role": "user", "content": f"task {number} {text}"}]


def one_round(number: int, identifier: str = "call_{}") -> list[dict[str, Any]]:
    name = identifier.format(number)
    call = {"id": name, "type": "function", "function": {"name": "look", "arguments": "{}"}}
    return [
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": name, "content": "nothing there"},
    ]


def turn(number: int) -> list[dict[str, Any]]:
    return [{"role": "assistant", "content": "Done."}, {"role": "user", "content": f"and now {number}"}]


async def ask(router: Running, messages: Any, **extra: Any) -> str:
    answer = await router.ask(messages, extra_body=BUDGET, **extra)
    return str(answer.model)


def cached(dear: float = 3.0) -> dict[str, Any]:
    """Prices at which a prompt of 2,400 tokens costs as much as an average answer where it is in no cache."""
    price = {"input": dear * 417, "output": 1, "cached": dear * 41.7}
    return {"good": {"price": price}, "fair": {"cost": 3.0, "price": price}, "poor": {"price": price}}


def test_25_rounds_of_tools_stay_with_their_model(tmp_path: Path) -> None:
    async def main() -> None:
        async with a_router(tmp_path, settings=MIXED, coefs={"good": 2.0, "fair": -3.0, "poor": 0.0}) as router:
            seen: set[str] = set()
            for task in range(60):
                if len(seen) > 1:
                    break
                messages = start(task)
                models = []
                for number in range(25 if task < 2 else 3):
                    models.append(await ask(router, messages, tools=TOOLS))
                    messages += one_round(number)
                    if number == 1:  # a note of the client beside the results, and a stream
                        messages.append({"role": "user", "content": "Remember to be brief."})
                assert len(set(models)) == 1
                seen.add(models[0])
            assert seen == {"good", "poor"}

    asyncio.run(main())


def test_rounds_in_streams_and_messages_stay_too(tmp_path: Path) -> None:
    async def main() -> None:
        async with a_router(tmp_path, settings=MIXED, coefs={"good": 2.0, "fair": -3.0, "poor": 0.0}) as router:
            for task in range(6):
                messages = start(task)
                models = set()
                for number in range(4):
                    stream = await router.ask(messages, tools=TOOLS, stream=True, extra_body=BUDGET)
                    models |= {chunk.model async for chunk in stream}
                    messages += one_round(number)
                assert len(models) == 1
                models, turns = set(), [{"role": "user", "content": f"message {task}"}]
                for number in range(4):
                    body = {"max_tokens": 9, "messages": turns, "tools": [{"name": "look", "input_schema": {}}]}
                    _, answer, _ = await router.post("/v1/messages", {**body, **BUDGET})
                    models.add(answer["model"])
                    use = {"type": "tool_use", "id": f"call_{number}", "name": "look", "input": {}}
                    done = {"type": "tool_result", "tool_use_id": f"call_{number}", "content": "nothing"}
                    turns += [{"role": "assistant", "content": [use]}, {"role": "user", "content": [done]}]
                assert len(models) == 1

    asyncio.run(main())


def test_a_failure_moves_a_round_with_identifiers_that_the_next_provider_takes(tmp_path: Path) -> None:
    async def main() -> None:
        changes = {"fair": {"options": {"tool_ids": "nine"}}}
        async with a_router(tmp_path, changes) as router:
            messages = start(0)
            assert (await router.ask(messages, tools=TOOLS)).model == "good"
            messages += one_round(1, "call_of_another_provider_{}") + one_round(2, "x" * 60)
            router.mocks["good"].fail_next("reset")
            assert (await router.ask(messages, tools=TOOLS)).model == "fair"
            last = router.last("fair")["messages"]
            calls = [message["tool_calls"][0]["id"] for message in last if message.get("tool_calls")]
            assert [message["tool_call_id"] for message in last if message["role"] == "tool"] == calls
            assert all(len(identifier) == 9 and identifier.isalnum() for identifier in calls)
            assert len(set(calls)) == 2
            messages += one_round(3)
            assert (await router.ask(messages, tools=TOOLS)).model == "fair"  # and stays there
            router.mocks["fair"].fail_next("reset")
            assert (await router.ask(messages, tools=TOOLS)).model == "good"
            last = router.last("good")["messages"]
            calls = [message["tool_calls"][0]["id"] for message in last if message.get("tool_calls")]
            assert calls[0] == "call_of_another_provider_1"
            assert len(calls[1]) == 9  # OpenAI takes 40 characters

    asyncio.run(main())


def test_a_conversation_leaves_its_prompt_cache_only_for_a_gain_that_is_worth_it(tmp_path: Path) -> None:
    async def main() -> None:
        endpoint = Endpoint({"good": 2.0, "fair": -3.0, "poor": 0.0})
        async with a_router(tmp_path, cached(), settings=MIXED, endpoint=endpoint) as router:
            seen: set[str] = set()
            dear: list[Any] = []
            for task in range(60):
                if len(seen) > 1:
                    break
                messages = start(task, LONG)
                models = []
                for number in range(5):
                    models.append(await ask(router, messages))
                    messages += turn(number)
                assert len(set(models)) == 1
                seen.add(models[0])
                dear = messages if models[0] == "good" else dear
            assert seen == {"good", "poor"}
            endpoint.coefs = {"good": 2.0, "fair": 2.3, "poor": 0.0}  # fair is better, at the same cost, but hardly
            assert await ask(router, dear + turn(10)) == "good"
            endpoint.coefs = {"good": -3.0, "fair": 6.0, "poor": 0.0}
            assert await ask(router, dear + turn(20)) != "good"

    asyncio.run(main())


def test_without_a_cache_a_conversation_moves_freely(tmp_path: Path) -> None:
    async def main() -> None:
        coefs = {"good": 2.0, "fair": -3.0, "poor": 0.0}
        async with a_router(tmp_path, cached(), settings=MIXED, coefs=coefs) as router:
            messages = start(0)  # too short for a cache
            models = []
            for number in range(16):
                models.append(await ask(router, messages))
                messages += turn(number)
            assert set(models) == {"good", "poor"}
            messages = start(1, LONG)
            sticky, now = router.service.sticky, [0.0]
            sticky._clock = lambda: now[0]
            models = []
            for number in range(16):
                now[0] += 301  # the provider's cache is gone
                models.append(await ask(router, messages))
                messages += turn(number)
            assert set(models) == {"good", "poor"}

    asyncio.run(main())
