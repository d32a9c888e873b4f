"""Does an average dollar ceiling hold in every block of 1,000 requests, and what does keeping it cost in quality?

    python -m benchmarks.dollar_ceiling [DATA_DIR] [--requests 10000] [--seeds 2]

Requests arrive one after the other, and their costs are known twenty requests later. The router knows prices, and has a
prior for the length of each model's answers. It chooses by the classes that serve: `Router`, `Estimator`, `Pacer`.

    known      priors are right
    3x         each model's prior is three times too short or too long, by chance
    grow       answers become twice as long from request 5,300 on, over 300 requests
    prices     from request 6,500 on half of the models cost twice as much; the provider reports dollars
    all        the last three at once

Printed beside it: `oracle`, the linear program over all prompts of each block that knows each prompt's true expected
costs, and `once`, the linear program of each request by itself with the prior, as a budget that nothing corrects.
Quality is the mean expected score, block the dearest block of 1,000 requests over the ceiling, each of the worst seed.

DATA_DIR, if given, holds routerbench_subset.parquet: scores are then a ridge regression on hashed words of another half
of the prompts, and costs those of the real calls.
"""

from __future__ import annotations

import argparse
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.tables import share, table
from p2l.common.cli import parser, positive, run
from p2l.common.errors import InputError
from route.routing.decision import Coefficients, RoutedModel
from route.routing.dollars import Dollars, Estimator, Prompt
from route.routing.pacing import BLOCK, Pacer, rates_around
from route.routing.router import Router

__all__ = ["main"]

Floats = npt.NDArray[np.float64]
SCENARIOS = ("known", "3x", "grow", "prices", "all")
DELAY = 20
_FIRST_SEED = 100  # settings were chosen on seeds below
CEILINGS = {"tight": 0.3, "loose": 0.6}
"""Where between the cheapest and the best choice of every prompt the ceiling is."""


@dataclass
class World:
    """What is true: N requests, M models."""

    names: list[str]
    coefs: Floats
    """(N, M)"""
    sizes: npt.NDArray[np.int64]
    """(N,) bytes of the requests."""
    tokens: Floats
    """(N, M) of the answers that each model would give."""
    mean_tokens: Floats
    """(N, M) expected."""
    prices: Floats
    """(M, 2)"""
    multiples: Floats
    """(N, M) by which the provider's dollars exceed what prices say."""
    prior: Floats
    """(M,) tokens."""

    def dollars(self, tokens: Floats) -> Floats:
        inputs = (self.sizes / 4)[:, None] * self.prices[:, 0]
        return (inputs + tokens * self.prices[:, 1]) / 1e6 * self.multiples


def synthetic(scenario: str, count: int, seed: int) -> World:
    """Nine models from cheap to dear, prompts of several topics and lengths."""
    rng = np.random.default_rng([seed, 7])
    size = 9
    output = np.geomspace(0.1, 30.0, size) * rng.lognormal(0, 0.2, size)
    prices = np.column_stack([output / 4, output])
    level = np.linspace(-0.9, 1.3, size) + rng.normal(0, 0.25, size)
    topics = rng.normal(0, 0.6, (12, size))
    coefs = (
        level
        + topics[rng.integers(12, size=count)]
        + rng.normal(0, 0.35, (count, size))
        + rng.normal(0, 0.8, (count, 1))
    )
    sizes = np.clip(rng.lognormal(6.5, 1.2, count), 20, 200_000).astype(np.int64)
    usual = rng.lognormal(np.log(400), 0.5, size)
    mean = usual * (sizes[:, None] / 700.0) ** 0.25 * rng.lognormal(0, 0.2, (count, 1))
    return _with_trouble(scenario, rng, coefs, sizes, mean, prices, usual, noise=0.7)


def routerbench(scenario: str, count: int, seed: int, folder: Path) -> World:
    """Real scores and costs; prompts of the half that the regression did not see, drawn with replacement."""
    import pandas as pd

    rows = pd.read_parquet(folder / "routerbench_subset.parquet")
    table = {
        name: rows.pivot(index="question_id", columns="model", values=name)
        for name in ("score", "cost", "output_chars")
    }
    full = table["score"].notna().all(axis=1)
    scores, costs, chars = (table[name][full].to_numpy(np.float64) for name in ("score", "cost", "output_chars"))
    texts = (
        rows.drop_duplicates("question_id").set_index("question_id").loc[table["score"][full].index, "prompt"].tolist()
    )
    rng = np.random.default_rng([seed, 8])
    features = _hashed(texts)
    half = rng.random(len(texts)) < 0.5
    predicted = _ridge(features[half], scores[half], features)
    places = rng.choice(np.flatnonzero(~half), count)
    sizes = np.array([len(text.encode()) for text in texts], dtype=np.int64)[places]
    tokens = np.maximum(chars / 4, 1.0)
    prices = (
        np.column_stack(
            [
                costs.mean(0) / (sizes.mean() / 4 + 2 * tokens.mean(0)),
                2 * costs.mean(0) / (sizes.mean() / 4 + 2 * tokens.mean(0)),
            ]
        )
        * 1e6
    )
    coefs = np.log(predicted / (1 - predicted))
    names = [str(name) for name in table["score"].columns]
    world = _with_trouble(
        scenario, rng, coefs[places], sizes, tokens[places], prices, tokens.mean(0), noise=0.0, names=names
    )
    # Reported dollars are those of the real call, whatever the prices would make of its tokens.
    plain = (sizes / 4)[:, None] * prices[:, 0] + tokens[places] * prices[:, 1]
    world.multiples *= costs[places] / (plain / 1e6)
    return world


def _with_trouble(
    scenario: str,
    rng: np.random.Generator,
    coefs: Floats,
    sizes: npt.NDArray[np.int64],
    mean: Floats,
    prices: Floats,
    usual: Floats,
    *,
    noise: float,
    names: list[str] | None = None,
) -> World:
    count, size = coefs.shape
    when = np.arange(count)
    if scenario in ("grow", "all"):
        mean = mean * (1.0 + np.clip((when - 5300) / 300, 0.0, 1.0))[:, None]
    multiples = np.ones((count, size))
    if scenario in ("prices", "all"):
        multiples[when >= 6500] *= np.where(rng.random(size) < 0.5, 2.0, 1.0)
    prior = usual * (3.0 ** rng.choice([-1.0, 1.0], size) if scenario in ("3x", "all") else 1.0)
    tokens = mean * rng.lognormal(-0.5 * noise**2, noise, (count, size)) if noise else mean
    return World(
        names or [f"m{number}" for number in range(size)], coefs, sizes, tokens, mean, prices, multiples, prior
    )


def _hashed(texts: Sequence[str], width: int = 512) -> Floats:
    features = np.zeros((len(texts), width))
    for row, text in enumerate(texts):
        for word in text.lower().split():
            features[row, sum(word.encode()) * 31 % width] += 1.0
    features = np.log1p(features)
    return np.column_stack(
        [features / np.maximum(np.linalg.norm(features, axis=1, keepdims=True), 1e-9), np.ones(len(texts))]
    )


def _ridge(features: Floats, scores: Floats, all_features: Floats, penalty: float = 3.0) -> Floats:
    gram = features.T @ features + penalty * np.eye(features.shape[1])
    return np.clip(all_features @ np.linalg.solve(gram, features.T @ scores), 0.03, 0.97)


def scores_of(world: World) -> Floats:
    return 1.0 / (1.0 + np.exp(-world.coefs))


def oracle(world: World, ceiling: float) -> tuple[float, float]:
    """Quality and the dearest block of the linear programs that know the true expected costs, one a block."""
    scores, costs = scores_of(world), world.dollars(world.mean_tokens)
    qualities, spent = [], []
    for start in range(0, len(scores), BLOCK):
        s, c = scores[start : start + BLOCK], costs[start : start + BLOCK]
        quality, cost = _program(s, c, ceiling)
        qualities.append(quality)
        spent.append(cost / ceiling)
    return float(np.mean(qualities)), max(spent)


def _program(scores: Floats, costs: Floats, ceiling: float) -> tuple[float, float]:
    def at(rate: float) -> tuple[float, float]:
        chosen = (scores - rate * costs).argmax(1)
        rows = np.arange(len(scores))
        return float(scores[rows, chosen].mean()), float(costs[rows, chosen].mean())

    if at(0.0)[1] <= ceiling:
        return at(0.0)
    low, high = rates_around(ceiling, lambda rate: at(rate)[1], steps=60)
    (best, most), (least_best, least) = at(low), at(high)
    share = (ceiling - least) / (most - least) if most > least else 0.0
    return least_best + share * (best - least_best), ceiling


@dataclass
class Outcome:
    """What a policy made of a world."""

    quality: float
    blocks: Floats
    refused: int = 0


def paced(world: World, ceiling: float, seed: int) -> Outcome:
    """Ask the classes that serve."""
    router, estimator = _router(world, seed)
    pacer = Pacer(ceiling, len(world.names))
    scores, dollars = scores_of(world), world.dollars(world.tokens)
    waiting: deque[tuple[int, int, Any, Prompt]] = deque()
    spent, quality, refused = np.zeros(len(scores)), np.zeros(len(scores)), 0
    for number in range(len(scores)):
        prompt = Prompt(int(world.sizes[number]) // 4, int(world.sizes[number]))
        coefficients = Coefficients(dict(zip(world.names, world.coefs[number].tolist(), strict=True)))
        chosen, ticket = _choose(router, estimator, pacer, coefficients, prompt)
        if chosen is None:
            refused += 1
            pacer.settle(ticket, 0.0)
            continue
        place = world.names.index(chosen)
        spent[number], quality[number] = dollars[number, place], scores[number, place]
        waiting.append((number, place, ticket, prompt))
        if len(waiting) > DELAY:
            _end(world, estimator, pacer, waiting.popleft(), spent)
    return Outcome(float(quality.mean()), _blocks(spent) / ceiling, refused)


def _choose(
    router: Router, estimator: Estimator, pacer: Pacer, coefficients: Coefficients, prompt: Prompt
) -> tuple[str | None, Any]:
    plan = pacer.plan(router.scores(coefficients), estimator, prompt)
    if plan is None:
        return None, pacer.begin(0.0)
    decision = router.decide(coefficients, None, dollars=plan)
    place = router.menu.places[decision.model]
    return decision.model, pacer.begin(float(plan.costs[place]), float(plan.errors[place]))


def _end(world: World, estimator: Estimator, pacer: Pacer, one: tuple[int, int, Any, Prompt], spent: Floats) -> None:
    number, place, ticket, prompt = one
    pacer.settle(ticket, spent[number])
    estimator.observe(world.names[place], prompt, int(world.tokens[number, place]), spent[number])


def once(world: World, ceiling: float, seed: int) -> Outcome:
    """Spend the ceiling on each request by itself, by what the prior expects."""
    router, estimator = _router(world, seed)
    scores, dollars = scores_of(world), world.dollars(world.tokens)
    spent, quality = np.zeros(len(scores)), np.zeros(len(scores))
    for number in range(len(scores)):
        prompt = Prompt(int(world.sizes[number]) // 4, int(world.sizes[number]))
        costs = estimator.costs(prompt)
        coefficients = Coefficients(dict(zip(world.names, world.coefs[number].tolist(), strict=True)))
        decision = router.decide(coefficients, max(ceiling, float(costs.min())), dollars=Dollars(costs))
        place = world.names.index(decision.model)
        spent[number], quality[number] = dollars[number, place], scores[number, place]
    return Outcome(float(quality.mean()), _blocks(spent) / ceiling)


def _blocks(spent: Floats) -> Floats:
    whole = len(spent) // BLOCK * BLOCK
    return np.asarray(spent[:whole].reshape(-1, BLOCK).mean(axis=1))


def _router(world: World, seed: int) -> tuple[Router, Estimator]:
    models = [
        RoutedModel(name, cost=float(tokens * price[1] / 1e6), price=(float(price[0]), float(price[1])))
        for name, price, tokens in zip(world.names, world.prices, world.prior, strict=True)
    ]
    router = Router(models, kind="grk-endpoint", rng=np.random.default_rng(seed))
    return router, Estimator(router.menu)


def ceiling_at(world: World, share: float) -> float:
    """A ceiling at this share, by logarithm, between the cheapest choice and the best one."""
    costs = world.dollars(world.mean_tokens)
    best = costs[np.arange(len(costs)), scores_of(world).argmax(1)].mean()
    return float(np.exp((1 - share) * np.log(costs.mean(0).min()) + share * np.log(best)))


def build_parser() -> argparse.ArgumentParser:
    """The command line of the benchmark."""
    flags = parser("python -m benchmarks.dollar_ceiling", "Keep a dollar ceiling though costs are not as expected.")
    flags.add_argument("data", nargs="?", metavar="DATA_DIR", type=Path, help="folder of routerbench_subset.parquet")
    flags.add_argument("--requests", type=positive, default=10_000)
    flags.add_argument("--seeds", type=positive, default=2)
    return flags


def main(argv: Sequence[str] | None = None) -> None:
    """Print the tables."""
    flags = build_parser().parse_args(argv)
    if flags.requests < BLOCK:
        raise InputError(
            f"--requests {flags.requests}: a ceiling is kept in blocks of {BLOCK:,}; give at least as many"
        )
    sets = ["synthetic", *(["routerbench"] if flags.data else [])]
    seeds = range(_FIRST_SEED, _FIRST_SEED + flags.seeds)
    rows = []
    for name in sets:
        for scenario in SCENARIOS:
            worlds = [
                synthetic(scenario, flags.requests, seed)
                if name == "synthetic"
                else routerbench(scenario, flags.requests, seed, flags.data)
                for seed in seeds
            ]
            for ceiling, place in CEILINGS.items():
                runs = [
                    _compared(world, ceiling_at(world, place), seed) for world, seed in zip(worlds, seeds, strict=True)
                ]
                rows.append([f"{name}, {ceiling}", scenario, *_worst(np.array(runs))])
    header = ["set, ceiling", "costs", "quality of the oracle's", "dearest block"]
    print(table([*header, "once: quality", "once: dearest block", "requests refused"], rows))


def _compared(world: World, ceiling: float, seed: int) -> list[float]:
    """Return shares of the oracle's quality and how far the dearest block exceeds the ceiling: ours, and `once`."""
    ours, alone = paced(world, ceiling, seed), once(world, ceiling, seed)
    best, _ = oracle(world, ceiling)
    over = [float(outcome.blocks.max()) - 1 for outcome in (ours, alone)]
    return [ours.quality / best, over[0], alone.quality / best, over[1], ours.refused]


def _worst(runs: Floats) -> list[str]:
    """Return the cells of the worse of all seeds, column by column."""
    quality, block, alone, alone_block, refused = (
        pick(column) for pick, column in zip((np.min, np.max, np.min, np.max, np.max), runs.T, strict=True)
    )
    signed = f"{block:+.2%}", f"{alone_block:+.0%}"
    blocks = [text.replace("%", " %") for text in signed]
    return [share(quality, 1), blocks[0], share(alone), blocks[1], f"{refused:.0f}"]


if __name__ == "__main__":
    run(main)
