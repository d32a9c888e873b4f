"""Rules that hold between the parts of a configuration, and between it and what is stored already."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from coeval.config.keys import Keys
from coeval.config.reading import NoKeyError, Problems, expanded, is_folder, is_there
from coeval.documents import files_of
from coeval.interfaces import VIRTUAL, tells_logprobs
from coeval.judging.metrics import missing_package
from coeval.schema import PHASES, Config, Experiment, Model, Rubric, Task
from coeval.storage.run import Run, stored_meta


def check_together(config: Config, problems: Problems) -> None:
    """Check the rules over models, tasks and the experiment together."""
    if config.models and not problems.any_within("models", "roles"):
        has_labels = any(task.label_attributes for task in config.tasks)
        if not config.with_role("student"):
            problems.add(("models",), "no model is a student; give at least one that role", "V-07")
        if not config.with_role("judge"):
            other = ", or add one with `interface: label`, which compares the labels" if has_labels else ""
            problems.add(("models",), f"no model is a judge; give at least one that role{other}", "V-07")
        teachers = config.with_role("teacher")
        if all(model.is_virtual for model in teachers) and not problems.within("experiment", "phases"):
            reason = _need_of_teachers(config, has_virtual=bool(teachers))
            if reason:
                problems.add(("models",), f"no model is a teacher, and {reason}; give at least one that role", "V-07")
        _check_pairs(config, problems)
        if config.with_role("judge") and not problems.any_within("models", "interface", "parameters"):
            _check_metrics(config, problems)
    _check_expected_scores(config, problems)
    for number, task in enumerate(config.tasks):
        if task.rubric == "extend" and not config.experiment.resume_from:
            message = (
                "`extend` adds to the rubric of an earlier run: name it as experiment.resume_from, or write `auto`"
            )
            problems.add(("tasks", number, "rubric"), message, "V-09")
    _check_label_judge(config, problems)


def _need_of_teachers(config: Config, *, has_virtual: bool) -> str:
    """Return why somebody has to be asked before the students are, or nothing."""
    run = config.experiment
    attributes_mode, rubric_mode, items_mode = (run.phases[phase] for phase in PHASES[:3])
    for task in config.tasks:
        words = (task.target_attributes, task.nuanced_attributes)
        if attributes_mode != "Keep" and any(isinstance(word, str) for word in words):
            return f"the attributes of task {task.name} are left to teachers"
        extends = task.rubric == "extend" and PHASES[1] not in run.written_phases
        if isinstance(task.rubric, str) and (extends or rubric_mode != "Keep"):
            return f"the rubric of task {task.name} is left to teachers"
    with_items = [task.name for task in config.tasks if task.sampling.total]
    if items_mode != "Keep" and with_items and not has_virtual:
        return f"task {with_items[0]} has items to be written"
    return ""


def _check_pairs(config: Config, problems: Problems) -> None:
    students, judges = config.with_role("student"), config.with_role("judge")
    for number, task in enumerate(config.tasks):
        if task.evaluation_mode != "pairwise" or not students or not judges:
            continue
        where = ("tasks", number, "evaluation_mode")
        if config.experiment.stop_at is not None and task.pairwise.schedule == "active":
            message = (
                "goes with `schedule: all`, since `active` chooses pairs of all items at once; write one of the two"
            )
            problems.add(("experiment", "stop_at"), message)
        if len(students) < 2:
            problems.add(where, "`pairwise` compares students, and there is one; add another, or write `single`")
        if all(judge.is_virtual for judge in judges):
            problems.add(where, "`pairwise` needs a judge that reads; add one that is not a metric, or write `single`")


def _check_metrics(config: Config, problems: Problems) -> None:
    """Report metrics without a judge that computes them, judges without a metric, and tasks in which nobody scores.

    Rubrics that teachers write, or that come from an earlier run, are not known yet and are passed over.
    """
    judges = config.with_role("judge")
    for number, task in enumerate(config.tasks):
        where = ("tasks", number, "rubric")
        if isinstance(task.rubric, str) or not task.rubric or problems.at(*where[:2]) or problems.within(*where):
            continue
        metrics = dict(_metrics(task.rubric))
        for factor, definition in metrics.items():
            if not any(_computes(judge, definition["metric"]) for judge in judges):
                message = (
                    f"nobody computes {definition['metric']}; add a judge with `interface: metric` (a `metric` among "
                    "its parameters is the only one that it computes), or remove the factor"
                )
                problems.add((*where, factor), message, "V-18")
        needs_reader = not metrics and not task.label_attributes and task.evaluation_mode != "pairwise"
        if needs_reader and all(judge.interface in VIRTUAL for judge in judges):
            problems.add(where, "no judge reads answers, and nothing of them is computed; add a judge that is a model")
    if all(task.rubric and not isinstance(task.rubric, str) for task in config.tasks):
        _check_metric_judges(config, problems)


def _check_metric_judges(config: Config, problems: Problems) -> None:
    if not config.tasks or problems.any_within("tasks", "rubric"):
        return
    metrics = [definition["metric"] for task in config.tasks for _, definition in _metrics(task.rubric)]
    for number, model in enumerate(config.models):
        if model.interface == "metric" and not any(_computes(model, metric) for metric in metrics):
            metric = model.parameters.get("metric")
            factor = f"`NAME: {{metric: {metric or 'bleu'}}}`"
            message = f"no rubric has {metric or 'a metric'} for it to compute; add a factor such as {factor}"
            problems.add(("models", number, "interface"), f"{message}, or remove this model", "V-18")


def _metrics(rubric: Rubric | str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the factors that are computed, with their definitions."""
    for factor, definition in {} if isinstance(rubric, str) else rubric.items():
        if isinstance(definition, Mapping) and "metric" in definition:
            yield factor, definition


def _computes(judge: Model, metric: object) -> bool:
    return judge.interface == "metric" and judge.parameters.get("metric") in (None, metric)


def _check_expected_scores(config: Config, problems: Problems) -> None:
    """Check that some judge reports the probabilities that expected scores take."""
    judges = [model for model in config.with_role("judge") if not model.is_virtual]
    batched = [model.name for model in judges if config.is_batched(model, "evaluation")]
    for number, task in enumerate(config.tasks):
        where = ("tasks", number, "expected_scores")
        if not task.expected_scores or not judges:
            continue
        if batched:
            message = f"cannot be had from batch jobs, and {batched[0]} judges in batches; turn one of them off"
            problems.add(where, message)
        if not any(tells_logprobs(model.interface) for model in judges):
            problems.add(where, "no judge's interface tells log-probabilities; add one that does, or remove it")


def _check_label_judge(config: Config, problems: Problems) -> None:
    has_labels = any(task.label_attributes for task in config.tasks)
    numbers = [number for number, model in enumerate(config.models) if model.interface == "label"]
    if numbers and config.tasks and not has_labels and not problems.any_within("tasks", "label_attributes"):
        message = "a label judge needs a task with `label_attributes`; add them, or remove this model"
        problems.add(("models", numbers[0], "interface"), message)
    for number, model in enumerate(config.models):
        if has_labels and not numbers and model.name == "label" and "judge" in model.roles:
            message = (
                "a judge `label` joins by itself where a task has `label_attributes`; rename this model, or write "
                "`interface: label` if it is meant"
            )
            problems.add(("models", number, "name"), message)


def find_source(run: Experiment, problems: Problems) -> Path | None:
    """Return the folder of the run that `resume_from` names: beside this one, or at that path."""
    if not run.resume_from:
        return None
    where = ("experiment", "resume_from")
    folders = (run.storage_folder / run.resume_from, expanded(run.resume_from))
    source = next((folder for folder in folders if is_folder(folder)), None)
    if source is None:
        if not problems.at("experiment", "storage_folder"):
            message = f"there is no run {run.resume_from!r} at {folders[0]} or {folders[1]}; correct the name"
            problems.add(where, message, "V-10")
    elif run.id and source.resolve() == run.folder.resolve():
        problems.add(where, "is this run itself; use --continue to go on with it", "V-10")
        return None
    return source


def _has_folder(problems: Problems) -> bool:
    """Whether no mistake leaves open which folder the run has."""
    return not any(problems.at("experiment", *key) for key in ((), ("id",), ("storage_folder",)))


def check_reachable(run: Experiment, problems: Problems) -> None:
    """Check that the run's folder can be looked at, be it there or not."""
    if not _has_folder(problems):
        return
    try:
        run.folder.exists()
    except OSError as error:
        problems.add(("experiment", "storage_folder"), f"cannot be used: {error.strerror}; choose another folder")


def check_states(run: Experiment, problems: Problems, *, continue_in_place: bool) -> None:
    """Check that the state of the run, and of the one that a new run starts from, can be read where there is one."""
    if not _has_folder(problems):
        return
    folders = {"id": (run.folder, "V-14")}
    if run.resume_folder is not None and not continue_in_place:
        folders["resume_from"] = run.resume_folder, "V-10"
    for key, (folder, rule) in folders.items():
        if is_there(Run(folder).meta) and stored_meta(Run(folder)) is None:
            other = "choose another id" if key == "id" else "name another run"
            problems.add(("experiment", key), f"{Run(folder).meta} cannot be read; repair it, or {other}", rule)


def check_folder(run: Experiment, file: str | Path, problems: Problems, *, continue_in_place: bool) -> None:
    """Check that the run's folder is as a new run of the configuration `file`, or one that goes on, needs it."""
    if not _has_folder(problems):
        return
    where, meta, path = ("experiment", "id"), stored_meta(Run(run.folder)), run.folder / "meta.json"
    exists = is_there(path)
    if not continue_in_place:
        writes_all = run.written_phases == frozenset(PHASES) or problems.within("experiment", "phases")
        if exists and (run.resume_from or not writes_all):
            command = f"coeval run --config {shlex.quote(str(file))} --continue"
            ways = f"go on with it by `{command}`, choose another id, or write the mode of every phase to start it anew"
            problems.add(where, f"{run.folder} holds a run already; {ways}", "V-11")
    elif meta is None:
        problems.add(where, f"--continue: {path} is not there; start without --continue", "V-14")
    elif meta.get("experiment_id") != run.id:
        message = f"--continue: {run.folder} holds run {meta.get('experiment_id')!r}; use its id, or another folder"
        problems.add(where, message, "V-14")


def check_items(tasks: tuple[Task, ...], run: Experiment, problems: Problems) -> None:
    """Check that a task that nobody writes items for has some: of this run, or of the one it starts from."""
    if problems.within("experiment") or (is_there(run.folder) and not is_folder(run.folder)):
        return
    folders = [Run(folder) for folder in (run.folder, run.resume_folder) if folder is not None]
    for number, task in enumerate(tasks):
        is_clear = task.name and not problems.at("tasks", number) and not problems.within("tasks", number, "sampling")
        has_items = any(folder.record_files("data_generation", task.name) for folder in folders)
        for place, pattern in enumerate(task.documents if is_clear and task.sampling.total else ()):
            if not files_of([pattern]):
                problems.add(("tasks", number, "documents", place), "names no file; paths start at the working folder")
        if is_clear and not task.sampling.total and not has_items:
            message = "is 0, and there are no items yet; raise it, or ingest a benchmark first (`coeval ingest --help`)"
            problems.add(("tasks", number, "sampling", "total"), message)


def check_keys(models: tuple[Model, ...], keys: Keys, problems: Problems) -> None:
    """Check that keys that a run's own configuration leaves out are somewhere else; probes look for the others."""
    for number, model in enumerate(models):
        if model.key_left_out and not problems.within("models", number):
            try:
                keys.account(model)
            except NoKeyError as error:
                problems.add(("models", number, "access_key"), str(error))


def check_packages(models: tuple[Model, ...], tasks: tuple[Task, ...], problems: Problems) -> None:
    """Check that the metrics that a run computes can be computed here."""
    if not any(model.interface == "metric" for model in models):
        return
    for number, task in enumerate(tasks):
        for factor, definition in _metrics(task.rubric):
            where = ("tasks", number, "rubric", factor)
            reason = None if problems.at(*where) else missing_package(definition)
            if reason is not None:
                problems.add(where, reason, "V-18")
