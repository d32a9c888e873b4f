"""Phase 5 in mode `pairwise`: every judge compares answers to the same item, as many pairs as the schedule has."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, TypeAlias

from coeval.judging.factors import description_of, required_factors
from coeval.phases.driving import drive, each_model
from coeval.phases.items import index_of_items
from coeval.phases.mapping import is_kept, needed_rubric
from coeval.phases.pair_schedule import (
    Meeting,
    Schedule,
    Seen,
    compare_question,
    counts_of,
    files_of,
    meetings,
    pair_id,
    read_seen,
    sides,
)
from coeval.phases.question import Question
from coeval.phases.responses import index_of_responses
from coeval.phases.stage import Outcome, Stage
from coeval.schema import Model, Phase, Rubric, Task
from coeval.storage.jsonl import RecordIndex

PHASE: Phase = "evaluation"
Halves: TypeAlias = Mapping[str, Mapping[str, str]]
"""See `coeval.phases.pair_schedule.Seen`."""


@dataclass
class _Work:
    """What all judges of a task look at."""

    task: Task
    rubric: Rubric
    items: RecordIndex
    responses: RecordIndex
    answered: dict[str, dict[str, list[str]]]
    """Teacher -> item -> students that answered it."""

    def counts(self, record: Mapping[str, Any]) -> bool:
        """Whether a verdict is about answers as they are now."""
        return counts_of(self.items.notes, self.responses.notes)(record)


async def compare_all(stage: Stage, tasks: Sequence[Task]) -> Outcome:
    """Collect the verdicts that are missing, for tasks in mode `pairwise`.

    Raises:
        RunError: a task has no rubric.
    """
    works = [_work_of(stage, task) for task in tasks if not is_kept(stage, stage.run.pair_files(task.name))]

    async def work(judge: Model) -> Outcome:
        outcome = Outcome()
        for part in works:
            if stage.halted is None and not outcome.stopped and not outcome.refused:
                outcome.add(await _judge(stage, judge, part))
        return outcome

    return await each_model(stage, PHASE, [judge for judge in stage.models("judge") if not judge.is_virtual], work)


def _work_of(stage: Stage, task: Task) -> _Work:
    rubric = needed_rubric(stage.run, task.name)
    items = index_of_items(stage, task.name)
    responses = index_of_responses(stage, task.name, items)
    answered: dict[str, dict[str, list[str]]] = {}
    for identity in responses:
        datapoint, _, student = identity.rpartition("__")
        if datapoint in items:
            teacher = datapoint.removeprefix(f"{task.name}__").partition("__")[0]
            answered.setdefault(teacher, {}).setdefault(datapoint, []).append(student)
    return _Work(task, rubric, items, responses, answered)


async def _judge(stage: Stage, judge: Model, work: _Work) -> Outcome:
    """One judge, one task."""
    factors = required_factors(judge, work.task, work.rubric)
    rubric = {factor: description_of(work.rubric[factor]) for factor in factors}
    files = files_of(stage.run, work.task.name, judge.name)
    seen = read_seen(files, judge.name, work.counts, stage.warn_bad_line)
    schedules = {teacher: _schedule(stage, judge, work, items, seen) for teacher, items in work.answered.items()}
    expected = sum(schedule.left for schedule in schedules.values())
    stage.progress.expect(expected)
    if work.task.pairwise.schedule == "active":
        outcome = Outcome()
        for teacher, schedule in schedules.items():
            if not outcome.stopped and not outcome.refused:
                outcome.add(await _in_rounds(stage, judge, work, rubric, teacher, schedule, seen))
    else:
        wanted = chain.from_iterable(schedule.everything() for schedule in schedules.values())
        outcome = await drive(stage, PHASE, judge, _questions(stage, judge, work, rubric, wanted, seen.halves))
    outcome.expected = expected
    return outcome


def _schedule(stage: Stage, judge: Model, work: _Work, answered: Mapping[str, Iterable[str]], seen: Seen) -> Schedule:
    possible = meetings(answered)
    if stage.modes[PHASE] == "Model":
        possible = [one for one in possible if (one.first, one.second) not in seen.couples or one in seen.verdicts]
    return Schedule(possible, seen.verdicts, work.task.pairwise.pairs, stage.config.experiment.seed, judge.name)


async def _in_rounds(
    stage: Stage, judge: Model, work: _Work, rubric: Rubric, teacher: str, schedule: Schedule, seen: Seen
) -> Outcome:
    """Round after round, each chosen by what the ones before brought."""
    outcome, rounds = Outcome(), schedule.rounds()
    path = stage.run.pairs(work.task.name, teacher, judge.name)
    while (wanted := rounds.next()) and not outcome.stopped and not outcome.refused and stage.halted is None:
        outcome.add(await drive(stage, PHASE, judge, _questions(stage, judge, work, rubric, wanted, seen.halves)))
        verdicts = read_seen([path], judge.name, work.counts).verdicts
        rounds.tell({one: verdicts[one] for one in wanted if one in verdicts})
    return outcome


def _questions(
    stage: Stage, judge: Model, work: _Work, rubric: Rubric, wanted: Iterable[Meeting], halves: Halves
) -> Iterator[Question]:
    failures = stage.store.failures(PHASE)
    for meeting in wanted:
        a, b = sides(meeting.first, meeting.second, meeting.datapoint, stage.config.experiment.seed)
        item = work.items.get(meeting.datapoint)
        responses = (work.responses.get(f"{meeting.datapoint}__{name}") for name in (a, b))
        first, second = responses
        if item is not None and first is not None and second is not None:
            half = halves.get(pair_id(meeting.datapoint, a, b, judge.name))
            yield compare_question(work.task, judge, rubric, item, (first, second), failures, half)
