"""Offsets beside P2L's coefficients: newcomers, models that change, and models that stay as they are."""

from __future__ import annotations

import numpy as np
import pytest

from route.routing.decision import Coefficients, RoutedModel
from route.routing.offsets import Offsets
from route.routing.router import Router
from tests.conftest import seeds

MODELS = [RoutedModel(name, cost) for name, cost in (("a", 1.0), ("b", 1.0), ("c", 1.0), ("new", 1.0))]
KNOWN = {"a": 0.0, "b": 0.5, "c": 1.0}


def make(unknown: tuple[str, ...] = ("new",), seed: int = 0) -> tuple[Router, Offsets]:
    router = Router(MODELS, kind="grk-endpoint", rng=np.random.default_rng(seed))
    router.offsets = Offsets(router.menu, np.random.default_rng(seed + 1))
    router.offsets.limit(unknown)
    return router, router.offsets


def use_until(
    truth: dict[str, float], router: Router, offsets: Offsets, name: str, ratings: int, seed: int
) -> list[str]:
    """Route prompts and rate every answer by a thumb, until this model was rated so often; return who answered."""
    rng, chosen = np.random.default_rng(seed), []
    for number in range(20_000):
        shift = rng.normal(0, 0.3, 3)
        coefs = {model: coef + each for (model, coef), each in zip(KNOWN.items(), shift, strict=True)}
        model = router.decide(Coefficients(coefs), None).model
        chosen.append(model)
        offsets.show(str(number), coefs, [model])
        up = rng.random() < 1 / (1 + np.exp(-truth[model]))
        offsets.rate(str(number), "up" if up else "down")
        if offsets.belief(name).ratings >= ratings:
            break
    return chosen


def test_nothing_is_moved_without_newcomers_and_ratings() -> None:
    _, offsets = make(unknown=())
    coefs = np.array([0.0, 0.5, 1.0, 2.0])
    assert offsets.is_idle
    assert offsets.apply(coefs) is coefs


@pytest.mark.parametrize("seed", seeds(4))
def test_a_newcomer_that_is_the_best_is_found_within_70_ratings(seed: int) -> None:
    router, offsets = make(seed=seed)
    use_until({**KNOWN, "new": 2.2}, router, offsets, "new", 70, seed)
    chosen = use_until({**KNOWN, "new": 2.2}, router, offsets, "new", 170, seed + 100)
    assert chosen.count("new") >= len(chosen) / 2


@pytest.mark.parametrize("seed", seeds(4))
def test_a_newcomer_that_is_bad_costs_little(seed: int) -> None:
    router, offsets = make(seed=seed)
    chosen = use_until({**KNOWN, "new": -1.5}, router, offsets, "new", 60, seed)
    assert chosen.count("new") < 0.2 * len(chosen)


@pytest.mark.parametrize("seed", seeds(4))
def test_a_model_that_gets_worse_is_left_within_200_ratings(seed: int) -> None:
    """From 73 to 58 of 100 answers that are liked."""
    router, offsets = make(unknown=(), seed=seed)
    router = Router(MODELS[:3], kind="grk-endpoint", rng=np.random.default_rng(seed))
    offsets = Offsets(router.menu, np.random.default_rng(seed))
    router.offsets = offsets
    use_until(KNOWN, router, offsets, "c", 200, seed)
    use_until({**KNOWN, "c": 0.1}, router, offsets, "c", offsets.belief("c").ratings + 200, seed + 50)
    chosen = use_until({**KNOWN, "c": 0.1}, router, offsets, "b", offsets.belief("b").ratings + 50, seed + 80)
    assert chosen.count("c") < len(chosen) / 2


def test_pairs_move_both_models() -> None:
    router, offsets = make(unknown=())
    for number in range(60):
        offsets.show(str(number), {"a": 0.0, "b": 0.0}, ["a", "b"])
        offsets.rate(str(number), "second" if number % 5 else "first")
    assert offsets.belief("a").mean < -0.1 < 0.1 < offsets.belief("b").mean
    assert router.decide(Coefficients({"a": 0.0, "b": 0.0}), None).model == "b"


def test_a_rating_counts_once_and_only_of_what_was_shown() -> None:
    _, offsets = make(unknown=())
    offsets.rate("never shown", "up")
    offsets.show("x", {"a": 0.0}, ["a"])
    offsets.rate("x", "up")
    offsets.rate("x", "up")
    assert offsets.belief("a").ratings == 1


def test_a_rating_of_an_answer_of_long_ago_is_one_of_an_unknown_one() -> None:
    router, before = make(unknown=())
    for number in range(20_001):
        before.show(str(number), {"a": 0.0, "b": 2.0}, ["b", "a"] if number % 2 else ["a"])
    offsets = Offsets(router.menu, np.random.default_rng(0), before)  # after a reload of the configuration
    unknown, ratings = list[str](), list[dict[str, float]]()
    offsets.on_unknown = lambda request_id, _: unknown.append(request_id)
    offsets.on_rating = lambda shown, _: ratings.append(dict(shown))
    for number in (0, 1, 20_000):
        offsets.rate(str(number), "first" if number == 1 else "up")
    assert unknown == ["0"]
    assert ratings == [{"b": 1.0, "a": -1.0}, {"a": -1.0}]


def test_what_p2l_knows_now_begins_anew() -> None:
    _, offsets = make()
    offsets.belief("new").mean = 3.0
    offsets.limit(())
    assert offsets.belief("new").mean == 0.0
    assert offsets.is_idle
