"""What a start builds on: other models beside it, what modes leave out, what the start before had, what was probed."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from coeval.mock.server import MockServer
from coeval.schema import PHASES
from coeval.storage.run import Run
from tests.coeval.helpers import STATIC_TASK, calls, coeval, ids, meta_of, model, records, run_of, write_config

ALL = ("teacher", "student", "judge")
KEPT = dict.fromkeys(PHASES, "Keep")


@pytest.fixture
def server() -> Iterator[MockServer]:
    with MockServer() as server:
        yield server


def content(run: Run) -> dict[Path, bytes]:
    """All files but logs and locks, without the time of the last change."""
    files = (path for path in run.folder.rglob("*") if path.is_file() and ".locks" not in path.parts)
    return {path: re.sub(rb'"updated_at": "[^"]*"', b"", path.read_bytes()) for path in files if path.suffix != ".log"}


def test_a_process_for_some_models_puts_nothing_aside(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    models = [model("ant", roles=ALL), model("bee", roles=["judge"])]
    assert coeval("run", "--config", write_config(tmp_path, models)) == 0
    run = run_of(tmp_path)
    run.waiting.mkdir()
    (run.waiting / "evaluation.ant.jsonl").write_text("")
    before = content(run)
    renewing = write_config(tmp_path, models, phases={**KEPT, "evaluation": "New"})
    capsys.readouterr()
    assert coeval("run", "--config", renewing, "--only-models", "bee") == 1
    assert "--only-models: mode New of evaluation would put aside" in capsys.readouterr().err
    assert content(run) == before
    extending = write_config(tmp_path, models, phases={**KEPT, "evaluation": "Extend"})
    assert coeval("run", "--config", extending, "--only-models", "bee") == 0
    after = content(run)
    assert [path for path in before if before[path] != after.get(path)] == [run.config]  # which says what ran last


def test_what_stops_a_model_is_noted_and_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with MockServer(api_key="sk-another") as server:
        models = [model("ant", roles=["teacher", "judge"]), model("bee", server), model("cow", roles=["student"])]
        assert coeval("run", "--config", write_config(tmp_path, models)) == 1
    (error,) = [json.loads(line) for line in run_of(tmp_path).errors.read_text().splitlines()]
    assert (error["phase"], error["model"], error["role"]) == ("response_collection", "bee", "student")
    capsys.readouterr()
    assert coeval("status", "--run", run_of(tmp_path).folder) == 0
    assert f"response_collection bee: {error['error']}" in capsys.readouterr().out


def test_what_ends_a_run_is_noted(tmp_path: Path) -> None:
    models = [model("ant", roles=["teacher"], text="no"), model("bee", roles=["student", "judge"])]
    task = {**STATIC_TASK, "sampling": {**STATIC_TASK["sampling"], "total": 0}}
    items = run_of(tmp_path).records("data_generation", "mail", "ant")
    items.parent.mkdir(parents=True)
    items.write_text('{"id": "mail__ant__00001", "status": "failed"}\n')
    assert coeval("run", "--config", write_config(tmp_path, models, [task])) == 1
    assert "has no items" in run_of(tmp_path).errors.read_text()


def test_a_start_from_half_a_run_is_no_whole_one(
    tmp_path: Path, server: MockServer, capsys: pytest.CaptureFixture[str]
) -> None:
    """Modes that nobody wrote keep what is there; what it lacks is told, and made by --continue."""
    models = [model("ant", server, roles=ALL), model("bee", server)]
    assert coeval("run", "--config", write_config(tmp_path, models, quota={"ant": {"max_calls": 9}})) == 0
    models.append(model("cow", server))
    config = write_config(tmp_path, models, name="two.yaml", id="two", resume_from="one")
    calls(server)
    assert coeval("run", "--config", config) == 0
    said = capsys.readouterr().err
    assert "response_collection: mode Keep leaves out 4 records (4 of cow); use --continue for them" in said
    assert "evaluation: mode Keep leaves out 7 records (7 of ant)" in said
    meta = meta_of(run_of(tmp_path, "two"))
    assert (calls(server), meta["status"], meta["phases_completed"]) == ({}, "partial", list(PHASES[:3]))
    assert coeval("run", "--config", config, "--continue") == 0
    assert calls(server) == {"cow test": 4, "ant evaluate_single": 11}
    assert meta_of(run_of(tmp_path, "two"))["status"] == "completed"


@pytest.mark.parametrize("words", [(), ("--dry-run",)])
def test_a_start_from_a_run_whose_state_is_broken_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...]
) -> None:
    config = write_config(tmp_path, [model("ant", roles=ALL)], name="two.yaml", id="two")
    for name, flags in (("one", ("--resume", "one")), ("two", ())):
        meta = run_of(tmp_path, name).meta
        meta.parent.mkdir(parents=True)
        meta.write_text('{"status": ')
        assert coeval("run", "--config", config, *flags, *words) == 1
        (line,) = capsys.readouterr().err.splitlines()
        assert f"{meta} cannot be read; repair it, or" in line
        meta.unlink()


def test_a_keep_that_is_written_stays(tmp_path: Path, server: MockServer, capsys: pytest.CaptureFixture[str]) -> None:
    models = [model("ant", server, roles=ALL)]
    assert coeval("run", "--config", write_config(tmp_path, models)) == 0
    models.append(model("bee", server, roles=ALL))
    phases = {"data_generation": "Keep", "response_collection": "Model"}
    config = write_config(tmp_path, models, name="two.yaml", id="two", resume_from="one", phases=phases)
    calls(server)
    assert coeval("run", "--config", config) == 0
    assert (
        "data_generation: mode Keep leaves out 4 records (4 of bee); write Extend for them" in capsys.readouterr().err
    )
    assert calls(server) == {"bee test": 4}
    assert coeval("run", "--config", config, "--continue") == 0
    assert calls(server) == {"ant evaluate_single": 4, "bee evaluate_single": 8}
    assert meta_of(run_of(tmp_path, "two"))["status"] == "partial"
    assert "asks for what is missing, but not where Keep is written" in capsys.readouterr().out


def test_a_teacher_that_joins_in_mode_model_leaves_answers_out(
    tmp_path: Path, server: MockServer, capsys: pytest.CaptureFixture[str]
) -> None:
    models = [model("ant", server, roles=ALL)]
    assert coeval("run", "--config", write_config(tmp_path, models)) == 0
    models.append(model("bee", server, roles=["teacher"]))
    phases = dict.fromkeys(PHASES[2:], "Model")
    config = write_config(tmp_path, models, name="two.yaml", id="two", resume_from="one", phases=phases)
    assert coeval("run", "--config", config) == 0
    assert "response_collection: mode Model leaves out 4 records (4 of ant)" in capsys.readouterr().err
    assert meta_of(run_of(tmp_path, "two"))["phases_completed"] == list(PHASES[:3])
    calls(server)
    assert coeval("run", "--config", config, "--continue") == 0
    assert calls(server) == {"ant test": 4, "ant evaluate_single": 4}
    assert meta_of(run_of(tmp_path, "two"))["status"] == "completed"


def test_a_start_that_was_killed_while_it_kept_makes_the_rest(tmp_path: Path, server: MockServer) -> None:
    """Keep leaves tasks alone that had something when the phase began, not what it began itself."""
    config = write_config(tmp_path, [model("ant", server, roles=ALL)], phases=KEPT, quota={"ant": {"max_calls": 3}})
    assert coeval("run", "--config", config) == 0
    config = write_config(tmp_path, [model("ant", server, roles=ALL)], phases=KEPT)
    assert coeval("run", "--config", config, "--continue") == 0
    assert len(records(run_of(tmp_path), "evaluation")) == 4
    assert meta_of(run_of(tmp_path))["status"] == "completed"


def test_a_model_that_joins_a_finished_run_is_probed(tmp_path: Path) -> None:
    with MockServer(api_key="sk-not-a-real-key") as server:
        models = [model("ant", server, roles=ALL)]
        config = write_config(tmp_path, models, probe_mode="resume")
        assert coeval("run", "--config", config) == 0
        probe = run_of(tmp_path).probe
        before = probe.read_text()
        assert coeval("run", "--config", config, "--continue") == 0
        assert coeval("probe", "--config", config) == 0
        assert probe.read_text() == before  # nobody had to be asked anything
        models.append({**model("bee", server), "access_key": "sk-wrong-key"})
        config = write_config(tmp_path, models, probe_mode="resume")
        assert coeval("probe", "--config", config) == 2
        assert coeval("run", "--config", config, "--continue") == 1
    assert sorted(json.loads(probe.read_text())["results"]) == ["ant", "bee"]
    assert ids(run_of(tmp_path), "response_collection") == [f"mail__ant__0000{number}__ant" for number in range(1, 5)]


def test_probe_and_estimate_are_in_the_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with MockServer(api_key="sk-not-a-real-key") as server:
        models: list[Any] = [model("ant", server, roles=ALL), {**model("bee", server), "access_key": "sk-wrong-key"}]
        settings = {"probe_mode": "full", "probe_on_fail": "warn", "estimate_cost": True, "estimate_samples": 0}
        assert coeval("run", "--config", write_config(tmp_path, models, **settings)) == 1
    assert "warning: probe: bee: " in capsys.readouterr().err
    log = run_of(tmp_path).log().read_text()
    for words in ("[INFO] estimate: 20 calls, $", "[INFO] probe: ant: ok\n", "[WARNING] probe: bee: "):
        assert log.index(words) < log.index("attribute_mapping")


def test_what_the_configuration_lost_is_told_and_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    models = [model("ant", roles=ALL), model("bee")]
    tasks = [dict(STATIC_TASK), {**STATIC_TASK, "name": "letter"}]
    assert coeval("run", "--config", write_config(tmp_path, models, tasks)) == 0
    run = run_of(tmp_path)
    before = run.config.read_text()
    config = write_config(tmp_path, models[:1], tasks[:1])
    capsys.readouterr()
    for times in (1, 0):
        assert coeval("run", "--config", config, "--continue") == 0
        assert capsys.readouterr().err.count("warning: task letter, model bee: in the configuration") == times
    (copy,) = run.folder.glob("archive/*/config.yaml")
    assert copy.read_text() == before
    assert coeval("run", "--config", copy, "--continue") == 0


def test_a_rubric_is_extended_unless_keep_is_written(
    tmp_path: Path, server: MockServer, capsys: pytest.CaptureFixture[str]
) -> None:
    models = [model("ant", server, roles=ALL)]
    assert coeval("run", "--config", write_config(tmp_path, models)) == 0
    task = {**STATIC_TASK, "rubric": "extend"}
    for name, phases, count in (("default", {}, 1), ("extend", dict.fromkeys(PHASES, "Extend"), 1), ("keep", KEPT, 0)):
        config = write_config(tmp_path, models, [task], id=name, resume_from="one", phases=phases)
        calls(server)
        capsys.readouterr()
        assert coeval("run", "--config", config) == 0
        assert calls(server).get("ant autorubric", 0) == count
        kept = "mode Keep leaves the rubric of 'mail' as it is" in capsys.readouterr().err
        rubric = json.loads(run_of(tmp_path, name).rubric("mail").read_text())
        assert (len(rubric) > 2, kept) == (bool(count), not count)
        assert list(rubric)[:2] == ["clarity", "tone"]
    out = tmp_path / "static.yaml"
    config = write_config(tmp_path, models, [task], id="new", resume_from="one")
    assert coeval("generate", "--config", config, "--out", out) == 0
    assert calls(server) == {"ant autorubric": 1}


def test_generate_points_at_nothing_that_is_gone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = write_config(tmp_path, [model("ant", roles=ALL, text="no")], [{**STATIC_TASK, "rubric": "auto"}])
    assert coeval("generate", "--config", config, "--out", tmp_path / "static.yaml") == 1
    said = capsys.readouterr().err
    assert "no teacher proposed anything of use for task 'mail'; each said why above" in said
    assert "run_errors" not in said


def test_a_run_that_cannot_be_read_is_said_alike_with_and_without_continue(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = write_config(tmp_path, [model("ant", roles=ALL)])
    run_of(tmp_path).folder.mkdir(parents=True)
    run_of(tmp_path).meta.write_text("{torn")
    for extra in ([], ["--continue"]):
        assert coeval("run", "--config", config, *extra) == 1
        said = capsys.readouterr().err
        assert "meta.json cannot be read; repair it, or choose another id" in said
        assert "--continue to" not in said


def test_a_folder_that_cannot_be_written_is_told_in_words(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = write_config(tmp_path, [model("ant", roles=ALL)])
    assert coeval("run", "--config", config) == 0
    folder = run_of(tmp_path).folder / "phase5_evaluations"
    shutil.rmtree(folder)
    folder.touch()
    capsys.readouterr()
    assert coeval("run", "--config", config, "--continue") == 1
    told = capsys.readouterr().err
    assert str(folder) in told
    assert "[Errno" not in told


def test_a_run_whose_reader_left_does_not_end_as_if_it_had_run(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "coeval",
        "run",
        "--config",
        str(write_config(tmp_path, [model("ant", roles=ALL)])),
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout
        assert process.stderr
        process.stdout.close()
        told = process.stderr.read()
    assert process.returncode == 1
    assert told.startswith("error: stopped, since nobody reads the output")
    assert told.count("\n") == 1
