"""Public sets of graded answers and votes, read into votes on one set of names for the public model.

Each set of `p2l/public/sources.yaml` is a file of the folder that `tools.public_model --data` names. Names are
joined by `p2l/public/names.yaml`; a set that shares no name with the others is left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pandas as pd
import yaml

from p2l.common.errors import InputError
from p2l.public.names import Names
from p2l.votes.schema import WINNERS

Frame: TypeAlias = Any
"""A table of pandas, whose stubs do not know lists as columns."""
PACKAGE = Path(__file__).parent.parent / "p2l" / "public"
_PASSED = 0.5
"""Score from which an answer is usable."""
_LEAST_VOTES = 30
"""Votes of a model with fewer of which nothing could be said."""
_LONGEST_PROMPT = 20_000  # characters
_COLUMNS = ["prompt", "model_a", "model_b", "winner", "dataset", "category"]


@dataclass(frozen=True)
class Source:
    """One set of `sources.yaml`."""

    name: str
    file: str
    kind: str
    """answers, votes, verdicts or levels."""
    about: str
    address: str
    licence: str
    date: str
    prompts: int = 0
    pairs: int = 0
    only_known: bool = False
    """Whether only models that another set has are taken."""


def sources() -> list[Source]:
    """Return the sets of the package's table."""
    table: Mapping[str, Mapping[str, Any]] = yaml.safe_load((PACKAGE / "sources.yaml").read_text(encoding="utf-8"))
    return [Source(name=name, **fields) for name, fields in table.items()]


def public_votes(data: Path, seed: int) -> tuple[Frame, list[str]]:
    """Return the votes of all sets with texts, and the sets that are left out; InputError without their files."""
    rng, names = np.random.default_rng(seed), Names.load()
    tables = {source.name: of_set(data, source, names, rng) for source in sources() if source.kind != "levels"}
    for source in sources():
        if source.only_known:
            others = {name for key, table in tables.items() if key != source.name for name in _models(table)}
            table = tables[source.name]
            tables[source.name] = table[table.model_a.isin(others) & table.model_b.isin(others)]
    left_out = [name for name in tables if name not in _connected(tables)]
    votes: Frame = pd.concat([table for name, table in tables.items() if name not in left_out], ignore_index=True)
    counts = pd.concat([votes.model_a, votes.model_b]).value_counts()
    kept = votes.model_a.map(counts).ge(_LEAST_VOTES) & votes.model_b.map(counts).ge(_LEAST_VOTES)
    return votes[kept].reset_index(drop=True), left_out


def of_set(
    data: Path, source: Source, names: Names, rng: np.random.Generator, *, only: Sequence[str] | None = None
) -> Frame:
    """Return votes of one set with texts, between some models or all; InputError where its file is not there."""
    file = data / source.file
    if not file.is_file():
        raise InputError(f"{file}: no such file; {source.name} is published at {source.address}")
    table: Frame = pd.read_parquet(file)
    columns = ["model"] if source.kind == "answers" else ["model_a", "model_b"]
    if only is not None:
        for column in columns:
            table = table[[names.joined(name, source.name) in only for name in table[column]]]
    return (_of_answers if source.kind == "answers" else _of_battles)(table, source, names, rng)


def _of_answers(answers: Frame, source: Source, names: Names, rng: np.random.Generator) -> Frame:
    """Return votes of graded answers: on each drawn prompt, of some pairs of models, on random sides."""
    answers = answers[answers.prompt.str.len().le(_LONGEST_PROMPT)]
    answers = answers.assign(model=[names.joined(name, source.name) for name in answers.model]).dropna(subset="model")
    scores = answers.pivot_table(index="question_id", columns="model", values="score", aggfunc="mean")
    about = answers.drop_duplicates("question_id").set_index("question_id")
    about = about.assign(category=about["category"].fillna(source.name) if "category" in about else source.name)
    rows = []
    for question in rng.permutation(scores.index.to_numpy())[: source.prompts]:
        graded = scores.loc[question].dropna()
        first, second = np.triu_indices(len(graded), 1)
        for pair in rng.permutation(len(first))[: source.pairs]:
            sides = rng.permutation([first[pair], second[pair]])
            (a, b), (score_a, score_b) = graded.index[sides], graded.to_numpy()[sides]
            tie = 2 if (score_a + score_b) / 2 >= _PASSED else 3
            winner = 0 if score_a > score_b else 1 if score_b > score_a else tie
            prompt = [str(about.at[question, "prompt"])]
            rows.append((prompt, a, b, WINNERS[winner], source.name, str(about.at[question, "category"])))
    return pd.DataFrame(rows, columns=_COLUMNS)


def _of_battles(battles: Frame, source: Source, names: Names, rng: np.random.Generator) -> Frame:
    """Return some votes on each drawn prompt; of sets that have verdicts beside people's votes, the votes."""
    if source.kind == "votes" and "judge_type" in battles:
        battles = battles[battles.judge_type == "human"]
    joined = {side: [names.joined(name, source.name) for name in battles[side]] for side in ("model_a", "model_b")}
    votes = battles.assign(
        **joined,
        prompt=[[str(turn) for turn in turns] for turns in battles.prompt],
        dataset=source.name,
        category=battles.get("language", source.name),
    ).dropna(subset=["model_a", "model_b"])
    votes = votes[votes.model_a != votes.model_b]
    drawn = rng.permutation(votes.question_id.unique())[: source.prompts]
    votes = votes[votes.question_id.isin(drawn)].iloc[rng.permutation(int(votes.question_id.isin(drawn).sum()))]
    votes = votes.groupby("question_id", sort=True).head(source.pairs)
    return votes[_COLUMNS]


def _models(votes: Frame) -> set[str]:
    return {*votes.model_a, *votes.model_b}


def _connected(tables: Mapping[str, Frame]) -> set[str]:
    """Return the largest group of sets that are joined by shared names."""
    groups: list[tuple[set[str], set[str]]] = []
    for name, table in tables.items():
        members, models = {name}, _models(table)
        apart = []
        for other, known in groups:
            if known & models:
                members |= other
                models |= known
            else:
                apart.append((other, known))
        groups = [*apart, (members, models)]
    return max(groups, key=lambda group: len(group[1]))[0]


def arena_votes(data: Path) -> Frame:
    """Return the arena's votes, whose prompts are not there: model_a, model_b and winner under joined names."""
    names = Names.load()
    source = next(source for source in sources() if source.name == "arena140k")
    votes: Frame = pd.read_parquet(data / source.file, columns=["model_a", "model_b", "winner"])
    for side in ("model_a", "model_b"):
        votes[side] = [names.joined(name, source.name) for name in votes[side]]
    return votes[votes.model_a != votes.model_b]


def newest_board(data: Path) -> Frame:
    """Return model, rating, interval and votes of the newest public text board, under joined names."""
    names = Names.load()
    source = next(source for source in sources() if source.name == "boards2026")
    boards: Frame = pd.read_parquet(data / source.file)
    text = boards[boards.board == "text"]
    newest = text.sort_values("date").groupby("model").tail(1)
    return newest.assign(model=[names.joined(name, source.name) for name in newest.model])
