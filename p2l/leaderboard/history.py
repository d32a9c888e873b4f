"""Leaderboards over time: one for each period, on one scale.

Shapes: N votes, T periods with votes, M models, D parameters.

`cumulative`: each leaderboard is of all votes up to the end of its period, so the last one is the leaderboard of all
votes; this is the history that a public leaderboard shows. `alone`: each is of its own votes, held by a normal prior to
the leaderboard of all votes, so that a period with few votes shows it with wide intervals instead of jumping.

Where only differences count, what a leaderboard's zero means is a convention, and a strong newcomer would move all the
others if each had mean zero. So a cumulative leaderboard is shifted as a whole: the mean coefficient of its models,
weighted by their votes up to then, is what it is for these models in the newest leaderboard. Models of different
components, which had not met by then, are shifted component by component and so compare by what later votes say. Under
grounded likelihoods zero has a meaning of its own, and nothing is shifted.

One pass through the votes counts them by period; each fit starts from the one before, so it takes a few Newton steps.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from p2l import likelihood as likelihoods
from p2l.common.cli import nearest
from p2l.common.errors import ConfigError, InputError, VoteError
from p2l.leaderboard.board import Leaderboard, several
from p2l.leaderboard.fitting import coefs_of, fit_table, prior_of, suited
from p2l.leaderboard.newton import shift_invariant
from p2l.leaderboard.pair_tables import PairTable, VoteCounter, distinct, distinct_in, every_sum, fold, vote_keys

if TYPE_CHECKING:
    from p2l.leaderboard.controls import ControlledVotes, CountedVotes
    from p2l.leaderboard.counts import Starts
    from p2l.votes.reading import VoteBatch

# Periods of time: what `month`, `2weeks` or `quarter` means, and which period each vote falls into.
#
# Shapes: N rows of a batch.
#
# All times are UTC. Weeks start on Monday, quarters in January, and periods of several units are counted from 1970 (two
# weeks: from Monday, 29 December 1969), so that a period does not depend on the first vote.

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
UNITS = ("hour", "day", "week", "month", "quarter", "year")
_SECONDS = {"hour": 3600, "day": 86_400, "week": 604_800}
_MONTHS = {"month": 1, "quarter": 3, "year": 12}
_MONDAY = 3 * 86_400  # 1 January 1970 was a Thursday


@dataclass(frozen=True)
class Over:
    """Periods of `count` units."""

    unit: str
    count: int = 1

    @property
    def text(self) -> str:
        """As a user writes it."""
        return self.unit if self.count == 1 else f"{self.count}{self.unit}s"

    def index(self, times: Floats) -> Ints:
        """Number (N,) of the period that each time (seconds since 1970) falls into."""
        whole = np.floor(times).astype(np.int64)
        if self.unit in _SECONDS:
            offset = _MONDAY if self.unit == "week" else 0
            return np.asarray((whole + offset) // (self.count * _SECONDS[self.unit]))
        months = whole.astype("datetime64[s]").astype("datetime64[M]").astype(np.int64)
        return np.asarray(months // (self.count * _MONTHS[self.unit]))

    def label(self, index: int) -> str:
        """Name a period: 2025-06-01T13, 2025-06-01, 2025-W23, 2025-06, 2025-Q2, 2025; several units by the first."""
        if self.unit in _SECONDS:
            offset = _MONDAY if self.unit == "week" else 0
            start = datetime(1970, 1, 1, tzinfo=timezone.utc) + timedelta(
                seconds=index * self.count * _SECONDS[self.unit] - offset
            )
            if self.unit == "week" and self.count == 1:
                return "{}-W{:02d}".format(*start.isocalendar())
            return start.strftime("%Y-%m-%dT%H" if self.unit == "hour" else "%Y-%m-%d")
        month = index * self.count * _MONTHS[self.unit]
        year, month = 1970 + month // 12, month % 12
        if self.unit == "quarter":
            return f"{year}-Q{month // 3 + 1}"
        return f"{year}" if self.unit == "year" else f"{year}-{month + 1:02d}"


def parse_over(text: str) -> Over:
    """Parse `month`, `2weeks`, `6 hours`, `quarter`."""
    match = re.fullmatch(r"\s*(\d{1,4})?\s*([a-z]+?)s?\s*", text.lower())
    if match is None or match[2] not in UNITS or (match[1] is not None and not int(match[1])):
        word = match[2] if match else text
        raise ConfigError(
            f"--over {text!r}: no period{nearest(word, UNITS)}; use {', '.join(UNITS)}, or several, such as 2weeks"
        )
    return Over(match[2], int(match[1] or 1))


# Tables of pairs by period, alone or added up, from the counts of one pass through the votes.
#
# Shapes: U distinct (period, model a, model b, winner), P pairs that met at any time, M models.


class _PeriodTable(NamedTuple):
    """The votes of a period, or up to its end."""

    votes: int
    """Of the period alone."""
    table: PairTable
    models: list[str]
    """Those with votes in the table, sorted."""


class _PeriodCounts:
    """The counts of T periods over the pairs that met in any of them."""

    def __init__(self, counter: VoteCounter, codes: Sequence[int], names: Sequence[str]) -> None:
        """Take the periods `codes` of a counter, whose models have `names`."""
        order = sorted(range(len(names)), key=lambda code: names[code])
        rank: Any = np.empty(len(names), dtype=np.int32)
        rank[order] = np.arange(len(names))
        self._names = [names[code] for code in order]
        self.outcomes: Floats = np.zeros(4)
        """How many votes have each winner."""
        pairs, columns, self._sums = list[Any](), list[Any](), list[Floats]()
        for code in codes:
            a, b, winner, sums = counter.cells(code)
            pair, column = fold(rank[a], rank[b], winner, len(names))
            self.outcomes += np.bincount(column, sums[0], 4)
            pairs.append(pair)
            columns.append(column.astype(np.int8))
            self._sums.append(sums)
        self._met, self._cells = distinct_in(pairs, len(names) ** 2)
        for cells, column in zip(self._cells, columns, strict=True):
            cells *= 4
            cells += column

    def tables(self, *, cumulative: bool, first: int = 0) -> Iterator[_PeriodTable]:
        """Yield the table of each period from the place `first` on: alone, or with all those before it."""
        total: Floats = np.zeros((1, 4 * len(self._met)))
        for number, (cell, sums) in enumerate(zip(self._cells, self._sums, strict=True)):
            if number < first and not cumulative:
                continue
            here: Floats = np.stack([np.bincount(cell, row, total.shape[1]).astype(np.float64) for row in sums])
            total = total + here if cumulative else here
            if number < first:
                continue
            used = total[0].reshape(-1, 4).sum(axis=1) > 0
            size = len(self._names)
            models, ends = distinct(np.concatenate(np.divmod(self._met[used], size)), size)
            lower, higher = ends.reshape(2, -1)
            votes, weights, squares = (row.reshape(-1, 4)[used] for row in every_sum(total))
            table = PairTable(len(models), lower, higher, weights, squares, votes)
            yield _PeriodTable(round(float(sums[0].sum())), table, [self._names[model] for model in models])


MODES = ("cumulative", "alone")
_TOLERANCE = 1e-4  # of the last Newton step: it leaves an error of the order of 1e-8
_NAMED_PERIODS = 3  # in a note


@dataclass(frozen=True)
class Period:
    """A period and its leaderboard."""

    index: int
    """Its number since 1970; those of neighbours differ by one."""
    label: str
    votes: int
    """Of this period alone."""
    board: Leaderboard


@dataclass(frozen=True)
class History:
    """The leaderboards of T periods, the oldest first.

    The mode is `cumulative` or `alone`; periods are those with votes that count; notes say what a reader needs to know.
    """

    over: Over
    mode: str
    periods: list[Period]
    notes: tuple[str, ...] = ()

    @property
    def newest(self) -> Leaderboard:
        """The leaderboard of the last period."""
        return self.periods[-1].board

    @property
    def models(self) -> list[str]:
        """Every model that has a leaderboard, sorted."""
        return sorted({name for period in self.periods for name in period.board.models})

    def table(self, field: str = "coefs") -> tuple[list[str], Floats]:
        """Return M names and `coefs`, `lower` or `upper` (T, M): NaN where no vote of a period counts for a model."""
        names = self.models
        place = {name: number for number, name in enumerate(names)}
        out = np.full((len(self.periods), len(names)), np.nan)
        for row, period in enumerate(self.periods):
            assert period.board.votes is not None
            values = np.where(period.board.votes > 0, getattr(period.board, field), np.nan)
            out[row, [place[name] for name in period.board.models]] = values
        return names, out


def fit_history(
    model_a: npt.ArrayLike,
    model_b: npt.ArrayLike,
    winner: npt.ArrayLike,
    times: npt.ArrayLike,
    *,
    models: Sequence[str],
    over: str = "month",
    mode: str = "cumulative",
    likelihood: str | None = None,
    weights: npt.ArrayLike | None = None,
    shrink: float = 0.5,
    **options: Any,
) -> History:
    """Fit the history of a leaderboard to votes in memory, in any order; for what is not named here see `fit`.

    Args:
        times: (N,) seconds since 1970, UTC.
        over: a period: `hour`, `day`, `week`, `month`, `quarter`, `year`, or several, such as `2weeks`.
        mode: `cumulative` or `alone`.
        shrink: standard deviation of the prior that holds periods alone to the leaderboard of all votes; inf: none.
        options: `intervals`, `level`, `seed` as for `fit`.
    """
    parsed, seconds = parse_over(over), np.asarray(times, dtype=np.float64)
    if not np.isfinite(seconds).all():
        raise InputError(f"vote {int(np.argmin(np.isfinite(seconds))) + 1} has no time; leave such votes out")
    indices, group = np.unique(parsed.index(seconds), return_inverse=True)
    counter = VoteCounter()
    vote_weights = np.ones(len(seconds)) if weights is None else np.asarray(weights, dtype=np.float64)
    a, b, won = (np.asarray(column, dtype=np.int64) for column in (model_a, model_b, winner))
    vote_keys(a, b, won, len(models))  # refuses what is not a vote
    counter.add(group.reshape(-1).astype(np.int64), a, b, won, vote_weights)
    codes = {int(index): code for code, index in enumerate(indices)}
    return history_of_counts(
        counter, codes, models, over=parsed, mode=mode, likelihood=likelihood, shrink=shrink, **options
    )


def history_of_counts(
    counter: VoteCounter,
    codes: dict[int, int],
    names: Sequence[str],
    *,
    over: Over,
    mode: str = "cumulative",
    likelihood: str | None = None,
    shrink: float = 0.5,
    each: Callable[[Sequence[int]], Any] = iter,
    controlled: ControlledVotes | CountedVotes | None = None,
    starts: Starts | None = None,
    **options: Any,
) -> History:
    """Fit the history of votes that are counted by period; for what is not named here see `fit_history`.

    Args:
        counter: its groups are the periods.
        codes: group of the counter by the period's number since 1970.
        names: name of each model code.
        each: goes through the periods' numbers; a progress bar.
        controlled: the same votes with their covariates, whose effects are fitted in each period.
        starts: coefficients of the last run, where fits begin; those of this run are noted there.
    """
    if mode not in MODES:
        raise ConfigError(f"unknown mode {mode!r}; use {' or '.join(MODES)}")
    indices = sorted(codes)
    ordered = [codes[index] for index in indices]
    counts = _PeriodCounts(counter, ordered, names)
    likelihood = likelihood or suited(counts.outcomes)
    fits = _Fits(likelihood, options, starts)
    if mode == "alone":
        # The leaderboard of all votes comes first, so that a mistake in the votes is reported at once.
        last = len(ordered) - 1
        [everything] = _tables(counts, ordered, names, controlled, cumulative=True, first=last)
        fits.overall = fits.fit(everything, None, "", intervals=None)
    tables = _tables(counts, ordered, names, controlled, cumulative=mode == "cumulative")
    periods, failed = list[Period](), list[str]()
    for index, table in zip(each(indices), tables, strict=True):
        try:
            board = fits.fit(table, shrink if mode == "alone" else None, str(index))
        except InputError as error:
            failed.append(over.label(index))
            reason = error
            continue
        periods.append(Period(index, over.label(index), table.votes, board))
    if not periods:
        raise InputError(f"no {over.text} has a leaderboard: {reason}")
    anchor = periods[-1].board if mode == "cumulative" else fits.overall
    assert anchor is not None
    if shift_invariant(likelihoods.get(likelihood)) and (mode == "cumulative" or math.isinf(shrink)):
        periods = [dataclasses.replace(period, board=_anchored(period.board, anchor)) for period in periods]
    return History(over, mode, periods, tuple(_notes(over, mode, likelihood, shrink, periods, indices, failed)))


def _tables(
    counts: _PeriodCounts,
    codes: Sequence[int],
    names: Sequence[str],
    controlled: ControlledVotes | CountedVotes | None,
    *,
    cumulative: bool,
    first: int = 0,
) -> Iterator[_PeriodTable]:
    """Yield the tables of periods, with a row for each pair and covariates where there are any."""
    from p2l.votes.schema import name_lookup

    for number, period in enumerate(counts.tables(cumulative=cumulative, first=first), start=first):
        if controlled is None:
            yield period
            continue
        since = 0 if cumulative else number
        table, _ = controlled.table(codes[since : number + 1], name_lookup(names, period.models), len(period.models))
        yield period._replace(table=table)


@dataclass
class _Fits:
    """Fits of neighbouring periods, each from where the last one ended."""

    likelihood: str
    options: dict[str, Any]
    starts: Starts | None
    overall: Leaderboard | None = None
    last: Leaderboard | None = None

    def fit(self, period: _PeriodTable, shrink: float | None, name: str, **changes: Any) -> Leaderboard:
        prior = None if shrink is None or self.overall is None else prior_of(self.overall, period.models, shrink)
        neighbour = self.last if prior is None else self.overall
        start = None if self.starts is None else self.starts.of("", name, period.models, self.likelihood, prior)
        if start is None and neighbour is not None:
            start = np.append(coefs_of(neighbour, period.models), [] if neighbour.eta is None else neighbour.eta)
        options = {**self.options, **changes, "prior": prior, "start": start, "tolerance": _TOLERANCE}
        self.last = fit_table(period.table, models=period.models, likelihood=self.likelihood, **options)
        if self.starts is not None:
            self.starts.add("", name, self.last)
        return self.last


def _anchored(board: Leaderboard, anchor: Leaderboard) -> Leaderboard:
    """Shift each component so that the mean of its models, weighted by votes, is that of the anchor's."""
    assert board.votes is not None
    weights = board.votes.astype(np.float64)
    unseen = np.bincount(board.components, weights) == 0
    weights[unseen[board.components]] = 1.0
    distance = np.bincount(board.components, weights * (coefs_of(anchor, board.models) - board.coefs))
    shift = (distance / np.bincount(board.components, weights))[board.components]
    moved = {name: getattr(board, name) + shift for name in ("coefs", "lower", "upper")}
    return dataclasses.replace(board, **moved)


def _notes(
    over: Over,
    mode: str,
    likelihood: str,
    shrink: float,
    periods: Sequence[Period],
    indices: Sequence[int],
    failed: Sequence[str],
) -> Iterator[str]:
    what = "All votes up to the end of each period." if mode == "cumulative" else "Each period alone, without a prior."
    if mode == "alone" and not math.isinf(shrink):
        yield (
            f"Each period alone, held to the leaderboard of all votes (normal prior, standard deviation {shrink:g}), "
            "on its scale."
        )
    elif not shift_invariant(likelihoods.get(likelihood)):
        yield f"{what} Nothing is shifted: 1000 is the level at which an answer is just usable."
    else:
        held = "in the newest period" if mode == "cumulative" else "in the leaderboard of all votes"
        yield (
            f"{what} Held: the mean score of each period's models, weighted by votes, is what these models have {held}."
        )
    apart = [period.label for period in periods if period.board.components.max() > 0]
    if apart:
        yield (
            f"In {several(apart, _NAMED_PERIODS)} some models had not met, directly or through others; "
            + ("each such part is shifted by itself." if mode == "cumulative" else "their scores compare by the prior.")
        )
    missing = sorted(set(range(indices[0], indices[-1] + 1)) - set(indices)) if len(indices) > 1 else []
    if missing:
        yield f"No votes in {several([over.label(index) for index in missing], _NAMED_PERIODS)}: a gap in the history."
    if failed:
        yield f"No vote that counts, or models that cannot be compared, in {several(failed, _NAMED_PERIODS)}: left out."
    yield from periods[-1].board.notes


# Times of votes, and the periods that they fall into.

_LATEST_SECONDS = 7_258_118_400.0  # the year 2200; later "seconds" are milliseconds
_YEARS = (1900.0, 2200.0)  # whole numbers in here are years: as seconds they would be the first hour of 1970
_GROUPED = re.compile(r"(?P<year>\d{4})(?:-(?P<month>\d\d)|-?Q(?P<quarter>[1-4])|-?W(?P<week>\d\d))?")


def times_of(column: Any, over: Over) -> Floats:
    """Return seconds since 1970 (N,) of a column of times; NaN where there is none.

    Numbers are seconds; text is an ISO date or time, or a period such as 2025, 2025-06, 2025-Q2 or 2025-W23, which
    counts from its first day.
    """
    import pyarrow as pa  # here and below: who reads a model does not wait for it

    from p2l.votes.rows import is_text

    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if is_text(column.type):
        return _of_text(column.dictionary_encode(), over)
    times = _seconds(column)
    if not (pa.types.is_timestamp(column.type) or pa.types.is_date(column.type)):
        years = (times >= _YEARS[0]) & (times < _YEARS[1]) & (times == np.floor(times))
        starts = (times[years] - 1970).astype("datetime64[Y]").astype("datetime64[s]").astype(np.int64)
        times[years] = np.where(starts < 0, np.nan, starts)
    return times


def _seconds(column: Any) -> Floats:
    from p2l.votes.schema import numbers

    times = np.array(numbers(column), dtype=np.float64)
    times[~((times >= 0) & (times < _LATEST_SECONDS))] = np.nan
    return times


def _of_text(encoded: Any, over: Over) -> Floats:
    values = encoded.dictionary
    times = _seconds(values)
    for place, text in enumerate(values.to_pylist()):
        # Most texts are whole times, which are longer than any period.
        grouped = _GROUPED.fullmatch(text.strip()) if len(text) < 12 else None
        if grouped is not None:
            times[place] = _start_of(grouped, over, text)
        elif np.isnan(times[place]):
            # An ISO date or time that Arrow does not read: with a zone, or beside text that is not a time.
            try:
                moment = datetime.fromisoformat(text.strip().replace("Z", "+00:00"))
            except ValueError:
                continue
            seconds = (moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc)).timestamp()
            times[place] = seconds if 0 <= seconds < _LATEST_SECONDS else np.nan
    codes = encoded.indices.fill_null(len(times)).to_numpy(zero_copy_only=False)
    return np.asarray(np.append(times, np.nan)[codes], dtype=np.float64)


def _start_of(grouped: re.Match[str], over: Over, text: str) -> float:
    year = int(grouped["year"])
    unit = next((name for name in ("month", "quarter", "week") if grouped[name]), "year")
    if UNITS.index(over.unit) < UNITS.index(unit):  # a week belongs to the month of its Monday
        raise ConfigError(
            f"--over {over.text}: times such as {text!r} are {unit}s already; use --over {unit} or longer"
        )
    if not _YEARS[0] <= year < _YEARS[1] or year < 1970:
        return float("nan")
    try:
        if unit == "week":
            start = date.fromisocalendar(year, int(grouped["week"]), 1)
        else:
            month = int(grouped["month"] or 1) if unit != "quarter" else 3 * int(grouped["quarter"]) - 2
            start = date(year, month, 1)
    except ValueError:
        return float("nan")
    # The first week of 1970 starts before the first second.
    return max(0.0, (start - date(1970, 1, 1)).days * 86_400.0)


def periods_of(batch: VoteBatch, over: Over, args: argparse.Namespace) -> tuple[Any, Any]:
    """Return which votes (N,) have a time, and the periods of those; raise VoteError for one without, or drop it."""
    times = times_of(batch.batch.column(args.time_column), over)
    timed = np.isfinite(times)
    if not timed.all() and not args.drop_bad:
        row = int(np.argmin(timed))
        value = batch.batch.column(args.time_column)[row].as_py()
        raise VoteError(
            f"{batch.place(row)}: {args.time_column} {value!r:.40} is not a time; give seconds since 1970, an ISO "
            "date, or text such as 2025-06 or 2025-W23, or add --drop-bad to leave out such rows"
        )
    return timed, over.index(times[timed])
