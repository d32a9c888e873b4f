"""Do verdicts of judges narrow the intervals of people's votes, and never bias them?

    python -m benchmarks.powered_boards [--simulations 500]

Battles between eight models under grk (win, loss, tie, both bad): what answers are worth differs from question to
question, which people and a judge both see. People vote on 400 of them; the judge says of all, and of 4,000 more. The
judge is good, or biased (it gives two models a bonus and marks high), or knows nothing. Printed, over simulations: the
share of the 95 % intervals that hold what people say on average over all questions, the mean error of the coefficients,
and how many times as many votes of people would give intervals as narrow; of people's votes alone, and with the judge's
verdicts. The truth is the leaderboard of 300,000 votes of people. Promise: 95 % of the intervals hold it.

Where ppi-python is installed (benchmarks/requirements.txt), the largest difference to its logistic estimate under bt.
"""

from __future__ import annotations

import argparse
import importlib.util
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from p2l.common.cli import parser, positive, run
from p2l.common.text_table import text_table
from p2l.leaderboard import Prior
from p2l.likelihood import get
from p2l.people.prediction_powered import Battles, fit_powered

__all__ = ["main"]

Floats = npt.NDArray[np.float64]
MODELS, VOTES, OTHERS, TRUTH = 8, 400, 4000, 300_000
ABILITY = np.linspace(-0.6, 1.2, MODELS)[[3, 0, 5, 7, 1, 6, 2, 4]]
ETA, TASTE = -0.3, 1.0
"""Standard deviation of what an answer is worth between questions."""
JUDGES = ("good", "biased", "knows nothing")
NAMES = [f"m{number}" for number in range(MODELS)]


def battles(count: int, judge: str, likelihood: str, rng: np.random.Generator) -> tuple[Battles, Floats]:
    """Return votes of people, and the verdicts of a judge on the same battles, as ones and zeros."""
    first = rng.integers(0, MODELS, count)
    second = (first + rng.integers(1, MODELS, count)) % MODELS
    worth = [ABILITY[one] + rng.normal(0.0, TASTE, count) for one in (first, second)]
    said = [1.3 * one for one in worth]
    if judge == "biased":
        said = [one + 0.8 * np.isin(code, (0, 4)) + 0.4 for one, code in zip(said, (first, second), strict=True)]
    elif judge == "knows nothing":
        said = [rng.normal(0.0, 1.0, count) for _ in said]
    return Battles(first, second, _votes(worth, likelihood, rng)), _votes(said, likelihood, rng)


def _votes(worth: Sequence[Floats], likelihood: str, rng: np.random.Generator) -> Floats:
    probs = get(likelihood).probs(*worth, np.full(len(worth[0]), ETA))
    code = np.minimum((rng.random(len(probs))[:, None] > probs.cumsum(axis=1)).sum(axis=1), probs.shape[1] - 1)
    return np.asarray(np.eye(probs.shape[1])[code])


def simulated(judge: str, truth: Floats, simulations: int) -> list[list[str]]:
    """Return rows of people's votes alone, and with the judge."""
    rng = np.random.default_rng([JUDGES.index(judge), 4])
    held: dict[bool, list[Any]] = {False: [], True: []} if judge == JUDGES[0] else {True: []}
    errors: dict[bool, list[Any]] = {powered: [] for powered in held}
    worths, weights = [], []
    for _ in range(simulations):
        votes, forecasts = battles(VOTES, judge, "grk", rng)
        others, said = battles(OTHERS, judge, "grk", rng)
        for powered in held:
            fitted = fit_powered(
                votes,
                forecasts,
                replace(others, outcomes=said),
                models=NAMES,
                likelihood="grk",
                weight=None if powered else 0.0,
            )
            held[powered].append((fitted.board.lower <= truth) & (truth <= fitted.board.upper))
            errors[powered].append(fitted.board.coefs - truth)
        worths.append(fitted.worth)
        weights.append(fitted.weight)
    rows = []
    for powered in held:
        share, error = np.mean(held[powered]), np.array(errors[powered])
        noise = 1.96 * np.std(np.mean(held[powered], axis=1)) / np.sqrt(simulations)
        root = float(np.sqrt((error**2).mean()))
        cells = [judge if powered else "none", f"{share:.1%} +- {noise:.1%}", f"{error.mean():+.3f}", f"{root:.3f}"]
        rows.append([*cells, *([f"{np.mean(weights):.2f}", f"{np.mean(worths):.2f}"] if powered else ["", ""])])
    return rows


def against_ppi_python(repetitions: int) -> Iterator[str]:
    """Yield the largest differences to ppi-python's logistic estimate and the widths of its intervals."""
    import ppi_py

    rng, points, widths = np.random.default_rng(5), [], []
    for _ in range(repetitions):
        (votes, forecasts), (others, said) = (battles(size, "biased", "bt", rng) for size in (VOTES, OTHERS))
        ours = fit_powered(
            votes,
            forecasts,
            replace(others, outcomes=said),
            models=NAMES,
            likelihood="bt",
            weight=0.5,
            prior=Prior(sd=1e3),
        ).board
        parts = (_design(votes), votes.outcomes[:, 0], forecasts[:, 0], _design(others), said[:, 0])
        theirs = ppi_py.ppi_logistic_pointestimate(*parts, lam=0.5)
        low, high = ppi_py.ppi_logistic_ci(*parts, alpha=0.05, lam=0.5)
        assert ours.covariance is not None
        spread = ours.covariance + ours.covariance[0, 0] - ours.covariance[0] - ours.covariance[:, :1]
        points.append(np.abs(ours.coefs[1:] - ours.coefs[0] - theirs).max())
        widths.append(np.abs(2 * 1.96 * np.sqrt(np.diag(spread))[1:] / (high - low) - 1.0).max())
    yield (
        f"bt, ppi-python, {repetitions} draws: largest difference of a coefficient {max(points):.1e}, "
        f"of the width of an interval {max(widths):.1%}"
    )


def _design(votes: Battles) -> Floats:
    columns, rows = np.zeros((len(votes), MODELS)), np.arange(len(votes))
    columns[rows, votes.first] += 1.0
    columns[rows, votes.second] -= 1.0
    return columns[:, 1:]


def build_parser() -> argparse.ArgumentParser:
    """The command line of the benchmark."""
    flags = parser(
        "python -m benchmarks.powered_boards", "Count how often prediction-powered intervals hold the truth."
    )
    flags.add_argument("--simulations", type=positive, default=500)
    return flags


def main(argv: Sequence[str] | None = None) -> None:
    """Print the tables."""
    simulations = build_parser().parse_args(argv).simulations
    rng = np.random.default_rng(0)
    votes, forecasts = battles(TRUTH, "good", "grk", rng)
    truth = fit_powered(
        votes, forecasts, battles(10, "good", "grk", rng)[0], models=NAMES, likelihood="grk", weight=0.0
    ).board.coefs
    rows = []
    for judge in JUDGES:
        rows += simulated(judge, truth, simulations)
    print(f"{VOTES} votes of people, {OTHERS:,} other battles, {simulations} simulations of each judge\n")
    header = ["judge", "intervals that hold", "mean error", "root mean square", "weight", "worth times the votes"]
    print("\n".join(text_table(header, rows, left={0})))
    if importlib.util.find_spec("ppi_py"):
        print("\n" + "\n".join(against_ppi_python(20)))


if __name__ == "__main__":
    run(main)
