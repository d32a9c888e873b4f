"""Phase 5: every judge's scores of every answer, and of tasks in mode `pairwise` its verdicts on pairs of answers."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from coeval.errors import RunError
from coeval.judging.factors import LABEL_PREFIX, description_of, judges_of, required_factors
from coeval.judging.grading import Graded, grading_of, is_score, read_factor, read_factors, weighed
from coeval.judging.prompts import render, rubric_text
from coeval.phases.driving import ATTEMPTS, drive, each_model
from coeval.phases.items import index_of_items
from coeval.phases.mapping import any_valid, is_kept, needed_rubric
from coeval.phases.question import Kind, Question
from coeval.phases.responses import index_of_responses
from coeval.phases.stage import Outcome, Stage
from coeval.schema import Model, Phase, Task
from coeval.storage.jsonl import RecordIndex, read_records
from coeval.storage.records import ItemMark, is_failed, is_judgement_of, is_marked, judged, now
from coeval.storage.run import Run
from p2l.common.errors import InputError

# How a judge's words become scores: the question, and the record; nothing that it did not say is ever a score.

PHASE: Phase = "evaluation"


def context_of(
    judge: str, item: Mapping[str, Any], response: Mapping[str, Any], factors: Sequence[str], scores: Mapping[str, str]
) -> dict[str, Any]:
    """What the record of some factors needs besides the judge's answer; `scores` are those it gave before."""
    return {
        "id": f"{response['id']}__{judge}",
        "response_id": response["id"],
        "datapoint_id": item["id"],
        "task_id": response["task_id"],
        "teacher_model_id": response["teacher_model_id"],
        "student_model_id": response["student_model_id"],
        "judge_model_id": judge,
        "judged": judged(item, response),
        "factors": list(factors),
        "scores": dict(scores),
    }


def judge_question(
    task: Task,
    judge: Model,
    rubric: Mapping[str, str],
    item: Mapping[str, Any],
    response: Mapping[str, Any],
    scores: Mapping[str, str],
    failures: Mapping[str, int],
) -> Question:
    """The question for the factors in `rubric`; `scores` are those of other factors, given before."""
    context = {**context_of(judge.name, item, response, list(rubric), scores), **grading_of(task)}
    seen = {
        "input": item["prompt"],
        "target_attributes": json.dumps(item.get("sampled_target_attributes") or {}, ensure_ascii=False),
        "reference_response": item.get("reference_response") or "",
        "reference": item.get("reference_response") or "",
        "response": response["response"],
    }
    first = failures.get(context["id"], 0) * ATTEMPTS
    if task.evaluation_mode == "per_factor":
        prompts = {factor: _factor_prompt(task, judge, factor, text, seen) for factor, text in rubric.items()}
        return Question("factors", PHASE, "judge", judge.name, task.name, context, prompts, first)
    prompt = render(task, judge.name, "evaluate_single", rubric=rubric_text(rubric), **seen)
    return Question("scores", PHASE, "judge", judge.name, task.name, context, {"": prompt}, first)


def _factor_prompt(task: Task, judge: Model, factor: str, text: str, seen: Mapping[str, str]) -> str:
    named = {"rubric_factor_name": factor, "factor": factor, "rubric_factor_description": text, "criterion": text}
    return render(task, judge.name, "evaluate_per_factor", **named, **seen)


def _read_scores(context: Mapping[str, Any], _part: str, text: str) -> Graded:
    return read_factors(context, text)


def _record(context: Mapping[str, Any], values: Mapping[str, Any], failures: Mapping[str, str]) -> dict[str, Any]:
    """The scores of all factors given so far; failed, and without any, where this time brought none."""
    record = {key: value for key, value in context.items() if key not in ("factors", "scores", "grading")}
    why = "; ".join(dict.fromkeys(failures.values()))
    if not values:
        return {**record, "scores": {}, "evaluated_at": now(), "status": "failed", "error": why}
    scores = dict(context["scores"])
    for found in values.values():
        scores.update(found.scores)
    raw = "\n".join(found.text for found in values.values())
    record = {**record, "scores": scores, "evaluated_at": now(), "raw": raw, **_beside(values)}
    return {**record, "error": why} if why else record


def _beside(values: Mapping[str, Graded]) -> dict[str, Any]:
    """What a judge said besides the scores: grades as it named them, and why it gave them."""
    grades = {factor: grade for found in values.values() for factor, grade in found.grades.items()}
    whys = [f"{part}: {found.rationale}" if part else found.rationale for part, found in values.items()]
    rationale = {"rationale": "\n".join(whys)} if any(found.rationale for found in values.values()) else {}
    return {**({"grades": grades} if grades else {}), **rationale}


def _path(run: Run, context: Mapping[str, Any]) -> Path:
    return run.evaluations(context["task_id"], context["teacher_model_id"], context["judge_model_id"])


KINDS = {"scores": Kind(_read_scores, _record, _path), "factors": Kind(read_factor, _record, _path, weighed)}

# What a judge has scored so far of the answers as they are now, and what that leaves.


@dataclass
class Scored:
    """What one judge has scored of a task."""

    judge: Model
    factors: tuple[str, ...]
    """What it has to score."""
    done: set[str] = field(default_factory=set)
    """Responses with a score for every factor that is required."""
    partly: dict[str, dict[str, str]] = field(default_factory=dict)
    """Response -> scores of some of them, and of others."""
    students: set[str] = field(default_factory=set)
    """Of whom it has scored anything."""
    marked: Counter[str] = field(default_factory=Counter)
    """How often evaluations of an id were marked as failed."""

    def factors_of(self, item: ItemMark | None) -> tuple[str, ...]:
        """What it has to score of answers to an item, which has only the labels that it was made with."""
        if self.judge.interface != "label" or item is None:
            return self.factors
        return tuple(factor for factor in self.factors if factor.removeprefix(LABEL_PREFIX) in item.attributes)

    def take(self, record: Mapping[str, Any], item: ItemMark | None) -> None:
        """Take in a record about an answer to an item."""
        response, scores = record["response_id"], record.get("scores")
        if not isinstance(scores, dict):
            return
        known = self.partly.pop(response, {})
        known.update({factor: score for factor, score in scores.items() if is_score(score)})
        if known:
            self.students.add(response.rpartition("__")[2])
        if all(factor in known for factor in self.factors_of(item)):
            self.done.add(response)
        elif known:
            self.partly[response] = known


def read_scored(
    stage: Stage, task: str, judge: Model, factors: tuple[str, ...], items: RecordIndex, responses: RecordIndex
) -> Scored:
    """Read the scores of a judge; those of texts that are no more there do not count."""
    found = Scored(judge, factors)
    for record in _records(stage, task, judge.name):
        answer, item = (
            responses.notes.get(str(record.get("response_id"))),
            items.notes.get(str(record.get("datapoint_id"))),
        )
        if is_marked(record):
            found.marked[str(record.get("id"))] += 1
        elif answer is None or is_failed(record):
            continue
        elif item is None or is_judgement_of(record, item, [answer]):
            found.take(record, item)
    return found


def _records(stage: Stage, task: str, judge: str) -> Iterator[dict[str, Any]]:
    for path in stage.run.evaluation_files(task):
        # A model's name may have dots, so the file's name only says who it may be; the record says who it is.
        if path.name.endswith(f".{judge}.evaluations.jsonl"):
            for record in read_records(path, stage.warn_bad_line):
                if record.get("judge_model_id") == judge and record.get("task_id") == task:
                    yield record


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
        from coeval.phases.pairwise import compare_all

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
    from coeval.judging.metrics import scores_for

    records = []
    rubric = {factor: work.rubric[factor] for factor in scored.factors if factor in work.rubric}
    for (item, response), found in zip(part, scores_for(scored.judge, work.task, rubric, part), strict=True):
        context = context_of(scored.judge.name, item, response, (), {})
        scores = {**scored.partly.get(response["id"], {}), **found}
        record = {key: value for key, value in context.items() if key not in ("factors", "scores")}
        records.append({**record, "scores": scores, "evaluated_at": now()})
    return records
