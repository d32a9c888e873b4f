"""What an online run has published, on its page: every decision on a candidate, and how much better each one was."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import datetime, timezone

from p2l.common.report.charts import Axes, Series
from p2l.common.report.reports import Figure, Measure, MetricTable, Notes, Section, Verdict, percents, span
from p2l.common.report.tables import Cell, Column, Table, Value, number_text
from p2l.metrics import Interval
from p2l.training.run_records import Publication

_WIDTH = 1.96  # standard errors of a 95% interval
_TONES = {"published": "", "refused": "bad", "rolled back": "bad"}


def publications_verdict(log: Sequence[Publication]) -> Verdict | None:
    """Return how the newest candidate that was judged compares with the model that was served; None without one."""
    last = next((row for row in reversed(log) if row.is_judged), None)
    if last is None:
        published = sum(row.event == "published" for row in log)
        if not published:
            return None
        reason = "No candidate was compared with the model that was served before it (--gate does that)."
        return Verdict(f"{published:,} models were published, and none was judged.", "", reason)
    gain = _gain_of(last)
    change = f"its loss on held-out votes is {abs(gain.estimate):.4f} nats a vote "
    change += "lower" if gain.estimate >= 0 else "higher"
    ends = f"95% interval of the gain {span(gain, _nats)}"
    than = f"than {last.against}, which was served"
    if gain.lower > 0:
        sentence, tone = f"The newest candidate, {last.subject}, forecasts better {than}: {change} ({ends}).", "good"
    elif gain.upper < 0:
        sentence, tone = f"The newest candidate, {last.subject}, forecasts worse {than}: {change} ({ends}).", "bad"
    else:
        sentence = (
            f"The newest candidate, {last.subject}, forecasts as well as {last.against}, which was served, as far as "
            f"votes tell: {change}, and the {ends} holds zero."
        )
        tone = ""
    held = "" if last.held_votes is None else f" It was judged by {last.held_votes:,.0f} held-out votes."
    return Verdict(sentence, tone, f"The candidate was {last.event}.{held}")


def _gain_of(row: Publication) -> Interval:
    """Return the nats a vote by which a judged candidate is better than the model that was served."""
    assert row.difference is not None
    assert row.error is not None
    gain, half = -row.difference, _WIDTH * row.error
    return Interval(gain, gain - half, gain + half, row.error)


def publications_section(log: Sequence[Publication], picture: Figure | None) -> Section:
    """Return the decisions as a table below the picture, and counts with their meaning."""
    lead = "Before a candidate replaces the model that is served, both forecast the newest held-out votes."
    notes = [] if any(row.is_judged for row in log) else ["No candidate was judged: every one was published."]
    return Section("Published models", [picture, _table(log), MetricTable(_counts(log)), Notes(notes)], lead)


def publications_figure(log: Sequence[Publication]) -> Figure | None:
    """Return the gain of each candidate that was judged, with its interval; None without one."""
    judged = [row for row in log if row.is_judged]
    if not judged:
        return None
    has_votes = all(row.votes is not None for row in judged)
    series = []
    for event in ("published", "refused"):
        chosen = [row for row in judged if row.event == event]
        if chosen:
            gains = [_gain_of(row) for row in chosen]
            x = [(row.votes if has_votes else row.step) or 0.0 for row in chosen]
            y, lower, upper, _ = ([float(end) for end in column] for column in zip(*gains, strict=True))
            series.append(Series(event, x, y, lower, upper, has_line=False, has_dots=True))
    axes = Axes("votes that had come" if has_votes else "step", "gain, nats a vote", level=0.0)
    caption = "Above the line a candidate forecasts better than the model that was served. Whiskers are 95% intervals."
    return Figure.of(series, axes, "Gain of each candidate over the model that was served", caption)


def _table(log: Sequence[Publication]) -> Table:
    heads = (
        Column("When", number=False, note="UTC"),
        Column("Model", number=False),
        Column("Decision", number=False),
        Column("Votes", 0, "that had come"),
        Column("Loss", 4, "of the held-out votes; lower is better"),
        Column("Loss of the served", 4, "of the same votes"),
        Column("Gain", 4, "nats a vote, with 95% interval"),
        Column("Shrinkage", note="how much of the model is left; 0% is one leaderboard"),
        Column("Reason", number=False, wide=True),
    )
    rows: list[list[Value]] = []
    for row in reversed(log):
        when = None
        if row.time is not None and 0 <= row.time < 1e11:  # more would be milliseconds, which `datetime` refuses
            when = Cell(f"{datetime.fromtimestamp(row.time, timezone.utc):%Y-%m-%d %H:%M}", row.time)
        decision = f"rolled back to {row.against}" if row.event == "rolled back" else row.event
        gain = _gain_of(row) if row.is_judged else None
        rows.append(
            [
                when,
                row.subject,
                Cell(decision, decision, _TONES[row.event]),
                row.votes,
                row.loss,
                row.served_loss,
                gain and Cell(_nats(gain.estimate), gain.estimate, note=span(gain, _nats)),
                None if row.factor is None else Cell(percents(row.factor), row.factor),
                row.reason,
            ]
        )
    filled = [place for place in range(len(heads)) if any(row[place] not in (None, "") for row in rows)]
    return Table([heads[place] for place in filled], [[row[place] for place in filled] for row in rows], shown=10)


def _counts(log: Sequence[Publication]) -> list[Measure]:
    number = {event: sum(row.event == event for row in log) for event in _TONES}
    rows = [Measure("Published", f"{number['published']:,}", "", "Candidates that took the place of the served model.")]
    if number["refused"]:
        meaning = "Candidates whose loss on held-out votes was higher by more than two standard errors."
        rows.append(Measure("Refused", f"{number['refused']:,}", "", meaning))
    if number["rolled back"]:
        meaning = "Models that somebody took out of service again (p2l rollback)."
        rows.append(Measure("Rolled back", f"{number['rolled back']:,}", "", meaning))
    gains = [_gain_of(row) for row in log if row.is_judged and row.event == "published"]
    if gains:
        total = math.fsum(row.estimate for row in gains)
        half = _WIDTH * math.sqrt(math.fsum(row.standard_error**2 for row in gains))
        meaning = (
            "The sum of the gains of all that were published after a comparison, in nats a vote. The held-out votes of "
            "neighbouring comparisons overlap, which the interval does not know."
        )
        ends = span(Interval(total, total - half, total + half, 0.0), _nats)
        rows.append(Measure("Sum of gains", _nats(total), ends, meaning))
    return rows


def _nats(value: float) -> str:
    return number_text(value, 4)
