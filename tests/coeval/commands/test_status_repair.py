from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from threading import Thread
from time import sleep
from typing import Any

import pytest

from coeval.schema import PHASES
from coeval.storage.meta import Meta, free_work, main_process
from coeval.storage.run import Run
from tests.coeval.helpers import STATIC_TASK, coeval, ids, meta_of, model, records, run_of, write_config

ALL = ("teacher", "student", "judge")


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """A finished run of models with dots in their names."""
    models = [model("gpt-3.5", roles=ALL), model("gpt-3", roles=("student", "judge"))]
    assert coeval("run", "--config", write_config(tmp_path, models)) == 0
    return run_of(tmp_path)


def change(path: Path, alter: Callable[[list[dict[str, Any]]], None]) -> None:
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    alter(lines)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_status_says_how_far_a_run_is(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    with run.records("response_collection", "mail", "gpt-3").open("a") as file:
        file.write('{"id": "other", "status": "failed"}\n{"id": "torn')
    run.errors.write_text('{"phase": "evaluation", "status": "failed", "error": "no level", "timestamp": "now"}\n' * 12)
    job = {"interface": "openai", "phase": "evaluation", "n_requests": 7, "status": "pending", "submitted_at": "now"}
    run.pending.write_text(json.dumps({"batch_1": job}))
    assert coeval("status", "--run", run.folder) == 0
    said = capsys.readouterr().out
    for words in (
        "one: completed",
        "data_generation      completed\n    4 of 4 items in 1 files\n",
        "8 of 8 responses in 2 files, 1 failed, 1 lines that are not records",
        "16 of 16 evaluations in 2 files",
        "batch_1: pending, openai, evaluation, 7 requests",
    ):
        assert words in said
    assert said.count("no level") == 10
    Meta(run).update(phases_completed=["attribute_mapping"], phases_in_progress=["data_generation"])
    assert coeval("status", "--run", run.folder) == 0  # as after a repair, or ingest
    said = capsys.readouterr().out
    for words in (
        "rubric_mapping       not completed, 1 files",
        "response_collection  not completed\n    8 of 8 responses",
    ):
        assert words in said


def test_status_and_repair_of_no_run_exit_with_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("status", "repair"):
        assert coeval(command, "--run", tmp_path) == 1
        assert "meta.json: does not exist" in capsys.readouterr().err


def test_a_sound_run_has_nothing_to_repair(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    before = {path: path.read_bytes() for path in run.folder.rglob("*.json*")}
    assert coeval("repair", "--run", run.folder) == 0
    assert "0 lines changed; nothing is missing" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="2"):
        coeval("repair", "--run", run.folder, "--examples", "-5")
    assert "must be a whole number of at least 0, or -1 for all, got '-5'" in capsys.readouterr().err
    assert before == {path: path.read_bytes() for path in run.folder.rglob("*.json*")}


def break_it(run: Run) -> None:
    """An item without reference, an answer without text, two evaluations unusable, one that is not there."""
    change(run.records("data_generation", "mail", "gpt-3.5"), lambda lines: lines[0].update(reference_response=""))
    change(run.records("response_collection", "mail", "gpt-3"), lambda lines: lines[1].update(response=" "))

    def alter(lines: list[dict[str, Any]]) -> None:
        by_id = {line["id"]: line for line in lines}
        by_id["mail__gpt-3.5__00003__gpt-3__gpt-3.5"].update(status="failed", scores={})
        by_id["mail__gpt-3.5__00003__gpt-3.5__gpt-3.5"].update(scores={"clarity": "Great"})
        lines.remove(by_id["mail__gpt-3.5__00004__gpt-3__gpt-3.5"])

    change(run.records("evaluation", "mail", "gpt-3.5", "gpt-3.5"), alter)


def test_repair_counts_and_shows_without_changing_anything(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    break_it(run)
    before = {path: path.read_bytes() for path in run.folder.rglob("*.json*")}
    capsys.readouterr()
    assert coeval("repair", "--run", run.folder, "--dry-run", "--breakdown", "--show-valid", "1") == 0
    said = capsys.readouterr().out
    assert "data_generation: 3 valid, 1 unusable" in said
    assert "  1 empty reference_response" in said
    assert "mail.gpt-3.5.datapoints.jsonl:1: mail__gpt-3.5__00001: empty reference_response" in said
    assert "response_collection: 5 valid, 3 unusable" in said  # two of them answer the unusable item
    assert "mail.gpt-3.5.gpt-3.5.evaluations.jsonl: 5 unusable" in said
    assert said.count("  valid: {") == 3
    assert coeval("repair", "--run", run.folder, "--stats", "--phase", "5") == 0
    said = capsys.readouterr().out
    assert said.startswith("evaluation: ")
    assert ".jsonl" not in said
    assert before == {path: path.read_bytes() for path in run.folder.rglob("*.json*")}


def test_a_repaired_run_is_made_whole_by_the_next_start(run: Run, tmp_path: Path) -> None:
    wanted = {kind: ids(run, kind) for kind in ("data_generation", "response_collection", "evaluation")}
    break_it(run)
    assert coeval("repair", "--run", run.folder) == 0
    meta = meta_of(run)
    assert (meta["status"], meta["phases_completed"]) == ("in_progress", ["attribute_mapping", "rubric_mapping"])
    failed = [record["id"] for record in records(run, "response_collection") if record.get("status") == "failed"]
    assert sorted(failed) == [
        "mail__gpt-3.5__00001__gpt-3",
        "mail__gpt-3.5__00001__gpt-3.5",
        "mail__gpt-3.5__00002__gpt-3",
    ]
    assert all(record["scores"] and record.get("status") != "failed" for record in records(run, "evaluation"))
    assert coeval("run", "--config", tmp_path / "run.yaml", "--continue") == 0
    for kind, identities in wanted.items():
        sound = [record["id"] for record in records(run, kind) if record.get("status") != "failed"]
        assert sorted(sound) == identities
    assert coeval("repair", "--run", run.folder) == 0
    assert meta_of(run)["status"] == "completed"


def test_lines_that_are_no_records_are_set_aside(run: Run) -> None:
    path = run.records("response_collection", "mail", "gpt-3")
    path.write_text(path.read_text() + "[1]\n{torn")
    assert coeval("repair", "--run", run.folder) == 0
    assert path.with_name(f"{path.name}.bad").read_text() == "[1]\n{torn\n"
    assert len(records(run, "response_collection")) == 8


def test_a_run_at_work_is_not_repaired(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    with main_process(run):
        assert coeval("repair", "--run", run.folder) == 1
    assert "another process is at work" in capsys.readouterr().err


def test_nothing_is_replaced_while_a_process_for_some_models_is_at_work(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    models = [model("gpt-3.5", roles=ALL), model("gpt-3", roles=("student", "judge"))]
    config, ends = write_config(tmp_path, models), []
    with free_work(run, "response_collection", "gpt-3"):  # which the other process waits for
        beside = ("run", "--config", config, "--continue", "--only-models", "gpt-3")
        other = Thread(target=lambda: ends.append(coeval(*beside)))
        other.start()
        while not (run.log(["gpt-3"]).exists() and "waits for" in run.log(["gpt-3"]).read_text()):
            sleep(0.01)
        capsys.readouterr()
        assert coeval("repair", "--run", run.folder) == 1
        assert "another process is at work" in capsys.readouterr().err
        new = write_config(tmp_path, models, phases=dict.fromkeys(PHASES, "New"))
        assert coeval("run", "--config", new) == 1
        assert "another process is at work" in capsys.readouterr().err
    other.join()
    assert ends == [0]
    assert coeval("repair", "--run", run.folder) == 0


@pytest.fixture
def pairwise(tmp_path: Path) -> Run:
    """A finished run of three students whose answers two judges compare, 4 x 3 pairs each."""
    students = [model(name, skill=skill) for name, skill in {"ant": 0.9, "bee": 0.5, "cow": 0.1}.items()]
    judges = [model(name, roles=["judge"]) for name in ("jay", "kea")]
    owl = model("owl", roles=["teacher"])
    task = {**STATIC_TASK, "evaluation_mode": "pairwise"}
    assert coeval("run", "--config", write_config(tmp_path, [owl, *students, *judges], [task])) == 0
    return run_of(tmp_path)


def break_pairs(run: Run) -> None:
    """A verdict of jay failed, one names no winner, kea has none; an answer that two of jay are about failed."""

    def alter(lines: list[dict[str, Any]]) -> None:
        on_other_items = [line for line in lines if "__00001__" not in line["id"]]
        on_other_items[0].update(winner=None, status="failed")
        on_other_items[1].update(winner="A")

    change(run.records("pairwise", "mail", "owl", "jay"), alter)
    run.records("pairwise", "mail", "owl", "kea").unlink()
    change(
        run.records("response_collection", "mail", "ant"), lambda lines: lines[0].update(status="failed", response="")
    )


def test_repair_knows_verdicts_on_pairs(pairwise: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wanted = ids(pairwise, "pairwise")
    break_pairs(pairwise)
    capsys.readouterr()
    assert coeval("status", "--run", pairwise.folder) == 0
    assert "    8 of 24 pairs in 1 files, 1 failed, " in capsys.readouterr().out
    assert coeval("repair", "--run", pairwise.folder, "--stats", "--breakdown", "--phase", "5") == 0
    said = capsys.readouterr().out
    # Without the answer of one student each judge owes 10 verdicts for now; two of those of jay are unusable.
    assert said.startswith("pairwise: 8 valid, 4 unusable, 12 missing\n")
    for words in ("2 its response is unusable", "1 failed", "1 no winner", "mail, jay: 2 missing", "mail, kea: 10"):
        assert words in said
    assert coeval("repair", "--run", pairwise.folder) == 0
    assert meta_of(pairwise)["phases_completed"] == ["attribute_mapping", "rubric_mapping", "data_generation"]
    assert coeval("run", "--config", tmp_path / "run.yaml", "--continue") == 0
    assert ids(pairwise, "pairwise") == wanted
    assert coeval("repair", "--run", pairwise.folder) == 0
    assert "pairwise: 24 valid, 0 unusable, 0 missing" in capsys.readouterr().out


def test_a_gap_among_pairs_opens_the_phase(pairwise: Run, capsys: pytest.CaptureFixture[str]) -> None:
    file = pairwise.records("pairwise", "mail", "owl", "kea")
    file.write_text("".join(file.read_text().splitlines(keepends=True)[:-5]))
    capsys.readouterr()
    assert coeval("repair", "--run", pairwise.folder) == 0
    assert "pairwise: 19 valid, 0 unusable, 5 missing" in capsys.readouterr().out
    assert "evaluation" not in meta_of(pairwise)["phases_completed"]


def test_scores_of_the_label_judge_are_missed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It joins by itself, so no model of the configuration tells of it."""
    task = {**STATIC_TASK, "label_attributes": ["tone"]}
    assert coeval("run", "--config", write_config(tmp_path, [model("ant", roles=ALL)], [task])) == 0
    run_of(tmp_path).records("evaluation", "mail", "ant", "label").unlink()
    capsys.readouterr()
    assert coeval("repair", "--run", run_of(tmp_path).folder, "--breakdown") == 0
    said = capsys.readouterr().out
    assert "  mail, label: 4 missing\n" in said
    assert "0 lines changed; `coeval run --config ... --continue` makes what is missing" in said
    assert coeval("run", "--config", tmp_path / "run.yaml", "--continue") == 0
    assert coeval("repair", "--run", run_of(tmp_path).folder) == 0
    assert "nothing is missing" in capsys.readouterr().out
