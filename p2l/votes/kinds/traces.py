"""Traces of applications with what they were graded: runs and experiments of LangSmith, spans of Braintrust.

The grades stand at the root of a trace, and the model at a call inside of it, so a trace is read as a whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from p2l.votes.kinds.kind import Kind, Record, Row, Sample
from p2l.votes.kinds.tables import one_text
from p2l.votes.kinds.texts import RowError, unquoted
from p2l.votes.kinds.values import NoVerdictError, first_of, grade, identifier, name_of

COSTS = ("totalCost", "calculatedTotalCost", "estimated_cost")
FIRST_MODEL = ("model", "providedModelName", "provided_model_name", "ls_model_name", "model_name", "modelId")
_QUESTIONS = ("question", "input", "prompt", "query", "text", "messages")
_INPUTS, _FEEDBACK = ("inputs.", "input."), "feedback."  # beginnings of columns of an experiment of LangSmith


def mapping(value: Any) -> Mapping[str, Any]:
    """Return an object, also one that a cell holds as JSON; an empty one where there is none."""
    parsed = unquoted(value)
    return parsed if isinstance(parsed, Mapping) else {}


def input_text(value: Any) -> str | None:
    """Return an input as a text: a text, messages, or the one text that an object of inputs holds."""
    parsed = unquoted(value)
    if isinstance(parsed, Mapping):
        inner = first_of(parsed, _QUESTIONS)
        texts = [part for part in parsed.values() if isinstance(part, str)]
        if inner is None and len(texts) == 1:
            inner = texts[0]
        parsed = identifier(dict(parsed)) if inner is None else inner
    if isinstance(parsed, list) and len(parsed) == 1 and isinstance(parsed[0], list):  # LangChain: batches of messages
        parsed = parsed[0]
    if isinstance(parsed, list):
        parsed = [_message(part) for part in parsed]
    return one_text(parsed, "input")


def _message(part: Any) -> Any:
    """Return a message of LangChain as {role, content}; anything else as it is."""
    if not isinstance(part, Mapping) or part.get("role") is not None:
        return part
    content = mapping(part.get("kwargs")) or part
    if content.get("type") in ("human", "ai", "system", "tool", "function"):
        return {"role": content["type"], "content": content.get("content")}
    return part


def graded_by_each(scores: Any, question: str | None, answer: Row) -> Iterator[Row]:
    """Yield an answer once for each of its grades, an object of numbers, {avg}, {score} or lists of numbers by name.

    The name of a grade becomes the category, so that answers are compared by one grade alone.
    """
    reason = NoVerdictError("no score")
    is_graded = False
    for name, value in mapping(scores).items():
        if isinstance(value, Mapping):
            value = first_of(value, ("score", "value", "avg"))
        if value is None or value == []:
            continue
        try:
            grades = [grade(part, name) for part in (value if isinstance(value, list) else [value])]
        except RowError:
            reason = NoVerdictError("score in words")
            continue
        is_graded = True
        score = sum(grades) / len(grades)
        yield {**answer, "question_id": f"{name}: {question}", "category": name, "score": score}
    if not is_graded:
        raise reason


def _in_traces(
    trace: str, models_of: Callable[[Sample], Mapping[str, Sequence[str]]]
) -> Callable[..., Iterator[Record]]:
    """Return the reader of records that know which models were asked in their trace, whose column is `trace`."""

    def records(sample: Sample) -> Iterator[Record]:
        models = models_of(sample)
        for place, row, fault in sample.rows_of(""):
            named = () if row.get(trace) is None else models.get(str(row[trace]), ())
            yield Record(place, {**row, "p2l_models": named}, fault)

    return records


def _answering_model(row: Row, own: Any, experiment: Any) -> str:
    """Return the model of a trace: its own, the one that was asked in it, or the experiment that it is of."""
    if own is None and len(row["p2l_models"]) > 1:
        raise NoVerdictError("several models in one trace")
    return name_of(own or next(iter(row["p2l_models"]), None) or experiment, "model")


# LangSmith.


def _run_model(row: Row) -> Any:
    extra = mapping(row.get("extra"))
    return first_of(mapping(extra.get("metadata")), FIRST_MODEL) or first_of(
        mapping(extra.get("invocation_params")), FIRST_MODEL
    )


def _run_models(sample: Sample) -> dict[str, list[str]]:
    models: dict[str, list[str]] = {}
    for _, row, _ in sample.rows_of(""):
        model, named = _run_model(row), models.setdefault(str(row.get("trace_id")), [])
        if isinstance(model, str) and model not in named:
            named.append(model)
    return models


def _langsmith(row: Row) -> Iterator[Row]:
    text = input_text(row.get("inputs"))
    question = identifier(row.get("reference_example_id")) or text
    scores = mapping(row.get("feedback_stats"))
    if not scores:
        raise NoVerdictError("no score")
    model = _answering_model(row, _run_model(row), first_of(row, ("session_name", "experiment", "session_id")))
    yield from graded_by_each(scores, question, {"prompt": text, "model": model, "cost": row.get("total_cost")})


def _is_experiment(sample: Sample) -> bool:
    return all(any(name.startswith(start) for name in sample.names) for start in (_INPUTS, _FEEDBACK))


def _experiment_records(sample: Sample) -> Iterator[Record]:
    name = None if sample.is_copy else sample.path.name.partition(".")[0]
    for place, row, fault in sample.rows_of(""):
        yield Record(place, {**row, "p2l_file": name}, fault)


def _experiment(row: Row) -> Iterator[Row]:
    """Yield the grades of a row of an experiment as a table, whose columns are called by their part."""
    inputs = {name.partition(".")[2]: value for name, value in row.items() if name.startswith(_INPUTS)}
    scores = {name.removeprefix(_FEEDBACK): value for name, value in row.items() if name.startswith(_FEEDBACK)}
    text = input_text({name: value for name, value in inputs.items() if value is not None})
    question = identifier(first_of(row, ("example_id", "reference_example_id"))) or text
    model = first_of(row, (*FIRST_MODEL, *(f"outputs.{name}" for name in FIRST_MODEL), "p2l_file"))
    yield from graded_by_each(scores, question, {"prompt": text, "model": name_of(model, "model")})


# Braintrust.


def _span_model(row: Row) -> Any:
    return first_of(row, FIRST_MODEL) or first_of(mapping(row.get("metadata")), FIRST_MODEL)


def _span_models(sample: Sample) -> dict[str, list[str]]:
    """Return the models that were asked in each trace, but for those that judge: spans inside of a scorer's."""
    parents: dict[str, str] = {}
    scorers: set[str] = set()
    asked: list[tuple[str, str, str]] = []  # trace, span and model
    for _, row, _ in sample.rows_of(""):
        span, above = str(row.get("span_id")), unquoted(row.get("span_parents"))
        if isinstance(above, list) and above:
            parents[span] = str(above[0])
        about, model = mapping(row.get("span_attributes")), _span_model(row)
        if about.get("type") == "score" or about.get("purpose") == "scorer":
            scorers.add(span)
        if isinstance(model, str):
            asked.append((str(row.get("root_span_id")), span, model))
    models: dict[str, list[str]] = {}
    for trace, span, model in asked:
        way = {span}
        while span in parents and parents[span] not in way:
            span = parents[span]
            way.add(span)
        if scorers.isdisjoint(way) and model not in models.setdefault(trace, []):
            models[trace].append(model)
    return models


def _span(row: Row) -> Iterator[Row]:
    if row.get("is_root") in (False, "false"):
        raise NoVerdictError("span inside of another")
    scores = mapping(row.get("scores"))
    if not scores:
        raise NoVerdictError("no score")
    text = input_text(row.get("input"))
    model = _answering_model(row, _span_model(row), first_of(row, ("experiment_name", "experiment", "experiment_id")))
    cost = first_of({**mapping(row.get("metrics")), **row}, COSTS)
    yield from graded_by_each(scores, text, {"prompt": text, "model": model, "cost": cost})


def _is_braintrust(sample: Sample) -> bool:
    has_model = bool(sample.columns & {*FIRST_MODEL, "metadata", "root_span_id"})
    are_objects = all(row.get("scores") is None or mapping(row["scores"]) or row["scores"] == {} for row in sample.rows)
    return sample.has("input", "scores") and has_model and are_objects


KINDS = (
    Kind(
        name="braintrust",
        about="Braintrust's rows of input, output and scores",
        gives="scores",
        recognise=_is_braintrust,
        marks=("input", "output", "scores"),
        needs=("metadata",),
        reads="metadata.model of the row or of the call in its trace, else the experiment -> model, input -> prompt, "
        "each of scores -> score, its name -> category",
        convert=_span,
        records=_in_traces("root_span_id", _span_models),
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
        reads="extra.metadata.ls_model_name of the run or of the call in its trace, else the session -> model, "
        "inputs -> prompt, each of feedback_stats -> score, its name -> category",
        convert=_langsmith,
        records=_in_traces("trace_id", _run_models),
        sample='{"id": "r1", "run_type": "llm", "inputs": {"question": "2 + 2?"}, "outputs": {"answer": "4"}, '
        '"feedback_stats": '
        '{"correctness": {"n": 1, "avg": 1.0}}, "extra": {"metadata": {"ls_model_name": "ant"}}}\n...',
    ),
    Kind(
        name="langsmith-experiment",
        about="a LangSmith experiment as a table",
        gives="scores",
        recognise=_is_experiment,
        reads="model, outputs.model or the file's name -> model, inputs -> prompt, each feedback -> score, its name -> "
        "category",
        convert=_experiment,
        records=_experiment_records,
        sample="inputs.question,outputs.answer,error,reference.answer,feedback.correctness,execution_time,example_id,id\n"
        "2 + 2?,4,,4,1,0.5,e1,r1",
    ),
    Kind(
        name="langsmith-feedback",
        about="LangSmith feedback without its runs",
        gives="scores",
        recognise=lambda sample: sample.has("run_id", "key", "score") and not sample.columns & {*FIRST_MODEL},
        refusal="names neither models nor inputs, which stand in the runs; export these, whose feedback_stats hold the "
        "feedback",
        sample='{"id": "f1", "run_id": "r1", "session_id": "s1", "key": "correctness", "score": 1.0, "value": null,\n'
        '"comment": null, "correction": null, "feedback_source": {"type": "api"}}',
    ),
)
