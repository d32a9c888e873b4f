"""Exports of Langfuse: its table of observations with their scores, or that of scores beside that of observations."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from p2l.votes.kinds.kind import Kind, Record, Row, Sample
from p2l.votes.kinds.texts import RowError, unquoted
from p2l.votes.kinds.traces import COSTS, FIRST_MODEL, input_text, mapping
from p2l.votes.kinds.values import NoVerdictError, first_of, grade, identifier, name_of

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


def _langfuse_score(row: Row) -> Iterator[Row]:
    """Yield a score with the model and the input of what it was given to."""
    model = first_of(row, FIRST_MODEL) or first_of(mapping(row.get("metadata")), FIRST_MODEL)
    if model is None and "p2l_observation" in row:
        raise NoVerdictError("score of something else than an answer of a model")
    is_number = row.get("dataType") in (None, "NUMERIC", "BOOLEAN")
    value = first_of(row, ("value", "stringValue") if is_number else ("stringValue", "value"))
    try:
        score = grade(value)
    except RowError as error:
        raise (error if is_number else NoVerdictError("score in words")) from error
    name, text = identifier(row.get("name")), input_text(first_of(row, ("input", "traceInput")))
    yield {
        "question_id": f"{name}: {text}",
        "category": name,
        "prompt": text,
        "model": name_of(model, "model"),
        "score": score,
        "cost": first_of(row, COSTS),
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
    if not sample.has("id", "traceId", "input", "startTime") or not sample.columns.intersection(FIRST_MODEL):
        return False
    return any(isinstance(row.get(name), list) and row[name] for row in sample.rows for name in names)


def _langfuse_files(sample: Sample, table: str) -> list[str]:
    return [name for name in sample.files if table in name.lower() and name.lower().endswith(_TABLE_ENDINGS)]


def _langfuse_joined(sample: Sample) -> Iterator[Record]:
    """Yield the scores of an exported folder, with what the observations in it tell of the answers.

    A score of a whole trace is of its answer where the trace has one answer alone.
    """
    answers: dict[Any, Row] = {}
    of_trace: dict[Any, list[Row]] = {}
    for name in _langfuse_files(sample, "observations"):
        for place, row, fault in sample.rows_of(name):
            if fault:
                yield Record(place, {}, fault)
            observation = _in_camel_case(row)
            if first_of(observation, FIRST_MODEL) is not None:
                kept = {field: observation.get(field) for field in (*FIRST_MODEL, "input", *COSTS)}
                answers[observation.get("id")] = kept
                of_trace.setdefault(observation.get("traceId"), []).append(kept)
    for name in _langfuse_files(sample, "scores"):
        for place, row, fault in sample.rows_of(name):
            score = _in_camel_case(row)
            observation_id, trace_id = score.get("observationId"), score.get("traceId")
            answer: Row = answers.get(observation_id, {}) if observation_id else {}
            in_trace = of_trace.get(trace_id, []) if trace_id else []
            if not answer and len(in_trace) == 1:
                answer = in_trace[0]
            yield Record(place, {**score, **answer, "p2l_observation": bool(answer)}, fault)


def _in_camel_case(row: Row) -> Row:
    """Return a row with the names that the API has; exports to object stores write `trace_id` and the like."""
    return {re.sub(r"_([a-z])", lambda match: match[1].upper(), name): value for name, value in row.items()}


KINDS = (
    Kind(
        name="langfuse",
        about="Langfuse's table of scores",
        gives="scores",
        recognise=lambda sample: (
            sample.has("traceId", "name", "value") and bool(sample.columns.intersection(FIRST_MODEL))
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
)
