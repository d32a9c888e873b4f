"""One run: a table split by prompt (or one table for training, another for the test), and what is read from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from p2l.common.errors import InputError
from p2l.metrics import Interval, Reliability
from p2l.metrics.calibration import reliability
from route.evaluation.features import told
from route.evaluation.policies import Asked, Outcome, compare
from route.evaluation.spending import Axis, Curves, Spent, difference, draw_counts, interval, join
from route.evaluation.table import ScoreTable, splits
from route.evaluation.training import known_models

Floats: TypeAlias = npt.NDArray[np.float64]
POLICIES: Mapping[str, str] = {
    "p2l": "router on P2L",
    "single": "best single model",
    "cheapest": "cheapest model",
    "random": "random",
    "category": "per-category best",
    "nearest": "nearest neighbours",
    "oracle": "oracle",
}
ONE_PRICE_POLICIES = tuple(name for name in POLICIES if name != "cheapest")


@dataclass(frozen=True)
class Line:
    """What is reported of one policy."""

    about: str
    area: Interval | None
    """Mean height of the curve; None where there is one price."""
    accuracy: Interval
    """Mean score with the largest budget."""
    at_equal_cost: Interval | None
    """Mean score at the cost of the best single model."""
    cost_ratio: Interval | None
    """Cost at the best single model's score, over that model's; infinite where the curve does not reach it."""
    less: Mapping[str, Mapping[str, Interval]]
    """By measure (area, accuracy, at_equal_cost): how much more p2l has, on the same drawn prompts."""
    curve: tuple[tuple[float, float], ...]
    """Mean cost and mean score for each budget."""
    settings: tuple[str, ...]


@dataclass(frozen=True)
class Results:
    """All that a report shows."""

    table: str
    models: tuple[str, ...]
    questions: int
    prompts: int
    trained_on: tuple[int, ...]
    notes: tuple[str, ...]
    one_price: bool
    lines: Mapping[str, Line]
    model_points: Mapping[str, tuple[float, float]]
    """Mean cost and score of each model on the test questions."""
    pairs: Reliability
    """Of expected scores of all answers."""
    chosen: Reliability
    """Of those of the mixtures that were chosen with the largest budget."""


def within(table: ScoreTable, asked: Asked, *, share: float, folds: int, seed: int) -> tuple[Results, Outcome]:
    """Hold prompts of the table out; the outcome is that of the last fold.

    Raises:
        InputError: the table cannot be split so, or the P2L does not know its models.
    """
    if asked.model is not None:
        table = table.of_models(known_models(asked.model, table))
    seen = _as_seen(table, table, asked)
    if asked.encoder is not None:  # all prompts at once, so that the cache serves any split
        asked.encoder.states(seen.prompts, quiet=asked.quiet)
    outcomes, rows, sizes = [], [], []
    for train, test in splits(table.prompts, share=share, folds=folds, seed=seed):
        outcomes.append(compare(seen.take(train), seen.take(test), asked))
        rows.append(test)
        sizes.append(len(train))
    return _results(table.take(np.concatenate(rows)), outcomes, tuple(sizes), seed), outcomes[-1]


def across(train: ScoreTable, test: ScoreTable, asked: Asked, *, seed: int) -> tuple[Results, Outcome]:
    """Train on one table, test on another, with the models that are in both.

    Raises:
        InputError: fewer than two models are in both, or all prompts of the test occur in training.
    """
    shared = tuple(model for model in train.models if model in test.models)
    if len(shared) < 2:
        raise InputError(f"{test.name}: shares {len(shared)} models with {train.name}; routing needs two")
    if train.one_price != test.one_price:
        raise InputError(f"{test.name}: one of the two tables has costs and the other none; give --one-price for both")
    seen = set(train.prompts)
    new = np.array([row for row, prompt in enumerate(test.prompts) if prompt not in seen], dtype=np.intp)
    if not len(new):
        raise InputError(f"{test.name}: every prompt occurs in {train.name}; nothing is left to test on")
    held = test.of_models(shared).take(new)
    if asked.model is not None:
        held = held.of_models(known_models(asked.model, held))
    train = train.of_models(held.models)
    outcome = compare(_as_seen(train, held, asked), _as_seen(held, train, asked), asked)
    return _results(held, [outcome], (len(train.prompts),), seed), outcome


def _as_seen(table: ScoreTable, other: ScoreTable, asked: Asked) -> ScoreTable:
    """The table with prompts as policies read them.

    Raises:
        InputError: categories are to be told, and there is one alone, or the other table has none of them.
    """
    if not asked.category:
        return table
    for one in (table, other):
        if len(set(one.categories)) < 2:
            raise InputError(f"{one.name}: has one category, which tells nothing; leave out --category-in-prompt")
    if not set(table.categories) & set(other.categories):
        raise InputError(f"{table.name}: shares no category with {other.name}; leave out --category-in-prompt")
    return told(table)


def _results(test: ScoreTable, outcomes: list[Outcome], sizes: tuple[int, ...], seed: int) -> Results:
    names = ONE_PRICE_POLICIES if test.one_price else tuple(POLICIES)
    spent = {name: join([outcome.spent[name] for outcome in outcomes]) for name in names}
    best = np.concatenate([np.full(len(outcome.expected), outcome.best) for outcome in outcomes])
    counts = draw_counts(test.prompts, seed=seed)
    curves = {name: Curves.of(values, counts) for name, values in spent.items()}
    rows = np.arange(len(best))
    alone = Spent(*(values[rows, best][:, None] for values in (test.scores, test.costs, test.scores)))
    reads = _reads(test, Curves.of(alone, counts))
    settings = {name: _settings(outcomes, name) for name in names}
    expected = np.concatenate([outcome.expected for outcome in outcomes])
    return Results(
        table=test.name,
        models=test.models,
        questions=len(test.prompts),
        prompts=len(set(test.prompts)),
        trained_on=sizes,
        notes=_notes(test),
        one_price=test.one_price,
        lines={name: _line(name, curves, reads, settings[name]) for name in names},
        model_points={
            model: (float(cost), float(score))
            for model, cost, score in zip(test.models, test.costs.mean(axis=0), test.scores.mean(axis=0), strict=True)
        },
        pairs=_reliability(expected.ravel(), test.scores.ravel()),
        chosen=_reliability(spent["p2l"].expected[:, -1], spent["p2l"].scores[:, -1]),
    )


def _reads(test: ScoreTable, alone: Curves) -> dict[str, Any]:
    """What is read from curves, by measure; `alone` is the best single model on its own."""
    reads: dict[str, Any] = {"accuracy": lambda curves: curves.scores[:, -1]}
    if not test.one_price:
        means = test.costs.mean(axis=0)
        axis = Axis.between(float(means.min()), float(means.max()))
        reads["area"] = lambda curves: curves.areas(axis)
        reads["at_equal_cost"] = lambda curves: curves.at(alone.costs[:, 0])
        reads["cost_ratio"] = lambda curves: curves.cost_of(alone.scores[:, 0]) / alone.costs[:, 0]
    return reads


def _line(name: str, curves: Mapping[str, Curves], reads: Mapping[str, Any], settings: tuple[str, ...]) -> Line:
    def measured(measure: str) -> Interval | None:
        return interval(reads[measure](curves[name])) if measure in reads else None

    accuracy = measured("accuracy")
    assert accuracy is not None
    less = {
        measure: {name: difference(curves, "p2l", name, reads[measure])}
        for measure in ("area", "accuracy", "at_equal_cost")
        if measure in reads and name != "p2l"
    }
    points = zip(curves[name].costs[0].tolist(), curves[name].scores[0].tolist(), strict=True)
    return Line(
        about=POLICIES[name],
        area=measured("area"),
        accuracy=accuracy,
        at_equal_cost=measured("at_equal_cost"),
        cost_ratio=measured("cost_ratio"),
        less=less,
        curve=tuple(points),
        settings=settings,
    )


def _settings(outcomes: list[Outcome], name: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(outcome.settings[name] for outcome in outcomes if outcome.settings.get(name)))


def _notes(test: ScoreTable) -> tuple[str, ...]:
    left = f"left out, answered too few questions: {', '.join(test.left_out)}" if test.left_out else ""
    cut = f"left out, {test.incomplete} questions that not all models answered" if test.incomplete else ""
    clipped = f"scores of the table beyond 0 or 1 that were taken for these: {test.clipped}" if test.clipped else ""
    return tuple(note for note in (left, cut, clipped) if note)


def _reliability(expected: Floats, realised: Floats) -> Reliability:
    """Of the chance of a usable answer; a fractional score counts as so much of one."""
    probs, truth = (np.stack([values, 1.0 - values], axis=1) for values in (expected, realised))
    found = reliability(probs, truth, ("usable", "not"))
    return replace(
        found,
        outcomes=found.outcomes[:1],
        predicted=found.predicted[:1],
        observed=found.observed[:1],
        mass=found.mass[:1],
    )


def calibration_error(found: Reliability) -> float:
    """Mean distance of expected from realised scores over bins, by how many answers are in each."""
    return float(np.nansum(found.mass * np.abs(found.predicted - found.observed)))
