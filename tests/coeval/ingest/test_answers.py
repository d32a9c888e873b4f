"""Prompts and answers that were made elsewhere, in the formats of those who made them, judged by a run."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from coeval.errors import RunInputError
from coeval.ingest.answers import ReadyAnswer, format_of, model_name, read_answers
from tests.coeval.helpers import coeval, meta_of, model, records, run_of, write_config

SAMPLES = [
    {"id": 1, "epoch": 1, "input": "2+2?", "target": "4", "output": {"completion": "Four."}},
    {
        "id": 2,
        "epoch": 1,
        "input": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": [{"type": "text", "text": "3+3?"}]},
        ],
        "target": ["6", "six"],
        "output": {"choices": [{"message": {"content": [{"type": "text", "text": "6"}]}}]},
    },
]


def lines(path: Path, rows: list[Any]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def plain(folder: Path) -> Path:
    return lines(folder / "answers.jsonl", [{"item": "1", "model": "org/m", "answer": " Four. ", "prompt": "2+2?"}])


def helm(folder: Path) -> Path:
    state = {
        "instance": {
            "id": "id7",
            "input": {"text": "2+2?"},
            "references": [{"output": {"text": "5"}, "tags": []}, {"output": {"text": "4"}, "tags": ["correct"]}],
        },
        "request": {"model": "org/m", "prompt": "Answer.\n\n2+2?"},
        "result": {"success": True, "completions": [{"text": " Four."}]},
    }
    path = folder / "scenario_state.json"
    path.write_text(json.dumps({"adapter_spec": {"model": "org/m"}, "request_states": [state]}))
    return path


def lm_eval(folder: Path) -> Path:
    generated = {
        "doc_id": 0,
        "doc": {},
        "target": "4",
        "arguments": {"gen_args_0": {"arg_0": "2+2?", "arg_1": {"until": ["\n"]}}},
        "resps": [["Four. And more"]],
        "filtered_resps": ["Four."],
    }
    scored = {
        "doc_id": 1,
        "target": 1,
        "arguments": [["3+3?", " 5"], ["3+3?", " 6"]],
        "resps": [[["-4.5", "False"]], [["-0.5", "True"]]],
        "filtered_resps": [["-4.5", "False"], ["-0.5", "True"]],
    }
    return lines(folder / "org__m" / "samples_sums_2026-01-01.jsonl", [generated, scored])


def inspect_json(folder: Path) -> Path:
    path = folder / "log.json"
    path.write_text(json.dumps({"eval": {"model": "org/m"}, "samples": SAMPLES}))
    return path


def inspect_archive(folder: Path) -> Path:
    path = folder / "log.eval"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("header.json", json.dumps({"eval": {"model": "org/m"}}))
        for sample in SAMPLES:
            archive.writestr(f"samples/{sample['id']}_epoch_1.json", json.dumps(sample))
    return path


FOUR = ReadyAnswer("1", "org/m", "Four.", "2+2?", "4")
SIX = ReadyAnswer("2", "org/m", "6", "system: Be brief.\n\nuser: 3+3?", "6 | six")


@pytest.mark.parametrize(
    ("write", "form", "expected"),
    [
        (plain, "jsonl", [ReadyAnswer("1", "org/m", "Four.", "2+2?")]),
        (helm, "helm", [ReadyAnswer("id7", "org/m", "Four.", "Answer.\n\n2+2?", "4")]),
        (
            lm_eval,
            "lm-eval",
            [ReadyAnswer("0", "org/m", "Four.", "2+2?", "4"), ReadyAnswer("1", "org/m", "6", "3+3?", "6")],
        ),
        (inspect_json, "inspect", [FOUR, SIX]),
        (inspect_archive, "inspect", [FOUR, SIX]),
    ],
)
def test_answers_are_read_in_the_form_they_were_written(
    tmp_path: Path, write: Callable[[Path], Path], form: str, expected: list[ReadyAnswer]
) -> None:
    path = write(tmp_path)
    assert format_of(path) == form
    assert list(read_answers(path)) == expected
    assert {answer.model for answer in read_answers(path, form, "mine")} == {"mine"}


@pytest.mark.parametrize(
    ("name", "text", "why"),
    [
        ("a.jsonl", '{"item": 1, "model": "m"}\n', "line 1: no answer or response"),
        ("a.jsonl", "[]\n", "line 1: holds a list; every line must be an object"),
        ("a.jsonl", "", "holds no answers"),
        ("scenario_state.json", '{"request_states": [{}]}', "request state 1: is not in this format"),
        ("scenario_state.json", "{}", "has no request_states"),
        ("log.json", '{"samples": []}', "names no model under eval"),
        ("log.eval", "no zip", "is not a log of Inspect"),
        ("samples_x.jsonl", '{"doc_id": 1, "arguments": [], "resps": []}\n', "line 1: is not in this format"),
    ],
)
def test_what_is_no_answer_is_told_with_its_place(tmp_path: Path, name: str, text: str, why: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(RunInputError, match=why):
        list(read_answers(tmp_path / name))


@pytest.mark.parametrize("write", [helm, inspect_json, inspect_archive])
def test_a_log_that_would_fill_the_memory_is_not_read(
    tmp_path: Path, write: Callable[[Path], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("coeval.ingest.answers.LONGEST_LOG", 40)
    with pytest.raises(RunInputError, match=r"is larger than|unfolds to more than"):
        list(read_answers(write(tmp_path)))


def test_answers_made_elsewhere_are_judged_without_a_run_before(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = write_config(tmp_path, [model("jay", roles=["judge"]), model("ant")], [])
    rows = [
        {"item": f"q{n}", "model": f"org/m__{m}", "answer": f"answer {m}", "prompt": f"Question {n}, please?"}
        for n in range(3)
        for m in "ab"
    ]
    path = lines(tmp_path / "theirs.jsonl", rows)
    flags = ("ingest", "--config", config, "--answers", path, "--task", "advice")
    assert coeval(*flags) == 0
    assert "6 answers of org-m_a, org-m_b to 3 new items" in capsys.readouterr().out
    assert coeval(*flags) == 0
    assert "0 answers of org-m_a, org-m_b to 0 new items, 6 there already" in capsys.readouterr().out
    run = run_of(tmp_path)
    interfaces = {one["name"]: one["interface"] for one in yaml.safe_load(run.config.read_text())["models"]}
    assert interfaces == {
        "jay": "mock",
        "ant": "mock",
        "theirs": "benchmark",
        "org-m_a": "answers",
        "org-m_b": "answers",
    }
    assert coeval("run", "--config", run.config, "--continue") == 0
    assert meta_of(run)["status"] == "completed"
    assert meta_of(run)["quota_used"] == {"ant": 3, "jay": 9}
    assert {one["student_model_id"] for one in records(run, "evaluation")} == {"ant", "org-m_a", "org-m_b"}
    answered = lines(tmp_path / "more.jsonl", [{"item": "advice__theirs__q1", "model": "c", "answer": "Yes."}])
    assert coeval("ingest", "--run", run.folder, "--answers", answered, "--task", "advice") == 0
    assert "1 answer of c to 0 new items" in capsys.readouterr().out
    unknown = lines(tmp_path / "no.jsonl", [{"item": "q9", "model": "c", "answer": "Yes."}])
    assert coeval("ingest", "--run", run.folder, "--answers", unknown, "--task", "advice") == 1
    assert "item 'q9' is none of task 'advice', and has no prompt" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ({"item": "q0", "model": "org-m", "answer": "No."}, "models 'org/m' and 'org-m' would both be named 'org-m'"),
        ({"item": "q0", "model": "n", "answer": "No.", "prompt": "Else?"}, "item 'q0' has two prompts"),
        ({"item": "q1", "model": "n", "answer": "No."}, "item 'q1' is none of task 'advice'"),
    ],
)
def test_answers_that_contradict_one_another_are_not_taken(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], row: dict[str, str], why: str
) -> None:
    config = write_config(tmp_path, [model("jay", roles=["judge"])], [])
    good = {"item": "q0", "model": "org/m", "answer": "Yes.", "prompt": "Is it?"}
    path = lines(tmp_path / "theirs.jsonl", [good, row])
    assert coeval("ingest", "--config", config, "--answers", path, "--task", "advice") == 1
    assert why in capsys.readouterr().err
    run = run_of(tmp_path)
    assert records(run, "data_generation") == records(run, "response_collection") == []
    assert [one["name"] for one in yaml.safe_load(run.config.read_text())["models"]] == ["jay"]


def test_prompts_alone_are_answered_and_judged(tmp_path: Path) -> None:
    config = write_config(tmp_path, [model("ant"), model("jay", roles=["judge"])], [])
    path = lines(tmp_path / "prompts.jsonl", [{"prompt": f"What is {n}?"} for n in range(2)])
    assert coeval("ingest", "--config", config, "--dataset", path, "--task", "advice") == 0
    run = run_of(tmp_path)
    assert coeval("run", "--config", run.config, "--continue") == 0
    assert [one["reference_response"] for one in records(run, "data_generation")] == ["", ""]
    assert len(records(run, "evaluation")) == 2
    assert coeval("repair", "--run", run.folder, "--stats") == 0
    assert coeval("analyze", "all", "--run", run.folder, "--out", tmp_path / "out", "--agreement-threshold", "0") == 0


def test_names_of_models_fit_a_run() -> None:
    assert [model_name(name) for name in ("openai/gpt-4o", "a__b c", "///")] == ["openai-gpt-4o", "a_b-c", "model"]
