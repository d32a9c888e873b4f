"""The tables and figures of the benchmark, and whether the bars hold."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from benchmarks.online.measures import Measured, Table
from benchmarks.online.streams import SLICES
from benchmarks.tables import table as markdown
from p2l.chrono.matrix import Matrix
from p2l.chrono.results import heat_figure
from p2l.common.files import atomic_path
from p2l.common.report.images import save_picture

__all__ = ["Bar", "bars", "bars_text", "draw", "table_text", "write_json"]

_COLUMNS = (
    "strategy",
    "mean loss",
    "gap closed, %",
    "before the drain",
    "on the way",
    "newest slice",
    "next slice",
    "few votes",
    "backward",
    "dropped, %",
    "waits, %",
    "lag, %",
    "compute",
    "seeds",
)
_BATCHES_PER_SLICE = 256
_SLACK = 0.002


@dataclass(frozen=True)
class Bar:
    """Something promised, the figure, and whether it holds."""

    text: str
    value: str
    holds: bool


def table_text(table: Table) -> str:
    """One row per strategy."""
    return (
        f"{markdown(_COLUMNS, [_cells(row) for row in table.rows])}\n\n"
        f"gap between naive and oracle {table.gap:.4f} nats, standard error over seeds {table.gap_error:.4f}; "
        f"loss of the truth {table.best:.4f}\n"
    )


def _cells(row: Measured) -> list[str]:
    return [
        row.name,
        f"{row.mean:.4f}",
        _with_interval(row.gap_closed, row.interval),
        f"{100 * row.gap_closed_before_drain:.1f}",
        _with_interval(row.gap_closed_on_the_way, row.interval_on_the_way),
        f"{row.newest:.4f}",
        f"{row.next_slice:.4f}",
        f"{row.few_votes:.4f}",
        f"{row.backward_transfer:+.4f}",
        f"{100 * row.dropped:.1f}",
        f"{100 * row.most_waiting:.1f}",
        f"{100 * row.median_lag:.1f}",
        f"{row.compute:.2f}",
        str(row.seeds),
    ]


def _with_interval(value: float, interval: tuple[float, float]) -> str:
    return "-" if value != value else f"{100 * value:.1f} [{100 * interval[0]:.0f}, {100 * interval[1]:.0f}]"


def bars(table: Table, ours: str) -> list[Bar]:
    """What the simulated arena must show."""
    rows = {row.name: row for row in table.rows}
    geometric = max(
        (
            row
            for name, row in rows.items()
            if name.startswith("geometric") and row.dropped == 0 and "averaged" not in name
        ),
        key=lambda row: row.gap_closed,
        default=None,
    )
    found = [
        Bar("naive loses at least 0.04 nats to the oracle", f"{table.gap:.4f}", table.gap >= 0.04),
        Bar(
            "and ten times the standard error over seeds",
            f"{table.gap_error:.4f}",
            bool(table.gap >= 10 * table.gap_error),
        ),
    ]
    if geometric is not None:
        text = f"geometric at its best published setting ({geometric.name}) closes at least 78.1 %"
        found.append(Bar(text, f"{geometric.gap_closed:.1%}", geometric.gap_closed >= 0.781))
    found += _bars_of(rows[ours], rows["naive"])
    cheat = next((row for name, row in rows.items() if name.startswith("shuffle everything")), None)
    if cheat is not None:
        fails = not all(bar.holds for bar in _bars_of(cheat, rows["naive"]))
        found.append(Bar(f"{cheat.name!r} fails them", f"waiting {cheat.most_waiting:.0%}", fails))
    return found


def _bars_of(row: Measured, naive: Measured) -> list[Bar]:
    """The bars of one strategy; that of the way only where oracles on the way were run."""
    after, before = row.newest - naive.newest, row.newest_before_drain - naive.newest_before_drain
    next_slice, way, gain = row.next_slice - naive.next_slice, row.gap_closed_on_the_way, row.few_votes_gain
    found = [
        Bar("ours closes at least 90 %", f"{row.gap_closed:.1%}", row.gap_closed >= 0.9),
        Bar("before the drain too", f"{row.gap_closed_before_drain:.1%}", row.gap_closed_before_drain >= 0.9),
        None if np.isnan(way) else Bar("on the way too", f"{way:.1%}", way >= 0.9),
        Bar("newest slice at most 0.002 above naive", f"{after:+.4f}", after <= _SLACK),
        Bar("before the drain too", f"{before:+.4f}", before <= _SLACK),
        Bar("the next slice too, on the way", f"{next_slice:+.4f}", next_slice <= _SLACK),
        Bar(
            "votes with a model that has had few: better than naive by an interval",
            f"{row.few_votes:.4f} against {naive.few_votes:.4f}, gain {gain[0]:.3f} to {gain[1]:.3f}",
            not gain[0] <= 0,  # no such votes, no bar
        ),
        Bar("drops nothing", f"{row.dropped:.1%}", row.dropped == 0),
        Bar("at most 10 % of the stream waits", f"{row.most_waiting:.1%}", row.most_waiting <= 0.1),
        Bar("median lag at most 2 % of the stream", f"{row.median_lag:.2%}", row.median_lag <= 0.02),
        Bar("at most 1.25 times the compute of naive", f"{row.compute:.3f}", row.compute <= 1.25),
    ]
    return [bar for bar in found if bar is not None]


def bars_text(found: Sequence[Bar]) -> str:
    """One row per bar."""
    rows = [[bar.text, bar.value, "holds" if bar.holds else "missed"] for bar in found]
    return markdown(["bar", "figure", ""], rows)


def write_json(table: Table, path: Path) -> None:
    """Every figure of every strategy."""
    content = {
        "gap": table.gap,
        "gap_error": table.gap_error,
        "loss_of_the_truth": table.best,
        "strategies": [asdict(row) | {"matrix": row.matrix.round(5).tolist()} for row in table.rows],
    }
    with atomic_path(path) as temporary:
        temporary.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def draw(table: Table, folder: Path) -> list[Path]:
    """A heat map of each strategy: loss by checkpoint and slice."""
    folder.mkdir(parents=True, exist_ok=True)
    numbers = [_BATCHES_PER_SLICE * number for number in range(1, SLICES + 1)]
    later = np.triu(np.ones((SLICES, SLICES), dtype=bool), k=1)
    paths = []
    for row in table.rows:
        values = row.matrix[:SLICES]
        matrix = Matrix(row.name, "Loss", numbers, numbers, values, np.full_like(values, np.nan), later)
        words = "".join(letter if letter.isalnum() or letter == "." else "-" for letter in row.name)
        paths.append(folder / f"{words}.png")
        save_picture(paths[-1], heat_figure(matrix))
    return paths
