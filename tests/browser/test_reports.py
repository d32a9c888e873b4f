"""Reports in a browser: the verdict is on the first screen, everything can be read, and what others wrote is text."""

from __future__ import annotations

from collections.abc import Callable
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from p2l.chrono.matrix import Matrix
from p2l.chrono.results import chrono_report
from p2l.common.report.reports import save_report
from p2l.evaluation.output_report import write_report
from p2l.evaluation.training_report import training_report
from p2l.insight import explain
from p2l.insight.drift import Drift, DriftCell
from p2l.insight.drift_report import drift_report
from p2l.insight.explain_report import explanation_report
from p2l.leaderboard.report import leaderboard_report
from p2l.metrics import Interval
from p2l.training.run_records import read_run
from route.evaluation.measuring import POLICIES, PolicyReport, Results
from route.evaluation.report import routing_report
from tests.browser.conftest import SIZES_OF_MANY, Visit, Visits
from tests.p2l.commands.test_explain import arena
from tests.p2l.evaluation.evaluation_results import output
from tests.p2l.evaluation.training_runs import make_run, publications, write_lines
from tests.p2l.leaderboard.page_boards import leaderboards

HOSTILE = '"><img src=x onerror="window.planted=1"><script>window.planted=1</script>'
MODELS = ["ant", "bee", "cat", "dog", f"<b>{HOSTILE}", "中文模型", "a-name-of-many-letters-and-no-space" * 3]


def evaluation(folder: Path, names: list[str] = MODELS, text: str = HOSTILE) -> Path:
    return write_report([output(names, ["all", text], prompts=200)], folder)


def training(folder: Path, names: list[str] = MODELS, text: str = HOSTILE) -> Path:
    run = make_run(folder / "run", names)
    write_lines(run / "published.jsonl", [line | {"reason": text} for line in publications()])
    return save_report(training_report(read_run(run)), folder / "training.html")


def drift(folder: Path, names: list[str] = MODELS, text: str = HOSTILE) -> Path:
    cells = [
        DriftCell(
            by, category, model, 40, 30.0 * place, 30.0 * place - 20, 30.0 * place + 20, 0.5, 0.6, 0.01, 0.02, verdict
        )
        for place, (model, verdict) in enumerate(zip(names, cycle(("", "rose", "", "rose", "rose", "")), strict=False))
        for by, category in (("", "all"), ("topic", text), ("topic", "sql"))
    ]
    found = Drift("outputs/may", "outputs/june", "bt-tie", 0.95, 0.05, cells, [text])
    return save_report(drift_report(found, "prompts.parquet"), folder / "drift.html")


def slices(folder: Path, _names: list[str] = MODELS, text: str = HOSTILE) -> Path:
    numbers = [128, 256, 384, 512]
    later = np.array([[number > checkpoint for number in numbers] for checkpoint in numbers])
    drawn = np.random.default_rng(0).normal(1.1, 0.02, (3, 4, 4))
    runs = [
        Matrix(name, "Loss", numbers, numbers, values, np.full((4, 4), 200.0), later)
        for name, values in zip(("naive", text, "oracle"), drawn, strict=True)
    ]
    report = chrono_report(runs, "4 slices of votes", oracle="oracle", naive="naive")
    return save_report(report, folder / "slices.html")


def routing_results(names: list[str], text: str) -> Results:
    """What a routing of these models comes to; notes and constants are texts of others."""

    def around(value: float) -> Interval:
        return Interval(value, value - 0.02, value + 0.02, 0.01)

    policies = {
        name: PolicyReport(
            about,
            around(0.6 - 0.01 * place),
            around(0.7 - 0.01 * place),
            around(0.65 - 0.01 * place),
            Interval(0.5, 0.4, float("inf"), 0.1),
            {} if name == "p2l" else {"area": around(0.03), "at_equal_cost": around(0.03)},
            {} if name == "single" else {"area": around(0.03)},
            {} if name == "single" else {"area": around(0.3)},
            around(0.05),
            tuple((0.001 * 2.0**step, 0.4 + 0.03 * step - 0.005 * place) for step in range(6)),
            (text,),
        )
        for place, (name, about) in enumerate(POLICIES.items())
    }
    models = {name: (0.001 * 2.0**place, 0.4 + 0.02 * place) for place, name in enumerate(names)}
    bins = output(["a", "b"], ["all"], prompts=90).categories[0].reliability
    assert bins is not None
    sizes = {"questions": 900, "prompts": 880, "trained_on": (700,), "trainings": 4, "notes": (text,)}
    return Results(
        table="t",
        models=tuple(names),
        **sizes,
        constants=((names[0], 0.001), (text, 0.004)),
        one_price=False,
        on_average=True,
        policies=policies,
        model_points=models,
        pairs=bins,
        chosen=bins,
        guard=None,
    )


def routing(folder: Path, names: list[str] = MODELS, text: str = HOSTILE) -> Path:
    results = routing_results(names, text)
    return save_report(routing_report(results, text, "scores.parquet"), folder / "routing.html")


def strengths(folder: Path, names: list[str] = MODELS, text: str = HOSTILE) -> Path:
    coefs, texts, _ = arena()
    texts = [[f"{prompt} {text}"] for [prompt] in texts]
    found = explain(coefs, names[:5], likelihood="bt", texts=texts)
    return save_report(explanation_report(found, text, text), folder / "strengths.html")


def leaderboard(folder: Path, names: list[str] = MODELS, text: str = HOSTILE) -> Path:
    many = [*names, *(f"model-{number}" for number in range(60))]
    computed = leaderboards(many, {text: [text, "second", "third"]}, periods=20)
    return save_report(leaderboard_report(computed, "", text), folder / "leaderboard.html")


REPORTS: dict[str, Callable[..., Path]] = {
    "evaluation": evaluation,
    "training": training,
    "drift": drift,
    "slices": slices,
    "routing": routing,
    "leaderboard": leaderboard,
    "strengths": strengths,
}


@pytest.fixture(scope="module", params=REPORTS)
def address(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The address of a report, a file."""
    return REPORTS[request.param](tmp_path_factory.mktemp("report")).as_uri()


def unfold(opened: Visit) -> None:
    opened.page.evaluate("document.querySelectorAll('details').forEach(part => part.open = true)")


@pytest.mark.parametrize(("width", "scheme"), SIZES_OF_MANY)
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


def test_a_filter_keeps_the_rows_that_it_names_in_every_table(visit: Visits, tmp_path: Path) -> None:
    page = visit(leaderboard(tmp_path).as_uri()).page
    first, second = page.locator(".filter input").nth(0), page.locator(".filter input").nth(1)
    first.focus()
    page.keyboard.type("BEE, model-59")
    for input_ in (first, second):
        assert input_.input_value() == "BEE, model-59"
    tables = page.locator("table.filtered")
    assert tables.count() == page.locator(".filter input").count() > 2
    board = tables.first.locator("tbody tr:visible")
    assert [row.locator("td").nth(1).inner_text() for row in board.all()] == ["bee", "model-59"]  # beyond the fold, too
    assert page.locator(".filter [role=status]").first.inner_text() == "2 of 67"
    tables.first.locator("th button").first.click()
    assert board.count() == 2
    first.fill("")
    assert page.locator("table.filtered").count() == 0
    assert page.locator("section > .scroll").first.locator("tbody tr:visible").count() == 67


def test_a_filter_that_names_nothing_leaves_no_row(visit: Visits, tmp_path: Path) -> None:
    page = visit(leaderboard(tmp_path).as_uri()).page
    page.locator(".filter input").first.fill("no such model")
    assert page.locator("table.filtered tbody tr:visible").count() == 0
    assert page.locator(".filter [role=status]").first.inner_text() == "0 of 67"


def test_there_is_no_filter_without_scripts(visit: Visits, tmp_path: Path) -> None:
    page = visit(leaderboard(tmp_path).as_uri(), java_script_enabled=False).page
    assert page.locator(".filter:visible").count() == 0
