"""The tables: how good each forecast of the held-out votes is, and how much better than others, with intervals.

Intervals (95 %) draw prompts with all their votes. A difference is of losses on the same votes, so that what is hard
for all forecasts does not blur it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from benchmarks.real_votes.agreement import agreement
from benchmarks.real_votes.parts import Floats, Part, scored, vote_losses
from p2l.metrics import Interval, bootstrap_mean, expected_calibration_error, vote_values
from p2l.training.forecasts import Forecast

__all__ = ["Line", "calibration", "measure", "table"]

SEED = 0
DRAWS = 200
AGREEMENT_DRAWS = 40


@dataclass(frozen=True)
class Line:
    """What is reported of one forecast."""

    name: str
    about: str
    loss: Interval
    accuracy: Interval
    calibration: Interval
    agreement: Interval
    less_than: dict[str, Interval]
    """How much lower its loss is than that of each reference."""


def measure(
    forecasts: Mapping[str, Forecast],
    about: Mapping[str, str],
    references: tuple[str, ...],
    held: Part,
    likelihood: str,
    *,
    quiet: bool = True,
) -> list[Line]:
    """The lines of a set's table; forecasts are of votes."""
    losses = {name: vote_losses(forecast, held, likelihood) for name, forecast in forecasts.items()}
    agreed = agreement(forecasts, held, likelihood, draws=AGREEMENT_DRAWS, seed=SEED, quiet=quiet)
    return [
        Line(
            name=name,
            about=about[name],
            loss=_mean(losses[name], held),
            accuracy=_mean(vote_values("Accuracy", scored(forecast, held, likelihood)), held),
            calibration=calibration(forecast, held, likelihood),
            agreement=agreed[name],
            less_than={other: _mean(losses[other] - losses[name], held) for other in references if other != name},
        )
        for name, forecast in forecasts.items()
    ]


def calibration(forecast: Forecast, held: Part, likelihood: str) -> Interval:
    """Expected calibration error over all outcomes, with an interval.

    A redrawn sample has a larger error than its votes have, since noise adds up: the interval is moved back by that.
    """
    votes = scored(forecast, held, likelihood)
    rng = np.random.default_rng(SEED)
    clusters = int(held.clusters.max()) + 1

    def error(weights: Floats | None) -> float:
        return expected_calibration_error(votes.probs, votes.targets, votes.likelihood.outcomes, weights=weights)[
            "overall"
        ]

    estimate = error(None)
    times = rng.multinomial(clusters, np.full(clusters, 1 / clusters), size=DRAWS)
    drawn = np.array([error(row[held.clusters].astype(np.float64)) for row in times])
    lower, upper = np.maximum(np.quantile(drawn, [0.025, 0.975]) - (drawn.mean() - estimate), 0.0)
    return Interval(estimate, float(lower), float(upper), float(drawn.std(ddof=1)))


def table(lines: list[Line], references: Mapping[str, str]) -> str:
    """Two Markdown tables: the forecasts, and how much lower their losses are than those of the references."""
    head = ["forecast", "loss", "accuracy", "calibration error", "agreement by category"]
    rows = [
        [
            line.about,
            _shown(line.loss, "{:.4f}"),
            _shown(line.accuracy, "{:.1%}"),
            _shown(line.calibration, "{:.3f}"),
            _shown(line.agreement, "{:.3f}"),
        ]
        for line in lines
    ]
    differences = [
        [line.about, *(_shown(line.less_than.get(name), "{:+.4f}") for name in references)]
        for line in lines
        if line.name not in references or len(line.less_than) == len(references) - 1
    ]
    first = _markdown(head, rows)
    second = _markdown(["loss lower by", *(f"than {words}" for words in references.values())], differences)
    return f"{first}\n\n{second}"


def _mean(values: Floats, held: Part) -> Interval:
    return bootstrap_mean(values, clusters=held.clusters, seed=SEED)


def _shown(interval: Interval | None, form: str) -> str:
    if interval is None:
        return ""
    low, high = (form.format(value) for value in (interval.lower, interval.upper))
    return f"{form.format(interval.estimate)} [{low}, {high}]"


def _markdown(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
