"""What a run that goes on, or is made anew, says and asks."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from coeval.mock.server import MockServer
from coeval.planning.gaps import find_gaps
from tests.coeval.helpers import STATIC_TASK, calls, coeval, model, records, run_of, write_config

ALL = ("teacher", "student", "judge")
PHASES = ("attribute_mapping", "rubric_mapping", "data_generation", "response_collection", "evaluation")


def mark(path: Path, words: str) -> None:
    """Mark a record as failed."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    marked = [{**line, "status": "failed"} if words in line["id"] else line for line in lines]
    path.write_text("".join(json.dumps(line) + "\n" for line in marked))


def test_labels_are_scored_where_items_have_them(tmp_path: Path) -> None:
    task = {**STATIC_TASK, "sampling": {"target": [1], "nuance": [1], "total": 6}}
    assert coeval("run", "--config", write_config(tmp_path, [model("ant", roles=ALL)], [task])) == 0
    labelled = [one["id"] for one in records(run_of(tmp_path), "data_generation") if "tone" in str(one)]
    config = write_config(tmp_path, [model("ant", roles=ALL)], [{**task, "label_attributes": ["tone"]}])
    for _ in range(2):
        assert coeval("run", "--config", config, "--continue") == 0
        scored = [one for one in records(run_of(tmp_path), "evaluation") if one["judge_model_id"] == "label"]
        assert sorted(one["datapoint_id"] for one in scored) == labelled
        assert {*map(len, (one["scores"] for one in scored))} == {1}
    assert 0 < len(labelled) < 6
    assert list(find_gaps(run_of(tmp_path))) == []


def test_each_metric_judge_scores_its_own_metric(tmp_path: Path) -> None:
    judges = [
        {"name": name, "interface": "metric", "roles": ["judge"], "parameters": {"metric": name}}
        for name in ("bleu", "exact_match")
    ]
    rubric = {"clarity": "Is it clear?", "b": {"metric": "bleu"}, "e": {"metric": "exact_match"}}
    config = write_config(tmp_path, [model("ant", roles=ALL), *judges], [{**STATIC_TASK, "rubric": rubric}])
    assert coeval("run", "--config", config) == 0
    counts = Counter((one["judge_model_id"], *one["scores"]) for one in records(run_of(tmp_path), "evaluation"))
    assert counts == {("ant", "clarity"): 4, ("bleu", "b"): 4, ("exact_match", "e"): 4}
    (path,) = run_of(tmp_path).record_files("evaluation")[:1]
    odd = {**json.loads(path.read_text().splitlines()[0]), "scores": "High"}
    path.write_text(path.read_text() + json.dumps(odd) + "\n")
    assert list(find_gaps(run_of(tmp_path))) == []


def test_all_with_too_few_items_is_said_and_grows_to_all(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for total, words in ((3, []), (4, ["--continue"])):
        task = {**STATIC_TASK, "sampling": {"target": "all", "nuance": [1], "total": total}}
        config = write_config(tmp_path, [model("ant", roles=ALL)], [task])
        assert coeval("run", "--config", config, *words) == 0
        said = "there are 4 combinations of attributes and 3 items" in capsys.readouterr().err
        assert said == (total == 3)
    found = [json.dumps(one["sampled_target_attributes"]) for one in records(run_of(tmp_path), "data_generation")]
    assert len({*found}) == 4


def test_a_text_that_is_stored_holds_and_that_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    models = [model("ant", roles=ALL)]
    assert coeval("run", "--config", write_config(tmp_path, models)) == 0
    assert coeval("run", "--config", write_config(tmp_path, models), "--continue") == 0
    assert "what is stored holds" not in capsys.readouterr().err
    task = {**STATIC_TASK, "rubric": {"clarity": "Clear?"}, "target_attributes": {"tone": ["warm"]}}
    config = write_config(tmp_path, models, [task])
    assert coeval("run", "--config", config, "--continue") == 0
    lines = [line for line in capsys.readouterr().err.splitlines() if "what is stored holds" in line]
    assert ["no length any more; tone is not cold any more. To renew" in line for line in lines] == [True, False]
    assert "another text of clarity; no tone any more. To renew it start without --continue" in lines[1]
    new = write_config(tmp_path, models, [task], phases=dict.fromkeys(PHASES, "New"))
    assert coeval("run", "--config", new) == 0
    assert json.loads(run_of(tmp_path).rubric("mail").read_text()) == {"clarity": "Clear?"}


def test_answers_from_the_cache_are_told_and_one_marked_failed_is_asked_anew(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with MockServer() as server:
        models = [model("ant", server, roles=ALL)]
        assert coeval("run", "--config", write_config(tmp_path, models, cache=True)) == 0
        assert "from the cache" not in capsys.readouterr().out
        new = write_config(tmp_path, models, cache=True, phases=dict.fromkeys(PHASES, "New"))
        calls(server)
        assert coeval("run", "--config", new) == 0
        assert "data_generation: 4 made, 4 answers from the cache" in capsys.readouterr().out
        assert calls(server) == {}
        mark(run_of(tmp_path).records("data_generation", "mail", "ant"), "__00001")
        mark(run_of(tmp_path).records("response_collection", "mail", "ant"), "__00002")
        config = write_config(tmp_path, models, cache=True)
        assert coeval("run", "--config", config, "--continue") == 0
        asked = calls(server)
        assert (asked["ant sample"], asked["ant test"]) == (1, 2)  # the new item is another, and answered anew
