"""How often does the verdict of `p2l eval-routing` say what is not so, on few held-out prompts?

    python -m benchmarks.routing_verdicts [--runs 10] [--held 20,50,200]

Tables of graded answers are drawn of which it is known what routing gains: nothing, with models alike or with one that
is better on every prompt, or much, where the kind of a prompt tells who can do it. Each run draws prompts to train on
and others to hold out. Prints how often each verdict is given, how often the interval of the gain over the best
constant holds its mean over all runs of that kind, and its mean width. Bars: routing pays in at most 5 % of the runs
without a gain, "do not route here" in at most 5 % of those with one, and from 20 prompts on, below which nothing is
decided, 90 to 98 % of the intervals hold the gain that was planted.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.tables import table
from p2l.common.cli import parser, positive, run
from p2l.metrics import Interval
from route.evaluation.measuring import Results, across
from route.evaluation.policies import Setup
from route.evaluation.table import ScoreTable
from route.evaluation.verdict import decide

_TRAINED_ON = 100
_KINDS = ("sum", "poem", "proof")
_RATES = {
    "models alike": np.full((3, 4), 0.5),
    "one is best": np.tile([0.4, 0.5, 0.6, 0.7], (3, 1)),
    "gain planted": np.array([[0.8, 0.4, 0.3, 0.55], [0.4, 0.8, 0.3, 0.55], [0.3, 0.4, 0.8, 0.55]]),
}
"""Chance of a usable answer, by kind of prompts and model."""


_VERDICTS = ("p2l", "simpler", "single", "undecided")


@dataclass(frozen=True)
class _Run:
    verdict: str
    gain: Interval


def build_parser() -> argparse.ArgumentParser:
    """The command line of the benchmark."""
    flags = parser("python -m benchmarks.routing_verdicts", "Verdicts on routing, on tables with a known answer.")
    flags.add_argument("--runs", type=positive, default=10, help="of each kind of table and number of prompts")
    flags.add_argument("--held", default="20,50,200", help="numbers of held-out prompts, separated by commas")
    return flags


def main(argv: Sequence[str] | None = None) -> None:
    """Run the benchmark."""
    options = build_parser().parse_args(argv)
    sizes = [int(text) for text in options.held.split(",")]
    rows = []
    for place, (name, rates) in enumerate(_RATES.items()):
        by_size: dict[int, list[_Run]] = {}
        for size in sizes:
            by_size[size] = [_run(rates, size, (place, size, seed)) for seed in range(options.runs)]
            print(f"{name}, {size} held out", file=sys.stderr, flush=True)
        truth = float(np.mean([one.gain.estimate for runs in by_size.values() for one in runs]))
        rows += [[name, f"{size}", *_row(runs, truth)] for size, runs in by_size.items()]
        print(*(" | ".join(row) for row in rows[-len(sizes) :]), sep="\n", file=sys.stderr, flush=True)
    heads = ["table", "held out", "routing pays", "a simpler policy", "do not route", "undecided"]
    print(table([*heads, "mean gain, points", "intervals that hold it", "mean width, points"], rows))


def _run(rates: np.ndarray, held: int, seed: tuple[int, ...]) -> _Run:
    rng = np.random.default_rng(seed)
    drawn = _scores(rates, _TRAINED_ON + held, rng)
    train, test = drawn.take(np.arange(_TRAINED_ON)), drawn.take(np.arange(_TRAINED_ON, _TRAINED_ON + held))
    results, _ = across(train, test, Setup(recipe="words"), seed=int(rng.integers(1_000_000)))
    return _Run(_verdict(results), results.policies["p2l"].over_constant[results.measure])


def _scores(rates: np.ndarray, questions: int, rng: np.random.Generator) -> ScoreTable:
    kinds = rng.integers(0, len(_KINDS), questions)
    fillers = rng.integers(0, 30, (questions, 6))
    prompts = tuple(
        " ".join([_KINDS[kind], *(f"word{chr(97 + one % 26)}{one // 26}" for one in row), f"no{number}"])
        for number, (kind, row) in enumerate(zip(kinds, fillers.tolist(), strict=True))
    )
    return ScoreTable(
        name="planted",
        models=tuple(f"model {number}" for number in range(rates.shape[1])),
        prompts=prompts,
        categories=tuple(_KINDS[kind] for kind in kinds),
        scores=(rng.random((questions, rates.shape[1])) < rates[kinds]).astype(np.float64),
        costs=np.tile(0.001 * 2.0 ** np.arange(rates.shape[1]), (questions, 1)),
    )


def _verdict(results: Results) -> str:
    decision = decide(results)
    if not decision.is_decided:
        return "undecided"
    return decision.policy if decision.policy in ("p2l", "single") else "simpler"


def _row(runs: Sequence[_Run], truth: float) -> list[str]:
    shares = [f"{np.mean([one.verdict == verdict for one in runs]):.1%}" for verdict in _VERDICTS]
    holds = np.mean([one.gain.lower <= truth <= one.gain.upper for one in runs])
    width = 100 * np.mean([one.gain.upper - one.gain.lower for one in runs])
    return [*shares, f"{100 * truth:+.1f}", f"{holds:.1%}", f"{width:.1f}"]


if __name__ == "__main__":
    run(main)
