"""Periods of time: what `month`, `2weeks` or `quarter` means, and which period each vote falls into.

Shapes: N rows of a batch.

All times are UTC. Weeks start on Monday, quarters in January, and periods of several units are counted from 1970 (two
weeks: from Monday, 29 December 1969), so that a period does not depend on the first vote.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import date, datetime, timedelta, timezone
from typing import Any

import numpy as np
import numpy.typing as npt

from p2l.command import nearest
from p2l.errors import ConfigError

__all__ = ["UNITS", "Over", "parse_over", "times_of"]

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

UNITS = ("hour", "day", "week", "month", "quarter", "year")

_SECONDS = {"hour": 3600, "day": 86_400, "week": 604_800}
_MONTHS = {"month": 1, "quarter": 3, "year": 12}
_MONDAY = 3 * 86_400  # 1 January 1970 was a Thursday
_LATEST = 7_258_118_400.0  # the year 2200; later "seconds" are milliseconds
_YEARS = (1900.0, 2200.0)  # whole numbers in here are years: as seconds they would be the first hour of 1970
_GROUPED = re.compile(r"(?P<year>\d{4})(?:-(?P<month>\d\d)|-?Q(?P<quarter>[1-4])|-?W(?P<week>\d\d))?")


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
        """A name: 2025-06-01T13, 2025-06-01, 2025-W23, 2025-06, 2025-Q2, 2025; of several units, that of the first."""
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
    """`month`, `2weeks`, `6 hours`, `quarterly`'s plain form `quarter`.

    Raises:
        ConfigError: no period; the message names the units.
    """
    found = re.fullmatch(r"\s*(\d{1,4})?\s*([a-z]+?)s?\s*", text.lower())
    if found is None or found[2] not in UNITS or (found[1] is not None and not int(found[1])):
        word = found[2] if found else text
        raise ConfigError(
            f"--over {text!r}: no period{nearest(word, UNITS)}; use {', '.join(UNITS)}, or several, such as 2weeks"
        )
    return Over(found[2], int(found[1] or 1))


def times_of(column: Any, over: Over) -> Floats:
    """Seconds since 1970 (N,) of a column of times; NaN where there is none.

    Numbers are seconds; text is an ISO date or time, or a period such as 2025, 2025-06, 2025-Q2 or 2025-W23, which
    counts from its first day.

    Raises:
        ConfigError: text that names periods longer than those that are asked for.
    """
    import pyarrow as pa

    from p2l.votes.schema import numbers

    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        return _of_text(column.dictionary_encode(), over)
    times = np.array(numbers(column), dtype=np.float64)
    times[~((times >= 0) & (times < _LATEST))] = np.nan
    if not (pa.types.is_timestamp(column.type) or pa.types.is_date(column.type)):
        years = (times >= _YEARS[0]) & (times < _YEARS[1]) & (times == np.floor(times))
        times[years] = [_years_start(int(year)) for year in times[years]]
    return times


def _of_text(encoded: Any, over: Over) -> Floats:
    from p2l.votes.schema import numbers

    values = encoded.dictionary
    times = np.array(numbers(values), dtype=np.float64)
    times[~((times >= 0) & (times < _LATEST))] = np.nan
    for place, text in enumerate(values.to_pylist()):
        grouped = _GROUPED.fullmatch(text.strip()) if len(text) < 12 else None
        if grouped is not None:
            times[place] = _start_of(grouped, over, text)
        elif np.isnan(times[place]):
            times[place] = _moment(text)
    codes = encoded.indices.fill_null(len(times)).to_numpy(zero_copy_only=False)
    return np.asarray(np.append(times, np.nan)[codes], dtype=np.float64)


def _moment(text: str) -> float:
    """An ISO date or time that Arrow would not read among others: with a zone, or beside text that is no time."""
    try:
        found = datetime.fromisoformat(text.strip().replace("Z", "+00:00"))
    except ValueError:
        return float("nan")
    seconds = (found if found.tzinfo else found.replace(tzinfo=timezone.utc)).timestamp()
    return seconds if 0 <= seconds < _LATEST else float("nan")


def _start_of(grouped: re.Match[str], over: Over, text: str) -> float:
    year = int(grouped["year"])
    unit = next((name for name in ("month", "quarter", "week") if grouped[name]), "year")
    _refuse_longer(unit, over, text)
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


def _refuse_longer(unit: str, over: Over, text: str) -> None:
    """Text such as 2025-06 cannot be told apart by week; a week belongs to the month of its Monday."""
    if UNITS.index(over.unit) < UNITS.index(unit):
        raise ConfigError(
            f"--over {over.text}: times such as {text!r} are {unit}s already; use --over {unit} or longer"
        )


def _years_start(year: int) -> float:
    return float("nan") if year < 1970 else (date(year, 1, 1) - date(1970, 1, 1)).days * 86_400.0
