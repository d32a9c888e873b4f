"""Objects of large requests, which do not come from Python's own arenas."""

from __future__ import annotations

import asyncio
import json
import re
import sys
from collections.abc import Callable

import pytest

from p2l.common.long_texts import outside_arenas, parse_apart

LARGE = json.dumps([{"role": "user", "content": str(number)} for number in range(100_000)]).encode()


@pytest.fixture
def arenas(capfd: pytest.CaptureFixture[str]) -> Callable[[], int]:
    """Count the arenas that Python has, a megabyte each; it says nothing of them within the block."""

    def count() -> int:
        capfd.readouterr()
        sys._debugmallocstats()
        match = re.search(r"# arenas allocated current\s*=\s*([\d,]+)", capfd.readouterr().err)
        if match is None:
            pytest.skip("Python has another allocator")
        return int(match[1].replace(",", ""))

    return count


def test_objects_come_from_arenas_but_within_the_block(arenas: Callable[[], int]) -> None:
    before = arenas()
    with outside_arenas():
        apart = json.loads(LARGE)
    between = arenas()
    usual = json.loads(LARGE)
    assert between - before <= 1
    assert arenas() - between >= 5
    assert apart == usual


def test_blocks_that_overlap_end_with_the_last(arenas: Callable[[], int]) -> None:
    before = arenas()
    with outside_arenas():
        with outside_arenas():
            pass
        apart = json.loads(LARGE)
    between = arenas()
    usual = json.loads(LARGE)
    assert between - before <= 1
    assert arenas() - between >= 5
    assert apart == usual


def test_what_was_made_within_can_grow_and_go_outside_of_it_and_the_other_way_round() -> None:
    usual = [str(number) * 3 for number in range(1000)]
    with outside_arenas():
        apart = [str(number) * 3 for number in range(1000)]
        grown = [bytearray(text.encode()) for text in usual]
        usual.clear()
    for each in grown:
        each.extend(bytes(range(256)) * 4)
    assert [bytes(each[:3]) for each in grown[:10]] == [text.encode() for text in apart[:10]]
    apart.clear()


def test_bodies_of_many_values_take_no_arenas(arenas: Callable[[], int]) -> None:
    before = arenas()
    messages = asyncio.run(parse_apart(LARGE, lambda decoder: decoder.decode(LARGE.decode()), most=1e6))
    assert arenas() - before <= 1
    assert messages[-1] == {"role": "user", "content": "99999"}
