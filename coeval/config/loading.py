"""From a YAML file to a checked configuration, or to everything that is wrong with it at once.

config = load_config("experiment.yaml", keys=load_keys(None, os.environ))
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import Field

from coeval.config.auto import resolve_auto
from coeval.config.checks import (
    check_folder,
    check_items,
    check_keys,
    check_packages,
    check_reachable,
    check_states,
    check_together,
    find_source,
)
from coeval.config.keys import Keys
from coeval.config.models import read_experiment, read_models
from coeval.config.reading import Entry, expanded, read, read_yaml
from coeval.config.tasks import read_tasks
from coeval.schema import Config, Experiment
from coeval.storage.run import Run, entries_of, stored_config, stored_meta


class _File(Entry):
    models: list[Any] = Field(default_factory=list)
    tasks: list[Any] | None = None
    experiment: Any = None


def load_config(
    path: str | Path,
    *,
    keys: Keys,
    resume: str | None = None,
    continue_in_place: bool = False,
    fresh: bool = True,
    in_use: bool = True,
) -> Config:
    """Read and check a configuration, whose `storage_folder` starts at the working folder.

    The keys decide what `interface: auto` becomes, and must include what the configuration of a run leaves out;
    `resume` takes the place of `experiment.resume_from`. The run's folder has to hold it with `continue_in_place`, and
    must not where it is `fresh`, which is False where nothing is going to be run; a folder that holds a run is no
    mistake where it is not `in_use`, as nothing is written. Raise ConfigErrors with one line for each mistake.
    """
    typed_path, path = path, expanded(path)
    raw, problems = read_yaml(path)
    file = read(_File, raw, (), problems)
    if not isinstance(raw, Mapping):
        problems.raise_any()
    models = read_models(file.models, problems)
    names = {model.name for model in models} if models and all(model.name for model in models) else None
    resume = resume or (_source_before(file.experiment) if continue_in_place else None)
    run = read_experiment(file.experiment, problems, resume, names)
    run = replace(run, resume_folder=find_source(run, problems))
    entries, are_own = _task_entries([] if problems.at("tasks") else file.tasks, run, continue_in_place)
    for part, values in (("models", models), ("tasks", entries)):
        # The run that is resumed may have tasks, once it is found.
        if not values and not problems.at(part) and not (part == "tasks" and problems.at("experiment", "resume_from")):
            problems.add((part,), "there are none; add a list of at least one", "V-01")
    tasks = read_tasks(entries, problems, names if are_own else None)
    choices = {**_choices(stored_config(Run(run.folder)) if continue_in_place else {}), **_choices(raw)}
    models, notes = resolve_auto(models, choices, run, keys, problems)
    raw = {**raw, "tasks": entries}
    if run.resume_from and isinstance(file.experiment, Mapping):
        raw["experiment"] = {**file.experiment, "resume_from": run.resume_from}
    config = Config(models, tasks, run, raw, path, notes)
    check_together(config, problems)
    check_reachable(run, problems)
    if fresh or continue_in_place:
        check_packages(models, tasks, problems)
        check_items(tasks, run, problems)
        check_keys(models, keys, problems)
        check_states(run, problems, continue_in_place=continue_in_place)
        if in_use or continue_in_place:
            check_folder(run, typed_path, problems, continue_in_place=continue_in_place)
    problems.raise_any()
    return config


def _source_before(experiment: Any) -> str | None:
    """Return what a run was resumed from, where `--resume` named it at its start and the file does not."""
    if not isinstance(experiment, Mapping) or experiment.get("resume_from"):
        return None
    folder, name = experiment.get("storage_folder"), experiment.get("id")
    if not isinstance(folder, str) or not isinstance(name, str):
        return None
    before = (stored_meta(Run(expanded(folder) / name)) or {}).get("resume_from")
    return before if isinstance(before, str) else None


def _task_entries(own: list[Any] | None, run: Experiment, continue_in_place: bool) -> tuple[list[Any], bool]:
    """Return the tasks of the file, else those of the run that is continued or resumed; and whether they are own."""
    if own is not None:
        return own, True
    for folder in filter(None, (run.folder if continue_in_place else None, run.resume_folder)):
        tasks = stored_config(Run(folder)).get("tasks")
        if isinstance(tasks, list) and tasks:
            return tasks, False
    return [], True


def _choices(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Return what each model's `interface: auto` became before."""
    return {str(entry.get("name")): entry["resolved"] for entry in entries_of(raw, "models") if entry.get("resolved")}
