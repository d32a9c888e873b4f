"""Budgets are spent as the router spends them, and curves say what comes of it."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import linprog

from route.evaluation.spending import (
    Curves,
    Spent,
    budgets,
    cost_axis,
    draw_counts,
    earnings,
    interval,
    join,
    spend,
    spend_at_random,
    spend_on_average,
    worth_on,
)
from route.routing.optimizers import InfeasibleError, Problem, get
from tests.route.evaluation.routing_tables import known_table, random_table


@pytest.mark.parametrize("seed", range(3))
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


@pytest.mark.parametrize("seed", range(3))
def test_the_fast_form_for_tuning_earns_the_same(seed: int) -> None:
    table, rng = random_table(seed=seed), np.random.default_rng(seed)
    costs, expected = table.costs.mean(axis=0), rng.random(table.scores.shape)
    limits = budgets(costs)
    spent = spend(expected, costs, table.scores, table.costs, limits)
    for column, limit in enumerate(limits.tolist()):
        scores, paid = earnings(expected, costs, table.scores, table.costs, limit)
        np.testing.assert_allclose(scores, spent.scores[:, column], atol=1e-12)
        np.testing.assert_allclose(paid, spent.costs[:, column], atol=1e-12)


@pytest.mark.parametrize("seed", range(3))
def test_a_budget_on_average_buys_what_the_linear_program_over_all_prompts_buys(seed: int) -> None:
    table, rng = random_table(24, seed=seed), np.random.default_rng(seed)
    costs, expected = table.costs.mean(axis=0), rng.random(table.scores.shape)
    limits = budgets(costs)
    spent = spend_on_average(expected, costs, table.scores, table.costs, limits)
    questions, models = expected.shape
    one_each = np.kron(np.eye(questions), np.ones(models))
    for column, limit in enumerate(limits.tolist()):
        program = linprog(
            -expected.ravel() / questions,
            A_ub=np.tile(costs, questions)[None] / questions,
            b_ub=[limit],
            A_eq=one_each,
            b_eq=np.ones(questions),
        )
        assert spent.expected[:, column].mean() == pytest.approx(-program.fun, abs=1e-7)
    alone = spend(expected, costs, table.scores, table.costs, limits)
    assert (spent.expected.mean(axis=0) >= alone.expected.mean(axis=0) - 1e-9).all()


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
        spend(np.ones((1, 3)), costs, np.ones((1, 3)), np.ones((1, 3)), np.array([0.05]), optimizer="strict")


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


def test_the_area_of_a_level_curve_is_its_height_and_steps_count_by_orders_of_magnitude() -> None:
    level = Curves(np.full((1, 2), 0.3), np.array([[1.0, 100.0]]))
    assert level.areas(cost_axis(1.0, 100.0))[0] == pytest.approx(0.3)
    step = Curves(np.array([[0.0, 0.0, 1.0, 1.0]]), np.array([[1.0, 9.999, 10.001, 100.0]]))
    assert step.areas(cost_axis(1.0, 100.0))[0] == pytest.approx(0.5, abs=0.01)


def test_intervals_cover_the_mean_as_often_as_they_say() -> None:
    rng, hits = np.random.default_rng(0), 0
    for trial in range(100):
        values = rng.random((60, 1))
        counts = draw_counts(tuple(map(str, range(60))), draws=200, seed=trial)
        found = interval(Curves.of(Spent(values, values, values), counts).scores[:, 0])
        hits += found.lower <= 0.5 <= found.upper
    assert 88 <= hits <= 99


def test_equal_prompts_are_drawn_together() -> None:
    counts = draw_counts(("a", "b", "a", "c"), draws=50)
    assert (counts[:, 0] == counts[:, 2]).all()
    assert (counts[:, 0] != counts[:, 1]).any()


def test_folds_are_joined_prompt_by_prompt() -> None:
    one = Spent(np.zeros((2, 3)), np.ones((2, 3)), np.ones((2, 3)))
    assert join([one, one]).scores.shape == (4, 3)
