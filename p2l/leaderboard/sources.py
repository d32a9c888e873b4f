"""The leaderboards that `p2l leaderboard` prints: of all votes or prompts, and of each group of them."""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from p2l.common.cli import listed, nearest, not_votes, progress
from p2l.common.errors import InputError, VoteError
from p2l.common.files import parse_json
from p2l.leaderboard.board import Leaderboard, Named
from p2l.leaderboard.controls import ControlledVotes, Controls, CountedVotes, without_value
from p2l.leaderboard.counts import Counts, read_counts
from p2l.leaderboard.fitting import fit_table, prior_of, suited
from p2l.leaderboard.history import parse_over
from p2l.leaderboard.intervals import Units, units_of
from p2l.leaderboard.lake_counts import Spec, lake_counts
from p2l.leaderboard.pair_tables import PairTable, VoteCounter, check_number_of_models
from p2l.leaderboard.starts import Starts
from p2l.votes.lake import NO_DAY, Lake, is_lake
from p2l.votes.reading import FaultyRowError, VoteBatch, model_codes, read_votes
from p2l.votes.rows import Source, is_text
from p2l.votes.schema import WINNERS, hash_turns, name_lookup, numbers
from p2l.votes.sources import open_source

# Groups of rows by a column: a text, a flag, a list, or a tag nested in another column.
#
# Shapes: N rows of a batch, E (row, group) pairs; a row belongs to no group, to one, or, by a list column, to several.
#
# `language` groups by value; `is_code` gives the groups `true` and `false`; `tags` (a list) puts a row into the group
# of each of its elements; `category_tag.math_v0.1.math` follows the keys of a nested column, which a CSV file holds as
# JSON text. Keys may contain dots themselves: the longest key that fits is taken.

Ints = npt.NDArray[np.int64]


class Members(NamedTuple):
    """Which rows are in which group: `names[group[e]]` holds row `row[e]`."""

    names: list[str]
    group: Ints  # (E,)
    row: Ints  # (E,)


def base_column(path: str, columns: Sequence[str], source: str) -> str:
    """Return the column that a path such as `category_tag.math_v0.1.math` starts in."""
    base = _first_key(path, columns)
    if base is None:
        raise VoteError(f"{source}: no column {path!r}{nearest(path, columns)}; columns: {listed(columns)}")
    return base


def _first_key(path: str, keys: Sequence[str]) -> str | None:
    fitting = [key for key in keys if path == key or path.startswith(f"{key}.")]
    return max(fitting, key=len, default=None)


def group_rows(column: Any, path: str, name: str, source: str) -> Members:
    """Return the groups of the rows of a column (N,) by `path`: its name, or `name.key.key...`; rows may be in none."""
    rest = path[len(name) + 1 :]
    if rest:
        column = _walk(column, rest, path, source)
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if pa.types.is_list(column.type) or pa.types.is_large_list(column.type):
        row = np.asarray(pc.list_parent_indices(column), dtype=np.int64)
        values = pc.list_flatten(column)
    else:
        row, values = np.arange(len(column), dtype=np.int64), column
    if pa.types.is_nested(values.type):
        key, kind = path, values.type
        inside = f"keys {', '.join(field.name for field in kind)}" if pa.types.is_struct(kind) else str(kind)
        while pa.types.is_struct(kind) and kind.num_fields:
            key, kind = f"{key}.{kind[0].name}", kind[0].type
        raise VoteError(f"{source}: column {path!r} holds {inside}; name one, as in {key!r}")
    try:
        encoded = (values if is_text(values.type) else values.cast(pa.string())).dictionary_encode()
    except pa.ArrowNotImplementedError as error:
        raise VoteError(f"values of type {values.type} cannot name groups") from error
    codes = encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
    has_value = codes >= 0
    return Members(encoded.dictionary.to_pylist(), codes[has_value], row[has_value])


def _walk(column: Any, rest: str, path: str, source: str) -> Any:
    """Follow keys into a struct, or into JSON text."""
    if is_text(column.type):
        return _walk_text(column, rest, path, source)
    while rest:
        keys = [field.name for field in column.type] if pa.types.is_struct(column.type) else []
        key = _first_key(rest, keys)
        if key is None:
            there = f"; keys: {', '.join(keys)}" if keys else ""
            raise VoteError(f"{source}: {path!r} leads nowhere: no key {rest!r}{nearest(rest, keys)}{there}")
        column, rest = pc.struct_field(column, key), rest[len(key) + 1 :]
    return column


def _walk_text(column: Any, rest: str, path: str, source: str) -> Any:
    values = []
    for text in column.to_pylist():
        try:
            content = None if text is None else parse_json(text)
        except ValueError as error:
            raise VoteError(f"{source}: {path!r} needs JSON in the column, not {text[:40]!r}") from error
        values.append(_follow(content, rest))
    if values and all(value is None for value in values):
        raise VoteError(f"{source}: {path!r} leads nowhere: no row has the key {rest!r}")
    return pa.array([json.dumps(value) if isinstance(value, bool) else value for value in values])


def _follow(value: Any, rest: str) -> Any:
    while rest:
        key = _first_key(rest, list(value)) if isinstance(value, dict) else None
        if key is None:
            return None
        value, rest = value[key], rest[len(key) + 1 :]
    return value


Floats = npt.NDArray[np.float64]

# Votes that were not cast independently: those of one person, or on one prompt.
#
# Shapes: N votes of a batch.
#
# Intervals need to know which votes belong together, so every vote stays in memory here, with 29 bytes for each group
# that it is in; without clusters a leaderboard keeps counts alone.

# Group, two models, winner, weight, cluster: the narrowest types that hold them.
_KINDS = ["<i8", "<i4", "<i4", "i1", "<f8", "<i4"]


class ClusteredVotes:
    """The votes of each group with their clusters; add batches, then ask for `units`."""

    def __init__(self, column: str) -> None:
        self.column = column
        self._numbers: dict[Any, int] = {}
        self._parts: list[list[npt.NDArray[Any]]] = []
        self._joined: list[npt.NDArray[Any]] | None = None

    def number(self, values: Any) -> Ints:
        """Number (N,) of the cluster that each value of an Arrow column names; a vote without one stands alone."""
        if pa.types.is_list(values.type) and pa.types.is_string(values.type.value_type):
            keys = [None if turns is None else hash_turns(turns) for turns in values.to_pylist()]
        elif pa.types.is_nested(values.type):
            raise VoteError(f"column {self.column!r} holds {values.type}, which cannot name clusters")
        else:
            keys = values.to_pylist()
        fresh = (self._numbers.setdefault(object() if key is None else key, len(self._numbers)) for key in keys)
        return np.fromiter(fresh, dtype=np.int64, count=len(keys))

    def add(self, group: Ints, model_a: Ints, model_b: Ints, winner: Ints, weights: Floats, cluster: Ints) -> None:
        """Keep a batch of votes, all (N,)."""
        columns = (group, model_a, model_b, winner, weights, cluster)
        self._parts.append([column.astype(kind) for column, kind in zip(columns, _KINDS, strict=True)])

    def units(self, group: int, table: PairTable, recode: Ints) -> Units:
        """Return the votes of one group as units of its table; `recode` is the position there of each model code."""
        if self._joined is None:
            joined = [np.concatenate(column) for column in zip(*self._parts, strict=True)]
            order = np.argsort(joined[0], kind="stable")
            self._joined, self._parts = [column[order] for column in joined], []
        start, end = np.searchsorted(self._joined[0], [group, group + 1])
        _, a, b, winner, weights, cluster = (column[start:end] for column in self._joined)
        return units_of(table, recode[a], recode[b], winner, weights, cluster)


ALL = ("", "all")
ALL_OF = ("", "")  # in counts


class Groups:
    """Codes for (column, value), in order of appearance; 0 is everything."""

    def __init__(self, source: Source, paths: Sequence[str]) -> None:
        self.source = source
        self.bases = {path: base_column(path, source.columns, source.name) for path in paths}
        self.codes: dict[tuple[str, str], int] = {ALL: 0}

    @classmethod
    def of(cls, codes: dict[tuple[str, str], int]) -> Groups:
        """Return the groups of votes that are counted; raise VoteError without any votes."""
        if ALL_OF not in codes:
            raise VoteError("there are no votes to count")
        groups = cls.__new__(cls)
        groups.codes = {ALL: codes[ALL_OF], **{key: code for key, code in codes.items() if key != ALL_OF}}
        groups.bases = {path: path for path, _ in groups.codes if path}
        return groups

    def members(self, batch: VoteBatch) -> Iterator[tuple[Ints, Ints]]:
        """Yield (group codes, rows) of a batch, for everything and for each column."""
        yield np.zeros(len(batch), dtype=np.int64), np.arange(len(batch))
        for path, base in self.bases.items():
            members = group_rows(batch.batch.column(base), path, base, self.source.name)
            codes = [self.codes.setdefault((path, name), len(self.codes)) for name in members.names]
            yield np.array(codes, dtype=np.int64)[members.group], members.row

    def ordered(self, sizes: dict[int, int]) -> list[tuple[str, str, int]]:
        """Return (column, value, code) in the order of the columns, the largest groups first."""
        places = {path: place for place, path in enumerate(("", *self.bases))}
        items = [(by, name, code) for (by, name), code in self.codes.items()]
        return sorted(items, key=lambda item: (places[item[0]], -sizes.get(item[2], 0), item[1]))


def boards_of_votes(args: argparse.Namespace) -> list[Named]:
    """Fit the leaderboard of all votes, then those of the groups, of votes or of their counts."""
    counts = counts_of(args)
    if counts is not None:
        codes = {(group.by, group.value): code for group, code in counts.groups.items()}
        groups = Groups.of(codes)
        starts = starts_of(args)
        boards = _fit_groups(groups, counts.counter, None, None, list(counts.names), args, starts)
        starts.keep()
        return boards
    source = open_source(args.votes)
    groups, counter, names = Groups(source, args.by), VoteCounter(), dict[str, int]()
    clustered = None if args.cluster is None else ClusteredVotes(args.cluster)
    controlled = controlled_votes(source, args)
    controls = None if controlled is None else controlled.controls
    columns = [*groups.bases.values(), *([] if args.cluster is None else [args.cluster])]
    columns += [] if controls is None else controls.columns
    dropped = 0
    for batch in batches_of_votes(source, columns, args):
        dropped += batch.dropped
        a, b, winner, weights = vote_codes(batch, names, weighted=args.weighted)
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
    notes = [f"{not_votes(dropped)} {'was' if dropped == 1 else 'were'} left out."] if dropped else []
    missing = {} if controls is None else controls.missing
    notes += [without_value(name, count) for name, count in missing.items()]
    return [boards[0]._replace(board=_noted(boards[0].board, *notes)), *boards[1:]]


_STEPS = 16  # of the covariates of a lake, where none are named


def controlled_votes(source: Source, args: argparse.Namespace) -> ControlledVotes | CountedVotes | None:
    """Return what holds votes with the covariates that the flags name: counted, where their values are rounded."""
    if not args.control:
        return None
    steps = args.control_steps or (_STEPS if is_lake(args.votes) else None)
    controls = Controls(args.control, source.columns, source.name, steps=steps)
    return ControlledVotes(controls) if steps is None or args.cluster is not None else CountedVotes(controls)


def counts_of(args: argparse.Namespace) -> Counts | None:
    """Return the counts that the flags name, or those of a lake; None where rows have to be read."""
    if args.from_counts is not None:
        counts = read_counts(args.from_counts)
        if (counts.over is None) != (args.over is None) or (args.over and parse_over(args.over).text != counts.over):
            what = f"--over {counts.over}" if counts.over else "no --over"
            raise InputError(f"{args.from_counts[0]}: its counts go with {what}")
        return counts
    if not is_lake(args.votes) or args.control or args.cluster is not None:
        return None
    lake = Lake(args.votes)
    if args.over is not None and (parse_over(args.over).unit == "hour" or args.time_column != "tstamp"):
        return None
    plain = [path for path in args.by if path in lake.columns]
    if len(plain) < len(args.by) or not all(_is_text_in(lake, path) for path in plain):
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


def starts_of(args: argparse.Namespace) -> Starts:
    """Return what a lake keeps of leaderboards of the kind that the flags ask for."""
    if args.from_counts is not None:
        return Starts()
    return Starts(Lake(args.votes), [sorted(args.by), args.over, args.over and args.periods, args.weighted])


def _is_text_in(lake: Lake, column: str) -> bool:
    """Return whether a column of a lake holds one text in each vote."""
    return all(is_text(kind) for kind in lake.types(column))


def batches_of_votes(source: Source, columns: Sequence[str], args: argparse.Namespace) -> Iterator[VoteBatch]:
    """Yield the votes of a source with some more columns, batch by batch, under a progress bar."""
    needed = dict.fromkeys(["model_a", "model_b", "winner", *columns, *["weight"] * args.weighted])
    try:
        with progress(total=source.rows, description="votes", unit=" votes", quiet=args.quiet) as bar:
            for batch in read_votes(source, columns=list(needed), drop_bad=args.drop_bad):
                yield batch
                bar.update(len(batch))
    except FaultyRowError as error:
        raise VoteError(f"{error}; add --drop-bad to leave out all rows that are not votes") from error


def vote_codes(batch: VoteBatch, names: dict[str, int], *, weighted: bool) -> tuple[Ints, Ints, Ints, Floats]:
    """Return codes of both models and of the winner, and weights (N,); `names` grows as models come."""
    a, b = (model_codes(batch.batch.column(name), names) for name in ("model_a", "model_b"))
    check_number_of_models(len(names), batch.source.name)
    won = batch.batch.column("winner").dictionary_encode()
    winner = name_lookup(won.dictionary.to_pylist(), WINNERS)[won.indices.to_numpy(zero_copy_only=False)]
    weights = np.asarray(numbers(batch.batch.column("weight")), dtype=np.float64) if weighted else np.ones(len(batch))
    return a, b, winner, weights


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
        fixed: dict[str, Any] = {"models": models, "likelihood": likelihood, "prior": prior}
        fixed["start"] = starts.of(by, name, models, likelihood or suited(table.votes.sum(axis=0)), prior)
        try:
            board = fit_table(table, units=units, **fixed, **fit_options(args))
        except InputError as error:
            if not boards:
                raise VoteError(f"{args.votes or args.from_counts[0]}: {error}") from error
            boards[0] = boards[0]._replace(board=_noted(boards[0].board, f"{by} = {name} left out: {error}."))
            continue
        if prior is not None:
            note = (
                f"Shrunk towards the leaderboard of all votes (normal prior, standard deviation {prior.sd:g}), on its"
            )
            board = dataclasses.replace(board, notes=(f"{note} scale.", *board.notes))
        starts.add(by, name, board)
        boards.append(Named(by, name, sizes[code], board))
    return boards


def _noted(board: Leaderboard, *notes: str) -> Leaderboard:
    return dataclasses.replace(board, notes=(*board.notes, *notes))


def fit_options(args: argparse.Namespace) -> dict[str, Any]:
    """Return the keyword arguments of a fit or an aggregation that the flags of `p2l leaderboard` ask for."""
    intervals = None if args.intervals == "none" else args.intervals
    return {"intervals": intervals, "level": args.level, "seed": args.seed}
