"""What keys used in the last minute."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from route.keep.usage import AHEAD, WINDOW, Windows

USES = st.lists(st.tuples(st.integers(-90, AHEAD), st.booleans(), st.integers(0, 9)), max_size=40)


@given(uses=USES, most=st.integers(1, 60), more=st.integers(1, 5), moves=st.integers(0, 90))
def test_a_minute_holds_what_was_used_in_it(
    uses: list[tuple[int, bool, int]], most: int, more: int, moves: int
) -> None:
    """Seconds are told in any order, again and again, as other workers do."""
    windows, sums = Windows(), dict[int, int]()
    for second, is_sum, amount in uses:
        if second not in sums:
            sums = {other: kept for other, kept in sums.items() if other > second - WINDOW}
        if is_sum:
            windows.note("a key", 1000 + second, amount)
            sums[second] = amount
        else:
            windows.add("a key", 1000 + second, amount)
            sums[second] = sums.get(second, 0) + amount
        wait = windows.wait("a key", 1000.0, most=most, more=more)
        used = sum(kept for other, kept in sums.items() if -WINDOW < other <= AHEAD)
        assert (wait is None) == (used + more <= most)
        if wait is not None:
            assert 0 < wait <= WINDOW + AHEAD
    assert windows.wait("another", 1000.0, most=most, more=most) is None
    assert windows.wait("a key", 1000.0 + AHEAD + WINDOW + moves, most=most, more=most) is None


def test_a_clock_that_has_jumped_back_locks_no_key() -> None:
    windows = Windows()
    windows.add("a key", 1000, 3)
    windows.add("a key", 4600, 9)
    assert windows.wait("a key", 4600.0, most=9, more=1) is not None
    assert windows.wait("a key", 1000.0, most=9, more=1) is None
    windows.add("a key", 1001, 9)
    assert windows.wait("a key", 1001.0, most=9, more=1) is not None
