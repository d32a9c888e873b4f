"""Drift that votes show: between two versions of one model, or of all models between two times.

For all votes and for each category, one leaderboard is fitted in which each side is a model of its own (`sql-king` of
version 1 and of version 2); the change is a difference of its coefficients, with the sandwich interval over prompts.
Versions of one model meet the same opponents, each of which is one model throughout. Two periods share no model, so
that each coefficient counts against the mean of the models that both periods have.

Shapes: N votes of a batch, M entities (models, or models on a side).
"""

from __future__ import annotations

import contextlib
import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from p2l.common.cli import progress
from p2l.common.errors import ConvergenceError, InputError, VoteError
from p2l.common.files import parse_json
from p2l.insight.drift import Changes, Measured
from p2l.leaderboard import Leaderboard, Prior
from p2l.leaderboard.fitting import fit_covariance, fit_table
from p2l.leaderboard.groups import ClusteredVotes, Groups
from p2l.leaderboard.intervals import Units
from p2l.leaderboard.pair_tables import PairTable, VoteCounter
from p2l.likelihood import get, win_rates
from p2l.votes.reading import VoteBatch, model_codes, open_vote_source, read_votes
from p2l.votes.schema import WINNERS, name_lookup, numbers

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
_Bools = npt.NDArray[np.bool_]
# The names of entities that are on a side end so, which no name of a model does.
_BEFORE = "\x1fbefore"
_AFTER = "\x1fafter"
Sides: TypeAlias = Callable[[VoteBatch, "list[str]", "list[str]"], "tuple[list[str], list[str], _Bools]"]
"""Names of model_a and model_b of a batch to entities, and which votes count."""


@dataclass(frozen=True)
class Rule:
    """How votes are divided into two sides, by a column.

    `centred`: the sides share no model, so that only distances to the mean count. `missing` says why a side is empty.
    """

    column: str
    sides: Sides
    centred: bool
    missing: Callable[[], str]


def between_times(before: float, after: float) -> Rule:
    """Compare all models in votes before one time and from another on (seconds)."""

    def sides(batch: VoteBatch, model_a: list[str], model_b: list[str]) -> tuple[list[str], list[str], _Bools]:
        times = np.asarray(numbers(batch.batch.column("tstamp")), dtype=np.float64)
        if np.isnan(times).any():
            raise VoteError(f"{batch.place(int(np.isnan(times).argmax()))}: has no tstamp to tell the two times by")
        ends = np.where(times >= after, _AFTER, _BEFORE).tolist()
        first, second = (list(map(operator.add, names, ends)) for names in (model_a, model_b))
        return first, second, (times < before) | (times >= after)

    return Rule("tstamp", sides, True, lambda: "no model has votes both before and after; choose other times")


def between_versions(model: str, before: str, after: str) -> Rule:
    """Compare two versions of one model (`model_version` holds that of model_a and that of model_b)."""
    seen: dict[str, int] = {}
    ends = {before: _BEFORE, after: _AFTER}

    def entity(name: str, version: str | None) -> str | None:
        if name != model:
            return name
        seen[str(version)] = seen.get(str(version), 0) + 1
        return name + ends[version] if version in ends else None

    def sides(batch: VoteBatch, model_a: list[str], model_b: list[str]) -> tuple[list[str], list[str], _Bools]:
        versions = _versions(batch)
        first = [entity(name, pair[0]) for name, pair in zip(model_a, versions, strict=True)]
        second = [entity(name, pair[1]) for name, pair in zip(model_b, versions, strict=True)]
        counts = np.array([a is not None and b is not None for a, b in zip(first, second, strict=True)], dtype=bool)
        return [name or "" for name in first], [name or "" for name in second], counts

    def missing() -> str:
        if not seen:
            return f"holds no vote on model {model!r}"
        there = ", ".join(f"{version} ({count} votes)" for version, count in sorted(seen.items()))
        return f"has no votes to compare versions {before!r} and {after!r} of {model}; there are {there}"

    return Rule("model_version", sides, False, missing)


def _versions(batch: VoteBatch) -> list[tuple[str | None, str | None]]:
    """Return versions of model_a and of model_b as text; None where a vote has none."""
    versions = []
    for row, value in enumerate(batch.batch.column("model_version").to_pylist()):
        pair = value
        if isinstance(value, str):
            with contextlib.suppress(ValueError):
                pair = parse_json(value)
        if pair is not None and (not isinstance(pair, list) or len(pair) != 2):
            raise VoteError(f"{batch.place(row)}: model_version must be [of model_a, of model_b], not {value!r:.60}")
        first, second = pair or (None, None)
        versions.append((None if first is None else str(first), None if second is None else str(second)))
    return versions


def drift_of_votes(
    votes: Any, rule: Rule, *, by: Sequence[str] = (), likelihood: str = "bt-tie", least: int = 20, quiet: bool = True
) -> Changes:
    """Compare the two sides of a rule in a source of votes, over all votes and for each value of the `by` columns.

    Models with votes on fewer than `least` different prompts, on either side, are left out. Raise InputError where the
    votes cannot be read, or there is nothing to compare.
    """
    counted = _count(votes, rule, by, quiet=quiet)
    drift, few, unjoined = Changes(likelihood), 0, 0
    sizes = counted.counter.groups()
    for column, value, code in counted.groups.ordered(sizes) if sizes else ():
        if code not in sizes:
            continue
        table, names = counted.counter.table(code, list(counted.names))
        units = counted.clustered.units(code, table, name_lookup(counted.names, names))
        sided = _SidedVotes(column, value, table, names, units)
        try:
            measured, too_few, apart = sided.cells(rule, likelihood, least)
        except (InputError, ConvergenceError) as error:
            drift.notes.append(f"{column} = {value} is left out: {error}.")
            continue
        drift.measured += measured
        few, unjoined = few + too_few, unjoined + apart
    if not drift.measured:
        raise InputError(
            f"{open_vote_source(votes).name}: {rule.missing()} "
            f"(models need votes on {least} prompts on each side: --min-prompts)"
        )
    if few:
        drift.notes.append(f"{few} cells with fewer than {least} different prompts on a side are left out.")
    if unjoined:
        drift.notes.append(f"{unjoined} cells are left out: too few votes join them to the other models.")
    return drift


@dataclass(frozen=True)
class _Counted:
    """The votes of a source that count."""

    groups: Groups
    counter: VoteCounter
    clustered: ClusteredVotes
    names: dict[str, int]


def _count(votes: Any, rule: Rule, by: Sequence[str], *, quiet: bool) -> _Counted:
    import pyarrow as pa

    source = open_vote_source(votes)
    counted = _Counted(Groups(source, by), VoteCounter(), ClusteredVotes("prompt"), {})
    columns = ["model_a", "model_b", "winner", rule.column, *counted.groups.bases.values()]
    columns += ["prompt"] * ("prompt" in source.columns)
    with progress(total=source.rows, description="votes", unit=" votes", quiet=quiet) as bar:
        for batch in read_votes(source, columns=list(dict.fromkeys(columns))):
            model_a, model_b = (batch.batch.column(name).to_pylist() for name in ("model_a", "model_b"))
            first, second, counts = rule.sides(batch, model_a, model_b)
            a, b = (model_codes(pa.array(names), counted.names) for names in (first, second))
            won = batch.batch.column("winner").dictionary_encode()
            winner = name_lookup(won.dictionary.to_pylist(), WINNERS)[won.indices.to_numpy(zero_copy_only=False)]
            has_prompts = "prompt" in batch.batch.schema.names
            cluster = counted.clustered.number(batch.batch.column("prompt") if has_prompts else pa.nulls(len(batch)))
            for group, members in counted.groups.members(batch):
                cell_counts = counts[members]
                rows, codes = members[cell_counts], group[cell_counts]
                if len(rows):
                    votes_of_group = (codes, a[rows], b[rows], winner[rows], np.ones(len(rows)))
                    counted.counter.add(*votes_of_group)
                    counted.clustered.add(*votes_of_group, cluster[rows])
            bar.update(len(batch))
    return counted


@dataclass(frozen=True)
class _SidedVotes:
    """The votes of one category, with a model of its own on each side; `names` are those of its entities."""

    by: str
    value: str
    table: PairTable
    names: list[str]
    units: Units

    def cells(self, rule: Rule, likelihood: str, least: int) -> tuple[list[Measured], int, int]:
        """Return the changes, and how many are left out for too few prompts or for votes that join them to no other."""
        place = {name: number for number, name in enumerate(self.names)}
        both = [name.removesuffix(_BEFORE) for name in self.names if name.endswith(_BEFORE)]
        both = [name for name in both if name + _AFTER in place]
        if not both:
            return [], 0, 0
        sides = np.array([[place[name + end] for end in (_BEFORE, _AFTER)] for name in both])
        entities = np.concatenate([self.table.first[self.units.pair], self.table.second[self.units.pair]])
        pairs = np.unique(np.stack([entities, np.tile(self.units.cluster, 2)]), axis=1)
        prompts = np.bincount(pairs[0], minlength=self.table.num_models)[sides].min(axis=1)
        # Unlike a leaderboard, a change must not be pulled towards zero: the prior is too weak to be seen.
        board = fit_table(self.table, models=self.names, likelihood=likelihood, intervals=None, prior=Prior())
        joined = _joined(board, sides, centred=rule.centred) & (prompts > 1)
        chosen = joined & (prompts >= least)
        left_out = int((joined & ~chosen).sum()), int((~joined).sum())
        if not chosen.any():
            return [], *left_out
        covariance = fit_covariance(self.table, models=self.names, likelihood=board.likelihood, units=self.units)
        others = np.flatnonzero(~np.isin(np.arange(len(self.names)), sides.ravel()))
        measured = []
        for number in np.flatnonzero(chosen):
            weights = np.zeros(len(self.names))
            # Two periods share no model, so each coefficient counts against the mean of its own period's models.
            field = [sides[joined, side] if rule.centred else others for side in (0, 1)]
            for side, sign in ((0, -1.0), (1, 1.0)):
                weights[sides[number, side]] += sign
                if rule.centred:
                    weights[field[side]] -= sign / len(field[side])
            cell = Measured(
                by=self.by,
                category=self.value,
                model=both[number],
                prompts=int(prompts[number]),
                change=float(weights @ board.coefs),
                error=math.sqrt(max(float(weights @ covariance @ weights), 0.0)),
                rate_before=_rate(board, int(sides[number, 0]), field[0]),
                rate_after=_rate(board, int(sides[number, 1]), field[1]),
            )
            measured.append(cell)
        return measured, *left_out


def _joined(board: Leaderboard, sides: Ints, *, centred: bool) -> _Bools:
    """Return which models have two sides that votes join: to the field of each side, or to each other."""
    component = board.components[sides]
    if not centred:
        return np.asarray(component[:, 0] == component[:, 1])
    largest = [np.bincount(component[:, side]).argmax() for side in (0, 1)]
    return np.asarray((component == largest).all(axis=1))


def _rate(board: Leaderboard, entity: int, field: Ints) -> float:
    """Return how often an entity beats one drawn from the rest of the field."""
    rest = field[field != entity]
    coefs = board.coefs[np.append(rest, entity)]
    return float(win_rates(coefs, get(board.likelihood), board.eta, board.gamma)[-1])
