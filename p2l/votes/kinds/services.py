"""Exports of tools that test prompts and watch applications: promptfoo, OpenAI's evals, DeepEval, Langfuse, "
"LangSmith, Braintrust."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from p2l.common.errors import VoteError
from p2l.votes.kinds.harnesses import lines_of
from p2l.votes.kinds.kind import Kind, Record, Row, Sample, read_document
from p2l.votes.kinds.tables import graded, one_text
from p2l.votes.kinds.texts import RowError, unquoted
from p2l.votes.kinds.values import NoVerdictError, first_of, grade, identifier, name_of

_ERROR = 2  # promptfoo's failureReason of an answer that failed, where 1 is an assertion that did
_COSTS = ("totalCost", "calculatedTotalCost", "estimated_cost")
_TABLE_ENDINGS = (".csv", ".json", ".jsonl", ".csv.gz", ".json.gz", ".jsonl.gz", ".parquet")
# Columns of Langfuse's table of observations; all others are names of scores.
_OBSERVATION_FIELDS = frozenset(
    (
        *("id", "traceId", "projectId", "environment", "type", "parentObservationId", "startTime", "endTime", "name"),
        *("metadata", "level", "statusMessage", "version", "input", "output", "model", "internalModel", "modelId"),
        *("internalModelId", "modelParameters", "providedModelName", "usageDetails", "costDetails", "latency"),
        *("providedCostDetails", "providedUsageDetails", "completionStartTime", "promptId", "promptName", "unit"),
        *("promptVersion", "createdAt", "updatedAt", "timeToFirstToken", "traceName", "traceTags", "traceTimestamp"),
        *("userId", "sessionId", "inputCost", "outputCost", "totalCost", "inputUsage", "outputUsage", "totalUsage"),
        *("inputPrice", "outputPrice", "totalPrice", "tags", "toolDefinitions", "toolCalls", "toolCallNames"),
        *("comments", "release", "bookmarked", "public"),
    )
)
_FIRST_MODEL = ("model", "providedModelName", "provided_model_name", "ls_model_name", "model_name", "modelId")


def _mapping(value: Any) -> Mapping[str, Any]:
    parsed = unquoted(value)
    return parsed if isinstance(parsed, Mapping) else {}


def _text(value: Any) -> str | None:
    """Return an input as a text: a text, messages, or the one text that an object of inputs holds."""
    parsed = unquoted(value)
    if isinstance(parsed, Mapping) and "messages" not in parsed:
        inner = first_of(parsed, ("question", "input", "prompt", "query", "text", "messages"))
        if inner is None:
            texts = [part for part in parsed.values() if isinstance(part, str)]
            inner = texts[0] if len(texts) == 1 else None
        parsed = inner if inner is not None else str(value)
    if isinstance(parsed, list) and len(parsed) == 1 and isinstance(parsed[0], list):  # LangChain: batches of messages
        parsed = parsed[0]
    return one_text(parsed, "input")


def _first_score(scores: Any) -> float:
    """Return the first grade of an object of scores: numbers, lists of numbers, {avg}, {score}."""
    for name, value in _mapping(scores).items():
        if isinstance(value, Mapping):
            value = first_of(value, ("score", "value", "avg"))
        if isinstance(value, list) and value:
            value = sum(grade(part, name) for part in value) / len(value)
        if value is not None and value != []:
            return grade(value, str(name))
    raise NoVerdictError("no score")


def _promptfoo_results(sample: Sample) -> Iterator[Record]:
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
        kind, data = event.get("type"), _mapping(event.get("data"))
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
    answer = _mapping(row.get("sample"))
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
    parameters = _mapping(document.get("hyperparameters"))
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


def _observation(row: Row) -> Iterator[Row]:
    """Yield the answer of a row of Langfuse's or Braintrust's exports: model, input, and an object of scores."""
    if row.get("is_root") in (False, "false"):
        raise NoVerdictError("span inside of another")
    metadata, metrics = _mapping(row.get("metadata")), _mapping(row.get("metrics"))
    model = first_of(row, _FIRST_MODEL) or first_of(metadata, _FIRST_MODEL)
    text = _text(row.get("input"))
    yield {
        "question_id": text,
        "prompt": text,
        "model": name_of(model, "model"),
        "score": _first_score(row.get("scores")),
        "cost": first_of({**metrics, **row}, _COSTS),
    }


def _langsmith(row: Row) -> Iterator[Row]:
    metadata = _mapping(_mapping(row.get("extra")).get("metadata"))
    model = first_of(metadata, _FIRST_MODEL) or first_of(row, ("session_name", "experiment"))
    text = _text(row.get("inputs"))
    yield {
        "question_id": identifier(row.get("reference_example_id")) or text,
        "prompt": text,
        "model": name_of(model, "extra.metadata.ls_model_name"),
        "score": _first_score(row.get("feedback_stats")),
        "cost": row.get("total_cost"),
    }


# Langfuse: a table of scores names traces alone; the model and the input stand in the table of observations.


def _langfuse_score(row: Row) -> Iterator[Row]:
    """Yield a score with the model and the input of what it was given to."""
    model = first_of(row, _FIRST_MODEL) or first_of(_mapping(row.get("metadata")), _FIRST_MODEL)
    if model is None and "p2l_observation" in row:
        raise NoVerdictError("score of something else than an answer of a model")
    is_number = row.get("dataType") in (None, "NUMERIC", "BOOLEAN")
    value = first_of(row, ("value", "stringValue") if is_number else ("stringValue", "value"))
    try:
        score = grade(value)
    except RowError as error:
        raise (error if is_number else NoVerdictError("score in words")) from error
    name, text = identifier(row.get("name")), _text(first_of(row, ("input", "traceInput")))
    yield {
        "question_id": f"{name}: {text}",
        "category": name,
        "prompt": text,
        "model": name_of(model, "model"),
        "score": score,
        "cost": first_of(row, _COSTS),
    }


def _langfuse_answer(row: Row) -> Iterator[Row]:
    """Yield the scores of a row of the table of observations, each a column of lists called by its name."""
    given = {name: unquoted(value) for name, value in row.items() if name not in _OBSERVATION_FIELDS}
    scores = {name: values for name, values in given.items() if isinstance(values, list) and values}
    if not scores:
        raise NoVerdictError("no score")
    for name, values in scores.items():
        for value in values:
            yield from _langfuse_score({**row, "name": name, "value": value})


def _is_langfuse_table(sample: Sample) -> bool:
    names = sample.columns - _OBSERVATION_FIELDS
    if not sample.has("id", "traceId", "input", "startTime") or not sample.columns.intersection(_FIRST_MODEL):
        return False
    return any(isinstance(row.get(name), list) and row[name] for row in sample.rows for name in names)


def _langfuse_files(sample: Sample, table: str) -> list[str]:
    return [name for name in sample.files if table in name.lower() and name.lower().endswith(_TABLE_ENDINGS)]


def _langfuse_joined(sample: Sample) -> Iterator[Record]:
    """Yield the scores of an exported folder, with what the observations in it tell of the answers."""
    answers: dict[Any, Row] = {}
    for name in _langfuse_files(sample, "observations"):
        for place, row, fault in sample.rows_of(name):
            if fault:
                yield Record(place, {}, fault)
            observation = _in_camel_case(row)
            if first_of(observation, _FIRST_MODEL) is not None:
                kept = {field: observation.get(field) for field in (*_FIRST_MODEL, "input", *_COSTS)}
                answers[observation.get("id")] = kept
                answers.setdefault(observation.get("traceId"), kept)
    for name in _langfuse_files(sample, "scores"):
        for place, row, fault in sample.rows_of(name):
            score = _in_camel_case(row)
            answer = answers.get(score.get("observationId")) or answers.get(score.get("traceId")) or {}
            yield Record(place, {**score, **answer, "p2l_observation": bool(answer)}, fault)


def _in_camel_case(row: Row) -> Row:
    """Return a row with the names that the API has; exports to object stores write `trace_id` and the like."""
    return {re.sub(r"_([a-z])", lambda match: match[1].upper(), name): value for name, value in row.items()}


def _is_promptfoo(sample: Sample) -> bool:
    return (
        sample.has("results") and bool({"evalId", "config", "version", "stats"} & sample.columns) and sample.is_document
    )


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
    Kind(
        name="langfuse",
        about="Langfuse's table of scores",
        gives="scores",
        recognise=lambda sample: (
            sample.has("traceId", "name", "value") and bool(sample.columns.intersection(_FIRST_MODEL))
        ),
        reads="model -> model, input -> prompt, value -> score, name -> category",
        convert=_langfuse_score,
        sample="id,traceId,name,value,dataType,source,model,input\n1,t1,correctness,1,NUMERIC,ANNOTATION,ant,2 + 2?",
    ),
    Kind(
        name="langfuse-scores",
        about="Langfuse's table of scores",
        gives="scores",
        recognise=lambda sample: bool(sample.columns & {"traceId", "trace_id"}) and sample.has("name", "value"),
        refusal="names neither models nor inputs, which stand in its table of observations; export that one too, and "
        "give the folder with both",
        sample="id,traceId,timestamp,source,name,dataType,value,stringValue,observationId\n"
        "1,t1,2026-01-05T10:00:00Z,API,correctness,NUMERIC,1,,o1",
    ),
    Kind(
        name="langfuse-observations",
        about="Langfuse's table of observations",
        gives="scores",
        recognise=_is_langfuse_table,
        reads="model -> model, input -> prompt, columns of lists -> scores, their names -> category",
        convert=_langfuse_answer,
        sample="id,traceId,type,startTime,model,input,totalCost,correctness\n"
        'o1,t1,GENERATION,2026-01-05T10:00:00Z,ant,2 + 2?,0.001,"[1]"',
    ),
    Kind(
        name="langfuse-export",
        about="an export of Langfuse",
        gives="scores",
        recognise=lambda sample: bool(_langfuse_files(sample, "scores") and _langfuse_files(sample, "observations")),
        reads="scores -> score, name -> category, the observation or the trace they are of -> model, prompt and cost",
        convert=_langfuse_score,
        records=_langfuse_joined,
        sample="a folder with scores/FILE.jsonl and observations/FILE.jsonl,\nor with both tables as CSV",
    ),
    Kind(
        name="observations",
        about="an export of answers with scores (Langfuse observations, Braintrust)",
        gives="scores",
        recognise=lambda sample: (
            sample.has("input", "scores")
            and bool(sample.columns & {*_FIRST_MODEL, "metadata"})
            and all(row.get("scores") is None or _mapping(row["scores"]) for row in sample.rows)
        ),
        marks=("input", "output", "scores"),
        needs=("metadata",),
        reads="model or metadata.model -> model, input -> prompt, first of scores -> score",
        convert=_observation,
        sample='{"id": "s1", "is_root": true, "input": "2 + 2?", "output": "4", "expected": "4", "scores": '
        '{"Factuality": 1}, '
        '"metadata": {"model": "ant"}}\n...',
    ),
    Kind(
        name="langsmith",
        about="LangSmith runs with feedback",
        gives="scores",
        recognise=lambda sample: sample.has("inputs", "feedback_stats"),
        marks=("inputs", "outputs", "run_type"),
        needs=("feedback_stats",),
        reads="extra.metadata.ls_model_name or session_name -> model, inputs -> prompt, first of feedback_stats -> "
        "score",
        convert=_langsmith,
        sample='{"id": "r1", "run_type": "llm", "inputs": {"question": "2 + 2?"}, "outputs": {"answer": "4"}, '
        '"feedback_stats": '
        '{"correctness": {"n": 1, "avg": 1.0}}, "extra": {"metadata": {"ls_model_name": "ant"}}}\n...',
    ),
)
