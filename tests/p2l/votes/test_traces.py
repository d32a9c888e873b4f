"""Traces of applications with their grades, as LangSmith and Braintrust export them: which model answered stands in a
call inside of a trace, and the grades at its root."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest

from p2l.common.errors import VoteError
from p2l.votes.importing import Imported
from tests.p2l.votes.test_kinds import imported, written

SCORER = {"name": "Factuality", "type": "score", "purpose": "scorer"}


def spans(model: str, case: int, score: float | None) -> list[dict[str, Any]]:
    """Return the spans of one case of an experiment: evaluation, task, the model's call, a scorer, its judge's call."""
    root = f"{model}-{case}"
    empty = {"experiment_id": f"of {model}", "root_span_id": root, "scores": None, "metadata": None, "is_root": False}
    asked = {"input": {"question": f"Q{case}"}, "output": "A"}
    call = {"name": "Chat Completion", "type": "llm"}
    return [
        {
            **empty,
            **asked,
            "id": root,
            "span_id": root,
            "span_parents": None,
            "is_root": True,
            "span_attributes": {"name": "eval", "type": "eval"},
            "scores": {"Factuality": score, "Levenshtein": 0.25},
            "metadata": {"case": case},
        },
        {**empty, **asked, "span_id": f"{root}t", "span_parents": [root], "span_attributes": {"type": "task"}},
        {
            **empty,
            "span_id": f"{root}l",
            "span_parents": [f"{root}t"],
            "span_attributes": call,
            "input": [{"role": "user", "content": f"Q{case}"}],
            "metadata": {"model": model},
        },
        {
            **empty,
            "span_id": f"{root}s",
            "span_parents": [root],
            "span_attributes": SCORER,
            "input": {"output": "A"},
            "scores": {"Factuality": score},
        },
        {
            **empty,
            "span_id": f"{root}j",
            "span_parents": [f"{root}s"],
            "span_attributes": call,
            "input": [{"role": "user", "content": "Is it so?"}],
            "metadata": {"model": "judge"},
        },
    ]


def answers(done: tuple[Imported, list[dict[str, Any]]]) -> list[tuple[Any, ...]]:
    return [(row["model"], row["category"], row["prompt"], row["score"]) for row in done[1]]


def test_a_trace_of_braintrust_is_graded_by_each_scorer_and_not_by_its_judge(tmp_path: Path) -> None:
    events = [span for model, score in (("ant", 1.0), ("bee", None)) for span in spans(model, 1, score)]
    written(tmp_path, {"fetched.json": {"events": events, "cursor": "c"}, "exported.jsonl": tuple(events)})
    for name in ("fetched.json", "exported.jsonl"):
        done = imported(tmp_path / name)
        assert answers(done) == [
            ("ant", "Factuality", "Q1", 1.0),
            ("ant", "Levenshtein", "Q1", 0.25),
            ("bee", "Levenshtein", "Q1", 0.25),
        ]
        assert done[0].notes == ("left out: 8 records (span inside of another)",)


def test_a_trace_without_a_model_is_of_its_experiment_and_one_of_several_is_left_out(tmp_path: Path) -> None:
    alone = spans("ant", 1, 1.0)[:1]
    mixed = [span | {"root_span_id": "cat-1"} for span in spans("cat", 1, 1.0) + spans("dog", 1, 1.0)[2:3]]
    written(tmp_path, {"rows.jsonl": (*alone, *mixed)})
    done = imported(tmp_path / "rows.jsonl")
    assert {answer[0] for answer in answers(done)} == {"of ant"}
    assert "1 record (several models in one trace)" in done[0].notes[0]


def test_rows_that_name_no_trace_lend_no_model_to_another(tmp_path: Path) -> None:
    rows = [
        {"input": f"Q{n}", "scores": {"right": 1}, "metadata": about} for n, about in enumerate(({"model": "ant"}, {}))
    ]
    written(tmp_path, {"rows.jsonl": tuple(rows)})
    with pytest.raises(VoteError, match=r"rows\.jsonl: line 2: model is missing"):
        imported(tmp_path / "rows.jsonl")
    assert answers(imported(tmp_path / "rows.jsonl", drop_bad=True)) == [("ant", "right", "Q0", 1.0)]


def test_cells_of_a_braintrust_table_hold_json(tmp_path: Path) -> None:
    text = io.StringIO()
    rows = csv.writer(text)
    rows.writerow(["id", "input", "output", "expected", "scores", "metadata"])
    for scores in ({"Factuality": 1}, {"Factuality": None}, {}):
        rows.writerow(["1", json.dumps({"question": "Q"}), "A", "B", json.dumps(scores), json.dumps({"model": "ant"})])
    (tmp_path / "rows.csv").write_text(text.getvalue(), encoding="utf-8")
    done = imported(tmp_path / "rows.csv")
    assert answers(done) == [("ant", "Factuality", "Q", 1.0)]
    assert done[0].notes == ("left out: 2 records (no score)",)


def runs(model: str, score: float) -> list[dict[str, Any]]:
    """Return the runs of one example of an experiment: what was evaluated, and the model's call in it."""
    spoken = {"lc": 1, "type": "constructor", "id": ["HumanMessage"], "kwargs": {"content": "Q", "type": "human"}}
    shared = {"trace_id": model, "session_id": f"of {model}", "outputs": {"answer": "A"}, "error": None}
    stats = {"n": 1, "avg": score, "stdev": 0, "comments": [], "values": {}}
    return [
        {
            **shared,
            "id": model,
            "run_type": "chain",
            "inputs": {"question": "Q"},
            "extra": {"metadata": {"revision_id": "r"}},
            "reference_example_id": "e1",
            "feedback_stats": {"correctness": stats, "tone": {"n": 1, "avg": None, "values": {"polite": 1}}},
            "total_cost": "0.001",
        },
        {
            **shared,
            "id": f"{model}c",
            "run_type": "llm",
            "inputs": {"messages": [[spoken]]},
            "extra": {"metadata": {"ls_model_name": model}},
            "reference_example_id": None,
            "feedback_stats": None,
            "total_cost": None,
        },
    ]


def test_runs_of_langsmith_have_the_model_of_the_call_in_their_trace(tmp_path: Path) -> None:
    listed = [*runs("ant", 1.0), *runs("bee", 0.0)]
    written(tmp_path, {"queried.json": {"runs": listed, "cursors": {}}, "listed.jsonl": tuple(listed)})
    for name in ("queried.json", "listed.jsonl"):
        done = imported(tmp_path / name)
        assert answers(done) == [("ant", "correctness", "Q", 1.0), ("bee", "correctness", "Q", 0.0)]
        assert {(row["question_id"], row["cost"]) for row in done[1]} == {("correctness: e1", 0.001)}
    call = {**runs("ant", 1.0)[1], "feedback_stats": {"user_score": {"n": 2, "avg": 0.5}}}
    written(tmp_path, {"calls.jsonl": (call,)})
    assert answers(imported(tmp_path / "calls.jsonl")) == [("ant", "user_score", "Q", 0.5)]


def test_an_experiment_of_langsmith_as_a_table_is_of_the_model_that_its_file_is_called_by(tmp_path: Path) -> None:
    header = "inputs.question,outputs.answer,error,reference.answer,feedback.right,feedback.tone,example_id,id\n"
    folder = tmp_path / "experiments"
    folder.mkdir()
    for model, score in (("ant", "1"), ("bee", "0")):
        row = f"Q,A,,R,{score},polite,e1,r1\nQ,,boom,R,,,e2,r2\n"
        (folder / f"{model}.csv").write_text(header + row, encoding="utf-8")
    done = imported(folder)
    assert answers(done) == [("ant", "right", "Q", 1.0), ("bee", "right", "Q", 0.0)]
    assert {row["question_id"] for row in done[1]} == {"right: e1"}
