"""Groups of prompts, by what backbones say of them: clusters of the training prompts, or the categories of their table.

Clusters are k-means in several partitions. Categories are recognised by multinomial regression, for prompts whose
category nobody tells. A prompt's share of a group is the softmax of something linear in its states, so that one layer
of a reader computes it. Several bases stand side by side, in units in which training prompts differ by as much in each.

Shapes: Q prompts, T training prompts, D dimensions of all bases, R partitions, C groups in each.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from route.evaluation.features import CategoryReader, Encoder, Form, Words, untrained_reader
from route.evaluation.table import Floats, Rows

if TYPE_CHECKING:
    from p2l.model.reader import ReaderBackbone
    from p2l.model.reader_inputs import ReaderTokenizer

PARTITIONS = 8
"""Of clusters."""
_SHARPNESS = 2.0
"""Of clusters, over one by the mean squared distance from the centre."""
_ROUNDS = 15  # of k-means
_MOST_CLUSTERED = 3000  # prompts that centres are fitted to
_PRECISION = 0.3  # of the prior of the regression's weights
_MOST_STEPS = 150
_NO_SPREAD = 1e-9


@dataclass(frozen=True)
class Groups:
    """Shares of groups in a prompt with states x: softmax(weights x + biases) in each partition."""

    bases: Mapping[str, Encoder | Words | Form]
    """By the name of their states."""
    scales: tuple[float, ...]
    """Of the states of each basis in x."""
    weights: Floats
    """(R, C, D)"""
    biases: Floats
    """(R, C)"""

    def states(self, prompts: Sequence[str]) -> Floats:
        """Return the shares of `shares` for any prompts."""
        return self.shares({name: base.states(prompts) for name, base in self.bases.items()})

    def shares(self, states: Mapping[str, Floats]) -> Floats:
        """Return the shares (Q, R C), divided by the root of R: a prompt in one group of each has length one."""
        from scipy.special import softmax

        points = _points(states, dict(zip(self.bases, self.scales, strict=True)))
        logits = np.einsum("qd,rcd->qrc", points, self.weights, optimize=True) + self.biases
        return np.asarray((softmax(logits, axis=2) / np.sqrt(len(self.weights))).reshape(len(points), -1))


Reader: TypeAlias = Encoder | Words | Form | Groups | CategoryReader
"""The backbones of a P2L that is trained here."""


def clusters_of(
    bases: Mapping[str, Encoder | Words | Form],
    states: Mapping[str, Floats],
    prompts: Sequence[str],
    count: int,
    *,
    seed: int = 0,
) -> Groups:
    """Make `count` clusters of training prompts by their `states` (T, D), at most, in each of several partitions.

    A share falls with the squared distance from the centre: it is the softmax of -sharpness |x - centre|^2.
    """
    rng = np.random.default_rng(seed)
    first = np.unique(np.array(prompts, dtype=object), return_index=True)[1]
    some = first[rng.permutation(len(first))[:_MOST_CLUSTERED]]
    scales = _scales(bases, states, first)
    points = _points({name: states[name][some] for name in bases}, scales)
    parts = [k_means(points, count, rng) for _ in range(PARTITIONS)]
    within = float(np.mean([((points - centres[own]) ** 2).sum(axis=1).mean() for centres, own in parts]))
    sharpness, centres = _SHARPNESS / max(within, _NO_SPREAD), np.stack([centres for centres, _ in parts])
    return Groups(bases, tuple(scales.values()), 2.0 * sharpness * centres, -sharpness * (centres**2).sum(axis=2))


def k_means(points: Floats, count: int, rng: np.random.Generator) -> tuple[Floats, Rows]:
    """Return the centres (C, D) of at most `count` clusters of `points` (T, D), and the cluster of each point."""
    from scipy.cluster import vq

    count = min(count, len(np.unique(points, axis=0)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # a cluster that loses all its points stays where it was
        centres, own = vq.kmeans2(points, count, iter=_ROUNDS, minit="++", seed=rng, missing="warn")
    return np.asarray(centres, dtype=np.float64), np.asarray(own, dtype=np.intp)


def categories_of(
    bases: Mapping[str, Encoder | Words | Form], states: Mapping[str, Floats], categories: Sequence[str], parts: Rows
) -> tuple[Groups, Floats]:
    """Learn to recognise the categories of training prompts by their `states` (T, D).

    Also returns the shares (T, C) of training prompts, each by a regression on the other `parts` (T,): what is said of
    prompts that were learned is surer than what is said of others.
    """
    scales = _scales(bases, states, np.arange(len(categories)))
    points = _points({name: states[name] for name in bases}, scales)
    names, own = np.unique(np.array(categories, dtype=object), return_inverse=True)

    def groups(rows: Rows) -> Groups:
        weights, biases = _regression(points[rows], own[rows], len(names))
        return Groups(bases, tuple(scales.values()), weights[None], biases[None])

    shares = np.empty((len(points), len(names)))
    for part in np.unique(parts):
        here = np.flatnonzero(parts == part)
        others = groups(np.flatnonzero(parts != part))
        shares[here] = others.shares({name: states[name][here] for name in bases})
    return groups(np.arange(len(points))), shares


def _regression(points: Floats, own: Rows, count: int) -> tuple[Floats, Floats]:
    """Return the most probable weights (C, D) and biases (C,) of a multinomial regression on `own` (T,)."""
    from scipy.optimize import minimize
    from scipy.special import log_softmax

    centre = points.mean(axis=0) if len(points) else np.zeros(points.shape[1])
    rows, truth, width = points - centre, np.eye(count)[own], points.shape[1]

    def loss(x: Floats) -> tuple[float, Floats]:
        weights, biases = x[: count * width].reshape(count, width), x[count * width :]
        logs = log_softmax(rows @ weights.T + biases, axis=1)
        slope = np.exp(logs) - truth
        value = 0.5 * _PRECISION * (weights**2).sum() - (logs * truth).sum()
        gradient = np.concatenate([(slope.T @ rows + _PRECISION * weights).ravel(), slope.sum(axis=0)])
        return float(value) / max(len(rows), 1), gradient / max(len(rows), 1)

    start = np.zeros(count * (width + 1))
    found = np.asarray(minimize(loss, start, jac=True, method="L-BFGS-B", options={"maxiter": _MOST_STEPS}).x)
    weights = found[: count * width].reshape(count, width)
    return weights, found[count * width :] - weights @ centre


def _points(states: Mapping[str, Floats], scales: Mapping[str, float]) -> Floats:
    """Return the bases side by side (Q, D)."""
    return np.concatenate([states[name] * scale for name, scale in scales.items()], axis=1)


def _scales(bases: Mapping[str, Encoder | Words | Form], states: Mapping[str, Floats], rows: Rows) -> dict[str, float]:
    """Return one over the root of the mean squared distance from the mean, of each basis."""
    spreads = {name: states[name][rows] - states[name][rows].mean(axis=0) for name in bases}
    lengths = {name: float(np.sqrt((spread**2).sum(axis=1).mean())) for name, spread in spreads.items()}
    return {name: 1.0 / max(length, _NO_SPREAD) for name, length in lengths.items()}


def reader_with_groups(
    encoder: Encoder | None, words: Words | None, form: Form | None, groups: Groups | None
) -> tuple[ReaderBackbone, ReaderTokenizer]:
    """Return a reader whose hidden states are states, words, form and shares of groups.

    InputError if the encoder's folder holds none.
    """
    import torch

    if groups is None:
        return untrained_reader(encoder, words, form)
    partitions, count = groups.biases.shape
    backbone, reader = untrained_reader(encoder, words, form, (partitions, count))
    width = 0 if encoder is None else encoder.width
    ends = width + (0 if words is None else words.directions.shape[1])
    inputs = {"encoder": (0, width), "words": (width, ends), "form": (ends, None)}
    splits = np.cumsum([base.width for base in groups.bases.values()])[:-1]
    parts_of_layer = np.split(groups.weights.reshape(partitions * count, -1), splits, axis=1)
    with torch.no_grad():
        for name, factor, part in zip(groups.bases, groups.scales, parts_of_layer, strict=True):
            backbone.layer.weight[:, slice(*inputs[name])] = torch.from_numpy(part * factor)
        backbone.layer.bias.copy_(torch.from_numpy(groups.biases.ravel()))
    return backbone, reader
