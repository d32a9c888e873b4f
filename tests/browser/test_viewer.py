"""CoEval's viewer in a browser: from the ranking to the item, filters, search, addresses, keys, and hostile texts."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.browser.conftest import SIZES_OF_MANY, Visits
from tests.browser.test_endpoint_page import tab_to
from tests.coeval.helpers import coeval
from tests.coeval.view.hostile_runs import PLANT, write_hostile_run
from tests.serving_process import serving


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_hostile_run(tmp_path_factory.mktemp("run") / "hostile")


@pytest.fixture(scope="module")
def viewer(run: Path) -> Iterator[str]:
    with serving("coeval", "view", "--run", run, probe="/") as (url, _):
        yield url


def count(page: Any) -> str:
    return str(page.inner_text("#count"))


def wait_for_count(page: Any, pattern: str) -> str:
    page.wait_for_function(
        "pattern => new RegExp(pattern).test(document.getElementById('count').textContent)", arg=pattern
    )
    return count(page)


def fitting(page: Any) -> int:
    """How many items fit, once the list stands."""
    wait_for_count(page, "that fit|No item fits")
    found = re.search(r"of ([\d,]+) that fit", count(page))
    return int(found[1]) if found else 0


def search(page: Any, words: str) -> int:
    """How many items a search finds."""
    page.fill("#f-search", words)
    page.wait_for_function("words => new URLSearchParams(location.hash.slice(1)).get('search') == words", arg=words)
    return fitting(page)


def prompts(page: Any) -> list[str]:
    return list(page.locator("#list .prompt").all_text_contents())


def items_of(viewer_page: Any, viewer: str) -> list[Any]:
    """What the script reads, by the page's own requests."""
    return list(json.loads(viewer_page.request.get(f"{viewer}/data/items-0.json").text()))


def test_a_score_of_the_ranking_leads_to_the_item_and_what_judges_said(visit: Visits, viewer: str) -> None:
    page = visit(viewer).page
    assert page.inner_text(".finding").startswith("ant answers best")
    page.click(".standings a:text-is('dog')")
    total = fitting(page)
    assert total == 54
    assert page.input_value("#f-student") == "dog"
    assert page.input_value("#f-sort") == "low"
    scores = [float(text) for text in page.locator("#list li .grade:has-text('dog') b").all_text_contents()]
    assert scores == sorted(scores)
    assert len(scores) == 50
    page.click("#list li:nth-child(3) .grade >> nth=0")
    page.wait_for_selector("article:target h3:has-text('dog')")
    assert f"{scores[2]:.2f}" in page.inner_text("article:target h3")
    assert "Because of" in page.inner_text("article:target .rationale >> nth=0")
    assert "3 of 54 of the list" in page.inner_text("#place")


def test_every_filter_leaves_the_items_that_fit(visit: Visits, viewer: str) -> None:
    page = visit(f"{viewer}/items.html").page
    names = json.loads(page.request.get(f"{viewer}/data/run.json").text())["names"]
    items = items_of(page, viewer)
    assert count(page) == "Items 1 to 50 of 54"

    def cells(one: Any) -> list[tuple[int, ...]]:
        return list(zip(*(iter(one[5]),) * 4, strict=True))

    def gap(one: Any, judge: str = "") -> int:
        return max((far for _, by, _, far in cells(one) if not judge or names["judge"][by] == judge), default=0)

    hostile = next(name for name in names["attribute"] if "script" in name)
    cases = {
        "task": ("mail", lambda one: names["task"][one[1]] == "mail"),
        "teacher": ("owl", lambda one: names["teacher"][one[2]] == "owl"),
        "attribute": (hostile, lambda one: names["attribute"].index(hostile) in one[3]),
        "apart": ("1000", lambda one: gap(one) >= 1000),
        "judge": ("owl", lambda one: gap(one, "owl") >= 1000),
    }
    fits = items
    for name, (value, keeps) in cases.items():
        page.select_option(f"#f-{name}", value)
        fits = [one for one in fits if keeps(one)]
        assert fitting(page) == len(fits), name
    assert 0 < len(fits) < 27
    page.click("text=Show all")
    assert wait_for_count(page, "of 54$") == "Items 1 to 50 of 54"
    page.select_option("#f-apart", "flip")
    flips = [{(by, a, b) for a, b, by, flip in zip(*(iter(one[6]),) * 4, strict=True) if flip} for one in items]
    assert fitting(page) == sum(map(bool, flips))
    owl, dog = names["judge"].index("owl"), names["student"].index("dog")
    page.select_option("#f-judge", "owl")
    assert fitting(page) == sum(any(by == owl for by, *_ in one) for one in flips)
    page.select_option("#f-student", "dog")
    assert 0 < fitting(page) == sum(any(by == owl and dog in pair for by, *pair in one) for one in flips) < 54
    page.click("text=Show all")
    wait_for_count(page, "of 54$")
    page.select_option("#f-sort", "high")
    assert fitting(page) == 54
    page.select_option("#f-sort", "apart")
    assert fitting(page) == 54
    assert f"judges up to {max(map(gap, items)) / 1000:.2f} apart" in page.inner_text("#list li >> nth=0")
    page.click("text=Next")
    wait_for_count(page, "51 to 54")
    page.go_back()
    wait_for_count(page, "1 to 50")


def test_search_looks_through_prompts_answers_and_rationales(visit: Visits, viewer: str) -> None:
    page = visit(f"{viewer}/items.html").page
    page.keyboard.press("/")
    page.keyboard.type("QUESTION 00003 of owl on mail")
    page.wait_for_function("() => document.querySelectorAll('#list li').length == 1")
    assert page.inner_text("#list mark") == "Question 00003 of owl on mail"
    words = "because of egral-neh"  # a judge's rationale holds the record's id backwards
    assert search(page, words) == 54
    page.click("#list .match a >> nth=0")
    page.wait_for_selector("article:target .rationale")
    page.go_back()
    page.wait_for_selector("#filters:not([hidden])")
    assert fitting(page) == 54
    assert page.input_value("#f-search") == words
    assert search(page, "no such words anywhere") == 0
    assert prompts(page) == []


def test_an_address_opens_the_same_list_and_the_same_answer(visit: Visits, viewer: str) -> None:
    page = visit(f"{viewer}/items.html").page
    page.select_option("#f-task", "mail")
    page.select_option("#f-sort", "low")
    assert fitting(page) == 18
    address, before = page.url, prompts(page)
    page.click("#list li:nth-child(2) .grade >> nth=1")
    page.wait_for_selector("article:target")
    answer, name = page.url, page.inner_text("article:target h3")
    other = visit(address).page
    assert fitting(other) == 18
    assert prompts(other) == before
    assert other.input_value("#f-task") == "mail"
    third = visit(answer).page
    assert third.inner_text("article:target h3") == name
    assert third.inner_text("#place").endswith(" of 54"), "without the list it stands in the order of the run"
    unknown = visit(f"{viewer}/items.html#task=gone&student=nobody&page=7").page
    wait_for_count(unknown, "No item fits")


def test_everything_can_be_done_with_keys_alone(visit: Visits, viewer: str) -> None:
    page = visit(viewer).page
    tab_to(page, "Items")
    page.keyboard.press("Enter")
    page.wait_for_selector("#filters:not([hidden])")
    tab_to(page, "apart")
    page.keyboard.type("High")
    total = fitting(page)
    assert total > 2
    tab_to(page, "sort")
    page.keyboard.type("judges")
    assert fitting(page) == total
    assert "apart=1000&sort=apart" in page.url
    tab_to(page, "Question")
    page.keyboard.press("Enter")
    page.wait_for_selector("#place:has-text('of the list')")
    first = page.inner_text("h1")
    page.keyboard.press("j")
    page.wait_for_selector(f"#place:has-text('2 of {total}')")
    assert page.inner_text("h1") != first
    page.keyboard.press("k")
    page.wait_for_selector(f"#place:has-text('1 of {total}')")
    assert page.inner_text("h1") == first
    page.keyboard.press("l")
    page.wait_for_selector("#list")
    assert fitting(page) == total


def test_it_can_be_read_without_scripts(visit: Visits, viewer: str) -> None:
    opened = visit(viewer, java_script_enabled=False)
    page = opened.page
    assert page.locator(".standings tbody tr").count() == 4
    assert page.locator("svg.bar .range").count() == 4
    opened.follow("nav >> text=Items")
    assert page.locator("#filters").is_hidden()
    assert "Filters and search need JavaScript" in page.content()
    opened.follow("text=Next")
    assert count(page) == "Items 51 to 54 of 54"
    opened.follow("#list .prompt >> nth=3")
    assert page.inner_text("#place") == "54 of 54"
    assert "Because of" in page.inner_text(".answers")
    opened.follow("text=Previous")
    assert page.inner_text("#place") == "53 of 54"
    opened.follow("#around >> text=List")
    assert count(page) == "Items 51 to 54 of 54"


@pytest.mark.parametrize(("width", "scheme"), SIZES_OF_MANY)
def test_it_is_accessible_and_fits(visit: Visits, viewer: str, width: int, scheme: str) -> None:
    opened = visit(viewer, width=width, scheme=scheme)
    page = opened.page
    for step in (
        None,
        lambda: page.goto(f"{viewer}/items.html#apart=500&sort=apart"),
        lambda: page.click("#list .prompt >> nth=0"),
    ):
        if step is not None:
            step()
            page.wait_for_selector("#count:has-text('that fit'), #around")
        assert opened.violations() == []
        assert opened.overflow() <= 0
    page.goto(f"{viewer}/items.html#search=because")
    page.wait_for_selector("#list mark")
    assert opened.violations() == []
    assert opened.overflow() <= 0


def test_planted_scripts_never_run(visit: Visits, viewer: str) -> None:
    page = visit(viewer).page
    for path in ("items.html", "items.html#search=planted", "items.html#student=dog&sort=low"):
        page.goto(f"{viewer}/{path}")
        page.wait_for_selector("#list .prompt")
        if "#" in path:
            fitting(page)
        assert PLANT[2:] in page.inner_text("#list")
        assert page.evaluate("window.planted") is None
    page.click("#list .prompt >> nth=0")
    page.wait_for_selector(".answers")
    assert PLANT in page.inner_text(".answers")
    assert page.evaluate("window.planted") is None
    address = f"{viewer}/items.html#search={PLANT}&task={PLANT}"
    page.goto(address)
    wait_for_count(page, "No item fits")
    assert page.evaluate("window.planted") is None


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


def test_a_bundle_works_on_any_web_server_in_any_folder(visit: Visits, run: Path, tmp_path: Path) -> None:
    assert coeval("view", "--run", run, "--bundle", tmp_path / "deep/down/viewer") == 0
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=tmp_path))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        page = visit(f"http://127.0.0.1:{server.server_port}/deep/down/viewer/").page
        page.click(".heat a >> nth=0")
        assert fitting(page) > 0
        assert search(page, "because of") > 0
        page.click("#list .prompt >> nth=0")
        page.wait_for_selector("#place:has-text('of the list')")
        page.click("#around >> text=List")
        assert fitting(page) > 0
    finally:
        server.shutdown()
        server.server_close()


def test_lists_that_cannot_be_read_say_what_to_do(visit: Visits, viewer: str) -> None:
    opened = visit(f"{viewer}/items.html")
    opened.page.route("**/data/*", lambda route: route.abort())
    opened.page.select_option("#f-task", "mail")
    assert "through a web server: coeval view" in wait_for_count(opened.page, "cannot be read")
    opened.complaints.clear()  # the browser writes the failed request to its console


def test_the_first_load_is_small(browser: Any, viewer: str) -> None:
    context = browser.new_context()
    page = context.new_page()
    session = context.new_cdp_session(page)
    session.send("Network.enable")
    sizes: list[float] = []
    session.on("Network.loadingFinished", lambda event: sizes.append(event["encodedDataLength"]))
    page.goto(f"{viewer}/items.html", wait_until="networkidle")
    context.close()
    assert len(sizes) >= 4
    assert sum(sizes) < 30_000
