"""Students at items that they wrote themselves: an advantage there is a fixed effect beside their quality.

A student's answers to its own items are a group of their own, whose quality is the student's and an advantage. Each
student has its own advantage; where these cannot be told from students' quality, as where two students each wrote half
of the items and nobody else answered, all have one in common. Where that cannot be told either there is none.

Shapes: R answers, S students, W of them writers, G groups of answers, A advantages, C clusters of items.
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


def kept_share(advantage: Floats, variance: Floats) -> Floats:
    """Return what share of each advantage (A,) is taken out of scores, by its variance (A,): by James and Stein.

    Students without one would lose their own items for nothing. The variance of scores is that of taking out all.
    """
    return np.maximum(0.0, 1.0 - variance / np.maximum(advantage**2, 1e-300))


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
