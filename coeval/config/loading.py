"""From a YAML file to a checked configuration, or to everything that is wrong with it at once.

config = load_config("experiment.yaml", keys=load_keys(None, os.environ))
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from coeval.config.auto import resolve_auto
from coeval.config.keys import Keys
from coeval.config.models import check_judges, read_experiment, read_models
from coeval.config.reading import Fields, NoKeyError, Problems, expanded, is_folder, is_there, read_yaml
from coeval.config.tasks import check_expected, read_tasks
from coeval.interfaces import VIRTUAL
from coeval.judging.metrics import missing_package
from coeval.schema import PHASES, Config, Experiment, Model, Task
from coeval.storage.run import Run, entries_of, stored_config, stored_meta
from p2l.common.cli import nearest

# The rules that hold between the parts of a configuration, and between it and what is stored already.


def check_together(models: tuple[Model, ...], tasks: tuple[Task, ...], run: Experiment, problems: Problems) -> None:
    """Rules over models, tasks and experiment together."""
    if models and not _any_is_unclear("models", len(models), "roles", problems):
        _check_roles(models, tasks, run, problems)
        _check_pairs(models, tasks, problems)
        if not any(_any_is_unclear("models", len(models), key, problems) for key in ("interface", "parameters")):
            check_judges(models, tasks, problems)
    check_expected(models, tasks, run, problems)
    _check_quota(models, run, problems)
    for number, task in enumerate(tasks):
        if task.rubric == "extend" and not run.resume_from:
            message = (
                "`extend` adds to the rubric of an earlier run: name it as experiment.resume_from, or write `auto`"
            )
            problems.add(("tasks", number, "rubric"), message, "V-09")
    _check_labels(models, tasks, problems)


def _any_is_unclear(part: str, count: int, key: str, problems: Problems) -> bool:
    """Whether a mistake leaves open what some model or task says."""
    return any(problems.at(part, n) or problems.within(part, n, key) for n in range(count))


def _check_labels(models: tuple[Model, ...], tasks: tuple[Task, ...], problems: Problems) -> None:
    number = next((number for number, model in enumerate(models) if model.interface == "label"), None)
    is_clear = tasks and not _any_is_unclear("tasks", len(tasks), "label_attributes", problems)
    if number is not None and is_clear and not any(task.label_attributes for task in tasks):
        message = "a label judge needs a task with `label_attributes`; add them, or remove this model"
        problems.add(("models", number, "interface"), message)
    if number is None and any(task.label_attributes for task in tasks):
        _check_label_name(models, problems)


def _check_label_name(models: tuple[Model, ...], problems: Problems) -> None:
    """The judge of labels that joins by itself must be the only one of its name."""
    for number, model in enumerate(models):
        if model.name == "label" and "judge" in model.roles:
            message = (
                "a judge `label` joins by itself where a task has `label_attributes`; rename this model, or write "
                "`interface: label` if it is meant"
            )
            problems.add(("models", number, "name"), message)


def _check_roles(models: tuple[Model, ...], tasks: tuple[Task, ...], run: Experiment, problems: Problems) -> None:
    labels = any(task.label_attributes for task in tasks)
    for role in ("student", "judge"):
        if not any(role in model.roles for model in models):
            other = (
                ", or add one with `interface: label`, which compares the labels" if role == "judge" and labels else ""
            )
            problems.add(("models",), f"no model is a {role}; give at least one that role{other}", "V-07")
    teachers = [model for model in models if "teacher" in model.roles]
    reason = _needs_teacher(tasks, run, virtual=any(model.is_virtual for model in teachers))
    if reason and all(model.is_virtual for model in teachers):
        problems.add(("models",), f"no model is a teacher, and {reason}; give at least one that role", "V-07")


def _needs_teacher(tasks: tuple[Task, ...], run: Experiment, *, virtual: bool) -> str:
    """Why somebody has to be asked before the students are, or nothing."""
    for task in tasks:
        words = (task.target_attributes, task.nuanced_attributes)
        if run.phases[PHASES[0]] != "Keep" and any(isinstance(word, str) for word in words):
            return f"the attributes of task {task.name} are left to teachers"
        extends = task.rubric == "extend" and PHASES[1] not in run.written_phases
        if isinstance(task.rubric, str) and (extends or run.phases[PHASES[1]] != "Keep"):
            return f"the rubric of task {task.name} is left to teachers"
    wanted = [task.name for task in tasks if task.sampling.total]
    if run.phases[PHASES[2]] != "Keep" and wanted and not virtual:
        return f"task {wanted[0]} has items to be written"
    return ""


def _check_quota(models: tuple[Model, ...], run: Experiment, problems: Problems) -> None:
    names = [model.name for model in models]
    if not all(names) or not names:
        return
    for name in run.quota:
        if name not in names:
            problems.add(("experiment", "quota", name), f"there is no model of this name{nearest(name, names)}")


def _check_pairs(models: tuple[Model, ...], tasks: tuple[Task, ...], problems: Problems) -> None:
    students = [model for model in models if "student" in model.roles]
    judges = [model for model in models if "judge" in model.roles]
    for number, task in enumerate(tasks):
        if task.evaluation_mode != "pairwise" or not students or not judges:
            continue
        where = ("tasks", number, "evaluation_mode")
        if len(students) < 2:
            problems.add(where, "`pairwise` compares students, and there is one; add another, or write `single`")
        if all(judge.interface in VIRTUAL for judge in judges):
            problems.add(where, "`pairwise` needs a judge that reads; add one that is no metric, or write `single`")


def find_source(run: Experiment, problems: Problems) -> Path | None:
    """The folder of the run that `resume_from` names: beside this one, or at that path."""
    if not run.resume_from:
        return None
    where = ("experiment", "resume_from")
    beside, path = run.storage_folder / run.resume_from, expanded(run.resume_from)
    found = beside if is_folder(beside) else path if is_folder(path) else None
    if found is None:
        if not problems.at("experiment", "storage_folder"):
            problems.add(where, f"there is no run {run.resume_from!r} at {beside} or {path}; mend the name", "V-10")
    elif run.id and found.resolve() == run.folder.resolve():
        problems.add(where, "is this run itself; use --continue to go on with it", "V-10")
        return None
    return found


def check_reachable(run: Experiment, problems: Problems) -> None:
    """Whether the run's folder can be looked at, be it there or not."""
    if any(problems.at("experiment", *key) for key in ((), ("id",), ("storage_folder",))):
        return
    try:
        run.folder.exists()
    except OSError as error:
        problems.add(("experiment", "storage_folder"), f"cannot be used: {error.strerror}; choose another folder")


def check_folder(run: Experiment, problems: Problems, *, continue_in_place: bool) -> None:
    """Whether the run's folder is as a new run, or one that goes on, needs it."""
    if any(problems.at("experiment", *key) for key in ((), ("id",), ("storage_folder",))):
        return
    where, meta = ("experiment", "id"), stored_meta(Run(run.folder))
    exists = is_there(run.folder / "meta.json")
    if exists and meta is None:
        problems.add(where, f"{run.folder / 'meta.json'} cannot be read; mend it, or choose another id", "V-14")
    elif not continue_in_place:
        if exists and (run.resume_from or run.written_phases != frozenset(PHASES)):
            ways = "use --continue to go on with it, choose another id, or write the mode of every phase"
            problems.add(where, f"{run.folder} holds a run already; {ways}", "V-11")
    elif meta is None:
        message = f"--continue: {run.folder / 'meta.json'} is not there; start without --continue"
        problems.add(where, message, "V-14")
    elif meta.get("experiment_id") != run.id:
        message = f"--continue: {run.folder} holds run {meta.get('experiment_id')!r}; use its id, or another folder"
        problems.add(where, message, "V-14")


def check_items(tasks: tuple[Task, ...], run: Experiment, problems: Problems) -> None:
    """Whether a task that nobody writes items for has some already: of this run, or of the one it starts from."""
    if problems.within("experiment") or (is_there(run.folder) and not is_folder(run.folder)):
        return
    folders = [Run(folder) for folder in (run.folder, run.resume_folder) if folder is not None]
    for number, task in enumerate(tasks):
        clear = task.name and not problems.at("tasks", number) and not problems.within("tasks", number, "sampling")
        if clear and not task.sampling.total and not any(run.datapoint_files(task.name) for run in folders):
            message = "is 0, and there are no items yet; raise it, or ingest a benchmark first (`coeval ingest --help`)"
            problems.add(("tasks", number, "sampling", "total"), message)


def check_keys(models: tuple[Model, ...], keys: Keys, problems: Problems) -> None:
    """Whether keys that a run's own configuration leaves out are somewhere else; others are looked for by probes."""
    for number, model in enumerate(models):
        if model.key_left_out and not problems.within("models", number):
            try:
                keys.account(model)
            except NoKeyError as error:
                problems.add(("models", number, "access_key"), str(error))


def check_packages(models: tuple[Model, ...], tasks: tuple[Task, ...], problems: Problems) -> None:
    """Whether the metrics that a run computes can be computed here."""
    if not any(model.interface == "metric" for model in models):
        return
    for number, task in enumerate(tasks):
        for factor, definition in () if isinstance(task.rubric, str) else task.rubric.items():
            if not isinstance(definition, Mapping) or problems.at("tasks", number, "rubric", factor):
                continue
            missing = missing_package(definition) if "metric" in definition else None
            if missing is not None:
                problems.add(("tasks", number, "rubric", factor), missing, "V-18")


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
