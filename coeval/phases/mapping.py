"""Phases 1 and 2: the attributes of each task (target and nuanced), and the rubric that its answers are graded by."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from typing import Any, TypeVar

from coeval.calling.calls import Call, CallError, Reason, Reply
from coeval.errors import RunError
from coeval.judging.prompts import render
from coeval.parsing import MalformedAnswerError, read_attributes, read_rubric
from coeval.phases.asking import ATTEMPTS, ReplyJournal, together
from coeval.phases.progress import Outcome, Stage
from coeval.schema import Attributes, Model, Phase, Rubric, Task
from coeval.storage.meta import claimed_work
from coeval.storage.records import is_failed, read_json, write_json
from coeval.storage.run import AttributeKind, Run

T = TypeVar("T")
_PHASE: Phase = "attribute_mapping"
_RUBRIC_PHASE: Phase = "rubric_mapping"
_PROMPTS: Mapping[AttributeKind, str] = {"target": "map_target_attrs", "nuanced": "map_nuanced_attrs"}


class Halt(Exception):  # noqa: N818 - no error: a limit that was set
    """A limit is used up before the phase has what the next one needs."""


async def _ask_teachers(
    stage: Stage, phase: Phase, task: Task, prompt: str, read: Callable[[str], T], outcome: Outcome, **texts: str
) -> list[T]:
    """Return the teachers' proposals for a task. Raise RunError if there is none, Halt if limits are the reason."""
    teachers = [model for model in stage.config.with_role("teacher") if not model.is_virtual]
    outcome.expected += 1
    stage.progress.expect(len(teachers))
    journal = ReplyJournal(stage.store, phase, f"{task.name}.{prompt}")
    earlier = journal.pop(task.name)

    async def ask(teacher: Model) -> T | CallError | MalformedAnswerError:
        if teacher.name in earlier:
            return read(earlier[teacher.name].text)
        text = render(task, teacher.name, prompt, **texts)
        first = stage.store.failures(phase)[_id(task, prompt, teacher)] * ATTEMPTS
        calls = (
            Call(
                model=teacher,
                role="teacher",
                phase=phase,
                task=task.name,
                key=(task.name, prompt, teacher.name, str(attempt)),
                prompt=text,
                attempt=attempt,
            )
            for attempt in range(first, first + ATTEMPTS)
        )
        proposal = await _first_readable(stage, calls, read, partial(journal.put, task.name, teacher.name))
        stage.progress.advance(failed=isinstance(proposal, Exception))
        return proposal

    answers = await together(ask(teacher) for teacher in teachers)
    proposals, limited = [], []
    # One teacher's failure leaves the proposals of the others.
    for teacher, answer in zip(teachers, answers, strict=True):
        if not isinstance(answer, (CallError, MalformedAnswerError)):
            proposals.append(answer)
            continue
        if isinstance(answer, CallError) and answer.reason in (Reason.QUOTA, Reason.BUDGET):
            limited.append(teacher.name)
        else:
            names = {"task": task.name, "model": teacher.name, "role": "teacher"}
            stage.store.error(phase, str(answer), id=_id(task, prompt, teacher), **names)
        stage.log.warning(f"{phase}: {task.name}: {teacher.name} proposes nothing: {answer}")
    if not proposals and limited:
        raise Halt(f"{phase}: {task.name}: no teacher may be asked: {', '.join(limited)} used up")
    if not proposals:
        raise RunError(f"{phase}: no teacher proposed anything of use for task {task.name!r}; see {stage.run.errors}")
    journal.clear()
    outcome.stored += 1
    return proposals


async def _until_halted(works: Iterable[Awaitable[None]]) -> None:
    """Run all to their ends, then raise the first Halt: a call under way has to be paid, so its reply is kept."""

    async def run(work: Awaitable[None]) -> Halt | None:
        try:
            await work
        except Halt as halt:
            return halt
        return None

    halts = [halt for halt in await together(map(run, works)) if halt is not None]
    if halts:
        raise halts[0]


async def _first_readable(
    stage: Stage, calls: Iterable[Call], read: Callable[[str], T], keep: Callable[[Reply], None]
) -> T | CallError | MalformedAnswerError:
    """Return the proposal of the first readable reply, once it is kept; else why there is none."""
    last: CallError | MalformedAnswerError = CallError(Reason.FAILED, "not asked")
    for call in calls:
        try:
            reply = await stage.ask(call)
            proposal = read(reply.text)
        except CallError as error:
            return error
        except MalformedAnswerError as error:
            last = error
        else:
            keep(reply)
            return proposal
    return last


def _id(task: Task, prompt: str, teacher: Model) -> str:
    return f"{task.name}:{prompt}:{teacher.name}"


def is_kept(stage: Stage, kind: str, task: str) -> bool:
    """Return whether judgements of a task stay as they are: the mode keeps them, and there are some."""
    return stage.modes["evaluation"] == "Keep" and any_valid(stage.run, kind, task)


def any_valid(run: Run, kind: str, task: str | None = None) -> bool:
    """Return whether a record of a kind has not failed."""
    return not all(map(is_failed, run.read(kind, task)))


def _warn_of_differences(stage: Stage, phase: Phase, task: str, differences: list[str], then: Phase) -> None:
    """Warn where stored attributes or rubrics, which stay in force, differ from the configuration."""
    if differences:
        stage.log.warning(
            f"{phase}: task {task!r}: what is stored holds, though the configuration says otherwise: "
            f"{'; '.join(differences)}. To renew it start without --continue, with the mode of every phase written, "
            f"New for {phase} and {then}"
        )


async def map_attributes(stage: Stage) -> Outcome:
    """Make the missing attribute maps of all tasks. Raise as `_ask_teachers`."""
    outcome = Outcome()
    await _until_halted(_map(stage, task, kind, outcome) for task in stage.config.tasks for kind in _PROMPTS)
    return outcome


async def _map(stage: Stage, task: Task, kind: AttributeKind, outcome: Outcome) -> None:
    configured = task.target_attributes if kind == "target" else task.nuanced_attributes
    seed = task.target_attributes_seed if kind == "target" else task.nuanced_attributes_seed
    async with claimed_work(stage.run, _PHASE, f"{task.name}.{kind}"):
        stored = attributes_of(stage.run, task.name, kind)
        kept = None if stage.modes[_PHASE] == "New" else stored
        if isinstance(configured, str):
            if kept is not None:
                return
            text = json.dumps(seed, ensure_ascii=False, default=list)
            proposals = await _ask_teachers(stage, _PHASE, task, _PROMPTS[kind], read_attributes, outcome, seed=text)
            attributes = union([seed, *proposals])
        else:
            attributes = union([kept or {}, configured])
            differences = []
            for name, values in (kept or {}).items():
                gone = [str(value) for value in values if value not in configured.get(name, ())]
                if name not in configured:
                    differences.append(f"no {name} any more")
                elif gone:
                    differences.append(f"{name} is not {' or '.join(gone)} any more")
            _warn_of_differences(stage, _PHASE, task.name, differences, "data_generation")
        if attributes != stored:
            write_json(stage.run.attributes(task.name, kind), attributes)


def union(maps: Iterable[Attributes]) -> dict[str, list[Any]]:
    """Return all attributes with all values, each once, in order of appearance."""
    merged: dict[str, list[Any]] = {}
    for attributes in maps:
        for name, values in attributes.items():
            unique = merged.setdefault(name, [])
            for value in values:
                if value not in unique:  # values may be unhashable
                    unique.append(value)
    return merged


def attributes_of(run: Run, task: str, kind: AttributeKind) -> dict[str, list[Any]] | None:
    """Return the stored attributes of a task; None if there are none."""
    path = run.find_attributes(task, kind)
    stored = None if path is None else read_json(path)
    if not isinstance(stored, dict):
        return None
    return {name: values if isinstance(values, list) else [values] for name, values in stored.items()}


async def map_rubrics(stage: Stage) -> Outcome:
    """Make the missing rubrics of all tasks. Raise as `_ask_teachers`."""
    outcome = Outcome()
    await _until_halted(_map_rubric(stage, task, outcome) for task in stage.config.tasks)
    return outcome


async def _map_rubric(stage: Stage, task: Task, outcome: Outcome) -> None:
    async with claimed_work(stage.run, _RUBRIC_PHASE, task.name):
        stored = rubric_of(stage.run, task.name)
        kept = None if stage.modes[_RUBRIC_PHASE] == "New" else stored
        if isinstance(task.rubric, str):
            if kept is not None:
                return
            base = read_json(stage.run.base_rubric(task.name)) if task.rubric == "extend" else None
            proposals = await _ask_teachers(stage, _RUBRIC_PHASE, task, "autorubric", read_rubric, outcome)
            rubric = _merged([base or {}, *proposals])
        else:  # a new factor joins those stored
            earlier = kept or {}
            rubric = _merged([earlier, task.rubric])
            differences = []
            changed = [name for name, text in task.rubric.items() if _text(earlier.get(name, text)) != _text(text)]
            if changed:
                differences.append(f"another text of {', '.join(changed)}")
            gone = [name for name in earlier if name not in task.rubric]
            if gone:
                differences.append(f"no {', '.join(gone)} any more")
            _warn_of_differences(stage, _RUBRIC_PHASE, task.name, differences, "evaluation")
        if rubric != stored:
            write_json(stage.run.rubric(task.name), rubric)


def _text(definition: str | Mapping[str, Any]) -> dict[str, Any]:
    """Return a factor's definition without its weight."""
    text = {"description": definition} if isinstance(definition, str) else dict(definition)
    text.pop("weight", None)
    return text


def _merged(rubrics: Iterable[Rubric]) -> dict[str, Any]:
    """Return all factors, the first of those with one name."""
    merged: dict[str, Any] = {}
    for rubric in rubrics:
        for factor, definition in rubric.items():
            merged.setdefault(factor, definition if isinstance(definition, str) else dict(definition))
    return merged


def rubric_of(run: Run, task: str) -> dict[str, Any] | None:
    """Return the stored rubric of a task; None if there is none."""
    stored = read_json(run.rubric(task))
    return stored if isinstance(stored, dict) else None
