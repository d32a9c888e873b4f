"""What each score counts in a student's means: the weight of its factor in its task.

Shapes: N scores, K tasks, F factors.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from coeval.analysis.units import Codes, Floats, Loaded, once

__all__ = ["factor_weights", "score_weights"]


class OfFactors(Protocol):
    """A table of scores."""

    @property
    def task(self) -> Codes:
        """(N,)."""
        ...

    @property
    def factor(self) -> Codes:
        """(N,)."""
        ...


@once
def factor_weights(loaded: Loaded) -> Floats | None:
    """The weight of each factor in each task, (K, F); None where all count alike."""
    weights = np.ones((len(loaded.tasks), len(loaded.factors)))
    for row, task in enumerate(loaded.tasks):
        about = loaded.about.tasks.get(task)
        for factor, weight in about.weights.items() if about is not None else ():
            if factor in loaded.factors:
                weights[row, loaded.factors.index(factor)] = weight
    return None if (weights == 1.0).all() else weights


def score_weights(loaded: Loaded, table: OfFactors) -> Floats | None:
    """The weight of each score of a table, (N,); None where all count alike."""
    weights = factor_weights(loaded)
    if weights is None:
        return None
    found: Floats = weights[table.task, table.factor]
    return found
