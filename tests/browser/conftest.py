"""One browser for a file of tests, pages that report what they load and complain about, and the services they are of.

Tests skip where Playwright or Chromium is absent (`make browser`).
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.route.router_helpers import a_router
from tools.chromium import CHROMIUM, FLAGS

AXE = Path(__file__).parent / "axe" / "axe.min.js"
SIZES = [
    (360, "light"),
    (1400, "dark"),
    pytest.param(360, "dark", marks=pytest.mark.slow),
    pytest.param(1400, "light", marks=pytest.mark.slow),
]
"""Each width and each scheme once, the other two among the slow tests: widths move things, schemes color them."""
SIZES_OF_MANY = [SIZES[0], pytest.param(1400, "dark", marks=pytest.mark.slow), *SIZES[2:]]
"""For pages that share a style sheet: the narrow screen, where things break, and the others among the slow tests."""


def transferred(browser: Any, url: str) -> list[float]:
    """Return the bytes of each thing that the first visit of a page fetches."""
    context = browser.new_context()
    page = context.new_page()
    session = context.new_cdp_session(page)
    session.send("Network.enable")
    sizes: list[float] = []
    session.on("Network.loadingFinished", lambda event: sizes.append(event["encodedDataLength"]))
    page.goto(url)
    page.wait_for_load_state("networkidle")
    context.close()
    return sizes


# Not for the session: Playwright's event loop runs in this thread until it ends, and other files need their own.
@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    api = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed (make browser)")
    if CHROMIUM is None:
        pytest.skip("Chromium is not installed (make browser)")
    with api.sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield running
        running.close()


@dataclass
class Visit:
    """An open page, and what went wrong on it or was asked of other hosts."""

    page: Any
    host: str
    complaints: list[str] = field(default_factory=list)
    foreign: list[str] = field(default_factory=list)

    def watch(self) -> None:
        self.page.on("console", lambda message: self.complain(message))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", lambda request: self.ask(request.url))

    def complain(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.complaints.append(message.text)

    def follow(self, selector: str) -> None:
        """Click a link or a button that opens another page, and wait for that."""
        with self.page.expect_navigation():
            self.page.click(selector)

    def blocked(self) -> list[str]:
        """What the page's policy stopped: the browser complains of each."""
        return [complaint for complaint in self.complaints if "Content Security Policy" in complaint]

    def ask(self, url: str) -> None:
        if urlsplit(url).scheme in ("http", "https") and urlsplit(url).netloc != self.host:
            self.foreign.append(url)

    def violations(self) -> list[str]:
        """What axe objects to."""
        self.page.evaluate(AXE.read_text("utf-8"))
        report = self.page.evaluate("axe.run(document, {resultTypes: ['violations']})")
        return [
            f"{rule['id']}: {node['html'][:200]} {node['failureSummary']}"
            for rule in report["violations"]
            for node in rule["nodes"]
        ]

    def overflow(self) -> int:
        """Pixels by which the page is wider than its window."""
        return int(self.page.evaluate("document.documentElement.scrollWidth - innerWidth"))


Visits = Callable[..., Visit]


@contextlib.contextmanager
def router_in_a_thread(folder: Path, **config: Any) -> Iterator[str]:
    """A router of `a_router`, whose address this gives: Playwright has the event loop of this thread."""
    ready: Future[str] = Future()
    stop: Future[None] = Future()

    async def main() -> None:
        try:
            async with a_router(folder, **config) as running:
                ready.set_result(running.url)
                await asyncio.wrap_future(stop)
        except BaseException as error:
            if not ready.done():
                ready.set_exception(error)
            raise

    thread = threading.Thread(target=lambda: asyncio.run(main()))
    thread.start()
    try:
        yield ready.result(60)
    finally:
        stop.set_result(None)
        thread.join()


@pytest.fixture
def visit(browser: Any) -> Iterator[Visits]:
    """Open pages; in the end none may have complained or asked another host."""
    visits: list[Visit] = []

    def open_page(url: str, *, width: int = 1400, scheme: str = "light", **options: Any) -> Visit:
        context = browser.new_context(
            viewport={"width": width, "height": 800}, color_scheme=scheme, reduced_motion="reduce", **options
        )
        context.set_default_timeout(20_000)
        opened = Visit(context.new_page(), urlsplit(url).netloc)
        opened.watch()
        visits.append(opened)
        opened.page.goto(url)
        return opened

    yield open_page
    for opened in visits:
        opened.page.context.close()
    assert [complaint for opened in visits for complaint in opened.complaints] == []
    assert [url for opened in visits for url in opened.foreign] == []
