"""Work on long texts in a service: off the event loop, and JSON of many values without holding the interpreter.

Python's parser and writer of JSON in C let no other thread run until they are done. Those in Python take ten times as
long and let others run meanwhile. So what holds many values, or is long, goes through C piece by piece: some elements
of a list, or a part of a string, at a time.
"""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import json
import math
import os
import re
from abc import abstractmethod
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache, partial
from itertools import chain
from json.decoder import JSONArray, scanstring  # type: ignore[attr-defined]
from json.encoder import encode_basestring_ascii
from json.scanner import py_make_scanner  # type: ignore[attr-defined]
from typing import Any, TypeAlias, TypeVar

from p2l.common.errors import P2LError

T = TypeVar("T")
Scan: TypeAlias = Callable[[str, int], tuple[Any, int]]
LONG = 32_000
"""Characters, or bytes, of a request that take more than a few milliseconds to work through."""
MANY = 20_000
"""Values of JSON that take more than a few milliseconds to parse or write."""
_CONTAINERS = (list, dict)
_SINGLE = frozenset((int, float, bool, type(None)))
_MAX_WAITING = 2**26  # characters that may wait for the threads, at most 256 MB
AT_ONCE = 2**15
"""Characters, or bytes, that take less than a millisecond to go through in one call."""
_VERY_LONG = 2**18  # characters that take a few of them
_FIRST_PIECE = 2**8
_FEW = 2**12  # values that take less than a millisecond
_ELEMENTS = 2**8  # of a list, which are few values in most
_MOST_DEPTH = 8  # lists within lists whose elements are tried together
BLANKS = " \t\n\r"
_UP_TO_BLANKS = re.compile(r"[ \t\n\r]*")
_ESCAPE_AT_END = re.compile(r"(?:\\u[dD][89abAB][0-9a-fA-F]{2})?(?:\\(?:u[0-9a-fA-F]{0,3})?)?\Z")
"""An escape that goes on after the end, or half a character whose other half may follow."""
_LONGEST_ESCAPE = 12


class BusyError(P2LError):
    """Too much is waiting already, or the service is shutting down; the client may try again."""


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


def bound_values(body: bytes, most: float) -> int:
    """Return what `count_values` does or, at most `most`, something above it: marks inside of strings are counted."""
    quotes = separators = 0
    for start in range(0, len(body), AT_ONCE):
        end = start + AT_ONCE
        quotes += body.count(b'"', start, end)
        separators += body.count(b",", start, end) + body.count(b"[", start, end) + body.count(b"{", start, end)
    bound = max((quotes + 1) // 2, separators)
    return bound if bound <= most else count_values(body, most)


def _piece(body: bytes, start: int) -> bytes:
    """Return the next bytes, so few that other threads need not wait; no escape is cut."""
    piece = body[start : start + AT_ONCE]
    ends_in_escape = (len(piece) - len(piece.rstrip(b"\\"))) % 2
    return body[start : start + len(piece) + 1] if ends_in_escape else piece


def decode(body: bytes, errors: str = "strict") -> str:
    """Return the text of UTF-8, without a byte order mark; other threads run meanwhile."""
    if len(body) <= _VERY_LONG:
        return body.decode("utf-8-sig", errors)
    decoder = codecs.getincrementaldecoder("utf-8-sig")(errors)
    pieces = [decoder.decode(body[start : start + AT_ONCE]) for start in range(0, len(body), AT_ONCE)]
    return "".join([*pieces, decoder.decode(b"", final=True)])


def count_bytes(text: str) -> int:
    """Return the bytes of a text in UTF-8."""
    if text.isascii():
        return len(text)
    pieces = (text[start : start + AT_ONCE] for start in range(0, len(text), AT_ONCE))
    return sum(len(piece.encode("utf-8", "replace")) for piece in pieces)


def count_in(text: str, mark: str) -> int:
    """Return how often a character is in a text; other threads run meanwhile."""
    return sum(text.count(mark, start, start + AT_ONCE) for start in range(0, len(text), AT_ONCE))


def may_be_deeper(body: bytes, most: int) -> bool:
    """Return whether JSON may be nested deeper than `most` levels, by its length and the brackets in it."""
    if len(body) <= 2 * most:  # the two brackets of each level
        return False
    for start in range(0, len(body), AT_ONCE):
        end = start + AT_ONCE
        most -= body.count(b"[", start, end) + body.count(b"{", start, end)
        if most < 0:
            return True
    return False


class PatientDecoder(json.JSONDecoder):
    """A decoder that lets other threads run between two pieces of a long list or string."""

    def __init__(self, **options: Any) -> None:
        """Take the options of `json.JSONDecoder`."""
        super().__init__(**options)
        self.decode_whole = json.JSONDecoder(**options).decode
        """Decodes what is short."""
        self.parse_string = _scan_string
        self.parse_array = self._scan_array
        self._depth = 0
        self.scan_once: Scan = py_make_scanner(self)

    def _scan_array(self, place: tuple[str, int], scan_once: Scan) -> tuple[list[Any], int]:
        if self._depth == _MOST_DEPTH:  # trying at each depth anew would take as many times as long
            return JSONArray(place, scan_once)  # type: ignore[no-any-return]
        values: list[Any] = []
        self._depth += 1
        try:
            end = scan_array(self.decode_whole, place, scan_once, lambda elements, *_: values.extend(elements))
        finally:
            self._depth -= 1
        return values, end


class JsonText:
    """A long list that is kept as JSON, which is written as it is.

    It is not an ABC: every request checks for one two dozen times, which would call Python then. The type checker
    asks for both properties all the same.
    """

    @property
    @abstractmethod
    def values(self) -> int:
        """Return as how many values it counts, which are parsed anew whenever somebody goes through them."""

    @property
    @abstractmethod
    def text(self) -> str:
        """Return the JSON of the list."""


def _scan_string(text: str, begin: int, strict: bool = True) -> tuple[str, int]:
    """Return a string of JSON, and where it ends; see `json.decoder.scanstring`."""
    size = _FIRST_PIECE
    quote = text.find('"', begin, begin + size)
    if quote >= 0 and text[quote - 1] != "\\":
        return scanstring(text, begin, strict)  # type: ignore[no-any-return]
    pieces = []
    while begin + size < len(text):
        cut = _before_escape(text, begin, begin + size)
        piece, end = scanstring(text[begin:cut] + '"', 0, strict)
        pieces.append(piece)
        if end <= cut - begin:
            return "".join(pieces), begin + end
        begin, size = cut, min(2 * size, AT_ONCE)
    piece, end = scanstring(text, begin, strict)
    return "".join([*pieces, piece]), end


def scan_array(
    decode_whole: Callable[[str], list[Any]],
    place: tuple[str, int],
    scan_once: Scan,
    take: Callable[[list[Any], int, int], None],
) -> int:
    """Give the elements of a list of JSON to `take`, with where they begin and end; return where the list ends.

    Short elements go through C together. Where they are cut within one of them, what is cut off is not JSON, so
    that they go through Python one by one. See `json.decoder.JSONArray`.
    """
    text, start = place[0], _after_blanks(*place)
    if text.startswith("]", start):
        return start + 1
    next_try = start
    while True:
        if start >= next_try:
            cut = _next_element(text, start)
            if elements := _elements(decode_whole, text[start:cut]):
                take(elements, start, cut)
                start = next_try = _after_blanks(text, cut)
                continue
            next_try = cut if cut > start else start + AT_ONCE
        try:
            value, end = scan_once(text, start)
        except StopIteration as error:
            raise json.JSONDecodeError("Expecting value", text, error.value) from None
        take([value], start, end)
        start = _after_blanks(text, end)
        if text.startswith("]", start):
            return start + 1
        if not text.startswith(",", start):
            raise json.JSONDecodeError("Expecting ',' delimiter", text, start)
        start = _after_blanks(text, start + 1)


def _next_element(text: str, start: int) -> int:
    """Return where another element of a list may begin, as far behind `start` as a call of C may go, or `start`."""
    end, mark = start + AT_ONCE, text[start : start + 1]
    if mark == "{":
        key = text.find(":", start, start + _FIRST_PIECE)  # objects of a list begin with the same one in most
        return start if key < 0 else max(start, text.rfind(text[start:key], start + 1, end))
    opening, closing = (mark, {"[": "]"}.get(mark, mark)) if mark in ('"', "[") else ("", "")
    between = (f"{closing},{blank}{opening}" for blank in ("", " "))
    return max(start, *(text.rfind(each, start, end) + len(each) - len(opening) for each in between))


def _elements(decode_whole: Callable[[str], list[Any]], text: str) -> list[Any]:
    """Return the elements in a part of a list that ends in a comma; none if it is no such part."""
    part = text.rstrip(BLANKS)
    if not part.endswith(","):
        return []
    with contextlib.suppress(ValueError, RecursionError):  # what is not JSON at all is refused by the caller
        return decode_whole(f"[{part[:-1]}]")
    return []


def _after_blanks(text: str, start: int) -> int:
    blanks = _UP_TO_BLANKS.match(text, start)
    return start if blanks is None else blanks.end()


def _before_escape(text: str, begin: int, end: int) -> int:
    """Return where to cut a string of JSON, at `end` or a little before it, so that no escape is cut."""
    rest = _ESCAPE_AT_END.search(text, max(begin, end - _LONGEST_ESCAPE), end)
    cut = end if rest is None else rest.start()
    before = text[begin:cut]
    return cut - (len(before) - len(before.rstrip("\\"))) % 2


def holds_more(content: Any, values: float, chars: float = math.inf) -> bool:
    """Return whether parsed JSON holds more values, or characters in them, without looking at the rest.

    A list that is kept as JSON counts as one of endless characters, so that writing it is left to `_pieces`.
    """
    left = [content] if isinstance(content, _CONTAINERS) else [[content]]
    values -= isinstance(content, _CONTAINERS)
    while left:
        part = left.pop()
        values -= len(part)
        if values < 0:
            return True
        for each in part.values() if isinstance(part, dict) else part:
            kind = type(each)  # every request, and each token of a stream, comes here
            if kind is str:
                chars -= len(each)
            elif kind is dict or kind is list:
                left.append(each)
            elif kind not in _SINGLE and isinstance(each, JsonText):
                values -= each.values
                chars -= math.inf if chars < math.inf else 0
        if chars < 0:
            return True
    return values < 0


def dumps(content: Any) -> str:
    """Return JSON; of many values or long strings patiently, so that other threads run meanwhile."""
    if not holds_more(content, MANY, _VERY_LONG):
        return json.dumps(content)
    return "".join(_pieces(content))


def _pieces(content: Any) -> Iterator[str]:
    """Return JSON in pieces, each of which takes C less than a millisecond."""
    if isinstance(content, JsonText):
        yield content.text
    elif not holds_more(content, _FEW, AT_ONCE):
        yield json.dumps(content)
    elif isinstance(content, str):
        yield '"'
        for start in range(0, len(content), AT_ONCE):
            yield encode_basestring_ascii(content[start : start + AT_ONCE])[1:-1]
        yield '"'
    elif isinstance(content, dict):
        for number, (key, value) in enumerate(content.items()):
            yield ", " if number else "{"
            yield from _pieces(key) if isinstance(key, str) else [json.dumps({key: 0})[1:-4]]
            yield ": "
            yield from _pieces(value)
        yield "}"
    else:
        for start in range(0, len(content), _ELEMENTS):
            elements = content[start : start + _ELEMENTS]
            yield ", " if start else "["
            if _are_short_texts(elements) or not holds_more(elements, _FEW, AT_ONCE):
                yield json.dumps(elements)[1:-1]
                continue
            for number, element in enumerate(elements):
                yield ", " if number else ""
                yield from _pieces(element)
        yield "]"


def _are_short_texts(elements: list[Any]) -> bool:
    """Return whether elements are objects of texts which together are short, as most messages are, without a loop."""
    try:
        texts = list(chain.from_iterable(map(dict.values, elements)))
    except TypeError:  # some are not objects
        return False
    return len(texts) <= _FEW and set(map(type, texts)) <= {str} and sum(map(len, texts)) <= AT_ONCE


class TooManyValuesError(ValueError):
    """JSON holds more values than anybody needs."""


_long, _patient = LongWork(threads=1), LongWork(threads=1)
# Of neither more: they hold the interpreter for moments, and with each that waits for it the event loop waits longer.


async def patiently(function: Callable[[], T]) -> T:
    """Call a function, which runs Python for long and holds the interpreter for moments, in the thread of such work."""
    return await _patient.run(0, function)


async def beside(size: int, function: Callable[[], T]) -> T:
    """Call a function that works on `size` characters: here, or in a thread where they are many."""
    return await _long.run(0, function) if size > LONG else function()


async def from_json(text: str) -> Any:
    """Return what JSON of our own holds, read in a thread where it is long."""
    if len(text) <= LONG:
        return json.loads(text)
    return await patiently(lambda: PatientDecoder().decode(text))


async def apart(content: Any, function: Callable[[], T]) -> T:
    """Call a function that walks through JSON: here, or in a thread where it holds many values."""
    return await patiently(function) if holds_more(content, MANY) else function()


async def to_json(content: Any) -> bytes:
    """Return JSON as bytes, made in a thread where it is long."""

    if not holds_more(content, MANY, LONG):
        return json.dumps(content).encode()

    def encode() -> bytes:
        return dumps(content).encode()

    return await patiently(encode) if holds_more(content, MANY) else await _long.run(0, encode)


@lru_cache(maxsize=16)
def _usual_decoder(**options: Any) -> json.JSONDecoder:
    return json.JSONDecoder(**options)


async def parse_apart(
    text: bytes,
    parse: Callable[[json.JSONDecoder], T],
    *,
    most: float = math.inf,
    patient: type[PatientDecoder] = PatientDecoder,
    **options: Any,
) -> T:
    """Call `parse` with a decoder that suits a text, in a thread where it is long; for very long ones, `patient`.

    With `most`, raise TooManyValuesError for more values, BusyError where too much is waiting already.
    """
    if len(text) <= LONG:
        return parse(_usual_decoder(**options))
    size = len(text) if most < math.inf else 0
    values = await _long.run(size, partial(bound_values, text, most))
    if values > most:
        raise TooManyValuesError(f"more than {most:,} values")
    if values > MANY:
        return await _patient.run(size, partial(parse, patient(**options)))
    decoder = patient(**options) if len(text) > _VERY_LONG else json.JSONDecoder(**options)
    return await _long.run(size, partial(parse, decoder))
