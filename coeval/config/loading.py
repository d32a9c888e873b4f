"""From a YAML file to a checked configuration, or to everything that is wrong with it at once.

config = load_config("experiment.yaml", keys=load_keys(None, os.environ))
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from coeval.config.auto import resolve_auto
from coeval.config.checks import check_folder, check_packages, check_together, find_source, stored_meta
from coeval.config.experiment import read_experiment
from coeval.config.keys import Keys
from coeval.config.models import read_models
from coeval.config.problems import ConfigErrors, Problems, Where
from coeval.config.reading import Fields
from coeval.config.schema import Config, Experiment
from coeval.config.tasks import read_tasks

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
        keys: decide what `interface: auto` becomes; nothing else of them is checked.
        resume: takes the place of `experiment.resume_from`.
        continue_in_place: the run is to go on: its folder has to hold it.
        fresh: the run is new: its folder must not hold one. False where nothing is going to be run.

    Raises:
        ConfigErrors: with one line for each mistake.
    """
    path = Path(path).expanduser()
    raw, lines = _read(path)
    problems = Problems(str(path), lines)
    top = Fields(raw, (), problems, _TOP)
    run = read_experiment(top.values.get("experiment"), problems, resume or _resumed(top, continue_in_place))
    run = replace(run, resume_folder=find_source(run, problems))
    entries, are_own = _task_entries(top, run, continue_in_place)
    _check_not_empty(top, entries, problems)
    models = read_models(top.entries("models"), problems)
    tasks = read_tasks(entries, problems, {model.name for model in models} if are_own else None)
    chosen = {**_chosen(_stored(run.folder) if continue_in_place else {}), **_chosen(top.values)}
    models, notes = resolve_auto(models, chosen, run, keys, problems)
    check_together(models, tasks, run, problems)
    if fresh or continue_in_place:
        check_packages(models, tasks, problems)
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
    before = (stored_meta(Path(folder).expanduser() / name) or {}).get("resume_from")
    return before if isinstance(before, str) else None


def _task_entries(top: Fields, run: Experiment, continue_in_place: bool) -> tuple[list[Any], bool]:
    """The tasks of the file, else those of the run that is continued or resumed; and whether they are the file's."""
    if top.has("tasks"):
        return top.entries("tasks"), True
    for folder in filter(None, (run.folder if continue_in_place else None, run.resume_folder)):
        tasks = _stored(folder).get("tasks")
        if isinstance(tasks, list) and tasks:
            return tasks, False
    return [], True


def _stored(folder: Path) -> dict[str, Any]:
    """The configuration that a run keeps, or nothing."""
    try:
        found = yaml.safe_load((folder / "config.yaml").read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError, UnicodeDecodeError):
        return {}
    return dict(found) if isinstance(found, dict) else {}


def _chosen(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Model -> what its `interface: auto` became before."""
    models = raw.get("models")
    entries = [entry for entry in models if isinstance(entry, Mapping)] if isinstance(models, list) else []
    return {str(entry.get("name")): entry["resolved"] for entry in entries if entry.get("resolved")}


def _check_not_empty(top: Fields, tasks: list[Any], problems: Problems) -> None:
    if not top.is_mapping:
        return
    if not top.entries("models"):
        problems.add(("models",), "there are none; add a list of at least one", "V-01")
    if not tasks:
        problems.add(("tasks",), "there are none; add a list of at least one", "V-01")


def _read(path: Path) -> tuple[Any, dict[Where, int]]:
    """What the file says, and the lines it says it on."""
    try:
        text = path.read_text(encoding="utf-8")
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        found = [*_lines(node, ())] if node is not None else []
        raw = yaml.safe_load(text)
    except FileNotFoundError:
        raise ConfigErrors([f"{path}: there is no such file; mend --config"]) from None
    except OSError as error:
        raise ConfigErrors([f"{path}: cannot be read: {error.strerror}"]) from None
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise ConfigErrors([f"{path}:{line}: is no YAML: {error.problem or error.context}; mend this line"]) from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        reason = str(error).splitlines()[0]
        raise ConfigErrors([f"{path}: is no YAML: {reason}"]) from None
    lines, twice = dict[Where, int](), list[str]()
    for where, line, repeated in found:
        lines.setdefault(where, line)
        if repeated:
            twice.append(f"{path}:{line}: {'.'.join(map(str, where))}: is written twice; remove one of the two")
    if twice:
        raise ConfigErrors(twice)
    return raw, lines


def _lines(node: yaml.Node, where: Where, above: tuple[yaml.Node, ...] = ()) -> Iterator[tuple[Where, int, bool]]:
    """Where each value is, and whether its key was there before.

    Raises:
        ValueError: an anchor holds itself.
    """
    if any(node is other for other in above):
        raise ValueError(f"line {node.start_mark.line + 1} refers to itself")
    above = (*above, node)
    if isinstance(node, yaml.SequenceNode):
        for number, inner in enumerate(node.value):
            yield (*where, number), inner.start_mark.line + 1, False
            yield from _lines(inner, (*where, number), above)
    elif isinstance(node, yaml.MappingNode):
        seen = set[str]()
        for key, inner in node.value:
            name = str(key.value)
            yield (*where, name), key.start_mark.line + 1, name in seen
            seen.add(name)
            yield from _lines(inner, (*where, name), above)
