"""Asking every teacher for the same kind of thing, as phases 1 and 2 do: one's failure leaves what the others say."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from coeval.calling.call import Call, CallError, Reason
from coeval.config.schema import Model, Phase, Task
from coeval.errors import RunError
from coeval.parsing import MalformedAnswerError
from coeval.phases.driving import ATTEMPTS, together
from coeval.phases.parts import Parts
from coeval.phases.stage import Outcome, Stage
from coeval.prompts import render

__all__ = ["Halt", "ask_teachers"]

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
    parts = Parts(stage.store, phase, f"{task.name}.{prompt}")
    kept = parts.take(task.name)

    async def one(teacher: Model) -> T | CallError | MalformedAnswerError:
        if teacher.name in kept:
            return read(kept[teacher.name].text)
        found = await _ask(stage, phase, task, teacher, prompt, read, parts, values)
        stage.progress.advance(failed=isinstance(found, Exception))
        return found

    found = await together(one(teacher) for teacher in teachers)
    proposals = _sound(stage, phase, task, prompt, teachers, found)
    parts.clear()
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
    parts: Parts,
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
        parts.keep(task.name, teacher.name, reply)
        return found
    assert last is not None
    return last
