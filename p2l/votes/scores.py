"""Votes of graded answers: a table with one row for each answer, as LiveBench and other benchmarks publish them.

Two models that answered the same question make a vote. A score that is higher by more than `margin` wins; between equal
answers it is a tie where they pass, and a tie (both bad) where they do not.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from p2l.common.errors import InputError
from p2l.votes.schema import WINNERS
from p2l.votes.sources import read_frame
from p2l.votes.writing import open_writer

if TYPE_CHECKING:
    import pandas as pd

_NO_CATEGORY = "none"
COLUMNS = frozenset({"question", "prompt", "model", "score", "question_id", "category"})
_MAX_CELLS = 100_000_000  # questions by models


@dataclass(frozen=True)
class ScoreOptions:
    """How scores become votes."""

    per_question: int = 30  # pairs of models drawn for each question, all where there are fewer
    margin: float = 0.0
    passed: float = 0.5  # score from which an answer is usable
    only: tuple[str, ...] = ()  # categories to take; none: all
    without: tuple[str, ...] = ()  # categories to leave out
    seed: int = 42


@dataclass(frozen=True)
class _ScoreVotes:
    """Number of votes that a table gave, and of the questions and models in them."""

    votes: int
    questions: int
    models: int


def votes_of_scores(source: str | Path, output: str | Path, options: ScoreOptions) -> _ScoreVotes:
    """Write the votes of a table of graded answers; InputError for a table that cannot be used."""
    answers = _chosen(_checked(read_frame(Path(source).expanduser(), COLUMNS), str(source)), str(source), options)
    if (cells := answers["question_id"].nunique() * answers["model"].nunique()) > _MAX_CELLS:
        raise InputError(f"{source}: questions by models are {cells:,}, too many; cut the table")
    table = answers.pivot(index="question_id", columns="model", values="score")
    scores, models = table.to_numpy(dtype=np.float64), np.array(table.columns, dtype=object)
    rng = np.random.default_rng(options.seed)
    drawn = [_pairs(np.flatnonzero(~np.isnan(row)), options.per_question, rng) for row in scores]
    rows = np.repeat(np.arange(len(scores)), [len(pairs) for pairs in drawn])
    if not len(rows):
        raise InputError(f"{source}: no question was answered by two models")
    pairs = np.concatenate(drawn)
    first, second = scores[rows, pairs[:, 0]], scores[rows, pairs[:, 1]]
    passed = (first + second) / 2 >= options.passed
    winner = np.select([first - second > options.margin, second - first > options.margin, passed], [0, 1, 2], default=3)
    about = answers.drop_duplicates("question_id").set_index("question_id").loc[table.index[rows]]
    columns: dict[str, Any] = {
        "question_id": about.index.to_numpy(),
        "category": about["category"].to_numpy(),
        "prompt": about["prompt"].to_numpy(),
        "model_a": models[pairs[:, 0]],
        "model_b": models[pairs[:, 1]],
        "winner": np.array(WINNERS, dtype=object)[winner],
    }
    with open_writer(output) as write:
        write(pa.record_batch({name: pa.array(column.tolist(), pa.string()) for name, column in columns.items()}))
    return _ScoreVotes(votes=len(rows), questions=len(np.unique(rows)), models=len(np.unique(pairs)))


def _pairs(models: npt.NDArray[np.intp], most: int, rng: np.random.Generator) -> npt.NDArray[np.intp]:
    """Return pairs (n, 2) of different models, on random sides."""
    first, second = np.triu_indices(len(models), 1)
    chosen = np.sort(rng.permutation(len(first))[:most])
    pairs = np.stack([models[first[chosen]], models[second[chosen]]], axis=1)
    swapped = rng.random(len(pairs)) < 0.5
    pairs[swapped] = pairs[swapped, ::-1]
    return pairs


def _checked(answers: pd.DataFrame, name: str) -> pd.DataFrame:
    """Return question_id, category, prompt, model and score of each answer."""
    if not len(answers):
        raise InputError(f"{name}: holds no answers")
    if "prompt" not in answers and "question" in answers:
        answers = answers.rename(columns={"question": "prompt"})
    for column in ("prompt", "model", "score"):
        if column not in answers:
            raise InputError(f"{name}: has no column {column!r}; a row has question (or prompt), model and score")
    for column in ("prompt", "model"):
        wrong = ~answers[column].map(lambda entry: isinstance(entry, str) and bool(entry)).to_numpy(dtype=bool)
        if wrong.any():
            raise InputError(f"{name}: row {int(wrong.argmax()) + 1}: {column} is not text")
    try:
        scores = answers["score"].to_numpy(dtype=np.float64)
    except (TypeError, ValueError):
        scores = np.full(len(answers), np.nan)
    if (wrong := ~np.isfinite(scores)).any():
        raise InputError(f"{name}: row {int(wrong.argmax()) + 1}: score is not a number")
    ids = answers["question_id"] if "question_id" in answers else answers["prompt"]
    category = answers["category"].fillna(_NO_CATEGORY) if "category" in answers else _NO_CATEGORY
    checked = answers.assign(score=scores, question_id=ids.astype(str), category=category).astype({"category": str})
    twice = checked.duplicated(["question_id", "model"]).to_numpy(dtype=bool)
    if twice.any():
        row = int(twice.argmax()) + 1
        raise InputError(f"{name}: row {row}: this model has answered this question in an earlier row")
    chosen: pd.DataFrame = checked[["question_id", "category", "prompt", "model", "score"]]
    return chosen


def _chosen(answers: pd.DataFrame, name: str, options: ScoreOptions) -> pd.DataFrame:
    """Return the answers of the chosen categories; InputError for a category that the table does not have."""
    categories = sorted(set(answers["category"]))
    for category in (*options.only, *options.without):
        if category not in categories:
            raise InputError(f"{name}: has no category {category!r}; it has {', '.join(categories[:20])}")
    is_chosen = ~answers["category"].isin(list(options.without))
    if options.only:
        is_chosen &= answers["category"].isin(list(options.only))
    chosen: pd.DataFrame = answers[is_chosen]
    if not len(chosen):
        raise InputError(f"{name}: holds no answers of the chosen categories")
    return chosen
