"""Decisions: scores, mixtures, exploring, what is left out, and what happens without scores."""

from __future__ import annotations

import itertools
import math
import sys
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import expit

from p2l.common.errors import ConfigError, InputError
from route.routing.candidates import ROUTERS, NoModelError, get, pair
from route.routing.decision import Coefficients, Decision, Demand, Held, Limit, RoutedModel
from route.routing.optimizers import InfeasibleError
from route.routing.router import Router

MODELS = [
    RoutedModel("large", 8.0, provider="north", context_window=100_000, amounts={"latency": 4.0}),
    RoutedModel("small", 1.0, provider="south", context_window=8_000, amounts={"latency": 1.0}),
    RoutedModel("medium", 3.0, provider="south", amounts={"latency": 2.0}),
]
COEFS = {"small": -0.5, "other": 0.2, "medium": 0.9, "large": 1.6}
SAID = Coefficients(COEFS, eta=0.1, revision="r1")


def make(kind: str = "grk-endpoint", *, seed: int = 0, models: list[RoutedModel] = MODELS, **options: Any) -> Router:
    return Router(models, kind=kind, rng=np.random.default_rng(seed), **options)


def tally(router: Router, times: int, **arguments: Any) -> tuple[Counter[str], Decision]:
    """How often each model was chosen."""
    decisions = [router.decide(SAID, 5.0, **arguments) for _ in range(times)]
    return Counter(decision.model for decision in decisions), decisions[-1]


def near(count: int, share: float, times: int) -> bool:
    return abs(count - share * times) <= 4 * math.sqrt(times * share * (1 - share)) + 1e-9


# Scores.


def test_grounded_scores_are_sigmoids_of_the_coefficients() -> None:
    decision = make("grk-endpoint").decide(SAID, 5.0)
    assert decision.scores == pytest.approx({name: expit(COEFS[name]) for name in ("small", "medium", "large")})
    assert decision.costs == {"small": 1.0, "medium": 3.0, "large": 8.0}
    assert (decision.optimizer, decision.revision, decision.static) == ("simple-lp", "r1", False)


@pytest.mark.parametrize("opponents", [None, {"other": 3.0, "large": 1.0}, {"other": 0.5, "gone": 7.0, "small": 0.0}])
def test_scores_are_winning_chances_against_the_normalised_opponents(opponents: dict[str, float] | None) -> None:
    decision = make("bt-endpoint", opponents=opponents).decide(SAID, 5.0)
    weights = dict.fromkeys(COEFS, 1.0) if opponents is None else {n: w for n, w in opponents.items() if n in COEFS}
    for name, score in decision.scores.items():
        wins = sum(weight * expit(COEFS[name] - COEFS[other]) for other, weight in weights.items())
        assert score == pytest.approx(wins / sum(weights.values()), abs=1e-14)


def test_opponents_that_left_the_leaderboard_give_way_to_all_of_it() -> None:
    assert make("bt-local", opponents={"gone": 1.0}).decide(SAID, 5.0).scores == make("bt-local").decide(SAID, 5).scores


def test_strength_is_the_coefficient_with_the_expected_score() -> None:
    decision = make("bt-endpoint").decide(SAID, 5.0)
    assert decision.strength is not None
    rate = np.mean([expit(decision.strength - coef) for coef in COEFS.values()])
    assert rate == pytest.approx(decision.expected_score, abs=1e-12)
    grounded = make("grk-endpoint").decide(SAID, 5.0)
    assert grounded.strength is not None
    assert expit(grounded.strength) == pytest.approx(grounded.expected_score, abs=1e-12)


def test_a_pure_choice_has_the_strength_of_its_model() -> None:
    for kind in ("bt-endpoint", "grk-endpoint"):
        assert make(kind).decide(SAID, None).strength == COEFS["large"]


def test_a_prior_stands_in_for_a_model_that_p2l_does_not_know() -> None:
    models = [*MODELS, RoutedModel("new", 2.0, prior_coef=0.4), RoutedModel("lost", 0.5)]
    decision = make(models=models).decide(SAID, 5.0)
    assert decision.scores["new"] == pytest.approx(expit(0.4))
    assert "lost" not in decision.scores
    assert "lost" not in decision.costs
    assert make(models=[RoutedModel("small", 1.0, prior_coef=9.0)]).decide(SAID, 5.0).strength == COEFS["small"]


def test_a_coefficient_that_is_no_number_counts_as_none() -> None:
    said = Coefficients({"small": 0.0, "medium": math.nan, "large": math.inf})
    for kind in ("bt-endpoint", "grk-endpoint"):
        decision = make(kind).decide(said, None)
        assert list(decision.scores) == ["small"]
        assert decision.model == "small"


# Mixtures.


@pytest.mark.parametrize("kind", ["bt-endpoint", "grk-endpoint", "bt-local", "grk-local", "bag-endpoint"])
def test_choices_follow_the_mixture_that_the_budget_allows(kind: str) -> None:
    counts, decision = tally(make(kind, seed=4), 8_000)
    assert len(decision.probabilities) == 2
    assert decision.expected_cost == pytest.approx(5.0)
    for name, share in decision.probabilities.items():
        assert near(counts[name], share, 8_000)
    assert decision.propensity == decision.probabilities[decision.model]
    expected = sum(share * decision.scores[name] for name, share in decision.probabilities.items())
    assert decision.expected_score == pytest.approx(expected)


def test_the_frontier_goes_from_the_cheapest_to_the_best() -> None:
    decision = make().decide(SAID, 1.0)
    points = [(point.model, point.cost, point.score) for point in decision.frontier]
    assert points == [(name, decision.costs[name], decision.scores[name]) for name in ("small", "medium", "large")]


@given(st.dictionaries(st.sampled_from("abcdefgh"), st.floats(-8, 8), min_size=1), st.floats(0, 12), st.integers(0, 9))
def test_any_decision_is_a_distribution_within_the_budget(coefs: dict[str, float], budget: float, seed: int) -> None:
    costs = np.random.default_rng(seed).integers(0, 9, 8)
    models = [RoutedModel(name, float(cost)) for name, cost in zip("abcdefgh", costs, strict=True)]
    cheapest = min(model.cost for model in models if model.name in coefs)
    for kind in ("bt-endpoint", "grk-endpoint"):
        router = make(kind, models=models, seed=seed, explore=0.5)
        if budget < cheapest:
            with pytest.raises(InfeasibleError):
                router.decide(Coefficients(coefs), budget)
            continue
        decision = router.decide(Coefficients(coefs), budget)
        assert set(decision.scores) == set(decision.costs) == set(coefs)
        assert math.fsum(decision.probabilities.values()) == pytest.approx(1.0)
        assert decision.expected_cost <= budget + 1e-9
        assert 0.0 < decision.propensity <= 1.0
        assert decision.strength is not None
        chosen = [coefs[name] for name in decision.probabilities]
        assert min(chosen) <= decision.strength <= max(chosen)


def test_limits_hold_beside_the_budget() -> None:
    limits = [Limit("latency", 2.5), Limit("share:north", 0.25), Limit("cost", 4.0)]
    for kind in ("bt-endpoint", "grk-endpoint"):
        decision = make(kind, optimizer="lp", limits=limits).decide(SAID, 5.0)
        latency = {model.name: model.amounts["latency"] for model in MODELS}
        assert sum(share * latency[name] for name, share in decision.probabilities.items()) <= 2.5 + 1e-9
        assert decision.probabilities["large"] == pytest.approx(0.2)
        assert decision.expected_cost == pytest.approx(4.0)


def test_the_same_seed_makes_the_same_choices() -> None:
    one, two = make(seed=9, explore=0.3), make(seed=9, explore=0.3)
    assert [one.decide(SAID, 5.0).model for _ in range(50)] == [two.decide(SAID, 5.0).model for _ in range(50)]


# Exploring.


@pytest.mark.parametrize("explore", [0.2, 1.0])
def test_propensities_are_those_of_the_whole_policy(explore: float) -> None:
    router, times = make(seed=6, explore=explore), 8_000
    decisions = [router.decide(SAID, 5.0) for _ in range(times)]
    propensities = {decision.model: decision.propensity for decision in decisions}
    mixture = decisions[0].probabilities
    uniform = {"small": 0.5, "medium": 0.5, "large": 0.0}  # the large one alone is beyond the budget
    for name, share in uniform.items():
        expected = (1 - explore) * mixture.get(name, 0.0) + explore * share
        assert propensities.get(name, 0.0) == pytest.approx(expected)
        assert near(sum(decision.model == name for decision in decisions), expected, times)
    assert near(sum(decision.explored for decision in decisions), explore, times)


def test_exploring_keeps_to_limits_that_hold_on_average() -> None:
    router = make(optimizer="lp", limits=[Limit("latency", 2.0)], explore=1.0)
    assert {router.decide(SAID, None).model for _ in range(100)} == {"small", "medium"}
    shares = [Limit("share:north", 0.5), Limit("share:south", 0.5)]
    decision = make(optimizer="lp", limits=shares, explore=1.0).decide(SAID, None)
    assert not decision.explored
    assert decision.propensity == pytest.approx(0.5)


def test_inverse_propensities_give_an_unbiased_mean() -> None:
    """What feedback is for: the mean worth of a model, estimated from explored traffic."""
    router, times = make(seed=8, explore=0.3), 8_000
    decisions = [router.decide(SAID, 5.0) for _ in range(times)]
    for name in ("small", "medium"):
        weights = [(decision.model == name) / decision.propensity for decision in decisions]
        assert np.mean(weights) == pytest.approx(1.0, abs=4 * np.std(weights) / math.sqrt(times))


# What is left out.


def test_models_that_failed_or_are_not_allowed_are_left_out() -> None:
    router = make()
    assert router.decide(SAID, None, without=["large"]).model == "medium"
    assert router.decide(SAID, None, allowed={"small", "large"}, without=["large", "unheard of"]).model == "small"
    decision = router.decide(SAID, 5.0, allowed={"small", "large"})
    assert set(decision.probabilities) == {"small", "large"}
    assert {point.model for point in decision.frontier} == {"small", "large"}
    assert set(decision.scores) == {"small", "medium", "large"}


def test_long_prompts_go_to_models_with_room_for_them() -> None:
    router = make()
    assert router.decide(SAID, 3.0, demand=Demand(tokens=8_000)).probabilities.keys() <= {"small", "medium", "large"}
    assert router.decide(SAID, 5.0, demand=Demand(tokens=8_001)).frontier[0].model == "medium"
    assert (
        router.decide(SAID, None, demand=Demand(tokens=100_001)).model == "medium"
    )  # its window is not known, so it is tried
    with pytest.raises(
        NoModelError, match="about 100001 tokens, and no model that is left takes more than 100000"
    ) as no:
        router.decide(SAID, None, demand=Demand(tokens=100_001), without=["medium"])
    assert no.value.oversize


def test_without_any_model_there_is_no_decision() -> None:
    for said in (SAID, None):
        with pytest.raises(NoModelError, match="none of the 3 models is left") as caught:
            make().decide(said, None, without=["small", "medium", "large"])
        assert not caught.value.oversize
    with pytest.raises(NoModelError):
        make().decide(SAID, None, allowed=())


@pytest.mark.parametrize("kind", ["bt-endpoint", "grk-endpoint", "random"])
@pytest.mark.parametrize("said", [SAID, None])
def test_a_budget_that_buys_nothing_names_the_cheapest_cost(kind: str, said: Coefficients | None) -> None:
    with pytest.raises(InfeasibleError, match=r"the cheapest model costs 1$"):
        make(kind).decide(said, 0.5)
    with pytest.raises(InfeasibleError, match=r"the cheapest model costs 3$"):
        make(kind).decide(said, 2.0, without=["small"])
    with pytest.raises(InputError, match="not nan"):
        make(kind).decide(said, math.nan)


# Without scores.


def test_without_scores_the_static_order_decides_within_the_budget() -> None:
    router = make(static_order=["medium", "small"])
    decision = router.decide(None, 5.0)
    assert (decision.model, decision.static, decision.propensity) == ("medium", True, 1.0)
    assert (decision.scores, decision.strength, decision.expected_score) == ({}, None, None)
    assert decision.probabilities == {"medium": 1.0}
    assert router.decide(None, 2.0).model == "small"
    assert router.decide(None, 5.0, without=["medium"]).model == "small"
    assert router.decide(None, None, without=["medium", "small"]).model == "large"


def test_the_dearest_that_fits_comes_first_where_no_order_is_given() -> None:
    router = make("bt-endpoint")
    assert [router.decide(None, budget).model for budget in (1.0, 5.0, None)] == ["small", "medium", "large"]


def test_coefficients_of_other_models_are_no_scores() -> None:
    decision = make().decide(Coefficients({"stranger": 1.0}), 5.0)
    assert (decision.static, decision.model) == (True, "medium")


def test_the_static_order_keeps_to_limits_where_it_can() -> None:
    assert make(optimizer="lp", limits=[Limit("latency", 2.0)]).decide(None, None).model == "medium"
    shares = [Limit("share:north", 0.5), Limit("share:south", 0.5)]
    assert make(optimizer="lp", limits=shares).decide(None, None).model == "large"


def test_random_takes_every_model_within_the_budget_alike() -> None:
    for said in (SAID, None):
        router = make("random", seed=3)
        decisions = [router.decide(said, 5.0) for _ in range(3_000)]
        counts = Counter(decision.model for decision in decisions)
        assert set(counts) == {"small", "medium"}
        assert near(counts["small"], 0.5, 3_000)
        assert {decision.propensity for decision in decisions} == {0.5}
        assert not any(decision.static for decision in decisions)


# Conversations.


def test_a_conversation_keeps_its_model() -> None:
    for said in (SAID, None):
        decision = make().decide(said, 5.0, fixed="large")  # its share of the first turn's budget
        assert (decision.model, decision.propensity, decision.static) == ("large", 1.0, False)
        assert decision.probabilities == {"large": 1.0}


def test_a_conversation_moves_when_its_model_cannot_be_had() -> None:
    assert make().decide(SAID, None, fixed="small", without=["small"]).model == "large"
    assert make().decide(SAID, None, fixed="removed").model == "large"
    assert make(optimizer="strict").decide(SAID, 5.0, fixed="large").model == "medium"
    assert make(optimizer="strict").decide(SAID, 5.0, fixed="small").model == "small"


# Configuration.


def test_models_that_p2l_does_not_know_are_reported() -> None:
    models = [*MODELS, RoutedModel("new", 2.0, prior_coef=0.4), RoutedModel("lost", 0.5)]
    assert make(models=models).unknown(list(COEFS)) == ["lost"]
    assert make("random", models=models).unknown([]) == []


def test_sides_that_share_nothing_are_a_mistake() -> None:
    with pytest.raises(ConfigError, match=r"none of the configured models: small, medium, large; it knows x, y"):
        make().unknown(["x", "y"])
    with pytest.raises(ConfigError, match=r"opponent_weights: P2L knows none of gone; it knows small, a, b and 1 more"):
        make("bt-endpoint", opponents={"gone": 1.0}).unknown(["small", "a", "b", "c"])


@pytest.mark.parametrize(
    ("kind", "optimizer", "chosen"),
    [
        ("bt-endpoint", None, "optimal-lp"),
        ("bt-local", "optimal-lp", "optimal-lp"),
        ("bt-local", "strict", "strict"),
        ("bt-endpoint", "lp", "lp"),
        ("grk-endpoint", None, "simple-lp"),
        ("bag-endpoint", "simple-lp", "simple-lp"),
        ("grk-local", "lp", "lp"),
        ("grk-local", "strict", "strict"),
        ("random", None, "strict"),
        ("bt-endpoint", "simple-lp", ConfigError),
        ("grk-endpoint", "optimal-lp", ConfigError),
        ("random", "lp", ConfigError),
        ("random", "simple-lp", ConfigError),
    ],
)
def test_an_optimizer_goes_with_the_kinds_whose_scores_it_understands(kind: str, optimizer: Any, chosen: Any) -> None:
    if isinstance(chosen, str):
        assert pair(get(kind), optimizer).name == make(kind, optimizer=optimizer).optimizer.name == chosen
    else:
        with pytest.raises(ConfigError, match=f"{optimizer} does not go with router type {kind}; use "):
            make(kind, optimizer=optimizer)


def test_an_unknown_kind_is_a_mistake_with_a_hint() -> None:
    with pytest.raises(ConfigError, match=r"'grk-endpont' is unknown \(did you mean 'grk-endpoint'\?\)"):
        make("grk-endpont")
    assert set(ROUTERS) == {"bt-endpoint", "bt-local", "grk-endpoint", "grk-local", "random"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"models": []}, "there is no model to route to"),
        ({"models": [MODELS[0], MODELS[0]]}, "'large' is configured twice"),
        ({"models": [RoutedModel("a", -1.0)]}, "'a': its cost must be a number of at least 0, not -1"),
        ({"models": [RoutedModel("a", math.nan)]}, "not nan"),
        ({"models": [RoutedModel("a", 1.0, prior_coef=math.inf)]}, "its prior_coef must be a finite number"),
        ({"explore": 1.5}, "explore must be a share between 0 and 1"),
        ({"explore": math.nan}, "explore must be a share between 0 and 1"),
        ({"static_order": ["smal"]}, r"no model is configured as 'smal' \(did you mean 'small'\?\)"),
        ({"opponents": {"other": -1.0}}, "'other' must have a weight of at least 0"),
        ({"opponents": {"other": 0.0}}, "give at least one model a weight above 0"),
        ({"limits": [Limit("latency", 1.0)]}, "limits need the cost optimizer lp; simple-lp would not"),
        ({"optimizer": "lp", "limits": [Limit("latency", -1.0)]}, "most must be a number of at least 0"),
        ({"optimizer": "lp", "limits": [Limit("latncy", 1.0)]}, r"has no such amount \(did you mean 'latency'\?\)"),
        ({"optimizer": "lp", "limits": [Limit("share:nort", 1.0)]}, r"is from 'nort' \(did you mean 'north'\?\)"),
        (
            {"models": [RoutedModel("a", 1.0, amounts={"x": -1.0})], "optimizer": "lp", "limits": [Limit("x", 1.0)]},
            "'a': its x must be a number of at least 0",
        ),
    ],
)
def test_what_cannot_be_is_refused_at_start(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make(**options)


def test_limits_that_nothing_keeps_are_refused_at_start(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InfeasibleError, match="no mixture of the 3 models keeps to the budget and all limits"):
        make(optimizer="lp", limits=[Limit("latency", 0.5)])
    monkeypatch.setitem(sys.modules, "cvxpy", None)
    with pytest.raises(ConfigError, match=r"needs cvxpy under further limits: pip install 'p2l\[lp\]'"):
        make(optimizer="lp", limits=[Limit("latency", 2.5)])
    assert make(optimizer="lp").decide(SAID, 5.0).probabilities == make().decide(SAID, 5.0).probabilities


# Conversations that may move.


@given(
    coefs=st.lists(st.floats(-4, 4), min_size=3, max_size=3),
    budget=st.one_of(st.none(), st.floats(1.0, 12.0)),
    lost=st.floats(0.0, 5.0),
    held=st.sampled_from(["small", "medium", "large"]),
)
def test_a_conversation_moves_if_the_gain_is_worth_the_cache(
    coefs: list[float], budget: float | None, lost: float, held: str
) -> None:
    names = ("small", "medium", "large")
    scores = {name: expit(coef) for name, coef in zip(names, coefs, strict=True)}
    costs = {"small": 1.0, "medium": 3.0, "large": 8.0}
    prompt = Coefficients(dict(zip(names, coefs, strict=True)))
    free = make().decide(prompt, budget)
    kept = make().decide(prompt, budget, held=Held(held, lost))
    corners = free.frontier
    edge = next((edge for edge in itertools.pairwise(corners) if budget is None or edge[1].cost > budget), None)
    edge = edge if edge and budget is not None else (corners[-2:] if len(corners) > 1 else None)
    rate = (
        (edge[1].score - edge[0].score) / (edge[1].cost - edge[0].cost) if edge else corners[0].score / corners[0].cost
    )
    money = rate if len(free.probabilities) > 1 else 0.0
    value = sum(share * (scores[name] - money * costs[name]) for name, share in free.probabilities.items())
    gain = value - (scores[held] - money * costs[held])
    if abs(gain - rate * lost) > 1e-9:
        assert (kept.probabilities == {held: 1.0}) == (gain < rate * lost or free.probabilities == {held: 1.0})


def test_two_models_of_one_mixture_are_worth_the_same() -> None:
    for held in ("small", "large"):
        decisions = [make(seed=seed).decide(SAID, 5.0) for seed in range(30)]
        assert len({decision.model for decision in decisions}) == 2
        names = set(decisions[0].probabilities)
        if held in names:
            kept = [make(seed=seed).decide(SAID, 5.0, held=Held(held, 1e-6)) for seed in range(30)]
            assert {decision.model for decision in kept} == {held}
            assert {decision.propensity for decision in kept} == {1.0}


def test_a_held_model_that_fails_or_is_too_dear_is_left() -> None:
    assert make().decide(SAID, None, without=["large"], held=Held("large", 100.0)).model != "large"
    strict = make(optimizer="strict")
    assert strict.decide(SAID, 3.0, held=Held("large", 100.0)).model == "medium"
    assert strict.decide(SAID, 8.0, held=Held("medium", 100.0)).model == "medium"
