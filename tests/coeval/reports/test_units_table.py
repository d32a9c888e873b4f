"""Scores as a flat table."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from coeval.cli import with_exit_code
from coeval.commands import analyze
from coeval.reports import units_table
from p2l.common.spreadsheets import is_formula
from tests.coeval.analysis.runs import both, evaluation, write_lines, write_run


def written(tmp_path: Path) -> Path:
    """Three answers; a score was given twice, one on a scale of its own, one answer's scores are lost."""
    folder = write_run(
        tmp_path / "run",
        {("mail/ada/0", "s1", "s1"): both("Low"), ("mail/ada/1", "s1", "j"): {"fit": "0.7500", "tone": " high "}},
        attributes={"mail/ada/0": {"tone": 'a "warm", one', "stars": 3}},
        tokens={("mail/ada/0", "s1"): 7},
    )
    more = [
        evaluation("mail/ada/0", "s1", "s1", both("High")),
        evaluation("mail/ada/1", "s1", "j", {"fit": "0.7500", "tone": "high"}, grades={"fit": "4"}),
        evaluation("mail/ada/1", "s1", "lost", {"fit": "High"}),
    ]
    write_lines(folder / "phase5_evaluations/t.x.z.evaluations.jsonl", more)
    return folder


def test_units_as_csv(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(units_table, "_ROWS_PER_BATCH", 3)
    out = tmp_path / "out"
    assert analyze.main(["export-units", "--run", str(written(tmp_path)), "--out", str(out)]) == 0
    assert capsys.readouterr().out == f"wrote 4 scores to {out / 'units.csv'}\n"
    with (out / "units.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert rows[0] == {
        "task": "mail",
        "teacher": "ada",
        "student": "s1",
        "judge": "s1",
        "factor": "fit",
        "datapoint_id": "mail__ada__0",
        "response_id": "mail__ada__0__s1",
        "judge_kind": "model",
        "score": "1",
        "raw_score": "High",
        "token_count": "7",
        "is_self_judging": "true",
        "is_self_teaching": "false",
        "evaluated_at": "2026-01-01T00:00:00Z",
        "attribute.stars": "3",
        "attribute.tone": 'a "warm", one',
    }
    assert [(row["score"], row["raw_score"]) for row in rows[2:]] == [("0.75", "4"), ("1", "high")]
    assert rows[2]["attribute.tone"] == ""


def test_units_as_parquet(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["export-units", "--run", str(written(tmp_path)), "--out", str(tmp_path / "u.parquet")]
    assert analyze.main([*flags, "--attributes", "json"]) == 0
    table = pq.read_table(tmp_path / "u.parquet")
    assert table["score"].to_pylist() == [1.0, 1.0, 0.75, 1.0]
    assert [json.loads(text) for text in table["attributes"].to_pylist()][2] == {}
    assert with_exit_code(analyze.main, [*flags, "--format", "csv"]) == 1
    assert "ends in .parquet and --format is csv" in capsys.readouterr().err
    assert with_exit_code(analyze.main, [*flags[:-1], str(tmp_path / "u.txt")]) == 1
    assert "ends in .txt; give a folder, or a file that ends in .csv or .parquet" in capsys.readouterr().err


def test_a_run_without_scores_has_a_table_without_rows(tmp_path: Path) -> None:
    (tmp_path / "run" / "phase5_evaluations").mkdir(parents=True)
    flags = ["export-units", "--run", str(tmp_path / "run"), "--attributes", "none", "--out"]
    for name in ("u.csv", "u.parquet"):
        assert analyze.main([*flags, str(tmp_path / name)]) == 0
    assert (tmp_path / "u.csv").read_text().count("\n") == 1
    assert pq.read_table(tmp_path / "u.parquet").num_rows == 0


def test_a_spreadsheet_runs_nothing_of_the_tables(tmp_path: Path) -> None:
    evil = '=HYPERLINK("http://127.0.0.1/")'
    scores = {("mail/ada/0", "@s1", "-j"): both("Low"), ("mail/ada/0", "s2", "-j"): both("High")}
    folder = write_run(tmp_path / "run", scores, attributes={"mail/ada/0": {"tone": evil}})
    out = tmp_path / "out"
    flags = ["--run", str(folder), "--out", str(out)]
    assert analyze.main(["export-units", *flags, "--attributes", "columns"]) == 0
    assert analyze.main(["score-distribution", *flags]) == 0
    cells = []
    for path in out.rglob("*.csv"):
        with path.open(newline="", encoding="utf-8") as file:
            cells += [cell for row in csv.reader(file) for cell in row]
    assert {f"'{evil}", "'@s1", "'-j"} <= set(cells)
    assert not [cell for cell in cells if not cell.startswith("'") and is_formula(cell)]
