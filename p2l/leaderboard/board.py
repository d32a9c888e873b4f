"""Leaderboards: the result of fits and aggregations, as a table, a file or a plot.

Scores are printed on the scale that readers of arena leaderboards know: score = 1000 + 400 / ln(10) * coefficient, so
that 100 points more mean odds of 10^(1/4) = 1.78 to 1. The coefficient itself stays beside it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from p2l import likelihood as likelihoods
from p2l.common.errors import InputError
from p2l.common.files import atomic_path, write_json
from p2l.common.text_table import text_table
from p2l.likelihood import win_rates

if TYPE_CHECKING:
    import pandas as pd


Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
POINTS_PER_LOGIT = 400.0 / math.log(10.0)


def to_score(coefs: npt.ArrayLike) -> Floats:
    """Convert coefficients (logits) to the scale of arena scores; zero becomes 1000."""
    return np.asarray(1000.0 + POINTS_PER_LOGIT * np.asarray(coefs, dtype=np.float64))


@dataclass(frozen=True)
class Leaderboard:
    """Coefficients of M models, with intervals.

    Attributes:
        models: M names, in the order of the codes.
        coefs: (M,) coefficients in logits. Where only differences count, each component has mean zero.
        lower, upper: (M,) ends of the intervals of `coefs`; NaN where there are none.
        eta: the tie parameter, or None.
        gamma: 0 for `ba` (see `p2l.leaderboard.newton`), else None.
        likelihood: name of the outcome model.
        loss: mean negative log-likelihood per vote, or expected per pair of an aggregation; without the prior.
        votes: (M,) votes that each model took part in and that counted; None for an aggregation.
        components: (M,) component of the comparison graph; models of different components were never compared.
        notes: sentences that a reader of the table needs.
        level: coverage of the intervals.
    """

    models: list[str]
    coefs: Floats
    lower: Floats
    upper: Floats
    eta: float | None
    gamma: float | None
    likelihood: str
    loss: float
    votes: Ints | None
    components: Ints
    notes: tuple[str, ...] = ()
    level: float = 0.95
    field_rates: Floats | None = field(default=None, repr=False)

    def win_rates(self) -> Floats:
        """Return each model's chance (M,) of beating a uniformly drawn other model; ties count half."""
        if self.field_rates is not None:
            return self.field_rates
        return win_rates(self.coefs, likelihoods.get(self.likelihood), self.eta, self.gamma)

    def to_frame(self, *, min_votes: int = 0) -> pd.DataFrame:
        """Return the models, best first: rank, model, score, lower, upper, win_rate, votes, component, coef and ends.

        Columns without content (votes of an aggregation, a single component) are left out. `min_votes` hides models.
        """
        import pandas as pd

        order = np.argsort(-self.coefs, kind="stable")
        if self.votes is not None:
            order = order[self.votes[order] >= min_votes]
        columns = {
            "rank": np.arange(1, len(order) + 1),
            "model": [self.models[index] for index in order],
            "score": to_score(self.coefs[order]),
            "lower": to_score(self.lower[order]),
            "upper": to_score(self.upper[order]),
            "win_rate": self.win_rates()[order],
        }
        if self.votes is not None:
            columns["votes"] = self.votes[order]
        if len(set(self.components[order].tolist())) > 1:
            columns["component"] = self.components[order]
        logits = {"coef": self.coefs, "coef_lower": self.lower, "coef_upper": self.upper}
        frame: pd.DataFrame = pd.DataFrame(columns | {name: values[order] for name, values in logits.items()})
        return frame


# Leaderboards as text for a terminal and as files.

OUTPUT_ENDINGS = (".csv", ".json", ".parquet")


class Named(NamedTuple):
    """A leaderboard with the group that it belongs to."""

    by: str
    """The column, or nothing for all rows."""
    group: str
    """The value there, or `all`."""
    size: int
    """Votes or prompts."""
    board: Leaderboard

    @property
    def title(self) -> str:
        """As it heads a table."""
        return f"{self.by} = {self.group}" if self.by else self.group


def render(named: Named, *, unit: str, top: int | None = None, min_votes: int = 0) -> str:
    """Render a table with its heading and notes; `unit` is what `size` counts."""
    board = named.board
    frame = board.to_frame(min_votes=min_votes)
    top_rows = frame if top is None else frame.head(top)
    optional = [name for name in ("votes", "component") if name in frame]
    interval = [f"{board.level:.0%} interval"] if top_rows["lower"].notna().any() else []
    rows = []
    for row in top_rows.to_dict("records"):
        cells = [str(row["rank"]), str(row["model"]), f"{row['score']:.0f}", *[interval_text(row) for _ in interval]]
        rows.append([*cells, f"{row['win_rate']:.1%}", *(f"{row[name]:,}" for name in optional)])
    header = ["rank", "model", "score", *interval, "beats the field", *optional]
    heading = f"{named.title}: {named.size:,} {unit}, {len(board.models)} models, likelihood {board.likelihood}"
    heading += f", loss {board.loss:.4f}" if math.isfinite(board.loss) else ""
    heading += "" if board.eta is None else f", eta {board.eta:.3f}"
    return table_with_notes(heading, header, rows, len(frame), board.notes)


def interval_text(row: dict[Any, Any]) -> str:
    """Return the ends of an interval; a model that nothing joins to the others has none."""
    return f"{row['lower']:.0f} to {row['upper']:.0f}" if math.isfinite(row["lower"]) else "none"


def table_with_notes(
    heading: str, header: list[str], rows: Sequence[Sequence[str]], total: int, notes: Sequence[str]
) -> str:
    """Return the text of a table of models, with the number of those beyond its rows."""
    lines = text_table(header, rows, left={header.index("model")})
    if total > len(rows):
        lines.append(f"... and {total - len(rows)} more")
    return "\n".join([heading, "", *lines, *(f"note: {note}" for note in notes)])


def check_output(path: str | None) -> None:
    """Refuse an output whose ending names no format, before any work is done."""
    if path is not None and Path(path).suffix.lower() not in OUTPUT_ENDINGS:
        raise InputError(f"{path}: the ending must be one of {', '.join(OUTPUT_ENDINGS)}")


def write_boards(boards: Sequence[Named], path: str, *, min_votes: int = 0) -> None:
    """Write all leaderboards into one file, whole or not at all.

    CSV and Parquet hold one row per model, with the columns `by` and `group` in front. JSON holds one object per
    leaderboard, which also has its likelihood, eta, gamma, loss and notes.
    """
    import pandas as pd

    frames = [named.board.to_frame(min_votes=min_votes) for named in boards]
    if path.lower().endswith(".json"):
        facts = ("likelihood", "eta", "gamma", "loss", "level")
        objects = [
            {"by": named.by, "group": named.group, "size": named.size}
            | {name: getattr(named.board, name) for name in facts}
            | {"notes": list(named.board.notes), "models": frame.to_dict("records")}
            for named, frame in zip(boards, frames, strict=True)
        ]
        write_json(path, objects)
        return
    for named, frame in zip(boards, frames, strict=True):
        frame.insert(0, "group", named.group)
        frame.insert(0, "by", named.by)
    write_frame(pd.concat(frames, ignore_index=True), path)


def write_frame(frame: pd.DataFrame, path: str) -> None:
    """Write a table as CSV or, with any other ending, as Parquet, whole or not at all."""
    with atomic_path(path) as temporary:
        if path.lower().endswith(".csv"):
            frame.to_csv(temporary, index=False)
        else:
            frame.to_parquet(temporary, index=False)


def several(names: Sequence[str], most: int) -> str:
    """Return the first `most` names and the number of the others."""
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")
