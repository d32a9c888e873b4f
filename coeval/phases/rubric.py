"""Phase 2: by which factors the answers of a task are graded."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from coeval.config.schema import Phase, Rubric, Task
from coeval.errors import RunError
from coeval.parsing import read_rubric
from coeval.phases.driving import together
from coeval.phases.kept import rubrics_apart, warn_of_kept
from coeval.phases.proposals import ask_teachers
from coeval.phases.stage import Outcome, Stage
from coeval.storage.claims import claimed_work
from coeval.storage.jsonl import read_json, write_json
from coeval.storage.layout import Run

__all__ = ["map_rubrics", "rubric_of"]

PHASE: Phase = "rubric_mapping"


async def map_rubrics(stage: Stage) -> Outcome:
    """Make what is missing of the rubrics of all tasks.

    Raises:
        RunError: no teacher gave anything of use for a task.
        Halt: limits are used up before a rubric is there.
    """
    outcome = Outcome()
    await together(_map(stage, task, outcome) for task in stage.config.tasks)
    return outcome


async def _map(stage: Stage, task: Task, outcome: Outcome) -> None:
    async with claimed_work(stage.run, PHASE, task.name):
        stored = rubric_of(stage.run, task.name)
        keep = stage.modes[PHASE] != "New" and stored is not None
        if isinstance(task.rubric, str) and keep:
            return
        if isinstance(task.rubric, str):
            base = read_json(stage.run.base_rubric(task.name)) if task.rubric == "extend" else None
            proposed = await ask_teachers(stage, PHASE, task, "autorubric", read_rubric, outcome)
            found = _merged([base or {}, *proposed])
        else:  # a factor that the configuration has gained joins those stored
            found = _merged([stored or {}, task.rubric] if keep else [task.rubric])
            if keep:
                warn_of_kept(stage, PHASE, task.name, rubrics_apart(stored or {}, task.rubric), "evaluation")
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
