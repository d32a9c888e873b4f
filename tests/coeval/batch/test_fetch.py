"""`coeval status --fetch-batches`: answers of jobs whose run is gone."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from coeval.storage.meta import free_work
from coeval.storage.records import read_json
from tests.coeval.batch.batch_helpers import INTERFACES, KINDS, batched, config, killed_at
from tests.coeval.batch.servers import BatchServer
from tests.coeval.helpers import coeval, ids, meta_of, records, run_of


@pytest.fixture
def server() -> Any:
    with BatchServer() as server:
        yield server


def killed(patch: pytest.MonkeyPatch, folder: Path, server: BatchServer, interface: str, phase: int) -> Path:
    """A run that was killed while the job of a phase was under way; its configuration."""
    path = config(folder, [batched(server, interface)])
    killed_at(patch, run_of(folder), "coeval.batch.jobs.wait_for", phase + 1, ["run", "--config", path])
    return path


@pytest.mark.parametrize(("interface", "phase"), [*zip(INTERFACES, (0, 2, 1, 0), strict=True), ("openai", 2)])
def test_answers_of_every_phase_are_stored(
    tmp_path: Path,
    server: BatchServer,
    interface: str,
    phase: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path, run = killed(monkeypatch, tmp_path, server, interface, phase), run_of(tmp_path)
    keys = tmp_path / "my-keys.yaml"
    keys.write_text(f"{interface}: {{api_key: a-key-of-ours}}\n")
    fetch = ("status", "--run", run.folder, "--fetch-batches", "--keys", keys)
    server.held = phase
    capsys.readouterr()
    assert coeval(*fetch) == 0
    assert f"{server.jobs[-1].id}: {'running' if interface == 'gemini' else 'in_progress'}" in capsys.readouterr().out
    server.held = None
    assert coeval(*fetch) == 0
    assert f"{server.jobs[-1].id}: completed, its answers are stored" in capsys.readouterr().out.replace(
        "ended", "completed"
    ).replace("succeeded", "completed")
    assert len(ids(run, KINDS[phase])) == 4
    assert all("usage" in record for record in records(run, KINDS[phase]))
    assert not run.pending.exists()
    assert coeval(*fetch) == 0
    assert "no batch jobs are pending" in capsys.readouterr().out
    assert coeval("run", "--config", path, "--continue") == 0
    assert sum(len(job.requests) for job in server.jobs) == 12
    assert meta_of(run)["quota_used"] == {"ant": 12}


def test_failed_answers_are_no_scores(tmp_path: Path, server: BatchServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "a-key-of-ours")
    killed(monkeypatch, tmp_path, server, "openai", 2)
    server.say, server.looks = lambda *_: "I had rather not say.", 0
    assert coeval("status", "--run", run_of(tmp_path).folder, "--fetch-batches") == 0
    assert [record["scores"] for record in records(run_of(tmp_path), "evaluation")] == [{}] * 4
    assert len(server.jobs) == 3


def test_a_missing_key_is_said_and_the_job_stays(
    tmp_path: Path, server: BatchServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    killed(monkeypatch, tmp_path, server, "openai", 0)
    for name in [name for name in os.environ if name.endswith("_API_KEY")]:
        monkeypatch.delenv(name)
    run = run_of(tmp_path)
    jobs = read_json(run.pending)
    jobs["batch_0"]["settings"] = {}
    run.pending.write_text(json.dumps(jobs))
    assert coeval("status", "--run", run.folder, "--fetch-batches") == 1
    assert "no key for openai: set OPENAI_API_KEY" in capsys.readouterr().out
    assert read_json(run.pending) == jobs


def test_the_jobs_of_a_process_at_work_are_left_alone(
    tmp_path: Path, server: BatchServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    killed(monkeypatch, tmp_path, server, "openai", 0)
    run = run_of(tmp_path)
    with free_work(run, "data_generation", "ant") as is_free:
        assert is_free
        assert coeval("status", "--run", run.folder, "--fetch-batches") == 0
    assert "a process is at work on data_generation of ant" in capsys.readouterr().out
    assert len(read_json(run.pending)) == 1
