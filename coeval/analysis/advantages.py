"""Advantages of students at items that they wrote themselves, effects beside their quality.

A student's answers to its own items are a group of their own, whose quality is the student's and an advantage. Each
student has its own; where these cannot be told from students' quality, as where two students each wrote half of the
items and nobody else answered, all have one in common. Where that cannot be told either there is none.

Advantages are random effects. A student has none, or one that is drawn from half of a normal distribution as wide as
three standard errors of its estimate; how many students have one is not known either, and told by all of them. What is
taken out of a student's quality is the mean of its advantage given the estimates, and the doubt about it is added to
that about quality: where nothing hints at an advantage, items of a student's own count nearly as those of others.

Shapes: R answers, J judges, S students, C clusters, A advantages; W students wrote items; G groups of answers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from coeval.analysis.panel import Mask, ScoreTable
from coeval.analysis.statistics import Codes, Floats

_LEAST_OTHERS = 5  # prompts of others that tell a student's quality
_LEAST_OWN = 2  # prompts of its own that tell its advantage


@dataclass(frozen=True)
class Advantages:
    """How answers to items of students' own enter the equations of students."""

    writers: Codes  # (W,): students who have an advantage
    place: Codes  # (W,): which of the advantages, from 0 to A - 1
    group: Codes  # (R,): the student; for its answers to its own items S and its place among writers
    design: Floats  # (G, S + A): qualities of groups, of students and advantages
    is_own: Mask  # (S,): whether a student has an advantage that it shares with nobody
    shares: Floats  # (C, S): each cluster's share of a student's answers to items of others
    own_shares: Floats  # (C, A): and of the answers at home that an advantage rests on
    other_shares: Floats  # (C, A): and of these writers' answers to items of others


def designs(table: ScoreTable, counts: Mask) -> Iterator[Advantages | None]:
    """Yield what advantages to fit to the scores that count (R, J), as many as may be first; None last."""
    rows = counts.any(axis=1)
    cluster, clusters = table.cluster[table.item], int(table.cluster.max(initial=-1)) + 1

    def answers(chosen: Mask) -> Floats:
        """Count answers by cluster and student, (C, S)."""
        cells = cluster[chosen] * table.students + table.student[chosen]
        counted = np.bincount(cells, minlength=clusters * table.students)
        return counted.reshape(clusters, table.students).astype(np.float64)

    if (rows & table.wrote).any():
        own, others = answers(rows & table.wrote), answers(rows & ~table.wrote)
        enough = ((own > 0).sum(axis=0) >= _LEAST_OWN) & ((others > 0).sum(axis=0) >= _LEAST_OTHERS)
        writers = np.flatnonzero(enough)
        for common in (False, True)[: min(len(writers), 2)]:
            yield _advantages(table, writers, own, others, common=common)
    yield None


def _advantages(table: ScoreTable, writers: Codes, own: Floats, others: Floats, *, common: bool) -> Advantages:
    """Return the advantages of writers at their own items, `common`: all being one."""
    place = np.full(table.students, -1)
    place[writers] = np.arange(len(writers))
    at_home = table.wrote & (place[table.student] >= 0)
    of_students = np.eye(table.students)
    of_writers = np.ones((len(writers), 1)) if common else np.eye(len(writers))
    none = np.zeros((table.students, of_writers.shape[1]))
    is_own = np.zeros(table.students, dtype=bool)
    is_own[writers] = not common
    of_own, of_others = own[:, writers] @ of_writers, others[:, writers] @ of_writers
    return Advantages(
        writers=writers,
        place=of_writers.argmax(axis=1),
        group=np.where(at_home, table.students + place[table.student], table.student),
        design=np.block([[of_students, none], [of_students[writers], of_writers]]),
        is_own=is_own,
        shares=others / np.maximum(others.sum(axis=0), 1.0),
        own_shares=of_own / of_own.sum(axis=0),
        other_shares=of_others / of_others.sum(axis=0),
    )


# What is believed of advantages before scores are seen. Their width is in standard errors of their estimates; students
# seldom lose at their own items.
_WIDTH = 3.0
_DISADVANTAGES = 0.1  # of effects that are there
_SHARES = (np.arange(20) + 0.5) / 20  # of students with an effect, all as likely


def believed(errors: Floats) -> tuple[Floats, Floats]:
    """Return mean and standard deviation of advantages given their estimates (A,), all in standard errors."""
    from scipy.special import log_ndtr

    shrunk = _WIDTH**2 / (1.0 + _WIDTH**2)
    odds, means, squares = [], [], []  # against no effect, and moments where there is one, by its sign: (2, A)
    for sign, chance in ((1.0, 1.0 - _DISADVANTAGES), (-1.0, _DISADVANTAGES)):
        z = sign * np.sqrt(shrunk) * errors
        odds.append(np.log(2.0 * chance * np.sqrt(1.0 - shrunk)) + shrunk * errors**2 / 2.0 + log_ndtr(z))
        cut = np.exp(-(z**2) / 2.0 - log_ndtr(z)) / np.sqrt(2.0 * np.pi)
        means.append(sign * np.sqrt(shrunk) * (z + cut))
        squares.append(shrunk * (1.0 + z**2 + z * cut))
    either = np.logaddexp(*odds)
    by_share = np.log(_SHARES / (1.0 - _SHARES))[:, None] + either
    likelihood = (np.log(1.0 - _SHARES)[:, None] + np.logaddexp(0.0, by_share)).sum(axis=1)
    weights = np.exp(likelihood - likelihood.max())
    is_there = weights @ np.exp(by_share - np.logaddexp(0.0, by_share)) / weights.sum()
    chances = np.exp(np.array(odds) - either) * is_there
    mean, square = ((chances * np.array(values)).sum(axis=0) for values in (means, squares))
    return mean, np.sqrt(np.maximum(square - mean**2, 0.0))
