"""Runs that end in the middle: jobs are taken up again, and nothing is sent or stored twice."""

from __future__ import annotations

import contextlib
import random
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from coeval.calling.limits import Retries
from coeval.storage.records import read_json
from tests.coeval.batch.batch_helpers import INTERFACES, KINDS, batched, config, killed_at
from tests.coeval.batch.servers import BatchServer
from tests.coeval.helpers import STATIC_TASK, coeval, ids, meta_of, records, run_of
from tests.warm import warm_python


@pytest.fixture
def server() -> Any:
    with BatchServer() as server:
        yield server


@contextlib.contextmanager
def started(path: Path, *flags: str) -> Iterator[subprocess.Popen[bytes]]:
    """A run in another process, killed at the end of the block."""
    command = [warm_python(), "-m", "coeval", "run", "--config", str(path), *flags]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        try:
            yield process
        finally:
            process.send_signal(signal.SIGKILL)
            process.communicate()  # until nobody can write any more


def wait_until(true: Callable[[], object]) -> None:
    for _ in range(3000):
        if true():
            return
        time.sleep(0.01)
    raise AssertionError("what was waited for did not come")


def is_further(server: BatchServer, requests: int, process: subprocess.Popen[bytes]) -> bool:
    return len(server.heard) >= requests or process.poll() is not None


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


def test_a_job_of_a_killed_run_is_taken_up_again(tmp_path: Path, server: BatchServer) -> None:
    path, pending = config(tmp_path, [batched(server)]), run_of(tmp_path).pending
    server.held = 2
    with started(path):
        wait_until(lambda: len(server.jobs) == 3 and server.jobs[-1].id in names(pending))
    noted = read_json(pending)[server.jobs[-1].id]
    assert noted["status"] == "pending"
    assert noted["phase"] == "evaluation"
    assert noted["n_requests"] == len(noted["id_to_key"]) == 4
    server.held = None
    assert coeval("run", "--config", path, "--continue") == 0
    is_whole(tmp_path, server)


@pytest.mark.parametrize("interface", INTERFACES)
def test_a_job_whose_id_was_never_heard_is_found(
    tmp_path: Path, server: BatchServer, interface: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, run = config(tmp_path, [batched(server, interface)]), run_of(tmp_path)
    killed_at(monkeypatch, run, "coeval.batch.submission._submitted", 1, ["run", "--config", path])
    assert [job["status"] for job in read_json(run.pending).values()] == ["submitting"]
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


def test_runs_killed_at_random_send_and_store_everything_once(tmp_path: Path, server: BatchServer) -> None:
    task = {**STATIC_TASK, "sampling": {"target": "all", "nuance": [1], "total": 12}}
    path, draw = config(tmp_path, [batched(server)], [task]), random.Random(5)
    server.looks = 3
    for _ in range(5):
        flags = ["--continue"] if run_of(tmp_path).meta.exists() else []
        until = len(server.heard) + draw.randint(1, 9)
        with started(path, *flags) as process:
            wait_until(partial(is_further, server, until, process))
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
    killed_at(monkeypatch, run_of(tmp_path), "coeval.batch.jobs.wait_for", 1, ["run", "--config", path])
    text = path.read_text()
    path.write_text(text.replace(server.url, "http://127.0.0.1:9"))
    assert coeval("run", "--config", path, "--continue") == 1
    assert "batch job batch_0 stays noted for --continue" in capsys.readouterr().err
    path.write_text(text)
    assert coeval("run", "--config", path, "--continue") == 0
    is_whole(tmp_path, server)


def test_a_job_that_the_provider_lost_is_asked_again(
    tmp_path: Path, server: BatchServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = config(tmp_path, [batched(server)])
    killed_at(monkeypatch, run_of(tmp_path), "coeval.batch.jobs.wait_for", 1, ["run", "--config", path])
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
    assert "pending_batches.json: is not a JSON object; restore it" in capsys.readouterr().err
