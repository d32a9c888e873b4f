"""Results of tools that test prompts: promptfoo, OpenAI's evals, DeepEval."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from p2l.common.errors import VoteError
from p2l.votes.kinds.harnesses import lines_of
from p2l.votes.kinds.kind import Kind, Record, Row, Sample, read_document
from p2l.votes.kinds.tables import graded, one_text
from p2l.votes.kinds.texts import unquoted
from p2l.votes.kinds.traces import mapping
from p2l.votes.kinds.values import NoVerdictError, first_of, grade, identifier, name_of

_ERROR = 2  # promptfoo's failureReason of an answer that failed, where 1 is an assertion that did


def _promptfoo_results(sample: Sample) -> Iterator[Record]:
    if not sample.is_document:  # JSON lines, a result on each
        yield from sample.rows_of("")
        return
    document = read_document(sample.table_path, sample.name)
    results = document.get("results")
    if isinstance(results, Mapping):  # since version 3 of the format, with prompts and statistics beside
        results = results.get("results")
    if not isinstance(results, list):
        raise VoteError(f"{sample.name}: has no list results.results, as promptfoo writes it")
    for number, result in enumerate(results, 1):
        if not isinstance(result, dict):
            raise VoteError(f"{sample.name}: result {number} is not an object")
        yield Record(f"{sample.name}: result {number}", result)


def _promptfoo(row: Row) -> Iterator[Row]:
    if row.get("failureReason") == _ERROR or (row.get("error") and not row.get("gradingResult")):
        raise NoVerdictError("error of the provider")
    provider = row.get("provider")
    if isinstance(provider, Mapping):
        provider = provider.get("label") or provider.get("id")
    prompt = row.get("prompt")
    text = prompt.get("raw") if isinstance(prompt, Mapping) else prompt
    score = row.get("score") if row.get("score") is not None else row.get("success")
    template = row.get("promptId") or (prompt.get("label") if isinstance(prompt, Mapping) else "")
    yield {
        # A test is asked with each prompt: only answers to the same words are compared.
        "question_id": identifier([row.get("testIdx"), template, text if row.get("testIdx") is None else None]),
        "prompt": one_text(text),
        "model": name_of(provider, "provider"),
        "score": grade(score),
        "cost": row.get("cost"),
    }


def _openai_log(sample: Sample) -> Iterator[Record]:
    """Yield one record a sample of a log of OpenAI Evals, of its events."""
    model = task = None
    prompts: dict[str, Any] = {}
    for place, event, _ in lines_of(sample.table_path, sample.name):
        if isinstance(event.get("spec"), dict):
            names = event["spec"].get("completion_fns") or [event["spec"].get("run_config", {}).get("model")]
            model, task = names[0], event["spec"].get("base_eval") or event["spec"].get("eval_name")
        kind, data = event.get("type"), mapping(event.get("data"))
        if kind == "sampling":
            prompts.setdefault(str(event.get("sample_id")), data.get("prompt"))
        if kind in {"match", "metrics"}:
            score = first_of(data, ("correct", "score", "choice", "accuracy"))
            prompt = prompts.get(str(event.get("sample_id")))
            named = {"model": model, "task": task, "id": event.get("sample_id")}
            yield Record(place, {**named, "prompt": prompt, "score": score})


def _openai_item(row: Row) -> Iterator[Row]:
    """Yield the answer of an output item of OpenAI's API of evals."""
    if row.get("status") == "error":
        raise NoVerdictError("error")
    answer = mapping(row.get("sample"))
    results = unquoted(row.get("results")) or []
    scores = [first_of(result, ("score", "passed")) for result in results if isinstance(result, Mapping)]
    score = next((score for score in scores if score is not None), None)
    yield {
        "question_id": identifier(row.get("datasource_item_id")),
        "prompt": one_text(answer.get("input"), "input"),
        "model": name_of(answer.get("model"), "sample.model"),
        "score": grade(score if score is not None else {"pass": 1, "fail": 0}.get(str(row.get("status")))),
    }


def _deepeval_cases(sample: Sample) -> Iterator[Record]:
    document = read_document(sample.table_path, sample.name)
    if isinstance(document.get("testRunData"), dict):
        document = document["testRunData"]
    parameters = mapping(document.get("hyperparameters"))
    model = first_of(parameters, ("model", "llm", "Model", "model_name"))
    if model is None:
        raise VoteError(
            f"{sample.name}: names no model; DeepEval keeps it where hyperparameters={{'model': ...}} are logged"
        )
    for number, case in enumerate(document.get("testCases") or document.get("test_results") or [], 1):
        if not isinstance(case, dict):
            raise VoteError(f"{sample.name}: test case {number} is not an object")
        yield Record(f"{sample.name}: test case {number}", {**case, "p2l_model": model})


def _deepeval(row: Row) -> Iterator[Row]:
    listed = first_of(row, ("metricsData", "metrics_data", "metricsMetadata")) or []
    metrics = [metric for metric in listed if isinstance(metric, Mapping)]
    decisive = [metric for metric in metrics if not metric.get("flaky")] or metrics  # as a test case's success has it
    scores = [grade(metric["score"]) for metric in decisive if metric.get("score") is not None]
    if not scores and any(metric.get("error") for metric in decisive):
        raise NoVerdictError("error of a metric")
    if not scores and row.get("success") is None:
        raise NoVerdictError("no metric")
    prompt = one_text(row.get("input"), "input")
    yield {
        "question_id": prompt,
        "prompt": prompt,
        "model": name_of(row["p2l_model"], "model"),
        "score": sum(scores) / len(scores) if scores else grade(row["success"]),
        "cost": row.get("tokenCost"),
    }


def _is_promptfoo(sample: Sample) -> bool:
    if not sample.is_document:
        return sample.has("promptIdx", "testIdx", "provider", "success", "score")
    return sample.has("results") and bool({"evalId", "config", "version", "stats"} & sample.columns)


def _is_openai_log(sample: Sample) -> bool:
    has_event = any(row.get("event_id") is not None and row.get("type") for row in sample.rows)
    return any(isinstance(row.get("spec"), dict) for row in sample.rows) or (has_event and sample.has("run_id", "data"))


KINDS = (
    Kind(
        name="promptfoo",
        about="promptfoo results",
        gives="scores",
        recognise=_is_promptfoo,
        reads="provider -> model, prompt.raw -> prompt, score -> score, testIdx and promptId -> question_id",
        convert=_promptfoo,
        records=_promptfoo_results,
        sample='{"evalId": "e1", "results": {"version": 3, "results": [{"provider": {"id": "echo", "label": "ant"}, '
        '"prompt":\n'
        '{"raw": "2 + 2?"}, "testIdx": 0, "success": true, "score": 1}]}, "config": {}}',
    ),
    Kind(
        name="openai-evals-log",
        about="a log of OpenAI Evals",
        gives="scores",
        recognise=_is_openai_log,
        reads="completion_fns -> model, sampling -> prompt, match or metrics -> score",
        convert=graded,
        records=_openai_log,
        sample='{"spec": {"completion_fns": ["ant"], "eval_name": "sums.dev.v0", "base_eval": "sums"}}\n'
        '{"run_id": "r1", "event_id": 0, "sample_id": "sums.0", "type": "match", "data": {"correct": true}}',
    ),
    Kind(
        name="openai-evals-api",
        about="output items of OpenAI's API of evals",
        gives="scores",
        recognise=lambda sample: sample.has("datasource_item_id", "sample", "results"),
        marks=("datasource_item_id", "eval_id"),
        needs=("sample", "results"),
        reads="sample.model -> model, sample.input -> prompt, results[0].score or passed -> score",
        convert=_openai_item,
        sample='{"object": "list", "data": [{"id": "o1", "eval_id": "e1", "datasource_item_id": 5, "status": "pass", '
        '"results":\n'
        '[{"name": "match", "score": 1, "passed": true}], "sample": {"model": "ant", "input": [{"role": "user", '
        '"content": "Hi"}]}}]}',
    ),
    Kind(
        name="deepeval",
        about="DeepEval test results",
        gives="scores",
        recognise=lambda sample: (
            bool({"testCases", "test_results", "testRunData"} & sample.columns) and sample.is_document
        ),
        reads="hyperparameters.model -> model, input -> prompt, mean of the metrics -> score",
        convert=_deepeval,
        records=_deepeval_cases,
        sample='{"testCases": [{"name": "t0", "input": "2 + 2?", "actualOutput": "4", "success": true, "metricsData": '
        '[{"name":\n'
        '"Correctness", "score": 0.9, "success": true}]}], "hyperparameters": {"model": "ant"}}',
    ),
)
