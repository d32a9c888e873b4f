"""Votes of graded answers: a table with one row for each answer, as LiveBench and other benchmarks publish them.

Two models that answered the same question make a vote. A score that is higher by more than `margin` wins; between equal
answers it is a tie where they pass, and a tie (both bad) where they do not.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from p2l.common.errors import InputError
from p2l.votes.door import announce, read_frame, scores_source
from p2l.votes.kinds.texts import clean_name
from p2l.votes.rows import RawBatch, Source, numbered
from p2l.votes.schema import WINNERS

if TYPE_CHECKING:
    import pandas as pd

_NO_CATEGORY = "none"
COLUMNS = frozenset({"question", "prompt", "model", "score", "question_id", "category"})
_VOTE_COLUMNS = ("question_id", "category", "prompt", "model_a", "model_b", "winner")
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


class ScoreVotes(NamedTuple):
    """Votes that a table of graded answers gave, and the numbers of questions and models in them."""

    batch: Any  # pyarrow.RecordBatch
    questions: int
    models: int
    averaged: int  # answers that were graded several times, and count with their mean


def votes_of_source(source: Source, options: ScoreOptions | None = None, *, drop_bad: bool = False) -> Source:
    """Return the votes that graded answers make, as a source that can be read any number of times."""
    made: list[ScoreVotes] = []

    def read(columns: Sequence[str] | None, batch_size: int) -> Iterator[RawBatch]:
        if not made:
            made.append(votes_of_scores(source, options or ScoreOptions(), drop_bad=drop_bad))
        batch = made[0].batch
        chosen = batch if columns is None else batch.select([name for name in columns if name in batch.schema.names])
        yield from numbered(chosen.slice(start, batch_size) for start in range(0, len(chosen), batch_size))

    has_prompt = bool({"prompt", "question"} & {*source.columns})
    names = [name for name in _VOTE_COLUMNS if has_prompt or name != "prompt"]
    return replace(source, columns=names, read=read, gives="votes", rows=None, faults={}, places=None, text_lists=False)


def votes_of_scores(source: str | Path | Source, options: ScoreOptions, *, drop_bad: bool = False) -> ScoreVotes:
    """Return the votes of a table of graded answers of any kind; InputError for one that cannot be used."""
    name = source.name if isinstance(source, Source) else str(source)
    opened = source if isinstance(source, Source) else open_scores(source)
    frame = read_frame(opened, COLUMNS, drop_bad=drop_bad)
    answers, averaged = _checked(frame, name, repeats=opened.repeats)
    answers = _chosen(answers, name, options)
    if (cells := answers["question_id"].nunique() * answers["model"].nunique()) > _MAX_CELLS:
        raise InputError(f"{name}: questions by models are {cells:,}, too many; cut the table")
    table = answers.pivot(index="question_id", columns="model", values="score")
    scores, models = table.to_numpy(dtype=np.float64), np.array(table.columns, dtype=object)
    rng = np.random.default_rng(options.seed)
    drawn = [_pairs(np.flatnonzero(~np.isnan(row)), options.per_question, rng) for row in scores]
    rows = np.repeat(np.arange(len(scores)), [len(pairs) for pairs in drawn])
    if not len(rows):
        raise InputError(f"{name}: no question was answered by two models")
    pairs = np.concatenate(drawn)
    first, second = scores[rows, pairs[:, 0]], scores[rows, pairs[:, 1]]
    passed = (first + second) / 2 >= options.passed
    winner = np.select([first - second > options.margin, second - first > options.margin, passed], [0, 1, 2], default=3)
    about = answers.drop_duplicates("question_id").set_index("question_id").loc[table.index[rows]]
    columns: dict[str, Any] = {
        "question_id": about.index.to_numpy(),
        "category": about["category"].to_numpy(),
        **({"prompt": about["prompt"].to_numpy()} if "prompt" in about else {}),
        "model_a": models[pairs[:, 0]],
        "model_b": models[pairs[:, 1]],
        "winner": np.array(WINNERS, dtype=object)[winner],
    }
    batch = pa.record_batch({column: pa.array(values.tolist(), pa.string()) for column, values in columns.items()})
    return ScoreVotes(batch, len(np.unique(rows)), len(np.unique(pairs)), averaged)


def open_scores(source: str | Path) -> Source:
    """Open graded answers of any kind, and say what they were taken for."""
    opened = scores_source(source)
    announce(opened)
    return opened


def _pairs(models: npt.NDArray[np.intp], most: int, rng: np.random.Generator) -> npt.NDArray[np.intp]:
    """Return pairs (n, 2) of different models, on random sides."""
    first, second = np.triu_indices(len(models), 1)
    chosen = np.sort(rng.permutation(len(first))[:most])
    pairs = np.stack([models[first[chosen]], models[second[chosen]]], axis=1)
    swapped = rng.random(len(pairs)) < 0.5
    pairs[swapped] = pairs[swapped, ::-1]
    return pairs


def _checked(answers: pd.DataFrame, name: str, *, repeats: bool) -> tuple[pd.DataFrame, int]:
    """Return question_id, category, model and score of each answer, prompt too where there is one.

    With `repeats`, answers of one model to one question, as epochs of a harness give, count once with their mean; their
    number is returned as well.
    """
    if not len(answers):
        raise InputError(f"{name}: holds no answers")
    if "prompt" not in answers and "question" in answers:
        answers = answers.rename(columns={"question": "prompt"})
    texts = ("prompt", "model") if "prompt" in answers or "question_id" not in answers else ("model",)
    for column in (*texts, "score"):
        if column not in answers:
            raise InputError(f"{name}: has no column {column!r}; a row has question (or prompt), model and score")
    for column in texts:
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
    models = answers["model"].map(clean_name)
    checked = answers.assign(score=scores, model=models, question_id=ids.astype(str), category=category)
    checked = checked.astype({"category": str})
    return _once(checked[["question_id", "category", *texts, "score"]], name, repeats=repeats)


def _once(answers: pd.DataFrame, name: str, *, repeats: bool) -> tuple[pd.DataFrame, int]:
    """Return one answer of each model to each question, and how many more there were; see `_checked`."""
    cell = ["question_id", "model"]
    twice = answers.duplicated(cell).to_numpy(dtype=bool)
    if twice.any() and not repeats:
        row = int(twice.argmax()) + 1
        raise InputError(f"{name}: row {row}: this model has answered this question in an earlier row")
    if twice.any():
        means = answers.groupby(cell, sort=False)["score"].mean()
        answers = answers[~twice].set_index(cell).assign(score=means).reset_index()
    return answers, int(twice.sum())


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
