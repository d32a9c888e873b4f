"""A configuration out of a conversation, or out of a sentence."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
import yaml

from coeval.calling.calls import CallError, Reason
from coeval.config.keys import Keys
from coeval.config.loading import load_config
from coeval.errors import RunError
from coeval.planning.wizard import author_config, task_from, task_name
from coeval.storage.run import Run
from tests.coeval.helpers import Scripted, coeval, meta_of

TASK = {
    "name": "Refund Mail!",
    "description": "Answer a customer who wants a refund.",
    "output_description": "A short mail.",
    "target_attributes": {"tone": ["warm", "firm"]},
    "nuanced_attributes": {"mood": ["angry", "calm"]},
    "rubric": {"accuracy": "It says what the policy says.", "tone": "It is polite."},
}


def answer(folder: Path, *lines: str, **flags: str) -> int:
    path = folder / "answers.txt"
    path.write_text("\n".join(lines) + "\n")
    words = [word for name, value in flags.items() for word in (f"--{name}", value)]
    return coeval("wizard", "--out", folder / "made.yaml", "--answers", path, *words)


def test_a_conversation_ends_in_a_configuration_that_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = [
        "Answer mails of customers.",
        "",
        "A short mail.",
        "tone: warm, firm; length: short",
        "clear: Is it clear?; kind: Kind?",
    ]
    lines += ["zwei", "2", "mok:ant", "mock:ant, mock:bee", "mock:jay", "", "pairs", "$0.5", str(tmp_path / "runs")]
    assert answer(tmp_path, *lines) == 0
    shown = capsys.readouterr().out
    assert "there is no provider 'mok' (did you mean 'mock'?)" in shown
    assert "a whole number of at least 1" in shown
    text = (tmp_path / "made.yaml").read_text()
    assert text.startswith("# A configuration of CoEval")
    assert "# Planned: 11 calls, $0.0" in text
    config = load_config(tmp_path / "made.yaml", keys=Keys(env={}))
    (task,) = config.tasks
    assert (task.name, task.evaluation_mode, task.sampling.total) == ("answer-mails-customers", "pairwise", 2)
    assert task.target_attributes == {"tone": ["warm", "firm"], "length": ["short"]}
    assert {model.name: model.roles for model in config.models} == {
        "ant": ("student",),
        "bee": ("student",),
        "jay": ("teacher", "judge"),
    }
    assert config.experiment.budget_usd == 0.5
    assert coeval("run", "--config", tmp_path / "made.yaml") == 0
    assert meta_of(Run(tmp_path / "runs" / "answer-mails-customers"))["status"] == "completed"


def test_empty_answers_take_what_is_offered(tmp_path: Path) -> None:
    assert answer(tmp_path, "Sum up a text.", *[""] * 5, "mock:ant") == 0
    raw = yaml.safe_load((tmp_path / "made.yaml").read_text())
    assert [model["roles"] for model in raw["models"]] == [["teacher", "student", "judge"]]
    assert (raw["tasks"][0]["rubric"], raw["tasks"][0]["target_attributes"]) == ("auto", "auto")
    assert "budget_usd" not in raw["experiment"]


def test_no_more_than_a_dozen_questions_are_asked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert answer(tmp_path, "Sum up a text.", *[""] * 5, "mock:ant", *[""] * 9) == 0
    shown = capsys.readouterr().out
    assert 6 < shown.count("]: ") + 2 <= 12
    assert "What do they have to do, in a sentence? " in shown
    assert "?:" not in shown


def test_a_file_that_is_there_is_replaced_only_where_one_is_told_to(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = tmp_path / "made.yaml"
    made.write_text("mine")
    with pytest.raises(SystemExit) as left:
        answer(tmp_path, "Sum up a text.", *[""] * 5, "mock:ant")
    assert (left.value.code, made.read_text()) == (2, "mine")
    assert "made.yaml is there already; choose another name, or add --overwrite" in capsys.readouterr().err
    assert coeval("wizard", "--out", made, "--answers", tmp_path / "answers.txt", "--overwrite") == 0
    assert made.read_text().startswith("# A configuration of CoEval")
    assert coeval("wizard", "--out", made, "--answers", made, "--overwrite") == 1  # its own answers
    assert made.read_text().startswith("# A configuration of CoEval")


@pytest.mark.parametrize(
    ("lines", "why"),
    [([], "no answer to: What do they have to do"), (["Sum up.", *[""] * 5], "no answer to: Which models answer?")],
)
def test_what_has_no_default_needs_an_answer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], lines: list[str], why: str
) -> None:
    assert answer(tmp_path, *lines) == 1
    assert why in capsys.readouterr().err
    assert not (tmp_path / "made.yaml").exists()


def test_answers_that_cannot_be_read_are_told_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "latin").write_bytes(b"\xe9t\xe9\n")
    reasons = {"none": "No such file or directory", ".": "Is a directory", "latin": "is not text in UTF-8"}
    for name, why in reasons.items():
        assert coeval("wizard", "--out", tmp_path / "made.yaml", "--answers", tmp_path / name) == 1
        assert capsys.readouterr().err == f"error: --answers {tmp_path / name}: cannot be read: {why}\n"


def test_what_a_run_would_refuse_is_asked_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = ["Sum up a text.", "", "", "tone: ,", "tone: warm,", "", "1", "mock:ant,", "", "", "pairs", "", "0", "$2"]
    assert answer(tmp_path, *lines) == 0
    shown = capsys.readouterr().out
    for why in ("tone has no values", "one model answers, and pairs need two", "a number of dollars above 0"):
        assert why in shown
    config = load_config(tmp_path / "made.yaml", keys=Keys(env={}))
    assert (config.tasks[0].evaluation_mode, config.experiment.budget_usd) == ("single", 2.0)


def test_models_of_one_name_are_told_apart(tmp_path: Path) -> None:
    models = ["mock:a/b, mock:a-b, mock:a-b", "ollama:a/b", ""]
    assert answer(tmp_path, "Sum up a text.", *[""] * 4, "1", *models) == 0
    config = load_config(tmp_path / "made.yaml", keys=Keys(env={}))
    assert {one.name: (one.interface, one.parameters["model"], one.roles) for one in config.models} == {
        "a-b": ("ollama", "a/b", ("teacher", "judge")),
        "mock-a-b": ("mock", "a/b", ("student",)),
        "mock-a-b-2": ("mock", "a-b", ("student",)),
    }


def test_a_model_makes_a_task_of_a_sentence() -> None:
    replies = iter(["Sure!", json.dumps({"name": "x"}), f"```json\n{json.dumps(TASK)}\n```"])
    author = author_config("mock:ant", Keys(env={})).models[0]
    asking = Scripted(lambda _call: next(replies))
    task = asyncio.run(task_from('Refunds, as our "policy" has them', author, asking))
    assert task == {**TASK, "name": "refund-mail", "total": 20}
    assert [call.attempt for call in asking.asked] == [0, 1, 2]
    assert r"Refunds, as our \"policy\" has them" in asking.asked[0].prompt
    with pytest.raises(RunError, match="ant wrote no task in 3 attempts"):
        asyncio.run(task_from("x", author, Scripted(lambda _call: "no")))
    with pytest.raises(CallError):
        asyncio.run(task_from("x", author, Scripted(lambda _call: CallError("no", Reason.FATAL))))


def test_a_sentence_needs_a_model_that_can_be_asked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert answer(tmp_path, "mock:ant", sentence="Refunds.", model="mock:ant") == 1
    assert "ant wrote no task in 3 attempts" in capsys.readouterr().err
    assert answer(tmp_path, "mock:ant", sentence="Refunds.", model="nobody-7b") == 1
    assert "error: --model nobody-7b: no provider of 'nobody-7b' is known" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        answer(tmp_path, "mock:ant", sentence="Refunds.")


def test_names_of_tasks_are_words_of_their_description() -> None:
    assert [task_name(text) for text in ("Answer the mails of customers!", "Hi")] == ["answer-mails-customers", "task"]
