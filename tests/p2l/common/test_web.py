"""What ends a request: its client, its deadline, or somebody else."""

from __future__ import annotations

import asyncio

import pytest

from p2l.common.web import ClientGoneError, Deadline, alive, time_limit


async def never() -> dict[str, str]:
    await asyncio.sleep(60)
    return {}


async def leaves() -> dict[str, str]:
    await asyncio.sleep(0.01)
    return {"type": "http.disconnect"}


def test_the_client_leaves() -> None:
    async def main() -> None:
        async with alive(leaves, Deadline.after(60), TimeoutError("the time is up")):
            await asyncio.sleep(60)

    with pytest.raises(ClientGoneError):
        asyncio.run(main())


def test_the_time_is_up() -> None:
    async def main() -> None:
        async with alive(never, Deadline.after(0.01), TimeoutError("the time is up")):
            await asyncio.sleep(60)

    with pytest.raises(TimeoutError, match="the time is up"):
        asyncio.run(main())


def test_what_is_done_in_time_is_left_alone() -> None:
    async def main() -> int:
        async with alive(never, Deadline.after(0.05), TimeoutError("the time is up")):
            await asyncio.sleep(0)
        with time_limit(0.05, TimeoutError()):
            await asyncio.sleep(0)
        await asyncio.sleep(0.1)
        return 3

    assert asyncio.run(main()) == 3


def test_a_block_that_takes_too_long_ends_with_the_error_given() -> None:
    async def main() -> None:
        with time_limit(0.01, ValueError("late")):
            await asyncio.sleep(60)

    with pytest.raises(ValueError, match="late"):
        asyncio.run(main())


def test_a_cancellation_from_elsewhere_stays_one() -> None:
    async def main() -> None:
        async def work() -> None:
            async with alive(never, Deadline.after(60), TimeoutError("the time is up")):
                with time_limit(60, TimeoutError()):
                    await asyncio.sleep(60)

        task = asyncio.ensure_future(work())
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
