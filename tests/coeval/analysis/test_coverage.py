"""What a run is said to lack, by kind of judge and of task."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from coeval.analysis.coverage import coverage_summary, slices
from coeval.analysis.students import student_report
from coeval.analysis.tables import write_tables
from coeval.analysis.units import LoadedRun, load_run
from tests.coeval.analysis.runs import both, evaluation, response, run_of, write_lines, write_run

RUBRIC = {"fit": "Does it fit?", "bleu4": {"metric": "bleu", "description": "overlap"}}
MODELS = [
    {"name": "j", "interface": "mock", "roles": ["judge"]},
    {"name": "m", "interface": "metric", "roles": ["judge"]},
    {"name": "other", "interface": "metric", "roles": ["judge"], "parameters": {"metric": "exact_match"}},
    {"name": "label", "interface": "label", "roles": ["judge"]},
]


def configured(folder: Path, **task: Any) -> LoadedRun:
    """A run of one task, of two items; the first has a label `mood`."""
    scores: dict[tuple[str, str, str], dict[str, str]] = {
        (f"mail/ada/{number}", "s1", judge): given
        for number in (0, 1)
        for judge, given in (("j", {"fit": "High"}), ("m", {"bleu4": "0.5"}))
        if not (judge == "j" and task.get("evaluation_mode"))
    }
    write_run(folder, scores, rubric=RUBRIC, attributes={"mail/ada/0": {"mood": "glad"}})
    target = {"mood": ["glad", "sad"], "size": ["s", "l"]}
    config = {"models": MODELS, "tasks": [{"name": "mail", "target_attributes": target, **task}]}
    (folder / "config.yaml").write_text(json.dumps(config))
    return load_run(folder)


@pytest.mark.parametrize(
    ("task", "expected"),
    [
        ({}, {"j": 2, "m": 2}),
        ({"label_attributes": ["mood"]}, {"j": 2, "m": 2, "label": 1}),
        ({"evaluation_mode": "pairwise"}, {"m": 2}),
    ],
)
def test_judges_owe_what_is_theirs(task: dict[str, Any], expected: dict[str, int], tmp_path: Path) -> None:
    found = coverage_summary(configured(tmp_path / "run", **task))
    assert {row.judge: row.expected for row in found.rows} == expected


def test_strata_are_of_as_many_attributes_as_are_drawn(tmp_path: Path) -> None:
    (strata,) = coverage_summary(configured(tmp_path / "run", sampling={"target": [1, 1]})).strata
    assert (strata.strata, strata.covered, strata.rare) == (4, 1, 1)
    (strata,) = coverage_summary(configured(tmp_path / "all", sampling={"target": [1, 2]})).strata
    assert (strata.strata, strata.covered) == (8, 1)


def test_a_slice_without_a_valid_score_is_there(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", {("mail/ada/0", "s1", "a"): both("High")})
    lost = [evaluation("mail/ada/0", "s1", "b", {}, status="failed")]
    write_lines(folder / "phase5_evaluations/t.x.z.evaluations.jsonl", lost)
    found = [(row.judge, row.factor, row.total, row.invalid, row.mean) for row in slices(load_run(folder))]
    assert found[2:] == [("b", "fit", 1, 1, None), ("b", "tone", 1, 1, None)]


def test_a_length_that_is_infinite_is_not_taken(tmp_path: Path) -> None:
    loaded = run_of(tmp_path, {("mail/ada/0", "s1", "a"): both("High")}, tokens={("mail/ada/0", "s1"): 10**400})
    assert loaded.tokens.tolist() == [2.0]  # a quarter of the characters of `an answer`


def test_several_labels_have_a_mean_accuracy(tmp_path: Path) -> None:
    scores = {("mail/ada/0", student, "a"): both("High") for student in ("s1", "s2")}
    folder = write_run(tmp_path / "run", scores, attributes={"mail/ada/0": {"mood": "glad", "size": "s"}})
    config = {"tasks": [{"name": "mail", "label_attributes": ["mood", "size"]}]}
    (folder / "config.yaml").write_text(json.dumps(config))
    texts = {"s1": '{"mood": "glad", "size": "l"}', "s2": '{"mood": "glad"}'}
    answers = [response("mail/ada/0", student, text=text) for student, text in texts.items()]
    write_lines(folder / "phase4_responses/t.x.responses.jsonl", answers)
    found = student_report(load_run(folder)).hamming
    assert [(row.student, row.attributes, row.hamming_accuracy, row.strict_hamming_accuracy) for row in found] == [
        ("s1", 2, 0.5, 0.5),
        ("s2", 2, 0.5, 0.5),
    ]
    write_tables(student_report(load_run(folder)), tmp_path / "out")
    assert (tmp_path / "out" / "hamming.csv").read_text().startswith("student,task,attributes,hamming_accuracy,")


def test_a_metric_judge_owes_its_own_metric_and_keeps_the_others(tmp_path: Path) -> None:
    rubric = {name: {"metric": name, "description": ""} for name in ("bleu", "exact_match")}
    models = [{"name": "m", "interface": "metric", "roles": ["judge"], "parameters": {"metric": "bleu"}}]
    scores = {("mail/ada/0", "s1", "m"): {"bleu": "0.5"}, ("mail/ada/1", "s1", "m"): {"bleu": "1", "exact_match": "0"}}
    loaded = run_of(tmp_path, scores, rubric=rubric, models=models)
    assert loaded.units.norm.tolist() == [0.5, 1.0, 0.0]


def test_a_folder_of_verdicts_alone_is_a_run(tmp_path: Path) -> None:
    write_lines(tmp_path / "phase5_pairwise/mail.ada.j.pairwise.jsonl", ["{}\n"])
    assert load_run(tmp_path).header.skipped[0].code == "PARSE_ERROR_PAIR"
