"""What the router books against what providers bill: mixed calls in every dialect, cut streams, failures, kills."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.billing.__main__ import AMPLE, Books, book
from route.providers.usage import TokenCounts
from route.send.pace import Heard, Pace

CENT = 0.01


def check(books: Books) -> None:
    """To the cent where the provider told it; estimates are no less than the bill, and little more of it in all."""
    assert books.told_wrongly == 0
    assert books.told_booked == pytest.approx(books.told_billed, abs=CENT / 10)
    assert books.enforced == pytest.approx(books.ledger, abs=CENT / 10)
    assert books.rest_booked >= books.rest_billed
    assert len(books.too_low) <= 0.05 * books.estimates
    assert books.ledger <= 1.05 * books.billed
    assert books.estimates > 0
    assert books.statuses[AMPLE].get("429", 0) == 0


@pytest.mark.slow
def test_books_of_mixed_calls_agree_though_a_router_is_killed(tmp_path: Path) -> None:
    database = str(tmp_path / "books.sqlite")
    books = asyncio.run(book(tmp_path, 300, database=database, seed=4, every=2.0))
    check(books)


@pytest.mark.slow
def test_books_of_many_calls_agree(tmp_path: Path) -> None:
    books = asyncio.run(book(tmp_path, 10_000, database=str(tmp_path / "books.sqlite"), every=10.0))
    check(books)
    assert books.kills > 0


def test_the_pace_of_a_deployment_is_that_of_its_dearest_streams() -> None:
    pace = Pace()
    assert pace.hidden_tokens(2.0) is None
    assert pace.tokens_by(2.0) is None
    assert pace.text_tokens(400) == 100
    slow = Heard(text_bytes=600, thought_bytes=0, wait=5.0, seconds=10.0)
    for _ in range(5):  # where thoughts are not counted, the text has no fewer tokens than six bytes each
        pace.observe(TokenCounts(10, 1100), slow)
    assert pace.hidden_tokens(2.0) == 400
    assert pace.tokens_by(2.0) == 220
    for _ in range(50):
        pace.observe(TokenCounts(10, 1100, reasoning=1000), replace(slow, text_bytes=300))
    assert pace.hidden_tokens(2.0) == 400
    assert pace.text_tokens(300) == 100  # of which each of the hundred that are no thoughts had three bytes
    for _ in range(50):  # thoughts that are shown are no hidden ones; three bytes a token without any
        pace.observe(TokenCounts(10, 300, reasoning=100), Heard(1200, 400, wait=1.0, seconds=2.0))
        pace.observe(TokenCounts(10, 200), Heard(600, 0, wait=1.0, seconds=2.0))
    assert pace.hidden_tokens(2.0) == 0
    assert pace.text_tokens(600) == 200


def test_summaries_of_thoughts_do_not_hide_how_long_a_model_thought() -> None:
    """The first words of a summary come early, and the answer's own once all is thought."""
    pace = Pace()
    for _ in range(5):
        pace.observe(TokenCounts(10, 1100, reasoning=1000), Heard(800, 400, wait=10.0, seconds=11.0))
    assert pace.hidden_tokens(5.0) == 450


def test_the_prompt_of_a_cut_stream_may_have_more_tokens_than_its_bytes_say() -> None:
    pace = Pace()
    assert pace.prompt_tokens(1000) == 1000
    pace.observe_prompt(1500, 1000)
    pace.observe_prompt(18, 10)
    assert pace.prompt_tokens(200) == 308
