"""Budgets are spent as the router spends them, and curves say what comes of it."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import linprog

from route.evaluation.cost_curves import (
    Curves,
    Spent,
    budgets,
    cost_axis,
    earnings,
    join,
    spend,
    spend_at_random,
    spend_on_average,
    worth_on,
)
from route.evaluation.table import Floats
from route.routing.optimizers import InfeasibleError, Problem, get
from tests.conftest import seeds
from tests.route.evaluation.routing_tables import known_table, random_table


@pytest.mark.parametrize("seed", seeds(3))
def test_each_prompt_is_a_request_to_the_routers_optimizer(seed: int) -> None:
    table, rng = random_table(seed=seed), np.random.default_rng(seed)
    costs, expected = table.costs.mean(axis=0), rng.random(table.scores.shape)
    limits = budgets(costs)
    spent = spend(expected, costs, table.scores, table.costs, limits)
    order = np.argsort(costs)
    for row in range(0, len(expected), 7):
        for column, limit in enumerate(limits.tolist()):
            mixture = get("simple-lp").solve(Problem(expected[row, order], costs[order], limit))
            assert spent.scores[row, column] == pytest.approx(mixture.mean(table.scores[row, order]))
            assert spent.costs[row, column] == pytest.approx(mixture.mean(table.costs[row, order]))
            assert mixture.mean(costs[order]) <= limit * (1 + 1e-12)


@pytest.mark.parametrize("seed", seeds(3))
def test_the_fast_form_for_tuning_earns_the_same(seed: int) -> None:
    table, rng = random_table(seed=seed), np.random.default_rng(seed)
    costs, expected = table.costs.mean(axis=0), rng.random(table.scores.shape)
    limits = budgets(costs)
    spent = spend(expected, costs, table.scores, table.costs, limits)
    for column, limit in enumerate(limits.tolist()):
        scores, paid = earnings(expected, costs, table.scores, table.costs, limit)
        np.testing.assert_allclose(scores, spent.scores[:, column], atol=1e-12)
        np.testing.assert_allclose(paid, spent.costs[:, column], atol=1e-12)


def bought(expected: Floats, costs: Floats, limit: float) -> float:
    """Return the mean expected score of the linear program over all prompts."""
    questions, models = expected.shape
    scale = limit or float(costs.max())  # the solver takes what is a little beyond a limit of 1 for within
    program = linprog(
        -expected.ravel() / questions,
        A_ub=np.tile(costs / scale, questions)[None] / questions,
        b_ub=[limit / scale],
        A_eq=np.kron(np.eye(questions), np.ones(models)),
        b_eq=np.ones(questions),
    )
    return -float(program.fun)


@pytest.mark.parametrize("seed", seeds(3))
def test_a_budget_on_average_buys_what_the_linear_program_over_all_prompts_buys(seed: int) -> None:
    table, rng = random_table(24, seed=seed), np.random.default_rng(seed)
    costs, expected = table.costs.mean(axis=0), rng.random(table.scores.shape)
    limits = budgets(costs)
    spent = spend_on_average(expected, costs, table.scores, table.costs, limits)
    for column, limit in enumerate(limits.tolist()):
        assert spent.expected[:, column].mean() == pytest.approx(bought(expected, costs, limit), abs=1e-7)
    alone = spend(expected, costs, table.scores, table.costs, limits)
    assert (spent.expected.mean(axis=0) >= alone.expected.mean(axis=0) - 1e-9).all()


@pytest.mark.parametrize(
    "costs",
    [
        [1e-4] * 5,  # whose mean over seven prompts is a little more
        [1e-4, 1e-4, 3e-4, 0.012],
        [1e-4, 2e-4, 0.012, 0.012],
        [0.0, 1e-4, 0.012],
        [0.0, 0.0, 1e-4, 0.012],
        [1e-8, 1e-3, 10.0],
    ],
)
@pytest.mark.parametrize("questions", [1, 7, 20])
def test_so_it_is_with_models_that_cost_the_same_or_nothing(costs: list[float], questions: int) -> None:
    rng, dollars = np.random.default_rng(0), np.array(costs)
    limits = budgets(dollars)
    shape = (questions, len(costs))
    for expected in (rng.random(shape), rng.integers(0, 3, shape) / 2, np.tile(rng.random(len(costs)), (questions, 1))):
        paid = np.tile(dollars, (questions, 1))
        spent = spend_on_average(expected, dollars, expected, paid, limits)
        assert (spent.costs.mean(axis=0) <= limits * (1 + 1e-12)).all()
        for column, limit in enumerate(limits.tolist()):
            assert spent.expected[:, column].mean() == pytest.approx(bought(expected, dollars, limit), abs=1e-6)


def test_a_policy_that_expects_the_same_of_all_prompts_spends_either_kind_of_budget_alike() -> None:
    table = random_table()
    costs, expected = table.costs.mean(axis=0), np.tile(table.scores.mean(axis=0), (len(table.prompts), 1))
    limits = budgets(costs)
    each, all_ = (
        spending(expected, costs, table.scores, table.costs, limits) for spending in (spend, spend_on_average)
    )
    np.testing.assert_allclose(all_.scores, each.scores, atol=1e-9)
    np.testing.assert_allclose(all_.costs, each.costs, atol=1e-9)
    tuned = [worth_on(table, on_average=on_average)(expected).area for on_average in (False, True)]
    assert tuned[0] == pytest.approx(tuned[1], abs=1e-9)


def test_true_scores_earn_most_of_every_prompt_under_every_budget() -> None:
    table = random_table()
    costs, limits = table.costs.mean(axis=0), budgets(table.costs.mean(axis=0))
    hindsight = spend(table.scores, costs, table.scores, table.costs, limits)
    for seed in range(3):
        expected = np.random.default_rng(seed).random(table.scores.shape)
        other = spend(expected, costs, table.scores, table.costs, limits)
        assert (hindsight.scores >= other.scores - 1e-12).all()
    assert (hindsight.scores >= spend_at_random(costs, table.scores, table.costs, limits).scores - 1e-12).all()


def test_what_is_known_of_a_constructed_table() -> None:
    """Sums go to the cheap model; poems go to the dear one with the share that the budget buys."""
    table = known_table()
    costs = table.costs.mean(axis=0)
    limits = budgets(costs)
    hindsight = spend(table.scores, costs, table.scores, table.costs, limits)
    share = (limits - 0.01) / 0.03
    np.testing.assert_allclose(hindsight.scores.mean(axis=0), 0.5 + 0.5 * share)
    np.testing.assert_allclose(hindsight.costs.mean(axis=0), 0.01 + 0.015 * share)
    assert worth_on(table)(table.scores).area == pytest.approx(
        Curves(hindsight.scores.mean(0)[None], hindsight.costs.mean(0)[None]).areas(cost_axis(0.01, 0.04))[0], abs=5e-3
    )


def test_budgets_begin_at_the_cheapest_model_and_no_less_is_enough() -> None:
    costs = np.array([0.1, 0.3, 0.7])
    limits = budgets(costs)
    assert limits[0] == 0.1
    assert limits[-1] == 0.7
    np.testing.assert_allclose(budgets(np.array([0.0, 1.0]))[12], 0.5)
    with pytest.raises(InfeasibleError, match="buys no answer"):
        spend(np.ones((1, 3)), costs, np.ones((1, 3)), np.ones((1, 3)), np.array([0.05]))


def test_random_takes_all_that_the_budget_buys_alike() -> None:
    costs = np.array([3.0, 1.0])
    spent = spend_at_random(costs, np.array([[1.0, 0.0]]), np.array([[3.0, 1.0]]), np.array([1.0, 3.0]))
    np.testing.assert_allclose(spent.scores, [[0.0, 0.5]])
    np.testing.assert_allclose(spent.costs, [[1.0, 2.0]])


def test_a_curve_is_read_between_its_points_and_level_beyond() -> None:
    curve = Curves(np.array([[0.2, 0.6]]), np.array([[1.0, 10.0]]))
    assert curve.at(np.array([5.5]))[0] == pytest.approx(0.4)
    assert curve.at(np.array([99.0]))[0] == pytest.approx(0.6)
    assert curve.cost_of(np.array([0.4]))[0] == pytest.approx(5.5)
    assert curve.cost_of(np.array([0.1]))[0] == pytest.approx(1.0)
    assert curve.cost_of(np.array([0.7]))[0] == np.inf
    assert curve.cost_of(np.array([0.6 + 1e-15]))[0] == pytest.approx(10.0)  # the same score, but for rounding


def test_the_area_of_a_level_curve_is_its_height_and_steps_count_by_orders_of_magnitude() -> None:
    level = Curves(np.full((1, 2), 0.3), np.array([[1.0, 100.0]]))
    assert level.areas(cost_axis(1.0, 100.0))[0] == pytest.approx(0.3)
    step = Curves(np.array([[0.0, 0.0, 1.0, 1.0]]), np.array([[1.0, 9.999, 10.001, 100.0]]))
    assert step.areas(cost_axis(1.0, 100.0))[0] == pytest.approx(0.5, abs=0.01)


def test_folds_are_joined_prompt_by_prompt() -> None:
    one = Spent(np.zeros((2, 3)), np.ones((2, 3)), np.ones((2, 3)))
    assert join([one, one]).scores.shape == (4, 3)
