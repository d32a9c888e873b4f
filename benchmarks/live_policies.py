"""Are two live policies told apart, how often by mistake, and is what a shadow is worth foreseen?

    python -m benchmarks.live_policies [--runs 400]

Planted requests of prompts that differ in difficulty, with answers that are right or wrong; P2L's scores know a part of
it. One looks after every 250 requests and stops when an interval leaves zero out.

1. Split: 5,000 requests, one policy 5 points better, or as good. The policies always choose differently, or for half of
   the prompts. Beside what `compare-policies` says: the difference of the two means with the same intervals, and with
   intervals for one look.
2. Shadow, answered unseen: 4,000 requests, the policies differ on a fifth, the shadow is 2 points better, or as good.
3. Off policy: what a shadow is worth, from the answers of a router that explores one request in ten, beside weighting
   alone and P2L's scores alone: error against the truth, and how often the interval at the end has it.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.tables import share, table
from p2l.common.bootstrap import Interval, anytime_interval
from p2l.common.cli import parser, positive, run
from route.evaluation.policy_values import estimate, net_wins
from route.evaluation.trial_log import Trials, trials_of

Floats = npt.NDArray[np.float64]
_LOOK_EVERY = 250
_SPLIT, _SHADOWED = 5000, 4000
_ONE_LOOK = 1.96  # standard errors of an interval of 95 % that is right for a single look
_MODELS = ("small", "medium", "large")
_EXPLORED = 0.1


class _World:
    """Prompts with chances (N, M) of a right answer and P2L's scores of them."""

    def __init__(self, rng: np.random.Generator, count: int, gap: float) -> None:
        """Draw prompts on which the last model is `gap` better than the second in the mean."""
        ability = np.array([0.0, 0.5, 0.5])
        difficulty = rng.normal(0.0, 1.2, (count, 1))
        deviations = rng.normal(0.0, 0.8, (count, len(_MODELS)))
        chances = 1.0 / (1.0 + np.exp(-(ability + difficulty + deviations)))
        # The same lift for each prompt, as far as a chance has room for it.
        chances[:, 2] += gap - (chances[:, 2] - chances[:, 1]).mean()
        self.chances: Floats = chances.clip(0.0, 1.0)
        read = 0.4 * difficulty + 0.3 * deviations + rng.normal(0.0, 0.2, deviations.shape)
        self.scores: Floats = 1.0 / (1.0 + np.exp(-(0.4 + read)))
        self.outcomes: Floats = (rng.random(self.chances.shape) < self.chances).astype(np.float64)


def _event(number: int, asked: int, trial: Mapping[str, Any]) -> dict[str, Any]:
    """Return a request as the router logs it."""
    name = f"req-{number}"
    conversation = {"conversation": name, "unit": name}
    return {
        "request_id": name,
        "status": 200,
        "seconds": 1.0,
        "tried": [_MODELS[asked]],
        "trial": {**conversation, **trial},
    }


def _scores(world: _World, number: int) -> dict[str, float]:
    return dict(zip(_MODELS, world.scores[number].tolist(), strict=True))


def _split(rng: np.random.Generator, gap: float, differing: float) -> Trials:
    """Return the trials of two policies: the second asks the last model on a share of the prompts."""
    world = _World(rng, _SPLIT, gap / differing)
    differs = rng.random(_SPLIT) < differing
    policies = rng.integers(2, size=_SPLIT)
    asked = np.where((policies == 1) & differs, 2, 1)
    events = []
    for number in range(_SPLIT):
        chances = {"now": {"medium": 1.0}, "new": {"large" if differs[number] else "medium": 1.0}}
        trial = {"experiment": "e", "policy": ("now", "new")[policies[number]], "shares": {"now": 0.5, "new": 0.5}}
        events.append(_event(number, asked[number], {**trial, "chances": chances, "scores": _scores(world, number)}))
    trials = trials_of(events, {})
    trials.outcomes["judged"] = world.outcomes[np.arange(_SPLIT), asked]
    return trials


def _until(trials: Trials, count: int) -> Trials:
    """Return the first requests of the trials."""
    return replace(
        trials,
        requests=trials.requests[:count],
        units=trials.units[:count],
        asked=trials.asked[:count],
        policy=trials.policy[:count],
        chances=trials.chances[:, :count],
        weights=trials.weights[:, :count],
        scores=trials.scores[:count],
        outcomes={name: values[:count] for name, values in trials.outcomes.items()},
        unseen=trials.unseen[:count],
    )


def _of_means(trials: Trials) -> tuple[float, float]:
    """Return the difference of the two policies' mean outcomes, and its standard error."""
    arms = [trials.outcomes["judged"][trials.policy == arm] for arm in (0, 1)]
    return arms[1].mean() - arms[0].mean(), float(np.sqrt(sum(arm.var() / len(arm) for arm in arms)))


def _compared(trials: Trials) -> Interval:
    return estimate(trials, "judged").differences[0]


def _means_anytime(trials: Trials) -> Interval:
    return anytime_interval(*_of_means(trials), len(trials.requests))


def _means_for_one_look(trials: Trials) -> Interval:
    gap, error = _of_means(trials)
    return Interval(gap, gap - _ONE_LOOK * error, gap + _ONE_LOOK * error, error)


def _stopped(trials: Trials, look: Callable[[Trials], Interval]) -> int | None:
    """Return after how many requests an interval leaves zero out; None: never."""
    for count in range(_LOOK_EVERY, len(trials.requests) + 1, _LOOK_EVERY):
        interval = look(_until(trials, count))
        if not interval.lower <= 0.0 <= interval.upper:
            return count
    return None


def _row(name: str, differing: str, planted: Sequence[int | None], equal: Sequence[int | None]) -> list[str]:
    found = [count for count in planted if count is not None]
    alarms = sum(count is not None for count in equal) / len(equal)
    median = f"{int(np.median(found)):,}" if found else "never"
    return [name, differing, share(len(found) / len(planted), 1), median, share(alarms, 1)]


def _split_rows(runs: int) -> list[list[str]]:
    ways = {
        "`compare-policies`": _compared,
        "difference of means, any time": _means_anytime,
        "difference of means, for one look": _means_for_one_look,
    }
    rows = []
    for differing in (1.0, 0.5):
        planted = [_split(np.random.default_rng([1, seed]), 0.05, differing) for seed in range(runs)]
        equal = [_split(np.random.default_rng([2, seed]), 0.0, differing) for seed in range(runs)]
        for name, look in ways.items():
            stops = [[_stopped(trials, look) for trials in group] for group in (planted, equal)]
            rows.append(_row(name, share(differing), *stops))
    return rows


def _shadowed(rng: np.random.Generator, gap: float) -> tuple[Trials, dict[str, float]]:
    """Return the trials of a shadow that answers unseen, and verdicts on the pairs that differ."""
    world = _World(rng, _SHADOWED, gap / 0.2)
    differs = rng.random(_SHADOWED) < 0.2
    events, verdicts = [], {}
    for number in range(_SHADOWED):
        unseen = "large" if differs[number] else "medium"
        trial = {"chances": {"current": {"medium": 1.0}, "shadow": {unseen: 1.0}}, "unseen": unseen}
        events.append(_event(number, 1, {**trial, "scores": _scores(world, number)}))
        if differs[number]:
            verdicts[f"req-{number}"] = float(world.outcomes[number, 2] - world.outcomes[number, 1])
    return trials_of(events, {}), verdicts


def _shadow_row(runs: int) -> list[str]:
    stops = []
    for place, gap in enumerate((0.02, 0.0)):
        group = [_shadowed(np.random.default_rng([3 + place, seed]), gap) for seed in range(runs)]
        stops.append([_stopped(trials, _judged_by(verdicts)) for trials, verdicts in group])
    return _row("`compare-policies --judged`", "20 %", *stops)


_OPEN = Interval(0.0, -np.inf, np.inf, np.inf)


def _judged_by(verdicts: Mapping[str, float]) -> Callable[[Trials], Interval]:
    """Return the comparison of a shadow all of whose pairs are judged."""
    return lambda trials: net_wins(trials, verdicts) or _OPEN


def _explored(rng: np.random.Generator) -> tuple[Trials, float]:
    """Return the trials of a router that explores, and the truth of the shadow, which asks the best by P2L's scores."""
    world = _World(rng, _SHADOWED, 0.05)
    best = world.scores.argmax(axis=1)
    asked = np.where(rng.random(_SHADOWED) < _EXPLORED, rng.integers(len(_MODELS), size=_SHADOWED), 1)
    explored = _EXPLORED / len(_MODELS)
    current = {name: explored + (1 - _EXPLORED) * (name == "medium") for name in _MODELS}
    events = []
    for number in range(_SHADOWED):
        chances = {"current": current, "shadow": {_MODELS[best[number]]: 1.0}}
        events.append(_event(number, asked[number], {"chances": chances, "scores": _scores(world, number)}))
    trials = trials_of(events, {})
    rows = np.arange(_SHADOWED)
    trials.outcomes["judged"] = world.outcomes[rows, asked]
    return trials, float(world.chances[rows, best].mean())


def _off_policy_rows(runs: int) -> list[list[str]]:
    errors: dict[str, list[float]] = {"doubly robust": [], "weighting alone": [], "P2L's scores alone": []}
    held = 0
    for seed in range(runs):
        trials, truth = _explored(np.random.default_rng([5, seed]))
        value = estimate(trials, "judged").values[1]
        outcome = trials.outcomes["judged"]
        held += value.lower <= truth <= value.upper
        errors["doubly robust"].append(value.estimate - truth)
        errors["weighting alone"].append(float((trials.weights[1] * outcome).mean() - truth))
        expected = (trials.chances[1] * np.nan_to_num(trials.scores)).sum(axis=1)
        errors["P2L's scores alone"].append(float(expected.mean() - truth))
    rows = []
    for name, values in errors.items():
        points = 100 * np.array(values)
        interval = share(held / runs, 1) if name == "doubly robust" else ""
        rows.append([name, f"{points.mean():+.2f}", f"{np.sqrt((points**2).mean()):.2f}", interval])
    return rows


def build_parser() -> argparse.ArgumentParser:
    """Build the command line."""
    flags = parser("benchmarks.live_policies", "Power and false alarms of live comparisons of policies.")
    flags.add_argument("--runs", type=positive, default=400, help="planted runs of each row")
    return flags


def main(argv: Sequence[str] | None = None) -> None:
    """Run the benchmark and print its tables."""
    runs = build_parser().parse_args(argv).runs
    header = ["comparison", "prompts on which they differ", "found", "median requests until then", "false alarms"]
    print(table(header, [*_split_rows(runs), _shadow_row(runs)]))
    print()
    off_policy = ["value of the shadow", "bias, points", "root mean square error, points", "interval has the truth"]
    print(table(off_policy, _off_policy_rows(runs)))


if __name__ == "__main__":
    run(main)
