"""How long the router takes to choose a model, beside a linear program per request.

    python -m benchmarks.route_decisions [--decisions 100]

Promises: one simple-lp decision among 34, 130 and 1,000 models in at most 50, 100 and 500 us; one optimal-lp decision
with the strength of the mixture among 34 and 130 in at most 75 and 150 us.

A decision of ours is `Router.decide`, from coefficients by name to the whole answer: scores, mixture, draw, frontier,
strength. The others are given the scores as arrays and only solve: HiGHS through scipy, and cvxpy with a problem stated
anew for each request, as a router without state would. They take turns, so that a busy moment of the machine meets them
all; medians and 99th percentiles. `gap` is the largest difference of the expected score to HiGHS.

"plain" models have costs and coefficients drawn independently, so that few lie on the frontier. Of "frontier" models
every one does, which is the worst case for the hull.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from p2l.common.cli import parser, positive, run
from route.routing.decision import Coefficients, Decision, RoutedModel
from route.routing.router import Router

__all__ = ["main"]

PROMISES = {
    ("simple-lp", 34): 50,
    ("simple-lp", 130): 100,
    ("simple-lp", 1000): 500,
    ("optimal-lp", 34): 75,
    ("optimal-lp", 130): 150,
}
"""Microseconds."""
KINDS = {"simple-lp": "grk-endpoint", "optimal-lp": "bt-endpoint"}
PROMPTS = 50
ROUNDS = 8
SLOW_SHARE = 10
"""Of so many of our decisions one is given to the others, which take a hundred times as long."""


@dataclass
class Case:
    """One size of the menu, and prompts to decide."""

    optimizer: str
    shape: str
    costs: np.ndarray
    coefs: np.ndarray
    """(prompts, M)"""
    budget: float
    seconds: dict[str, list[float]] = field(default_factory=dict)
    gap: float = 0.0

    @property
    def size(self) -> int:
        return len(self.costs)


def make_case(optimizer: str, size: int, shape: str) -> Case:
    rng = np.random.default_rng([size, len(optimizer)])
    costs = np.sort(rng.lognormal(0.0, 1.0, size))
    coefs = rng.normal(0.0, 1.0, (PROMPTS, size))
    if shape == "frontier":
        shares = np.linspace(0.2, 0.8, size)
        costs, coefs = shares**2, np.tile(np.log(shares / (1.0 - shares)), (PROMPTS, 1))
    return Case(optimizer, shape, costs, coefs, budget=float(np.median(costs)))


def highs(scores: np.ndarray, costs: np.ndarray, budget: float) -> float:
    """The best expected score, by scipy."""
    from scipy.optimize import linprog

    ones = np.ones((1, len(scores)))
    found: Any = linprog(-scores, A_ub=costs[None], b_ub=[budget], A_eq=ones, b_eq=[1.0], bounds=(0, None))
    return -float(found.fun)


def cvxpy(scores: np.ndarray, costs: np.ndarray, budget: float) -> float:
    """The best expected score, by cvxpy and the solver that it chooses."""
    import cvxpy as cp

    shares: Any = cp.Variable(len(scores), nonneg=True)
    task = cp.Problem(cp.Maximize(scores @ shares), [costs @ shares <= budget, cp.sum(shares) == 1.0])
    return float(task.solve())


BASELINES: dict[str, Callable[[np.ndarray, np.ndarray, float], float]] = {"HiGHS": highs, "cvxpy": cvxpy}


def clocked(case: Case, name: str, call: Callable[[], Any]) -> Any:
    start = time.perf_counter()
    result = call()
    case.seconds.setdefault(name, []).append(time.perf_counter() - start)
    return result


def measure(case: Case, decisions: int) -> None:
    """Fill in the case's seconds: ours, and of a share of the prompts the others'; `decisions` per round."""
    names = [f"organisation-{number % 17}/model-{number}" for number in range(case.size)]
    models = [RoutedModel(name, cost) for name, cost in zip(names, case.costs.tolist(), strict=True)]
    router = Router(models, kind=KINDS[case.optimizer], rng=np.random.default_rng(0))
    prompts = [Coefficients(dict(zip(names, row.tolist(), strict=True))) for row in case.coefs]
    for _ in range(ROUNDS):
        for number in range(decisions):
            new = replace(prompts[number % PROMPTS])  # the router keeps scores with a prompt that it has seen
            clocked(case, "router", partial(router.decide, new, case.budget))
        for said in prompts[: max(1, decisions // SLOW_SHARE)]:
            compare(case, router.decide(said, case.budget), names)


def compare(case: Case, decision: Decision, names: Sequence[str]) -> None:
    """Let the others solve what was decided."""
    scores = np.array([decision.scores[name] for name in names])
    for name, solve in BASELINES.items():
        best = clocked(case, name, partial(solve, scores, case.costs, case.budget))
        if name == "HiGHS" and decision.expected_score is not None:
            case.gap = max(case.gap, abs(best - decision.expected_score))


def line(case: Case) -> str:
    """One row of the table."""
    ours = 1e6 * np.array(case.seconds["router"])
    promise = PROMISES.get((case.optimizer, case.size), "") if case.shape == "plain" else ""
    others = [1e6 * float(np.median(case.seconds[name])) for name in BASELINES]
    cells = [case.optimizer, case.shape, f"{case.size:,}", f"{np.median(ours):.0f}", f"{np.percentile(ours, 99):.0f}"]
    cells += [str(promise), *(f"{other:,.0f}" for other in others), f"{case.gap:.0e}"]
    return "| " + " | ".join(cells) + " |"


def build_parser() -> argparse.ArgumentParser:
    """The flags."""
    words = parser("benchmarks.route_decisions", "Time of one routing decision, beside a linear program per request.")
    words.add_argument(
        "--decisions", type=positive, default=100, help=f"decisions of each case in each of {ROUNDS} rounds"
    )
    return words


def main(argv: Sequence[str] | None = None) -> None:
    """Measure all cases and print the table."""
    flags = build_parser().parse_args(argv)
    sizes = [(name, "plain", size) for name, size in PROMISES]
    worst = [("simple-lp", "frontier", size) for size in (34, 130, 1000)]
    print("Microseconds of one decision (ours: median and 99th percentile).\n")
    print("| optimizer | costs and scores | models | router | p99 | promise | HiGHS | cvxpy | gap |")
    print("|---|---|---|---|---|---|---|---|---|")
    for optimizer, shape, size in sizes + worst:
        case = make_case(optimizer, size, shape)
        measure(case, 1)  # imports, caches
        case.seconds.clear()
        measure(case, flags.decisions)
        print(line(case), flush=True)


if __name__ == "__main__":
    run(main)
