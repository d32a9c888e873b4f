"""Runs that end in the middle: jobs are taken up again, and nothing is sent or stored twice."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from coeval.calling.retry import Retries
from coeval.storage.jsonl import read_json
from tests.coeval.batch.batch_helpers import INTERFACES, KINDS, batched, config
from tests.coeval.batch.servers import BatchServer
from tests.coeval.helpers import STATIC_TASK, coeval, ids, meta_of, records, run_of


@pytest.fixture
def server() -> Any:
    with BatchServer() as server:
        yield server


@contextlib.contextmanager
def started(path: Path, *flags: str) -> Iterator[subprocess.Popen[bytes]]:
    """A run in another process, killed at the end of the block."""
    command = [sys.executable, "-m", "coeval", "run", "--config", str(path), *flags]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=os.environ) as process:
        try:
            yield process
        finally:
            process.send_signal(signal.SIGKILL)


def wait_until(true: Callable[[], object]) -> None:
    for _ in range(3000):
        if true():
            return
        time.sleep(0.01)
    raise AssertionError("what was waited for did not come")


def names(path: Path) -> list[str]:
    return list(read_json(path) or {})


def is_whole(folder: Path, server: BatchServer) -> None:
    """Every record once, every question asked once."""
    run = run_of(folder)
    for kind in KINDS:
        assert len(ids(run, kind)) == len(set(ids(run, kind))) == 4, kind
    assert sum(len(job.requests) for job in server.jobs) == 12
    assert not run.pending.exists()
    assert not (run.folder / "batches").exists()
    assert meta_of(run)["status"] == "completed"


@pytest.mark.parametrize(("interface", "phase"), [("openai", 0), ("openai", 2), ("anthropic", 1), ("gemini", 1)])
def test_a_job_of_a_killed_run_is_taken_up_again(
    tmp_path: Path, server: BatchServer, interface: str, phase: int
) -> None:
    path, pending = config(tmp_path, [batched(server, interface)]), run_of(tmp_path).pending
    server.held = phase
    with started(path):
        wait_until(lambda: len(server.jobs) == phase + 1 and server.jobs[-1].id in names(pending))
    noted = read_json(pending)[server.jobs[-1].id]
    assert noted["status"] == "pending"
    assert noted["phase"] == KINDS[phase]
    assert noted["n_requests"] == len(noted["id_to_key"]) == 4
    server.held = None
    assert coeval("run", "--config", path, "--continue") == 0
    is_whole(tmp_path, server)


@pytest.mark.parametrize("interface", INTERFACES)
def test_a_job_whose_id_was_never_heard_is_found(tmp_path: Path, server: BatchServer, interface: str) -> None:
    path, pending = config(tmp_path, [batched(server, interface)]), run_of(tmp_path).pending
    server.stuck = True
    with started(path):
        wait_until(lambda: server.jobs)
    assert [job["status"] for job in read_json(pending).values()] == ["submitting"]
    server.stuck = False
    assert coeval("run", "--config", path, "--continue") == 0
    is_whole(tmp_path, server)


def test_a_job_that_never_went_out_is_sent_and_its_calls_count_once(tmp_path: Path, server: BatchServer) -> None:
    path = config(tmp_path, [batched(server)], quota={"ant": {"max_calls": 12}})
    server.refusals.extend([500] * 50)
    with started(path):
        wait_until(lambda: len(server.refusals) < 50)
    server.refusals.clear()
    assert coeval("run", "--config", path, "--continue") == 0
    is_whole(tmp_path, server)


@pytest.mark.parametrize("interface", INTERFACES)
def test_a_broken_connection_does_not_make_two_jobs(
    tmp_path: Path, server: BatchServer, interface: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("coeval.batch.jobs.RETRIES", Retries(base=0.0))
    server.lose_replies = 3
    server.refusals.extend([429, 500])
    assert coeval("run", "--config", config(tmp_path, [batched(server, interface)])) == 0
    is_whole(tmp_path, server)


def test_answers_stored_before_a_kill_are_not_stored_again(tmp_path: Path, server: BatchServer) -> None:
    """As a kill leaves it in the middle of a job's answers: some records there, the job still noted."""
    path, run = config(tmp_path, [batched(server)]), run_of(tmp_path)
    server.held = 0
    with started(path):
        wait_until(lambda: server.jobs and names(run.pending) == [server.jobs[0].id])
    kept, noted = run.pending.read_bytes(), next(iter(read_json(run.pending).values()))
    questions = run.folder / "batches" / f"{noted['token']}.jsonl"
    lines = questions.read_bytes()
    server.held = 1
    with started(path, "--continue"):
        wait_until(lambda: len(server.jobs) == 2)
    server.held = None
    stored = run.datapoints("mail", "ant")
    stored.write_bytes(b"".join(stored.read_bytes().splitlines(keepends=True)[:2]))
    run.pending.write_bytes(kept)
    questions.write_bytes(lines)
    questions.with_suffix(".start.json").write_text(f'{{"{stored}": 0}}')
    for path_of_later in run.response_files():
        path_of_later.unlink()
    assert coeval("run", "--config", path, "--continue") == 0
    assert len(ids(run, "data_generation")) == len(set(ids(run, "data_generation"))) == 4


def test_runs_killed_at_random_send_and_store_everything_once(tmp_path: Path, server: BatchServer) -> None:
    task = {**STATIC_TASK, "sampling": {"target": "all", "nuance": [1], "total": 12}}
    path, draw = config(tmp_path, [batched(server)], [task]), random.Random(5)
    server.looks = 3
    for _ in range(5):
        flags = ["--continue"] if run_of(tmp_path).meta.exists() else []
        until = len(server.paths) + draw.randint(1, 9)
        with started(path, *flags) as process:
            wait_until(lambda until=until, process=process: len(server.paths) >= until or process.poll() is not None)
    assert coeval("run", "--config", path, "--continue") == 0
    run = run_of(tmp_path)
    assert [len(records(run, kind)) for kind in KINDS] == [12, 12, 12]
    assert sum(len(job.requests) for job in server.jobs) == 36
    assert meta_of(run)["spent_usd"] >= sum(
        record["usage"]["cost_usd"] for kind in KINDS for record in records(run, kind)
    )


def test_an_outage_leaves_the_job_for_later(
    tmp_path: Path, server: BatchServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("coeval.batch.jobs.RETRIES", Retries(attempts=2, base=0.0))
    path = config(tmp_path, [batched(server)])
    server.held = 0
    with started(path):
        wait_until(lambda: server.jobs and names(run_of(tmp_path).pending) == [server.jobs[0].id])
    text = path.read_text()
    path.write_text(text.replace(server.url, "http://127.0.0.1:9"))
    server.held = None
    assert coeval("run", "--config", path, "--continue") == 1
    assert "batch job batch_0 stays noted for --continue" in capsys.readouterr().err
    path.write_text(text)
    assert coeval("run", "--config", path, "--continue") == 0
    is_whole(tmp_path, server)


def test_a_job_that_the_provider_lost_is_asked_again(tmp_path: Path, server: BatchServer) -> None:
    path = config(tmp_path, [batched(server)])
    server.held = 0
    with started(path):
        wait_until(lambda: server.jobs and names(run_of(tmp_path).pending) == [server.jobs[0].id])
    server.held = None
    server.jobs.clear()
    assert coeval("run", "--config", path, "--continue") == 0
    is_whole(tmp_path, server)


def test_a_damaged_list_of_jobs_ends_the_run(
    tmp_path: Path, server: BatchServer, capsys: pytest.CaptureFixture[str]
) -> None:
    path = config(tmp_path, [batched(server)], quota={"ant": {"max_calls": 6}})
    assert coeval("run", "--config", path) == 0
    run_of(tmp_path).pending.write_text("{")
    assert coeval("run", "--config", path, "--continue") == 1
    assert "pending_batches.json: is no JSON object; restore it" in capsys.readouterr().err
