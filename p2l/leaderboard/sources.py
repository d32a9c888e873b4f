"""The leaderboards that `p2l leaderboard` prints: of all votes, of each group of them, and their history."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from p2l.common.cli import counted, listed, nearest, not_votes, progress
from p2l.common.errors import InputError, VoteError
from p2l.leaderboard.board import Leaderboard, Named
from p2l.leaderboard.controls import ControlledVotes, Controls, CountedVotes, without_value
from p2l.leaderboard.counts import NO_PERIOD, Counts, Group, Starts, read_counts, write_counts
from p2l.leaderboard.fitting import fit_table, prior_of, suited
from p2l.leaderboard.groups import ALL, ClusteredVotes, Groups
from p2l.leaderboard.history import History, Over, history_of_counts, parse_over, periods_of
from p2l.leaderboard.lake_counts import Spec, lake_counts
from p2l.leaderboard.pair_tables import VoteCounter, check_number_of_models
from p2l.votes.door import names_read
from p2l.votes.kinds.self_names import REVEALED
from p2l.votes.lake import NO_DAY, Lake, is_lake
from p2l.votes.reading import (
    FaultyRowError,
    VoteBatch,
    model_codes,
    open_vote_source,
    read_votes,
    without_revealed,
)
from p2l.votes.rows import Source, is_text
from p2l.votes.schema import WINNERS, name_lookup, numbers

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
_VOTER = "voter"


def boards_of_votes(args: argparse.Namespace) -> list[Named]:
    """Fit the leaderboard of all votes, then those of the groups, of votes or of their counts."""
    counts = _counts_of(args)
    if counts is not None:
        codes = {(group.by, group.value): code for group, code in counts.groups.items()}
        groups = Groups.of(codes)
        starts = _starts_of(args)
        boards = _fit_groups(groups, counts.counter, None, None, list(counts.names), args, starts)
        starts.keep()
        return boards
    source = open_vote_source(args.votes)
    groups, counter, names = Groups(source, args.by), VoteCounter(), dict[str, int]()
    clustered = None if args.cluster is None else ClusteredVotes(args.cluster)
    controlled = _controlled_votes(source, args)
    columns = [*groups.bases.values(), *([] if args.cluster is None else [args.cluster])]
    columns += [] if controlled is None else controlled.controls.columns
    dropped = revealed = 0
    for batch in _batches_of_votes(source, columns, args):
        dropped += batch.dropped
        revealed += batch.revealed
        a, b, winner, weights = _vote_codes(batch, names, args)
        cluster = clustered.number(batch.batch.column(args.cluster)) if clustered else None
        members = list(groups.members(batch))
        if controlled:
            controlled.add(batch.batch, [a, b, winner, weights, *([] if cluster is None else [cluster])], members)
        for group, rows in members:
            votes = (a[rows], b[rows], winner[rows], weights[rows])
            counter.add(group, *votes)
            if clustered and cluster is not None and not controlled:
                clustered.add(group, *votes, cluster[rows])
    boards = _fit_groups(groups, counter, clustered, controlled, list(names), args)
    notes = [*_notes_on_rows(source, dropped, revealed), *_notes_on_values(controlled)]
    return [boards[0]._replace(board=_noted(boards[0].board, *notes)), *boards[1:]]


def history_of_votes(args: argparse.Namespace) -> History:
    """Return the history of a file of votes, as the flags of the command say; one pass counts the votes by period."""
    over = parse_over(args.over)
    counts = _counts_of(args)
    if counts is not None:
        name = args.votes or args.from_counts[0]
        by_period = {group.period: code for group, code in counts.groups.items() if group.period != NO_PERIOD}
        if not by_period:
            raise VoteError(f"{name}: no vote has a time")
        starts = _starts_of(args)
        history = _fit_history(counts.counter, by_period, list(counts.names), over, name, args, starts=starts)
        starts.keep()
        return history
    source = open_vote_source(args.votes)
    if args.time_column not in source.columns:
        raise VoteError(
            f"{source.name}: no column {args.time_column!r}{nearest(args.time_column, source.columns)} to tell periods "
            f"by; name it with --time-column; columns: {listed(source.columns)}"
        )
    counter, names, codes = VoteCounter(), dict[str, int](), dict[int, int]()
    controlled = _controlled_votes(source, args)
    columns = [args.time_column, *([] if controlled is None else controlled.controls.columns)]
    dropped = revealed = timeless = 0
    for batch in _batches_of_votes(source, columns, args):
        timed, periods = periods_of(batch, over, args)
        dropped += batch.dropped
        revealed += batch.revealed
        timeless += int((~timed).sum())
        votes: list[Any] = [column[timed] for column in _vote_codes(batch, names, args)]
        indices, place = np.unique(periods, return_inverse=True)
        numbers_of = [codes.setdefault(int(index), len(codes)) for index in indices]
        group = np.array(numbers_of, dtype=np.int64)[place.reshape(-1)]
        counter.add(group, *votes)
        if controlled is not None:
            controlled.add(batch.batch.filter(pa.array(timed)), votes, [(group, np.arange(len(group)))])
    if not codes:
        raise VoteError(f"{source.name}: no vote has a time in column {args.time_column!r}")
    history = _fit_history(counter, codes, list(names), over, source.name, args, controlled=controlled)
    notes = _notes_on_rows(source, dropped, revealed, timeless)
    return dataclasses.replace(history, notes=(*history.notes, *notes, *_notes_on_values(controlled)))


def _fit_history(
    counter: VoteCounter,
    codes: dict[int, int],
    names: list[str],
    over: Over,
    source: str,
    args: argparse.Namespace,
    **more: Any,
) -> History:
    try:
        return history_of_counts(
            counter,
            codes,
            names,
            over=over,
            mode=args.periods,
            likelihood=args.likelihood,
            shrink=args.shrink,
            each=partial(progress, description=f"{over.unit}s", quiet=args.quiet),
            **more,
            **fit_options(args),
        )
    except InputError as error:
        raise VoteError(f"{source}: {error}") from error


def write_counts_of(args: argparse.Namespace) -> None:
    """Write the counts of votes without fitting anything: what `--counts-only` writes, to be added up elsewhere."""
    counts = _counts_of(args)
    if counts is None:
        source = open_vote_source(args.votes)
        counts = _count_by_group(source, args) if args.over is None else _count_by_period(source, args)
    write_counts(counts, args.output)


def _count_by_group(source: Source, args: argparse.Namespace) -> Counts:
    """Count all votes, and those of each value of columns."""
    counts, groups = Counts(), Groups(source, args.by)
    for batch in _batches_of_votes(source, list(groups.bases.values()), args):
        a, b, winner, weights = _vote_codes(batch, counts.names, args)
        for codes, rows in groups.members(batch):
            names = {code: key for key, code in groups.codes.items()}
            numbers_of = [counts.code(Group() if names[code] == ALL else Group(*names[code])) for code in sorted(names)]
            group = np.array(numbers_of, dtype=np.int64)[codes]
            counts.counter.add(group, a[rows], b[rows], winner[rows], weights[rows])
    return counts


def _count_by_period(source: Source, args: argparse.Namespace) -> Counts:
    """Count the votes of each period."""
    over = parse_over(args.over)
    counts = Counts(over.text)
    for batch in _batches_of_votes(source, [args.time_column], args):
        a, b, winner, weights = _vote_codes(batch, counts.names, args)
        timed, periods = periods_of(batch, over, args)
        unique, place = np.unique(periods, return_inverse=True)
        numbers_of = [counts.code(Group("", "", int(period))) for period in unique]
        group = np.array(numbers_of, dtype=np.int64)[place.reshape(-1)]
        counts.counter.add(group, a[timed], b[timed], winner[timed], weights[timed])
    return counts


# Steps of the covariates of a lake, where the flags name none: its votes are too many to keep one by one.
_LAKE_STEPS = 16


def _notes_on_rows(source: Source, dropped: int, revealed: int, timeless: int = 0) -> list[str]:
    """Return which rows of a source are not counted, and why, and which names of models were read as others."""
    reasons = [
        (dropped, not_votes(dropped), ""),
        (revealed, counted(revealed, "vote"), ": an answer tells its model or maker (--with-revealed keeps them)"),
        (timeless, f"{counted(timeless, 'vote')} without a time", ""),
    ]
    notes = [f"{rows} {'was' if count == 1 else 'were'} left out{why}." for count, rows, why in reasons if count]
    return [*notes, *([f"{names_read(source)}."] if source.spellings else [])]


def _notes_on_values(controlled: ControlledVotes | CountedVotes | None) -> list[str]:
    """Return how many votes have no value of a covariate."""
    missing = {} if controlled is None else controlled.controls.missing
    return [without_value(name, count) for name, count in missing.items()]


def _controlled_votes(source: Source, args: argparse.Namespace) -> ControlledVotes | CountedVotes | None:
    """Return what holds votes with the covariates that the flags name: counted, where their values are rounded."""
    if not args.control:
        return None
    steps = args.control_steps or (_LAKE_STEPS if is_lake(args.votes) else None)
    controls = Controls(args.control, source.columns, source.name, steps=steps)
    return ControlledVotes(controls) if steps is None or args.cluster is not None else CountedVotes(controls)


def _counts_of(args: argparse.Namespace) -> Counts | None:
    """Return the counts that the flags name, or those of a lake; None where rows have to be read."""
    if args.from_counts is not None:
        counts = read_counts(args.from_counts)
        if (counts.over is None) != (args.over is None) or (args.over and parse_over(args.over).text != counts.over):
            what = f"--over {counts.over}" if counts.over else "no --over"
            raise InputError(f"{args.from_counts[0]}: its counts go with {what}")
        return counts
    if not is_lake(args.votes) or args.control or args.cluster is not None or args.voter_weights or args.cell_weights:
        return None
    lake = Lake(args.votes)
    if REVEALED in lake.columns and not args.with_revealed:
        return None
    if args.over is not None and (parse_over(args.over).unit == "hour" or args.time_column != "tstamp"):
        return None
    plain = [path for path in args.by if path in lake.columns]
    if len(plain) < len(args.by) or not all(is_text(kind) for path in plain for kind in lake.types(path)):
        return None  # of a nested column, or a list: row by row
    over = None if args.over is None else parse_over(args.over).text
    if over is not None and not args.drop_bad and any(part.day == NO_DAY for part in lake.parts):
        raise VoteError(f"{lake.name}: has votes without a time; add --drop-bad to leave them out")
    specs = [Spec("", over, args.weighted), *(Spec(path, None, args.weighted) for path in plain)]
    each = partial(progress, description="files", quiet=args.quiet)
    first, *rest = lake_counts(lake, specs, each=each)
    for counts in rest:
        first.absorb(counts)
    return first


def _starts_of(args: argparse.Namespace) -> Starts:
    """Return what a lake keeps of leaderboards of the kind that the flags ask for."""
    if args.from_counts is not None:
        return Starts()
    return Starts(Lake(args.votes), [sorted(args.by), args.over, args.over and args.periods, args.weighted])


def _batches_of_votes(source: Source, columns: Sequence[str], args: argparse.Namespace) -> Iterator[VoteBatch]:
    """Yield the votes of a source with some more columns, batch by batch, under a progress bar."""
    leaves_out = REVEALED in source.columns and not args.with_revealed
    more = (
        ["weight"] * args.weighted + [_VOTER] * bool(args.voter_weights or args.cell_weights) + [REVEALED] * leaves_out
    )
    needed = dict.fromkeys(["model_a", "model_b", "winner", *columns, *more])
    try:
        with progress(total=source.rows, description="votes", unit=" votes", quiet=args.quiet) as bar:
            for batch in read_votes(source, columns=list(needed), drop_bad=args.drop_bad):
                yield without_revealed(batch) if leaves_out else batch
                bar.update(len(batch))
    except FaultyRowError as error:
        raise VoteError(f"{error}; add --drop-bad to leave out all rows that are not votes") from error


def _vote_codes(batch: VoteBatch, names: dict[str, int], args: argparse.Namespace) -> tuple[Ints, Ints, Ints, Floats]:
    """Return codes of both models and of the winner, and weights (N,); `names` grows as models come."""
    a, b = (model_codes(batch.batch.column(name), names) for name in ("model_a", "model_b"))
    check_number_of_models(len(names), batch.source.name)
    won = batch.batch.column("winner").dictionary_encode()
    winner = name_lookup(won.dictionary.to_pylist(), WINNERS)[won.indices.to_numpy(zero_copy_only=False)]
    weights = np.ones(len(batch))
    if args.weighted:
        weights = np.asarray(numbers(batch.batch.column("weight")), dtype=np.float64)
    if args.voter_weights:
        voters = batch.batch.column(_VOTER).dictionary_encode()
        of_voters = [args.voter_weights.get(str(name), 1.0) for name in voters.dictionary.to_pylist()]
        places = voters.indices.fill_null(len(of_voters)).to_numpy(zero_copy_only=False)
        weights = weights * np.array([*of_voters, 1.0])[places]
    if args.cell_weights:
        weights = weights * _cell_weights(batch, args.cell_weights)
    return a, b, winner, weights


def _cell_weights(batch: VoteBatch, factors: dict[tuple[str, str], float]) -> Floats:
    """Return what votes (N,) count by their voters and models, the less of both models."""
    suspects = {voter for voter, _ in factors}
    names = [batch.batch.column(name).to_pylist() for name in (_VOTER, "model_a", "model_b")]
    weights = [
        min(factors.get((str(voter), a), 1.0), factors.get((str(voter), b), 1.0)) if str(voter) in suspects else 1.0
        for voter, a, b in zip(*names, strict=True)
    ]
    return np.array(weights, dtype=np.float64)


def _fit_groups(
    groups: Groups,
    counter: VoteCounter,
    clustered: ClusteredVotes | None,
    controlled: ControlledVotes | CountedVotes | None,
    names: Sequence[str],
    args: argparse.Namespace,
    starts: Starts | None = None,
) -> list[Named]:
    starts = starts or Starts()
    sizes, boards = counter.groups(), list[Named]()
    ordered = groups.ordered(sizes)
    for by, name, code in progress(ordered, description="leaderboards", quiet=args.quiet):
        table, models = counter.table(code, names)
        prior = prior_of(boards[0].board, models, args.shrink) if boards else None
        recode, units = name_lookup(names, models), None
        if controlled:
            table, units = controlled.table(code, recode, len(models))
        elif clustered:
            units = clustered.units(code, table, recode)
        likelihood = boards[0].board.likelihood if boards else args.likelihood
        try:
            board = fit_table(
                table,
                models=models,
                likelihood=likelihood,
                prior=prior,
                units=units,
                start=starts.of(by, name, models, likelihood or suited(table.votes.sum(axis=0)), prior),
                certified_votes=None if boards or args.intervals == "none" else args.min_votes,
                **fit_options(args),
            )
        except InputError as error:
            if not boards:
                raise VoteError(f"{args.votes or args.from_counts[0]}: {error}") from error
            boards[0] = boards[0]._replace(board=_noted(boards[0].board, f"{by} = {name} left out: {error}."))
            continue
        if prior is not None:
            note = (
                f"Shrunk towards the leaderboard of all votes (normal prior, standard deviation {prior.sd:g}), on its "
                "scale."
            )
            board = dataclasses.replace(board, notes=(note, *board.notes))
        starts.add(by, name, board)
        boards.append(Named(by, name, sizes[code], board))
    return boards


def _noted(board: Leaderboard, *notes: str) -> Leaderboard:
    return dataclasses.replace(board, notes=(*board.notes, *notes))


def fit_options(args: argparse.Namespace) -> dict[str, Any]:
    """Return the keyword arguments of a fit or an aggregation that the flags of `p2l leaderboard` ask for."""
    intervals = None if args.intervals == "none" else args.intervals
    return {"intervals": intervals, "level": args.level, "seed": args.seed}
