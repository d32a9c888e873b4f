"""How soon do ratings find a new model that is the best, and leave one that silently gets worse?

    python -m benchmarks.newcomers [--seeds 30]

Eight models; P2L knows the coefficients of each prompt. Each answer is rated by a thumb, or pairs of the chosen model
and another one drawn at random by a vote. By the classes that serve: `Router` and `Offsets`.

    newcomer   one of the models is unknown to P2L; it is better than the best of the others on average by half a
               coefficient, and the best on most prompts. Printed: of those prompts, the share that it gets after 70
               ratings of it
    worse      the best model's rate of liked answers falls by 20 %. Printed: ratings of it until, of the prompts on
               which it is no longer the best, most go elsewhere
    steady     nothing changes. Printed: expected score beside P2L's coefficients alone

Beside each: `without`, the router by P2L's coefficients alone.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from benchmarks.tables import share, table
from p2l.common.cli import parser, positive, run
from route.routing.decision import Coefficients, RoutedModel
from route.routing.offsets import Offsets
from route.routing.router import Router

__all__ = ["main"]

Floats = npt.NDArray[np.float64]
NAMES = [f"m{number}" for number in range(8)]
LEVELS = np.linspace(-0.6, 1.0, 8)
CHECKED = 400
"""Prompts on which a router's choices are looked at."""


class Arena:
    """True coefficients of prompts, and ratings by them."""

    def __init__(self, seed: int, pairs: bool) -> None:
        self.rng = np.random.default_rng([seed, 3])
        self.pairs = pairs
        self.level = LEVELS.copy()

    def prompt(self) -> Floats:
        return np.asarray(self.level + self.rng.normal(0.0, 0.4, len(NAMES)))

    def rate(self, offsets: Offsets, number: int, told: dict[str, float], truth: Floats, model: str) -> None:
        name, chance = str(number), 0.0
        if not self.pairs:
            offsets.show(name, told, [model])
            offsets.rate(name, "up" if self.rng.random() < _sigmoid(truth[NAMES.index(model)]) else "down")
            return
        other = NAMES[int(self.rng.integers(len(NAMES)))]
        if other == model:
            return
        offsets.show(name, told, [model, other])
        chance = _sigmoid(truth[NAMES.index(model)] - truth[NAMES.index(other)])
        offsets.rate(name, "first" if self.rng.random() < chance else "second")


def _sigmoid(x: float) -> float:
    return float(1.0 / (1.0 + np.exp(-x)))


def _router(seed: int, unknown: Sequence[str] = ()) -> tuple[Router, Offsets]:
    router = Router([RoutedModel(name, 1.0) for name in NAMES], kind="grk-endpoint", rng=np.random.default_rng(seed))
    offsets = Offsets(router.menu, np.random.default_rng([seed, 1]))
    offsets.limit(unknown)
    router.offsets = offsets
    return router, offsets


def newcomer(seed: int, pairs: bool) -> float:
    """The share of the prompts on which the newcomer is the best that it gets after 70 ratings of it."""
    arena = Arena(seed, pairs)
    arena.level[3] = LEVELS.max() + 0.5
    router, offsets = _router(seed, ["m3"])
    number = 0
    while offsets.belief("m3").ratings < 70 and number < 20_000:
        truth = arena.prompt()
        told = {name: float(coef) for name, coef in zip(NAMES, truth, strict=True) if name != "m3"}
        arena.rate(offsets, number, told, truth, router.decide(Coefficients(told), None).model)
        number += 1
    hits = []
    for _ in range(CHECKED):
        truth = arena.prompt()
        told = {name: float(coef) for name, coef in zip(NAMES, truth, strict=True) if name != "m3"}
        if truth.argmax() == 3:
            hits.append(router.decide(Coefficients(told), None).model == "m3")
    return float(np.mean(hits))


def worse(seed: int, pairs: bool) -> float:
    """Ratings of the best model, after it got worse, until most prompts that it lost go elsewhere."""
    arena = Arena(seed, pairs)
    router, offsets = _router(seed)
    best, lost = "m7", 0.0
    liked = 0.8 * _sigmoid(LEVELS[7])
    lost = LEVELS[7] - float(np.log(liked / (1.0 - liked)))
    for number in range(20_000):
        has_changed = number >= 1000
        if number == 1000:
            before = offsets.belief(best).ratings
        told_coefs = arena.prompt()
        told = dict(zip(NAMES, told_coefs.tolist(), strict=True))
        truth = told_coefs.copy()
        truth[7] -= lost * has_changed
        arena.rate(offsets, number, told, truth, router.decide(Coefficients(told), None).model)
        if has_changed and number % 20 == 0 and _left(arena, router, best, lost) > 0.5:
            return float(offsets.belief(best).ratings - before)
    return float("inf")


def _left(arena: Arena, router: Router, best: str, lost: float) -> float:
    """The share of the prompts on which another model is the best now that go to another model."""
    hits = []
    for _ in range(60):
        coefs = arena.prompt()
        truth = coefs.copy()
        truth[7] -= lost
        if coefs.argmax() == 7 and truth.argmax() != 7:
            decision = router.decide(Coefficients(dict(zip(NAMES, coefs.tolist(), strict=True))), None)
            hits.append(decision.model != best)
    return float(np.mean(hits)) if hits else 0.0


def steady(seed: int, pairs: bool) -> tuple[float, float]:
    """The expected score of 3,000 prompts with offsets and without them."""
    arena = Arena(seed, pairs)
    router, offsets = _router(seed)
    ours, plain = [], []
    for number in range(3000):
        truth = arena.prompt()
        told = dict(zip(NAMES, truth.tolist(), strict=True))
        model = router.decide(Coefficients(told), None).model
        arena.rate(offsets, number, told, truth, model)
        ours.append(_sigmoid(truth[NAMES.index(model)]))
        plain.append(_sigmoid(float(truth.max())))
    return float(np.mean(ours)), float(np.mean(plain))


def build_parser() -> argparse.ArgumentParser:
    """The command line of the benchmark."""
    flags = parser("python -m benchmarks.newcomers", "Simulate ratings of new models and of models that get worse.")
    flags.add_argument("--seeds", type=positive, default=30)
    return flags


def main(argv: Sequence[str] | None = None) -> None:
    """Print the table."""
    seeds = range(100, 100 + build_parser().parse_args(argv).seeds)
    questions = (
        "newcomer, the best by half a coefficient: its prompts that it gets after 70 ratings, mean",
        f"the least of {len(seeds)} runs",
        "runs in which it gets at least half",
        "the best model gets worse by 20 %: ratings of it until it is left, median",
        "nine of ten runs",
        "runs in which it is left within 200",
        "nothing changes: expected score, beside P2L's coefficients alone",
    )
    print(
        table(["", "thumbs", "pairs"], list(zip(questions, answers(seeds, False), answers(seeds, True), strict=True)))
    )


def answers(seeds: Sequence[int], pairs: bool) -> list[str]:
    """Return the column of one kind of rating."""
    shares = np.array([newcomer(seed, pairs) for seed in seeds])
    left = np.array([worse(seed, pairs) for seed in seeds])
    ours, plain = np.array([steady(seed, pairs) for seed in seeds]).mean(axis=0)
    return [
        *(share(shares.mean()), share(shares.min()), share(np.mean(shares >= 0.5))),
        *(f"{np.median(left):.0f}", f"{np.quantile(left, 0.9):.0f}", share(np.mean(left <= 200))),
        f"{ours:.4f}, {plain:.4f}",
    ]


if __name__ == "__main__":
    run(main)
