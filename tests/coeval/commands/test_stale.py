"""What is made anew under its old id does not keep what was built on the old text."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from coeval.analysis.records import read_run, read_run_info
from coeval.config.keys import load_keys
from coeval.config.loading import load_config
from coeval.planning.counting import read_stored, work_of
from coeval.planning.gaps import find_gaps
from coeval.schema import PHASES, Mode
from coeval.storage.run import Run
from tests.coeval.helpers import STATIC_TASK, coeval, meta_of, model, records, run_of, write_config

DUEL = {**STATIC_TASK, "name": "duel", "description": "Write a poem.", "evaluation_mode": "pairwise"}
EXTEND: dict[str, Mode] = dict.fromkeys(PHASES, "Extend")
LOST = "mail__owl__00002"


def config(folder: Path, seed: int = 1, skill: float = 0.9, **experiment: Any) -> Path:
    """An experiment whose texts hang on the seed; the run of another seed is another."""
    students = [model("ant", skill=skill, seed=seed), model("bee", skill=0.2)]
    models = [model("owl", roles=["teacher"], seed=seed), *students, model("jay", roles=["judge"], noise=0.0)]
    return write_config(folder, models, [dict(STATIC_TASK), DUEL], **experiment)


def last(run: Run, kind: str) -> dict[str, dict[str, Any]]:
    return {record["id"]: record for record in records(run, kind) if record.get("status") != "failed"}


def alter(path: Path, change: Callable[[list[dict[str, Any]]], object]) -> None:
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    change(lines)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def make_old(folder: Path) -> None:
    """Turn it into a run of earlier: without marks, and long ago."""
    for path in folder.glob("phase[345]*/*.jsonl"):
        alter(path, lambda lines: [line.update(age(line)) or line.pop("judged", None) for line in lines])


def age(record: dict[str, Any]) -> dict[str, str]:
    return {key: "2020-01-01T00:00:00Z" for key in record if key.endswith("_at")}


def is_whole(run: Run) -> None:
    """Every score and verdict is of the answers that are there, and all are there, once they are counted."""
    found = read_run(run, read_run_info(run))
    prompts = {name: item["prompt"] for name, item in last(run, "data_generation").items()}
    answers = last(run, "response_collection").values()
    assert all(answer["input"] == prompts[answer["datapoint_id"]] for answer in answers)
    assert len(found.answers) == 16
    assert len([one for one in found.judgements if not one.code]) == 8
    assert len(found.verdicts) == 4
    assert list(find_gaps(run)) == []
    assert meta_of(run)["status"] == "completed"


@pytest.mark.parametrize("repaired", [False, True])
def test_an_item_made_anew_is_answered_and_judged_anew(tmp_path: Path, repaired: bool) -> None:
    run = run_of(tmp_path)
    assert coeval("run", "--config", config(tmp_path)) == 0
    for task in ("mail", "duel"):
        path = run.records("data_generation", task, "owl")
        lines = path.read_text().splitlines(keepends=True)
        path.write_text("".join(line[:30] + "\n" if "__00002" in line else line for line in lines))
    assert not repaired or coeval("repair", "--run", run.folder) == 0
    before = last(run, "response_collection")[f"{LOST}__ant"]
    assert coeval("run", "--config", config(tmp_path, seed=2), "--continue") == 0
    assert last(run, "response_collection")[f"{LOST}__ant"]["input"] != before["input"]
    is_whole(run)
    assert coeval("run", "--config", config(tmp_path, seed=2), "--continue") == 0
    assert [len(records(run, kind)) for kind in ("response_collection", "evaluation", "pairwise")] == [20, 10, 5]


@pytest.mark.parametrize("old", [False, True])
def test_an_answer_made_anew_is_judged_anew(tmp_path: Path, old: bool) -> None:
    run = run_of(tmp_path)
    assert coeval("run", "--config", config(tmp_path)) == 0
    if old:
        make_old(run.folder)
    for task in ("mail", "duel"):
        alter(run.records("response_collection", task, "ant"), lambda lines: lines[0].update(status="failed"))
    failed = [record["id"] for record in records(run, "response_collection") if "status" in record]
    scores = {one["response_id"]: one["scores"] for one in last(run, "evaluation").values()}
    path = config(tmp_path, seed=3, skill=0.01)
    assert coeval("run", "--config", path, "--continue") == 0
    is_whole(run)
    now = {one["response_id"]: one["scores"] for one in last(run, "evaluation").values()}
    assert [one for one in now if now[one] != scores[one]] == [one for one in failed if "mail" in one]


def test_scores_of_another_answer_are_told_and_mended(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = run_of(tmp_path)
    assert coeval("run", "--config", config(tmp_path)) == 0
    for task in ("mail", "duel"):
        alter(run.records("response_collection", task, "ant"), lambda lines: lines[0].update(response="Another text."))
        alter(run.records("response_collection", task, "bee"), lambda lines: lines[1].update(input="Another question."))
    codes = read_run(run, read_run_info(run)).skips.counts
    assert codes == {"STALE_P4": 2, "STALE_P5": 1, "STALE_PAIR": 1, "MISSING_RESPONSE": 1, "MISSING_RESPONSE_PAIR": 1}
    assert {gap.kind for gap in find_gaps(run)} == {"response_collection", "evaluation", "pairwise"}
    left = work_of(load_config(config(tmp_path), keys=load_keys(None, {}), fresh=False), read_stored(run), EXTEND)
    assert {(one.phase, one.task, one.calls) for one in left} == {
        ("response_collection", "mail", 1),
        ("response_collection", "duel", 1),
        ("evaluation", "mail", 2),
        ("evaluation", "duel", 4),
    }
    capsys.readouterr()
    assert coeval("repair", "--run", run.folder) == 0
    said = capsys.readouterr().out
    assert "its item has another prompt now" in said
    assert "its response is another now" in said
    assert coeval("run", "--config", config(tmp_path), "--continue") == 0
    is_whole(run)
