"""Phases 1 and 2 on their own: what teachers propose, as a configuration in which nothing is left to them."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from coeval.config.keys import Keys
from coeval.config.redact import REDACTED, snapshot
from coeval.config.schema import PHASES, Config, Mode, Phase
from coeval.errors import RunError
from coeval.phases.attributes import attributes_of, map_attributes
from coeval.phases.modes import extended_tasks
from coeval.phases.proposals import Halt
from coeval.phases.rubric import map_rubrics, rubric_of
from coeval.phases.stage import Stage
from coeval.storage.copying import copy_run
from coeval.storage.layout import Run
from coeval.storage.log import Log
from coeval.storage.meta import create_meta
from coeval.storage.store import Store

__all__ = ["generate", "static_text"]

_WORDS = {"target_attributes": "target", "nuanced_attributes": "nuanced"}


async def generate(config: Config, keys: Keys, log: Log) -> tuple[dict[str, Any], list[str]]:
    """The configuration with static attributes and rubrics, and a sentence on each change; nothing of the run is kept.

    Raises:
        P2LError: no teacher could be asked, or none proposed anything of use.
    """
    with tempfile.TemporaryDirectory(prefix="coeval-") as folder:
        run = Run(Path(folder) / config.experiment.id)
        run.folder.mkdir()
        modes: dict[Phase, Mode] = dict.fromkeys(PHASES, "Extend")
        source = config.experiment.resume_folder
        if source is not None:
            only_rubrics: dict[Phase, Mode] = {**dict.fromkeys(PHASES, "New"), PHASES[1]: "Extend"}
            copy_run(Run(source), run, [task.name for task in config.tasks], only_rubrics, extended_tasks(config))
        await _ask(config, keys, run, modes, log)
        return _made_static(config, run)


async def _ask(config: Config, keys: Keys, run: Run, modes: Mapping[Phase, Mode], log: Log) -> None:
    from coeval.calling.caller import make_caller

    meta = create_meta(run, config.experiment.id)
    uncached = replace(config, experiment=replace(config.experiment, storage_folder=run.folder.parent, cache=False))
    with Store(run) as store:
        async with make_caller(uncached, keys, run, meta) as caller:
            stage = Stage(uncached, run, store, caller, log, modes)
            try:
                await map_attributes(stage)
                await map_rubrics(stage)
            except Halt as halt:
                raise RunError(f"{halt}; raise the quota or budget_usd") from None
            except RunError as error:  # the folder it points at is about to go
                raise RunError(str(error).removesuffix(f"; see {run.errors}") + "; each said why above") from None


def _made_static(config: Config, run: Run) -> tuple[dict[str, Any], list[str]]:
    raw, changes = snapshot(config), list[str]()
    if REDACTED in str(raw):
        changes.append(
            "keys were left out: they come from the key file or the environment, or have to be written again"
        )
    for entry, task in zip(raw["tasks"], config.tasks, strict=True):
        for key, kind in _WORDS.items():
            if isinstance(entry.get(key), str):
                found = attributes_of(run, task.name, "target" if kind == "target" else "nuanced") or {}
                changes.append(f"{task.name}.{key}: {entry[key]} became {len(found)} attributes: {', '.join(found)}")
                entry[key] = found
                if entry.pop(f"{key}_seed", None) is not None:
                    changes.append(f"{task.name}.{key}_seed: removed; its values are among the attributes")
        if isinstance(task.rubric, str):
            rubric = rubric_of(run, task.name) or {}
            changes.append(f"{task.name}.rubric: {task.rubric} became {len(rubric)} factors: {', '.join(rubric)}")
            entry["rubric"] = rubric
    return raw, changes


def static_text(raw: Mapping[str, Any], changes: list[str], source: str) -> str:
    """The configuration as YAML below a comment that lists the changes."""
    import yaml

    said = changes or ["nothing was left to teachers; nothing has changed"]
    head = [f"# {source} with what its teachers proposed.", *(f"# - {' '.join(change.split())}" for change in said)]
    body = yaml.safe_dump(dict(raw), sort_keys=False, allow_unicode=True, width=120)
    return "\n".join([*head, "", body])
