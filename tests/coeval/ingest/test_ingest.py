"""Benchmarks and files of prompts in a run, and what the run does with them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from coeval.commands.ingest import main
from coeval.errors import RunInputError
from coeval.ingest.benchmarks import benchmarks
from coeval.mock.server import MockServer
from tests.coeval.helpers import STATIC_TASK, calls, coeval, meta_of, model, records, run_of, write_config

ROWS: Mapping[str, list[dict[str, Any]]] = {
    "mmlu": [{"question": "1+1?", "subject": "algebra", "choices": ["1", "2", "3", "4"], "answer": 1}],
    "hellaswag": [
        {
            "ind": 7,
            "ctx": "He sits and",
            "endings": ["flies", "rests", "x", "y"],
            "label": "1",
            "activity_label": "Rest",
        },
        {"ind": 8, "ctx": "She", "endings": ["a", "b", "c", "d"], "label": ""},
    ],
    "truthfulqa": [{"category": "Health", "question": "Do ears burn?", "best_answer": "No."}],
    "humaneval": [{"task_id": "HumanEval/60", "prompt": "def f(x):\n", "canonical_solution": "    return x\n"}],
    "medqa": [{"question": "Which?", "options": {"A": "one", "B": "two"}, "answer": "two", "answer_idx": "B"}],
    "gsm8k": [{"question": "40+2?", "answer": "Forty and two.\n#### 1,042"}],
}


def nested(levels: int) -> Any:
    """Return lists within lists."""
    return [nested(levels - 1)] if levels else 1


EXPECTED = {
    "mmlu": ("1+1?\n\nA. 1\nB. 2\nC. 3\nD. 4", "B. 2", {"correct_answer": "B", "subject": "algebra"}),
    "hellaswag": (
        "He sits and\n\nA. flies\nB. rests\nC. x\nD. y",
        "B. rests",
        {"correct_answer": "B", "activity": "Rest"},
    ),
    "truthfulqa": ("Do ears burn?", "No.", {"category": "Health"}),
    "humaneval": ("def f(x):\n", "    return x", {"difficulty": "medium"}),
    "medqa": ("Which?\n\nA. one\nB. two", "B. two", {"correct_answer": "B"}),
    "gsm8k": ("40+2?", "Forty and two.\n#### 1042", {"answer": "1042"}),
}


def write_rows(path: Path, rows: list[Any]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def ingest(*argv: object) -> int:
    return main([str(word) for word in argv])


@pytest.mark.parametrize("name", sorted(ROWS))
def test_how_a_row_becomes_an_item(name: str) -> None:
    entry = benchmarks()[name].read(ROWS[name][0], 0)
    assert entry is not None
    assert (entry.prompt, entry.reference, entry.attributes) == EXPECTED[name]


def test_a_finished_run_takes_benchmarks_in_and_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with MockServer() as server:
        models = [model("owl", server, roles=["teacher"]), model("ant", server), model("jay", server, roles=["judge"])]
        path = write_config(tmp_path, models, [{**STATIC_TASK, "sampling": {"target": [1], "nuance": [0], "total": 1}}])
        assert coeval("run", "--config", path) == 0
        calls(server)
        run = run_of(tmp_path)
        for name, rows in ROWS.items():
            write_rows(tmp_path / "data" / name / f"{benchmarks()[name].split}.jsonl", rows)
        flags = ("--run", run.folder, "--benchmarks", *ROWS, "--data-dir", tmp_path / "data")
        assert ingest(*flags) == 0
        assert "evaluation" not in meta_of(run)["phases_completed"]
        assert [entry["n_written"] for entry in meta_of(run)["ingest_log"]] == [1] * 6
        assert len(records(run, "data_generation")) == 7
        before = run.config.read_text()
        assert ingest(*flags) == 0
        assert len(records(run, "data_generation")) == 7
        assert run.config.read_text() == before
        capsys.readouterr()
        assert coeval("run", "--config", run.config, "--continue") == 1  # its keys are not stored
        said = capsys.readouterr().err.splitlines()
        assert [line.partition("; write ")[0].partition(": models.")[2] for line in said] == [
            f"{name}.access_key: the access_key of model {name} is not stored with the run"
            for name in ("owl", "ant", "jay")
        ]
        keys = tmp_path / "keys.yaml"
        keys.write_text(json.dumps({"openai": {"api_key": "sk-not-a-real-key", "base_url": server.url}}))
        assert coeval("run", "--config", run.config, "--continue", "--keys", keys) == 0
        assert calls(server) == {"ant test": 6, "jay evaluate_single": 6}
    labels = [one for one in records(run, "evaluation") if one["judge_model_id"] == "label"]
    assert sorted(one["task_id"] for one in labels) == sorted(
        benchmarks()[name].task for name in ROWS if benchmarks()[name].label_attributes
    )
    assert meta_of(run)["status"] == "completed"


@pytest.fixture
def finished(tmp_path: Path) -> Path:
    models = [model("owl", roles=["teacher"]), model("ant"), model("jay", roles=["judge"])]
    path = write_config(tmp_path, models, [{**STATIC_TASK, "sampling": {"target": [1], "nuance": [0], "total": 1}}])
    assert coeval("run", "--config", path) == 0
    return run_of(tmp_path).folder


def test_a_file_of_prompts_is_a_benchmark_too(finished: Path, tmp_path: Path) -> None:
    rows = [
        {"prompt": f"Say {word}.", "reference_response": word, "id": f"x__{word}", "attributes": {"word": word}}
        for word in ("one", "two", "three")
    ]
    file = write_rows(tmp_path / "mine.jsonl", rows)
    flags = ("--run-id", "one", "--storage-folder", finished.parent, "--dataset", file, "--task", "echo")
    extra = ("--teacher-id", "me", "--label-attributes", "word", "--metric", "exact_match")
    assert ingest(*flags, *extra, "--limit", "2") == 0
    assert ingest(*flags, *extra, "--limit", "2") == 0
    run = run_of(tmp_path)
    ids = [one["id"] for one in records(run, "data_generation") if one["teacher_model_id"] == "me"]
    assert ids == ["echo__me__x_one", "echo__me__x_two", "echo__me__x_three"]
    said = yaml.safe_load((finished / "config.yaml").read_text())
    assert {one["name"]: one["interface"] for one in said["models"]}["metric-exact_match"] == "metric"
    assert coeval("run", "--config", finished / "config.yaml", "--continue") == 0
    scores = [one["scores"] for one in records(run, "evaluation") if one["task_id"] == "echo"]
    assert {factor for one in scores for factor in one} == {"accuracy", "completeness", "exact_match", "label:word"}


def test_a_file_of_prompts_for_a_task_that_is_there(finished: Path, tmp_path: Path) -> None:
    before = yaml.safe_load((finished / "config.yaml").read_text())
    row = {"prompt": "Say it.", "reference_response": "It.", "attributes": {"kind": "x"}}
    file = write_rows(tmp_path / "mine.jsonl", [row])
    drawn_from = run_of(tmp_path).attributes("mail", "target")
    values = drawn_from.read_text()
    assert ingest("--run", finished, "--dataset", file, "--task", "mail") == 0
    assert drawn_from.read_text() == values
    after = yaml.safe_load((finished / "config.yaml").read_text())
    assert after["tasks"] == before["tasks"]
    assert [one["name"] for one in after["models"]][-1] == "mine"
    assert coeval("run", "--config", finished / "config.yaml", "--continue") == 0
    assert len(records(run_of(tmp_path), "response_collection")) == 2


@pytest.mark.parametrize(
    ("rows", "flags", "message"),
    [
        (["x"], (), "line 1: holds a text; every line must be an object"),
        ([{"question": "x", "deep": nested(300)}], (), "line 1: is not JSON: is nested deeper than 200 levels"),
        ([{"question": "x" * (17 << 20)}], (), "line 1: is longer than 16 MiB"),
        ([{"prompt": " ", "reference_response": "r"}], (), "line 1: no prompt"),
        ([], (), "holds no items"),
        ([{"prompt": "p", "id": 1}, {"prompt": "q", "id": 1}], (), "line 2: id '1' is that of another row"),
        ([{"prompt": "p", "reference_response": "r", "attributes": [1]}], (), "attributes must be an object"),
        ([{"prompt": "p", "reference_response": "r", "native_score": 2}], (), "native_score must be a number from 0"),
        ([{"prompt": "p", "reference_response": "r"}], ("--teacher-id", "a__b"), "no __"),
        ([{"prompt": "p", "reference_response": "r"}], ("--teacher-id", "ant"), "use another --teacher-id"),
        ([{"prompt": "p", "reference_response": "r"}], ("--label-attributes", "w"), "no row has it"),
        ([{"prompt": "p", "reference_response": "r"}], ("--metric", "bleu"), "has no factor with metric 'bleu'"),
        ([{"prompt": "p", "reference_response": "r"}], ("--description", "Else."), "has no such description"),
        (
            [{"prompt": "p", "reference_response": "r", "attributes": {"w": 1}}],
            ("--label-attributes", "w"),
            "has no label attribute 'w'",
        ),
    ],
)
def test_what_cannot_be_used_is_said_and_changes_nothing(
    finished: Path, tmp_path: Path, rows: list[Any], flags: tuple[str, ...], message: str
) -> None:
    file = write_rows(tmp_path / "mine.jsonl", rows)
    before = (finished / "config.yaml").read_text(), (finished / "meta.json").read_text()
    with pytest.raises(RunInputError, match=message):
        ingest("--run", finished, "--dataset", file, "--task", "mail", *flags)
    assert ((finished / "config.yaml").read_text(), (finished / "meta.json").read_text()) == before
    assert len(records(run_of(tmp_path), "data_generation")) == 1


def test_names_and_places_are_checked(finished: Path, tmp_path: Path) -> None:
    with pytest.raises(RunInputError, match="did you mean 'mmlu'"):
        ingest("--run", finished, "--benchmarks", "mmlo")
    with pytest.raises(RunInputError, match=r"mmlu/test\.jsonl: cannot be read: No such file"):
        ingest("--run", finished, "--benchmarks", "mmlu", "--data-dir", tmp_path)
    with pytest.raises(RunInputError, match="not a folder of a run"):
        ingest("--run", tmp_path, "--benchmarks", "mmlu")
    for flags in (
        ("--dataset", "x"),
        ("--benchmarks", "mmlu", "--metric", "bleu"),
        ("--dataset", "x", "--task", "t", "--split", "s"),
    ):
        with pytest.raises(SystemExit):
            ingest("--run", finished, *flags)
