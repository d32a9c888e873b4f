"""The endpoint's page in a browser: what moves while one types, what keys, phones and screen readers do with it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from p2l.common.access import digest_of
from p2l.inference import P2L
from p2l.serving.settings import Settings
from tests.browser.conftest import SIZES, Visit, Visits, transferred
from tests.p2l.serving.conftest import Running, make_model, serving
from tests.p2l.serving.test_uncertainty import with_posterior

HOSTILE = '"><img src=x onerror="window.planted=1"><script>window.planted=1</script>'
NAMES = [
    "ant",
    "bee",
    "cat",
    "dog",
    "elk",
    "fox",
    f"<b>{HOSTILE}",
    "a-model-with-a-name-of-many-letters-and-no-space" * 2,
]


def spread(model: P2L) -> None:
    """Let the prompt decide: an untrained head hardly tells prompts apart."""
    with torch.no_grad():
        model.model.head.head.weight.mul_(30)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("page")
    return with_posterior(make_model(root, seed=1, names=NAMES), root / "sure")


@pytest.fixture(scope="module")
def endpoint(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    control = str(tmp_path_factory.mktemp("control"))
    settings = Settings(str(folder), device="cpu", dtype="float32", control=control, streams=1, page_secret="s")
    with serving(settings, spread, None) as running:
        yield running


def board(page: Any) -> list[str]:
    return [name.strip() for name in page.locator("#board tbody th").all_text_contents()]


def settle(page: Any, turns: list[str], endpoint: Running) -> None:
    """Wait for the board of these turns."""
    answer = endpoint.client.post("/leaderboard", json={"prompt": turns}).json()
    names = [row["model"] for row in answer["leaderboard"]]
    page.wait_for_function(
        "names => JSON.stringify([...document.querySelectorAll('#board tbody th')].map(th => th.textContent.trim()))"
        " == JSON.stringify(names) && document.querySelector('.facts').textContent.includes('is first')",
        arg=names,
    )


def test_the_board_moves_with_each_keystroke_and_ends_at_the_last(visit: Visits, endpoint: Running) -> None:
    page = visit(endpoint.url).page
    assert "All prompts" in page.inner_text(".facts")
    before = page.locator("#board").inner_text()
    page.keyboard.type("write a")  # the field has the focus
    settle(page, ["write a"], endpoint)
    assert page.locator("#board").inner_text() != before
    page.keyboard.type(" long poem")
    settle(page, ["write a long poem"], endpoint)
    facts = page.inner_text(".facts")
    assert "is first; the chance that it is truly better than" in facts
    assert "votes take away" in facts
    assert page.locator("svg.bar .range").count() == len(NAMES)


def test_an_earlier_keystroke_never_overwrites_a_later_one(visit: Visits, endpoint: Running) -> None:
    """The first answer is held back until after the second: it is cancelled."""
    opened = visit(endpoint.url)
    page, cancelled, held = opened.page, [], []
    page.on("requestfailed", lambda request: cancelled.append(request.failure))

    def hold(route: Any) -> None:
        if not held:
            held.append(route)  # never answered
        else:
            route.continue_()

    page.route("**/page/board", hold)
    page.fill("#turn-1", "what is")
    page.fill("#turn-1", "what is 12 plus 34")
    settle(page, ["what is 12 plus 34"], endpoint)
    assert len(held) == 1
    held[0].abort()
    assert cancelled == ["net::ERR_ABORTED"]


def test_everything_can_be_done_with_keys_alone(visit: Visits, endpoint: Running) -> None:
    page = visit(endpoint.url).page
    page.keyboard.type("write a long poem")
    tab_to(page, "Add a turn")
    page.keyboard.press("Enter")
    page.wait_for_selector("#turn-2:focus")
    page.keyboard.type("what is 12")
    settle(page, ["write a long poem", "what is 12"], endpoint)
    tab_to(page, "Compare with another prompt")
    page.keyboard.press("Space")
    page.wait_for_selector("#other-1:focus")
    page.keyboard.type("hello")
    page.wait_for_selector(".board.pair")
    assert "Moved most" in page.inner_text(".facts")
    tab_to(page, "Stop comparing")
    page.keyboard.press("Enter")
    page.wait_for_selector(".board:not(.pair)")
    tab_to(page, "Prove that the square root")
    page.keyboard.press("Enter")
    settle(page, ["Prove that the square root of two is irrational."], endpoint)
    tab_to(page, "filter")
    page.keyboard.type("E")
    page.wait_for_function("() => document.querySelectorAll('#board tbody tr').length < 8")
    assert {name for name in board(page) if len(name) == 3} == {"bee", "elk"}


def tab_to(page: Any, label: str) -> None:
    """Press Tab until the focus is on what has this text or name."""
    for _ in range(40):
        page.keyboard.press("Tab")
        focused = page.evaluate("document.activeElement.textContent + document.activeElement.name")
        if label in focused:
            return
    raise AssertionError(f"{label} cannot be reached")


def test_it_can_be_read_without_scripts(visit: Visits, endpoint: Running) -> None:
    opened = visit(endpoint.url, java_script_enabled=False)
    page = opened.page
    page.fill("#turn-1", "write a long poem")
    opened.follow("noscript button")
    answer = endpoint.client.post("/leaderboard", json={"prompt": ["write a long poem"]}).json()
    assert board(page) == [row["model"] for row in answer["leaderboard"]]
    opened.follow("text=Add a turn")
    assert page.input_value("#turn-1") == "write a long poem"
    assert page.locator("#turn-2").count() == 1
    page.fill("#filter", "cat")
    opened.follow("noscript button")
    assert board(page) == ["cat"]


@pytest.mark.parametrize(("width", "scheme"), SIZES)
def test_it_is_accessible_and_fits(visit: Visits, endpoint: Running, width: int, scheme: str) -> None:
    opened = visit(endpoint.url, width=width, scheme=scheme)
    check(opened)
    opened.page.fill("#turn-1", "write a long poem")
    settle(opened.page, ["write a long poem"], endpoint)
    check(opened)
    opened.page.click("button[value=other]")
    opened.page.fill("#other-1", HOSTILE)
    opened.page.wait_for_selector(".board.pair")
    check(opened)


def check(opened: Visit) -> None:
    assert opened.violations() == []
    assert opened.overflow() <= 0


def test_hostile_names_and_prompts_are_text(visit: Visits, endpoint: Running) -> None:
    opened = visit(endpoint.url)
    page = opened.page
    page.fill("#turn-1", f"{HOSTILE}</textarea><script>window.planted=1</script>")
    page.wait_for_function("() => document.querySelector('.facts').textContent.includes('is first')")
    page.click("text=Add a turn")
    page.wait_for_selector("#turn-2")
    assert page.input_value("#turn-1").startswith(HOSTILE)
    assert f"<b>{HOSTILE}" in board(page)
    assert page.evaluate("window.planted") is None


def test_the_board_is_copied_as_json_and_as_a_link(visit: Visits, endpoint: Running) -> None:
    page = visit(endpoint.url, permissions=["clipboard-read", "clipboard-write"]).page
    page.fill("#turn-1", "write a long poem")
    settle(page, ["write a long poem"], endpoint)
    page.click("text=Copy JSON")
    page.wait_for_selector("text=Copied")
    copied = json.loads(page.evaluate("navigator.clipboard.readText()"))
    assert copied["prompt"] == ["write a long poem"]
    assert [row["model"] for row in copied["leaderboard"]] == board(page)
    page.wait_for_function("() => document.getElementById('copied').textContent == ''")
    page.click("text=Copy link")
    page.wait_for_selector("text=Copied")
    link = page.evaluate("navigator.clipboard.readText()")
    assert "poem" not in link.split("#")[0]
    other = visit(link).page
    settle(other, ["write a long poem"], endpoint)
    assert other.input_value("#turn-1") == "write a long poem"


def test_the_key_opens_the_page_once(visit: Visits, folder: Path, tmp_path: Path) -> None:
    settings = Settings(
        str(folder), device="cpu", control=str(tmp_path), streams=1, page_secret="s", api_key_digest=digest_of("a key")
    )
    with serving(settings, spread, "a key") as running:
        opened = visit(running.url)
        page = opened.page
        assert page.locator("#board").count() == 0
        page.keyboard.type("wrong")
        page.keyboard.press("Enter")
        page.wait_for_selector("text=This is not the key.")
        page.fill("#key", "a key")
        page.keyboard.press("Enter")
        page.wait_for_selector("#board tbody tr")
        cookie = page.context.cookies()[0]
        assert (cookie["httpOnly"], cookie["sameSite"]) == (True, "Strict")
        assert page.request.post(f"{running.url}/predict", data={"prompt": ["hi"]}).status == 403
        opened.complaints.clear()  # the browser writes the status 403 to its console


def test_the_first_load_is_small(browser: Any, endpoint: Running) -> None:
    sizes = transferred(browser, endpoint.url)
    assert len(sizes) >= 4
    assert sum(sizes) < 100_000


def test_rows_slide_where_motion_is_welcome(browser: Any, endpoint: Running) -> None:
    context = browser.new_context(reduced_motion="no-preference")
    page = context.new_page()
    page.goto(endpoint.url)
    page.evaluate(
        "() => { window.slides = 0; const animate = Element.prototype.animate;"
        "Element.prototype.animate = function (...args) { window.slides++; return animate.apply(this, args); } }"
    )
    page.fill("#turn-1", "write a long poem")
    page.wait_for_function("() => window.slides > 0")
    context.close()
