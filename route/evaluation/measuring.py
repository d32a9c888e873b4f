"""Measure the policies on held-out prompts of a table, or on another table."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from p2l.common.errors import InputError
from p2l.metrics import Interval, Reliability, joined_points
from p2l.metrics.calibration import reliability
from route.evaluation.cost_curves import Curves, Spent, cost_axis, join
from route.evaluation.features import with_categories
from route.evaluation.policies import Outcome, Setup, compare
from route.evaluation.sampling import Samples, departures, halves, interval
from route.evaluation.table import Floats, ScoreTable, splits
from route.evaluation.training import known_models
from route.routing.guard import Guard

POLICIES: Mapping[str, str] = {
    "p2l": "router on P2L",
    "single": "best single model",
    "cheapest": "cheapest model",
    "random": "random",
    "category": "per-category best",
    "nearest": "nearest neighbours",
    "clusters": "k-means leaderboards",
    "oracle": "oracle, in hindsight",
}
_MAX_POINT_ANSWERS = 200_000  # from which the points of a diagram are computed
_ROUNDING = 1e-9  # of a difference of scores
_ONE_PRICE_POLICIES = tuple(name for name in POLICIES if name != "cheapest")


@dataclass(frozen=True)
class PolicyReport:
    """The figures of one policy."""

    about: str
    area: Interval | None
    """Mean height of the curve; None where there is one price."""
    accuracy: Interval
    """Mean score with the largest budget."""
    at_equal_cost: Interval | None
    """Mean score at the cost of the best single model."""
    cost_ratio: Interval | None
    """Cost at the best single model's score, over that model's; infinite where the curve does not reach it."""
    gains: Mapping[str, Interval]
    """By measure (area, accuracy, at_equal_cost): how much more p2l has, on the same drawn prompts."""
    over_constant: Mapping[str, Interval]
    """By measure: how much more this policy has than the best single model; none of that model itself."""
    oracle_share: Mapping[str, Interval]
    """By measure: `over_constant` as a share of the oracle's; none where the oracle gains nothing."""
    explained: Interval | None
    """Share of the variance of models' deviations that it foresees; None for one that expects nothing."""
    curve: tuple[tuple[float, float], ...]
    """Mean cost and mean score for each budget."""
    settings: tuple[str, ...]


@dataclass(frozen=True)
class Results:
    """The content of a report."""

    table: str
    models: tuple[str, ...]
    questions: int
    prompts: int
    trained_on: tuple[int, ...]
    trainings: int
    """Trainings on halves of the training prompts that gains have in their intervals, in each fold."""
    notes: tuple[str, ...]
    constants: tuple[tuple[str, float], ...]
    """The best single models by budget: names and mean training costs, ascending, each better than all before it."""
    one_price: bool
    on_average: bool
    """Whether budgets are means over all requests, rather than those of each."""
    policies: Mapping[str, PolicyReport]
    model_points: Mapping[str, tuple[float, float]]
    """Mean cost and score of each model on the test questions."""
    pairs: Reliability
    """Of expected scores of all answers."""
    chosen: Reliability
    """Of the expected scores of the mixtures under the largest budget."""
    guard: Guard | None
    """Of a P2L that was trained elsewhere (of the last fold)."""

    @property
    def constant(self) -> str:
        """The single model with the best mean training score, whatever it costs; of several the cheapest."""
        return self.constants[-1][0]

    @property
    def measure(self) -> str:
        """The measure by which policies are compared: without different costs there is no curve, and no area."""
        return "accuracy" if self.one_price else "area"


def within(table: ScoreTable, setup: Setup, *, share: float, folds: int, seed: int) -> tuple[Results, Outcome]:
    """Measure on held-out prompts of the table; the outcome is that of the last fold."""
    if setup.model is not None:
        table = table.of_models(known_models(setup.model.folder, table))
    seen = _as_seen(table, table, setup)
    if setup.encoder is not None:  # all prompts at once, so that the cache serves any split
        setup.encoder.states(seen.prompts)
    outcomes, again, rows, sizes = [], [], [], []
    for train, test in splits(table.prompts, share=share, folds=folds, seed=seed):
        outcomes.append(compare(seen.take(train), seen.take(test), setup))
        again.append(_on_halves(seen.take(train), seen.take(test), setup, seed))
        rows.append(test)
        sizes.append(len(train))
    return _results(table.take(np.concatenate(rows)), outcomes, again, tuple(sizes), setup, seed), outcomes[-1]


def across(train: ScoreTable, test: ScoreTable, setup: Setup, *, seed: int) -> tuple[Results, Outcome]:
    """Train on one table and measure on the new prompts of another, with the models that are in both."""
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
    if setup.model is not None:
        held = held.of_models(known_models(setup.model.folder, held))
    train = train.of_models(held.models)
    sides = _as_seen(train, held, setup), _as_seen(held, train, setup)
    outcome = compare(*sides, setup)
    again = _on_halves(*sides, setup, seed)
    return _results(held, [outcome], [again], (len(train.prompts),), setup, seed), outcome


def _on_halves(train: ScoreTable, test: ScoreTable, setup: Setup, seed: int) -> list[Mapping[str, Spent] | None]:
    """Return what policies earn that were trained on random halves of the training prompts; None of one too small."""
    spent: list[Mapping[str, Spent] | None] = []
    for rows in halves(train.prompts, setup.trainings, seed=seed):
        try:
            spent.append(compare(train.take(rows), test, setup).spent)
        except InputError:  # the whole could be trained on
            spent.append(None)
    return spent


def _as_seen(table: ScoreTable, other: ScoreTable, setup: Setup) -> ScoreTable:
    """Return the table with prompts as policies read them; raise InputError for categories that tell nothing."""
    if not setup.category:
        return table
    for side in (table, other):
        if len(set(side.categories)) < 2:
            raise InputError(f"{side.name}: has one category, which tells nothing; leave out --category-in-prompt")
    if not set(table.categories) & set(other.categories):
        raise InputError(f"{table.name}: shares no category with {other.name}; leave out --category-in-prompt")
    return with_categories(table)


def _results(
    test: ScoreTable,
    outcomes: list[Outcome],
    again: list[list[Mapping[str, Spent] | None]],
    sizes: tuple[int, ...],
    setup: Setup,
    seed: int,
) -> Results:
    """Return the results of folds; `again` has, for each fold, what trainings on halves earn."""
    names = _ONE_PRICE_POLICIES if test.one_price else tuple(POLICIES)
    spent = {name: join([outcome.spent[name] for outcome in outcomes]) for name in names}
    expected = np.concatenate([outcome.learned.expected for outcome in outcomes])
    trainings = [
        [spent for spent in folds if spent is not None] for folds in zip(*again, strict=True) if None not in folds
    ]
    measured = _Measured.of(test, outcomes, trainings, Samples.of(test.prompts, seed=seed))
    # What folds have in common stands once.
    settings = {
        name: tuple(dict.fromkeys(outcome.settings[name] for outcome in outcomes if outcome.settings.get(name)))
        for name in names
    }
    explained = {
        name: explained_share(
            np.concatenate([outcome.expected[name] for outcome in outcomes]), test.scores, measured.samples.weights
        )
        for name in outcomes[0].expected
    }
    return Results(
        table=test.name,
        models=test.models,
        questions=len(test.prompts),
        prompts=len(set(test.prompts)),
        trained_on=sizes,
        trainings=len(trainings),
        notes=_notes(test, setup.trainings - len(trainings)),
        constants=_constants(test.models, outcomes, sizes),
        one_price=test.one_price,
        on_average=setup.on_average and not test.one_price,
        policies={name: measured.report(name, settings[name], explained.get(name)) for name in names},
        model_points={
            model: (float(cost), float(score))
            for model, cost, score in zip(test.models, test.costs.mean(axis=0), test.scores.mean(axis=0), strict=True)
        },
        pairs=_reliability(expected, test.scores, test.prompts),
        chosen=_reliability(spent["p2l"].expected[:, -1:], spent["p2l"].scores[:, -1:], test.prompts),
        guard=outcomes[-1].learned.guard,
    )


def _notes(test: ScoreTable, trainings_left_out: int) -> tuple[str, ...]:
    notes = []
    if trainings_left_out:
        notes.append(
            f"left out, {trainings_left_out} trainings on halves of the training prompts, which have too few of these; "
            "intervals do not hold all that another draw of training prompts would change"
        )
    if test.left_out:
        notes.append(f"left out, answered too few questions: {', '.join(test.left_out)}")
    if test.incomplete:
        notes.append(f"left out, {test.incomplete} questions that not all models answered")
    if test.clipped:
        notes.append(f"scores of the table beyond 0 or 1 that were taken for these: {test.clipped}")
    return tuple(notes)


@dataclass(frozen=True)
class _Measured:
    """What all policies earn on samples of prompts, trained on all training prompts and on halves of them."""

    curves: Mapping[str, Curves]
    figures: Mapping[str, Mapping[str, Floats]]
    """By measure and policy: (1 + R,)."""
    of_halves: Mapping[str, Sequence[Mapping[str, Floats]]]
    """By measure, training on a half, and policy: (1 + R,)."""
    alone: Curves
    """The best single model without a budget: a curve of one point, at whose cost and score others are read."""
    samples: Samples

    @staticmethod
    def of(
        test: ScoreTable,
        outcomes: Sequence[Outcome],
        trainings: Sequence[Sequence[Mapping[str, Spent]]],
        samples: Samples,
    ) -> _Measured:
        """Average what was spent in all folds; `trainings` has, for each one on halves, what it spent in each fold."""
        best = np.concatenate([np.full(len(outcome.learned.expected), outcome.best) for outcome in outcomes])
        rows = np.arange(len(best))
        scores, costs = test.scores[rows, best][:, None], test.costs[rows, best][:, None]
        alone = Curves.of(Spent(scores=scores, costs=costs, expected=scores), samples.weights)
        reads: dict[str, Callable[[Curves], Floats]] = {"accuracy": lambda curves: curves.scores[:, -1]}
        if not test.one_price:
            means = test.costs.mean(axis=0)
            axis = cost_axis(float(means.min()), float(means.max()))
            reads["area"] = lambda curves: curves.areas(axis)
            reads["at_equal_cost"] = lambda curves: curves.at(alone.costs[:, 0])

        def averaged(folds: Sequence[Mapping[str, Spent]]) -> dict[str, Curves]:
            names = _ONE_PRICE_POLICIES if test.one_price else POLICIES
            return {name: Curves.of(join([spent[name] for spent in folds]), samples.weights) for name in names}

        whole, of_halves = averaged([outcome.spent for outcome in outcomes]), [averaged(folds) for folds in trainings]
        return _Measured(
            curves=whole,
            figures={
                measure: {name: read(curves) for name, curves in whole.items()} for measure, read in reads.items()
            },
            of_halves={
                measure: [{name: read(curves) for name, curves in half.items()} for half in of_halves]
                for measure, read in reads.items()
            },
            alone=alone,
            samples=samples,
        )

    def report(self, name: str, settings: tuple[str, ...], explained: Interval | None) -> PolicyReport:
        """Return the figures of a policy."""
        measures = {
            measure: interval(self.samples.with_unseen(figures[name], low=0.0, high=1.0))
            for measure, figures in self.figures.items()
        }
        over_constant, oracle_share = self._oracle_shares(name)
        points = zip(self.curves[name].costs[0].tolist(), self.curves[name].scores[0].tolist(), strict=True)
        return PolicyReport(
            about=POLICIES[name],
            area=measures.get("area"),
            accuracy=measures["accuracy"],
            at_equal_cost=measures.get("at_equal_cost"),
            cost_ratio=None if "area" not in measures else interval(self._cost_ratio(name)),
            gains={}
            if name == "p2l"
            else {measure: interval(self._gain("p2l", name, measure)) for measure in measures},
            over_constant=over_constant,
            oracle_share=oracle_share,
            explained=explained,
            curve=tuple(points),
            settings=settings,
        )

    def _gain(self, name: str, other: str, measure: str) -> Floats:
        """Return how much more (1 + R,) a policy has than another, on samples of prompts and of trainings."""
        gains = self.figures[measure][name] - self.figures[measure][other]
        if self.of_halves[measure]:
            gains = gains + departures([figures[name] - figures[other] for figures in self.of_halves[measure]])
        return self.samples.with_unseen(gains, low=-1.0, high=1.0)

    def _oracle_shares(self, name: str) -> tuple[dict[str, Interval], dict[str, Interval]]:
        """Return, by measure, what a policy gains over the best single model, and as a share of the oracle's gain."""
        gains: dict[str, Interval] = {}
        shares: dict[str, Interval] = {}
        for measure, figures in self.figures.items():
            if name == "single":
                continue
            gain = self._gain(name, "single", measure)
            gains[measure] = interval(gain)
            possible = figures["oracle"] - figures["single"]
            if possible[0] > _ROUNDING:
                # On the unseen prompt where the policy does worst the oracle gains nothing either.
                possible = self.samples.with_unseen(possible, low=0.0, high=1.0)
                # A sample of prompts on which no choice gains anything has nothing to take a share of.
                share = np.where(possible > _ROUNDING, gain / np.maximum(possible, _ROUNDING), 0.0)
                shares[measure] = interval(share)
        return gains, shares

    def _cost_ratio(self, name: str) -> Floats:
        """Return the cost (1 + R,) at which a policy has the best single model's score, over that model's cost.

        What unseen prompts and other trainings change of scores moves the curve up or down.
        """
        moved = np.zeros(len(self.samples.weights) + 1)
        if name != "single":
            scores = self.figures["at_equal_cost"]
            moved = self._gain(name, "single", "at_equal_cost") - (scores[name] - scores["single"])
        return self.curves[name].cost_of(self.alone.scores[:, 0] - moved) / self.alone.costs[:, 0]


def _constants(
    models: tuple[str, ...], outcomes: Sequence[Outcome], sizes: tuple[int, ...]
) -> tuple[tuple[str, float], ...]:
    """Return the models that are the best single one at some budget, with their mean costs, by training questions."""
    means = np.average([outcome.mean_scores for outcome in outcomes], axis=0, weights=sizes)
    costs = np.average([outcome.mean_costs for outcome in outcomes], axis=0, weights=sizes)
    frontier: list[tuple[str, float]] = []
    highest = -np.inf
    for column in np.lexsort((-means, costs)).tolist():
        # Averages of folds may differ by rounding, which must not make a dearer model the better one.
        if means[column] > highest + _ROUNDING:
            frontier.append((models[column], float(costs[column])))
            highest = float(means[column])
    return tuple(frontier)


def explained_share(expected: Floats, scores: Floats, weights: Floats) -> Interval:
    """Return the share of the variance of models' deviations that expected scores (Q, M) foresee.

    A deviation is a score less the model's mean score and the prompt's, more the mean of all: what is left to choose
    by once it is known how good each model is and how hard each prompt. Below zero where expectations are worse than
    none. `weights` (R, Q) has how much a sample holds of each prompt.
    """
    truth, foreseen = _deviations(scores), _deviations(expected)
    every = np.vstack([np.ones(len(scores)), weights])
    missed, all_ = (every @ (rows**2).sum(axis=1) for rows in (truth - foreseen, truth))
    return interval(1.0 - missed / np.maximum(all_, np.finfo(np.float64).tiny))


def _deviations(scores: Floats) -> Floats:
    """Return scores (Q, M) less the means of their row and column, more the mean of all."""
    return np.asarray(scores - scores.mean(axis=0) - scores.mean(axis=1, keepdims=True) + scores.mean())


def _reliability(expected: Floats, realised: Floats, prompts: Sequence[str]) -> Reliability:
    """Return the reliability of the chance of a usable answer, of matrices (Q, n), with points by prompt (Q,).

    A fractional score counts as that share of a usable answer.
    """
    probs, truth = (np.stack([values.ravel(), 1.0 - values.ravel()], axis=1) for values in (expected, realised))
    both = reliability(probs, truth, ("usable", "not"))
    names = ("outcomes", "predicted", "observed", "mass")
    first = {name: getattr(both, name)[:1] for name in names}
    step = -(-expected.size // _MAX_POINT_ANSWERS)
    columns = [values[::step].ravel() for values in (expected, realised)]
    chosen_probs, chosen_truth = (np.stack([values, 1.0 - values], axis=1) for values in columns)
    clusters = np.repeat(np.unique(prompts[::step], return_inverse=True)[1], expected.shape[1])
    points = joined_points(chosen_probs, chosen_truth, ("usable", "not"), clusters=clusters)[:1]
    return replace(both, **first, points=points)


def calibration_error(bins: Reliability) -> float:
    """Return the mean distance of expected from realised scores over bins, weighted by their answers."""
    return float(np.nansum(bins.mass * np.abs(bins.predicted - bins.observed)))
