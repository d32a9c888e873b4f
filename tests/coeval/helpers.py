"""Small experiments, run as a user would, and models that answer as a test says."""

from __future__ import annotations

import asyncio
import json
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from coeval.calling.calls import Call, CallError, Reply
from coeval.cli import dispatch, with_exit_code
from coeval.mock.server import MockServer
from coeval.schema import Config, Experiment, Model, Sampling, Task
from coeval.storage.records import read_records
from coeval.storage.run import Run
from p2l.common.errors import P2LError

STATIC_TASK: Mapping[str, Any] = {
    "name": "mail",
    "description": "Write a mail.",
    "output_description": "A mail of three sentences.",
    "target_attributes": {"tone": ["warm", "cold"], "length": ["short", "long"]},
    "nuanced_attributes": {"noise": ["none", "typos"]},
    "sampling": {"target": "all", "nuance": [1], "total": 4},
    "rubric": {"clarity": "Is it clear?", "tone": "Is the tone right?"},
}


def model(
    name: str, server: MockServer | None = None, *, roles: Iterable[str] = ("student",), **parameters: Any
) -> Any:
    """A mock model, behind a server if there is one."""
    where = {"interface": "mock"} if server is None else {"interface": "openai", "access_key": "sk-not-a-real-key"}
    address = {} if server is None else {"base_url": server.url}
    return {"name": name, **where, "roles": list(roles), "parameters": {"model": name, **address, **parameters}}


def write_config(
    folder: Path, models: list[Any], tasks: list[Any] | None = None, *, name: str = "run.yaml", **experiment: Any
) -> Path:
    """A configuration file; the run is `{folder}/runs/{id}`, nothing is cached or probed unless asked for."""
    tasks = [dict(STATIC_TASK)] if tasks is None else tasks
    settings = {"id": "one", "storage_folder": str(folder / "runs"), "cache": False, "probe_mode": "disable"}
    path = folder / name
    path.write_text(yaml.safe_dump({"models": models, "tasks": tasks, "experiment": {**settings, **experiment}}))
    return path


def coeval(*argv: str | Path) -> int:
    """Run a command of `coeval` as the console script does; its exit code."""
    try:
        return with_exit_code(dispatch, [str(word) for word in argv]) or 0
    except P2LError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


def run_of(folder: Path, name: str = "one") -> Run:
    """The run that `write_config` names."""
    return Run(folder / "runs" / name)


def records(run: Run, kind: str) -> list[dict[str, Any]]:
    """All records of one kind, in the order of files and lines."""
    return [record for path in run.record_files(kind) for record in read_records(path)]


def ids(run: Run, kind: str) -> list[str]:
    """Their ids, sorted."""
    return sorted(record["id"] for record in records(run, kind))


def meta_of(run: Run) -> dict[str, Any]:
    """What `meta.json` holds."""
    found: dict[str, Any] = json.loads(run.meta.read_text())
    return found


def calls(server: MockServer) -> dict[str, int]:
    """Answers so far by `model prompt`; the count starts anew."""
    found = {f"{name} {prompt}": count for (name, prompt), count in server.calls.items()}
    server.calls.clear()
    return found


def scripted_config(folder: Path, names: str = "ant", **experiment: Any) -> Config:
    """A configuration of models with these letters, all in all roles, with one task."""
    models = tuple(Model(name, "mock", ("teacher", "student", "judge")) for name in names.split())
    task = Task(
        "mail",
        "Write a mail.",
        "A mail.",
        {"tone": ["warm", "cold"]},
        Sampling((1, 1), (0, 0), 3),
        {"clarity": "Is it clear?", "tone": "Is the tone right?"},
    )
    return Config(models, (task,), Experiment("one", folder, **experiment))


@dataclass
class Scripted:
    """Answers by a function of the call: text, or a CallError to raise."""

    answer: Callable[[Call], str | CallError]
    asked: list[Call] = field(default_factory=list)
    most_in_flight: int = 0
    in_flight: int = 0

    async def ask(self, call: Call) -> Reply:
        """See `coeval.calling.calls.Asking`."""
        self.asked.append(call)
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        await asyncio.sleep(0)
        self.in_flight -= 1
        found = self.answer(call)
        if isinstance(found, CallError):
            raise found
        return Reply(found, len(call.prompt) // 4, len(found) // 4, 0.001, 0.0)

    def count(self) -> Counter[str]:
        """Calls by phase."""
        return Counter(str(call.phase) for call in self.asked)
