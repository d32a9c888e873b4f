"""From a YAML file to a checked configuration, or to everything that is wrong with it at once.

config = load_config("experiment.yaml", keys=load_keys(None, os.environ))
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from coeval.config.auto import resolve_auto
from coeval.config.checks import (
    check_folder,
    check_items,
    check_keys,
    check_packages,
    check_reachable,
    check_together,
    find_source,
)
from coeval.config.experiment import read_experiment
from coeval.config.keys import Keys
from coeval.config.models import read_models
from coeval.config.paths import expanded
from coeval.config.problems import ConfigErrors, Problems
from coeval.config.reading import Fields
from coeval.config.schema import Config, Experiment, Model
from coeval.config.tasks import read_tasks
from coeval.config.text import read_yaml
from coeval.storage.layout import Run
from coeval.storage.snapshot import entries_of, stored_config, stored_meta

__all__ = ["ConfigErrors", "load_config"]

_TOP = ("models", "tasks", "experiment")


def load_config(
    path: str | Path,
    *,
    keys: Keys,
    resume: str | None = None,
    continue_in_place: bool = False,
    fresh: bool = True,
) -> Config:
    """Read and check a configuration.

    Args:
        path: of the file. Its `storage_folder` starts at the working folder.
        keys: decide what `interface: auto` becomes, and have to have what the configuration of a run leaves out.
        resume: takes the place of `experiment.resume_from`.
        continue_in_place: the run is to go on: its folder has to hold it.
        fresh: the run is new: its folder must not hold one. False where nothing is going to be run.

    Raises:
        ConfigErrors: with one line for each mistake.
    """
    path = expanded(path)
    raw, problems = read_yaml(path)
    top = Fields(raw, (), problems, _TOP)
    if not top.is_mapping:
        problems.raise_any()
    run = read_experiment(top.values.get("experiment"), problems, resume or _resumed(top, continue_in_place))
    run = replace(run, resume_folder=find_source(run, problems))
    entries, are_own = _task_entries(top, run, continue_in_place)
    models = read_models(top.entries("models"), problems)
    _check_not_empty(models, entries, problems)
    names = {model.name for model in models} if models and all(model.name for model in models) else None
    tasks = read_tasks(entries, problems, names if are_own else None)
    chosen = {**_chosen(stored_config(Run(run.folder)) if continue_in_place else {}), **_chosen(top.values)}
    models, notes = resolve_auto(models, chosen, run, keys, problems)
    check_together(models, tasks, run, problems)
    check_reachable(run, problems)
    if fresh or continue_in_place:
        check_packages(models, tasks, problems)
        check_items(tasks, run, problems)
        check_keys(models, keys, problems)
        check_folder(run, problems, continue_in_place=continue_in_place)
    problems.raise_any()
    if run.resume_from:
        top.values["experiment"] = {**top.values["experiment"], "resume_from": run.resume_from}
    return Config(models, tasks, run, {**top.values, "tasks": entries}, path, notes)


def _resumed(top: Fields, continue_in_place: bool) -> str | None:
    """What a run that goes on was resumed from, where `--resume` said so at its start and the file does not."""
    experiment = top.values.get("experiment")
    if not continue_in_place or not isinstance(experiment, Mapping) or experiment.get("resume_from"):
        return None
    folder, name = experiment.get("storage_folder"), experiment.get("id")
    if not isinstance(folder, str) or not isinstance(name, str):
        return None
    before = (stored_meta(Run(expanded(folder) / name)) or {}).get("resume_from")
    return before if isinstance(before, str) else None


def _task_entries(top: Fields, run: Experiment, continue_in_place: bool) -> tuple[list[Any], bool]:
    """The tasks of the file, else those of the run that is continued or resumed; and whether they are the file's."""
    if top.has("tasks"):
        return top.entries("tasks"), True
    for folder in filter(None, (run.folder if continue_in_place else None, run.resume_folder)):
        tasks = stored_config(Run(folder)).get("tasks")
        if isinstance(tasks, list) and tasks:
            return tasks, False
    return [], True


def _chosen(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Model -> what its `interface: auto` became before."""
    return {str(entry.get("name")): entry["resolved"] for entry in entries_of(raw, "models") if entry.get("resolved")}


def _check_not_empty(models: tuple[Model, ...], tasks: list[Any], problems: Problems) -> None:
    if not models and not problems.at("models"):
        problems.add(("models",), "there are none; add a list of at least one", "V-01")
    # The run that is resumed may have them, once it is found.
    if not tasks and not problems.at("tasks") and not problems.at("experiment", "resume_from"):
        problems.add(("tasks",), "there are none; add a list of at least one", "V-01")
