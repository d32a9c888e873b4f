"""Texts of others on every page: each is shown as it was written, none runs, loads, or meets the page's policy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.browser.conftest import Visits
from tests.browser.hostile_pages import PAGES
from tests.browser.hostile_texts import CONTEXTS, LOADING, RUNNING, TEXTS

POLICY = "<meta http-equiv=Content-Security-Policy content=\"default-src 'none'\">"
# What a reader sees: text, and what stands in fields and menus; data for scripts is no text.
SEEN = """() => {
    const body = document.body.cloneNode(true);
    body.querySelectorAll('script, style').forEach(part => part.remove());
    const fields = [...document.querySelectorAll('input, textarea, option')].map(field => field.value);
    return [body.textContent, ...fields].join(' ');
}"""
# No page has these for itself: a text became one of them.
PLANTED = (
    "iframe, base, meta[http-equiv=refresh], a[href^='javascript:'], form[action*='evil'], video, "
    "[onerror], [onload], [onfocus], [ontoggle], [onanimationstart]"
)


def in_one_line(text: str) -> str:
    return " ".join(text.split())


def write_bare(folder: Path, text: str, context: str, head: str = "") -> str:
    """A page that shows a text as it is; its address."""
    page = folder / "bare.html"
    page.write_text(f"<!doctype html><meta charset=utf-8>{head}{CONTEXTS[context].replace('{}', text)}", "utf-8")
    return page.as_uri()


@pytest.mark.parametrize("text", [*RUNNING, *LOADING])
def test_each_text_does_harm_on_a_page_that_shows_it_as_it_is(visit: Visits, tmp_path: Path, text: str) -> None:
    """Or the test below could not fail."""
    opened = visit("about:blank")
    page = opened.page
    if text in RUNNING:
        page.goto(write_bare(tmp_path, text, RUNNING[text]))
        if RUNNING[text] == "link":
            page.click("a")
        page.wait_for_function("() => window.planted === 1")
        page.goto(write_bare(tmp_path, text, RUNNING[text], POLICY))
        if RUNNING[text] == "link":
            page.click("a")
        page.wait_for_timeout(100)
        assert page.evaluate("window.planted") is None
        assert opened.blocked(), "the policy stopped it, and it was counted"
    else:
        page.route("http://evil.example/**", lambda route: route.fulfill(body=""))
        with page.expect_request("http://evil.example/**"):
            page.goto(write_bare(tmp_path, text, LOADING[text]), wait_until="commit")
        assert opened.foreign
    opened.complaints.clear()
    opened.foreign.clear()


@pytest.mark.parametrize("name", PAGES)
def test_texts_of_others_are_text(visit: Visits, tmp_path: Path, name: str) -> None:
    with PAGES[name](tmp_path) as look:
        visits = look(visit)
        assert visits
        seen = ""
        for opened in visits:
            page: Any = opened.page
            assert page.evaluate("window.planted") is None, page.url
            assert opened.blocked() == [], page.url
            assert opened.foreign == [], page.url
            assert page.locator(PLANTED).evaluate_all("all => all.map(one => one.outerHTML)") == [], page.url
            seen += in_one_line(page.evaluate(SEEN))
            page.goto("about:blank")  # before its service ends, of which its script would complain
        assert "1337" not in seen, "a template of the server evaluated a text"
        assert [text for text in TEXTS if in_one_line(text) not in seen] == []
