"""Drift: which model became better or worse at what, between two months of votes whose truth is known.

    python examples/drift.py

In the second month one model is worse at code and the same at everything else. All models and topics are compared, and
the false discovery rate keeps to 5 %: without that, one comparison in twenty would be reported where nothing changed.
Two months share no fixed point, so that changes count against the mean of the models: what one of five loses, each of
the others gains by a quarter of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from p2l.insight.drift import DriftCell, judge
from p2l.insight.drift_votes import between_times, drift_of_votes

MODELS = ["ada", "bo", "cy", "dot", "eve"]
TOPICS = ["code", "poems", "history"]
CHANGED = ("cy", "code")
CHANGE = -1.2
"""What the second month does to its coefficient, in log-odds."""
VOTES = 9000
MONTH_SECONDS = 30 * 86400.0


def main(votes: int = VOTES) -> Sequence[DriftCell]:
    """Draw votes of two months, print and return the changes that are found."""
    table = draw_votes(votes)
    changes = drift_of_votes(table, between_times(MONTH_SECONDS, MONTH_SECONDS), by=["topic"])
    cells = judge(changes.measured, level=0.95, fdr=0.05)
    found = [cell for cell in cells if cell.verdict]
    print(f"{len(cells)} comparisons of {votes:,} votes; {len(found)} changed:")
    for cell in found:
        where = f"at {cell.category} (truth {truth(cell):+.0f})" if cell.by else "over all topics together"
        print(
            f"  {cell.model} {cell.verdict} by {cell.change:+.0f} points [{cell.lower:.0f}, {cell.upper:.0f}] {where}"
        )
    return found


def truth(cell: DriftCell) -> float:
    """Return the true change of a model at a topic against the mean of the models, in points."""
    name, topic = CHANGED
    against_mean = 1 - 1 / len(MODELS) if cell.model == name else -1 / len(MODELS)
    return CHANGE * against_mean * 400 / float(np.log(10)) if cell.category == topic else 0.0


def draw_votes(count: int) -> pd.DataFrame:
    """Return votes of two months; the coefficients of models differ by topic."""
    rng = np.random.default_rng(3)
    coefs = rng.normal(0, 0.7, size=(len(MODELS), len(TOPICS)))
    rows: list[dict[str, Any]] = []
    for number in range(count):
        first, second = rng.choice(len(MODELS), size=2, replace=False)
        topic = int(rng.integers(len(TOPICS)))
        time = rng.uniform(0, 2 * MONTH_SECONDS)
        change = np.zeros(len(MODELS))
        if time >= MONTH_SECONDS and TOPICS[topic] == CHANGED[1]:
            change[MODELS.index(CHANGED[0])] = CHANGE
        strength = coefs[:, topic] + change
        first_wins = rng.random() < 1 / (1 + np.exp(strength[second] - strength[first]))
        rows.append(
            {
                "prompt": f"{TOPICS[topic]} {number}",
                "model_a": MODELS[first],
                "model_b": MODELS[second],
                "winner": "model_a" if first_wins else "model_b",
                "tstamp": time,
                "topic": TOPICS[topic],
            }
        )
    votes: pd.DataFrame = pd.DataFrame(rows)
    return votes


if __name__ == "__main__":
    main()
