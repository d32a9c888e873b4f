"""Work on long texts in a service: off the event loop, and JSON of many values without holding the interpreter.

Python's parser and writer of JSON in C let no other thread run until they are done. Those in Python take longer and let
others run meanwhile, so they are for what holds many values, one text after the other.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from json.scanner import py_make_scanner  # type: ignore[attr-defined]
from typing import Any, TypeVar

from p2l.common.errors import P2LError

T = TypeVar("T")
LONG = 32_000
"""Characters, or bytes, of a request that take more than a few milliseconds to work through."""
MANY = 20_000
"""Values of JSON that take more than a few milliseconds to parse or write."""
_MAX_WAITING = 2**26  # characters that may wait for the threads, at most 256 MB
_BYTES_AT_ONCE = 2**18


class BusyError(P2LError):
    """Too much is waiting already, or the service is shutting down; the client may come again."""


class LongWork:
    """A few threads for work on long texts; use it inside one event loop."""

    def __init__(self, threads: int | None = None, max_waiting: int = _MAX_WAITING) -> None:
        """Start no thread yet; by default there is one for each core, up to four."""
        self._threads = ThreadPoolExecutor(threads or min(4, os.cpu_count() or 1), thread_name_prefix="p2l-long")
        self._max_waiting = max_waiting
        self._waiting = 0

    async def run(self, size: int, function: Callable[[], T]) -> T:
        """Call `function`, which works on `size` characters, in a thread; BusyError if too many wait already."""
        if self._waiting and self._waiting + size > self._max_waiting:
            raise BusyError("too many long texts are waiting already; try again in a moment")
        self._waiting += size
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, function)
        finally:
            self._waiting -= size

    def close(self) -> None:
        """End the threads, after the work under way."""
        self._threads.shutdown(wait=False, cancel_futures=True)


def count_values(body: bytes, most: float) -> int:
    """Return how many strings, or lists and elements, JSON holds, without making any; counting ends above `most`."""
    quotes = separators = start = 0
    while start < len(body) and max(quotes // 2, separators) <= most:
        piece = _piece(body, start)
        start += len(piece)
        plain = piece.replace(b"\\\\", b"").replace(b'\\"', b"")  # now every quotation mark begins or ends a string
        parts = plain.split(b'"')
        outside = b"".join(parts[quotes % 2 :: 2])
        quotes += len(parts) - 1
        separators += outside.count(b",") + outside.count(b"[") + outside.count(b"{")
    return max((quotes + 1) // 2, separators)


def _piece(body: bytes, start: int) -> bytes:
    """Return the next bytes, so few that other threads need not wait; no escape is cut."""
    end = start + _BYTES_AT_ONCE
    if body[end - 1 : end] == b"\\":
        end = len(body) - len(body[end:].lstrip(b"\\")) + 1
    return body[start:end]


def patient_decoder(**options: Any) -> json.JSONDecoder:
    """Return a decoder that lets other threads run between two values."""
    decoder = json.JSONDecoder(**options)
    decoder.scan_once = py_make_scanner(decoder)  # type: ignore[attr-defined]
    return decoder


def holds_more(content: Any, values: float, chars: float = math.inf) -> bool:
    """Return whether parsed JSON holds more values, or characters in them, without looking at the rest."""
    left = [content]
    while left:
        part = left.pop()
        values -= 1
        if isinstance(part, str):
            chars -= len(part)
        elif isinstance(part, list | dict):
            if len(part) > values:
                return True
            left.extend(part.values() if isinstance(part, dict) else part)
        if values < 0 or chars < 0:
            return True
    return False


def dumps(content: Any, **options: Any) -> str:
    """Return JSON; of many values patiently, so that other threads run meanwhile."""
    if holds_more(content, MANY):
        return "".join(json.JSONEncoder(**options).iterencode(content))
    return json.dumps(content, **options)


class TooManyValuesError(ValueError):
    """JSON holds more values than anybody needs."""


_long = LongWork(threads=2)
_patient = LongWork(threads=1)  # more threads that run Python would only wait for each other


async def patiently(function: Callable[[], T]) -> T:
    """Call a function, which runs Python for long and holds the interpreter for moments, in the thread of such work."""
    return await _patient.run(0, function)


async def apart(content: Any, function: Callable[[], T]) -> T:
    """Call a function that walks through JSON: here, or in a thread where it holds many values."""
    return await patiently(function) if holds_more(content, MANY) else function()


async def to_json(content: Any, **options: Any) -> bytes:
    """Return JSON as bytes, made in a thread where it is long."""

    def encode() -> bytes:
        return dumps(content, **options).encode()

    if holds_more(content, MANY):
        return await patiently(encode)
    return await _long.run(0, encode) if holds_more(content, MANY, LONG) else encode()


async def parse_apart(
    text: bytes, parse: Callable[[json.JSONDecoder], T], *, most: float = math.inf, **options: Any
) -> T:
    """Call `parse` with a decoder that suits a text, in a thread where it is long.

    With `most`, raise TooManyValuesError for more values, BusyError where too much is waiting already.
    """
    if len(text) <= LONG:
        return parse(json.JSONDecoder(**options))
    size = len(text) if most < math.inf else 0
    values = await _long.run(size, partial(count_values, text, most))
    if values > most:
        raise TooManyValuesError(f"more than {most:,} values")
    if values > MANY:
        return await _patient.run(size, partial(parse, patient_decoder(**options)))
    return await _long.run(size, partial(parse, json.JSONDecoder(**options)))
