"""Do pairs that are chosen by what they teach say more of a leaderboard than pairs drawn at random?

    python -m benchmarks.next_pairs [--seeds 10] [--votes 2000]

True coefficients of 30 models, of which five joined late: N votes are on pairs of the first 25 drawn at random. As many
more are then cast in four rounds: on pairs drawn uniformly over all models, or planned by `plan_pairs`, for all models
or for the five new ones. So too behind a router, where the first model of a pair is the one that serves the prompt (the
best by the leaderboard so far and a prompt's own deviations, of standard deviation 0.7), and the second alone is drawn,
uniformly or by a plan (`pairs` of the router's configuration).

Printed: root mean square error of the coefficients, less their mean, of all models and of the new ones, means over the
seeds, and the difference to random with its standard error; behind a router to random there.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from benchmarks.tables import table
from p2l.common.cli import parser, positive, run
from p2l.leaderboard.fitting import fit
from p2l.leaderboard.next_pairs import plan_pairs
from route.routing.candidates import PairShares

__all__ = ["main"]

Floats = npt.NDArray[np.float64]
MODELS, NEW, ROUNDS = 30, 5, 4
NAMES = [f"m{number:02d}" for number in range(MODELS)]
PROMPT_SD = 0.7
WAYS = ("drawn at random", "planned for all (`p2l next-pairs`)", "planned for the new ones (`--models`)")
BEHIND = (
    "router, second model drawn at random",
    "router, second model by the plan for all (`pairs`)",
    "router, second model by the plan for the new ones",
)


def _cast(truth: Floats, pairs: npt.NDArray[np.int64], rng: np.random.Generator) -> npt.NDArray[np.int64]:
    """Return votes (n, 3) of first model, second model, winner."""
    chance = 1.0 / (1.0 + np.exp(truth[pairs[:, 1]] - truth[pairs[:, 0]]))
    return np.column_stack([pairs, rng.random(len(pairs)) >= chance]).astype(np.int64)


def _run(seed: int, count: int, way: str) -> tuple[float, float]:
    rng = np.random.default_rng([seed, 7])
    truth = rng.normal(0, 0.7, MODELS)
    old = np.array([rng.choice(MODELS - NEW, 2, replace=False) for _ in range(count)])
    votes = _cast(truth, old, rng)
    rng = np.random.default_rng([seed, (*WAYS, *BEHIND).index(way)])
    for _ in range(ROUNDS):
        votes = np.concatenate([votes, _cast(truth, _pairs(votes, count // ROUNDS, way, rng), rng)])
    error = _coefs(votes) - (truth - truth.mean())
    return float(np.sqrt((error**2).mean())), float(np.sqrt((error[-NEW:] ** 2).mean()))


def _pairs(votes: npt.NDArray[np.int64], size: int, way: str, rng: np.random.Generator) -> npt.NDArray[np.int64]:
    """Return the pairs (size, 2) of a round."""
    every = np.stack(np.triu_indices(MODELS, 1), axis=1)
    shares = np.full(len(every), 1.0 / len(every))
    if way not in (WAYS[0], BEHIND[0]):
        board = fit(votes[:, 0], votes[:, 1], votes[:, 2], models=NAMES, likelihood="bt", intervals=None)
        named = np.arange(MODELS - NEW, MODELS) if way in (WAYS[2], BEHIND[2]) else None
        shares = plan_pairs(board, votes[:, :2], size, named=named).propensities
    if way in WAYS:
        return every[rng.choice(len(every), size, p=shares / shares.sum())]
    first = (_coefs(votes) + rng.normal(0, PROMPT_SD, (size, MODELS))).argmax(axis=1)
    plan = PairShares({frozenset((NAMES[a], NAMES[b])): share for (a, b), share in zip(every, shares, strict=True)})
    drawn = [plan.seconds(NAMES[one], NAMES) for one in range(MODELS)]
    second = [rng.choice([*drawn[one]], p=[*drawn[one].values()]) for one in first]
    return np.stack([first, [NAMES.index(name) for name in second]], axis=1)


def _coefs(votes: npt.NDArray[np.int64]) -> Floats:
    """Return the coefficients of a leaderboard, less their mean."""
    board = fit(votes[:, 0], votes[:, 1], votes[:, 2], models=NAMES, likelihood="bt", intervals=None)
    return np.asarray(board.coefs - board.coefs.mean())


def build_parser() -> argparse.ArgumentParser:
    """The command line of the benchmark."""
    flags = parser("python -m benchmarks.next_pairs", "Compare planned pairs with pairs drawn at random.")
    flags.add_argument("--seeds", type=positive, default=10)
    flags.add_argument("--votes", type=positive, default=2000)
    return flags


def main(argv: Sequence[str] | None = None) -> None:
    """Print the table."""
    args = build_parser().parse_args(argv)
    rows = []
    for ways in (WAYS, BEHIND):
        errors = {way: np.array([_run(seed, args.votes, way) for seed in range(args.seeds)]) for way in ways}
        for way, ours in errors.items():
            difference = ours - errors[ways[0]]
            spread = difference.std(axis=0, ddof=1) / np.sqrt(len(ours)) if len(ours) > 1 else np.zeros(2)
            columns = zip(ours.mean(axis=0), difference.mean(axis=0), spread, strict=True)
            gaps = [f"{mean:.4f} ({gap:+.4f} ± {error:.4f})" for mean, gap, error in columns]
            rows.append([way, *(gaps if way != ways[0] else [gap.partition(" (")[0] for gap in gaps])])
    print(table(["pairs", "all models", "the new ones"], rows))


if __name__ == "__main__":
    run(main)
