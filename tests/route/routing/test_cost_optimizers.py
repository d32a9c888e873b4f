"""What a budget buys: against scipy's HiGHS on thousands of instances, and against exact arithmetic."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import linprog

from p2l.common.errors import ConfigError, InputError
from route.routing.optimizers import OPTIMIZERS, InfeasibleError, Mixture, Problem, check_budget, get, hull, register

PRECISE = {"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10}


def make(scores: np.ndarray, costs: np.ndarray, budget: float | None, **limits: np.ndarray) -> Problem:
    """The problem with its models in the order of cost."""
    order = np.argsort(costs, kind="stable")
    if limits:
        limits = {"amounts": limits["amounts"][:, order], "most": limits["most"]}
    return Problem(scores[order], costs[order], budget, **limits)


def highs(problem: Problem) -> float | None:
    """The best expected score by linear programming, costs rescaled to median 1; None where there is none."""
    rows, most = problem.amounts.reshape(len(problem.most), len(problem.costs)), problem.most
    if problem.budget is not None:
        scale = float(np.median(problem.costs)) or float(problem.costs.max()) or 1.0
        rows = np.vstack([rows, problem.costs / scale])
        most = np.append(most, problem.budget / scale)
    bound = {"A_ub": rows, "b_ub": most} if len(most) else {}
    ones = np.ones((1, len(problem.scores)))
    found = linprog(-problem.scores, A_eq=ones, b_eq=[1.0], bounds=(0, None), options=PRECISE, **bound)
    return None if found.status == 2 else -found.fun


def plain(rng: np.random.Generator, size: int) -> tuple[np.ndarray, np.ndarray]:
    return rng.random(size), rng.lognormal(0.0, 1.5, size)


def equal_costs(rng: np.random.Generator, size: int) -> tuple[np.ndarray, np.ndarray]:
    return rng.random(size), np.full(size, 2.5)


def few_costs(rng: np.random.Generator, size: int) -> tuple[np.ndarray, np.ndarray]:
    return rng.random(size), rng.choice([0.5, 1.0, 3.0], size)


def equal_scores(rng: np.random.Generator, size: int) -> tuple[np.ndarray, np.ndarray]:
    return np.full(size, 0.5), rng.random(size)


def few_scores(rng: np.random.Generator, size: int) -> tuple[np.ndarray, np.ndarray]:
    return rng.choice([0.1, 0.2, 0.7], size), rng.random(size)


def duplicates(rng: np.random.Generator, size: int) -> tuple[np.ndarray, np.ndarray]:
    which = rng.integers(0, 1 + size // 3, size)
    return rng.random(size)[which], rng.random(size)[which]


def free_models(rng: np.random.Generator, size: int) -> tuple[np.ndarray, np.ndarray]:
    return rng.random(size), rng.random(size) * (rng.random(size) < 0.5)


def on_a_line(rng: np.random.Generator, size: int) -> tuple[np.ndarray, np.ndarray]:
    costs = rng.integers(0, 8, size).astype(float)
    return costs / 8, costs


def concave(rng: np.random.Generator, size: int) -> tuple[np.ndarray, np.ndarray]:
    costs = rng.random(size)
    return np.sqrt(costs), costs


def negative_scores(rng: np.random.Generator, size: int) -> tuple[np.ndarray, np.ndarray]:
    return -3.0 * rng.random(size), rng.random(size)


def huge_costs(rng: np.random.Generator, size: int) -> tuple[np.ndarray, np.ndarray]:
    return rng.random(size), 1e12 * (1.0 + rng.random(size))


def tiny_costs(rng: np.random.Generator, size: int) -> tuple[np.ndarray, np.ndarray]:
    return rng.random(size), 1e-12 * (1.0 + rng.random(size))


SHAPES = [
    plain,
    equal_costs,
    few_costs,
    equal_scores,
    few_scores,
    duplicates,
    free_models,
    on_a_line,
    concave,
    negative_scores,
    huge_costs,
    tiny_costs,
]


@pytest.mark.parametrize("name", ["simple-lp", "optimal-lp", "lp"])
@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.__name__)
def test_the_hull_is_as_good_as_the_linear_program(name: str, shape: Callable[..., tuple]) -> None:
    rng = np.random.default_rng([SHAPES.index(shape), sorted(OPTIMIZERS).index(name)])
    for _ in range(100):
        scores, costs = shape(rng, int(rng.choice([1, 2, 3, 5, 12, 34])))
        low, high = float(costs.min()), float(costs.max())
        budget = float(rng.choice([low, high, 2.0 * high, rng.choice(costs), *rng.uniform(low, high, 6)]))
        problem = make(scores, costs, budget)
        mixture = OPTIMIZERS[name].solve(problem)
        check(mixture, problem)
        assert mixture.mean(problem.scores) == pytest.approx(highs(problem), abs=1e-9, rel=0)
        assert len(mixture.positions) <= 2


def check(mixture: Mixture, problem: Problem) -> None:
    """It is a distribution within the budget."""
    assert all(share > 0.0 for share in mixture.shares)
    assert math.fsum(mixture.shares) == pytest.approx(1.0, abs=1e-12)
    assert len(set(mixture.positions)) == len(mixture.positions)
    if problem.budget is not None:
        assert mixture.mean(problem.costs) <= problem.budget * (1 + 1e-12)


whole = st.integers(0, 6)


@given(st.lists(st.tuples(whole, whole), min_size=1, max_size=7), st.fractions(0, 7, max_denominator=12))
def test_the_hull_is_exact(points: list[tuple[int, int]], budget: Fraction) -> None:
    """Against all mixtures of two models, in rational arithmetic."""
    points.sort()
    costs, scores = np.array(points, dtype=float).T
    problem = Problem(scores, costs, float(budget))
    best = best_of_pairs(points, budget)
    if best is None:
        with pytest.raises(InfeasibleError):
            OPTIMIZERS["simple-lp"].solve(problem)
    else:
        mixture = OPTIMIZERS["simple-lp"].solve(problem)
        check(mixture, problem)
        assert mixture.mean(scores) == pytest.approx(float(best), abs=1e-14, rel=1e-14)


def best_of_pairs(points: list[tuple[int, int]], budget: Fraction) -> Fraction | None:
    found = [Fraction(score) for cost, score in points if cost <= budget]
    for cheap, low in points:
        for dear, high in points:
            if cheap <= budget < dear:
                found.append(low + (budget - cheap) / (dear - cheap) * (high - low))
    return max(found, default=None)


@given(st.lists(st.tuples(whole, whole), min_size=1, max_size=30))
def test_the_hull_is_a_strictly_concave_chain_above_all_models(points: list[tuple[int, int]]) -> None:
    points.sort()
    costs, scores = np.array(points, dtype=float).T
    corners = hull(scores, costs)
    xs, ys = costs[corners], scores[corners]
    assert xs[0] == costs[0]
    assert ys[-1] == scores.max()
    assert (np.diff(xs) > 0).all()
    assert (np.diff(ys) > 0).all()
    assert (np.diff(np.diff(ys) / np.diff(xs)) < 0).all()
    assert (np.interp(costs, xs, ys) >= scores - 1e-12).all()


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_equal_scores_go_to_the_cheaper_and_then_to_the_first(name: str) -> None:
    problem = Problem(np.array([0.2, 0.9, 0.9, 0.9]), np.array([1.0, 2.0, 2.0, 3.0]), 5.0)
    assert OPTIMIZERS[name].solve(problem) == Mixture((1,), (1.0,))


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_without_a_budget_the_best_model_is_bought(name: str) -> None:
    problem = Problem(np.array([0.2, 0.4, 0.9, 0.3]), np.array([0.0, 1.0, 2.0, 3.0]))
    assert OPTIMIZERS[name].solve(problem) == Mixture((2,), (1.0,))


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_budget_of_exactly_the_cheapest_cost_is_enough(name: str) -> None:
    problem = Problem(np.array([0.2, 0.4]), np.array([0.1, 0.3]), 0.1)
    assert OPTIMIZERS[name].solve(problem) == Mixture((0,), (1.0,))


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_budget_below_the_cheapest_model_says_what_that_costs(name: str) -> None:
    with pytest.raises(InfeasibleError, match=r"0\.1 buys no answer: the cheapest model costs 0\.25$"):
        OPTIMIZERS[name].solve(Problem(np.array([0.2, 0.4]), np.array([0.25, 0.3]), 0.1))


def test_strict_takes_the_best_single_model_within_the_budget() -> None:
    rng = np.random.default_rng(5)
    for _ in range(300):
        scores, costs = rng.random(9).round(1), rng.random(9).round(1)
        problem = make(scores, costs, float(rng.uniform(costs.min(), 1.0)))
        (position,) = OPTIMIZERS["strict"].solve(problem).positions
        within = problem.costs <= problem.budget
        assert within[position]
        assert problem.scores[position] == problem.scores[within].max()
        assert problem.costs[position] == problem.costs[problem.scores == problem.scores[position]].min()


def test_a_larger_budget_never_buys_less() -> None:
    scores, costs = plain(np.random.default_rng(2), 50)
    for name in ("strict", "optimal-lp"):
        bought = []
        for budget in np.linspace(costs.min(), costs.max(), 200):
            problem = make(scores, costs, float(budget))
            bought.append(OPTIMIZERS[name].solve(problem).mean(problem.scores))
        assert (np.diff(bought) >= -1e-15).all()


@pytest.mark.parametrize("budget", [math.nan, math.inf, -math.inf, -1.0])
def test_what_is_no_budget_is_refused(budget: float) -> None:
    with pytest.raises(InputError, match="a budget must be a number of at least 0"):
        check_budget(budget)


def test_a_budget_may_be_absent_or_zero() -> None:
    check_budget(None)
    check_budget(0.0)


def limited(rng: np.random.Generator) -> Problem:
    """Costs, latencies and the share of a provider, with limits around their means."""
    size = int(rng.integers(2, 15))
    scores, costs = plain(rng, size)
    amounts = np.vstack([1e3 * rng.random(size), rng.random(size) < 0.5])
    budget = float(rng.uniform(costs.min(), costs.max())) if rng.random() < 0.8 else None
    return make(scores, costs, budget, amounts=amounts, most=np.array([rng.uniform(100, 900), rng.random()]))


def test_several_limits_are_kept_by_few_models() -> None:
    rng, solved = np.random.default_rng(11), 0
    for _ in range(60):
        problem, expected = (one := limited(rng)), highs(one)
        if expected is None:
            with pytest.raises(InfeasibleError, match="no mixture of the"):
                OPTIMIZERS["lp"].solve(problem)
            continue
        mixture = OPTIMIZERS["lp"].solve(problem)
        assert mixture.mean(problem.scores) == pytest.approx(expected, abs=1e-9)
        assert math.fsum(mixture.shares) == pytest.approx(1.0, abs=1e-12)
        for row, most in zip(problem.amounts, problem.most, strict=True):
            assert mixture.mean(row) <= most * (1 + 1e-9) + 1e-12
        assert len(mixture.positions) <= 4
        solved += 1
    assert solved > 30


def test_a_share_of_zero_and_an_amount_of_zero_are_limits_too() -> None:
    problem = Problem(
        np.array([0.1, 0.9]), np.array([1.0, 2.0]), None, np.array([[0.0, 1.0], [0.0, 0.0]]), np.array([0.0, 0.0])
    )
    assert OPTIMIZERS["lp"].solve(problem) == Mixture((0,), (1.0,))


def test_draws_follow_the_shares() -> None:
    mixture, rng = Mixture((3, 7, 9), (0.2, 0.7, 0.1)), np.random.default_rng(0)
    drawn = np.array([mixture.draw(rng) for _ in range(20_000)])
    for position, share in mixture.items():
        assert (drawn == position).mean() == pytest.approx(share, abs=4 * math.sqrt(share * (1 - share) / 20_000))
    assert set(drawn.tolist()) == {3, 7, 9}


def test_a_new_optimizer_is_found_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("route.routing.optimizers.OPTIMIZERS", dict(OPTIMIZERS))

    @register("cheapest")
    def solve(_problem: Problem) -> Mixture:
        return Mixture((0,), (1.0,))

    assert get("cheapest").solve is solve


def test_an_unknown_optimizer_is_a_mistake_with_a_hint() -> None:
    with pytest.raises(ConfigError, match=r"'simple-pl' is unknown \(did you mean 'simple-lp'\?\); use one of strict,"):
        get("simple-pl")
