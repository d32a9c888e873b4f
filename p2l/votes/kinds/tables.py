"""Tables of graded answers: a row for each answer, or a column for each model, or a row for each model."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import numpy as np
import pyarrow as pa

from p2l.votes.kinds.flat import Columns, FlatBatch
from p2l.votes.kinds.kind import Kind, Row, Sample
from p2l.votes.kinds.texts import RowError, prompt_turns
from p2l.votes.kinds.values import NoVerdictError, first_of, grade, identifier, name_of

PROMPTS = ("prompt", "question", "input", "instruction", "query", "problem", "problem_statement", "origin_query")
_NAMED_IDS = ("question_id", "doc_id", "task_id", "instance_id", "sample_id", "example_id")
QUESTION_IDS = (*_NAMED_IDS, "id", "index", "uid", "item")
"""The last may as well number the rows of a table of answers, where they are taken if questions have no words."""
MODELS = ("model", "model_name", "model_id", "llm", "system", "model_name_or_path")
SCORES = (
    *("score", "acc", "accuracy", "correct", "is_correct", "passed", "pass", "resolved", "exact_match", "grade"),
    *("reward", "success", "is_resolved", "result", "rating", "verdict"),
)
_CATEGORIES = ("category", "subject", "task", "subset", "dataset", "domain", "benchmark", "eval_name")
_COSTS = ("cost", "total_cost", "price")
_NOT_MODELS = frozenset(
    {*PROMPTS, *QUESTION_IDS, *_CATEGORIES, *_COSTS, "unnamed: 0", "", "turn", "tstamp", "split", "target"}
)
COLUMNS = (*PROMPTS, *QUESTION_IDS, *MODELS, *SCORES, *_CATEGORIES, *_COSTS)
"""Names of columns of a table of graded answers."""
_VOTE_COLUMNS = ("model_a", "model_b", "winner")
_BEST_GRADE = 100.0  # percent
# Numbers that tables have beside grades: sizes, times, costs, and whatever is told of two sides.
_MEASURE = re.compile(r"(^|_)(chars|length|len|tokens|count|num|n|time|seconds|latency|cost|price|year)($|_)|_[ab]$")
_COST_MARK = "|total_cost"  # of RouterBench's columns
_LEADERBOARD_MARKS = ("rating", "elo", "rank", "ci", "votes", "rating_q025", "rating_q975", "95% ci")


def one_text(value: object, what: str = "prompt") -> str | None:
    """Return a prompt as one text, as tables of graded answers hold it; None where there is none."""
    if value is None or value == "":
        return None
    return "\n\n".join(prompt_turns(value, what))


def graded(row: Row) -> Iterator[Row]:
    """Yield the answer of a record that a reader has put together: id, task, prompt, model, score."""
    yield {
        "question_id": identifier(row.get("id")),
        "category": identifier(row.get("task")),
        "prompt": one_text(row.get("prompt")),
        "model": name_of(row.get("model"), "model"),
        "score": grade(row.get("score")),
    }


def _answer(row: Row) -> Iterator[Row]:
    yield {
        "question_id": identifier(first_of(row, _ids_among(row))),
        "category": identifier(first_of(row, _CATEGORIES)),
        "prompt": one_text(first_of(row, PROMPTS)),
        "model": name_of(first_of(row, MODELS), "model"),
        "score": grade(first_of(row, SCORES)),
        "cost": _cost(first_of(row, _COSTS)),
        "output_chars": None if row.get("output_chars") is None else grade(row["output_chars"], "output_chars"),
    }


def _answers(table: FlatBatch) -> Sequence[Columns]:
    """Return the columns that `_answer` gives of each row."""
    return [
        _question(table, _ids_among(table.columns))
        | {
            "model": table.names(*MODELS),
            "score": table.each(grade, pa.float64(), *SCORES),
            "cost": table.each(_cost, pa.float64(), *_COSTS, needed=False),
            "output_chars": table.each(grade, pa.float64(), "output_chars", needed=False),
        }
    ]


def _ids_among(columns: Iterable[str]) -> Sequence[str]:
    """Return which columns may name the question of an answer."""
    return QUESTION_IDS if {*columns}.isdisjoint(PROMPTS) else _NAMED_IDS


def _question(table: FlatBatch, ids: Sequence[str] = QUESTION_IDS) -> Columns:
    return {
        "question_id": table.texts(*ids),
        "category": table.texts(*_CATEGORIES),
        "prompt": table.words(*PROMPTS),
    }


def _cost(value: object) -> float | None:
    return None if value is None else grade(value, "cost")


def _is_long(sample: Sample) -> bool:
    columns = sample.columns
    named = columns.intersection(MODELS) and columns.intersection(SCORES)
    return bool(named and columns.intersection((*PROMPTS, *QUESTION_IDS)))


def lacking(sample: Sample) -> str:
    """Return a sentence on what a table lacks to be one of graded answers; empty where it resembles none."""
    columns = sample.columns
    has_question = bool(columns.intersection((*PROMPTS, *QUESTION_IDS)))
    if not columns.intersection(MODELS) or columns.intersection(_VOTE_COLUMNS):
        return ""
    if columns & {"conversation", "messages"} and not columns.intersection(SCORES):
        return "looks like chats with a model each, and holds neither votes nor scores of them"
    if has_question and not columns.intersection(SCORES):
        return "looks like a table of graded answers, but has no 'score'; name the column by --columns score=NAME"
    if columns.intersection(SCORES) and not has_question:
        return "looks like a table of graded answers, but has no 'question'; name the column by --columns question=NAME"
    return ""


def is_own_form(sample: Sample) -> bool:
    """Return whether a table of graded answers has the columns that the documentation asks for."""
    return sample.has("model", "score") and bool(sample.columns & {"prompt", "question"})


def _is_number(value: object) -> bool:
    if isinstance(value, str) and len(value.strip()) == 1 and not value.strip().isdigit():
        return False  # C and I are grades of Inspect, and letters elsewhere
    try:
        grade(value)
    except (NoVerdictError, RowError):
        return False
    return True


def _are_grades(rows: Sequence[Row], name: str) -> bool:
    """Return whether a column may hold grades: those between 0 and 1 or 0 and 100, and no measure of the answers."""
    if _MEASURE.search(name.lower()):
        return False
    values = [row[name] for row in rows if row.get(name) is not None]
    return bool(values) and all(_is_number(value) and 0 <= grade(value) <= _BEST_GRADE for value in values)


def _number_columns(rows: Sequence[Row], columns: Sequence[str]) -> list[str]:
    """Return those columns whose values in the first rows are grades, at least one of them being there."""
    return [name for name in columns if name.lower() not in _NOT_MODELS and _are_grades(rows, name)]


def _wide_models(sample: Sample) -> list[str]:
    """Return the columns that are models, of a table with a row for each question."""
    columns = list(sample.names)
    if sample.columns.intersection((*MODELS, *_VOTE_COLUMNS)) or not sample.columns.intersection(
        (*PROMPTS, *QUESTION_IDS)
    ):
        return []
    priced = [name.removesuffix(_COST_MARK) for name in columns if name.endswith(_COST_MARK)]
    return [name for name in priced if name in columns] or _number_columns(sample.rows, columns)


def _wide_questions(sample: Sample) -> list[str]:
    """Return the columns that are questions, of a table with a row for each model."""
    columns = list(sample.names)
    lowered = {name.lower() for name in columns}
    if not lowered.intersection(MODELS) or lowered.intersection((*PROMPTS, *QUESTION_IDS, *_LEADERBOARD_MARKS)):
        return []
    if lowered.intersection(SCORES) or not _is_row_per_model(sample.rows):
        return []
    return _number_columns(sample.rows, columns)


def _is_row_per_model(rows: Sequence[Row]) -> bool:
    """Return whether rows may be models with their results, rather than chats with what is known of them."""
    named = [value for row in rows for name, value in row.items() if name.lower() in MODELS]
    has_texts = any(isinstance(value, list | Mapping) for row in rows for value in row.values())
    return not has_texts and len({*map(str, named)}) == len(named)


def by_question(models: Sequence[str]) -> Callable[[Row], Iterator[Row]]:
    """Return the reading of a row that is a question with a column for each model."""

    def convert(row: Row) -> Iterator[Row]:
        graded = [name for name in models if row.get(name) is not None]
        if not graded:
            raise NoVerdictError("no score")
        for name in graded:
            yield {
                "question_id": identifier(first_of(row, QUESTION_IDS)),
                "category": identifier(first_of(row, _CATEGORIES)),
                "prompt": one_text(first_of(row, PROMPTS)),
                "model": name,
                "score": grade(row[name], name),
                "cost": _cost(row.get(f"{name}{_COST_MARK}")),
            }

    return convert


def _by_question_batch(models: Sequence[str]) -> Callable[[FlatBatch], Sequence[Columns]]:
    """Return the reading of `by_question` for a batch: the answers of one model after those of another."""

    def convert(table: FlatBatch) -> Sequence[Columns]:
        question = _question(table)
        answers = [
            question
            | {
                "model": pa.repeat(name, len(table)),
                "score": table.each(grade, pa.float64(), name, needed=False),
                "cost": table.each(_cost, pa.float64(), f"{name}{_COST_MARK}", needed=False),
            }
            for name in models
        ]
        is_graded = np.zeros(len(table), dtype=bool)
        for answer in answers:
            is_graded |= answer["score"].is_valid().to_numpy(zero_copy_only=False)
        table.leave(~is_graded)
        return answers

    return convert


def by_model(questions: Sequence[str]) -> Callable[[Row], Iterator[Row]]:
    """Return the reading of a row that is a model with a column for each question."""

    def convert(row: Row) -> Iterator[Row]:
        model = next((value for name, value in row.items() if name.lower() in MODELS), None)
        for name in questions:
            if row.get(name) is not None:
                yield {
                    "question_id": name,
                    "prompt": None,
                    "model": name_of(model, "model"),
                    "score": grade(row[name], name),
                }

    return convert


def _router_records(row: Row) -> Iterator[Row]:
    """Yield the answers of one result file of LLMRouterBench: a model on a data set."""
    if row.get("demo"):  # a run on a few questions, which the benchmark's own reader passes over too
        raise NoVerdictError("demo run")
    model = name_of(first_of(row, MODELS), "model_name")
    records = row.get("records")
    if not isinstance(records, list):
        raise RowError("records must be a list of {index, prompt, score}")
    for record in records:
        if not isinstance(record, Mapping):
            raise RowError("records must be a list of {index, prompt, score}")
        index = identifier(record.get("index"))
        yield {
            "question_id": " ".join(str(name) for name in (row.get("dataset_name"), row.get("split"), index) if name),
            "category": identifier(row.get("dataset_name")),
            "prompt": one_text(first_of(record, ("origin_query", "prompt"))),
            "model": model,
            # The benchmark's own reader takes an answer without a score as wrong.
            "score": grade(0.0 if record.get("score") is None else record["score"]),
            "cost": _cost(record.get("cost")),
        }


def _router_arena(row: Row) -> Iterator[Row]:
    yield {
        "question_id": identifier(first_of(row, ("global index", "global_index"))),
        "category": identifier(first_of(row, _CATEGORIES)),
        "prompt": one_text(row.get("prompt")),
        "model": name_of(first_of(row, ("prediction", "model")), "prediction"),
        "score": grade(row.get("accuracy"), "accuracy"),
        "cost": _cost(row.get("cost")),
    }


def _is_leaderboard(sample: Sample) -> bool:
    lowered = {name.lower() for name in sample.columns}
    has_questions = lowered.intersection((*PROMPTS, *QUESTION_IDS, *_VOTE_COLUMNS))
    return bool(lowered.intersection(MODELS) and lowered.intersection(_LEADERBOARD_MARKS) and not has_questions)


KINDS = (
    Kind(
        name="leaderboard",
        about="a leaderboard, a row for each model",
        gives="scores",
        recognise=_is_leaderboard,
        refusal="holds results and neither votes nor answers; name the file that it was made of",
        sample="model,rating,rating_q025,rating_q975\nant,1100,1090,1110",
    ),
    Kind(
        name="router-bench",
        about="RouterBench's table",
        gives="scores",
        recognise=lambda sample: any(name.endswith(_COST_MARK) for name in sample.columns),
        reads="columns with a NAME|total_cost -> models, eval_name -> category",
        sample="sample_id,prompt,eval_name,ant,bee,ant|total_cost,bee|total_cost\n1,2 + "
        "2?,grade-school-math,1.0,0.0,0.001,0.0002",
    ),
    Kind(
        name="llm-router-bench",
        about="LLMRouterBench results",
        gives="scores",
        recognise=lambda sample: sample.has("records", "dataset_name") and bool(sample.columns.intersection(MODELS)),
        marks=("records", "performance"),
        needs=("dataset_name", "model_name"),
        reads="records -> answers, dataset_name -> category",
        convert=_router_records,
        sample='{"performance": 0.5, "dataset_name": "gsm8k", "model_name": "ant", "records": [{"index": 1, '
        '"origin_query": '
        '"2 + 2?", "prompt": "2 + 2?",\n  "prediction": "4", "ground_truth": "4", "score": 1.0, "cost": 0.0001}]}',
    ),
    Kind(
        name="router-arena",
        about="RouterArena results",
        gives="scores",
        recognise=lambda sample: bool(sample.columns & {"global index", "global_index"}) and sample.has("accuracy"),
        reads="prediction -> model, accuracy -> score, global index -> question_id",
        convert=_router_arena,
        sample='[{"global index": "g1", "prompt": "2 + 2?", "prediction": "ant", "accuracy": 1.0,\n  "cost": 0.0001}]',
    ),
    Kind(
        name="score-table",
        about="a table of graded answers",
        gives="scores",
        recognise=_is_long,
        reads="question or its id, model, score (also acc, correct, passed, resolved, ...), category, cost by their "
        "names",
        convert=_answer,
        convert_batch=_answers,
        sample="question,model,score\n2 + 2?,ant,1",
    ),
    Kind(
        name="wide-by-question",
        about="a table of graded answers with a column for each model",
        gives="scores",
        recognise=lambda sample: len(_wide_models(sample)) >= 2,
        reads="columns of numbers -> models",
        sample="question,ant,bee\n2 + 2?,1,0",
    ),
    Kind(
        name="wide-by-model",
        about="a table of graded answers with a row for each model",
        gives="scores",
        recognise=lambda sample: len(_wide_questions(sample)) >= 2,
        reads="columns of numbers -> questions, model -> model",
        sample="model,gsm8k-1,gsm8k-2\nant,1,0",
    ),
)


def fitted(kind: Kind, sample: Sample) -> Kind:
    """Return a kind that reads the columns which this very table has; other kinds as they are."""
    from dataclasses import replace

    if kind.name in {"router-bench", "wide-by-question"}:
        models = _wide_models(sample)
        shown = ", ".join(models[:4]) + (f", ... ({len(models)} in all)" if len(models) > 4 else "")
        batches = _by_question_batch(models)
        return replace(kind, convert=by_question(models), convert_batch=batches, reads=f"models {shown}")
    if kind.name == "wide-by-model":
        questions = _wide_questions(sample)
        shown = ", ".join(questions[:4]) + (f", ... ({len(questions)} in all)" if len(questions) > 4 else "")
        return replace(kind, convert=by_model(questions), reads=f"questions {shown}")
    return kind
