"""Events come out whole, whatever way the bytes were cut."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from route.providers import http
from route.providers.http import Event, EventParser


def parsed(*pieces: bytes) -> list[Event]:
    parser = EventParser()
    return [event for piece in pieces for event in parser.feed(piece)] + parser.end()


STREAM = (
    b": keep-alive\n\nevent: first\r\ndata: one\r\n\r\ndata:two\n\n\n\nid: 7\nretry: 3\ndata: three\ndata: lines\n\n"
    b"event: nothing\n\ndata: \xc3\xa4\n\ndata: [DONE]\n\n"
)
EVENTS = [("first", b"one"), ("", b"two"), ("", b"three\nlines"), ("", b"\xc3\xa4"), ("", b"[DONE]")]


@given(st.lists(st.integers(0, len(STREAM)), max_size=12))
def test_the_places_where_the_network_cuts_do_not_matter(cuts: list[int]) -> None:
    borders = [0, *sorted(cuts), len(STREAM)]
    assert parsed(*(STREAM[a:b] for a, b in pairwise(borders))) == EVENTS


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
@pytest.mark.parametrize("size", [1, 2, 3, 1000])
def test_lines_may_end_in_three_ways(end: bytes, size: int) -> None:
    stream = end.join([b"event: e", b"data: a", b"data: b", b"", b"data: c", b"", b""])
    pieces = [stream[at : at + size] for at in range(0, len(stream), size)]
    assert parsed(*pieces) == [("e", b"a\nb"), ("", b"c")]


@pytest.mark.parametrize("rest", [b"", b"\n", b"\r\n"])
def test_the_last_event_needs_no_empty_line(rest: bytes) -> None:
    assert parsed(b"data: [DONE]" + rest) == [("", b"[DONE]")]


def test_only_one_space_belongs_to_the_field() -> None:
    assert parsed(b"data:  a\n\n") == [("", b" a")]


def test_an_event_without_end_does_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "_MAX_EVENT_BYTES", 100)
    with pytest.raises(ValueError, match="32 MiB"):
        parsed(b"data: " + b"x" * 200)
    with pytest.raises(ValueError, match="32 MiB"):
        parsed(*[b"data: " + b"x" * 20 + b"\n"] * 10)


def test_a_byte_order_mark_before_the_first_event_is_no_part_of_it() -> None:
    mark = b"\xef\xbb\xbf"
    assert parsed(mark + b"data: a\n\n", b"data: b\n\n") == [("", b"a"), ("", b"b")]
    assert parsed(mark[:1], mark[1:] + b"data: a\n\n") == [("", b"a")]
    assert parsed(b"data: a\n\n" + mark + b"data: b\n\n") == [("", b"a")], "there it is a field of another name"
