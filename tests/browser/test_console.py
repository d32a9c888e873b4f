"""The router's console in a browser: live parts, the budget slider, keys, and what hostile names can do: nothing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx2
import pytest

from tests.browser.conftest import SIZES, Visit, Visits, router_in_a_thread
from tests.browser.test_endpoint_page import HOSTILE, tab_to
from tests.route.router_helpers import KEY

ADMIN = "the-admin-key"


@dataclass
class Served:
    """A router in a thread of its own."""

    url: str

    def ask(self, text: str = "hello", **fields: Any) -> httpx2.Response:
        body = {"messages": [{"role": "user", "content": text}], **fields}
        headers = {"authorization": f"Bearer {KEY}"}
        return httpx2.post(f"{self.url}/v1/chat/completions", json=body, headers=headers, timeout=60)


@pytest.fixture(scope="module")
def router(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    config = {
        "admin_key": ADMIN,
        "database": "router.sqlite",
        "store_prompts": True,
        "teams": {HOSTILE: {"spend_per_day": 10.0}},
        "keys": [{"key": "another-key", "name": "limited", "spend_per_day": 1.0, "team": HOSTILE}],
        "settings": {"cost_optimizer": "simple-lp"},
    }
    with router_in_a_thread(tmp_path_factory.mktemp("console"), **config) as url:
        served = Served(url)
        for number in range(4):
            assert served.ask(f"{HOSTILE} {number}", cost=2.5).status_code == 200
        yield served


@pytest.fixture
def console(visit: Visits, router: Served) -> Iterator[Any]:
    def open_page(**options: Any) -> Visit:
        opened = visit(f"{router.url}/console", **options)
        opened.page.fill("#key", ADMIN)
        opened.page.keyboard.press("Enter")
        opened.page.wait_for_selector("#live")
        opened.page.wait_for_load_state()  # what is typed before its script listens asks for nothing
        return opened

    return open_page


def test_requests_appear_while_one_looks(console: Any, router: Served) -> None:
    page = console().page
    page.wait_for_selector(".chart canvas >> nth=1")
    before = page.inner_text("[data-part=requests]")
    assert router.ask("a new request").status_code == 200
    page.wait_for_function("before => document.querySelector('[data-part=requests]').innerText != before", arg=before)
    page.click("[data-part=requests] summary >> nth=0")
    request = page.inner_text("[data-part=requests] details >> nth=0")
    assert "a new request" in request
    assert "The best that no budget buys." in request
    page.wait_for_function("() => document.querySelector('[data-part=tiles] dd').innerText != '0.0'")


def test_hostile_prompts_teams_and_names_are_text(console: Any) -> None:
    page = console().page
    assert HOSTILE in page.inner_text("[data-part=budgets]")
    page.click("[data-part=requests] summary >> nth=-1")
    assert HOSTILE in page.inner_text("[data-part=requests]")
    assert page.evaluate("window.planted") is None


def test_the_slider_shows_the_mixture_that_a_budget_buys(console: Any) -> None:
    page = console().page
    page.fill("#try-prompt", "what is 12 plus 34")
    page.wait_for_selector("#mixture table")
    assert "no budget" in page.inner_text("#mixture")
    page.focus("#budget")
    for _ in range(40):
        page.keyboard.press("ArrowLeft")
    page.wait_for_function("() => document.querySelector('#mixture').innerText.includes('the budget is')")
    page.wait_for_function("() => document.querySelectorAll('#mixture tbody tr').length == 3")
    shares = page.locator("#mixture tbody tr td:nth-of-type(2)").all_text_contents()
    assert sum(map(float, shares)) == pytest.approx(100, abs=1.5)
    assert page.locator("#mixture svg.frontier .mark").count() == 1


def test_keys_are_made_limited_and_revoked_with_keys_alone(console: Any, router: Served) -> None:
    opened = console()
    page = opened.page
    page.focus("#new-name")
    page.keyboard.type("shop")
    page.keyboard.press("Tab")
    page.keyboard.type("2.5")
    page.keyboard.press("Enter")
    page.wait_for_selector("code")
    key = page.inner_text("code")
    asked = httpx2.get(f"{router.url}/v1/models", headers={"authorization": f"Bearer {key}"})
    assert asked.status_code == 200
    row = page.locator("[data-part=budgets] tr", has_text="shop")
    assert "2.5" in row.inner_text()
    page.select_option("#old-name", "shop")
    page.fill("#old-spend_per_day", "lots")
    tab_to(page, "Set the limits")
    page.keyboard.press("Enter")
    page.wait_for_selector("[role=alert]")
    opened.complaints.clear()  # the browser writes the status 400 to its console
    assert "spend_per_day" in page.inner_text("[role=alert]")
    page.select_option("#old-name", "shop")
    page.fill("#old-spend_per_day", "7.5")
    page.click("text=Set the limits")
    page.wait_for_selector("text=shop is limited.")
    assert "7.5" in row.inner_text()
    page.select_option("#old-name", "shop")
    page.click("text=Revoke the key")
    page.wait_for_selector("text=shop is revoked.")
    page.click("text=Reload the configuration")
    page.wait_for_selector("text=nothing has changed")
    page.click("text=Sign out")
    page.wait_for_selector("#key")
    opened.complaints.clear()


def test_it_can_be_read_without_scripts(console: Any) -> None:
    opened = console(java_script_enabled=False)
    page = opened.page
    assert page.locator("noscript svg").count() == 3
    page.fill("#try-prompt", "what is 12")
    opened.follow("noscript button")
    assert page.locator("#mixture table tbody tr").count() == 3


def try_prompt(page: Any, prompt: str) -> None:
    """Type a prompt, and again after a while: a page that has just opened may not listen yet."""
    for turn in range(40):
        if turn % 10 == 0:
            page.fill("#try-prompt", prompt + " " * turn)
        page.wait_for_timeout(250)
        if page.locator("#mixture table").count():
            return


@pytest.mark.parametrize(("width", "scheme"), SIZES)
def test_it_is_accessible_and_fits(console: Any, width: int, scheme: str) -> None:
    opened = console(width=width, scheme=scheme)
    try_prompt(opened.page, "what is 12")
    opened.page.wait_for_selector("#mixture table")
    opened.page.click("[data-part=requests] summary >> nth=0")
    assert opened.violations() == []
    assert opened.overflow() <= 0


def test_the_first_load_is_small(browser: Any, router: Served) -> None:
    context = browser.new_context()
    page = context.new_page()
    page.goto(f"{router.url}/console")
    page.fill("#key", ADMIN)
    session = context.new_cdp_session(page)
    session.send("Network.enable")
    sizes: list[float] = []
    session.on("Network.loadingFinished", lambda event: sizes.append(event["encodedDataLength"]))
    page.keyboard.press("Enter")
    page.wait_for_selector(".chart canvas >> nth=1")
    page.wait_for_timeout(200)
    context.close()
    assert len(sizes) >= 4
    assert sum(sizes) < 100_000
