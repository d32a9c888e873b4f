"""Experiments in batch jobs."""

from __future__ import annotations

import pkgutil
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from coeval.storage.run import Run
from tests.coeval.batch.servers import BatchServer
from tests.coeval.helpers import coeval, write_config

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


class KilledError(BaseException):
    """Ends a process where it stands."""


def killed_at(
    patch: pytest.MonkeyPatch, run: Run, target: str, call: int, command: Sequence[Any], spoil: Any = None
) -> None:
    """Run a command that is killed before a function's so-and-so-many-th call; the disk is as it was at that moment.

    `spoil` hears the arguments of that call before.
    """
    owner, _, name = target.rpartition(".")
    found = pkgutil.resolve_name(owner)
    original, calls, aside = getattr(found, name), 0, run.folder.with_name("aside")

    def dies(*args: Any, **keys: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == call:
            if spoil is not None:
                spoil(*args)
            shutil.rmtree(aside, ignore_errors=True)
            shutil.copytree(run.folder, aside)
        if calls >= call:
            raise KilledError
        return original(*args, **keys)

    with patch.context() as inside:
        inside.setattr(found, name, dies)
        with pytest.raises(KilledError):
            coeval(*command)
    shutil.rmtree(run.folder)
    aside.rename(run.folder)
