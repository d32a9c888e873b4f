"""Comparisons of pairs in batch jobs, beside the other kinds of questions that `test_runs` has."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from coeval.storage.records import read_json, read_records
from tests.coeval.batch.batch_helpers import INTERFACES, batched, config, killed_at
from tests.coeval.batch.servers import BatchServer
from tests.coeval.helpers import STATIC_TASK, coeval, meta_of, run_of


@pytest.fixture
def server() -> Iterator[BatchServer]:
    with BatchServer() as server:
        yield server


def written(folder: Path, server: BatchServer, interface: str = "openai", **pairwise: Any) -> Path:
    """Three students, one of which asks and judges too; every phase in batches."""
    models = [
        batched(server, interface, name="ant"),
        batched(server, interface, name="bee", roles=["student"]),
        batched(server, interface, name="cat", roles=["student"]),
    ]
    task = {**STATIC_TASK, "evaluation_mode": "pairwise", "label_attributes": ["tone"], "pairwise": pairwise}
    return config(folder, models, [task])


def verdicts(folder: Path) -> list[dict[str, Any]]:
    return [record for path in run_of(folder).record_files("pairwise") for record in read_records(path)]


@pytest.mark.parametrize("interface", INTERFACES)
def test_all_pairs_are_one_job(tmp_path: Path, server: BatchServer, interface: str) -> None:
    assert coeval("run", "--config", written(tmp_path, server, interface)) == 0
    found = verdicts(tmp_path)
    assert len(found) == len({record["id"] for record in found}) == 4 * 3
    assert all(len(record["verdicts"]) == 2 for record in found)
    assert len(server.jobs[-1].requests) == 2 * 4 * 3
    assert not run_of(tmp_path).pending.exists()


def test_an_active_schedule_is_a_job_a_round_and_said_to_take_long(
    tmp_path: Path, server: BatchServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written(tmp_path, server, schedule="active", pairs=6)
    command = ["run", "--config", str(path)]
    killed_at(monkeypatch, run_of(tmp_path), "coeval.batch.jobs.wait_for", 6, command)  # in the second round
    assert [job["phase"] for job in read_json(run_of(tmp_path).pending).values()] == ["evaluation"]
    assert "task 'mail': judge ant answers in rounds, each a batch job of up to a day" in capsys.readouterr().err
    assert coeval(*command, "--continue") == 0
    found = verdicts(tmp_path)
    assert len(found) == len({record["id"] for record in found}) == 6
    assert [len(job.requests) for job in server.jobs[4:]] == [6, 6]
    assert meta_of(run_of(tmp_path))["quota_used"]["ant"] == 4 + 4 + 12
