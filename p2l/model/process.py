"""A Gaussian process over prompts: its eigenfunctions at some of them, and which prompts are strange to it.

Votes on prompts x with information w determine along each eigenfunction e_k of the kernel the share

    known s_k / (1 + known s_k),        s_k = sum w e_k(x)^2 / sum w

of the prior variance, where `known` is the information of all votes times the prior variance. Summed over a prompt's
e_k(x)^2 that is its familiarity: near 1 for what was asked often, 0 for what is like nothing that was asked.

How strange is strange is seen by leaving out parts of the prompts: each cluster of them in turn is left out of the
process, and its familiarity then is that of a topic that training has not seen.

Shapes: Q prompts, F inputs, K points, R components.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
MOST_POINTS = 512
CLUSTERS = 8
INSIDE = 0.02
"""Share of the prompts within the distribution whose coefficients may be shrunk."""
_JITTER = 1e-4
_FEWEST = 2.0  # clusters, of which nothing is concluded
_CLEAR = 4.0  # clusters, of fewer of which t has tails so long that its intervals say nothing
_UPPER_END = 0.95  # of a 90 % interval


@dataclass(frozen=True)
class Process:
    """The kernel at some prompts, and its eigenfunctions under the votes."""

    centre: Floats
    """(F,)"""
    length: float
    points: Floats
    """(K, F) centred, in units of the length."""
    axes: Floats
    """(K, K): eigenfunctions of kernel values at the points."""
    seen: Floats
    """(K,) mean of the squared eigenfunctions over the votes."""
    fresh: Floats
    """(Q', K) squared eigenfunctions at prompts that are not among the points."""
    left_out: tuple[tuple[Floats, Floats], ...]
    """Squares (Q', K) and `seen` (K,) of each cluster of prompts when the votes on it are left out."""

    strange: float
    """Variance of a prompt of another cluster over that of those within, known from few clusters (`_strange`)."""
    features: Floats
    """(Q, K) of all prompts, whose inner products are the kernel."""

    @classmethod
    def of(cls, inputs: Floats, information: Floats, length: float, rng: np.random.Generator) -> Process:
        """Choose points among the inputs (Q, F) and find the eigenfunctions; `information` (Q,) is the votes'."""
        centre = inputs.mean(0)
        scaled = (inputs - centre) / length
        order = rng.permutation(len(scaled))
        # At most half of the prompts, so that others are left to see how familiar a new one is.
        count = max(1, min(MOST_POINTS, len(scaled) // 2))
        others = order[count:] if count < len(order) else order
        points = scaled[order[:count]]
        root = np.linalg.cholesky(kernel(points, points) + _JITTER * np.eye(count))
        features = np.linalg.solve(root, kernel(points, scaled)).T
        seen, turn = _eigen(features, information)
        squares = (features @ turn) ** 2
        left_out = []
        clusters = _clusters(scaled, rng)
        for cluster in clusters:
            rest = information.copy()
            rest[cluster] = 0.0
            part, own = _eigen(features, rest)
            left_out.append(((features[cluster] @ own) ** 2, part * rest.sum() / information.sum()))
        return cls(
            centre,
            length,
            points,
            np.linalg.solve(root.T, turn),
            seen,
            squares[others],
            tuple(left_out),
            _strange(clusters),
            features,
        )

    def tensors(self, share: Floats, share_of: Callable[[Floats], Floats]) -> dict[str, Floats]:
        """Return what a posterior needs of the process: all but components and leaderboard.

        `share` (K,) are the shares that the votes determine, `share_of` those for another `seen`.
        """
        high = max(float(np.quantile(self.fresh @ share, INSIDE)), 1e-6)
        strange = [squares @ share_of(seen) for squares, seen in self.left_out]
        low = float(np.median(np.concatenate(strange))) if strange else 0.0
        return {
            "centre": self.centre,
            "scale": np.asarray(1.0 / self.length),
            "points": self.points,
            "axes": self.axes,
            "share": share,
            "strange": np.asarray(self.strange),
            "low": np.asarray(min(low, 0.8 * high)),
            "high": np.asarray(high),
        }


def determined(known: Floats, seen: Floats) -> Floats:
    """Return the shares (R, K) of the prior variance that votes of information `known` (R,) determine."""
    product = known[:, None] * seen
    return np.asarray(product / (1.0 + product))


def _strange(clusters: list[Ints]) -> float:
    """Return by how much the variance of one more cluster exceeds that of c clusters, unequal ones counted as fewer.

    After c normal draws the next one follows Student's t with c - 1 degrees of freedom, about their mean and with their
    mean square from it, times (c + 1) / (c - 1), as its squared scale. What is returned serves intervals of a normal:
    it also has the square of how much wider a 90 % interval of t is.
    """
    from scipy.special import ndtri, stdtrit

    sizes = np.array([len(cluster) for cluster in clusters], dtype=np.float64)
    count = float(sizes.sum() ** 2 / (sizes**2).sum()) if len(sizes) else 0.0
    if count <= _FEWEST:
        return 1.0
    count = max(count, _CLEAR)
    wider = float(stdtrit(count - 1.0, _UPPER_END) / ndtri(_UPPER_END))
    return (count + 1.0) / (count - 1.0) * wider**2


def median_distance(inputs: Floats) -> float:
    """Return the median distance between inputs (Q, F), of some of them."""
    some = inputs[: 2 * MOST_POINTS]
    squares = (some**2).sum(1)
    distances = squares[:, None] + squares - 2.0 * some @ some.T
    apart = distances[np.triu_indices(len(some), 1)]
    return float(np.sqrt(max(float(np.median(apart)) if len(apart) else 1.0, 1e-12)))


def kernel(x: Floats, z: Floats) -> Floats:
    """Return exp(-|x - z|^2 / 2) (n, m)."""
    distances = (x**2).sum(1)[:, None] + (z**2).sum(1) - 2.0 * x @ z.T
    return np.asarray(np.exp(-0.5 * np.maximum(distances, 0.0)))


def _eigen(features: Floats, weights: Floats) -> tuple[Floats, Floats]:
    values, vectors = np.linalg.eigh((features.T * weights) @ features / max(float(weights.sum()), 1e-12))
    return values.clip(0.0), vectors


def _clusters(scaled: Floats, rng: np.random.Generator) -> list[Ints]:
    """Return the prompts of each cluster of some size."""
    from scipy.cluster.vq import kmeans2

    # A model that learned nothing gives all prompts one state, and k-means divides by its distance from itself.
    if len(scaled) < 4 * CLUSTERS or len(np.unique(scaled.sum(1).round(9))) < CLUSTERS:
        return []
    _, label = kmeans2(scaled, CLUSTERS, minit="++", seed=rng)
    clusters = [np.flatnonzero(label == number) for number in range(CLUSTERS)]
    return [cluster for cluster in clusters if len(scaled) // (4 * CLUSTERS) <= len(cluster) < len(scaled) // 2]
