"""Counts of votes that are read row by row: what `p2l leaderboard --counts-only` writes, to be added up elsewhere.

A lake has counts of its own (`p2l.leaderboard.counts`), which are written as they are.

Shapes: N votes of a batch, E (vote, group) pairs; a vote belongs to the group of all votes, and to one of each column,
or to several where the column holds lists.
"""

from __future__ import annotations

import argparse

import numpy as np

from p2l.leaderboard.counts import Counts, Group, write_counts
from p2l.leaderboard.history import Over, parse_over
from p2l.leaderboard.history_report import periods_of
from p2l.leaderboard.sources import ALL, Groups, batches_of_votes, counts_of, vote_codes
from p2l.votes.reading import VoteBatch
from p2l.votes.rows import Source
from p2l.votes.sources import open_source


def write_counts_of(args: argparse.Namespace) -> None:
    """Count the votes and write the counts to the output, without fitting anything."""
    counts = counts_of(args)
    if counts is None:
        source = open_source(args.votes)
        counts = _by_group(source, args) if args.over is None else _by_period(source, parse_over(args.over), args)
    write_counts(counts, args.output)


def _by_group(source: Source, args: argparse.Namespace) -> Counts:
    """Count all votes, and those of each value of columns."""
    counts, groups = Counts(), Groups(source, args.by)
    for batch in batches_of_votes(source, list(groups.bases.values()), args):
        a, b, winner, weights = vote_codes(batch, counts.names, weighted=args.weighted)
        for codes, rows in groups.members(batch):
            names = {code: key for key, code in groups.codes.items()}
            of = [counts.code(Group() if names[code] == ALL else Group(*names[code])) for code in range(len(names))]
            group = np.array(of, dtype=np.int64)[codes]
            counts.counter.add(group, a[rows], b[rows], winner[rows], weights[rows])
    return counts


def _by_period(source: Source, over: Over, args: argparse.Namespace) -> Counts:
    """Count the votes of each period."""
    counts = Counts(over.text)
    for batch in batches_of_votes(source, [args.time_column], args):
        _add_periods(counts, batch, over, args)
    return counts


def _add_periods(counts: Counts, batch: VoteBatch, over: Over, args: argparse.Namespace) -> None:
    a, b, winner, weights = vote_codes(batch, counts.names, weighted=args.weighted)
    timed, periods = periods_of(batch, over, args)
    unique, place = np.unique(periods, return_inverse=True)
    of = [counts.code(Group("", "", int(period))) for period in unique]
    group = np.array(of, dtype=np.int64)[place.reshape(-1)]
    counts.counter.add(group, a[timed], b[timed], winner[timed], weights[timed])
