from __future__ import annotations

from pathlib import Path

import pytest

from coeval.storage.run import Run


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path)


def test_files_are_named_as_the_manual_does(run: Run) -> None:
    paths = [
        run.attributes("t", "target"),
        run.attributes("t", "nuanced"),
        run.rubric("t"),
        run.records("data_generation", "t", "gpt-3.5"),
        run.records("response_collection", "t", "s"),
        run.records("evaluation", "t", "gpt-3.5", "j"),
        run.records("pairwise", "t", "gpt-3.5", "j"),
        run.log(),
        run.log({"b", "a" * 50}),
    ]
    assert [str(path.relative_to(run.folder)) for path in paths] == [
        "phase1_attributes/t_target_attrs.json",
        "phase1_attributes/t_nuanced_attrs.json",
        "phase2_rubric/t.rubric.json",
        "phase3_datapoints/t.gpt-3.5.datapoints.jsonl",
        "phase4_responses/t.s.responses.jsonl",
        "phase5_evaluations/t.gpt-3.5.j.evaluations.jsonl",
        "phase5_pairwise/t.gpt-3.5.j.pairwise.jsonl",
        "run.log",
        f"run_{'a' * 40}.log",
    ]


def test_attributes_are_found_in_either_form(run: Run) -> None:
    assert run.find_attributes("t", "target") is None
    other = run.folder / "phase1_attributes" / "t.target_attrs.json"
    other.parent.mkdir()
    other.touch()
    assert run.find_attributes("t", "target") == other
    run.attributes("t", "target").touch()
    assert run.find_attributes("t", "target") == run.attributes("t", "target")


def test_files_of_a_task_are_not_those_of_another_with_its_name_at_the_start(run: Run) -> None:
    for path in (
        run.records("response_collection", "sum", "a.b"),
        run.records("response_collection", "sum_up", "a"),
        run.records("response_collection", "sum-2", "a"),
    ):
        path.parent.mkdir(exist_ok=True)
        path.touch()
    (run.folder / "phase4_responses" / "sum.teacher.a.responses.jsonl").touch()
    (run.folder / "phase4_responses" / "sum.a.responses.jsonl.torn").touch()
    names = [path.name for path in run.record_files("response_collection", "sum")]
    assert names == ["sum.a.b.responses.jsonl", "sum.teacher.a.responses.jsonl"]
    assert len(run.record_files("response_collection")) == 4
    assert run.record_files("data_generation") == []
