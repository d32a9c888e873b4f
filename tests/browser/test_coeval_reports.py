"""The pages of `coeval analyze all` in a browser: each can be read on every screen, and loads nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.browser.conftest import SIZES_OF_MANY, Visits
from tests.coeval.helpers import coeval
from tests.coeval.view.hostile_runs import write_hostile_run


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    root = tmp_path_factory.mktemp("analysis")
    words: list[str | Path] = ["--run", write_hostile_run(root / "hostile"), "--out", root / "reports"]
    # Its judges agree on no item entirely.
    assert coeval("analyze", "all", *words, "--agreement-threshold", "0.9") == 0
    return sorted((root / "reports").rglob("index.html"))


@pytest.mark.parametrize(("width", "scheme"), SIZES_OF_MANY)
def test_every_page_is_accessible_and_fits(visit: Visits, reports: list[Path], width: int, scheme: str) -> None:
    assert len(reports) > 10
    opened = visit(reports[0].as_uri(), width=width, scheme=scheme)
    for path in reports:
        opened.page.goto(path.as_uri())
        opened.page.evaluate("document.querySelectorAll('details').forEach(part => part.open = true)")
        assert opened.violations() == [], path
        assert opened.overflow() <= 0, path
        assert opened.page.evaluate("window.planted") is None


def test_every_page_can_be_read_without_scripts(visit: Visits, reports: list[Path]) -> None:
    page = visit(reports[0].as_uri(), java_script_enabled=False).page
    for path in reports:
        page.goto(path.as_uri())
        assert page.locator("h1").is_visible(), path
        closed = page.locator("details:not([open]) > summary")
        while closed.count():  # what is folded within others too
            closed.first.click()
        rows = page.locator("table tbody tr")
        assert rows.count() > 0, path
        assert page.locator("table tbody tr:visible").count() == rows.count(), path
        # Nothing is offered that does nothing.
        assert page.locator("select:visible, input:visible, button:visible:not(th button)").count() == 0, path
        heads = page.locator("th button").evaluate_all("all => all.map(one => getComputedStyle(one).pointerEvents)")
        assert set(heads) <= {"none"}, path
