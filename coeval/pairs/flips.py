"""How often a judge's verdict hangs on the order in which it was shown two answers.

Shapes: P pairs seen in both orders.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from coeval.analysis.resampling import limits, resample
from coeval.analysis.results import FlipRow
from coeval.pairs.preference import Preference

__all__ = ["flip_rows"]


def flip_rows(verdicts: Iterable[Preference]) -> tuple[FlipRow, ...]:
    """Of each judge that saw pairs in both orders, by name; intervals draw items."""
    by_judge: dict[str, list[Preference]] = {}
    for one in verdicts:
        if len(one.verdicts) == 2:
            by_judge.setdefault(one.judge, []).append(one)
    return tuple(_flips(judge, found) for judge, found in sorted(by_judge.items()))


def _flips(judge: str, found: Sequence[Preference]) -> FlipRow:
    """In the first order `model_a` is shown first, in the second `model_b`."""
    pairs = [one.verdicts for one in found]
    flips = np.array([{*pair} == {"model_a", "model_b"} for pair in pairs], dtype=np.float64)
    first = sum((pair[0] == "model_a") + (pair[1] == "model_b") for pair in pairs)
    second = sum((pair[0] == "model_b") + (pair[1] == "model_a") for pair in pairs)
    columns = np.stack([flips, np.ones(len(flips))], axis=1)
    datapoints = np.array([one.datapoint for one in found])
    lower, upper = limits(resample(datapoints, columns, lambda sums: sums[:, 0] / sums[:, 1]))
    return FlipRow(
        judge,
        len(found),
        flips=int(flips.sum()),
        inconsistent=sum(pair[0] != pair[1] for pair in pairs),
        flip_rate=float(flips.mean()),
        lower=float(lower),
        upper=float(upper),
        first_share=first / (first + second) if first + second else None,
    )
