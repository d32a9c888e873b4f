"""Turns of requests: what arrives together begins a few at a time, address by address."""

from __future__ import annotations

import asyncio
import pickle

from p2l.common.connections import Turns


async def begun(turns: Turns, order: list[str], peer: str, name: str) -> None:
    await turns.take(asyncio.get_running_loop(), peer)
    order.append(name)


def test_a_burst_of_one_address_does_not_delay_another() -> None:
    async def main() -> list[str]:
        turns, order = Turns(at_once=2), list[str]()
        crowd = [asyncio.create_task(begun(turns, order, "crowd", f"c{number}")) for number in range(50)]
        await asyncio.sleep(0)
        assert len(order) == 2
        await begun(turns, order, "neighbour", "n")
        assert len(order) <= 6
        await asyncio.gather(*crowd)
        return order

    order = asyncio.run(main())
    assert [name for name in order if name != "n"] == [f"c{number}" for number in range(50)]


def test_a_turn_of_the_event_loop_comes_between_a_few_and_the_next() -> None:
    async def main() -> list[int]:
        turns, order, lengths = Turns(at_once=3), list[str](), list[int]()
        tasks = [asyncio.create_task(begun(turns, order, str(number % 5), "")) for number in range(30)]
        while len(order) < len(tasks):
            await asyncio.sleep(0)
            lengths.append(len(order))
        return lengths

    lengths = asyncio.run(main())
    assert max(later - earlier for earlier, later in zip([0, *lengths], lengths, strict=False)) == 3


def test_whoever_leaves_while_it_waits_takes_no_turn() -> None:
    async def main() -> list[str]:
        turns, order = Turns(at_once=1), list[str]()
        tasks = [asyncio.create_task(begun(turns, order, "a", str(number))) for number in range(9)]
        await asyncio.sleep(0)
        for task in tasks[1:8]:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await begun(turns, order, "b", "after")
        return order

    assert asyncio.run(main()) == ["0", "8", "after"]


def test_workers_get_their_own() -> None:
    assert pickle.loads(pickle.dumps(Turns())) is not None
