"""Each example of the manual makes exactly the calls it should, counted behind the wire."""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from coeval import cli
from coeval.mock.server import MockServer
from coeval.storage.meta import main_process
from tests.coeval.helpers import STATIC_TASK, calls, coeval, ids, meta_of, model, records, run_of, write_config
from tests.warm import warm_python

AUTO_TASK = {
    **STATIC_TASK,
    "name": "sum",
    "target_attributes": "auto",
    "nuanced_attributes": "auto",
    "rubric": "auto",
    "sampling": {"target": [1, 2], "nuance": [1], "total": 3},
}
ALL = ("teacher", "student", "judge")


@pytest.fixture
def server() -> Iterator[MockServer]:
    with MockServer() as server:
        yield server


def test_the_first_run_makes_the_calls_that_it_should(tmp_path: Path, server: MockServer) -> None:
    config = write_config(tmp_path, [model("ant", server, roles=ALL), model("b.2", server, roles=ALL)], [AUTO_TASK])
    assert coeval("run", "--config", config) == 0
    expected = {"map_target_attrs": 1, "map_nuanced_attrs": 1, "autorubric": 1, "sample": 3, "test": 6}
    expected["evaluate_single"] = 12
    assert calls(server) == {f"{name} {prompt}": count for name in ("ant", "b.2") for prompt, count in expected.items()}
    run = run_of(tmp_path)
    assert [len(records(run, kind)) for kind in ("data_generation", "response_collection", "evaluation")] == [6, 12, 24]
    assert ids(run, "data_generation")[0] == "sum__ant__00001"
    assert ids(run, "response_collection")[0] == "sum__ant__00001__ant"
    assert ids(run, "evaluation")[0] == "sum__ant__00001__ant__ant"
    meta = meta_of(run)
    assert (meta["status"], len(meta["phases_completed"]), meta["phases_in_progress"]) == ("completed", 5, [])
    assert "sk-not-a-real-key" not in "".join(path.read_text() for path in run.folder.rglob("*") if path.is_file())
    assert coeval("run", "--config", config, "--continue") == 0
    assert calls(server) == {}


def test_a_run_of_static_maps_asks_nothing_in_the_first_phases(tmp_path: Path, server: MockServer) -> None:
    config = write_config(tmp_path, [model("ant", server, roles=ALL)])
    assert coeval("run", "--config", config) == 0
    assert calls(server) == {"ant sample": 4, "ant test": 4, "ant evaluate_single": 4}
    run = run_of(tmp_path)
    assert json.loads(run.rubric("mail").read_text()) == STATIC_TASK["rubric"]
    targets = [record["sampled_target_attributes"] for record in records(run, "data_generation")]
    assert sorted((one["tone"], one["length"]) for one in targets) == [
        ("cold", "long"),
        ("cold", "short"),
        ("warm", "long"),
        ("warm", "short"),
    ]


def test_per_factor_asks_for_each_factor(tmp_path: Path, server: MockServer) -> None:
    task = {**STATIC_TASK, "evaluation_mode": "per_factor", "store_nuanced": True}
    config = write_config(tmp_path, [model("ant", server, roles=ALL)], [task])
    assert coeval("run", "--config", config) == 0
    assert calls(server)["ant evaluate_per_factor"] == 8
    scores = [record["scores"] for record in records(run_of(tmp_path), "evaluation")]
    assert all(set(one) == {"clarity", "tone"} for one in scores)
    assert all(
        "noise" in record["sampled_nuanced_attributes"] for record in records(run_of(tmp_path), "data_generation")
    )


def test_a_dry_run_asks_nothing_and_writes_nothing(
    tmp_path: Path, server: MockServer, capsys: pytest.CaptureFixture[str]
) -> None:
    config = write_config(tmp_path, [model("ant", server, roles=ALL)], probe_mode="full")
    assert coeval("run", "--config", config, "--dry-run") == 0
    said = capsys.readouterr().out
    assert all(word in said for word in ("teacher", "data_generation", "mail", "New"))
    assert (server.requests, list(tmp_path.iterdir())) == (0, [config])


def test_a_student_is_added_to_a_finished_experiment(tmp_path: Path, server: MockServer) -> None:
    """The new run has no tasks of its own, keeps phases 1 to 3, and asks for the new student alone."""
    first = [model("ant", server, roles=ALL), model("bee", server)]
    assert coeval("run", "--config", write_config(tmp_path, first)) == 0
    before = {path: path.read_bytes() for path in run_of(tmp_path).folder.rglob("*.jsonl")}
    calls(server)
    modes = dict.fromkeys(("attribute_mapping", "rubric_mapping", "data_generation"), "Keep")
    modes |= dict.fromkeys(("response_collection", "evaluation"), "Model")
    config = write_config(tmp_path, [*first, model("cow", server)], [], name="two.yaml", id="two", phases=modes)
    text = yaml.safe_load(config.read_text())
    del text["tasks"]
    config.write_text(yaml.safe_dump(text))
    assert coeval("run", "--config", config, "--resume", "one") == 0
    assert calls(server) == {"cow test": 4, "ant evaluate_single": 4}
    run = run_of(tmp_path, "two")
    assert len(set(ids(run, "evaluation"))) == len(ids(run, "evaluation")) == 12
    assert (meta_of(run)["resume_from"], meta_of(run)["status"]) == ("one", "completed")
    assert before == {path: path.read_bytes() for path in run_of(tmp_path).folder.rglob("*.jsonl")}


def test_only_the_new_student_and_its_judge_need_to_be_named(tmp_path: Path, server: MockServer) -> None:
    assert coeval("run", "--config", write_config(tmp_path, [model("ant", server, roles=ALL)])) == 0
    calls(server)
    models = [model("ant", server, roles=["judge"]), model("cow", server)]
    config = write_config(tmp_path, models, name="two.yaml", id="two", resume_from="one")
    text = yaml.safe_load(config.read_text())
    text["experiment"]["phases"] = {"response_collection": "Extend", "evaluation": "Extend"}
    config.write_text(yaml.safe_dump(text))
    assert coeval("run", "--config", config) == 0
    assert calls(server) == {"cow test": 4, "ant evaluate_single": 4}
    assert len(records(run_of(tmp_path, "two"), "response_collection")) == 8  # those of ant are there to compare with


def test_a_run_grows_with_its_configuration(tmp_path: Path, server: MockServer) -> None:
    models = [model("ant", server, roles=ALL)]
    task: dict[str, Any] = dict(STATIC_TASK)
    assert coeval("run", "--config", write_config(tmp_path, models, [task])) == 0
    first = records(run_of(tmp_path), "data_generation")
    calls(server)
    task["sampling"] = {**task["sampling"], "total": 6}
    assert coeval("run", "--config", write_config(tmp_path, models, [task]), "--continue") == 0
    assert calls(server) == {"ant sample": 2, "ant test": 2, "ant evaluate_single": 2}
    assert records(run_of(tmp_path), "data_generation")[:4] == first
    models.append(model("bee", server))
    assert coeval("run", "--config", write_config(tmp_path, models, [task]), "--continue") == 0
    assert calls(server) == {"bee test": 6, "ant evaluate_single": 6}
    assert [one["name"] for one in yaml.safe_load(run_of(tmp_path).config.read_text())["models"]] == ["ant", "bee"]
    task["rubric"] = {**task["rubric"], "wit": "Is it funny?"}
    assert coeval("run", "--config", write_config(tmp_path, models, [task]), "--continue") == 0
    assert calls(server) == {"ant evaluate_single": 12}
    last = {record["id"]: record["scores"] for record in records(run_of(tmp_path), "evaluation")}
    assert len(last) == 12
    assert all(set(scores) == {"clarity", "tone", "wit"} for scores in last.values())
    assert coeval("run", "--config", write_config(tmp_path, models, [task]), "--continue") == 0
    assert calls(server) == {}


def test_a_used_up_quota_ends_partial_and_is_filled_once_raised(
    tmp_path: Path, server: MockServer, capsys: pytest.CaptureFixture[str]
) -> None:
    models = [model("ant", server, roles=ALL), model("bee", server)]
    assert coeval("run", "--config", write_config(tmp_path, models, quota={"bee": {"max_calls": 2}})) == 0
    assert calls(server) == {"ant sample": 4, "ant test": 4, "bee test": 2, "ant evaluate_single": 6}
    meta = meta_of(run_of(tmp_path))
    assert (meta["status"], meta["quota_used"]) == ("partial", {"ant": 14, "bee": 2})
    assert meta["phases_completed"] == ["attribute_mapping", "rubric_mapping", "data_generation"]
    assert "bee" in capsys.readouterr().err
    assert coeval("run", "--config", write_config(tmp_path, models, quota={"bee": {"max_calls": 2}}), "--continue") == 0
    assert calls(server) == {}
    assert coeval("run", "--config", write_config(tmp_path, models), "--continue") == 0
    assert calls(server) == {"bee test": 2, "ant evaluate_single": 2}
    assert meta_of(run_of(tmp_path))["status"] == "completed"


def test_a_judge_whose_quota_ends_has_scored_all_students_alike(tmp_path: Path, server: MockServer) -> None:
    models = [
        model("ant", server, roles=["teacher", "judge"]),
        *(model(name, server) for name in ("bee", "cat", "dog")),
    ]
    task = {**STATIC_TASK, "sampling": {**STATIC_TASK["sampling"], "total": 6}}
    quota = {"ant": {"max_calls": 6 + 10}}  # items, then scores of three items and one answer
    assert coeval("run", "--config", write_config(tmp_path, models, [task], quota=quota)) == 0
    scored = Counter(record["student_model_id"] for record in records(run_of(tmp_path), "evaluation"))
    assert sorted(scored.values()) == [3, 3, 4]


def test_a_quota_that_ends_the_first_phase_is_no_failure(tmp_path: Path, server: MockServer) -> None:
    quota = {"ant": {"max_calls": 1}}
    assert (
        coeval("run", "--config", write_config(tmp_path, [model("ant", server, roles=ALL)], [AUTO_TASK], quota=quota))
        == 0
    )
    assert (meta_of(run_of(tmp_path))["status"], server.requests) == ("partial", 1)
    calls(server)
    models = [model("ant", server, roles=ALL), model("bee", server, text="no")]
    config = write_config(tmp_path, models, [AUTO_TASK, {**AUTO_TASK, "name": "more"}])
    assert coeval("run", "--config", config, "--continue") == 0
    assert sum(calls(server).get(f"ant map_{kind}_attrs", 0) for kind in ("target", "nuanced")) <= 4
    assert len(records(run_of(tmp_path), "evaluation")) == 12


@pytest.mark.parametrize("name", ["ant", "bee", "cow"])
def test_a_quota_of_nothing_for_any_role_ends_partial(tmp_path: Path, server: MockServer, name: str) -> None:
    models = [model("ant", server, roles=["teacher"]), model("bee", server), model("cow", server, roles=["judge"])]
    assert coeval("run", "--config", write_config(tmp_path, models, quota={name: {"max_calls": 0}})) == 0
    assert meta_of(run_of(tmp_path))["status"] == "partial"
    calls(server)
    assert coeval("run", "--config", write_config(tmp_path, models), "--continue") == 0
    assert calls(server)["cow evaluate_single"] == 4
    assert meta_of(run_of(tmp_path))["status"] == "completed"


def test_a_new_run_and_one_that_goes_on_are_not_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_config(tmp_path, [model("ant", roles=ALL)])
    assert coeval("run", "--config", path, "--continue", "--resume", "other") == 1
    assert "--resume starts a new run and --continue continues one" in capsys.readouterr().err


def test_a_process_for_some_models_tells_of_them_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    models = [model("ant", roles=ALL), model("bee")]
    path = write_config(tmp_path, models, quota={"ant": {"max_calls": 8}})
    assert coeval("run", "--config", path) == 0
    assert coeval("run", "--config", path, "--continue", "--only-models", "bee") == 0
    assert "bee done, $0.0000 spent by all; the run still lacks 8 evaluations of ant" in capsys.readouterr().out


def test_teachers_that_propose_nothing_end_the_run_and_one_of_several_does_not(
    tmp_path: Path, server: MockServer, capsys: pytest.CaptureFixture[str]
) -> None:
    models = [model("ant", server, roles=ALL, text="I would rather not.")]
    assert coeval("run", "--config", write_config(tmp_path, models, [AUTO_TASK])) == 1
    assert "no teacher proposed anything of use for task 'sum'" in capsys.readouterr().err
    assert meta_of(run_of(tmp_path))["status"] == "failed"
    models.append(model("bee", server, roles=["teacher"]))
    assert coeval("run", "--config", write_config(tmp_path, models, [AUTO_TASK]), "--continue") == 1
    assert {record["teacher_model_id"] for record in records(run_of(tmp_path), "data_generation")} == {"bee"}


def test_a_model_that_its_provider_refuses_is_left_alone_and_the_others_go_on(tmp_path: Path) -> None:
    with MockServer(api_key="sk-not-a-real-key") as server:
        models = [model("ant", server, roles=ALL), {**model("bee", server), "access_key": "sk-another-key"}]
        assert coeval("run", "--config", write_config(tmp_path, models)) == 1
        assert calls(server) == {"ant sample": 4, "ant test": 4, "ant evaluate_single": 4}
    meta = meta_of(run_of(tmp_path))
    assert (meta["status"], meta["phases_completed"][-1]) == ("failed", "data_generation")


def test_a_budget_ends_the_run_at_its_dollars(tmp_path: Path, server: MockServer) -> None:
    models = [model("ant", server, roles=ALL, max_tokens=200)]
    assert coeval("run", "--config", write_config(tmp_path, models, budget_usd=0.002)) == 0
    meta = meta_of(run_of(tmp_path))
    assert meta["status"] == "partial"
    assert 0 < meta["spent_usd"] <= 0.002
    done = sum(calls(server).values())
    assert coeval("run", "--config", write_config(tmp_path, models), "--continue") == 0
    assert done + sum(calls(server).values()) == 12


def test_an_estimate_above_the_budget_ends_before_anything_is_asked(
    tmp_path: Path, server: MockServer, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = {"budget_usd": 0.0001, "estimate_cost": True, "estimate_samples": 0}
    config = write_config(tmp_path, [model("ant", server, roles=ALL)], **settings)
    assert coeval("run", "--config", config) == 1
    assert "above experiment.budget_usd of $0.0001" in capsys.readouterr().err
    assert (server.requests, run_of(tmp_path).folder.exists()) == (0, False)


def test_an_estimate_alone_leaves_no_folder(tmp_path: Path, server: MockServer) -> None:
    config = write_config(tmp_path, [model("ant", server, roles=ALL)])
    assert coeval("run", "--config", config, "--estimate-only", "--estimate-samples", "0") == 0
    assert (server.requests, run_of(tmp_path).folder.exists()) == (0, False)
    assert coeval("run", "--config", config) == 0


def test_a_probe_that_fails_ends_the_run_and_leaves_no_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with MockServer(api_key="another") as server:
        config = write_config(tmp_path, [model("ant", server, roles=ALL)], probe_mode="full")
        assert coeval("run", "--config", config) == 1
        assert "not available: ant" in capsys.readouterr().err
        assert not run_of(tmp_path).folder.exists()
        assert coeval("run", "--config", config, "--probe-on-fail", "warn") == 1
    assert json.loads(run_of(tmp_path).probe.read_text())["on_fail"] == "warn"
    assert meta_of(run_of(tmp_path))["status"] == "failed"


def test_a_provider_that_fails_leaves_a_gap_that_the_next_start_fills(tmp_path: Path, server: MockServer) -> None:
    models = [model("ant", server, roles=ALL), model("bee", server, malformed_rate=0.0)]
    models.append(model("cow", server, roles=["judge"], text="Great!"))
    assert coeval("run", "--config", write_config(tmp_path, models)) == 1
    run = run_of(tmp_path)
    # Each malformed judgement is asked for three times, but a judge rests after twenty without a usable one.
    assert 20 <= calls(server)["cow evaluate_single"] <= 3 * 8
    failed = [record for record in records(run, "evaluation") if record.get("status") == "failed"]
    assert len(failed) == 8
    assert all((record["scores"], record["judge_model_id"]) == ({}, "cow") for record in failed)
    assert meta_of(run)["status"] == "failed"
    assert "evaluation" not in meta_of(run)["phases_completed"]
    models[2]["parameters"].pop("text")
    assert coeval("run", "--config", write_config(tmp_path, models), "--continue") == 0
    assert calls(server) == {"cow evaluate_single": 8}
    assert meta_of(run)["status"] == "completed"


def test_new_written_for_every_phase_puts_the_run_aside_and_makes_it_again(
    tmp_path: Path, server: MockServer, capsys: pytest.CaptureFixture[str]
) -> None:
    models = [model("ant", server, roles=ALL)]
    assert coeval("run", "--config", write_config(tmp_path, models)) == 0
    calls(server)
    assert coeval("run", "--config", write_config(tmp_path, models)) == 1
    assert "--continue" in capsys.readouterr().err
    modes = dict.fromkeys(("attribute_mapping", "rubric_mapping", "data_generation"), "Keep")
    modes |= dict.fromkeys(("response_collection", "evaluation"), "New")
    assert coeval("run", "--config", write_config(tmp_path, models, phases=modes)) == 0
    assert calls(server) == {"ant test": 4, "ant evaluate_single": 4}
    assert len(list((run_of(tmp_path).folder / "archive").rglob("*.jsonl"))) == 2
    assert len(records(run_of(tmp_path), "evaluation")) == 4


def test_a_second_main_process_is_refused_and_one_for_some_models_is_not(
    tmp_path: Path, server: MockServer, capsys: pytest.CaptureFixture[str]
) -> None:
    models = [model("ant", server, roles=ALL)]
    assert coeval("run", "--config", write_config(tmp_path, models)) == 0
    calls(server)
    models.append(model("bee", server))
    config = write_config(tmp_path, models)
    with main_process(run_of(tmp_path)):
        assert coeval("run", "--config", config, "--continue") == 1
        assert "another process is at work" in capsys.readouterr().err
        before = meta_of(run_of(tmp_path))
        assert coeval("run", "--config", config, "--continue", "--only-models", "bee") == 0
        assert calls(server) == {"bee test": 4}
    after = meta_of(run_of(tmp_path))
    assert all(after[key] == before[key] for key in ("status", "phases_completed", "phases_in_progress"))
    assert (run_of(tmp_path).folder / "run_bee.log").is_file()
    assert coeval("run", "--config", config, "--continue", "--only-models", "beee") == 1
    assert "did you mean 'bee'?" in capsys.readouterr().err


def test_processes_side_by_side_ask_nothing_twice(tmp_path: Path) -> None:
    with MockServer(latency=0.02) as server:
        models = [model(name, server, roles=ALL) for name in ("ant", "bee", "cow")]
        assert coeval("run", "--config", write_config(tmp_path, models[:1])) == 0
        config = write_config(tmp_path, models)
        calls(server)
        command = [warm_python(), "-m", "coeval", "run", "--config", str(config), "--continue"]
        extra: list[list[str]] = [[], ["--only-models", "bee"], ["--only-models", "cow,ant"]]
        started = [subprocess.Popen([*command, *words], stdout=subprocess.DEVNULL) for words in extra]
        assert [process.wait() for process in started] == [0, 0, 0]
        calls(server)
        assert coeval("run", "--config", config, "--continue") == 0
        assert calls(server) == {}
    run = run_of(tmp_path)
    for kind, count in (("data_generation", 12), ("response_collection", 36), ("evaluation", 108)):
        assert len(ids(run, kind)) == len(set(ids(run, kind))) == count
    assert meta_of(run)["status"] == "completed"


def test_torn_lines_and_files_of_the_other_form_are_read(tmp_path: Path, server: MockServer) -> None:
    models = [model("gpt-3", server, roles=ALL), model("gpt-3.5", server, roles=ALL)]
    config = write_config(tmp_path, models)
    assert coeval("run", "--config", config) == 0
    calls(server)
    run = run_of(tmp_path)
    path = run.records("response_collection", "mail", "gpt-3.5")
    lines = path.read_bytes().splitlines(keepends=True)
    by_teacher = {
        teacher: [one for one in lines if f'"teacher_model_id": "{teacher}"'.encode() in one]
        for teacher in ("gpt-3", "gpt-3.5")
    }
    for teacher, found in by_teacher.items():
        path.with_name(f"mail.{teacher}.gpt-3.5.responses.jsonl").write_bytes(b"".join(found))
    path.unlink()
    scores = run.records("evaluation", "mail", "gpt-3", "gpt-3.5")
    scores.write_bytes(scores.read_bytes()[:-20])
    assert coeval("run", "--config", config, "--continue") == 0
    assert calls(server) == {"gpt-3.5 evaluate_single": 1}
    assert len(scores.with_name(f"{scores.name}.torn").read_bytes()) > 50


def test_extend_starts_from_the_rubric_of_the_run_resumed_from(tmp_path: Path, server: MockServer) -> None:
    models = [model("ant", server, roles=ALL)]
    assert coeval("run", "--config", write_config(tmp_path, models)) == 0
    calls(server)
    task = {**STATIC_TASK, "rubric": "extend"}
    phases = {"rubric_mapping": "New", "evaluation": "Extend"}
    config = write_config(tmp_path, models, [task], name="two.yaml", id="two", resume_from="one", phases=phases)
    assert coeval("run", "--config", config) == 0
    rubric = json.loads(run_of(tmp_path, "two").rubric("mail").read_text())
    assert list(rubric.items())[:2] == list(STATIC_TASK["rubric"].items())
    assert len(rubric) > 2
    assert calls(server) == {"ant autorubric": 1, "ant evaluate_single": 4}


def test_a_configuration_that_cannot_be_used_exits_with_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = write_config(tmp_path, [model("ant", roles=["student"])], [{**STATIC_TASK, "rubrik": {}}])
    assert coeval("run", "--config", config) == 1
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) >= 3
    assert any("rubrik" in line and "'rubric'" in line for line in lines)
    assert list(tmp_path.iterdir()) == [config]


def test_each_mistake_of_a_configuration_has_a_line_of_its_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    task = {**STATIC_TASK, "rubrik": {}, "samplin": 1}
    config = write_config(tmp_path, [model("ant", roles=["student"])], [task])
    with pytest.raises(SystemExit) as ended:
        cli.run(cli.dispatch, ["run", "--config", str(config)])
    assert ended.value.code == 1
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) >= 4
    assert all(line.startswith(f"error: {config}") and line.count("error: ") == 1 for line in lines)


def test_each_judge_scores_what_is_its_own(tmp_path: Path, server: MockServer) -> None:
    """Language models leave metrics and labels to those who compute them, and compare answers where that is asked."""
    rubric = {"clarity": "Is it clear?", "bleu4": {"metric": "bleu", "description": "BLEU-4"}}
    tasks = [
        {**STATIC_TASK, "rubric": rubric, "label_attributes": ["tone"]},
        {**STATIC_TASK, "name": "duel", "description": "Write a poem.", "evaluation_mode": "pairwise"},
    ]
    models = [model("ant", server, roles=ALL), model("bee", server)]
    models.append({"name": "bleu", "interface": "metric", "roles": ["judge"], "parameters": {"metric": "bleu"}})
    config = write_config(tmp_path, models, tasks)
    assert coeval("run", "--config", config) == 0
    assert calls(server) == {
        "ant sample": 8,
        "ant test": 8,
        "bee test": 8,
        "ant evaluate_single": 8,
        "ant compare": 8,
    }
    run = run_of(tmp_path)
    factors = {(record["judge_model_id"], *record["scores"]) for record in records(run, "evaluation")}
    assert factors == {("ant", "clarity"), ("bleu", "bleu4"), ("label", "label:tone")}
    assert len(records(run, "pairwise")) == 4
    assert coeval("run", "--config", config, "--continue") == 0
    assert calls(server) == {}
    assert meta_of(run)["status"] == "completed"


def test_a_computing_judge_scores_every_answer_of_many(tmp_path: Path) -> None:
    task = {**STATIC_TASK, "sampling": {"target": "all", "nuance": [1], "total": 140}, "label_attributes": ["tone"]}
    models = [model("ant", roles=("teacher", "student")), {"name": "label", "interface": "label", "roles": ["judge"]}]
    assert coeval("run", "--config", write_config(tmp_path, models, [task])) == 0
    assert len(records(run_of(tmp_path), "evaluation")) == 140


def test_kept_answers_make_the_same_experiment_again_for_nothing(tmp_path: Path, server: MockServer) -> None:
    models = [model("ant", server, roles=ALL)]
    for name, count in (("one", 12), ("two", 0)):
        config = write_config(tmp_path, models, id=name, cache=True)
        assert coeval("run", "--config", config) == 0
        assert sum(calls(server).values()) == count
        assert len(records(run_of(tmp_path, name), "evaluation")) == 4
    assert meta_of(run_of(tmp_path, "two"))["spent_usd"] == 0
