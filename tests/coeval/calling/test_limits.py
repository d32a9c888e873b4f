from __future__ import annotations

import asyncio

from coeval.calling.limits import Limits, OneModelAtATime


def test_a_local_model_stays_while_anybody_waits_for_it() -> None:
    order: list[str] = []

    async def ask(turns: OneModelAtATime, model: str) -> None:
        async with turns.turn(model):
            order.append(model)
            await asyncio.sleep(0)

    async def all_of_them() -> None:
        turns = OneModelAtATime()
        await asyncio.gather(*(ask(turns, model) for model in "abcabcabc"))

    asyncio.run(all_of_them())
    assert "".join(order) == "aaabbbccc"


def test_a_turn_that_comes_with_a_cancellation_is_passed_on() -> None:
    async def main() -> list[str]:
        turns, done = OneModelAtATime(), list[str]()

        async def ask(model: str) -> None:
            async with turns.turn(model):
                await asyncio.sleep(0.001)
                done.append(model)

        first, gone, last = (asyncio.create_task(ask(model)) for model in "abc")
        await asyncio.sleep(0)
        first.add_done_callback(lambda _: gone.cancel())
        await asyncio.wait([first, gone, last])
        return done

    assert asyncio.run(main()) == ["a", "c"]


def test_each_interface_has_its_own_turns() -> None:
    limits = Limits({"openai": 3}, {"openai": 60.0})
    assert limits.at("openai") is limits.at("openai")
    assert limits.at("openai") is not limits.at("groq")
    assert isinstance(limits.at("huggingface"), OneModelAtATime)
