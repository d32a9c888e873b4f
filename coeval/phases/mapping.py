"""Phase 1: in which attributes the answers of a task differ (target), and in which its inputs do (nuanced)."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from coeval.calling.calls import Call, CallError, Reason
from coeval.errors import RunError
from coeval.judging.prompts import render
from coeval.parsing import MalformedAnswerError, read_attributes, read_rubric
from coeval.phases.driving import ATTEMPTS, ReplyJournal, together
from coeval.phases.stage import Outcome, Stage
from coeval.schema import Attributes, Model, Phase, Rubric, Task
from coeval.storage.jsonl import read_json, read_records, write_json
from coeval.storage.meta import claimed_work
from coeval.storage.records import is_failed
from coeval.storage.run import AttributeKind, Run

# Asking every teacher for the same kind of thing, as phases 1 and 2 do: one's failure leaves what the others say.

T = TypeVar("T")


class Halt(Exception):  # noqa: N818 - no error: a limit that was set
    """Nothing can be asked any more before the phase has what the next one needs."""


async def ask_teachers(
    stage: Stage, phase: Phase, task: Task, prompt: str, read: Callable[[str], T], outcome: Outcome, **values: str
) -> list[T]:
    """What the teachers propose for a task, in the order of the configuration.

    Raises:
        RunError: no teacher gave anything of use.
        Halt: none could be asked, for quotas or the budget are used up.
    """
    teachers = [model for model in stage.config.with_role("teacher") if not model.is_virtual]
    outcome.expected += 1
    stage.progress.expect(len(teachers))
    journal = ReplyJournal(stage.store, phase, f"{task.name}.{prompt}")
    kept = journal.pop(task.name)

    async def one(teacher: Model) -> T | CallError | MalformedAnswerError:
        if teacher.name in kept:
            return read(kept[teacher.name].text)
        found = await _ask(stage, phase, task, teacher, prompt, read, journal, values)
        stage.progress.advance(failed=isinstance(found, Exception))
        return found

    found = await together(one(teacher) for teacher in teachers)
    proposals = _sound(stage, phase, task, prompt, teachers, found)
    journal.clear()
    outcome.stored += 1
    return proposals


def _sound(
    stage: Stage,
    phase: Phase,
    task: Task,
    prompt: str,
    teachers: Sequence[Model],
    found: Sequence[T | CallError | MalformedAnswerError],
) -> list[T]:
    """Those that are of use; the others are said."""
    proposals: list[T] = []
    limits = []
    for teacher, one in zip(teachers, found, strict=True):
        if not isinstance(one, (CallError, MalformedAnswerError)):
            proposals.append(one)
            continue
        names = {"task": task.name, "model": teacher.name, "role": "teacher"}
        if isinstance(one, CallError) and one.reason in (Reason.QUOTA, Reason.BUDGET):
            limits.append(teacher.name)
        else:
            stage.store.error(phase, str(one), id=f"{task.name}:{prompt}:{teacher.name}", **names)
        stage.log.warning(f"{phase}: {task.name}: {teacher.name} proposes nothing: {one}")
    if proposals:
        return proposals
    if limits:
        raise Halt(f"{phase}: {task.name}: no teacher may be asked: {', '.join(limits)} used up")
    raise RunError(f"{phase}: no teacher proposed anything of use for task {task.name!r}; see {stage.run.errors}")


async def _ask(
    stage: Stage,
    phase: Phase,
    task: Task,
    teacher: Model,
    prompt: str,
    read: Callable[[str], T],
    journal: ReplyJournal,
    values: dict[str, str],
) -> T | CallError | MalformedAnswerError:
    text = render(task, teacher.name, prompt, **values)
    first = stage.store.failures(phase)[f"{task.name}:{prompt}:{teacher.name}"] * ATTEMPTS
    last: CallError | MalformedAnswerError | None = None
    for attempt in range(first, first + ATTEMPTS):
        key = (task.name, prompt, teacher.name, str(attempt))
        try:
            reply = await stage.ask(Call(teacher, "teacher", phase, task.name, key, text, attempt))
            found = read(reply.text)
        except CallError as error:
            return error
        except MalformedAnswerError as error:
            last = error
            continue
        journal.put(task.name, teacher.name, reply)
        return found
    assert last is not None
    return last


# Where what is stored of a task holds: mode `Keep`, and a configuration that says something else by now.


def is_kept(stage: Stage, files: Iterable[Path]) -> bool:
    """Whether judgements of a task stay as they are: the mode keeps them, and there are some."""
    return stage.modes["evaluation"] == "Keep" and any_valid(files)


def any_valid(files: Iterable[Path]) -> bool:
    """Whether a file has a record that has not failed."""
    return any(not is_failed(record) for path in files for record in read_records(path))


def warn_of_kept(stage: Stage, phase: Phase, task: str, apart: Iterator[str], then: Phase) -> None:
    """Say once what holds, and how it is renewed; nothing where they say the same.

    Args:
        stage: the run.
        phase: which keeps what is stored.
        task: of which.
        apart: in what they differ.
        then: the phase that has to be made anew as well.
    """
    found = "; ".join(apart)
    if found:
        stage.log.warning(
            f"{phase}: task {task!r}: what is stored holds, though the configuration says otherwise: {found}. To renew "
            f"it start without --continue, with the mode of every phase written, New for {phase} and {then}"
        )


def rubrics_apart(stored: Rubric, wanted: Rubric) -> Iterator[str]:
    """In what a stored rubric differs, but for factors that it lacks, which join it."""
    changed = [name for name in wanted if name in stored and _text(stored[name]) != _text(wanted[name])]
    if changed:
        yield f"another text of {', '.join(changed)}"
    gone = [name for name in stored if name not in wanted]
    if gone:
        yield f"no {', '.join(gone)} any more"


def attributes_apart(stored: Attributes, wanted: Attributes) -> Iterator[str]:
    """Which attributes and values are stored that are not wanted any more."""
    for name, values in stored.items():
        gone = [str(value) for value in values if value not in wanted.get(name, ())]
        if name not in wanted:
            yield f"no {name} any more"
        elif gone:
            yield f"{name} is not {' or '.join(gone)} any more"


def _text(definition: str | Mapping[str, Any]) -> dict[str, Any]:
    """What a factor says, without how much it counts."""
    said = {"description": definition} if isinstance(definition, str) else dict(definition)
    said.pop("weight", None)
    return said


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


# Phase 2: by which factors the answers of a task are graded.

RUBRIC_PHASE: Phase = "rubric_mapping"


async def map_rubrics(stage: Stage) -> Outcome:
    """Make what is missing of the rubrics of all tasks.

    Raises:
        RunError: no teacher gave anything of use for a task.
        Halt: limits are used up before a rubric is there.
    """
    outcome = Outcome()
    await together(_map_rubric(stage, task, outcome) for task in stage.config.tasks)
    return outcome


async def _map_rubric(stage: Stage, task: Task, outcome: Outcome) -> None:
    async with claimed_work(stage.run, RUBRIC_PHASE, task.name):
        stored = rubric_of(stage.run, task.name)
        keep = stage.modes[RUBRIC_PHASE] != "New" and stored is not None
        if isinstance(task.rubric, str) and keep:
            return
        if isinstance(task.rubric, str):
            base = read_json(stage.run.base_rubric(task.name)) if task.rubric == "extend" else None
            proposed = await ask_teachers(stage, RUBRIC_PHASE, task, "autorubric", read_rubric, outcome)
            found = _merged([base or {}, *proposed])
        else:  # a factor that the configuration has gained joins those stored
            found = _merged([stored or {}, task.rubric] if keep else [task.rubric])
            if keep:
                warn_of_kept(stage, RUBRIC_PHASE, task.name, rubrics_apart(stored or {}, task.rubric), "evaluation")
        if found != stored:
            write_json(stage.run.rubric(task.name), found)


def _merged(rubrics: Iterable[Rubric]) -> dict[str, Any]:
    """All factors; of those named twice the first."""
    found: dict[str, Any] = {}
    for rubric in rubrics:
        for factor, description in rubric.items():
            found.setdefault(factor, description if isinstance(description, str) else dict(description))
    return found


def needed_rubric(run: Run, task: str) -> dict[str, Any]:
    """The stored rubric of a task, for phases that cannot do without.

    Raises:
        RunError: there is none.
    """
    rubric = rubric_of(run, task)
    if rubric is None:
        raise RunError(f"{run.folder}: no rubric of task {task!r}; run phase rubric_mapping first")
    return rubric


def rubric_of(run: Run, task: str) -> dict[str, Any] | None:
    """The stored rubric of a task; None where there is none."""
    path = run.find_rubric(task)
    value = None if path is None else read_json(path)
    return value if isinstance(value, dict) else None
