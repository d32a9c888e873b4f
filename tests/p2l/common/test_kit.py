"""Retry policy, text tables, caches and locks: what every folder shares."""

import argparse
import math
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2l.common.cache import LRUCache
from p2l.common.display import columns_of
from p2l.common.files import locked
from p2l.common.retry import RetryPolicy, parse_retry_after
from p2l.common.text_table import add_rows_flag, align, rows_to_print, text_table


@given(st.integers(1, 100), st.none() | st.floats(0, 400), st.floats(0, 1), st.floats(0, 1))
def test_a_pause_is_between_what_the_server_asks_for_and_the_cap(
    failures: int, retry_after: float | None, draw: float, jitter: float
) -> None:
    policy = RetryPolicy(1000, jitter=jitter, uniform=lambda low, high: low + draw * (high - low))
    pause = policy.pause(failures, retry_after)
    least = retry_after or 0.0
    assert pause is not None
    assert least <= pause <= max(policy.cap, least + policy.base) * (1 + 1e-12)


def test_pauses_double_up_to_the_cap_until_the_attempts_or_the_time_are_used_up() -> None:
    policy = RetryPolicy(attempts=6, base=1.0, cap=6.0, uniform=lambda low, _high: low)
    assert [policy.pause(failures) for failures in range(1, 7)] == [0.5, 1.0, 2.0, 3.0, 3.0, None]
    assert policy.pause(6, attempts=7) == 3.0
    assert policy.pause(1, remaining=0.5) is None
    assert policy.pause(1, retry_after=10.0, remaining=11.0) == 10.0


def test_a_server_that_asks_for_too_long_a_pause_is_not_tried_again() -> None:
    policy = RetryPolicy(longest_retry_after=300.0)
    assert policy.pause(1, 301.0) is None
    assert (policy.pause(1, 300.0) or 0.0) >= 300.0


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("7", 7.0),
        ("-3", 0.0),
        ("9" * 400, math.inf),
        ("Wed, 21 Oct 2015 07:28:10 GMT", 10.0),
        ("Wed, 21 Oct 2015 07:27:00 GMT", 0.0),
        ("soon", None),
        ("nan", None),
        ("", None),
        (None, None),
    ],
)
def test_retry_after_is_a_number_or_a_date(text: str | None, seconds: float | None) -> None:
    assert parse_retry_after(text, lambda: 1445412480.0) == seconds


def test_a_table_has_a_rule_below_its_header_and_numbers_to_the_right() -> None:
    rows = [["a-long-name", "1"], ["b", "1,000"]]
    assert text_table(["model", "n"], rows) == [
        "model            n",
        "-----------  -----",
        "a-long-name      1",
        "b            1,000",
    ]
    assert text_table(["model", "n"], [], joined_rule=True) == ["model  n", "--------"]
    assert align([["a", ""], ["bb", "c"]], left=(0, 1), indent="  ") == ["  a", "  bb  c"]
    assert align([]) == []


def test_wide_letters_take_two_columns() -> None:
    names = ["abc", "中文模型", "한국어", "🐝", "e\u0301", "ｆｕｌｌ"]
    assert [columns_of(name) for name in names] == [3, 8, 6, 2, 1, 8]
    lines = text_table(["model", "n"], [[name, "1"] for name in names])
    assert len({columns_of(line) for line in lines}) == 1
    assert lines[1] == "--------  -"


def test_a_terminal_shows_ten_rows_unless_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    flags = argparse.ArgumentParser()
    add_rows_flag(flags)
    rows = [[str(number)] for number in range(30)]
    for is_terminal, words, count in (
        (True, "", 10), (True, "--rows 0", 30), (True, "--top 3", 3), (False, "", 30), (False, "--top 3", 3),
    ):  # fmt: skip
        monkeypatch.setattr(sys.stdout, "isatty", lambda is_terminal=is_terminal: is_terminal)
        lines = text_table(["n"], rows, most=rows_to_print(flags.parse_args(words.split()).rows))
        assert lines[2:12][: min(10, count)] == [str(number) for number in range(count)][:10]
        assert lines[-1] == (f"... and {30 - count} more (--top 0 lists all)" if count < 30 else "29")


def test_a_cache_forgets_what_was_used_longest_ago() -> None:
    cache: LRUCache[str, int] = LRUCache(2)
    cache.put("a", 1)
    cache.put("b", 2)
    assert cache.get("a") == 1
    cache.put("c", 3)
    assert [cache.get(key) for key in "abc"] == [1, None, 3]
    cache.clear()
    assert len(cache) == 0


def test_a_cache_may_be_bounded_by_bytes_and_may_hold_nothing() -> None:
    cache: LRUCache[str, bytes] = LRUCache(10, len)
    cache.put("a", b"12345")
    cache.put("b", b"12345")
    cache.put("a", b"123456")
    assert "b" not in cache
    assert cache.get("a") == b"123456"
    cache.put("c", b"12345678901")
    assert len(cache) == 0
    nothing: LRUCache[str, int] = LRUCache(0)
    nothing.put("a", 1)
    assert nothing.get("a") is None


def test_a_lock_keeps_others_out_unless_it_is_shared(tmp_path: Path) -> None:
    path = tmp_path / "locks" / "one"
    with locked(path) as is_held, locked(path, wait=False) as other:
        assert is_held
        assert not other
    with locked(path, shared=True), locked(path, shared=True, wait=False) as other:
        assert other
    with locked(tmp_path), locked(tmp_path, wait=False) as other:
        assert not other
    with path.open() as file:
        with locked(file.fileno()):
            pass
        with locked(path, wait=False) as is_held:
            assert is_held
