"""Tokenises the prompts of many requests in few calls, in threads beside the event loop.

While a call runs, what arrives waits for the next one: handing work from thread to thread costs more than tokenising a
short prompt does. Where the event loop computes anyway, it tokenises short prompts itself.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

from p2l.inference import P2L, Encoded

_MOST_REQUESTS = 64
_FEW_CHARS = 4_000  # tokenised in less time than a thread takes to answer
_MOST_CHARS = 100_000  # a request beyond it is long: it goes alone, and never takes the last of several threads

_Result = list[Encoded] | Exception


@dataclass(frozen=True)
class _Request:
    model: P2L
    prompts: Sequence[Sequence[str]]
    chars: int
    future: asyncio.Future[list[Encoded]]


class GroupTokenizer:
    """Belongs to one event loop."""

    def __init__(self, threads: int) -> None:
        """At most `threads` calls run at a time."""
        self._threads = threads
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="p2l-tokenize")
        self._short: deque[_Request] = deque()
        self._long: deque[_Request] = deque()
        self._running = 0
        self._long_running = 0

    async def encode(self, model: P2L, prompts: Sequence[Sequence[str]], *, here: bool = False) -> list[Encoded]:
        """Prompts as `model` reads them; with `here` short ones are not handed to a thread.

        Raises:
            InputError: a prompt without turns, or a turn that is no text.
        """
        chars = sum(len(turn) for prompt in prompts for turn in prompt)
        if here and chars <= _FEW_CHARS:
            return model.encode(prompts)
        future: asyncio.Future[list[Encoded]] = asyncio.get_running_loop().create_future()
        (self._long if chars > _MOST_CHARS else self._short).append(_Request(model, prompts, chars, future))
        self._start()
        return await future

    def close(self) -> None:
        """End the threads."""
        self._pool.shutdown(wait=False)

    def _start(self) -> None:
        while self._running < self._threads:
            long = _next_group(self._long) if self._long_running < max(1, self._threads - 1) else []
            group = long or _next_group(self._short)
            if not group:
                break
            self._running += 1
            self._long_running += bool(long)
            call = asyncio.get_running_loop().run_in_executor(self._pool, _encode_all, group)
            call.add_done_callback(partial(self._finish, group))

    def _finish(self, group: Sequence[_Request], done: asyncio.Future[list[_Result]]) -> None:
        self._running -= 1
        self._long_running -= group[0].chars > _MOST_CHARS
        if not done.cancelled():
            for request, result in zip(group, done.result(), strict=True):
                if request.future.done():
                    continue
                if isinstance(result, Exception):
                    request.future.set_exception(result)
                else:
                    request.future.set_result(result)
        self._start()


def _next_group(waiting: deque[_Request]) -> list[_Request]:
    """The oldest requests of one model that go into one call, without those that nobody waits for any more."""
    group: list[_Request] = []
    chars = 0
    while waiting and len(group) < _MOST_REQUESTS:
        first = waiting[0]
        if first.future.done():
            waiting.popleft()
            continue
        chars += first.chars
        if group and (first.model is not group[0].model or chars > _MOST_CHARS):
            break
        group.append(waiting.popleft())
    return group


def _encode_all(group: Sequence[_Request]) -> list[_Result]:
    """Each request's encodings; a request that cannot be encoded harms no other."""
    try:
        encoded = iter(group[0].model.encode([prompt for request in group for prompt in request.prompts]))
        return [[next(encoded) for _ in request.prompts] for request in group]
    except Exception as error:
        if len(group) == 1:
            return [error]
    return [result for request in group for result in _encode_all([request])]
