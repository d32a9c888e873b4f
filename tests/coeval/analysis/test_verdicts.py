"""Verdicts as others may have written them: what is of no use is counted and told, by every command that reads them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from coeval.analysis.units import load_run
from coeval.pairs.preferences import PreferenceFilter, gather
from tests.coeval.analysis.runs import both, verdict, write_lines, write_run
from tests.coeval.helpers import coeval

SKIPPED = {
    "DUPLICATE_PAIR": 1,
    "FAILED_PAIR": 1,
    "INVALID_WINNER_PAIR": 3,
    "MISMATCHED_PAIR": 3,
    "MISSING_DATAPOINT_PAIR": 1,
    "MISSING_RESPONSE_PAIR": 2,
    "PARSE_ERROR_PAIR": 6,
}


def without(record: dict[str, Any], key: str) -> dict[str, Any]:
    return {name: value for name, value in record.items() if name != key}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A run with four sound verdicts among many that are not."""
    points = [f"mail/ada/{number}" for number in range(1, 5)]
    scores = {(point, student, "j"): both("High") for point in points for student in ("s1", "s2")}
    folder = write_run(tmp_path / "run", scores)
    answers = folder / "phase4_responses/t.x.responses.jsonl"
    lost = {"id": "gone__s1", "datapoint_id": "gone", "student_model_id": "s1", "response": "an answer"}
    write_lines(answers, [lost, {**lost, "id": "gone__s2", "student_model_id": "s2"}], "a")
    good = [verdict(point, "s1", "s2", "j", "model_a", "model_a", "model_a") for point in points]
    one = good[0]
    bad: list[dict[str, Any] | str] = [
        verdict(points[1], "s2", "s1", "j", "model_b", "model_b", "model_b"),  # the same, with the sides changed
        {**one, "winner": None, "status": "failed"},
        *({**one, "winner": winner} for winner in ("A", ["model_a"], 1)),
        {**one, "model_b": "s1", "response_b_id": one["response_a_id"]},
        {**one, "model_a": "s2", "model_b": "s1"},
        {**one, "response_a_id": good[1]["response_a_id"]},
        without({**one, "datapoint_id": "gone", "response_a_id": "gone__s1"}, "response_b_id"),
        {**one, "model_b": "s9", "response_b_id": f"{one['datapoint_id']}__s9"},
        {**one, "response_b_id": "nobody"},
        *(without(one, key) for key in ("id", "datapoint_id", "model_a", "judge_model_id")),
        "[1]\n",
        '{"id": "torn',
    ]
    write_lines(folder / "phase5_pairwise/mail.ada.j.pairwise.jsonl", [*good, *bad])
    return folder


def test_what_is_of_no_use_is_counted(folder: Path) -> None:
    loaded = load_run(folder)
    assert {one.code: one.count for one in loaded.skipped} == SKIPPED
    assert loaded.header.verdicts == len(loaded.verdicts) == 4
    torn = next(one for one in loaded.skipped if one.code == "PARSE_ERROR_PAIR")
    assert torn.example.startswith("phase5_pairwise/mail.ada.j.pairwise.jsonl: ")
    found = gather(load_run(folder), PreferenceFilter())
    assert found.skipped == loaded.skipped
    assert [(one.task, one.teacher, one.at) for one in found.preferences] == [("mail", "ada", 1767225600.0)] * 4
    assert [(row.judge, row.pairs, row.flips) for row in found.flips] == [("j", 4, 0)]


def test_every_command_tells_it(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    for words in (
        ("analyze", "pairs", "--run", folder, "--out", out / "page"),
        ("analyze", "judge-report", "--run", folder, "--out", out / "judges"),
        ("analyze", "export-preferences", "--run", folder, "--out", out / "votes"),
        ("analyze", "pairs-leaderboard", "--run", folder, "--out", out / "board", "--replicates", "2"),
    ):
        assert coeval(*words) == 0
        said = capsys.readouterr().err
        for code, count in SKIPPED.items():
            assert f"skipped: {count} {code}, such as " in said, words
    assert "INVALID_WINNER_PAIR" in (out / "page/index.html").read_text("utf-8")
    for name in ("votes/export.json", "board/pairs_leaderboard.json"):
        told = json.loads((out / name).read_text())
        assert {one["code"]: one["count"] for one in told["skipped"]} == SKIPPED
    assert coeval("compare", "--before", folder, "--after", folder) == 0
    assert "skipped after: 3 MISMATCHED_PAIR" in capsys.readouterr().out


def test_a_run_of_bad_verdicts_alone_has_no_preferences(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_lines(folder / "phase5_pairwise/mail.ada.j.pairwise.jsonl", ["torn"])
    assert coeval("analyze", "export-preferences", "--run", folder, "--out", folder / "o", "--source", "native") == 1
    assert "no verdicts on pairs (skipped: 1 PARSE_ERROR_PAIR)" in capsys.readouterr().err
