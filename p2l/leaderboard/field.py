"""How often each model beats the field: coefficients as a number that needs no explanation.

Shapes: M models, n coefficient vectors (a leading shape of any rank), K outcomes.

For models i and j, a vote gives i one point for a win, half a point for a tie of either kind and none for a loss:
points(i, j) = P(i wins) + (1 - P(i wins) - P(j wins)) / 2 = (1 + P(i wins) - P(j wins)) / 2.
The win rate of i is the mean over all other models j, so the rates of one leaderboard average 1/2 whatever the
likelihood, and those of a hard prompt (many votes "both bad") lie closer to 1/2 than those of an easy one.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from p2l.likelihood import Likelihood

__all__ = ["pair_points", "win_rates"]

Floats = npt.NDArray[np.float64]

_BLOCK_ELEMENTS = 2_000_000


def win_rates(
    coefs: npt.ArrayLike, likelihood: Likelihood, eta: npt.ArrayLike | None = None, gamma: npt.ArrayLike | None = None
) -> Floats:
    """Each model's mean points against a uniformly drawn other model, in [0, 1].

    Args:
        coefs: (..., M) coefficients.
        likelihood: supplies the outcome probabilities.
        eta: (...,) or scalar, for the likelihoods that have it.
        gamma: (...,) or scalar, for `ba`.

    Returns:
        (..., M) win rates; a tie of either kind counts half. A single model has no field: its rate is 1/2.
    """
    vectors = np.asarray(coefs, dtype=np.float64)
    lead, num_models = vectors.shape[:-1], vectors.shape[-1]
    if num_models < 2:
        return np.full(vectors.shape, 0.5)
    flat = vectors.reshape(-1, num_models)
    etas, gammas = _per_row(eta, lead), _per_row(gamma, lead)
    rates = np.empty_like(flat)
    rows = max(1, _BLOCK_ELEMENTS // num_models**2)
    for first in range(0, len(flat), rows):
        part = slice(first, first + rows)
        points = pair_points(
            flat[part], likelihood, None if etas is None else etas[part], None if gammas is None else gammas[part]
        )
        # The diagonal is exactly 1/2: no model is its own opponent.
        rates[part] = (points.sum(axis=-1) - 0.5) / (num_models - 1)
    return rates.reshape(vectors.shape)


def pair_points(
    coefs: Floats, likelihood: Likelihood, eta: Floats | None = None, gamma: Floats | None = None
) -> Floats:
    """Expected points (n, M, M) of the row's model against the column's, from coefs (n, M) and eta, gamma (n,)."""
    probs = likelihood.probs(
        coefs[:, :, None],
        coefs[:, None, :],
        None if eta is None else eta[:, None, None],
        None if gamma is None else gamma[:, None, None],
    )
    win, loss = likelihood.outcomes.index("win"), likelihood.outcomes.index("loss")
    points: Floats = 0.5 * (1.0 + probs[..., win] - probs[..., loss])
    return points


def _per_row(value: npt.ArrayLike | None, lead: tuple[int, ...]) -> Floats | None:
    """Spread a scalar or (...,) parameter over the flattened leading shape."""
    if value is None:
        return None
    return np.broadcast_to(np.asarray(value, dtype=np.float64), lead).reshape(-1)
