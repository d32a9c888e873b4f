"""Votes of people and of judges whose scale and leanings are known."""

from __future__ import annotations

from typing import Any

import numpy as np

from p2l import likelihood as likelihoods
from p2l.people import SourcedVotes
from p2l.votes import WINNERS

MODELS = [f"{family}-{number}" for family in ("ant", "bee", "cat") for number in (1, 2, 3)]
TRUTH = np.linspace(-1.0, 1.4, len(MODELS))[[3, 0, 7, 1, 8, 2, 5, 4, 6]]
SHARP, SIDED = "ant-judge", "bee-judge"
"""One prefers models of its own family and long answers, the other the answer shown first."""
LEANINGS = {
    SHARP: {"scale": 1.6, "side": 0.0, "length": 1.5, "own": 1.0},
    SIDED: {"scale": 0.7, "side": 0.9, "length": 0.0, "own": 0.0},
}


def cast(
    count: int, source: str, rng: np.random.Generator, likelihood: str = "grk", *, side: float = 0.0
) -> list[dict[str, Any]]:
    """Return votes of people (`human`), to whom being shown first is worth `side`, or of a judge."""
    own = LEANINGS.get(source, {"scale": 1.0, "side": side, "length": 0.0, "own": 0.0})
    a = rng.integers(0, len(MODELS), count)
    b = (a + rng.integers(1, len(MODELS), count)) % len(MODELS)
    length = np.exp(rng.normal(5.0, 0.7, (2, count)))
    family = source.partition("-")[0]
    of_family = np.array([name.startswith(family) for name in MODELS], dtype=float)
    lean = own["side"] + own["length"] * (length[0] - length[1]) / length.sum(axis=0)
    lean = lean + own["own"] * (of_family[a] - of_family[b])
    first, second = own["scale"] * TRUTH[a] + lean / 2, own["scale"] * TRUTH[b] - lean / 2
    probs = likelihoods.get(likelihood).probs(first, second, np.full(count, -0.3), np.zeros(count))
    code = np.minimum((rng.random(count)[:, None] > probs.cumsum(axis=1)).sum(axis=1), probs.shape[1] - 1)
    return [
        {
            "prompt": f"prompt {rng.integers(10_000)}",
            "model_a": MODELS[a[row]],
            "model_b": MODELS[b[row]],
            "winner": WINNERS[code[row]],
            "source": source,
            "voter": f"voter-{row // 20}" if source == "human" else None,
            "length_a": float(length[0, row]),
            "length_b": float(length[1, row]),
        }
        for row in range(count)
    ]


def sourced(rows: list[dict[str, Any]]) -> SourcedVotes:
    """Return rows of votes as `sourced_votes` reads them from a store."""
    import pandas as pd

    from p2l.people import sourced_votes
    from p2l.votes import open_votes

    return sourced_votes(open_votes(pd.DataFrame(rows)), "human")
