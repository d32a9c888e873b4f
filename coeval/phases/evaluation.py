"""Phase 5: every judge's scores of every answer, and of tasks in mode `pairwise` its verdicts on pairs of answers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

from coeval.config.schema import Model, Phase, Task
from coeval.errors import RunError
from coeval.grading.weights import description_of
from coeval.phases.driving import drive, each_model
from coeval.phases.factors import judges_of, required_factors
from coeval.phases.items import index_of_items
from coeval.phases.kept import any_valid, is_kept
from coeval.phases.responses import index_of_responses
from coeval.phases.rubric import needed_rubric
from coeval.phases.scored import Scored, read_scored
from coeval.phases.scoring import context_of, judge_question
from coeval.phases.stage import Outcome, Stage
from coeval.storage.index import RecordIndex
from coeval.storage.records import now
from p2l.errors import InputError

__all__ = ["evaluate"]

PHASE: Phase = "evaluation"
_AT_ONCE = 64  # answers that a metric takes in one go


@dataclass
class _Work:
    """What all judges of a task look at."""

    task: Task
    rubric: Mapping[str, Any]
    items: RecordIndex
    responses: RecordIndex


async def evaluate(stage: Stage) -> Outcome:
    """Collect the scores and verdicts that are missing.

    Raises:
        RunError: there is none at the end, and no limit is the reason.
    """
    works = [_work_of(stage, task) for task in stage.config.tasks if _is_scored(stage, task)]

    async def work(judge: Model) -> Outcome:
        outcome = Outcome()
        for part in works:
            if judge in judges_of(stage.config, part.task) and not outcome.stopped and not outcome.refused:
                outcome.add(await _judge(stage, judge, part))
        return outcome

    outcome = await each_model(stage, PHASE, _judges(stage), work)
    pairwise = [task for task in stage.config.tasks if task.evaluation_mode == "pairwise"]
    if pairwise and stage.halted is None:
        from coeval.pairs.phase import compare_all

        outcome.add(await compare_all(stage, pairwise))
    if not outcome.stopped and not stage.limited and stage.only is None:
        _check_any(stage)
    return outcome


def _judges(stage: Stage) -> list[Model]:
    """All judges at work, the one of labels included."""
    found = {judge.name: judge for task in stage.config.tasks for judge in judges_of(stage.config, task)}
    return [judge for judge in found.values() if stage.only is None or judge.name in stage.only]


def _work_of(stage: Stage, task: Task) -> _Work:
    rubric = needed_rubric(stage.run, task.name)
    items = index_of_items(stage, task.name)
    return _Work(task, rubric, items, index_of_responses(stage, task.name, items))


def _is_scored(stage: Stage, task: Task) -> bool:
    """Whether anybody may score answers to a task: where they are compared in pairs, only who computes scores does."""
    if task.evaluation_mode == "pairwise" and not any(judge.is_virtual for judge in judges_of(stage.config, task)):
        return False
    return not is_kept(stage, stage.run.evaluation_files(task.name))


def _check_any(stage: Stage) -> None:
    if not any_valid([*stage.run.evaluation_files(), *stage.run.pair_files()]):
        raise RunError(f"{PHASE}: no judge gave any score; see {stage.run.errors}")


async def _judge(stage: Stage, judge: Model, work: _Work) -> Outcome:
    """One judge, one task."""
    factors = required_factors(judge, work.task, work.rubric)
    if not factors or (work.task.evaluation_mode == "pairwise" and not judge.is_virtual):
        return Outcome()
    scored = read_scored(stage, work.task.name, judge, factors, work.items, work.responses)
    missing = [one for one in work.responses if not _is_skipped(stage, work, one, scored)]
    stage.progress.expect(len(missing))
    found = _with_items(stage, work, missing)
    if judge.is_virtual:
        outcome = await _compute(stage, work, found, scored)
    else:
        outcome = await drive(stage, PHASE, judge, _questions(stage, work, found, scored))
    outcome.expected = len(missing)
    return outcome


def _is_skipped(stage: Stage, work: _Work, response: str, scored: Scored) -> bool:
    """Whether nothing is to be scored of an answer: all is done, or its item has none of the labels."""
    if response in scored.done or (stage.modes[PHASE] == "Model" and response.rpartition("__")[2] in scored.students):
        return True
    return not scored.factors_of(work.items.notes.get(response.rpartition("__")[0]))


def _with_items(stage: Stage, work: _Work, responses: Iterable[str]) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Each answer with its item; an answer to an item that is not there is left out."""
    for identity in responses:
        response = work.responses.get(identity)
        item = None if response is None else work.items.get(str(response.get("datapoint_id")))
        if response is not None and item is not None:
            yield item, response
        else:
            stage.log.warning(f"{PHASE}: {identity} is not judged: its item is missing")


def _questions(
    stage: Stage, work: _Work, found: Iterable[tuple[dict[str, Any], dict[str, Any]]], scored: Scored
) -> Iterator[Any]:
    failures = stage.store.failures(PHASE) + scored.marked
    for item, response in found:
        known = scored.partly.get(response["id"], {})
        asked = {factor: description_of(work.rubric[factor]) for factor in scored.factors if factor not in known}
        yield judge_question(work.task, scored.judge, asked, item, response, known, failures)


async def _compute(
    stage: Stage, work: _Work, found: Iterable[tuple[dict[str, Any], dict[str, Any]]], scored: Scored
) -> Outcome:
    """Scores that are computed, not asked for."""
    outcome = Outcome()
    answers = iter(found)
    while part := list(islice(answers, _AT_ONCE)):
        try:
            records = await asyncio.to_thread(_computed, work, part, scored)
        except InputError as error:
            stage.log.error(f"{PHASE}: {scored.judge.name}: {error}")
            stage.store.error(PHASE, str(error), task=work.task.name, model=scored.judge.name, role="judge")
            outcome.refused[scored.judge.name] = str(error)
            return outcome
        for record in records:
            path = stage.run.evaluations(work.task.name, record["teacher_model_id"], scored.judge.name)
            stage.store.append(path, record)
            outcome.stored += 1
            stage.progress.advance()
    return outcome


def _computed(work: _Work, part: list[tuple[dict[str, Any], dict[str, Any]]], scored: Scored) -> list[dict[str, Any]]:
    from coeval.judges import scores_for

    records = []
    rubric = {factor: work.rubric[factor] for factor in scored.factors if factor in work.rubric}
    for (item, response), found in zip(part, scores_for(scored.judge, work.task, rubric, part), strict=True):
        context = context_of(scored.judge.name, item, response, (), {})
        scores = {**scored.partly.get(response["id"], {}), **found}
        record = {key: value for key, value in context.items() if key not in ("factors", "scores")}
        records.append({**record, "scores": scores, "evaluated_at": now()})
    return records
