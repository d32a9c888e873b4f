"""Reports in a browser: the verdict is on the first screen, everything can be read, and what others wrote is text."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from p2l.evaluation.report import write_report
from tests.browser.conftest import SIZES, Visit, Visits
from tests.p2l.evaluation.evaluation_results import output

HOSTILE = '"><img src=x onerror="window.planted=1"><script>window.planted=1</script>'
MODELS = ["ant", "bee", "cat", "dog", f"<b>{HOSTILE}", "中文模型", "a-name-of-many-letters-and-no-space" * 3]


def evaluation(folder: Path) -> Path:
    return write_report([output(MODELS, ["all", HOSTILE], prompts=200)], folder)


REPORTS: dict[str, Callable[[Path], Path]] = {"evaluation": evaluation}


@pytest.fixture(scope="module", params=REPORTS)
def address(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The address of a report, a file."""
    return REPORTS[request.param](tmp_path_factory.mktemp("report")).as_uri()


def unfold(opened: Visit) -> None:
    opened.page.evaluate("document.querySelectorAll('details').forEach(part => part.open = true)")


@pytest.mark.parametrize(("width", "scheme"), SIZES)
def test_a_report_is_accessible_and_fits(visit: Visits, address: str, width: int, scheme: str) -> None:
    opened = visit(address, width=width, scheme=scheme)
    unfold(opened)
    assert opened.violations() == []
    assert opened.overflow() <= 0


@pytest.mark.parametrize("width", [360, 1400])
def test_the_verdict_is_on_the_first_screen(visit: Visits, address: str, width: int) -> None:
    page = visit(address, width=width).page
    box = page.locator(".verdict").bounding_box()
    assert box["y"] + box["height"] < 800
    assert page.locator(".verdict p").first.inner_text().endswith(".")
    assert page.locator("h1 time").count() == 1


def test_names_are_text_and_no_other_script_runs(visit: Visits, address: str) -> None:
    page = visit(address).page
    assert page.evaluate("document.documentElement.classList.contains('scripted')")
    assert page.evaluate("window.planted") is None
    assert HOSTILE in page.locator("main").text_content()


def test_the_policy_stops_a_script_that_slipped_in(browser: Any, address: str) -> None:
    context = browser.new_context()
    page = context.new_page()
    page.goto(address)
    page.evaluate("document.body.append(Object.assign(document.createElement('script'), {textContent: 'planted = 1'}))")
    page.evaluate("document.body.innerHTML += '<img src=x onerror=\"window.planted=1\">'")
    page.wait_for_timeout(200)
    assert page.evaluate("window.planted") is None
    context.close()


def test_a_report_can_be_read_without_scripts(visit: Visits, address: str) -> None:
    page = visit(address, java_script_enabled=False).page
    assert page.locator(".verdict").is_visible()
    for row in page.locator("section > .scroll tbody tr").all():
        assert row.is_visible()  # none is folded away


def test_a_table_sorts_and_unfolds_by_keys(visit: Visits, address: str) -> None:
    page = visit(address).page
    head = page.locator("section table.sorts th button").first
    head.focus()
    page.keyboard.press("Enter")
    page.keyboard.press("Enter")
    assert page.locator("section table.sorts th[aria-sort]").count() == 1


def test_it_prints_whole(visit: Visits, address: str) -> None:
    page = visit(address).page
    page.emulate_media(media="print")
    assert page.locator("tr.more").evaluate_all("rows => rows.every(row => getComputedStyle(row).display != 'none')")
