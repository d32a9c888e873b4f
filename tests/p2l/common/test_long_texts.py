"""JSON of many values: what the patient ways make of it is what Python's usual ones do, and others run meanwhile."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from p2l.common import long_texts
from p2l.common.long_texts import (
    LONG,
    MANY,
    BusyError,
    LongWork,
    PatientDecoder,
    TooManyValuesError,
    apart,
    beside,
    bound_values,
    count_bytes,
    count_values,
    decode,
    dumps,
    from_json,
    holds_more,
    loads,
    may_be_deeper,
    parse_apart,
    short_dumps,
    to_json,
)

ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=4),
    max_leaves=12,
)
CROWD = {"messages": [{"role": "user", "content": ""} for _ in range(60_000)]}
TEXT = json.dumps(CROWD).encode()
BOOK = b'"' + b"All work and no play\\n" * 700_000 + b'"'
"""One string of 15 MB."""


def in_small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, size in {"MANY": 0, "_PIECE_VALUES": 1, "_PIECE_CHARS": 24}.items():
        monkeypatch.setattr(long_texts, name, size)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=ANYTHING)
def test_patience_changes_no_value(content: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    in_small_pieces(monkeypatch)
    text = dumps(content)
    assert text == json.dumps(content)
    for spaces in (None, 1):
        assert PatientDecoder().decode(json.dumps(content, indent=spaces)) == content


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=st.lists(ANYTHING, max_size=8), data=st.data())
def test_patience_refuses_what_the_usual_parser_refuses(
    content: Any, data: st.DataObject, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_small_pieces(monkeypatch)
    text = json.dumps(content)
    place = data.draw(st.integers(0, len(text)))
    text = text[:place] + data.draw(st.text(', []{}":1', max_size=3)) + text[data.draw(st.integers(place, len(text))) :]
    try:
        expected = json.loads(text)
    except ValueError:
        with pytest.raises(json.JSONDecodeError):
            PatientDecoder().decode(text)
    else:
        assert PatientDecoder().decode(text) == expected


SPECIAL = ["\\", "\\\\", '\\"', "\\n", "\\u00e9", "\\ud83d", "\\ude00", "\\ud83d\\ude00", "ud83d", "é", "🙂", "a", "u"]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(parts=st.lists(st.sampled_from([*SPECIAL, "x" * 15]), max_size=40), size=st.integers(16, 40))
def test_a_string_in_pieces_is_the_string(parts: list[str], size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_PIECE_CHARS", "_FIRST_PIECE_CHARS", "_LONG_FOR_ONE_CALL"):
        monkeypatch.setattr(long_texts, name, size)
    text = f'["{"".join(parts)}", 1]'
    body = text.encode()
    assert decode(body) == text
    assert count_bytes(text) == len(body)
    try:
        content = json.loads(text)
    except ValueError:
        with pytest.raises(json.JSONDecodeError):
            PatientDecoder().decode(text)
    else:
        assert PatientDecoder().decode(text) == content
        assert dumps(content) == json.dumps(content)
        assert count_values(body, 100) == 2


@given(depth=st.integers(0, 60), inside=st.integers(0, 30), most=st.integers(0, 60), size=st.integers(16, 40))
def test_how_deep_json_may_be_is_known_by_its_brackets(depth: int, inside: int, most: int, size: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(long_texts, "_PIECE_CHARS", size)
        body = b'{"a":' * (depth // 2) + b"[" * (depth % 2) + b'"x"' + b"]" * (depth % 2) + b"}" * (depth // 2)
        text = body.replace(b"x", b"[" * inside)
        assert may_be_deeper(text, most) >= (depth // 2 + depth % 2 > most)
        assert not may_be_deeper(body, depth)


@pytest.mark.parametrize("body", [b"\\" * 500_000, b"\\a" * 250_000, b"a\\" * 250_000, b'\\"' * 250_000])
def test_counting_looks_at_each_byte_a_few_times(body: bytes) -> None:
    class Watched(bytes):
        copied = 0

        def __getitem__(self, at: Any) -> Any:
            part = super().__getitem__(at)
            Watched.copied += len(part)
            return part

    count_values(Watched(b'"' + body), 10**9)
    assert Watched.copied < 3 * len(body)


@pytest.mark.parametrize("text", ["", "[", '{"a"', "[1,]", "NaN,", "[" * 100_000, '{"a": 1} x'])
def test_patience_refuses_what_is_no_json(text: str) -> None:
    with pytest.raises((ValueError, RecursionError)):
        PatientDecoder().decode(text)


@given(content=ANYTHING, most=st.integers(0, 15))
def test_values_are_counted_without_going_through_all(content: Any, most: int) -> None:
    def values(part: Any) -> int:
        inner = part.values() if isinstance(part, dict) else part if isinstance(part, list) else ()
        return 1 + sum(map(values, inner))

    assert holds_more(content, most) == (values(content) > most)


@given(content=ANYTHING, most=st.integers(0, 15))
def test_a_bound_of_the_values_lets_pass_what_counting_them_does(content: Any, most: int) -> None:
    body = json.dumps(content).encode()
    assert bound_values(body, most) >= min(count_values(body, most), most)
    assert (bound_values(body, most) > most) == (count_values(body, most) > most)


def test_long_texts_count_by_their_characters() -> None:
    assert holds_more({"a": ["x" * 50, "y" * 51]}, 10, 100)
    assert not holds_more({"a": ["x" * 50, "y" * 50]}, 10, 100)


@pytest.mark.parametrize(
    "work",
    [
        lambda: parse_apart(TEXT, lambda decoder: decoder.decode(TEXT.decode())),
        lambda: to_json(CROWD),
        lambda: apart(CROWD, lambda: [dict(message) for message in CROWD["messages"] for _ in range(10)]),
        lambda: from_json(TEXT.decode()),
        lambda: parse_apart(BOOK, lambda decoder: decoder.decode(decode(BOOK))),
        lambda: to_json({"content": BOOK.decode()}),
    ],
    ids=["parse", "write", "walk", "read", "parse-long", "write-long"],
)
def test_the_event_loop_turns_while_many_values_are_worked_through(work: Any) -> None:
    """In C nothing else would run until all of it is done."""

    async def turns(waiting: Awaitable[Any]) -> int:
        task = asyncio.ensure_future(waiting)
        count = 0
        while not task.done():
            await asyncio.sleep(0)
            count += 1
        await task
        return count

    assert len(CROWD["messages"]) > MANY
    assert asyncio.run(turns(work())) > 10


def test_what_is_short_is_worked_through_at_once() -> None:
    async def main() -> None:
        assert await parse_apart(b"[1]", lambda decoder: decoder.decode("[1]")) == [1]
        assert await to_json([1, "é"]) == b'[1,"\\u00e9"]'
        assert await from_json("[1]") == [1]
        assert await beside(1, threading.current_thread) is threading.main_thread()
        assert await beside(LONG + 1, threading.current_thread) is not threading.main_thread()

    asyncio.run(main())


def test_more_values_than_anybody_needs_are_refused_before_they_are_made() -> None:
    def never(_: json.JSONDecoder) -> None:
        raise AssertionError

    async def main() -> None:
        with pytest.raises(TooManyValuesError, match="more than 1,000 values"):
            await parse_apart(TEXT, never, most_values=1000)

    asyncio.run(main())


def test_more_than_may_wait_is_turned_away() -> None:
    async def main() -> None:
        work = LongWork(threads=1, max_waiting=LONG)
        first = asyncio.ensure_future(work.run(LONG, lambda: 1))
        await asyncio.sleep(0)
        with pytest.raises(BusyError):
            await work.run(1, lambda: 2)
        assert await first == 1
        assert await work.run(LONG + 1, lambda: 3) == 3
        work.close()

    asyncio.run(main())


@given(ANYTHING)
def test_short_json_is_pythons_in_ascii(content: Any) -> None:
    text = short_dumps(content)
    assert text.isascii()
    assert json.loads(text) == content
    assert loads(json.dumps(content).encode(), json.JSONDecoder()) == content


@pytest.mark.parametrize(
    "text",
    [
        *(b'{"a": NaN}', b'{"a": 1e999}', b'\xef\xbb\xbf{"a": 1}', b'{"a": "\\ud83d"}', b'{"a": 1' + b"0" * 30 + b"}"),
        *(b'{"a": 1, "a": 2.50}', b"[" * 300 + b"]" * 300, b'"\\u0000\\u2028\xe2\x80\xa8"', b"-0", b"1E5"),
        *(b"[1] x", b'"\x01"', b"01", b"1.", b'{"a": "\xff"}', b"", b"nul", b"1" + b"0" * 5000),
    ],
)
def test_short_json_is_read_as_python_reads_it(text: bytes) -> None:
    def read(parse: Callable[[], Any]) -> str:
        try:
            return repr(parse())
        except ValueError:
            return "no JSON"

    decoder = json.JSONDecoder()
    assert read(lambda: loads(text, decoder)) == read(lambda: decoder.decode(decode(text)))


def test_halves_of_characters_are_written() -> None:
    assert json.loads(short_dumps({"a": "\ud83d", "b": "\u2028"})) == {"a": "\ud83d", "b": "\u2028"}
