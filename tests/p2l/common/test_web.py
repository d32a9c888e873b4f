"""What ends a request: its client, its deadline, or somebody else."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Coroutine
from typing import Any

import pytest
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import Message, Receive

from p2l.common.web import ClientGoneError, Deadline, alive, read_body, time_limit


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


def test_a_client_that_leaves_with_the_last_word_of_the_block_cancels_nothing_after_it() -> None:
    async def work() -> str:
        left = asyncio.Event()

        async def receive() -> dict[str, str]:
            await left.wait()
            return {"type": "http.disconnect"}

        async with alive(receive, Deadline.after(60), TimeoutError("the time is up")):
            await asyncio.sleep(0.1)  # by then somebody listens
            left.set()
            await asyncio.sleep(0)  # who has heard it, and not told yet
        await asyncio.sleep(0.01)
        return "kept"

    assert asyncio.run(work()) == "kept"


def test_a_block_that_takes_too_long_ends_with_the_error_given() -> None:
    async def main() -> None:
        with time_limit(0.01, ValueError("late")):
            await asyncio.sleep(60)

    with pytest.raises(ValueError, match="late"):
        asyncio.run(main())


@pytest.mark.skipif(sys.version_info < (3, 11), reason="a task counts its cancellations from Python 3.11")
def test_a_cancellation_from_elsewhere_at_the_same_moment_stays_one() -> None:
    async def main() -> None:
        task = asyncio.current_task()
        assert task is not None
        with time_limit(0.0, ValueError("late")):
            asyncio.get_running_loop().call_soon(task.cancel)
            await asyncio.sleep(60)

    with pytest.raises(asyncio.CancelledError):
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


def test_bodies_that_arrive_together_do_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("p2l.common.web._Bodies.max_bytes", 1000)

    async def main() -> None:
        gate = asyncio.Event()

        def body(*pieces: bytes) -> Receive:
            waiting = list(pieces)

            async def receive() -> Message:
                if len(waiting) == 1:
                    await gate.wait()
                piece = waiting.pop(0)
                return {"type": "http.request", "body": piece, "more_body": bool(waiting)}

            return receive

        def read(receive: Receive) -> Coroutine[Any, Any, bytes]:
            return read_body(Headers(), receive, 2000, 60)

        slow = [asyncio.create_task(read(body(b"a" * 400, b"b"))) for _ in range(2)]
        await asyncio.sleep(0)
        with pytest.raises(HTTPException) as caught:
            await read(body(b"c" * 400, b"d"))
        assert caught.value.status_code == 503
        gate.set()
        assert await asyncio.gather(*slow) == [b"a" * 400 + b"b"] * 2
        assert await read(body(b"c" * 900, b"d")) == b"c" * 900 + b"d"
        assert await read(body(b"e" * 1500)) == b"e" * 1500

    asyncio.run(main())
