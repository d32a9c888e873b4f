"""Small things that a user meets: plans of runs that are there, names twice, no workbook, judges that left."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest

from coeval.analysis.bias import position_rows
from coeval.analysis.coverage import coverage_summary
from coeval.analysis.units import load_run
from coeval.commands import analyze
from coeval.pairs.preferences import PreferenceFilter, gather
from p2l.common import spreadsheets
from tests.coeval.analysis.runs import both
from tests.coeval.analysis.runs import run_of as run_with
from tests.coeval.helpers import STATIC_TASK, coeval, model, records, run_of, write_config


def test_a_dry_run_of_a_finished_run_prints_the_plan(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    task = {**STATIC_TASK, "store_nuanced": True}
    config = write_config(tmp_path, [model("ant", roles=["teacher", "student", "judge"])], [task])
    assert coeval("run", "--config", config) == 0
    assert {*records(run_of(tmp_path), "data_generation")[0]["sampled_nuanced_attributes"]} == {"noise"}
    capsys.readouterr()
    assert coeval("run", "--config", config, "--dry-run") == 0
    assert "mail" in capsys.readouterr().out
    assert coeval("run", "--config", config) == 1
    command = capsys.readouterr().err.split("holds a run already; go on with it by `")[1].split("`")[0]
    assert coeval(*shlex.split(command)[1:]) == 0


def test_the_index_leads_to_the_workbook_where_there_is_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    scores = {(f"mail/ada/{n}", s, j): both("High") for n in range(2) for s in ("a", "b") for j in ("j1", "j2")}
    loaded = run_with(tmp_path, scores)
    assert analyze.main(["all", "--run", str(loaded.run.folder), "--out", str(tmp_path / "whole")]) == 0
    assert "Workbook" in (tmp_path / "whole" / "index.html").read_text()
    monkeypatch.setattr(spreadsheets, "find_spec", lambda _name: None)
    assert analyze.main(["all", "--run", str(loaded.run.folder), "--out", str(tmp_path / "out")]) == 0
    assert "no workbook: xlsxwriter is not installed" in capsys.readouterr().err
    assert "Workbook" not in (tmp_path / "out" / "index.html").read_text()


def test_coverage_expects_the_judges_of_the_configuration(tmp_path: Path) -> None:
    scores = {(f"mail/ada/{n}", "a", j): both("High") for n in range(2) for j in (("now", "gone") if n else ("gone",))}
    judge = {"name": "now", "interface": "openai", "roles": ["judge"], "parameters": {"model": "m"}}
    rows = list(coverage_summary(run_with(tmp_path, scores, models=[judge])).rows)
    assert {(row.judge, row.expected, row.actual) for row in rows} == {("now", 2, 1), ("gone", 0, 2)}


def test_one_order_tells_of_position(tmp_path: Path) -> None:
    task: dict[str, Any] = {**STATIC_TASK, "evaluation_mode": "pairwise", "pairwise": {"both_orders": False}}
    task["sampling"] = {**task["sampling"], "total": 12}
    students = [model("s1", skill=0.6), model("s2", skill=0.6)]
    judge = model("jay", roles=["judge"], position_bias=0.9)
    teacher = model("ada", roles=["teacher"])
    assert coeval("run", "--config", write_config(tmp_path, [teacher, *students, judge], [task])) == 0
    assert gather(load_run(run_of(tmp_path).folder), PreferenceFilter()).flips == ()

    (row,) = position_rows(load_run(run_of(tmp_path).folder).verdicts)
    assert (row.judge, row.verdicts, row.first, row.biased) == ("jay", 12, 1.0, True)
