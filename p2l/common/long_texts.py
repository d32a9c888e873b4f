"""Work on long texts in a service: off the event loop, and without holding the interpreter for long."""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import json
import math
import os
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache, partial
from json.decoder import scanstring  # type: ignore[attr-defined]
from json.encoder import encode_basestring_ascii
from json.scanner import py_make_scanner  # type: ignore[attr-defined]
from typing import Any, TypeVar

import pydantic_core

from p2l.common.errors import P2LError

T = TypeVar("T")
LONG = 32_000  # characters, or bytes, of a request that take more than a few milliseconds to work through
MANY = 20_000  # values of JSON that take more than a few milliseconds to walk through
# Python's parser and writer of JSON in C let no other thread run until they are done, which takes 100 ms for a string
# of 15 MB. So long strings go through C in pieces that take less than a millisecond each.
_PIECE_CHARS = 2**15  # or bytes
_PIECE_VALUES = 2**12
_LONG_FOR_ONE_CALL = 2**18  # characters that take some milliseconds in one call
_FIRST_PIECE_CHARS = 2**8
_MAX_WAITING_CHARS = 2**26  # of the texts that wait for the threads: at most 256 MB
# An escape that goes on after the end, or half of a character, of which the other half may follow.
_ESCAPE_AT_END = re.compile(r"(?:\\u[dD][89abAB][0-9a-fA-F]{2})?(?:\\(?:u[0-9a-fA-F]{0,3})?)?\Z")
_LONGEST_ESCAPE = 12


class BusyError(P2LError):
    """Too much is waiting already, or the service is shutting down; the client may try again."""


class LongWork:
    """A few threads for work on long texts; use it inside one event loop."""

    def __init__(self, threads: int | None = None, max_waiting: int = _MAX_WAITING_CHARS) -> None:
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
    """Count the strings, or lists and elements, of JSON without parsing it; counting ends above `most`."""
    quotes = separators = start = 0
    while start < len(body) and max(quotes // 2, separators) <= most:
        piece = body[start : start + _PIECE_CHARS]
        if (len(piece) - len(piece.rstrip(b"\\"))) % 2:  # the piece ends within an escape, which is not cut
            piece = body[start : start + len(piece) + 1]
        start += len(piece)
        plain = piece.replace(b"\\\\", b"").replace(b'\\"', b"")  # now every quotation mark begins or ends a string
        parts = plain.split(b'"')
        outside = b"".join(parts[quotes % 2 :: 2])
        quotes += len(parts) - 1
        separators += outside.count(b",") + outside.count(b"[") + outside.count(b"{")
    return max((quotes + 1) // 2, separators)


def bound_values(body: bytes, most: float) -> int:
    """Return the count of `count_values`, or an upper bound of it that is at most `most`."""
    quotes = separators = 0
    # Marks inside of strings are counted too: an upper bound needs no copy of what is outside of them.
    for start in range(0, len(body), _PIECE_CHARS):
        end = start + _PIECE_CHARS
        quotes += body.count(b'"', start, end)
        separators += body.count(b",", start, end) + body.count(b"[", start, end) + body.count(b"{", start, end)
    bound = max((quotes + 1) // 2, separators)
    return bound if bound <= most else count_values(body, most)


def decode(body: bytes, errors: str = "strict") -> str:
    """Return the text of UTF-8, without a byte order mark; other threads run meanwhile."""
    if len(body) <= _LONG_FOR_ONE_CALL:
        return body.decode("utf-8-sig", errors)
    decoder = codecs.getincrementaldecoder("utf-8-sig")(errors)
    pieces = [decoder.decode(body[start : start + _PIECE_CHARS]) for start in range(0, len(body), _PIECE_CHARS)]
    return "".join([*pieces, decoder.decode(b"", final=True)])


def count_bytes(text: str) -> int:
    """Return the bytes of a text in UTF-8."""
    if text.isascii():
        return len(text)
    pieces = (text[start : start + _PIECE_CHARS] for start in range(0, len(text), _PIECE_CHARS))
    return sum(len(piece.encode("utf-8", "replace")) for piece in pieces)


def may_be_deeper(body: bytes, most: int) -> bool:
    """Return whether JSON may be nested deeper than `most` levels, by its length and the brackets in it."""
    if len(body) <= 2 * most:  # the two brackets of each level
        return False
    for start in range(0, len(body), _PIECE_CHARS):
        end = start + _PIECE_CHARS
        most -= body.count(b"[", start, end) + body.count(b"{", start, end)
        if most < 0:
            return True
    return False


class PatientDecoder(json.JSONDecoder):
    """A decoder in Python, ten times as slow as C's, that lets other threads run between two pieces of a string."""

    def __init__(self, **options: Any) -> None:
        """Take the options of `json.JSONDecoder`."""
        super().__init__(**options)
        self.parse_string = _scan_string
        self.scan_once = py_make_scanner(self)


def _scan_string(text: str, begin: int, strict: bool = True) -> tuple[str, int]:
    """Return a string of JSON, and where it ends; see `json.decoder.scanstring`."""
    size = _FIRST_PIECE_CHARS
    quote = text.find('"', begin, begin + size)
    if quote >= 0 and text[quote - 1] != "\\":
        return scanstring(text, begin, strict)  # type: ignore[no-any-return]
    pieces = []
    while begin + size < len(text):
        # Cut at the end of the piece or a little before it, so that no escape is cut.
        end_of_piece = begin + size
        escape = _ESCAPE_AT_END.search(text, max(begin, end_of_piece - _LONGEST_ESCAPE), end_of_piece)
        cut = end_of_piece if escape is None else escape.start()
        plain = text[begin:cut]
        cut -= (len(plain) - len(plain.rstrip("\\"))) % 2
        piece, end = scanstring(text[begin:cut] + '"', 0, strict)
        pieces.append(piece)
        if end <= cut - begin:
            return "".join(pieces), begin + end
        begin, size = cut, min(2 * size, _PIECE_CHARS)
    piece, end = scanstring(text, begin, strict)
    return "".join([*pieces, piece]), end


def holds_more(content: Any, values: float, chars: float = math.inf) -> bool:
    """Return whether parsed JSON holds more values, or characters in them, without looking at the rest."""
    # A loop and no recursion, since every request, and each token of a stream, comes here.
    left = [content] if isinstance(content, (list, dict)) else [[content]]
    values -= isinstance(content, (list, dict))
    while left:
        container = left.pop()
        values -= len(container)
        if values < 0:
            return True
        for value in container.values() if isinstance(container, dict) else container:
            kind = type(value)
            if kind is str:
                chars -= len(value)
            elif kind is dict or kind is list:
                left.append(value)
        if chars < 0:
            return True
    return values < 0


def dumps(content: Any) -> str:
    """Return JSON; of many values or long strings patiently, so that other threads run meanwhile."""
    if not holds_more(content, MANY, _LONG_FOR_ONE_CALL):
        return json.dumps(content)
    return "".join(_pieces(content))


def _pieces(content: Any) -> Iterator[str]:
    """Return JSON in pieces, each of which takes C less than a millisecond."""
    if not holds_more(content, _PIECE_VALUES, _PIECE_CHARS):
        yield json.dumps(content)
    elif isinstance(content, str):
        yield '"'
        for start in range(0, len(content), _PIECE_CHARS):
            yield encode_basestring_ascii(content[start : start + _PIECE_CHARS])[1:-1]
        yield '"'
    elif isinstance(content, dict):
        for number, (key, value) in enumerate(content.items()):
            yield ", " if number else "{"
            yield from _pieces(key)
            yield ": "
            yield from _pieces(value)
        yield "}"
    else:
        for number, element in enumerate(content):
            yield ", " if number else "["
            yield from _pieces(element)
        yield "]"


def short_dumps(content: Any) -> bytes:
    """Return JSON of few values as bytes of ASCII, without spaces."""
    # Rust takes a fifth of the time of Python's writer in C. It has no halves of characters, and writes other ones than
    # ASCII's as they are, some of which end a line for readers of streams.
    with contextlib.suppress(ValueError):
        text = pydantic_core.to_json(content)
        if text.isascii():
            return text
    return _compact(content).encode()


def long_dumps(content: Any) -> bytes:
    """Return the JSON of `dumps` as bytes."""
    return dumps(content).encode()


_compact = json.JSONEncoder(separators=(",", ":"), check_circular=False).encode


class TooManyValuesError(ValueError):
    """JSON holds more values than anybody needs."""


# One thread for all of it: each holds the interpreter for moments, for which the event loop has to wait in turn.
_thread = LongWork(threads=1)


async def patiently(function: Callable[[], T]) -> T:
    """Call a function, which takes long, in the thread of such work."""
    return await _thread.run(0, function)


async def beside(size: int, function: Callable[[], T]) -> T:
    """Call a function that works on `size` characters: here, or in a thread where they are many."""
    return await patiently(function) if size > LONG else function()


async def apart(content: Any, function: Callable[[], T]) -> T:
    """Call a function that walks through JSON: here, or in a thread where it holds many values."""
    return await patiently(function) if holds_more(content, MANY) else function()


async def from_json(text: str) -> Any:
    """Parse JSON that we have written, in a thread where it is long."""
    if len(text) <= LONG:
        return json.loads(text)
    return await patiently(lambda: PatientDecoder().decode(text))


async def to_json(content: Any) -> bytes:
    """Return JSON as bytes, made in a thread where it is long."""
    if not holds_more(content, MANY, LONG):
        return short_dumps(content)
    return await patiently(lambda: long_dumps(content))


def loads(text: bytes, decoder: json.JSONDecoder, errors: str = "strict") -> Any:
    """Parse JSON in UTF-8, with a decoder what Rust is not to be trusted with; raise as that does."""
    if len(text) <= LONG:
        # It refuses some that Python reads: what begins with a mark, is deep, or has halves of characters or constants.
        with contextlib.suppress(ValueError):
            return pydantic_core.from_json(text, allow_inf_nan=False, cache_strings="keys")
    return decoder.decode(decode(text, errors))


@lru_cache(maxsize=16)
def _usual_decoder(**options: Any) -> json.JSONDecoder:
    return json.JSONDecoder(**options)


async def parse_apart(
    text: bytes, parse: Callable[[json.JSONDecoder], T], *, most_values: float = math.inf, **options: Any
) -> T:
    """Call `parse` with a decoder that suits a text, in a thread where it is long; `options` are the decoder's.

    With `most_values`, raise TooManyValuesError for more values, BusyError where too much is waiting already.
    """
    if len(text) <= LONG:
        return parse(_usual_decoder(**options))
    size = 0
    if most_values < math.inf:
        size = len(text)
        if await _thread.run(size, partial(bound_values, text, most_values)) > most_values:
            raise TooManyValuesError(f"more than {most_values:,} values")
    decoder = PatientDecoder(**options) if len(text) > _LONG_FOR_ONE_CALL else _usual_decoder(**options)
    return await _thread.run(size, partial(parse, decoder))
