"""One comparison: the question in both orders, and what two verdicts come to.

Which model is `model_a` is drawn, evenly and always alike for the same pair and item. Part `ab` shows its answer as A,
part `ba` as B. Where the two verdicts are not the same it is a tie: what a judge says only because of the order is not
said at all.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from coeval.config.schema import Model, Phase, Task
from coeval.grading.reading import grading_of, split_rationale
from coeval.parsing import MalformedAnswerError, read_word
from coeval.phases.driving import ATTEMPTS
from coeval.phases.question import Kind, Question
from coeval.prompts import render, rubric_text
from coeval.storage.layout import Run
from coeval.storage.lineage import judged
from coeval.storage.records import now

__all__ = ["KINDS", "combined", "compare_question", "draw", "pair_id", "sides"]

PHASE: Phase = "evaluation"
_WORDS = {"A": "model_a", "B": "model_b", "TIE": "tie", "BAD": "tie (bothbad)"}
_SWAPPED = {"model_a": "model_b", "model_b": "model_a"}
_AROUND = re.compile(r"^\W*(?:(?:verdict|answer|winner)\b\W*)?|\W+$", re.IGNORECASE)


def draw(*about: object) -> float:
    """A number in (0, 1) that depends on what it is about alone."""
    text = repr(about).encode("utf-8", "surrogatepass")
    return (int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big") + 0.5) / 2**64


def sides(one: str, other: str, datapoint: str, seed: int) -> tuple[str, str]:
    """(model_a, model_b): the two models in an order drawn for this item."""
    first, second = sorted((one, other))
    return (first, second) if draw(seed, datapoint, first, second) < 0.5 else (second, first)


def pair_id(datapoint: str, model_a: str, model_b: str, judge: str) -> str:
    """The id of a verdict."""
    return f"{datapoint}__{model_a}__vs__{model_b}__{judge}"


def compare_question(
    task: Task,
    judge: Model,
    rubric: Mapping[str, Any],
    item: Mapping[str, Any],
    responses: tuple[Mapping[str, Any], Mapping[str, Any]],
    failures: Mapping[str, int],
    said: Mapping[str, str] | None = None,
) -> Question:
    """The question which of two answers to an item is better, in the orders in which it was not answered yet.

    Args:
        task, judge, rubric, item: what is asked about, and who.
        responses: those of model_a and model_b.
        failures: id -> how often it was asked in vain.
        said: part -> winner, of an earlier start that had an answer in one order alone.
    """
    a, b = responses
    names = a["student_model_id"], b["student_model_id"]
    context = {
        "id": pair_id(item["id"], *names, judge.name),
        "datapoint_id": item["id"],
        "task_id": task.name,
        "teacher_model_id": item["teacher_model_id"],
        "model_a": names[0],
        "model_b": names[1],
        "response_a_id": a["id"],
        "response_b_id": b["id"],
        "judge_model_id": judge.name,
        **grading_of(task),
        "judged": judged(item, a, b),
        "said": dict(said or {}),
    }
    prompts = {"ab": _prompt(task, judge, rubric, item, a["response"], b["response"])}
    if task.pairwise.both_orders:
        prompts["ba"] = _prompt(task, judge, rubric, item, b["response"], a["response"])
    prompts = {part: prompt for part, prompt in prompts.items() if part not in context["said"]} or prompts
    first = failures.get(context["id"], 0) * ATTEMPTS
    return Question("pair", PHASE, "judge", judge.name, task.name, context, prompts, first)


def _prompt(
    task: Task, judge: Model, rubric: Mapping[str, Any], item: Mapping[str, Any], first: str, second: str
) -> str:
    reference = str(item.get("reference_response") or "") if task.pairwise.reference else ""
    block = f"\nReference answer:\n<reference>\n{reference}\n</reference>\n" if reference else ""
    return render(
        task,
        judge.name,
        "compare",
        input=item["prompt"],
        reference_block=block,
        reference_response=reference,
        response_a=first,
        response_b=second,
        rubric=rubric_text(rubric),
    )


class _Verdict(NamedTuple):
    """What a judge says of the answers in one order."""

    winner: str
    rationale: str


def _read(context: Mapping[str, Any], part: str, text: str) -> _Verdict:
    """The winner that one verdict names, with the rationale if one was asked for.

    Raises:
        MalformedAnswerError: it is none of the four words.
    """
    rationale, said = split_rationale(text, "verdict") if context.get("grading") else ("", text)
    try:
        winner = _winner(str(said))
    except MalformedAnswerError:
        if not rationale:
            raise
        raise MalformedAnswerError("the verdict is none of the four words") from None
    return _Verdict(_SWAPPED.get(winner, winner) if part == "ba" else winner, rationale)


def _winner(text: str) -> str:
    said = _AROUND.sub("", text.rpartition("</think>")[2].strip())
    return _WORDS[read_word(said or text, tuple(_WORDS))]


def combined(verdicts: Mapping[str, str]) -> tuple[str, bool | None]:
    """The winner by the verdicts of one or both orders, and whether both say the same (None: there is one)."""
    said = list(verdicts.values())
    if len(said) == 1:
        return said[0], None
    return (said[0], True) if said[0] == said[1] else ("tie", False)


def _record(context: Mapping[str, Any], values: Mapping[str, _Verdict], failures: Mapping[str, str]) -> dict[str, Any]:
    """A verdict; failed where an order has none, but with what was said in the other, so that it is not asked again."""
    stated = {key: value for key, value in context.items() if key not in ("said", "grading")}
    record: dict[str, Any] = {**stated, "winner": None, "source": "native", "margin": None, "order_consistent": None}
    found = {**context.get("said", {}), **{part: verdict.winner for part, verdict in values.items()}}
    if failures:
        why = "; ".join(dict.fromkeys(failures.values()))
        half = {"said": found} if found else {}
        return {**record, "created_at": now(), "status": "failed", "error": why, **half}
    ordered = {part: found[part] for part in ("ab", "ba") if part in found}
    record["winner"], record["order_consistent"] = combined(ordered)
    whys = [f"{part}: {values[part].rationale}" for part in ordered if part in values and values[part].rationale]
    rationale = {"rationale": "\n".join(whys)} if whys else {}
    return {**record, "verdicts": list(ordered.values()), "created_at": now(), **rationale}


def _path(run: Run, context: Mapping[str, Any]) -> Path:
    return run.pairs(context["task_id"], context["teacher_model_id"], context["judge_model_id"])


KINDS = {"pair": Kind(_read, _record, _path)}
