"""The guard: a share of a P2L's departures counts, and none of them is the constant of every budget."""

from __future__ import annotations

import numpy as np
import pytest

from route.routing.decision import Coefficients, RoutedModel
from route.routing.guard import Guard
from route.routing.router import Router

MODELS = [RoutedModel("large", 8.0), RoutedModel("small", 1.0)]
GRADED = {"large": 0.6, "small": 0.5}
EXPECTED = {"large": 0.5, "small": 0.5}
FOR_SMALL = Coefficients({"large": 0.0, "small": 1.0})  # scores of 0.5 and 0.731


def router(share: float | None) -> Router:
    guard = None if share is None else Guard(GRADED, EXPECTED, share)
    return Router(MODELS, kind="grk-endpoint", rng=np.random.default_rng(0), guard=guard)


@pytest.mark.parametrize(("share", "model"), [(None, "small"), (1.0, "small"), (0.3, "large"), (0.0, "large")])
def test_a_prompt_leaves_the_constant_only_where_the_share_of_its_departure_is_worth_it(
    share: float | None, model: str
) -> None:
    assert router(share).decide(FOR_SMALL, None).model == model


def test_without_a_share_every_budget_buys_its_constant() -> None:
    decision = router(0.0).decide(FOR_SMALL, 4.5)
    assert decision.probabilities == pytest.approx({"small": 0.5, "large": 0.5})
    assert decision.scores == pytest.approx(GRADED)
    assert decision.over_constant == pytest.approx(0.0)


def test_the_decision_says_what_leaving_the_constant_gains() -> None:
    # What both models have in common (0.115) counts whole, and what tells them apart (0.231) by its share.
    decision = router(0.6).decide(FOR_SMALL, None)
    gain = 0.6 * (1 / (1 + np.exp(-1.0)) - 0.5) - 0.1
    assert decision.over_constant == pytest.approx(gain)
    assert decision.over_constant == pytest.approx(decision.scores["small"] - decision.scores["large"])
    assert router(0.3).decide(FOR_SMALL, None).over_constant == 0.0
    assert router(None).decide(FOR_SMALL, None).over_constant is None


@pytest.mark.parametrize(("measured", "served", "stale"), [("a", "b", True), ("a", "a", False), ("", "b", False)])
def test_another_p2l_than_the_measured_one_is_told(measured: str, served: str, stale: bool) -> None:
    guarded = Router(
        MODELS,
        kind="grk-endpoint",
        rng=np.random.default_rng(0),
        guard=Guard(GRADED, EXPECTED, 1.0, revision=measured),
    )
    decision = guarded.decide(Coefficients(FOR_SMALL.coefs, revision=served), None)
    assert decision.guard_is_stale is stale
    assert router(None).decide(FOR_SMALL, None).guard_is_stale is None


def test_models_without_a_score_are_left_out_under_a_guard_too() -> None:
    decision = router(1.0).decide(Coefficients({"large": 0.0, "other": 3.0}), None)
    assert decision.scores == pytest.approx({"large": 0.6})
