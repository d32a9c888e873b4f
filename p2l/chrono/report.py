"""Everything that is drawn and written of loss matrices, and the table that sums them up."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from p2l.checkpoint import write_json
from p2l.chrono.figures import draw_comparison, draw_heat_map, draw_lines
from p2l.chrono.matrix import Matrix, write_matrix
from p2l.chrono.measures import compare_runs
from p2l.command import atomic_path
from p2l.figures import save_figure

__all__ = ["write_report"]

_ENDINGS = (".png", ".svg")
_SHARES = ("closed", "closed_absolute")


def write_report(
    matrices: Sequence[Matrix],
    folder: Path,
    *,
    oracle: str | None = None,
    naive: str | None = None,
    figures: bool = True,
) -> str:
    """Write matrices, figures and measures of the runs into a folder; returns a table with notes.

    | file | holds |
    |---|---|
    | RUN.json, RUN.csv | the matrix |
    | RUN-heat-map, RUN-lines | figures of one run, .png and .svg |
    | comparison | figure of several runs, .png and .svg |
    | summary.json, summary.csv | the measures of `p2l.chrono.measures` |

    Without `figures` there are only the numbers, and matplotlib is not needed.

    Raises:
        InputError: a file cannot be written.
    """
    for matrix in matrices:
        write_matrix(matrix, folder)
    if figures:
        _draw_all(matrices, folder, oracle, naive)
    table = compare_runs(matrices, oracle=oracle, naive=naive)
    _write_summary(table, folder)
    return "\n".join([_render(table), *_notes(matrices), f"wrote {folder}"])


def _draw_all(matrices: Sequence[Matrix], folder: Path, oracle: str | None, naive: str | None) -> None:
    for matrix in matrices:
        for draw, name in ((draw_heat_map, "heat-map"), (draw_lines, "lines")):
            save_figure(draw(matrix), *(folder / f"{matrix.run}-{name}{ending}" for ending in _ENDINGS))
    if len(matrices) > 1:
        figure = draw_comparison(matrices, oracle=oracle, naive=naive)
        save_figure(figure, *(folder / f"comparison{ending}" for ending in _ENDINGS))


def _write_summary(table: Mapping[str, Mapping[str, float | None]], folder: Path) -> None:
    with atomic_path(folder / "summary.json") as temporary:
        write_json(temporary, table)
    names = list(next(iter(table.values())))
    with atomic_path(folder / "summary.csv") as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow(["run", *names])
        rows.writerows([run, *("" if row[name] is None else row[name] for name in names)] for run, row in table.items())


def _render(table: Mapping[str, Mapping[str, float | None]]) -> str:
    names = [name for name in next(iter(table.values())) if any(row[name] is not None for row in table.values())]
    cells = [["run", *names], *([run, *(_text(name, row[name]) for name in names)] for run, row in table.items())]
    widths = [max(len(row[column]) for row in cells) for column in range(len(cells[0]))]
    lines = ["  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]).rstrip() for row in cells]
    lines.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join(lines)


def _text(name: str, value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.1%}" if name in _SHARES else f"{value:.4f}"


def _notes(matrices: Sequence[Matrix]) -> list[str]:
    """What a reader who compares runs must know."""
    notes = []
    if len({tuple(matrix.slices) for matrix in matrices}) > 1:
        notes.append("note: the runs were asked about different slices; gaps are over those that two runs share.")
    votes = [dict(zip(one.slices, one.votes[-1].tolist(), strict=True)) for one in matrices]
    shared = set.intersection(*(set(one) for one in votes))
    if any(len({one[number] for one in votes if not np.isnan(one[number])}) > 1 for number in shared):
        notes.append("note: the runs know different models, so that slices hold different votes for each of them.")
    return notes
