"""Phase 3: items, each a prompt and a reference answer with the attributes that were drawn for it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from coeval.config.schema import Model, Phase, Task
from coeval.errors import RunError
from coeval.parsing import read_item
from coeval.phases.attributes import attributes_of
from coeval.phases.driving import drive, each_model
from coeval.phases.question import Kind, Question
from coeval.phases.sampling import Draw, draws
from coeval.phases.stage import Outcome, Stage
from coeval.prompts import render
from coeval.storage.index import RecordIndex
from coeval.storage.layout import Run
from coeval.storage.records import now

__all__ = ["KINDS", "generate_items", "index_of_items"]

PHASE: Phase = "data_generation"
_NUMBERS = 1000  # of attempts that one item may take


async def generate_items(stage: Stage) -> Outcome:
    """Make the items that are missing.

    Raises:
        RunError: a task has no item, and no limit is the reason.
    """
    kept = _kept_tasks(stage)
    tasks = [task for task in stage.config.tasks if task.name not in kept]
    teachers = [model for model in stage.models("teacher") if not model.is_virtual]

    async def work(teacher: Model) -> Outcome:
        return await _of_teacher(stage, teacher, tasks)

    outcome = await each_model(stage, PHASE, teachers, work)
    if not outcome.stopped and stage.only is None:
        _check_none_empty(stage)
    return outcome


def _kept_tasks(stage: Stage) -> set[str]:
    if stage.modes[PHASE] != "Keep":
        return set()
    return {task.name for task in stage.config.tasks if len(index_of_items(stage, task.name))}


async def _of_teacher(stage: Stage, teacher: Model, tasks: list[Task]) -> Outcome:
    missing = {task.name: _missing(stage, task, teacher) for task in tasks}
    expected = sum(len(numbers) for numbers in missing.values())
    stage.progress.expect(expected)
    failures = stage.store.failures(PHASE)

    def questions() -> Iterator[Question]:
        for task in tasks:
            for number, draw in _drawn(stage, task, teacher, missing[task.name]):
                yield _question(task, teacher, number, draw, failures)

    outcome = await drive(stage, PHASE, teacher, questions(), attempts=1 + stage.config.experiment.generation_retries)
    outcome.expected = expected
    if outcome.failed:
        stage.log.warning(f"{PHASE}: {teacher.name}: {outcome.failed} items could not be made; see {stage.run.errors}")
    return outcome


def _missing(stage: Stage, task: Task, teacher: Model) -> list[int]:
    """Numbers of the items to be made: the lowest that are free, as many as the total lacks."""
    path = stage.run.datapoints(task.name, teacher.name)
    index = RecordIndex([path] if path.is_file() else [], _by(task.name, teacher.name), stage.warn_bad_line)
    if stage.modes[PHASE] == "Model" and len(index):
        return []
    lacking = task.sampling.total - len(index)
    free = (number for number in range(1, task.sampling.total + 1) if _id(task, teacher, number) not in index)
    return [number for number, _ in zip(free, range(lacking), strict=False)]


def _by(task: str, teacher: str) -> Any:
    return lambda record: (
        _is_item(record) and record.get("task_id") == task and record.get("teacher_model_id") == teacher
    )


def _is_item(record: Mapping[str, Any]) -> bool:
    return bool(record.get("prompt"))


def _drawn(stage: Stage, task: Task, teacher: Model, numbers: list[int]) -> Iterator[tuple[int, Draw]]:
    """The missing items with their attributes."""
    if not numbers:
        return
    target = attributes_of(stage.run, task.name, "target")
    nuanced = attributes_of(stage.run, task.name, "nuanced")
    if target is None or nuanced is None:
        raise RunError(f"{stage.run.folder}: no attributes of task {task.name!r}; run phase attribute_mapping first")
    seed = stage.config.experiment.seed
    wanted = iter(numbers)
    number = next(wanted, None)
    names = {"task": task.name, "teacher": teacher.name}
    drawn = draws(task.sampling, target, nuanced, seed=seed, always=task.label_attributes, **names)
    for place, draw in enumerate(drawn, start=1):
        if number is None:
            return
        if place == number:
            yield number, draw
            number = next(wanted, None)


def _id(task: Task, teacher: Model, number: int) -> str:
    return f"{task.name}__{teacher.name}__{number:05d}"


def _question(task: Task, teacher: Model, number: int, draw: Draw, failures: Mapping[str, int]) -> Question:
    identity = _id(task, teacher, number)
    context: dict[str, Any] = {
        "id": identity,
        "task_id": task.name,
        "teacher_model_id": teacher.name,
        "sampled_target_attributes": dict(draw.target),
    }
    if task.store_nuanced:
        context["sampled_nuanced_attributes"] = dict(draw.nuanced)
    prompt = render(
        task,
        teacher.name,
        "sample",
        target_attributes=json.dumps(draw.target, ensure_ascii=False),
        nuanced_attributes=json.dumps(draw.nuanced, ensure_ascii=False),
    )
    # Items with the same attributes have the same prompt; their own numbers keep the answers apart.
    first = number * _NUMBERS + failures.get(identity, 0) * 10
    return Question("item", PHASE, "teacher", teacher.name, task.name, context, {"": prompt}, first)


def _record(
    context: Mapping[str, Any], values: Mapping[str, Any], failures: Mapping[str, str]
) -> dict[str, Any] | None:
    if failures:
        return None
    prompt, response = values[""]
    return {**context, "prompt": prompt, "reference_response": response, "generated_at": now()}


def _path(run: Run, context: Mapping[str, Any]) -> Path:
    return run.datapoints(context["task_id"], context["teacher_model_id"])


KINDS = {"item": Kind(lambda _context, _part, text: read_item(text), _record, _path)}


def index_of_items(stage: Stage, task: str) -> RecordIndex:
    """The items of all teachers for a task, also of teachers that the configuration has no more."""
    return RecordIndex(
        stage.run.datapoint_files(task), lambda record: _is_item(record) and record.get("task_id") == task
    )


def _check_none_empty(stage: Stage) -> None:
    for task in stage.config.tasks:
        if not len(index_of_items(stage, task.name)):
            raise RunError(f"{PHASE}: task {task.name!r} has no items; see {stage.run.errors}")
