"""Phase 4: collect every student's answer to every item."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from coeval.errors import RunError
from coeval.judging.prompts import render
from coeval.parsing import MalformedAnswerError, split_thoughts
from coeval.phases.asking import ATTEMPTS, drive, each_model
from coeval.phases.items import index_of_items
from coeval.phases.mapping import rubric_of
from coeval.phases.progress import Outcome, Stage
from coeval.phases.question import Kind, Question
from coeval.schema import Model, Phase, Rubric, Task
from coeval.storage.records import RecordIndex, answer_mark, first_items, is_answer_to, is_failed, is_marked, now

_PHASE: Phase = "response_collection"


async def collect_responses(stage: Stage) -> Outcome:
    """Collect the missing answers."""
    is_kept = stage.modes[_PHASE] == "Keep"
    tasks = [
        task for task in stage.config.tasks if not (is_kept and any(map(_is_answer, stage.run.read(_PHASE, task.name))))
    ]
    items = {task.name: index_of_items(stage, task.name) for task in tasks}
    students = [model for model in stage.models("student") if not model.is_virtual]
    return await each_model(
        stage, _PHASE, students, lambda student: _collect(stage, student, tasks, items), by_item=True
    )


async def _collect(stage: Stage, student: Model, tasks: list[Task], items: Mapping[str, RecordIndex]) -> Outcome:
    missing = {task.name: _missing(stage, task.name, student, items[task.name]) for task in tasks}
    failures = stage.store.failures(_PHASE)

    def questions() -> Iterator[Question]:
        for task in tasks:
            identities, marked = missing[task.name]
            for item in map(items[task.name].get, identities):
                if item is not None:
                    yield _question(task, student, item, failures + marked)

    expected = sum(len(identities) for identities, _ in missing.values())
    return await drive(stage, _PHASE, student, questions(), expected=expected)


def _missing(stage: Stage, task: str, student: Model, items: RecordIndex) -> tuple[list[str], Counter[str]]:
    """Return the items without an answer to their present prompt, and how often each answer was marked as failed."""
    done, marked = set(), Counter[str]()
    for record in stage.run.read(_PHASE, task, student.name, stage.warn_bad_line):
        if record.get("student_model_id") != student.name:
            continue
        if _is_current(record, items):
            done.add(record.get("datapoint_id"))
        elif is_marked(record):
            marked[str(record.get("id"))] += 1
    if stage.modes[_PHASE] == "Model" and done:
        return [], marked
    return [item for item in items if item not in done], marked


def _is_answer(record: Mapping[str, Any]) -> bool:
    return not is_failed(record) and bool(record.get("response"))


def _is_current(record: Mapping[str, Any], items: RecordIndex) -> bool:
    """Return whether a record answers its item's present prompt; an unknown item does not matter."""
    item = items.notes.get(str(record.get("datapoint_id")))
    return _is_answer(record) and (item is None or is_answer_to(record, item))


def _question(task: Task, student: Model, item: Mapping[str, Any], failures: Mapping[str, int]) -> Question:
    identity = f"{item['id']}__{student.name}"
    context = {
        "id": identity,
        "datapoint_id": item["id"],
        "task_id": task.name,
        "teacher_model_id": item["teacher_model_id"],
        "student_model_id": student.name,
        "input": item["prompt"],
    }
    return Question(
        kind="response",
        phase=_PHASE,
        role="student",
        model=student.name,
        task=task.name,
        context=context,
        prompts={"": render(task, student.name, "test", input=item["prompt"])},
        first_attempt=failures.get(identity, 0) * ATTEMPTS,
    )


def _read(_context: Mapping[str, Any], _part: str, text: str) -> tuple[str, str]:
    """Return an answer and its thoughts. Raise MalformedAnswerError if there are thoughts alone."""
    answer, thoughts = split_thoughts(text)
    if not answer:
        raise MalformedAnswerError("the answer consists of thoughts alone; its limit of tokens may be too low")
    return answer, thoughts


def _record(
    context: Mapping[str, Any], answers: Mapping[str, tuple[str, str]], failures: Mapping[str, str]
) -> dict[str, Any]:
    # Judges see, and lengths count, what is no thought.
    text, thoughts = answers.get("", ("", ""))
    record = {**context, "response": text, "token_count": max(1, len(text) // 4), "generated_at": now()}
    if thoughts:
        record["thoughts"] = thoughts
    return {**record, "status": "failed", "error": failures[""]} if failures else record


KINDS = {"response": Kind(_read, _record, "response_collection")}


@dataclass
class JudgedTask:
    """A task as its judges see it: its rubric, its items, and the present answers to them."""

    task: Task
    rubric: Rubric
    items: RecordIndex
    responses: RecordIndex


def judged_task(stage: Stage, task: Task) -> JudgedTask:
    """Index the items of a task and the answers of configured students. Raise RunError if it has no rubric."""
    rubric, items = rubric_of(stage.run, task.name), index_of_items(stage, task.name)
    if rubric is None:
        raise RunError(f"{stage.run.folder}: no rubric of task {task.name!r}; run phase rubric_mapping first")
    students = {model.name for model in stage.config.with_role("student")}
    limits = stage.item_limits
    chosen = items.notes.keys() if limits is None else first_items(items.notes, limits[task.name])
    responses = RecordIndex(
        stage.run.record_files("response_collection", task.name),
        lambda record: (
            _is_current(record, items)
            and record.get("task_id") == task.name
            and record.get("student_model_id") in students
            and (limits is None or record.get("datapoint_id") in chosen)
        ),
        note=answer_mark,
    )
    return JudgedTask(task, rubric, items, responses)
