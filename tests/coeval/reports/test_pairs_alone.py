"""A run whose judges compared pairs alone, in tables, figures and pages."""

from __future__ import annotations

import csv
import random
from collections import defaultdict
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from coeval.analysis.coverage import complete_report
from coeval.analysis.units import LoadedRun, load_run
from coeval.commands.export import preferences_main, tables_main
from coeval.pairs.board import OVERALL, pairs_report
from coeval.reports.pages import write_all
from coeval.reports.registry import PAGES, build
from coeval.storage.records import read_records
from p2l.commands.leaderboard import main as leaderboard_main
from tests.coeval.analysis.runs import write_lines
from tests.coeval.reports.helpers import write_run
from tests.coeval.view.hostile_runs import rewrite
from tests.parsed_page import Page

STUDENTS = ("ant", "bee", "cow")


def run_of_pairs(folder: Path) -> Path:
    run = write_run(folder, students=STUDENTS, judges=("jay", "owl", "yak"), teachers=("fox",), items=12, pairs=True)
    for path in (run / "phase5_evaluations").iterdir():
        path.unlink()
    # No prompt resembles another, so that each is one.
    rng = random.Random(0)
    prompts: dict[str, str] = defaultdict(lambda: f"{rng.getrandbits(400):x}")
    rewrite(run, "phase3_datapoints", lambda item: {**item, "prompt": prompts[item["id"]]})
    rewrite(run, "phase4_responses", lambda answer: {**answer, "input": prompts[answer["datapoint_id"]]})
    return run


@lru_cache(maxsize=1)
def loaded_run() -> LoadedRun:
    with TemporaryDirectory() as folder:
        loaded = load_run(run_of_pairs(Path(folder) / "run"))
        pairs_report(loaded)
        return loaded


def test_intervals_are_over_items_and_judges_and_about_the_mean() -> None:
    report = pairs_report(loaded_run())
    overall = [row for row in report.rows if row.task == OVERALL and not row.attribute]
    assert [row.student for row in overall] == list(STUDENTS)
    for row in overall:
        assert row.lower is not None
        assert row.upper is not None
        assert row.lower < row.score < row.upper
    assert report.apart is not None
    assert ("ant", "cow") in report.apart


def test_tables_and_the_figure_are_of_the_leaderboard(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = run_of_pairs(tmp_path / "run")
    paths = [tmp_path / f"ranking.{kind}" for kind in ("svg", "pdf")]
    assert tables_main(["--run", str(run), "--plot", *map(str, paths)]) == 0
    text = capsys.readouterr().out
    assert text.index("| ant |") < text.index("| bee |") < text.index("| cow |")
    assert "| jay |" in text
    assert "| Student | Score | Wins |" in text
    assert "<svg" in paths[0].read_text()
    assert paths[1].read_bytes().startswith(b"%PDF")
    with (tmp_path / "ranking.csv").open(newline="") as file:
        rows = {row["student"]: row for row in csv.DictReader(file)}
    assert not {*rows["ant"]["letters"]} & {*rows["cow"]["letters"]}
    assert float(rows["ant"]["lower"]) < float(rows["ant"]["score"]) < float(rows["ant"]["upper"])


def test_pages_show_what_there_is_and_no_empty_scores(tmp_path: Path) -> None:
    loaded = loaded_run()
    results = {folder: build(page.name, loaded) for folder, page in PAGES.items()}
    write_all(results, complete_report(loaded), tmp_path)
    assert not (tmp_path / "student_report/index.html").exists()
    portal = Page((tmp_path / "index.html").read_text()).text
    assert portal.index("ant is preferred most") < portal.index("By verdicts on pairs")
    assert portal.count("judges, worth") == 1
    judges = Page((tmp_path / "judge_report/index.html").read_text()).text
    assert "verdicts on pairs are worth" in judges
    assert "one judge" not in judges
    assert "Self-preference" not in judges


def in_one_order(record: dict[str, Any], place: int) -> dict[str, Any]:
    """Return a verdict in one order, its sides dealt evenly; the judge yak takes mostly what it sees first."""
    record = dict(record)
    winner = record["verdicts"][0]
    if place % 2:
        for key in ("model_a", "response_a_id"):
            other = key.replace("_a", "_b")
            record[key], record[other] = record[other], record[key]
        winner = {"model_a": "model_b", "model_b": "model_a"}[winner]
    if record["judge_model_id"] == "yak" and place % 5:
        winner = "model_a"
    return {**record, "verdicts": [winner], "winner": winner, "order_consistent": None}


def test_a_preference_for_the_first_can_be_told_from_exported_votes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = run_of_pairs(tmp_path / "run")
    for path in sorted((run / "phase5_pairwise").iterdir()):
        records = list(read_records(path))
        write_lines(path, [in_one_order(record, place) for place, record in enumerate(records)])
    votes = tmp_path / "votes"
    assert preferences_main(["--run", str(run), "--out", str(votes), "--keep-flagged"]) == 0
    assert "--control one_order" in capsys.readouterr().out
    leaderboard_main(["--votes", str(votes), "--control", "one_order"])
    lines = [line.split() for line in capsys.readouterr().out.splitlines() if line.startswith("one_order")]
    of_first = {words[2]: float(words[4]) for words in lines if words[3] == "difference"}
    assert of_first["yak"] > 1.0 > max(of_first["jay"], of_first["owl"])
