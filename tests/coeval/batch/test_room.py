"""Jobs whose prompts have more tokens than may wait at the provider: sent in parts, one after the other."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from coeval.storage.records import read_json
from tests.coeval.batch.batch_helpers import KINDS, batched, config, killed_at
from tests.coeval.batch.servers import BatchServer
from tests.coeval.helpers import STATIC_TASK, coeval, ids, meta_of, records, run_of

TASK = {**STATIC_TASK, "sampling": {"target": "all", "nuance": [1], "total": 8}}


@pytest.fixture
def server() -> Iterator[BatchServer]:
    with BatchServer() as server:
        server.room = 450  # two or three questions
        yield server


def is_whole(folder: Path, server: BatchServer) -> None:
    """Every record once, every question taken once, all counted once."""
    run = run_of(folder)
    for kind in KINDS:
        assert len(ids(run, kind)) == len(set(ids(run, kind))) == 8, kind
    taken = [len(job.requests) for job in server.jobs if not job.told["full"]]
    assert sum(taken) == 24
    assert meta_of(run)["quota_used"] == {"ant": 24}
    cost = sum(record["usage"]["cost_usd"] for kind in KINDS for record in records(run, kind))
    assert meta_of(run)["spent_usd"] == pytest.approx(cost)
    assert not run.pending.exists()
    assert not (run.folder / "batches").exists()


def priced(server: BatchServer, interface: str = "openai") -> dict[str, Any]:
    return batched(server, interface, parameters={"model": "gpt-4o-mini"})


@pytest.mark.parametrize("tells", [True, False])
@pytest.mark.parametrize("interface", ["openai", "azure_openai"])
def test_a_job_without_room_is_sent_in_parts(
    tmp_path: Path, server: BatchServer, interface: str, tells: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    server.tells_room = tells
    assert coeval("run", "--config", config(tmp_path, [priced(server, interface)], [TASK])) == 0
    is_whole(tmp_path, server)
    assert capsys.readouterr().err.count(" parts, one after the other") >= 2
    assert len(server.removed) == len(server.files)


def test_parts_outlive_their_process(tmp_path: Path, server: BatchServer, monkeypatch: pytest.MonkeyPatch) -> None:
    path, pending = (
        config(tmp_path, [priced(server)], [TASK], quota={"ant": {"max_calls": 24}}),
        run_of(tmp_path).pending,
    )
    for call in (1, 2, 3):
        flags = ["--continue"] if call > 1 else []
        killed_at(monkeypatch, run_of(tmp_path), "coeval.batch.jobs.settle", 1, ["run", "--config", path, *flags])
        noted = read_json(pending).values()
        assert [job["in_turn"] for job in noted] == [True] * len(noted)
        assert sum(job["n_requests"] for job in noted) == 8 - len(ids(run_of(tmp_path), "data_generation"))
    assert coeval("run", "--config", path, "--continue") == 0
    is_whole(tmp_path, server)


def test_a_part_whose_id_was_never_heard_is_waited_for_before_others_are_sent(
    tmp_path: Path, server: BatchServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, pending = config(tmp_path, [priced(server)], [TASK]), run_of(tmp_path).pending
    killed_at(monkeypatch, run_of(tmp_path), "coeval.batch.submission._submitted", 2, ["run", "--config", path])
    jobs = read_json(pending)
    (sent,) = [name for name, job in jobs.items() if job["input_file"]]
    pending.write_text(json.dumps({name: jobs[name] for name in [*sorted(set(jobs) - {sent}), sent]}))
    assert coeval("run", "--config", path, "--continue") == 0
    is_whole(tmp_path, server)


def test_a_job_that_is_not_even_made_is_sent_in_parts(tmp_path: Path, server: BatchServer) -> None:
    server.room = None
    server.refusals.append("token_limit_exceeded")
    assert coeval("run", "--config", config(tmp_path, [priced(server)], [TASK])) == 0
    assert [len(job.requests) for job in server.jobs] == [4, 4, 8, 8]


def test_a_question_alone_waits_for_room(
    tmp_path: Path, server: BatchServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("coeval.batch.jobs._MAX_WAIT_FOR_ROOM_SECONDS", 0.03)
    server.room = 1
    assert coeval("run", "--config", config(tmp_path, [priced(server)], [TASK])) == 1
    said = capsys.readouterr().err
    assert "Enqueued token limit reached.; the batch job is sent again in" in said
    assert "openai turned down batch job" in said
    assert meta_of(run_of(tmp_path))["spent_usd"] >= 0


def test_jobs_are_no_larger_than_most_accounts_take(
    tmp_path: Path, server: BatchServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("coeval.batch.backends.OpenAIBatches.most_tokens", 600)
    server.room = None
    assert coeval("run", "--config", config(tmp_path, [priced(server)], [TASK])) == 0
    assert len(server.jobs[0].requests) < 8
    assert sum(len(job.requests) for job in server.jobs) == 24
