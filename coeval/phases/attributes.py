"""Phase 1: in which attributes the answers of a task differ (target), and in which its inputs do (nuanced)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from coeval.config.schema import Attributes, Phase, Task
from coeval.parsing import read_attributes
from coeval.phases.driving import together
from coeval.phases.kept import attributes_apart, warn_of_kept
from coeval.phases.proposals import ask_teachers
from coeval.phases.stage import Outcome, Stage
from coeval.storage.claims import claimed_work
from coeval.storage.jsonl import read_json, write_json
from coeval.storage.layout import AttributeKind, Run

__all__ = ["attributes_of", "map_attributes", "union"]

PHASE: Phase = "attribute_mapping"
_KINDS: Mapping[AttributeKind, str] = {"target": "map_target_attrs", "nuanced": "map_nuanced_attrs"}


async def map_attributes(stage: Stage) -> Outcome:
    """Make what is missing of the maps of all tasks.

    Raises:
        RunError: no teacher gave anything of use for a task.
        Halt: limits are used up before a map is there.
    """
    outcome = Outcome()
    maps = [(task, kind) for task in stage.config.tasks for kind in _KINDS]
    await together(_map(stage, task, kind, outcome) for task, kind in maps)
    return outcome


async def _map(stage: Stage, task: Task, kind: AttributeKind, outcome: Outcome) -> None:
    wanted = task.target_attributes if kind == "target" else task.nuanced_attributes
    seed = task.target_attributes_seed if kind == "target" else task.nuanced_attributes_seed
    async with claimed_work(stage.run, PHASE, f"{task.name}.{kind}"):
        stored = attributes_of(stage.run, task.name, kind)
        keep = stage.modes[PHASE] != "New" and stored is not None
        if isinstance(wanted, str) and keep:
            return
        if isinstance(wanted, str):
            values = {"seed": json.dumps(seed, ensure_ascii=False, default=list)}
            proposed = await ask_teachers(stage, PHASE, task, _KINDS[kind], read_attributes, outcome, **values)
            found = union([seed, *proposed])
        else:  # what the configuration says now, and what it said before
            found = union([stored or {}, wanted] if keep else [wanted])
            if keep:
                warn_of_kept(stage, PHASE, task.name, attributes_apart(stored or {}, wanted), "data_generation")
        if found != stored:
            write_json(stage.run.attributes(task.name, kind), found)


def union(maps: Iterable[Attributes]) -> dict[str, list[Any]]:
    """All attributes with all values, each once, in the order in which they come."""
    found: dict[str, list[Any]] = {}
    for one in maps:
        for name, values in one.items():
            known = found.setdefault(name, [])
            known.extend(value for value in _once(values) if value not in known)
    return found


def _once(values: Sequence[Any]) -> list[Any]:
    seen: list[Any] = []
    for value in values:
        if value not in seen:
            seen.append(value)
    return seen


def attributes_of(run: Run, task: str, kind: AttributeKind) -> dict[str, list[Any]] | None:
    """The stored map of a task; None where there is none."""
    path = run.find_attributes(task, kind)
    value = None if path is None else read_json(path)
    if not isinstance(value, dict):
        return None
    return {name: values if isinstance(values, list) else [values] for name, values in value.items()}
