"""Times of votes, and the periods that they fall into."""

from __future__ import annotations

import argparse
import re
from datetime import date, datetime, timezone
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from p2l.common.errors import ConfigError, VoteError
from p2l.leaderboard.history import UNITS, Over
from p2l.votes.reading import VoteBatch
from p2l.votes.rows import is_text
from p2l.votes.schema import numbers

Floats = npt.NDArray[np.float64]
_LATEST_SECONDS = 7_258_118_400.0  # the year 2200; later "seconds" are milliseconds
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
