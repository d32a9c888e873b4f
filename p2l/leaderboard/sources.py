"""The leaderboards that `p2l leaderboard` prints: of all votes or prompts, and of each group of them."""

from __future__ import annotations

import argparse
import dataclasses
import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from p2l.command import progress
from p2l.errors import InputError, VoteError
from p2l.leaderboard.aggregation import aggregate
from p2l.leaderboard.board import Leaderboard
from p2l.leaderboard.clusters import ClusteredVotes
from p2l.leaderboard.counting import Tally
from p2l.leaderboard.fitting import fit_table
from p2l.leaderboard.grouping import base_column, group_rows
from p2l.leaderboard.objective import Prior
from p2l.leaderboard.text import Named
from p2l.votes.codes import WINNERS, name_lookup
from p2l.votes.reader import FaultyRowError, VoteBatch, model_codes, read_votes
from p2l.votes.schema import numbers
from p2l.votes.sources import open_source
from p2l.votes.stream import Source

__all__ = ["Groups", "batches_of_votes", "boards_of_model", "boards_of_votes", "vote_codes"]

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

_ALL = ("", "all")
_PROMPTS_AT_ONCE = 512


class Groups:
    """Codes for (column, value), in order of appearance; 0 is everything."""

    def __init__(self, source: Source, paths: Sequence[str]) -> None:
        self.source = source
        self.bases = {path: base_column(path, source.columns, source.name) for path in paths}
        self.codes: dict[tuple[str, str], int] = {_ALL: 0}

    def members(self, batch: VoteBatch) -> Iterator[tuple[Ints, Ints]]:
        """(group codes, rows) of a batch, for everything and for each column."""
        yield np.zeros(len(batch), dtype=np.int64), np.arange(len(batch))
        for path, base in self.bases.items():
            found = group_rows(batch.batch.column(base), path, base, self.source.name)
            codes = [self.codes.setdefault((path, name), len(self.codes)) for name in found.names]
            yield np.array(codes, dtype=np.int64)[found.group], found.row

    def ordered(self, sizes: dict[int, int]) -> list[tuple[str, str, int]]:
        """(column, value, code) in the order of the columns, the largest groups first."""
        places = {path: place for place, path in enumerate(("", *self.bases))}
        items = [(by, name, code) for (by, name), code in self.codes.items()]
        return sorted(items, key=lambda item: (places[item[0]], -sizes.get(item[2], 0), item[1]))


def boards_of_votes(args: argparse.Namespace) -> list[Named]:
    """The leaderboard of all votes, then those of the groups.

    Raises:
        InputError: votes that cannot be read, a column that is missing, fewer than two models.
    """
    source = open_source(args.votes)
    groups, tally, names = Groups(source, args.by), Tally(), dict[str, int]()
    clustered = None if args.cluster is None else ClusteredVotes(args.cluster)
    columns = dict.fromkeys(["model_a", "model_b", "winner", *groups.bases.values(), *["weight"] * args.weighted])
    columns |= dict.fromkeys([args.cluster] if clustered else [])
    dropped = 0
    with progress(total=source.rows, description="votes", unit=" votes", quiet=args.quiet) as bar:
        for batch in batches_of_votes(source, list(columns), drop_bad=args.drop_bad):
            _count(batch, groups, tally, clustered, names, weighted=args.weighted)
            dropped += batch.dropped
            bar.update(len(batch))
    boards = _fit_groups(groups, tally, clustered, list(names), args)
    return [_noted(boards[0], f"{dropped:,} rows that are no votes were left out."), *boards[1:]] if dropped else boards


def batches_of_votes(source: Source, columns: Sequence[str], *, drop_bad: bool) -> Iterator[VoteBatch]:
    """The votes of a source, batch by batch.

    Raises:
        VoteError: a row is no vote; the message names `--drop-bad`.
    """
    try:
        yield from read_votes(source, columns=columns, drop_bad=drop_bad)
    except FaultyRowError as error:
        raise VoteError(f"{error}; add --drop-bad to leave out all rows that are no votes") from error


def _count(
    batch: VoteBatch,
    groups: Groups,
    tally: Tally,
    clustered: ClusteredVotes | None,
    names: dict[str, int],
    *,
    weighted: bool,
) -> None:
    a, b, winner, weights = vote_codes(batch, names, weighted=weighted)
    cluster = clustered.number(batch.batch.column(clustered.column)) if clustered else None
    for group, rows in groups.members(batch):
        votes = (group, a[rows], b[rows], winner[rows], weights[rows])
        tally.add(*votes)
        if clustered and cluster is not None:
            clustered.add(*votes, cluster[rows])


def vote_codes(batch: VoteBatch, names: dict[str, int], *, weighted: bool) -> tuple[Ints, Ints, Ints, Floats]:
    """Codes of both models and of the winner, and the weights (N,) of a batch; `names` grows as models come."""
    a, b = (model_codes(batch.batch.column(name), names) for name in ("model_a", "model_b"))
    won = batch.batch.column("winner").dictionary_encode()
    winner = name_lookup(won.dictionary.to_pylist(), WINNERS)[won.indices.to_numpy(zero_copy_only=False)]
    weights = np.asarray(numbers(batch.batch.column("weight")), dtype=np.float64) if weighted else np.ones(len(batch))
    return a, b, winner, weights


def _fit_groups(
    groups: Groups, tally: Tally, clustered: ClusteredVotes | None, names: Sequence[str], args: argparse.Namespace
) -> list[Named]:
    sizes, boards = tally.groups(), list[Named]()
    ordered = groups.ordered(sizes)
    for by, name, code in progress(ordered, description="leaderboards", quiet=args.quiet):
        table, models = tally.table(code, names)
        prior = _group_prior(boards[0].board, models, args.shrink) if boards else None
        units = clustered.units(code, table, name_lookup(names, models)) if clustered else None
        fixed: dict[str, Any] = {"models": models, "likelihood": args.likelihood or "bt", "prior": prior}
        try:
            board = fit_table(table, units=units, **fixed, **_options(args))
        except InputError as error:
            if not boards:
                raise VoteError(f"{args.votes}: {error}") from error
            boards[0] = _noted(boards[0], f"{by} = {name} left out: {error}.")
            continue
        boards.append(Named(by, name, sizes[code], _explained(board, prior)))
    return boards


def _group_prior(overall: Leaderboard, models: Sequence[str], spread: float) -> Prior | None:
    if math.isinf(spread):
        return None
    position = {name: index for index, name in enumerate(overall.models)}
    return Prior(sd=spread, coefs=overall.coefs[[position[name] for name in models]], eta=overall.eta)


def _explained(board: Leaderboard, prior: Prior | None) -> Leaderboard:
    if prior is None:
        return board
    note = f"Shrunk towards the leaderboard of all votes (normal prior, standard deviation {prior.sd:g}), on its scale."
    return dataclasses.replace(board, notes=(note, *board.notes))


def _noted(named: Named, note: str) -> Named:
    return named._replace(board=dataclasses.replace(named.board, notes=(*named.board.notes, note)))


def _options(args: argparse.Namespace) -> dict[str, Any]:
    intervals = None if args.intervals == "none" else args.intervals
    return {"intervals": intervals, "level": args.level, "seed": args.seed}


class _Said(NamedTuple):
    """What a model says of N prompts: coefs (N, M), eta and gamma (N,) or None."""

    coefs: Floats
    eta: Floats | None
    gamma: Floats | None

    def of(self, rows: Ints) -> _Said:
        """Some of the prompts."""
        parts = (None if values is None else values[rows] for values in (self.eta, self.gamma))
        return _Said(self.coefs[rows], *parts)


def boards_of_model(args: argparse.Namespace) -> list[Named]:
    """The leaderboard of one prompt, or those of a file of prompts and of its groups.

    Raises:
        InputError: a model or prompts that cannot be read.
    """
    from p2l.inference import P2L

    model = P2L.from_pretrained(args.model)
    if args.prompt is not None:
        return [Named("", "prompt", 1, _single(model, args.prompt))]
    source = open_source(args.prompts)
    groups = Groups(source, args.by)
    said, members = _ask(model, source, groups, quiet=args.quiet)
    sizes = {code: len(rows) for code, rows in members.items()}
    boards = []
    for by, name, code in groups.ordered(sizes):
        part = said.of(members[code])
        board = aggregate(*part, model.likelihood.name, models=model.model_list, **_options(args))
        boards.append(Named(by, name, sizes[code], board))
    return boards


def _single(model: Any, prompt: str) -> Leaderboard:
    said = model.predict([prompt])
    return aggregate(said.coefs, said.eta, said.gamma, model.likelihood.name, models=model.model_list, intervals=None)


def _ask(model: Any, source: Source, groups: Groups, *, quiet: bool) -> tuple[_Said, dict[int, Ints]]:
    """Predictions for all prompts of a source, and the rows of each group."""
    said, rows, number = [], dict[int, list[Ints]](), 0
    columns = list(dict.fromkeys(["prompt", *groups.bases.values()]))
    with progress(total=source.rows, description="prompts", unit=" prompts", quiet=quiet) as bar:
        for batch in read_votes(source, columns=columns, batch_size=_PROMPTS_AT_ONCE):
            said.append(model.predict(batch.batch.column("prompt").to_pylist()))
            for group, row in groups.members(batch):
                for code in np.unique(group):
                    rows.setdefault(int(code), []).append(row[group == code] + number)
            number += len(batch)
            bar.update(len(batch))
    joined = (_join([getattr(part, name) for part in said]) for name in ("coefs", "eta", "gamma"))
    return _Said(*joined), {code: np.concatenate(parts) for code, parts in rows.items()}  # type: ignore[arg-type]


def _join(parts: Sequence[Any]) -> Floats | None:
    return None if parts[0] is None else np.concatenate(parts)
