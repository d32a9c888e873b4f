"""Read a table of graded answers as matrices: score and cost of each model on each prompt.

A file has one row for each answer, in the columns `prompt`, `model`, `score` (0 to 1) and, as far as it has them,
`question_id` (else the prompt is the question), `category` (else one for all), `cost` in dollars and `output_chars`.
Models that answered few of the questions are left out, then questions that one of the remaining models did not answer,
so that every policy is measured on the same answers.

A price file (YAML or JSON) has dollars per million tokens by model: a number is the price of output, with free input; a
mapping has `output` and `input`. A token counts as four characters, of prompts and of answers.

Shapes: Q questions, M models.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from p2l.common.cli import nearest
from p2l.common.errors import InputError
from p2l.votes.door import announce, read_frame, scores_source

if TYPE_CHECKING:
    import pandas as pd


Floats: TypeAlias = npt.NDArray[np.float64]
Rows: TypeAlias = npt.NDArray[np.intp]


def places(prompts: Sequence[str], seed: int) -> Floats:
    """Return a number from 0 to 1 for each prompt.

    It depends on text and seed alone: equal prompts stay on one side, and two tables with prompts in common are split
    alike, so that a P2L trained on one side of a table may be measured on the other.
    """
    hashes = [
        int.from_bytes(hashlib.blake2b(f"{seed} {prompt}".encode("utf-8", "replace"), digest_size=8).digest(), "big")
        for prompt in prompts
    ]
    return np.array(hashes, dtype=np.float64) / 2.0**64


def splits(prompts: Sequence[str], *, share: float, folds: int, seed: int) -> Iterator[tuple[Rows, Rows]]:
    """Return the rows of the training and of the test side of each fold; one fold holds `share` of the prompts out."""
    if folds > len(set(prompts)):
        raise InputError(f"--folds {folds} is more than the {len(set(prompts))} distinct prompts; lower it")
    place = places(prompts, seed)
    for fold in range(folds):
        held = place < share if folds == 1 else (place * folds).astype(np.int64) == fold
        if held.all() or not held.any():
            side = "training" if held.all() else "test"
            raise InputError(f"no prompt of {len(prompts)} is on the {side} side; change --share, --folds or --seed")
        yield np.flatnonzero(~held), np.flatnonzero(held)


def parts_of(prompts: Sequence[str], count: int = 5) -> Rows:
    """Return which of `count` parts (Q,) each prompt is in, drawn at random; equal texts are in one."""
    texts = np.unique(np.array(prompts, dtype=object), return_inverse=True)[1]
    drawn = np.random.default_rng(0).permutation(int(texts.max()) + 1) % count
    return np.asarray(drawn[texts], dtype=np.intp)


_CHARS_PER_TOKEN = 4.0
"""English prose has about four, code and numbers fewer, Chinese about one and a half."""


class TokenPrice(NamedTuple):
    """Dollars per million tokens."""

    output: float
    input: float = 0.0


def read_prices(path: str | Path) -> dict[str, TokenPrice]:
    """Read a price file; raise InputError for a missing file and for an entry that is not a price."""
    import yaml

    from p2l.common.config import parse_yaml, read_limited

    file = Path(path).expanduser()
    try:
        content, _ = parse_yaml(read_limited(file).decode("utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise InputError(f"{file}: cannot be read as YAML or JSON: {str(error).splitlines()[0]}") from error
    if not isinstance(content, dict) or not content:
        raise InputError(f"{file}: must map names of models to dollars per million output tokens")
    return {str(model): _price(file, str(model), entry) for model, entry in content.items()}


def _price(file: Path, model: str, entry: Any) -> TokenPrice:
    fields = entry if isinstance(entry, dict) else {"output": entry}
    for key in fields:
        if key not in TokenPrice._fields:
            raise InputError(f"{file}: {model}: unknown key {key!r}{nearest(str(key), TokenPrice._fields)}")
    numbers = [fields.get("output"), fields.get("input", 0.0)]
    if not all(
        isinstance(price, int | float) and not isinstance(price, bool) and 0 <= price < 1e9 for price in numbers
    ):
        raise InputError(f"{file}: {model}: a price is a number of dollars per million tokens, at least 0")
    return TokenPrice(*(float(price) for price in numbers))


NEEDED = ("prompt", "model", "score")
COLUMNS = frozenset({*NEEDED, "question_id", "category", "cost", "output_chars"})
_MOST_CELLS = 100_000_000  # questions by models
TEXTS = ("prompt", "model")
_ONE_CATEGORY = "all"
SLACK = 0.1
"""How far beyond 0 or 1 a score may lie and be clipped, as similarity scores do."""


@dataclass(frozen=True)
class ScoreTable:
    """Complete matrices: every model has answered every question."""

    name: str
    models: tuple[str, ...]
    prompts: tuple[str, ...]
    """(Q,)"""
    categories: tuple[str, ...]
    """(Q,)"""
    scores: Floats
    """(Q, M) between 0 and 1"""
    costs: Floats
    """(Q, M) dollars; ones where all answers cost the same"""
    one_price: bool = False
    """Whether there is no cost, so that budgets mean nothing."""
    left_out: tuple[str, ...] = ()
    """Models that answered too few of the questions."""
    incomplete: int = 0
    """Questions left out because a model did not answer them."""
    clipped: int = 0
    """Number of scores a little below 0 or above 1 that were clipped."""

    def take(self, rows: Rows) -> ScoreTable:
        """Return the table of some of the questions."""
        return replace(
            self,
            prompts=tuple(self.prompts[row] for row in rows),
            categories=tuple(self.categories[row] for row in rows),
            scores=self.scores[rows],
            costs=self.costs[rows],
        )

    def of_models(self, names: Sequence[str]) -> ScoreTable:
        """Return the table of some of the models, in this order."""
        columns = [self.models.index(name) for name in names]
        return replace(self, models=tuple(names), scores=self.scores[:, columns], costs=self.costs[:, columns])


def read_table(
    path: str | Path,
    *,
    prices: Mapping[str, TokenPrice] | None = None,
    one_price: bool = False,
    min_coverage: float = 0.9,
) -> ScoreTable:
    """Read a table from Parquet, JSON lines or CSV; raise InputError for what is missing or wrong in it.

    `prices` take the place of the column `cost`; with `one_price` all answers cost the same. Models that answered a
    smaller share of the questions than `min_coverage` are left out.
    """
    source = scores_source(path)
    announce(source)
    frame = read_frame(source, COLUMNS)
    if source.repeats:
        frame = _averaged(frame)
    return table_of(frame, source.name, prices=prices, one_price=one_price, min_coverage=min_coverage)


def _averaged(answers: pd.DataFrame) -> pd.DataFrame:
    """Return each model's answer to each question once, graded with the mean of all: harnesses ask several times."""
    cell = ["question_id" if "question_id" in answers else "prompt", "model"]
    if not {*cell, "score"} <= {*answers} or not answers.duplicated(cell).any():
        return answers
    numbers = [name for name in ("score", "cost", "output_chars") if name in answers]
    others = [name for name in answers if name not in (*cell, *numbers)]
    means = dict.fromkeys(numbers, "mean") | dict.fromkeys(others, "first")
    averaged: pd.DataFrame = answers.groupby(cell, sort=False, as_index=False).agg(means)
    return averaged


def table_of(
    answers: pd.DataFrame,
    name: str,
    *,
    prices: Mapping[str, TokenPrice] | None = None,
    one_price: bool = False,
    min_coverage: float = 0.9,
) -> ScoreTable:
    """Build a table from rows in memory, which messages call `name`; see `read_table`."""
    answers = _checked(answers, name)
    questions = answers["question_id"].nunique()
    answered = answers.groupby("model").size() / questions
    covering = answered.index[answered >= min_coverage]
    if questions * len(covering) > _MOST_CELLS:
        raise InputError(
            f"{name}: {questions:,} questions by {len(covering):,} models are too many; raise --min-coverage, or cut it"
        )
    # Of the others not even the columns are made: a table may name a model in each row.
    covered = answers[answers["model"].isin(covering)]
    complete = covered.pivot(index="question_id", columns="model", values="score").dropna()
    if complete.shape[1] < 2:
        count = complete.shape[1]
        raise InputError(
            f"{name}: has {count} model that answered {min_coverage:.0%} of the questions; routing needs two"
        )
    if complete.empty:
        raise InputError(f"{name}: no question was answered by all {complete.shape[1]} models; raise --min-coverage")
    about = answers.drop_duplicates("question_id").set_index("question_id").loc[complete.index]
    priced = None if one_price else _priced(answers[answers["model"].isin(complete.columns)], name, prices)
    if priced is not None and not priced.loc[complete.index, complete.columns].to_numpy().any():
        raise InputError(
            f"{name}: every answer cost nothing; add --one-price to compare accuracy alone, or --prices FILE"
        )
    return ScoreTable(
        name=name,
        models=tuple(complete.columns),
        prompts=tuple(about["prompt"]),
        categories=tuple(about["category"]),
        scores=complete.to_numpy(dtype=np.float64).clip(0.0, 1.0),
        costs=np.ones(complete.shape)
        if priced is None
        else priced.loc[complete.index, complete.columns].to_numpy(np.float64),
        one_price=priced is None,
        left_out=tuple(answered.index[answered < min_coverage]),
        incomplete=questions - len(complete),
        clipped=int(((complete < 0) | (complete > 1)).to_numpy().sum()),
    )


def _checked(answers: pd.DataFrame, name: str) -> pd.DataFrame:
    """Return the columns that are used, checked."""
    for column in NEEDED:
        if column not in answers:
            raise InputError(
                f"{name}: has no column {column!r}; a table of graded answers has {', '.join(NEEDED)}, and a cost"
            )
    if not len(answers):
        raise InputError(f"{name}: holds no answers")
    answers = answers.reset_index(drop=True)
    if "question_id" not in answers:
        answers = answers.assign(question_id=answers["prompt"])
    if "category" not in answers:
        answers = answers.assign(category=_ONE_CATEGORY)
    answers = answers.assign(category=answers["category"].fillna("none").astype(str))
    answers = answers.assign(question_id=answers["question_id"].astype(str))
    for column in TEXTS:
        wrong = ~answers[column].map(lambda entry: isinstance(entry, str))
        if wrong.any():
            raise InputError(f"{name}: row {_row(answers, wrong)}: {column} is not text")
    scores = _numbers(answers, "score", name)
    if (outside := ~(np.abs(scores - 0.5) <= 0.5 + SLACK)).any():
        raise InputError(f"{name}: row {_row(answers, outside)}: score must be a number from 0 to 1")
    if (twice := answers.duplicated(["question_id", "model"])).any():
        raise InputError(f"{name}: row {_row(answers, twice)}: this model has answered this question in an earlier row")
    checked: pd.DataFrame = answers.assign(score=scores)
    return checked


def _priced(answers: pd.DataFrame, name: str, prices: Mapping[str, TokenPrice] | None) -> pd.DataFrame:
    """Return dollars by question and model."""
    costs = answers.assign(cost=_costs(answers, name, prices))
    wide: pd.DataFrame = costs.pivot(index="question_id", columns="model", values="cost")
    return wide


def _costs(answers: pd.DataFrame, name: str, prices: Mapping[str, TokenPrice] | None) -> Floats:
    """Return the dollars (rows,) of each answer."""
    if prices is not None:
        if "output_chars" not in answers:
            raise InputError(f"{name}: has no column 'output_chars'; prices per token need the length of each answer")
        for model in answers["model"].unique():
            if model not in prices:
                raise InputError(f"no price for model {model!r}{nearest(model, prices)}; add it to the price file")
        tokens = _numbers(answers, "output_chars", name) / _CHARS_PER_TOKEN
        prompt_tokens = answers["prompt"].str.len().to_numpy(np.float64) / _CHARS_PER_TOKEN
        rates = [prices[model] for model in answers["model"]]
        out, into = (np.array([getattr(rate, side) for rate in rates]) for side in ("output", "input"))
        return np.asarray((tokens * out + prompt_tokens * into) / 1e6)
    if "cost" not in answers:
        raise InputError(
            f"{name}: has no column 'cost'; give --prices (with a column output_chars), or --one-price where "
            "every answer costs the same"
        )
    costs = _numbers(answers, "cost", name)
    if (wrong := ~((costs >= 0) & np.isfinite(costs))).any():
        raise InputError(f"{name}: row {_row(answers, wrong)}: cost must be a number of dollars of at least 0")
    return costs


def _numbers(answers: pd.DataFrame, column: str, name: str) -> Floats:
    """Return a column as floats; raise InputError where it holds something else."""
    import pandas as pd

    numbers: Any = pd.to_numeric(answers[column], errors="coerce").to_numpy(np.float64)
    if (wrong := np.isnan(numbers)).any():
        raise InputError(f"{name}: row {_row(answers, wrong)}: {column} is not a number")
    return np.asarray(numbers)


def _row(answers: pd.DataFrame, wrong: Any) -> int:
    """Return the number, from 1, of the first wrong row."""
    return int(answers.index[np.asarray(wrong)][0]) + 1
