"""Kinds of prompts that nobody named: clusters of what a model says of each, or of embeddings.

What is clustered is the few directions that hold most of the variance (principal components). Ward's method on a sample
gives every number of clusters at once, and without random starts; k-means on up to 20,000 prompts then mends the
borders. SciPy has both; scikit-learn would add nothing that is needed here.

How many: prompts that chose nothing are put into clusters, and the share of the variance of their coefficients that
lies between the clusters is taken, adjusted for their number (adjusted R^2). The fewest clusters that reach 95 % of
the best such share are used: more would tell little more, and each be known less well.

Shapes: N prompts, M models, F features, K clusters.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
from scipy.cluster import hierarchy, vq

__all__ = [
    "MOST_CLUSTERS",
    "SAYS_LITTLE",
    "candidates",
    "centre_of",
    "explained",
    "fewest",
    "nearest",
    "principal",
    "tree",
]

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Cut: TypeAlias = Callable[[int], Floats]

MOST_CLUSTERS = 20
_COMPONENTS, _VARIANCE = 16, 0.95
_SAMPLE = 2000  # Ward's method takes memory for each pair
_REFINED = 20_000
_ENOUGH = 0.95
SAYS_LITTLE = 0.02
"""Share of variance below which clusters are taken for chance."""


def principal(values: Floats) -> tuple[Floats, Floats]:
    """Mean (F,) and directions (F, c) that hold 95 % of the variance of (N, F), at most 16."""
    mean = values.mean(axis=0)
    size, vectors = np.linalg.eigh(np.cov(values, rowvar=False).reshape(len(mean), len(mean)))
    size, vectors = np.maximum(size[::-1], 0.0), vectors[:, ::-1]
    number = int(np.searchsorted(np.cumsum(size), _VARIANCE * size.sum())) + 1
    return mean, vectors[:, : min(number, _COMPONENTS)]


def tree(values: Floats, rng: np.random.Generator) -> Cut:
    """A function from a number of clusters to their centres (K, c), for points (N, c)."""
    chosen = rng.permutation(len(values))
    sample, refined = values[chosen[:_SAMPLE]], values[chosen[:_REFINED]]
    merges = hierarchy.linkage(sample, "ward")

    def cut(clusters: int) -> Floats:
        labels = hierarchy.fcluster(merges, clusters, "maxclust") - 1
        start = np.stack([sample[labels == one].mean(axis=0) for one in np.unique(labels)])
        try:
            centres, _ = vq.kmeans2(refined, start, iter=20, minit="matrix", missing="raise")
        except vq.ClusterError:  # a cluster lost all its points: Ward's centres are good ones too
            return start
        return np.asarray(centres, dtype=np.float64)

    return cut


def nearest(values: Floats, centres: Floats) -> Ints:
    """The cluster (N,) of each point (N, c): that of the nearest centre (K, c)."""
    return np.asarray(vq.vq(values, centres)[0], dtype=np.int64)


def centre_of(values: Floats, cluster: Ints, clusters: int) -> Floats:
    """Means (K, c) of the points of each cluster; zero where there are none."""
    number = np.bincount(cluster, minlength=clusters)
    sums = np.stack([np.bincount(cluster, column, minlength=clusters) for column in values.T], axis=1)
    return np.asarray(sums / np.maximum(number, 1)[:, None])


def explained(values: Floats, cluster: Ints) -> float:
    """Share of the variance of (N, c) that lies between clusters (N,), adjusted for their number; chance gives 0."""
    clusters = len(np.unique(cluster))
    if len(values) <= clusters:
        return 0.0
    within = values - centre_of(values, cluster, int(cluster.max()) + 1)[cluster]
    whole = ((values - values.mean(axis=0)) ** 2).sum() / (len(values) - 1)
    return float(1.0 - (within**2).sum() / (len(values) - clusters) / whole) if whole > 0 else 0.0


def candidates(prompts: int, least: int) -> list[int]:
    """Numbers of clusters to try for so many prompts, if each is to have at least `least`."""
    most = max(2, min(MOST_CLUSTERS, prompts // max(least, 1)))
    return [number for number in (2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 18, 20) if number <= most]


def fewest(numbers: Sequence[int], shares: Sequence[float]) -> int:
    """The least number whose share reaches 95 % of the best; of noise, the least of all."""
    best = max(shares)
    if best < SAYS_LITTLE:
        return numbers[0]
    return next(number for number, share in zip(numbers, shares, strict=True) if share >= _ENOUGH * best)
