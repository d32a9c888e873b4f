"""The four sets of real votes: how each becomes votes on prompts, and which prompts are held out.

Two graded answers to one question make one vote: right beats wrong, both right is a tie, both wrong is both-bad. The
votes of a prompt stand next to each other and prompts in random order, so that a training step encodes a prompt once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from p2l.common.errors import InputError
from p2l.common.files import atomic_path

__all__ = ["SETS", "VoteSet", "arena_votes", "make", "oasst_votes", "split_by_prompt", "votes_from_scores"]

COLUMNS = ["question_id", "prompt", "category", "model_a", "model_b", "winner"]
SEED = 0
TUNING_SHARE = 0.15
"""Share of the training prompts on which baselines choose their settings."""
MIN_CATEGORY = 20
"""Prompts that a language needs to be a category of its own."""
MIN_COMBINATION = 300
"""Votes that a combination of tags needs to be a category of its own."""


@dataclass(frozen=True)
class VoteSet:
    """One set: its file, the likelihood its outcomes need, and how its rows become votes."""

    name: str
    likelihood: str
    make: Callable[[pd.DataFrame, int, np.random.Generator], pd.DataFrame]
    about: str
    votes_per_prompt: int = 20
    held_out: float = 0.25
    """Share of the prompts that no model sees in training."""
    folds: int = 1
    """How many times over, with other prompts held out each time: where prompts are few, one part says little."""


def make(votes_of: VoteSet, data: Path, folder: Path, most_prompts: int, fold: int = 0) -> None:
    """Write train.parquet, val.parquet (held-out prompts), tune.parquet (a part of the training prompts), rest.parquet.

    Raises:
        InputError: the set's file is not in `data`.
    """
    file = data / f"{votes_of.name}.parquet"
    if not file.is_file():
        raise InputError(f"{file}: no such file; give the folder that holds it")
    votes = votes_of.make(pd.read_parquet(file), votes_of.votes_per_prompt, np.random.default_rng(SEED))
    votes = _in_prompt_order(votes, most_prompts)
    train, val = split_by_prompt(votes, votes_of.held_out, fold)
    rest, tune = split_by_prompt(train, TUNING_SHARE)
    for name, part in (("train", train), ("val", val), ("tune", tune), ("rest", rest)):
        with atomic_path(folder / f"{name}.parquet") as temporary:
            part.to_parquet(temporary, index=False)


def votes_from_scores(scores: pd.DataFrame, per_prompt: int, rng: np.random.Generator) -> pd.DataFrame:
    """Four-way votes from 0/1 scores, `per_prompt` pairs of models drawn for each question."""
    table = scores.pivot(index="question_id", columns="model", values="score")
    about = scores.drop_duplicates("question_id").set_index("question_id")[["prompt", "category"]]
    models, right = np.array(table.columns), table.to_numpy()
    rows, a, b = _pairs(right, per_prompt, rng)
    right_a, right_b = right[rows, a] > 0.5, right[rows, b] > 0.5
    winner = np.select([right_a & right_b, right_a, right_b], ["tie", "model_a", "model_b"], default="tie (bothbad)")
    ids = np.array(table.index)[rows]
    votes = pd.DataFrame({"question_id": ids, "model_a": models[a], "model_b": models[b], "winner": winner})
    return votes.join(about, on="question_id")[COLUMNS]


def oasst_votes(battles: pd.DataFrame, per_prompt: int, rng: np.random.Generator) -> pd.DataFrame:
    """All verdicts; the category is the language, rare ones together, and whether the prompt has several turns.

    A prompt has `per_prompt` verdicts at most.
    """
    prompts = battles.drop_duplicates("question_id")
    counts = prompts["language"].value_counts()
    language = battles["language"].where(battles["language"].map(counts) >= MIN_CATEGORY, "another language")
    turns = np.where(battles["prompt"].map(len) > 1, "several turns", "one turn")
    votes = battles.assign(category=language + ", " + turns)
    shuffled = votes.iloc[rng.permutation(len(votes))]
    return shuffled[shuffled.groupby("question_id").cumcount() < per_prompt][COLUMNS]


def arena_votes(battles: pd.DataFrame, _per_prompt: int, _rng: np.random.Generator) -> pd.DataFrame:
    """Human votes; the prompt is the list of its tags in words, the category its combination of tags.

    A combination with few votes is one category with those that have as many tags. Each vote has a prompt of its own
    (only its tags are known), so nothing is drawn.
    """
    battles = battles[battles["model_a"] != battles["model_b"]].reset_index(drop=True)
    tags = [name for name in battles if name.startswith("tag_")]
    flags = battles[tags].to_numpy(dtype=bool)
    score = battles["if_score"].fillna(0).to_numpy(dtype=int)
    unique, code = np.unique(np.column_stack([flags, score]), axis=0, return_inverse=True)
    text = np.array([_in_words(row, tags) for row in unique], dtype=object)
    category = _combinations(unique, np.bincount(code))
    return battles.assign(prompt=text[code], category=category[code])[COLUMNS]


def split_by_prompt(votes: pd.DataFrame, share: float, fold: int = 0) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The votes without, and with, a seeded `share` of the questions, no two folds sharing one.

    Equal texts with several votes stay together.
    """
    groups = prompt_groups(votes)
    number = int(groups.max()) + 1
    chosen = np.zeros(number, dtype=bool)
    size = round(share * number)
    chosen[np.random.default_rng([SEED, number]).permutation(number)[fold * size : (fold + 1) * size]] = True
    held = chosen[groups]
    return votes[~held], votes[held]


def prompt_groups(votes: pd.DataFrame) -> NDArray[np.int64]:
    """Which prompt (N,) each vote is on: the text where questions have several votes, else the question."""
    text = votes["prompt"].map(lambda turns: turns if isinstance(turns, str) else "\x00".join(turns))
    alone = votes["question_id"].is_unique
    return np.asarray(pd.factorize(votes["question_id"] if alone else text)[0], dtype=np.int64)


def _in_prompt_order(votes: pd.DataFrame, most: int) -> pd.DataFrame:
    """At most so many prompts, in random order, the votes of each next to each other and in random order."""
    votes = votes.sort_values("question_id", kind="stable")
    groups, rng = prompt_groups(votes), np.random.default_rng(SEED)
    place = rng.permutation(int(groups.max()) + 1)[groups]
    order = np.lexsort((rng.random(len(votes)), place))
    kept: pd.DataFrame = votes.iloc[order[place[order] < most]].reset_index(drop=True)
    return kept


def _pairs(right: NDArray[np.float64], per_prompt: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Rows and two different columns (3, n), `per_prompt` times a row, among the columns that have a score."""
    found = []
    for row, scores in enumerate(right):
        known = np.flatnonzero(~np.isnan(scores))
        order = np.argsort(rng.random((per_prompt, len(known))), axis=1)
        found.append(np.column_stack([np.full(per_prompt, row), known[order[:, :2]]]))
    return np.asarray(np.concatenate(found).T, dtype=np.int64)


def _in_words(row: NDArray[np.int64], tags: list[str]) -> str:
    """One combination of tags as text; the last number is the score of how much instruction following it takes."""
    said = [tag.removeprefix("tag_").replace("_", " ") for tag, flag in zip(tags, row, strict=False) if flag]
    named = ", ".join(name.replace("if", "instruction following") if name == "if" else name for name in said)
    return f"{named or 'none'}; instructions {row[-1]} of 5"


def _combinations(unique: NDArray[np.int64], counts: NDArray[np.int64]) -> NDArray[np.object_]:
    """The category of each combination of tags; rare ones join those with the same math, creative and tag count."""
    flags = unique[:, :-1]
    names = np.array(["".join(map(str, row)) for row in unique], dtype=object)
    rare = np.array([f"{row.sum()} tags" for row in flags], dtype=object)
    return np.where(counts >= MIN_COMBINATION, names, rare)


SETS = {
    "mmlu_pro": VoteSet("mmlu_pro_scores", "grk", votes_from_scores, "graded answers, 29 LLMs", 40, 0.2),
    "zeroeval": VoteSet("zeroeval_scores", "grk", votes_from_scores, "graded answers, 56 LLMs", 60, folds=2),
    "oasst": VoteSet("oasst_vicuna_gpt4_battles", "rk", oasst_votes, "GPT-4 verdicts, 8 LLMs", 60, 0.3, 3),
    "arena": VoteSet("arena140k_votes", "grk", arena_votes, "human votes, prompts known by tags alone", 1),
}
