"""The history that `p2l leaderboard --over` prints and draws: one pass through a file of votes, counted by period.

Memory holds a row for each distinct (period, pair, order, winner), however many votes there are.
"""

from __future__ import annotations

import argparse
import dataclasses
import re
import textwrap
from collections.abc import Sequence
from datetime import date, datetime, timezone
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from p2l.common.cli import counted, listed, nearest, not_votes, progress
from p2l.common.errors import ConfigError, InputError, VoteError
from p2l.common.plots import COLOURS, new_figure, save_figure
from p2l.leaderboard.board import Named, TextTable, effect_lines, interval_text, to_score
from p2l.leaderboard.controls import without_value
from p2l.leaderboard.counts import NO_PERIOD, Counts
from p2l.leaderboard.history import UNITS, History, Over, Period, history_of_counts, parse_over
from p2l.leaderboard.pair_tables import VoteCounter
from p2l.leaderboard.sources import batches_of_votes, controlled_votes, counts_of, fit_options, starts_of, vote_codes
from p2l.votes.reading import VoteBatch
from p2l.votes.rows import is_text
from p2l.votes.schema import numbers
from p2l.votes.sources import open_source

if TYPE_CHECKING:
    import pandas as pd


Floats = npt.NDArray[np.float64]
_LATEST = 7_258_118_400.0  # the year 2200; later "seconds" are milliseconds
_YEARS = (1900.0, 2200.0)  # whole numbers in here are years: as seconds they would be the first hour of 1970
_GROUPED = re.compile(r"(?P<year>\d{4})(?:-(?P<month>\d\d)|-?Q(?P<quarter>[1-4])|-?W(?P<week>\d\d))?")


def times_of(column: Any, over: Over) -> Floats:
    """Return seconds since 1970 (N,) of a column of times; NaN where there is none.

    Numbers are seconds; text is an ISO date or time, or a period such as 2025, 2025-06, 2025-Q2 or 2025-W23, which
    counts from its first day.
    """
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
    times = np.array(numbers(column), dtype=np.float64)
    times[~((times >= 0) & (times < _LATEST))] = np.nan
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
            times[place] = _moment(text)
    codes = encoded.indices.fill_null(len(times)).to_numpy(zero_copy_only=False)
    return np.asarray(np.append(times, np.nan)[codes], dtype=np.float64)


def _moment(text: str) -> float:
    """Parse an ISO date or time that Arrow does not read: with a zone, or beside text that is not a time."""
    try:
        moment = datetime.fromisoformat(text.strip().replace("Z", "+00:00"))
    except ValueError:
        return float("nan")
    seconds = (moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc)).timestamp()
    return seconds if 0 <= seconds < _LATEST else float("nan")


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


def history_of_votes(args: argparse.Namespace) -> History:
    """Return the history of a file of votes, as the flags of the command say."""
    over = parse_over(args.over)
    counts = counts_of(args)
    if counts is not None:
        return _history_of_counts(counts, over, args)
    source = open_source(args.votes)
    if args.time_column not in source.columns:
        raise VoteError(
            f"{source.name}: no column {args.time_column!r}{nearest(args.time_column, source.columns)} to tell periods "
            f"by; name it with --time-column; columns: {listed(source.columns)}"
        )
    counter, names, codes = VoteCounter(), dict[str, int](), dict[int, int]()
    controlled = controlled_votes(source, args)
    controls = None if controlled is None else controlled.controls
    dropped = timeless = 0
    for batch in batches_of_votes(source, [args.time_column, *([] if controls is None else controls.columns)], args):
        timed, periods = periods_of(batch, over, args)
        dropped += batch.dropped
        timeless += int((~timed).sum())
        votes: list[Any] = [column[timed] for column in vote_codes(batch, names, weighted=args.weighted)]
        indices, place = np.unique(periods, return_inverse=True)
        numbers = [codes.setdefault(int(index), len(codes)) for index in indices]
        group = np.array(numbers, dtype=np.int64)[place.reshape(-1)]
        counter.add(group, *votes)
        if controlled is not None:
            controlled.add(batch.batch.filter(pa.array(timed)), votes, [(group, np.arange(len(group)))])
    if not codes:
        raise VoteError(f"{source.name}: no vote has a time in column {args.time_column!r}")
    fixed: dict[str, Any] = {"mode": args.periods, "likelihood": args.likelihood, "shrink": args.shrink}
    fixed |= {"each": partial(progress, description=f"{over.unit}s", quiet=args.quiet), "controlled": controlled}
    try:
        history = history_of_counts(counter, codes, list(names), over=over, **fixed, **fit_options(args))
    except InputError as error:
        raise VoteError(f"{source.name}: {error}") from error
    left_out = [(dropped, not_votes(dropped)), (timeless, f"{counted(timeless, 'vote')} without a time")]
    notes = [f"{what} {'was' if count == 1 else 'were'} left out." for count, what in left_out if count]
    missing = {} if controls is None else controls.missing
    notes += [without_value(name, count) for name, count in missing.items()]
    return dataclasses.replace(history, notes=(*history.notes, *notes))


def periods_of(batch: VoteBatch, over: Over, args: argparse.Namespace) -> tuple[Any, Any]:
    """Return which votes (N,) have a time, and the periods of those; raise VoteError for one without, or drop it."""
    times = times_of(batch.batch.column(args.time_column), over)
    timed = np.isfinite(times)
    if not timed.all() and not args.drop_bad:
        raise _no_time(batch, args.time_column, int(np.argmin(timed)))
    return timed, over.index(times[timed])


def _history_of_counts(counts: Counts, over: Over, args: argparse.Namespace) -> History:
    """Return the history of votes that are counted by period."""
    name = args.votes or args.from_counts[0]
    codes = {group.period: code for group, code in counts.groups.items() if group.period != NO_PERIOD}
    if not codes:
        raise VoteError(f"{name}: no vote has a time")
    fixed: dict[str, Any] = {"mode": args.periods, "likelihood": args.likelihood, "shrink": args.shrink}
    fixed |= {"each": partial(progress, description=f"{over.unit}s", quiet=args.quiet)}
    starts = starts_of(args)
    fixed["starts"] = starts
    try:
        history = history_of_counts(counts.counter, codes, list(counts.names), over=over, **fixed, **fit_options(args))
    except InputError as error:
        raise VoteError(f"{name}: {error}") from error
    starts.keep()
    return history


def _no_time(batch: VoteBatch, column: str, row: int) -> VoteError:
    value = batch.batch.column(column)[row].as_py()
    return VoteError(
        f"{batch.place(row)}: {column} {value!r:.40} is not a time; give seconds since 1970, an ISO date, or "
        "text such as 2025-06 or 2025-W23, or add --drop-bad to leave out such rows"
    )


# The history of a leaderboard as text for a terminal.
#
# The table is that of the newest period: its ranks, how they changed since the period before, and the scores at a few
# earlier periods, evenly spread.

_EARLIER = 5
"""Columns of earlier scores, at most."""


def render_history(history: History, *, top: int | None = None, min_votes: int = 0) -> str:
    """Render the newest period as a table, with rank changes and earlier scores, its heading and notes."""
    newest = history.newest
    table = history_table(history, top=top, min_votes=min_votes)
    return "\n".join([table.text(), *effect_lines(newest.effects, newest.level)])


def history_table(history: History, *, top: int | None = None, min_votes: int = 0) -> TextTable:
    """Return the newest period as text, at most the `top` best models."""
    newest = history.periods[-1]
    frame = newest.board.to_frame(min_votes=min_votes)
    top_rows = frame if top is None else frame.head(top)
    before: dict[Any, Any] = {}
    if len(history.periods) > 1:
        last = history.periods[-2].board.to_frame(min_votes=min_votes)
        before = dict(zip(last["model"], last["rank"].tolist(), strict=True))
    earlier = earlier_periods(history.periods[:-1])
    interval = [f"{newest.board.level:.0%} interval"] if top_rows["lower"].notna().any() else []
    header = ["rank", *(["change"] if before else []), "model", *(period.label for period in earlier), "score"]
    scores = [dict(zip(period.board.models, to_score(period.board.coefs), strict=True)) for period in earlier]
    rows = []
    for row in top_rows.to_dict("records"):
        name = str(row["model"])
        cells = [str(row["rank"]), *([_change(before.get(name), row["rank"])] if before else []), name]
        cells += [f"{score[name]:.0f}" if name in score else "" for score in scores] + [f"{row['score']:.0f}"]
        rows.append([*cells, *[interval_text(row) for _ in interval], f"{row['votes']:,}"])
    heading = f"over {history.over.text} ({history.mode}), {history.periods[0].label} to {newest.label}"
    return TextTable(heading, _facts(history), [*header, *interval, "votes"], rows, len(frame), history.notes)


def earlier_periods(periods: Sequence[Period]) -> list[Period]:
    """Return a few periods, the first and the last among them."""
    places = np.unique(np.linspace(0, len(periods) - 1, min(_EARLIER, len(periods))).round().astype(int))
    return [periods[place] for place in places]


def _change(before: int | None, now: int) -> str:
    if before is None:
        return "new"
    return "=" if before == now else f"{before - now:+d}"


def _facts(history: History) -> str:
    last = history.periods[-1]
    votes = sum(period.votes for period in history.periods)
    number = f"{len(history.periods)} periods with votes" if len(history.periods) > 1 else "1 period"
    models, likelihood = len(history.models), last.board.likelihood
    return f"{number}, {votes:,} votes, {models} models, likelihood {likelihood}; the table is of {last.label}"


# The history of a leaderboard as a picture: a line with a band for each of the best models, its name at the end.
#
# With fifty models no legend can be read and no line followed. So only the models that lead the newest period have
# colours and names, which stand at the right end of their lines, pushed apart where they would overlap; others are
# grey.

_TOP = 10
_STYLES = ("-", "--", ":", "-.")
_DOTS_UP_TO = 40  # periods; more would run into each other
_TICKS = 12
_LINE = 0.45  # of the height: what the names need together, the height growing with their number


def plot_history(history: History, path: str, *, top: int | None = None, min_votes: int = 0) -> int:
    """Draw the history into a .png, .svg or .pdf file, whole or not at all; return how many models have own lines."""
    leaders = history.newest.to_frame(min_votes=min_votes).head(top or _TOP)["model"].tolist()
    names, coefs = history.table()
    drawn = {field: _with_gaps(history, to_score(history.table(field)[1])) for field in ("lower", "upper")}
    scores = _with_gaps(history, to_score(coefs))
    figure = new_figure(10.0, max(4.5, 0.28 * len(leaders) + 1.5))
    axis = figure.subplots()
    others = [place for place, name in enumerate(names) if name not in leaders]
    if others:
        axis.plot(np.arange(len(scores)), scores[:, others], color="#d9d9d9", linewidth=0.8, zorder=1)
    ends = []
    for number, name in enumerate(leaders):
        place = names.index(name)
        colour = COLOURS[number % len(COLOURS)]
        style = _STYLES[number // len(COLOURS) % len(_STYLES)]
        _line(axis, scores[:, place], drawn["lower"][:, place], drawn["upper"][:, place], colour, style)
        ends.append((float(scores[-1, place]), name, colour))
    _limits(axis, scores[:, [names.index(name) for name in leaders]], drawn, [names.index(name) for name in leaders])
    _name(axis, ends, len(scores) - 1)
    _dress(axis, history, len(others))
    save_figure(figure, Path(path))
    return len(leaders)


def _with_gaps(history: History, values: Floats) -> Floats:
    """Return a row for every period from the first to the last, NaN for those without votes."""
    first = history.periods[0].index
    rows = [period.index - first for period in history.periods]
    out = np.full((rows[-1] + 1, values.shape[1]), np.nan)
    out[rows] = values
    return out


def _line(axis: Any, score: Floats, lower: Floats, upper: Floats, colour: str, style: str) -> None:
    at = np.arange(len(score))
    # A period between two gaps has no line to show it.
    marker = "o" if len(score) <= _DOTS_UP_TO or np.isnan(score).any() else None
    axis.plot(at, score, style, color=colour, linewidth=1.6, marker=marker, markersize=3, zorder=3)
    axis.fill_between(at, lower, upper, color=colour, alpha=0.11, linewidth=0, zorder=2)
    if len(score) == 1:
        axis.vlines(at, lower, upper, color=colour, linewidth=3, alpha=0.3)


def _limits(axis: Any, scores: Floats, drawn: dict[str, Floats], places: Sequence[int]) -> None:
    """Set the height to that of the named lines: a model far below must not flatten them."""
    ends = np.concatenate([scores[np.isfinite(scores)], *(values[:, places].ravel() for values in drawn.values())])
    ends = ends[np.isfinite(ends)]
    # Intervals of a model's first votes may be as wide as the prior.
    low, high = np.quantile(ends, [0.005, 0.995])
    low, high = min(low, float(np.nanmin(scores))), max(high, float(np.nanmax(scores)))
    room = 0.06 * max(high - low, 10.0)
    axis.set_ylim(low - room, high + room)


def _name(axis: Any, ends: Sequence[tuple[float, str, str]], last: int) -> None:
    low, high = axis.get_ylim()
    heights = _spread([(score - low) / (high - low) for score, _, _ in ends], _LINE / max(len(ends), 10))
    for (score, name, colour), height in zip(ends, heights, strict=True):
        axis.annotate(
            f"{name}  {score:.0f}",
            xy=(last, score),
            xytext=(1.03, height),
            textcoords="axes fraction",
            color=colour,
            fontsize=8,
            va="center",
            arrowprops={"arrowstyle": "-", "color": colour, "linewidth": 0.6, "relpos": (0, 0.5)},
            annotation_clip=False,
        )


def _spread(heights: Sequence[float], least: float) -> list[float]:
    """Move heights in falling order as little as needed to be `least` apart: those that touch share their mean."""
    blocks: list[list[float]] = []  # [sum of heights as if unspread, members]
    for place, height in enumerate(heights):
        blocks.append([height + place * least, 1.0])
        while len(blocks) > 1 and blocks[-1][0] / blocks[-1][1] > blocks[-2][0] / blocks[-2][1]:
            total, members = blocks.pop()
            blocks[-1][0] += total
            blocks[-1][1] += members
    flat = [total / members for total, members in blocks for _ in range(int(members))]
    return [value - place * least for place, value in enumerate(flat)]


def _dress(axis: Any, history: History, others: int) -> None:
    first, last = history.periods[0].index, history.periods[-1].index
    step = -(-(last - first + 1) // _TICKS)
    ticks = range(0, last - first + 1, step)
    axis.set_xticks(
        list(ticks), [history.over.label(first + tick) for tick in ticks], fontsize=8, rotation=30, ha="right"
    )
    axis.set_xlim(-0.02 * max(last - first, 1) - 0.2, (last - first) + 0.02 * max(last - first, 1))
    axis.tick_params(axis="y", labelsize=8)
    axis.grid(axis="y", color="#e6e6e6")
    axis.set_axisbelow(True)
    axis.spines[["top", "right"]].set_visible(False)
    axis.set_ylabel("score (400 points: odds of 10 to 1)", fontsize=8)
    banded = bool(np.isfinite(history.newest.lower).any())
    interval = f", bands: {history.newest.level:.0%} intervals" if banded else ""
    rest = f", {others} other models grey" if others else ""
    what = "all votes up to the end of each" if history.mode == "cumulative" else "each alone"
    axis.set_title(f"by {history.over.text} ({what}){interval}{rest}", fontsize=9, loc="left")


# Leaderboards as a picture: one row per model, a dot for its score, a bar for its interval.

_LONGEST_TITLE = 58
_PANELS = 12
_PLOT_COLUMNS = 3
_INK, _BAR = "#1f4e79", "#8fb4d9"


def plot_boards(boards: Sequence[Named], path: str, *, top: int | None = None, min_votes: int = 0) -> int:
    """Draw leaderboards, at most the first twelve, into one picture, whole or not at all; return their number."""
    drawn = list(boards)[:_PANELS]
    frames = [named.board.to_frame(min_votes=min_votes).head(top or 10**9) for named in drawn]
    columns = min(_PLOT_COLUMNS, len(drawn))
    rows = -(-len(drawn) // columns)
    height = max(2.0, 0.9 + 0.2 * max(len(frame) for frame in frames))
    figure = new_figure(7.0 if columns == 1 else 5.5 * columns, height * rows)
    axes = figure.subplots(rows, columns, squeeze=False, sharex=True).ravel()
    for axis, named, frame in zip(axes, drawn, frames, strict=False):
        _draw(axis, named, frame)
    for axis in axes[len(drawn) :]:
        axis.set_visible(False)
    save_figure(figure, Path(path))
    return len(drawn)


def _draw(axis: Any, named: Named, frame: pd.DataFrame) -> None:
    height = np.arange(len(frame))
    score, lower, upper = (frame[name].to_numpy() for name in ("score", "lower", "upper"))
    axis.hlines(height, lower, upper, color=_BAR, linewidth=4)
    axis.plot(score, height, "o", color=_INK, markersize=4)
    axis.set_yticks(height, frame["model"], fontsize=8)
    axis.set_ylim(len(frame) - 0.4, -0.6)
    axis.grid(axis="x", color="#dddddd")
    axis.set_axisbelow(True)
    axis.spines[["top", "right"]].set_visible(False)
    axis.set_title(textwrap.shorten(named.title, _LONGEST_TITLE, placeholder=" ..."), fontsize=10, loc="left")
    interval = f" with {named.board.level:.0%} interval" if np.isfinite(lower).any() else ""
    axis.tick_params(labelbottom=True)
    axis.set_xlabel(f"score{interval} (400 points: odds of 10 to 1)", fontsize=8)
