"""What the router books against what providers bill: many mixed calls, cut streams and failures, by two replicas."""

from __future__ import annotations

import asyncio

import pytest

from benchmarks.billing import Books, book
from route.providers.usage import TokenCounts
from route.send.pace import Pace

CENT = 0.01


def mixed(calls: int, *, has_records: bool) -> Books:
    return asyncio.run(book(calls, has_records=has_records, seed=4))


def check_recorded(books: Books) -> None:
    """Enforced, ledger and bill are the same to the cent, though a tenth of the calls are cut."""
    assert books.ledger == pytest.approx(books.billed, abs=CENT / 10)
    assert books.enforced == pytest.approx(books.ledger, abs=CENT / 10)
    assert books.estimates == 0


def check_estimated(books: Books) -> None:
    assert books.billed <= books.ledger <= 1.05 * books.billed
    assert 0.02 * books.calls < books.estimates < 0.15 * books.calls


def test_cut_streams_are_settled_by_the_providers_record() -> None:
    check_recorded(mixed(300, has_records=True))


def test_estimates_are_marked_and_near_the_bill_but_not_below() -> None:
    check_estimated(mixed(300, has_records=False))


@pytest.mark.slow
def test_books_of_many_calls_agree() -> None:
    check_recorded(mixed(10_000, has_records=True))
    check_estimated(mixed(10_000, has_records=False))


def test_the_pace_of_a_deployment_is_that_of_its_dearest_streams() -> None:
    pace = Pace()
    assert pace.hidden_tokens(2.0) is None
    assert pace.text_tokens(400) == 100
    for _ in range(5):  # where thoughts are not counted, what cannot be in the text is hidden
        pace.observe(TokenCounts(10, 1100), text_bytes=400, thought_bytes=0, seconds=5.0)
    assert pace.hidden_tokens(2.0) == 360
    for _ in range(50):
        pace.observe(TokenCounts(10, 1100, reasoning=1000), text_bytes=800, thought_bytes=0, seconds=5.0)
    assert pace.hidden_tokens(2.0) == 400
    for _ in range(50):  # thoughts that are shown are no hidden ones; three bytes a token without any
        pace.observe(TokenCounts(10, 300, reasoning=100), text_bytes=1200, thought_bytes=400, seconds=1.0)
        pace.observe(TokenCounts(10, 200), text_bytes=600, thought_bytes=0, seconds=1.0)
    assert pace.hidden_tokens(2.0) == 0
    assert pace.text_tokens(600) == 200


def test_the_prompt_of_a_cut_stream_may_have_more_tokens_than_its_bytes_say() -> None:
    pace = Pace()
    assert pace.prompt_tokens(1000) == 1000
    pace.observe_prompt(1500, 1000)
    pace.observe_prompt(18, 10)
    assert pace.prompt_tokens(200) == 308
