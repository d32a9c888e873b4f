"""The guard: what graded answers say of a P2L's scores, so that a prompt leaves the constant only where that pays.

On graded prompts each model has a mean score, and a mean of the scores that P2L expects of it. A prompt departs from
the former by what P2L says beyond the latter. Of that a share counts, chosen by prompts that were left out:

    guarded score = mean score + share x (P2L's score - mean of P2L's scores)

With a share of 0 every prompt gets the best constant of its budget; all in all P2L decides no more than its
departures have been worth. `p2l eval-routing --model` chooses the share, measures with it and writes it.

Shapes: M models; leading axes are prompts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from route.routing.optimizers import Floats

_DIGITS = 6


def told_apart(deviations: Floats, share: float) -> Floats:
    """Return deviations (..., M) with those of models from each other, not what they have in common, times `share`.

    Without any they are zero: what models have in common moves the best one least, and would misjudge it.
    """
    level = deviations.mean(axis=-1, keepdims=True)
    return np.asarray((share > 0.0) * level + share * (deviations - level))


@dataclass(frozen=True)
class Guard:
    """How far a P2L's scores may depart from the mean scores of graded answers."""

    means: Mapping[str, float]
    """Mean score of each model: what a constant goes by."""
    expected: Mapping[str, float]
    """Mean of what P2L expected of these answers, on the scale of the router's scores."""
    share: float
    """Of the differences between models by which P2L departs, how much counts."""
    revision: str = ""
    """Of the P2L that this was measured with; empty where nobody says."""

    def is_stale(self, revision: str) -> bool:
        """Return whether a P2L of this revision is another one than was measured, as far as both are known."""
        return bool(self.revision and revision and self.revision != revision)

    def as_section(self, names: Sequence[str]) -> dict[str, Any]:
        """Return the section `guard` of a router's configuration with these models."""
        models = {
            name: {"score": round(self.means[name], _DIGITS), "expected": round(self.expected[name], _DIGITS)}
            for name in names
        }
        return {"share": self.share, "revision": self.revision, "models": models}

    def constant(self, names: Sequence[str]) -> Floats:
        """Return the mean scores (M,) of these models."""
        return np.array([self.means[name] for name in names], dtype=np.float64)

    def guarded(self, scores: Floats, names: Sequence[str]) -> Floats:
        """Return the scores (..., M) that count, of what P2L expects of these models."""
        expected = np.array([self.expected[name] for name in names], dtype=np.float64)
        return np.asarray(self.constant(names) + told_apart(scores - expected, self.share))
