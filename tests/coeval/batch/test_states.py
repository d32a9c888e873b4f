"""Every way in which a job can end, and a process with it: nothing that can be had is lost, or paid for twice."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from coeval.calling.limits import Retries
from coeval.storage.records import read_json
from tests.coeval.batch.batch_helpers import INTERFACES, KINDS, batched, config, killed_at
from tests.coeval.batch.servers import BatchServer
from tests.coeval.helpers import coeval, ids, meta_of, records, run_of

KEY = "a-key-of-ours-that-is-long"
WINDOWS = {
    "before the job is counted": ("coeval.batch.pending.Charges.charge", 2),
    "before the job is noted": ("coeval.batch.pending.PendingJobs.put", 1),
    "before the upload": ("route.providers.files.FileTransport.send_file", 1),
    "between upload and job": ("route.providers.http.Transport.answer", 1),
    "before the id is noted": ("coeval.batch.submission._submitted", 1),
    "before the first look": ("coeval.batch.jobs.wait_for", 1),
    "before the download": ("route.providers.files.FileTransport.fetch_file", 1),
    "before the first record": ("coeval.batch.results._Settling._settle", 1),
    "among the records": ("coeval.batch.results._Settling._settle", 3),
    "before the job is settled": ("coeval.batch.pending.Charges.settle", 1),
    "before the job is forgotten": ("coeval.batch.pending.PendingJobs.remove", 1),
    "before it is forgotten everywhere": ("coeval.batch.pending.Charges.forget", 1),
}


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[BatchServer]:
    monkeypatch.setattr("coeval.batch.jobs.RETRIES", Retries(base=0.0))
    monkeypatch.setattr("coeval.batch.results._RETRIES", Retries(attempts=4, base=0.0))
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)
    monkeypatch.setenv("GEMINI_API_KEY", KEY)
    with BatchServer() as server:
        yield server


def written(folder: Path, server: BatchServer, interface: str = "openai") -> Path:
    """A configuration whose answers cost, with just as many calls as it needs."""
    names = {"openai": "gpt-4o-mini", "azure_openai": "gpt-4o-mini", "gemini": "gemini-2.0-flash"}
    model = batched(server, interface, parameters={"model": names.get(interface, "claude-3-5-haiku-latest")})
    return config(folder, [model], quota={"ant": {"max_calls": 12}})


def is_whole(folder: Path, server: BatchServer, *, again: int = 0) -> None:
    """Every record once, every question asked once but so many of which the answer was lost, all counted once."""
    run = run_of(folder)
    for kind in KINDS:
        assert len(ids(run, kind)) == len(set(ids(run, kind))) == 4, kind
    assert sum(len(job.requests) for job in server.jobs) == 12 + again
    assert meta_of(run)["quota_used"] == {"ant": 12}
    cost = sum(record["usage"]["cost_usd"] for kind in KINDS for record in records(run, kind))
    assert meta_of(run)["spent_usd"] == pytest.approx(cost)
    assert cost > 0
    assert not run.pending.exists()
    assert not (run.folder / "batches").exists()
    assert meta_of(run)["status"] == "completed"


@pytest.mark.parametrize("window", WINDOWS)
def test_a_kill_in_any_window_is_made_good(
    tmp_path: Path, server: BatchServer, window: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(tmp_path, server)
    killed_at(monkeypatch, run_of(tmp_path), *WINDOWS[window], ["run", "--config", path])
    assert coeval("run", "--config", path, "--continue") == 0
    is_whole(tmp_path, server)


@pytest.mark.parametrize("window", list(WINDOWS)[4:])
def test_a_kill_is_made_good_by_a_fetch(
    tmp_path: Path, server: BatchServer, window: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(tmp_path, server)
    killed_at(monkeypatch, run_of(tmp_path), *WINDOWS[window], ["run", "--config", path])
    for _ in range(2):
        assert coeval("status", "--run", run_of(tmp_path).folder, "--fetch-batches") == 0
    assert coeval("run", "--config", path, "--continue") == 0
    is_whole(tmp_path, server)


def test_a_kill_among_downloaded_bytes_is_made_good(
    tmp_path: Path, server: BatchServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def torn(_: Any, __: str, file: Any, ___: Any) -> None:
        file.write(b'{"custom_id": "ce')
        file.flush()

    path, run = written(tmp_path, server), run_of(tmp_path)
    target = "route.providers.files.FileTransport._copy"
    killed_at(monkeypatch, run, target, 1, ["run", "--config", path], torn)
    assert next((run.folder / "batches").glob("*.part")).read_bytes() == b'{"custom_id": "ce'
    assert coeval("run", "--config", path, "--continue") == 0
    is_whole(tmp_path, server)


@pytest.mark.parametrize("interface", INTERFACES)
def test_troubles_that_pass_are_waited_out(tmp_path: Path, server: BatchServer, interface: str) -> None:
    server.refused_looks.extend([429, 500, 503, 0, 429])
    server.torn = 2
    server.processing = 2 if interface == "azure_openai" else 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("coeval.batch.backends.OpenAIBatches.file_interval", 0.01)
        assert coeval("run", "--config", written(tmp_path, server, interface)) == 0
    is_whole(tmp_path, server)


def test_an_answer_that_comes_again_as_an_error_is_an_answer(tmp_path: Path, server: BatchServer) -> None:
    server.repeats = True
    assert coeval("run", "--config", written(tmp_path, server)) == 0
    is_whole(tmp_path, server)


def test_lost_results_are_said_and_asked_again(
    tmp_path: Path, server: BatchServer, capsys: pytest.CaptureFixture[str]
) -> None:
    server.refused_looks.extend([0, 0, 404])  # two looks, then the file
    path = config(tmp_path, [batched(server)])
    assert coeval("run", "--config", path) == 0
    assert "the answers of batch job batch_0 are lost: " in capsys.readouterr().err
    assert [len(job.requests) for job in server.jobs] == [4, 4, 4, 4]


@pytest.mark.parametrize("interface", ["openai", "anthropic"])
def test_a_job_cancelled_by_hand_keeps_what_it_has(
    tmp_path: Path, server: BatchServer, interface: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path, good = written(tmp_path, server, interface), server.say

    def say(prompt: str, body: dict[str, Any]) -> str | int | None:
        server.end = "cancelled" if len(server.jobs) == 2 else "completed"
        return (
            None
            if len(server.jobs) == 2 and body in (server.jobs[1].requests[0][1], server.jobs[1].requests[1][1])
            else good(prompt, body)
        )

    server.say = say
    assert coeval("run", "--config", path) == 1
    assert "2 answered, 2 failed" in capsys.readouterr().out
    assert meta_of(run_of(tmp_path))["quota_used"] == {"ant": 8}  # four items, two answers, two judgements
    assert coeval("run", "--config", path, "--continue") == 0
    is_whole_but_failures(tmp_path, server)


def is_whole_but_failures(folder: Path, server: BatchServer) -> None:
    run = run_of(folder)
    good = [record["id"] for record in records(run, "evaluation") if record["scores"]]
    assert len(good) == len(set(good)) == 4
    assert sum(len(job.requests) for job in server.jobs) == 14
    assert meta_of(run)["quota_used"] == {"ant": 12}


@pytest.mark.parametrize("interface", INTERFACES[:3])
def test_a_revoked_key_leaves_the_job_noted(
    tmp_path: Path,
    server: BatchServer,
    interface: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path, run = written(tmp_path, server, interface), run_of(tmp_path)
    killed_at(monkeypatch, run, "coeval.batch.jobs.wait_for", 1, ["run", "--config", path])
    noted, server.key = read_json(run.pending), "another-key-of-ours"
    capsys.readouterr()
    assert coeval("status", "--run", run.folder, "--fetch-batches") == 1
    assert "does not accept this account" in capsys.readouterr().out
    assert coeval("run", "--config", path, "--continue") == 1
    assert f"batch job {server.jobs[0].id} stays noted for --continue" in capsys.readouterr().err
    assert read_json(run.pending) == noted
    server.key = ""
    assert coeval("status", "--run", run.folder, "--fetch-batches") == 0
    assert coeval("run", "--config", path, "--continue") == 0
    is_whole(tmp_path, server)


def test_answers_without_keys_go_to_no_question(
    tmp_path: Path, server: BatchServer, capsys: pytest.CaptureFixture[str]
) -> None:
    server.keyless = True
    assert coeval("run", "--config", written(tmp_path, server, "gemini")) == 1
    assert "gave the answers without the requests' keys; ask this model call by call" in capsys.readouterr().err
    assert len(server.jobs) == 1
    assert ids(run_of(tmp_path), "data_generation") == []


@pytest.mark.parametrize("interface", INTERFACES)
def test_a_job_turned_down_while_nobody_looked_is_asked_again(
    tmp_path: Path,
    server: BatchServer,
    interface: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path, run = written(tmp_path, server, interface), run_of(tmp_path)
    killed_at(monkeypatch, run, "coeval.batch.jobs.wait_for", 1, ["run", "--config", path])
    server.end = "expired" if interface == "anthropic" else "failed"
    server.say, good = lambda *_: None, server.say
    monkeypatch.setenv("AZURE_OPENAI_API_KEY", KEY)
    for _ in range(2):
        assert coeval("status", "--run", run.folder, "--fetch-batches") == 0
    assert not run.pending.exists()
    assert meta_of(run)["quota_used"].get("ant", 0) == 0
    assert meta_of(run)["spent_usd"] == 0
    server.end, server.say = "completed", good
    assert coeval("run", "--config", path, "--continue") == 0
    is_whole(tmp_path, server, again=4)
