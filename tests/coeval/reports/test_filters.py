"""The filters of pages in a browser: what they show is what the analysis computes of the scores that are left."""

from __future__ import annotations

import html
import json
import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import yaml

from coeval.analysis.coverage import SummaryReport, slices, summary_report
from coeval.analysis.distribution import interaction_matrix, score_distribution
from coeval.analysis.students import student_cells, student_rows
from coeval.analysis.teachers import teacher_cells
from coeval.analysis.units import LoadedRun, load_run
from coeval.reports.pages import write
from coeval.reports.registry import PAGES, build
from tests.coeval.reports.helpers import FACTORS, write_run
from tools.chromium import CHROMIUM, FLAGS

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed (make browser)")

JUDGE, TASK = "owl", "mail"
"""What the filters leave out, beside self-judging."""
SHOWN = ("summary", "student_report", "score_distribution", "interaction_matrix", "teacher_report", "judge_report")
SCRIPT = """
(() => {
  const texts = (root) => [...root.querySelectorAll("tr:not(.out)")].map((row) =>
    [...row.cells].filter((cell) => !cell.classList.contains("out"))
      .map((cell) => cell.dataset.name || cell.textContent.trim()));
  const all = (query, make) => [...document.querySelectorAll(query)].map(make);
  const shown = () => ({
    live: all(".live, #live-ranking", texts), named: all("[data-names]", texts), grids: all(".grid[data-rows]", texts),
    kept: document.querySelector(".kept")?.textContent, count: document.getElementById("live-count")?.textContent,
  });
  const uncheck = (dimension, name) => {
    const pick = all(".pick", (one) => one).find((one) => one.textContent.startsWith(dimension + ":"));
    [...pick.querySelectorAll("label")].find((label) => label.textContent.trim() === name).firstChild.click();
  };
  const answer = (value) => parent.postMessage([NAME, value], "*");
  try {
    const first = shown();
    uncheck("judge", JUDGE);
    uncheck("task", TASK);
    const choice = document.querySelector(".filters select");
    if (choice) { choice.value = "judge"; choice.dispatchEvent(new Event("change")); }
    const filtered = shown();
    [...document.querySelectorAll(".filters > button")].find((button) => button.textContent === "reset").click();
    answer({ first, filtered, reset: shown() });
  } catch (error) { answer({ error: String(error) }); }
})();
"""
COLLECT = """
const found = {};
addEventListener("message", (event) => {
  found[event.data[0]] = event.data[1];
  document.getElementById("found").textContent = JSON.stringify(found);
});
"""


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> LoadedRun:
    """A run of which one factor of a task counts three times."""
    folder = write_run(tmp_path_factory.mktemp("run") / "filters", items=2, failures=0.1)
    settings = yaml.safe_load((folder / "config.yaml").read_text())
    settings["tasks"][0]["rubric"] = {**FACTORS, "clarity": {"description": "Is it clear?", "weight": 3}}
    (folder / "config.yaml").write_text(yaml.safe_dump(settings))
    return load_run(folder)


def without_peers(report: SummaryReport) -> SummaryReport:
    """The same, as if its last judge were alone of its kind."""
    *others, last = report.judges
    lone = replace(last, rank=None, weighted_spa=None, weighted_wpa=None, weighted_kappa=None)
    return replace(report, judges=(*others, lone))


@pytest.fixture(scope="module")
def shown(loaded: LoadedRun, tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Any]:
    """Page -> what it shows at first, under the filters, and after the button that resets them; one browser for all."""
    home = tmp_path_factory.mktemp("pages")
    names = f"const JUDGE = {json.dumps(JUDGE)}, TASK = {json.dumps(TASK)}, NAME = "
    frames = ""
    made_of = {name: build(PAGES[name].name, loaded) for name in SHOWN}
    made_of["summary without peers"] = without_peers(summary_report(loaded))
    for name, report in made_of.items():
        page = write(name.split()[0], report, home / name, slices(loaded)).read_text("utf-8")
        page = page.replace("</body>", f"<script>{{{names}{json.dumps(name)};{SCRIPT}}}</script></body>")
        frames += f'<iframe srcdoc="{html.escape(page)}"></iframe>'
    frame = home / "all.html"
    frame.write_text(f'<meta charset="utf-8"><script>{COLLECT}</script><pre id="found">{{}}</pre>{frames}', "utf-8")
    command = [str(CHROMIUM), "--headless", *FLAGS, "--disable-background-networking", "--dump-dom"]
    profile = f"--user-data-dir={home / 'profile'}"
    done = subprocess.run(
        [*command, profile, "--virtual-time-budget=20000", frame.as_uri()], capture_output=True, text=True, check=True
    )
    found = re.search(r'<pre id="found">(.*?)</pre>', done.stdout, re.DOTALL)
    assert found
    made: dict[str, Any] = json.loads(html.unescape(found[1]))
    assert {name: one["error"] for name, one in made.items() if "error" in one} == {}
    assert set(made) == set(made_of)
    return made


@pytest.fixture(scope="module")
def left(loaded: LoadedRun) -> LoadedRun:
    """The run without what the filters leave out."""
    units = loaded.units
    out = (units.judge == loaded.judges.index(JUDGE)) | (units.task == loaded.tasks.index(TASK))
    return loaded.with_units(units.where(~(out | loaded.is_student("judge"))))


def number(text: str) -> float:
    return float(text.replace("\N{MINUS SIGN}", "-").replace(",", "").rstrip("%"))


def matrix(rows: Sequence[Sequence[str]]) -> dict[tuple[str, str], float]:
    """Numbers of a heat map by the names of its row and column."""
    head, *body = rows
    cells = ((row[0], column, text) for row in body for column, text in zip(head[1:], row[1:], strict=True))
    return {(row, column): number(text) for row, column, text in cells if text != "\N{EN DASH}"}


@pytest.mark.parametrize("name", SHOWN)
def test_resetting_the_filters_brings_back_what_was_shown_first(name: str, shown: Mapping[str, Any]) -> None:
    assert shown[name]["reset"] == shown[name]["first"]
    assert shown[name]["filtered"] != shown[name]["first"]


def test_the_summary_ranks_by_the_scores_that_are_left(
    loaded: LoadedRun, left: LoadedRun, shown: Mapping[str, Any]
) -> None:
    report = summary_report(loaded)
    teachers = [row.teacher for row in report.teachers if row.v1 >= report.teacher_threshold]
    judges = [row.judge for row in report.judges if (row.weighted_spa or 0.0) >= report.judge_threshold]
    trusted = np.isin(left.units.teacher, [left.teachers.index(name) for name in teachers])
    trusted &= np.isin(left.units.judge, [left.judges.index(name) for name in judges])
    expected = student_rows(left.with_units(left.units.where(trusted)))
    page = shown["summary"]["filtered"]
    ((_, *rows),) = page["live"]
    assert [(int(row[0]), row[1], number(row[5])) for row in rows] == [
        (row.rank, row.student, row.valid_evals) for row in expected
    ]
    means = [(number(row[3]), number(row[4])) for row in rows]
    assert np.array(means) == pytest.approx(np.array([(row.mean, row.macro) for row in expected]), abs=6e-4)
    assert page["count"] == f"{int(trusted.sum()):,} of {len(loaded.units):,} scores count."
    assert page["kept"] == f"{len(left.units):,} of {len(loaded.units):,} scores"


def test_a_judge_without_peers_counts(loaded: LoadedRun, shown: Mapping[str, Any]) -> None:
    counts = [shown[name]["first"]["count"] for name in ("summary", "summary without peers")]
    report = summary_report(loaded)
    lone = report.judges[-1]
    assert (lone.weighted_spa or 0.0) < report.judge_threshold
    teachers = [loaded.teachers.index(row.teacher) for row in report.teachers if row.v1 >= report.teacher_threshold]
    units = loaded.units
    added = (units.judge == loaded.judges.index(lone.judge)) & np.isin(units.teacher, teachers)
    before, after = (int(text.split()[0].replace(",", "")) for text in counts)
    assert after - before == added.sum()


def test_heat_maps_of_students_hold_the_means_that_are_left(left: LoadedRun, shown: Mapping[str, Any]) -> None:
    dimensions = ("task", "factor", "judge", "teacher")
    for dimension, rows in zip(dimensions, shown["student_report"]["filtered"]["live"], strict=True):
        cells = [cell for cell in student_cells(left) if cell.dimension == dimension]
        assert matrix(rows) == pytest.approx({(cell.student, cell.value): cell.mean for cell in cells}, abs=6e-3)


def test_heat_maps_of_teachers_and_their_deviations_too(left: LoadedRun, shown: Mapping[str, Any]) -> None:
    means, deviations = shown["interaction_matrix"]["filtered"]["live"]
    cells = [cell for cell in interaction_matrix(left).cells if not cell.factor]
    assert matrix(means) == pytest.approx({(cell.teacher, cell.student): cell.mean for cell in cells}, abs=6e-3)
    expected = {(cell.teacher, cell.student): cell.deviation for cell in cells}
    assert matrix(deviations) == pytest.approx(expected, abs=6e-3)
    (means,) = shown["teacher_report"]["filtered"]["live"]
    cells_of = {(cell.teacher, cell.value): cell.mean for cell in teacher_cells(left) if cell.dimension == "factor"}
    assert matrix(means) == pytest.approx(cells_of, abs=6e-3)


def test_shares_of_levels_are_counted_anew(left: LoadedRun, shown: Mapping[str, Any]) -> None:
    found = [row for row in score_distribution(left).rows if row.dimension == "all"]
    for role, (_, *rows) in zip(
        ("student", "teacher", "judge"), shown["score_distribution"]["filtered"]["live"][:3], strict=True
    ):
        expected = {
            row.model: (*(100 * level / row.units for level in (row.high, row.medium, row.low)), row.units)
            for row in found
            if row.role == role
        }
        numbers = {row[0]: [number(row[place]) for place in (2, 3, 4, 6)] for row in rows}
        assert set(numbers) == set(expected)
        assert all(numbers[name] == pytest.approx(expected[name], abs=0.51) for name in expected)


def test_what_is_not_computed_anew_hides_what_is_left_out(shown: Mapping[str, Any]) -> None:
    first, filtered = (shown["judge_report"][when] for when in ("first", "filtered"))
    assert [row for row in first["named"][0] if row[1] != JUDGE] == filtered["named"][0]
    assert [row[0] for row in first["grids"][0] if row[0] != JUDGE] == [row[0] for row in filtered["grids"][0]]
    assert JUDGE not in filtered["grids"][0][0]
