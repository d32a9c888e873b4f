"""The built-in benchmarks by name, and any file of prompts as one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from coeval.errors import RunInputError
from coeval.ingest.benchmark import BadRowError, Benchmark, Entry, text_of
from coeval.ingest.choices import HELLASWAG, MEDQA, MMLU
from coeval.ingest.open_answers import GSM8K, HUMANEVAL, TRUTHFULQA
from p2l.command import nearest

__all__ = ["BENCHMARKS", "benchmark", "generic"]

BENCHMARKS: Mapping[str, Benchmark] = {one.name: one for one in (MMLU, HELLASWAG, TRUTHFULQA, HUMANEVAL, MEDQA, GSM8K)}


def benchmark(name: str) -> Benchmark:
    """A built-in benchmark.

    Raises:
        RunInputError: there is none of this name.
    """
    if name not in BENCHMARKS:
        hint = nearest(name, BENCHMARKS) or f"; there are {', '.join(BENCHMARKS)}"
        raise RunInputError(f"--benchmarks: there is no adapter {name!r}{hint}; for a file of your own use --dataset")
    return BENCHMARKS[name]


def generic(teacher: str, task: str, description: str | None, labels: tuple[str, ...], metric: str | None) -> Benchmark:
    """A file whose rows have `prompt` and `reference_response`, and perhaps `id`, `attributes` and `native_score`.

    Args:
        teacher: name of the virtual teacher.
        task: one of the run's, or a new one.
        description: of a new task.
        labels: attributes that are right answers.
        metric: of the virtual judge that joins.
    """
    rubric: dict[str, Any] = {
        "accuracy": "What the answer says is right, and agrees with the reference where there is one right answer.",
        "completeness": "Nothing that was asked for is missing.",
    }
    if metric is not None:
        rubric[_FACTORS[metric]] = {"metric": metric, "description": f"{metric} against the reference answer."}
    out = "An answer to the prompt, as good as you can make it."
    told = description or "Answer the prompt."
    described = description is not None
    return Benchmark(teacher, task, "", told, out, rubric, _row, {}, labels, metric, described=described)


_FACTORS = {"bertscore": "bertscore_f1", "bleu": "bleu4", "exact_match": "exact_match"}


def _row(row: Mapping[str, Any], number: int) -> Entry:
    attributes = row.get("sampled_target_attributes") or row.get("attributes") or {}
    if not isinstance(attributes, Mapping):
        raise BadRowError("attributes must be an object")
    score = row.get("native_score")
    if isinstance(score, bool) or not (score is None or (isinstance(score, int | float) and 0 <= score <= 1)):
        raise BadRowError("native_score must be a number from 0 to 1")
    prompt, reference = text_of(row, "prompt"), text_of(row, "reference_response")
    return Entry(str(row.get("id", f"{number + 1:05d}")), prompt, reference, dict(attributes), score)
