"""What answers are expected to cost, and ceilings on the average: by the classes, without a server."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from route.routing.decision import Coefficients, RoutedModel
from route.routing.dollars import Dollars, Estimator, Prompt
from route.routing.pacing import BLOCK, SLACK, Pacer
from route.routing.router import Router
from route.routing.spending import Spending

MODELS = [
    RoutedModel("cheap", cost=0.0004, price=(1.0, 1.0)),
    RoutedModel("dear", cost=0.004, price=(10.0, 10.0)),
    RoutedModel("flat", cost=0.002),
]


@dataclass(frozen=True)
class Key:
    name: str
    budget_usd: float | None = None


KEY = Key("key")
SAID = Coefficients({"cheap": 0.0, "dear": 2.0, "flat": 1.0})


def router(kind: str = "grk-endpoint", optimizer: str | None = None) -> Router:
    return Router(MODELS, kind=kind, optimizer=optimizer, rng=np.random.default_rng(0))


def costs_by_name(estimator: Estimator, menu_names: tuple[str, ...], prompt: Prompt) -> dict[str, float]:
    return dict(zip(menu_names, estimator.costs(prompt).tolist(), strict=True))


def test_an_answer_costs_its_prompt_and_its_expected_tokens() -> None:
    menu = router().menu
    costs = costs_by_name(Estimator(menu), menu.names, Prompt(tokens=1000, size=4000))
    assert costs == pytest.approx({"cheap": 0.001 + 0.0004, "dear": 0.01 + 0.004, "flat": 0.002})


def test_a_limit_of_the_answer_and_several_choices_count() -> None:
    menu = router().menu
    costs = costs_by_name(Estimator(menu), menu.names, Prompt(tokens=0, size=0, most=100, choices=3))
    assert costs == pytest.approx({"cheap": 0.0003, "dear": 0.003, "flat": 0.006})


def test_what_was_seen_takes_the_place_of_a_wrong_prior() -> None:
    menu = router().menu
    estimator, prompt = Estimator(menu), Prompt(tokens=100, size=400)
    for _ in range(60):
        estimator.observe("cheap", prompt, 1200, (100 + 1200) / 1e6)
    assert costs_by_name(estimator, menu.names, prompt)["cheap"] == pytest.approx(0.0013, rel=0.1)
    assert estimator.hopes[menu.places["cheap"]] > 0.9 > estimator.hopes[menu.places["dear"]]


def test_dollars_that_the_provider_reports_take_the_place_of_prices() -> None:
    menu = router().menu
    estimator, prompt = Estimator(menu), Prompt(tokens=100, size=400)
    for _ in range(60):
        estimator.observe("dear", prompt, 400, 2 * (100 + 400) * 10 / 1e6)
    assert costs_by_name(estimator, menu.names, prompt)["dear"] == pytest.approx(0.01, rel=0.1)


def test_a_model_is_learned_apart_for_short_and_long_prompts() -> None:
    """What all models share is the usual length of an answer; one that differs is known to after a few answers."""
    menu = router().menu
    estimator, short, long = Estimator(menu), Prompt(tokens=25, size=100), Prompt(tokens=2500, size=10_000)
    for _ in range(80):
        for prompt, tokens in ((short, 100), (long, 800)):
            estimator.observe("cheap", prompt, tokens, (prompt.tokens + tokens) / 1e6)
            estimator.observe("dear", prompt, 900 - tokens, (prompt.tokens + 900 - tokens) / 1e5)
    for prompt, tokens in ((short, 100), (long, 800)):
        costs = costs_by_name(estimator, menu.names, prompt)
        assert costs["cheap"] == pytest.approx((prompt.tokens + tokens) / 1e6, rel=0.25)
        assert costs["dear"] == pytest.approx((prompt.tokens + 900 - tokens) / 1e5, rel=0.25)


def test_a_price_that_doubles_is_followed_within_thirty_answers() -> None:
    """Though many answers are averaged otherwise, since their costs differ much."""
    rng, menu = np.random.default_rng(3), router().menu
    estimator, prompt = Estimator(menu), Prompt(tokens=100, size=400)
    expected = []
    for number in range(330):
        tokens = int(400 * rng.lognormal(-0.125, 0.5))
        estimator.observe("dear", prompt, tokens, (100 + tokens) / 1e5 * (2.0 if number >= 300 else 1.0))
        expected.append(costs_by_name(estimator, menu.names, prompt)["dear"])
    assert expected[299] == pytest.approx(0.005, rel=0.1)
    assert expected[329] == pytest.approx(0.01, rel=0.15)


def test_answers_that_cost_many_times_what_is_expected_are_reckoned_with() -> None:
    menu = router().menu
    estimator, prompt, place = Estimator(menu), Prompt(tokens=100, size=400), menu.places["cheap"]
    for _ in range(600):
        estimator.observe("cheap", prompt, 400, 500 / 1e6)
    assert estimator.tails[place] < 2.0
    estimator.observe("cheap", prompt, 4900, 5000 / 1e6)
    assert estimator.tails[place] == pytest.approx(10.0, rel=0.1)


def test_nonsense_changes_nothing() -> None:
    menu = router().menu
    estimator, prompt = Estimator(menu), Prompt(tokens=100, size=400)
    before = estimator.costs(prompt)
    estimator.observe("nobody", prompt, 5, 1.0)
    estimator.observe("cheap", prompt, None, 1.0)
    estimator.observe("cheap", prompt, 5, float("nan"))
    assert estimator.costs(prompt).tolist() == before.tolist()


def test_a_budget_in_dollars_mixes_by_expected_dollars() -> None:
    """Half way between two models' expected costs each gets half, whatever `cost` says."""
    routes = router()
    costs = np.array([{"cheap": 0.01, "flat": 5.0, "dear": 0.03}[name] for name in routes.menu.names])
    decision = routes.decide(SAID, 0.02, dollars=Dollars(costs))
    assert decision.probabilities == pytest.approx({"cheap": 0.5, "dear": 0.5})
    assert decision.in_dollars
    assert decision.expected_cost == pytest.approx(0.02)
    assert decision.costs == pytest.approx({"cheap": 0.01, "flat": 5.0, "dear": 0.03})


def test_a_ceiling_weighs_scores_against_dollars() -> None:
    routes = router()
    costs = np.array([{"cheap": 0.0, "flat": 1.0, "dear": 2.0}[name] for name in routes.menu.names])
    scores = routes.scores(SAID)
    assert scores is not None
    worth = {name: score - 0.2 * cost for name, score, cost in zip(routes.menu.names, scores, costs, strict=True)}
    decision = routes.decide(SAID, None, dollars=Dollars(costs, False, ((1.0, 0.2),)))
    assert decision.model == max(worth, key=worth.__getitem__)
    mixed = routes.decide(SAID, None, dollars=Dollars(costs, False, ((0.25, 0.0), (0.75, 9.0))))
    assert mixed.probabilities == pytest.approx({"dear": 0.25, "cheap": 0.75})


def test_what_is_not_permitted_is_not_chosen_and_the_cheapest_always_is() -> None:
    routes = router()
    costs = np.array([{"cheap": 0.0, "flat": 1.0, "dear": 2.0}[name] for name in routes.menu.names])
    none = np.zeros(3, dtype=np.bool_)
    assert routes.decide(SAID, None, dollars=Dollars(costs, False, permitted=none)).model == "cheap"
    flat = np.array([name == "flat" for name in routes.menu.names])
    assert routes.decide(SAID, None, dollars=Dollars(costs, False, permitted=flat)).model == "flat"


@pytest.mark.parametrize("wrong", [1.0, 3.0, 1 / 3])
@pytest.mark.parametrize("delay", [1, 30])
def test_a_ceiling_holds_in_every_block_though_expectations_are_wrong(wrong: float, delay: int) -> None:
    rng = np.random.default_rng(5)
    spending, routes, ceiling = Spending(router().menu, 0.0025), router(), 0.0025
    spent, waiting = [], []
    for number in range(3 * BLOCK):
        coefficients = Coefficients({name: coef + rng.normal() for name, coef in SAID.coefs.items()})
        prompt = Prompt(tokens=50, size=200)
        allowance = spending.plan(KEY, routes.scores(coefficients), prompt, is_budget=False)
        assert allowance is not None
        assert allowance.dollars is not None
        name = routes.decide(coefficients, None, dollars=allowance.dollars).model
        allowance.begin(routes.menu.places[name])
        # From the middle of the second block on answers are twice as long.
        tokens = int(400 * wrong * (1 + (number > 1.5 * BLOCK)) * rng.lognormal(-0.18, 0.6))
        price = {"cheap": 1e-6, "dear": 1e-5, "flat": 0.0}[name]
        dollars = 0.002 if name == "flat" else (50 + tokens) * price
        spent.append(dollars)
        waiting.append((allowance, name, tokens, dollars, prompt))
        if len(waiting) >= delay:
            allowance, name, tokens, dollars, prompt = waiting.pop(0)
            allowance.close(dollars)
            spending.estimator.observe(name, prompt, tokens, dollars)
    blocks = np.array(spent).reshape(-1, BLOCK).mean(axis=1)
    assert (blocks <= ceiling * (1 + SLACK)).all()
    if wrong >= 1.0:  # the best model costs less than the ceiling otherwise
        assert (blocks >= ceiling * 0.9).all(), "it is spent, too"


def test_a_ceiling_below_the_cheapest_model_refuses() -> None:
    pacer, estimator = Pacer(1e-5, 3), Estimator(router().menu)
    prompt, refused = Prompt(tokens=50, size=200), 0
    for _ in range(2 * BLOCK):
        plan = pacer.plan(None, estimator, prompt)
        ticket = pacer.begin(0.0 if plan is None else 0.00045)
        pacer.settle(ticket, 0.0 if plan is None else 0.00045)
        refused += plan is None
    assert 0.97 < refused / (2 * BLOCK) < 0.98, "a forty-fifth of them can be paid"


def test_of_two_ceilings_the_narrower_one_decides() -> None:
    spending = Spending(router().menu, 0.01)
    routes, prompt = router(), Prompt(tokens=50, size=200)
    chosen: dict[str, list[str]] = {"poor": [], "rich": []}
    keys = {"poor": Key("poor", 0.0005), "rich": Key("rich")}
    for _ in range(300):
        for key, names in chosen.items():
            allowance = spending.plan(keys[key], routes.scores(SAID), prompt, is_budget=False)
            assert allowance is not None
            assert allowance.dollars is not None
            names.append(routes.decide(SAID, None, dollars=allowance.dollars).model)
            place = routes.menu.places[names[-1]]
            allowance.begin(place)
            allowance.close(float(allowance.dollars.costs[place]))
    assert chosen["rich"].count("dear") == 300
    assert chosen["poor"].count("cheap") > 250


def test_without_ceiling_and_budget_there_is_nothing_to_plan() -> None:
    spending, prompt = Spending(router().menu, None), Prompt(1, 4)
    assert spending.plan(KEY, None, prompt, is_budget=False) is None
    assert spending.plan_named(KEY, "cheap", prompt) is None


def test_after_a_reload_what_was_seen_is_known() -> None:
    spending, prompt = Spending(router().menu, None), Prompt(tokens=100, size=400)
    for _ in range(60):
        spending.estimator.observe("cheap", prompt, 1200, 1300 / 1e6)
    before = costs_by_name(spending.estimator, router().menu.names, prompt)
    other = Router(
        [MODELS[0], RoutedModel("new", 0.1, price=(1, 1))], kind="grk-endpoint", rng=np.random.default_rng(0)
    )
    after = costs_by_name(Spending(other.menu, None, spending).estimator, other.menu.names, prompt)
    assert after["cheap"] == pytest.approx(before["cheap"])


@pytest.mark.parametrize("ceilings", [(0.0025, None), (None, 0.0025)], ids=["service", "key"])
def test_a_ceiling_holds_across_reloads(ceilings: tuple[float | None, float | None]) -> None:
    everybody, own = ceilings
    key, prompt, spent = Key("key", own), Prompt(tokens=50, size=200), 0.0
    spending = Spending(router().menu, everybody)
    for number in range(BLOCK):
        if number % 100 == 50:  # every second time with a model less
            models = MODELS[: 3 - number // 100 % 2]
            routes = Router(models, kind="grk-endpoint", rng=np.random.default_rng(0))
            spending = Spending(routes.menu, everybody, spending)
            assert spending.plan(key, routes.scores(SAID), prompt, is_budget=False) is not None
        allowance = spending.plan_named(key, "dear", prompt)
        assert allowance is not None
        dollars = 0.0 if allowance.dollars is None else 0.0045
        allowance.close(dollars)
        spent += dollars
    assert 0.8 < spent / (BLOCK * 0.0025) <= 1 + SLACK
