"""How a judge's words become scores: the question, and the record; nothing that it did not say is ever a score."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from coeval.config.schema import Model, Phase, Task
from coeval.grading.reading import Graded, grading_of, read_factor, read_factors, weighed
from coeval.phases.driving import ATTEMPTS
from coeval.phases.question import Kind, Question
from coeval.prompts import render, rubric_text
from coeval.storage.layout import Run
from coeval.storage.lineage import judged
from coeval.storage.records import now

__all__ = [
    "KINDS",
    "context_of",
    "judge_question",
]

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
