"""Phase 5 in mode `pairwise`: every judge compares answers to the same item, as many pairs as the schedule has."""

from __future__ import annotations

from collections.abc import Awaitable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from coeval.judging.factors import description_of, required_factors
from coeval.phases import pair_schedule
from coeval.phases.driving import drive, each_model, in_turn
from coeval.phases.mapping import is_kept
from coeval.phases.question import Question
from coeval.phases.responses import JudgedTask, judged_task
from coeval.phases.stage import Outcome, Stage
from coeval.schema import Model, Phase, Rubric, Task

PHASE: Phase = "evaluation"


@dataclass
class _Comparison:
    """One judge's comparisons for one task."""

    stage: Stage
    judge: Model
    work: JudgedTask
    rubric: Rubric
    earlier: pair_schedule.Verdicts

    def schedule(self, answered: Mapping[str, Iterable[str]]) -> pair_schedule.Schedule:
        """Return what the judge still has to compare of the items of one teacher."""
        possible, earlier = pair_schedule.meetings(answered), self.earlier
        if self.stage.modes[PHASE] == "Model":
            possible = [
                one for one in possible if (one.first, one.second) not in earlier.couples or one in earlier.winners
            ]
        seed, limit = self.stage.config.experiment.seed, self.work.task.pairwise.pairs
        return pair_schedule.Schedule(possible, earlier.winners, limit, seed, self.judge.name)

    async def ask(self, planned: Iterable[pair_schedule.Meeting]) -> Outcome:
        """Ask for the verdicts on some meetings."""
        return await drive(self.stage, PHASE, self.judge, self._questions(planned))

    async def ask_in_rounds(self, teacher: str, schedule: pair_schedule.Schedule) -> Outcome:
        """Ask round after round, each planned by the verdicts of those before."""
        outcome, rounds, work = Outcome(), schedule.rounds(), self.work
        path = self.stage.run.records("pairwise", work.task.name, teacher, self.judge.name)
        is_current = pair_schedule.current_verdicts(work.items.notes, work.responses.notes)
        while (planned := rounds.next()) and not outcome.stopped and not outcome.refused and self.stage.halted is None:
            outcome.add(await self.ask(planned))
            winners = pair_schedule.read_verdicts([path], self.judge.name, is_current).winners
            rounds.tell({one: winners[one] for one in planned if one in winners})
        return outcome

    def _questions(self, planned: Iterable[pair_schedule.Meeting]) -> Iterator[Question]:
        failures = self.stage.store.failures(PHASE)
        for meeting in planned:
            datapoint = meeting.datapoint
            a, b = pair_schedule.sides(meeting.first, meeting.second, datapoint, self.stage.config.experiment.seed)
            item = self.work.items.get(datapoint)
            first, second = (self.work.responses.get(f"{datapoint}__{name}") for name in (a, b))
            if item is not None and first is not None and second is not None:
                half = self.earlier.halves.get(pair_schedule.pair_id(datapoint, a, b, self.judge.name))
                yield pair_schedule.compare_question(
                    self.work.task, self.judge, self.rubric, item, (first, second), failures, half
                )


async def compare_all(stage: Stage, tasks: Sequence[Task]) -> Outcome:
    """Collect the missing verdicts of tasks in mode `pairwise`. Raise RunError if a task has no rubric."""
    works = [judged_task(stage, task) for task in tasks if not is_kept(stage, "pairwise", task.name)]

    def work(judge: Model) -> Awaitable[Outcome]:
        return in_turn(_judge(stage, judge, part) for part in works if stage.halted is None)

    judges = [judge for judge in stage.models("judge") if not judge.is_virtual]
    # What is compared next depends on all verdicts so far where the schedule is active.
    by_item = all(task.pairwise.schedule == "all" for task in tasks)
    return await each_model(stage, PHASE, judges, work, by_item=by_item)


async def _judge(stage: Stage, judge: Model, work: JudgedTask) -> Outcome:
    """Collect one judge's verdicts for one task."""
    rubric = {factor: description_of(work.rubric[factor]) for factor in required_factors(judge, work.task, work.rubric)}
    files = stage.run.record_files("pairwise", work.task.name, judge.name)
    is_current = pair_schedule.current_verdicts(work.items.notes, work.responses.notes)
    earlier = pair_schedule.read_verdicts(files, judge.name, is_current, stage.warn_bad_line)
    comparison = _Comparison(stage, judge, work, rubric, earlier)
    schedules = {teacher: comparison.schedule(answered) for teacher, answered in _answered(work).items()}
    expected = sum(schedule.left for schedule in schedules.values())
    stage.progress.expect(expected)
    if work.task.pairwise.schedule == "active":
        outcome = await in_turn(comparison.ask_in_rounds(teacher, schedule) for teacher, schedule in schedules.items())
    else:
        outcome = await comparison.ask(chain.from_iterable(schedule.everything() for schedule in schedules.values()))
    outcome.expected += expected
    return outcome


def _answered(work: JudgedTask) -> dict[str, dict[str, list[str]]]:
    """Return teacher -> item -> students that answered it."""
    answered: dict[str, dict[str, list[str]]] = {}
    for identity in work.responses:
        datapoint, _, student = identity.rpartition("__")
        if datapoint in work.items:
            teacher = datapoint.removeprefix(f"{work.task.name}__").partition("__")[0]
            answered.setdefault(teacher, {}).setdefault(datapoint, []).append(student)
    return answered
