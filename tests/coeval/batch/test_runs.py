"""Whole runs whose questions go in batch jobs, at servers of all four protocols."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from coeval.storage.jsonl import read_json
from tests.coeval.batch.servers import BatchServer
from tests.coeval.helpers import STATIC_TASK, coeval, ids, meta_of, records, run_of, write_config

KINDS = ("data_generation", "response_collection", "evaluation")
PHASES = dict.fromkeys(KINDS, True)
INTERFACES = ("openai", "anthropic", "gemini", "azure_openai")


def batched(server: BatchServer, interface: str = "openai", name: str = "ant", **more: Any) -> dict[str, Any]:
    """A model in all roles behind the server."""
    bases = {"anthropic": "", "gemini": "/v1beta", "azure_openai": ""}
    address = f"{server.url}{bases.get(interface, '/v1')}"
    where = {"azure_endpoint": address} if interface == "azure_openai" else {"base_url": address}
    parameters = {"model": name, "max_tokens": 50, **where, **more.pop("parameters", {})}
    roles = more.pop("roles", ["teacher", "student", "judge"])
    key = {"access_key": "a-key-of-ours-that-is-long"}
    return {"name": name, "interface": interface, "roles": roles, "parameters": parameters, **key, **more}


def config(folder: Path, models: list[Any], tasks: list[Any] | None = None, **experiment: Any) -> Path:
    settings = {"batch": dict.fromkeys(INTERFACES, PHASES), "batch_poll_seconds": 0.01, **experiment}
    return write_config(folder, models, tasks, **settings)


@pytest.fixture
def server() -> Any:
    with BatchServer() as server:
        yield server


@pytest.mark.parametrize("interface", INTERFACES)
def test_a_run_in_batches_is_complete(tmp_path: Path, server: BatchServer, interface: str) -> None:
    assert coeval("run", "--config", config(tmp_path, [batched(server, interface)])) == 0
    run = run_of(tmp_path)
    assert [len(ids(run, kind)) for kind in KINDS] == [4, 4, 4]
    assert all(record["scores"].keys() == {"clarity", "tone"} for record in records(run, "evaluation"))
    assert [len(job.requests) for job in server.jobs] == [4, 4, 4]
    assert not run.pending.exists()
    assert not (run.folder / "batches").exists()
    assert meta_of(run)["quota_used"] == {"ant": 12}
    assert meta_of(run)["status"] == "completed"
