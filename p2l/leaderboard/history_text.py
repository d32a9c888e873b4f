"""The history of a leaderboard as text for a terminal and as a file.

The table is that of the newest period: its ranks, how they changed since the period before, and the scores at a few
earlier periods, evenly spread. The file is long: one row for each period and model.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from p2l.command import atomic_path
from p2l.leaderboard.board import to_score
from p2l.leaderboard.history import History, Period

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["history_frame", "render_history", "write_history"]

_EARLIER = 5
"""Columns of earlier scores, at most."""
_COLUMNS = ["period", "model", "rank", "score", "lower", "upper", "votes", "coef", "coef_lower", "coef_upper"]


def history_frame(history: History, *, min_votes: int = 0) -> pd.DataFrame:
    """One row for each period and model, the oldest period first and the best model first.

    Columns: period, model, rank, score, lower, upper, votes (that the leaderboard of the period counts for the model),
    coef, coef_lower, coef_upper.
    """
    import pandas as pd

    frames = []
    for period in history.periods:
        frame = period.board.to_frame(min_votes=min_votes)
        frame.insert(0, "period", period.label)
        frames.append(frame[_COLUMNS])
    whole: pd.DataFrame = pd.concat(frames, ignore_index=True)
    return whole


def render_history(history: History, *, top: int | None = None, min_votes: int = 0) -> str:
    """The newest period as a table, with rank changes and earlier scores, its heading and notes."""
    newest = history.periods[-1]
    frame = newest.board.to_frame(min_votes=min_votes)
    shown = frame if top is None else frame.head(top)
    before = _ranks(history.periods[-2], min_votes) if len(history.periods) > 1 else {}
    earlier = _earlier(history.periods[:-1])
    with_interval = bool(shown["lower"].notna().any())
    header = ["rank", *(["change"] if before else []), "model", *(period.label for period in earlier), "score"]
    header += [f"{newest.board.level:.0%} interval"] * with_interval + ["votes"]
    scores = [dict(zip(period.board.models, to_score(period.board.coefs), strict=True)) for period in earlier]
    rows = [header]
    for row in shown.to_dict("records"):
        name = str(row["model"])
        cells = [str(row["rank"]), *([_change(before.get(name), row["rank"])] if before else []), name]
        cells += [f"{score[name]:.0f}" if name in score else "" for score in scores] + [f"{row['score']:.0f}"]
        rows.append(cells + [_interval(row)] * with_interval + [f"{row['votes']:,}"])
    hidden = len(frame) - len(shown)
    more = [f"... and {hidden} more"] if hidden else []
    return "\n".join([_heading(history), "", *_aligned(rows), *more, *(f"note: {note}" for note in history.notes)])


def _ranks(period: Period, min_votes: int) -> dict[str, int]:
    frame = period.board.to_frame(min_votes=min_votes)
    return dict(zip(frame["model"].tolist(), frame["rank"].tolist(), strict=True))


def _earlier(periods: Sequence[Period]) -> list[Period]:
    """A few periods, the first and the last among them."""
    places = np.unique(np.linspace(0, len(periods) - 1, min(_EARLIER, len(periods))).round().astype(int))
    return [periods[place] for place in places]


def _change(before: int | None, now: int) -> str:
    if before is None:
        return "new"
    return "=" if before == now else f"{before - now:+d}"


def _interval(row: dict[Any, Any]) -> str:
    return f"{row['lower']:.0f} to {row['upper']:.0f}" if math.isfinite(row["lower"]) else "none"


def _heading(history: History) -> str:
    first, last = history.periods[0], history.periods[-1]
    votes = sum(period.votes for period in history.periods)
    number = f"{len(history.periods)} periods with votes" if len(history.periods) > 1 else "1 period"
    return (
        f"over {history.over.text} ({history.mode}), {first.label} to {last.label}: {number}, {votes:,} votes, "
        f"{len(history.models)} models, likelihood {last.board.likelihood}; the table is of {last.label}"
    )


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines of padded cells; names are aligned to the left."""
    name = rows[0].index("model")
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [
            cell.ljust(width) if place == name else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    lines.insert(1, "  ".join("-" * width for width in widths))
    return lines


def write_history(history: History, path: str, *, min_votes: int = 0) -> None:
    """Write the history into one file, whole or not at all.

    CSV and Parquet hold the rows of `history_frame`. JSON holds one object: over, mode, likelihood, level, notes, and
    for each period its label, votes, loss, eta and the rows of its models.
    """
    frame = history_frame(history, min_votes=min_votes)
    with atomic_path(path) as temporary:
        if path.lower().endswith(".json"):
            temporary.write_text(json.dumps(_as_object(history, frame), indent=1, ensure_ascii=False) + "\n", "utf-8")
        elif path.lower().endswith(".csv"):
            frame.to_csv(temporary, index=False)
        else:
            frame.to_parquet(temporary, index=False)


def _as_object(history: History, frame: pd.DataFrame) -> dict[str, Any]:
    rows = {label: part.drop(columns="period") for label, part in frame.groupby("period", sort=False)}
    periods = []
    for period in history.periods:
        part = rows.get(period.label)
        records = [] if part is None else part.to_dict("records")
        periods.append(
            {
                "period": period.label,
                "votes": period.votes,
                "loss": _finite(period.board.loss),
                "eta": period.board.eta,
                "models": [{key: _finite(value) for key, value in record.items()} for record in records],
            }
        )
    facts = {"over": history.over.text, "mode": history.mode, "likelihood": history.newest.likelihood}
    return facts | {"level": history.newest.level, "notes": list(history.notes), "periods": periods}


def _finite(value: Any) -> Any:
    """JSON has no NaN."""
    return None if isinstance(value, float) and not math.isfinite(value) else value
