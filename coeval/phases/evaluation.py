"""Phase 5: every judge's scores of every answer, and its verdicts on pairs of answers in tasks of mode `pairwise`."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Awaitable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, TypeAlias

from coeval.errors import RunError
from coeval.judging.grading import Graded, grading_of, is_score, read_factor, read_factors, weighed
from coeval.judging.prompts import render, reply_schema, rubric_text
from coeval.parsing import split_thoughts
from coeval.phases.asking import ATTEMPTS, drive, each_model, in_turn
from coeval.phases.mapping import any_valid, is_kept
from coeval.phases.progress import Outcome, Stage
from coeval.phases.question import Kind, Question
from coeval.phases.responses import JudgedTask, judged_task
from coeval.schema import LABEL_PREFIX, Model, Phase, Task, description_of, judges_of, required_factors
from coeval.storage.records import ItemMark, is_failed, is_judgement_of, is_marked, judged, now
from p2l.common.errors import InputError

_PHASE: Phase = "evaluation"
# Judges see it where an item has no reference answer.
_NO_REFERENCE = "There is none: go by the task and the rubric alone."
_ANSWERS_PER_METRIC_CALL = 64  # answers that a metric scores in one call
_Answered: TypeAlias = tuple[dict[str, Any], dict[str, Any]]  # an item and an answer to it


def _judgement_id(response: str, judge: str) -> str:
    """Return the id of the scores that a judge gives a response."""
    return f"{response}__{judge}"


def _context(
    judge: str, item: Mapping[str, Any], response: Mapping[str, Any], scores: Mapping[str, str]
) -> dict[str, Any]:
    """Return the parts of a record besides the judge's answer; `scores` are earlier ones."""
    return {
        "id": _judgement_id(response["id"], judge),
        "response_id": response["id"],
        "datapoint_id": item["id"],
        "task_id": response["task_id"],
        "teacher_model_id": response["teacher_model_id"],
        "student_model_id": response["student_model_id"],
        "judge_model_id": judge,
        "judged": judged(item, response),
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
    """Return the question for the factors in `rubric`; `scores` are earlier ones of other factors."""
    context = {**_context(judge.name, item, response, scores), "factors": list(rubric), **grading_of(task)}
    reference = item.get("reference_response") or _NO_REFERENCE
    texts = {
        "input": item["prompt"],
        "target_attributes": json.dumps(item.get("sampled_target_attributes") or {}, ensure_ascii=False),
        "reference_response": reference,
        "reference": reference,
        "response": response["response"],
    }
    prompts: dict[str, str] = {}
    name = "evaluate_per_factor" if task.evaluation_mode == "per_factor" else "evaluate_single"
    if task.evaluation_mode == "per_factor":
        for factor, text in rubric.items():
            # Each text under the manual's name and a shorter one, for prompts of either kind.
            texts |= {"rubric_factor_name": factor, "factor": factor}
            texts |= {"rubric_factor_description": text, "criterion": text}
            prompts[factor] = render(task, judge.name, name, **texts)
    else:
        prompts[""] = render(task, judge.name, name, rubric=rubric_text(rubric), **texts)
    return Question(
        kind="factors" if task.evaluation_mode == "per_factor" else "scores",
        phase=_PHASE,
        role="judge",
        model=judge.name,
        task=task.name,
        context=context,
        prompts=prompts,
        schema=reply_schema(task, judge.name, name, list(rubric)),
        first_attempt=failures.get(context["id"], 0) * ATTEMPTS,
    )


def _record(context: Mapping[str, Any], answers: Mapping[str, Graded], failures: Mapping[str, str]) -> dict[str, Any]:
    """Return the scores of all factors so far; failed, and without any, if there are no new ones."""
    record = {key: value for key, value in context.items() if key not in ("factors", "scores", "grading")}
    why = "; ".join(dict.fromkeys(failures.values()))
    if not answers:
        return {**record, "scores": {}, "evaluated_at": now(), "status": "failed", "error": why}
    scores = dict(context["scores"])
    for graded in answers.values():
        scores.update(graded.scores)
    replies = [split_thoughts(graded.text) for graded in answers.values()]
    record |= {"scores": scores, "evaluated_at": now(), "raw": "\n".join(reply for reply, _ in replies)}
    if any(thoughts for _, thoughts in replies):
        record["thoughts"] = "\n".join(thoughts for _, thoughts in replies if thoughts)
    grades = {factor: grade for graded in answers.values() for factor, grade in graded.grades.items()}
    if grades:
        record["grades"] = grades
    if any(graded.rationale for graded in answers.values()):
        texts = (f"{part}: {graded.rationale}" if part else graded.rationale for part, graded in answers.items())
        record["rationale"] = "\n".join(texts)
    return {**record, "error": why} if why else record


KINDS = {
    "scores": Kind(lambda context, _part, text: read_factors(context, text), _record, "evaluation"),
    "factors": Kind(read_factor, _record, "evaluation", weighed),
}


@dataclass
class _Scored:
    """One judge's scores for a task."""

    judge: Model
    factors: tuple[str, ...]  # the factors that the judge has to score
    done: set[str] = field(default_factory=set)  # responses with a score for every required factor
    # Response -> scores of some of them, and of others.
    partial: dict[str, dict[str, str]] = field(default_factory=dict)
    students: set[str] = field(default_factory=set)  # students of whom it has scored anything
    marked: Counter[str] = field(default_factory=Counter)  # how often evaluations of an id were marked as failed

    def factors_of(self, item: ItemMark | None) -> tuple[str, ...]:
        """Return the factors of answers to an item, which has only the labels that it was made with."""
        if self.judge.interface != "label" or item is None:
            return self.factors
        return tuple(factor for factor in self.factors if factor.removeprefix(LABEL_PREFIX) in item.attributes)

    def add(self, record: Mapping[str, Any], item: ItemMark | None) -> None:
        """Add a record about an answer to an item."""
        response, scores = record["response_id"], record.get("scores")
        if not isinstance(scores, dict):
            return
        merged = self.partial.pop(response, {})
        merged.update({factor: score for factor, score in scores.items() if is_score(score)})
        if merged:
            self.students.add(response.rpartition("__")[2])
        if all(factor in merged for factor in self.factors_of(item)):
            self.done.add(response)
        elif merged:
            self.partial[response] = merged


def _read_scored(stage: Stage, judge: Model, factors: tuple[str, ...], work: JudgedTask) -> _Scored:
    """Read the scores of a judge; those of texts that have changed do not count."""
    task, scored = work.task.name, _Scored(judge, factors)
    for record in stage.run.read(_PHASE, task, judge.name, stage.warn_bad_line):
        if record.get("judge_model_id") != judge.name or record.get("task_id") != task:
            continue
        answer = work.responses.notes.get(str(record.get("response_id")))
        item = work.items.notes.get(str(record.get("datapoint_id")))
        if is_marked(record):
            scored.marked[str(record.get("id"))] += 1
        elif answer is None or is_failed(record):
            continue
        elif item is None or is_judgement_of(record, item, [answer]):
            scored.add(record, item)
    return scored


async def evaluate(stage: Stage) -> Outcome:
    """Collect the missing scores and verdicts. Raise RunError if there is none at the end, without a limit."""
    works = []
    for task in stage.config.tasks:
        # In mode `pairwise` only judges that compute scores score answers; the others compare them.
        is_scored = task.evaluation_mode != "pairwise" or any(
            judge.is_virtual for judge in judges_of(stage.config, task)
        )
        if is_scored and not is_kept(stage, "evaluation", task.name):
            works.append(judged_task(stage, task))
    judges = {judge.name: judge for task in stage.config.tasks for judge in judges_of(stage.config, task)}

    def work(judge: Model) -> Awaitable[Outcome]:
        return in_turn(_judge(stage, judge, part) for part in works if judge in judges_of(stage.config, part.task))

    at_work = [judge for judge in judges.values() if stage.only is None or judge.name in stage.only]
    outcome = await each_model(stage, _PHASE, at_work, work, by_item=True)
    pairwise = [task for task in stage.config.tasks if task.evaluation_mode == "pairwise"]
    if pairwise and stage.halted is None:
        from coeval.phases.pairwise import compare_all  # it brings NumPy

        outcome.add(await compare_all(stage, pairwise))
    is_whole = not outcome.stopped and not stage.limited and stage.only is None
    if is_whole and not any(any_valid(stage.run, kind) for kind in ("evaluation", "pairwise")):
        raise RunError(f"{_PHASE}: no judge gave any score; see {stage.run.errors}")
    return outcome


async def _judge(stage: Stage, judge: Model, work: JudgedTask) -> Outcome:
    """Collect one judge's scores for one task."""
    factors = required_factors(judge, work.task, work.rubric)
    if not factors or (work.task.evaluation_mode == "pairwise" and not judge.is_virtual):
        return Outcome()
    scored = _read_scored(stage, judge, factors, work)
    missing = []
    for response in work.responses:
        item, _, student = response.rpartition("__")
        is_done = response in scored.done or (stage.modes[_PHASE] == "Model" and student in scored.students)
        is_done = is_done or _judgement_id(response, judge.name) in stage.failed
        # An item without any of the labels has no factors: nothing of its answers can be scored.
        if not is_done and scored.factors_of(work.items.notes.get(item)):
            missing.append((item.rpartition("__")[2], response))
    # By the number of the item, so that a judge that a quota stops has scored whole items: all students alike, and
    # items of all teachers.
    missing.sort()
    answered = _with_items(stage, work, [response for _, response in missing])
    if judge.is_virtual:
        # Its scores are computed, not asked for.
        outcome = Outcome(len(missing))
        stage.progress.expect(outcome.expected)
        while batch := list(islice(answered, _ANSWERS_PER_METRIC_CALL)):
            try:
                # In a thread: a metric such as BERTScore takes seconds, in which other judges' answers arrive.
                records = await asyncio.to_thread(_computed, work, batch, scored)
            except InputError as error:
                stage.log.error(f"{_PHASE}: {judge.name}: {error}")
                stage.store.error(_PHASE, str(error), task=work.task.name, model=judge.name, role="judge")
                outcome.refused[judge.name] = str(error)
                return outcome
            for record in records:
                stage.store.append(stage.run.path_of("evaluation", record), record)
                outcome.stored += 1
                stage.progress.advance()
        return outcome

    def questions() -> Iterator[Question]:
        failures = stage.store.failures(_PHASE) + scored.marked
        for item, response in answered:
            scores = scored.partial.get(response["id"], {})
            rubric = {factor: description_of(work.rubric[factor]) for factor in factors if factor not in scores}
            yield judge_question(work.task, judge, rubric, item, response, scores, failures)

    return await drive(stage, _PHASE, judge, questions(), expected=len(missing))


def _with_items(stage: Stage, work: JudgedTask, responses: Iterable[str]) -> Iterator[_Answered]:
    """Yield each answer with its item; skip and report an answer without its item."""
    for identity in responses:
        response = work.responses.get(identity)
        item = None if response is None else work.items.get(str(response.get("datapoint_id")))
        if response is not None and item is not None:
            yield item, response
        else:
            stage.log.warning(f"{_PHASE}: {identity} is not judged: its item is missing")


def _computed(work: JudgedTask, batch: list[_Answered], scored: _Scored) -> list[dict[str, Any]]:
    from coeval.judging.metrics import scores_for

    records = []
    rubric = {factor: work.rubric[factor] for factor in scored.factors if factor in work.rubric}
    for (item, response), scores in zip(batch, scores_for(scored.judge, work.task, rubric, batch), strict=True):
        whole = {**scored.partial.get(response["id"], {}), **scores}
        records.append({**_context(scored.judge.name, item, response, whole), "evaluated_at": now()})
    return records
