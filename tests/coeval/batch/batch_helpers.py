"""Experiments in batch jobs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.coeval.batch.servers import BatchServer
from tests.coeval.helpers import write_config

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
