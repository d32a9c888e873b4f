"""The arena in a browser: two answers side by side, a vote by key, then the names."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.browser.conftest import SIZES, Visits, router_in_a_thread, transferred
from tests.browser.test_endpoint_page import HOSTILE


@pytest.fixture(scope="module")
def arena(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    config = {
        "keys": [{"key": "the-key-of-the-arena", "name": "arena"}],
        "arena": {"key": "arena", "per_minute": 1000},
        "database": "router.sqlite",
        "scripts": {"good": {"text": f"I am good {HOSTILE}", "token_seconds": 0.01}},
    }
    with router_in_a_thread(tmp_path_factory.mktemp("arena"), **config) as url:
        yield f"{url}/arena"


def test_a_battle_is_fought_with_keys_alone(visit: Visits, arena: str) -> None:
    page = visit(arena).page
    page.keyboard.type("Which is the best?")
    page.keyboard.press("Control+Enter")
    page.wait_for_selector("#vote:not([hidden])")
    answers = [page.inner_text(f"#answer-{side}") for side in (0, 1)]
    assert all(answer.startswith("I am ") for answer in answers)
    assert page.inner_text("#verdict") == ""
    page.keyboard.press("b")
    page.wait_for_selector("#verdict table")
    told = page.inner_text("#verdict")
    names = [answer.split()[2] for answer in answers]
    assert f"A was {names[0]}" in told.replace("\n", " ")
    assert f"B was {names[1]}" in told.replace("\n", " ")
    assert "B was better" in told
    assert page.locator("#vote").is_hidden(), "an answer has one vote"
    assert page.evaluate("window.planted") is None


def test_a_click_votes_too_and_the_next_pair_is_another(visit: Visits, arena: str) -> None:
    page = visit(arena).page
    for verdict, told in (("Equally good", "equally good"), ("Both bad", "both were bad")):
        page.fill("#prompt", "hello")
        page.click("text=Ask two models")
        page.wait_for_selector("#vote:not([hidden])")
        page.click(f"text={verdict}")
        page.wait_for_selector(f"#verdict >> text={told}")


def test_the_page_does_the_work_that_a_vote_carries(visit: Visits, tmp_path: Path) -> None:
    config = {
        "keys": [{"key": "the-key-of-the-arena", "name": "arena"}],
        "arena": {"key": "arena", "per_minute": 1000, "work_bits": 10},
        "database": "router.sqlite",
    }
    with router_in_a_thread(tmp_path, **config) as url:
        opened = visit(f"{url}/arena")
        page = opened.page
        for verdict in ("A is better", "Both bad"):
            page.fill("#prompt", "hello")
            page.click("text=Ask two models")
            page.wait_for_selector("#vote:not([hidden])")
            page.click(f"text={verdict}")
            page.wait_for_selector("#verdict table")
        assert opened.complaints == []
        bare = visit(f"{url}/arena", java_script_enabled=False)
        bare.page.fill("#prompt", "hello")
        bare.follow("text=Ask two models")
        assert "which needs scripts" in bare.page.inner_text("#vote")


def test_it_can_be_used_without_scripts(visit: Visits, arena: str) -> None:
    opened = visit(arena, java_script_enabled=False)
    page = opened.page
    page.fill("#prompt", "hello")
    opened.follow("text=Ask two models")
    assert page.inner_text("#answer-0").startswith("I am ")
    opened.follow("text=A is better")
    assert "A was better" in page.inner_text("#verdict")


@pytest.mark.parametrize(("width", "scheme"), SIZES)
def test_it_is_accessible_and_fits(visit: Visits, arena: str, width: int, scheme: str) -> None:
    opened = visit(arena, width=width, scheme=scheme)
    assert opened.violations() == []
    opened.page.fill("#prompt", "hello")
    opened.page.click("text=Ask two models")
    opened.page.wait_for_selector("#vote:not([hidden])")
    assert opened.violations() == []
    opened.page.click("text=B is better")
    opened.page.wait_for_selector("#verdict table")
    assert opened.violations() == []
    assert opened.overflow() <= 0


def test_the_first_load_is_small(browser: Any, arena: str) -> None:
    sizes = transferred(browser, arena)
    assert len(sizes) >= 2
    assert sum(sizes) < 100_000
