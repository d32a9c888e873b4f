"""The files of cells (a checkpoint on a slice), and the figures and tables of loss matrices."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from p2l.batch_inference.output import as_batch, json_array, json_records, lock_folder
from p2l.chrono.matrix import (
    MEASURES,
    Matrix,
    compare_runs,
    gap_error,
    gap_to,
    is_noise,
    more_is_better,
    write_csv,
    write_matrix,
)
from p2l.chrono.slices import ValidationSlice
from p2l.common.errors import CheckpointError
from p2l.common.files import write_json
from p2l.common.plots import COLOURS, new_figure, save_figure
from p2l.common.text_table import formatted, text_table
from p2l.metrics import METRICS, simple_metrics
from p2l.model.checkpoint import read_object
from p2l.votes.schema import IntArray

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from p2l.inference import Prediction


# The files of `p2l eval-chrono`: predictions of a checkpoint for a slice, and how well it forecast its votes.
#
# | file | holds |
# |---|---|
# | checkpoint-C/checkpoint-C-val-V.json | rows of the slice as they are, with labels, coefs, eta, gamma, truncated |
# | checkpoint-C/checkpoint-C-val-V.info.json | of which model and slice, votes left out, every metric |
# | checkpoint-C/model_list.json | the names that labels and coefs of this checkpoint refer to |
#
# The info file is there only when the rows are whole.
#
_ROWS = 1024  # formatted at a time


@dataclass(frozen=True)
class CellInputs:
    """What the numbers of a cell depend on: revision of the checkpoint, fingerprint of the slice, and flags."""

    revision: str
    fingerprint: str
    model_type: str | None
    head_type: str | None
    loss_type: str | None
    max_length: int | None
    dtype: str | None


@dataclass(frozen=True)
class CellFiles:
    """The files of one checkpoint and one slice."""

    folder: Path
    checkpoint: str
    slice: int

    @property
    def rows_file(self) -> Path:
        """The rows with predictions."""
        return self.folder / f"{self.checkpoint}-val-{self.slice}.json"

    @property
    def info_file(self) -> Path:
        """The description of the rows."""
        return self.rows_file.with_suffix(".info.json")

    def info(self, source: CellInputs) -> dict[str, Any] | None:
        """Return the description of the rows, if they are whole and of this very source."""
        if not self.rows_file.is_file():
            return None
        try:
            info = read_object(self.info_file, missing={})
        except CheckpointError:  # somebody has edited it
            return None
        return info if info.get("source") == asdict(source) else None


@contextlib.contextmanager
def claimed(folder: Path) -> Iterator[None]:
    """Keep the folder of a checkpoint to this run, without what a killed run has left unfinished there."""
    lock = lock_folder(folder)
    try:
        for file in folder.glob(".*.tmp"):
            file.unlink()
        yield
    finally:
        os.close(lock)


def remove_others(folder: Path, checkpoint: str, revision: str) -> None:
    """Delete cells of another model of the same name, lest two models be mistaken for one."""
    for file in sorted(folder.glob(f"{checkpoint}-val-*.info.json")):
        if f'"revision": "{revision}"'.encode() not in file.read_bytes():  # whatever else it holds
            file.unlink()
            file.with_name(file.name.replace(".info.json", ".json")).unlink(missing_ok=True)


def write_cell(
    cell: CellFiles,
    source: CellInputs,
    votes: ValidationSlice,
    ids: IntArray,
    labels: IntArray,
    predictions: Prediction,
    about: dict[str, Any],
) -> dict[str, Any]:
    """Write the rows, then the info file; return what that holds: `about`, with `loss_type`, and more.

    `ids` (N,) are those of the slice's votes that are between models of the checkpoint's list, `labels` (N, 3) refer to
    that list, and `predictions` are for the prompt of each of the N votes.
    """
    cell.info_file.unlink(missing_ok=True)  # it is of the rows that are replaced now
    _write_rows(cell.rows_file, votes, ids, labels, predictions)
    info = about | {
        "source": asdict(source),
        "checkpoint": cell.checkpoint,
        "slice": cell.slice,
        "slice_file": votes.file.name,
        "votes": len(ids),
        "left_out": len(votes.votes) - len(ids),
        "prompts": len(np.unique(votes.prompts[ids])),
        "truncated": int(predictions.truncated.sum()),
        "metrics": _metrics(predictions, labels, about["loss_type"]),
    }
    write_json(cell.info_file, info, indent=2)
    return info


def _write_rows(path: Path, votes: ValidationSlice, ids: IntArray, labels: IntArray, predictions: Prediction) -> None:
    batch = as_batch(predictions)
    with json_array(path) as write:
        for start in range(0, len(ids), _ROWS):
            part = slice(start, start + _ROWS)
            rows = votes.votes.rows(ids[part])
            named = [row | {"labels": label} for row, label in zip(rows, labels[part].tolist(), strict=True)]
            for record in json_records(named, batch.slice(start, _ROWS)):
                write(record)


def _metrics(predictions: Prediction, labels: IntArray, loss_type: str) -> dict[str, float | None]:
    if not len(labels):
        return dict.fromkeys(METRICS)
    return simple_metrics(predictions.coefs, labels, predictions.eta, predictions.gamma, likelihood=loss_type)


# Figures of loss matrices: a heat map and lines for one run, lines of the last checkpoints for several.
#
# Shapes: C checkpoints, S slices.

_UNITS = {"Loss": "nats per vote", "BCELoss": "nats per decided vote"}
_SLICES = "slice (batch of the stream at its end)"
_MARKERS = "osD^vPX*"
_GRID, _NONE = "#dddddd", "#f2f2f2"


def _axis_name(metric: str) -> str:
    unit = f" in {_UNITS[metric]}" if metric in _UNITS else ""
    return f"{metric}{unit} ({'higher' if more_is_better(metric) else 'lower'} is better)"


def draw_heat_map(matrix: Matrix) -> Figure:
    """Draw a cell for each checkpoint and slice, its value to three decimals; a line separates later slices."""
    from matplotlib import colormaps

    rows, columns = matrix.values.shape
    figure = new_figure(max(5.5, 2.6 + 0.5 * columns), max(3.0, 1.9 + 0.3 * rows))
    axis = figure.subplots()
    axis.set_facecolor(_NONE)  # shows where nothing was asked
    # Dark for bad, light for good, in steps of equal lightness.
    colours = colormaps["cividis" if more_is_better(matrix.metric) else "cividis_r"]
    image = axis.imshow(np.ma.masked_invalid(matrix.values), cmap=colours, aspect="auto")
    for row, column in np.argwhere(~np.isnan(matrix.values)):
        value = matrix.values[row, column]
        red, green, blue, _ = colours(image.norm(value))
        ink = "black" if 0.299 * red + 0.587 * green + 0.114 * blue > 0.5 else "white"
        axis.text(column, row, f"{value:.3f}", ha="center", va="center", fontsize=7, color=ink)
    _mark_later(axis, matrix)
    axis.set_xticks(range(columns), [str(number) for number in matrix.slices], rotation=45 if columns > 9 else 0)
    axis.set_yticks(range(rows), [str(number) for number in matrix.checkpoints])
    axis.tick_params(labelsize=8, length=0)
    axis.set_xlabel(_SLICES, fontsize=9)
    axis.set_ylabel("checkpoint", fontsize=9)
    axis.set_title(matrix.run, loc="left", fontsize=11)
    _bar(figure, image, axis, _axis_name(matrix.metric))
    return figure


def _bar(figure: Figure, values: Any, axis: Any, label: str) -> None:
    bar = figure.colorbar(values, ax=axis, pad=0.02)
    bar.set_label(label, fontsize=9)
    bar.ax.tick_params(labelsize=8)


def _mark_later(axis: Any, matrix: Matrix) -> None:
    """Draw a line between the slices behind a checkpoint and those ahead, where both have values."""
    later = matrix.later & ~np.isnan(matrix.values)
    if not later.any():
        return
    rows = later.any(axis=1)
    behind = (~matrix.later[rows]).sum(axis=1) - 0.5
    edges = np.append(np.flatnonzero(rows), rows.nonzero()[0][-1] + 1) - 0.5
    x, y = np.append(np.repeat(behind, 2), len(matrix.slices) - 0.5), np.append(np.repeat(edges, 2)[1:-1], edges[-1])
    axis.plot(x, y, color="white", linewidth=3.5, clip_on=False)
    axis.plot(x, y, color="#D55E00", linewidth=1.8, clip_on=False, label="to the right: not yet cast")
    axis.legend(loc="lower right", bbox_to_anchor=(1.0, 1.0), frameon=False, fontsize=8, borderaxespad=0.2)


def draw_lines(matrix: Matrix) -> Figure:
    """Draw a line for each checkpoint over the slices, from light (early) to dark (late); dashed over later slices."""
    from matplotlib import colormaps
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize

    figure = new_figure(8.6, 4.6)
    axis = figure.subplots()
    first, last = matrix.checkpoints[0], matrix.checkpoints[-1]
    scale = ScalarMappable(Normalize(first, last if last > first else first + 1), colormaps["viridis_r"])
    for row, checkpoint in enumerate(matrix.checkpoints):
        _line(axis, matrix, row, scale.cmap((checkpoint - first) / max(last - first, 1)), thick=checkpoint == last)
    _style(axis, matrix)
    axis.set_title(f"{matrix.run}: each line is a checkpoint", loc="left", fontsize=11)
    if (matrix.later & ~np.isnan(matrix.values)).any():
        axis.plot([], [], color="#555555", linestyle=(0, (2, 1.5)), label="slices that are later than the checkpoint")
        axis.legend(frameon=False, fontsize=8)
    _bar(figure, scale, axis, "checkpoint")
    return figure


def _line(axis: Any, matrix: Matrix, row: int, colour: Any, *, thick: bool) -> None:
    values, later = matrix.values[row], matrix.later[row]
    place, width = np.arange(len(values)), 2.4 if thick else 1.2
    axis.plot(place, np.where(later, np.nan, values), color=colour, linewidth=width, marker="o", markersize=3)
    # The dashed part starts where the whole one ends.
    ahead = later | np.append(later[1:], False)
    axis.plot(place, np.where(ahead, values, np.nan), color=colour, linewidth=0.8, linestyle=(0, (2, 1.5)))


def _style(axis: Any, matrix: Matrix) -> None:
    slices = matrix.slices
    axis.set_xticks(range(len(slices)), [str(number) for number in slices], rotation=45 if len(slices) > 12 else 0)
    axis.tick_params(labelsize=8)
    axis.set_xlabel(_SLICES, fontsize=9)
    axis.set_ylabel(_axis_name(matrix.metric), fontsize=9)
    axis.grid(axis="y", color=_GRID)
    axis.set_axisbelow(True)
    axis.spines[["top", "right"]].set_visible(False)


def draw_comparison(matrices: Sequence[Matrix], *, oracle: str | None = None, naive: str | None = None) -> Figure:
    """Draw the last checkpoint of each run over the slices, best first in the legend."""
    means = {one.run: MEASURES["final"](one) for one in matrices}
    sign = -1 if more_is_better(matrices[0].metric) else 1
    order = sorted(matrices, key=lambda one: (np.isnan(means[one.run]), sign * means[one.run]))
    everywhere = max(matrices, key=lambda one: len(one.slices))
    slices = sorted({number for one in matrices for number in one.slices})
    figure = new_figure(9.2, 4.6 + 0.12 * len(order))
    axis = figure.subplots()
    place = {number: column for column, number in enumerate(slices)}
    labels = {run: f"{run} ({mean:.4f})" for run, mean in means.items()}
    others = [one.run for one in order if one.run not in (oracle, naive)]
    for one in order:
        style = _line_style(one.run, others, oracle)
        axis.plot([place[number] for number in one.slices], one.values[-1], label=labels[one.run], **style)
    _style(axis, Matrix("", everywhere.metric, [], slices, everywhere.values, everywhere.votes, everywhere.later))
    axis.set_title("Last checkpoint of each run (mean over its slices), best first", loc="left", fontsize=11)
    longest = max(map(len, labels.values()))
    figure.legend(
        loc="outside lower center", ncols=max(1, min(3, len(order), 90 // longest)), frameon=False, fontsize=8
    )
    return figure


def _line_style(run: str, others: Sequence[str], oracle: str | None) -> dict[str, Any]:
    """Return black for the oracle, grey for the naive run, and a colour and marker for each of the others."""
    if run not in others:
        colour, dashes = ("black", "-") if run == oracle else ("#777777", "--")
        return {"color": colour, "linestyle": dashes, "linewidth": 1.8, "marker": "", "zorder": 3}
    number = others.index(run)
    return {
        "color": COLOURS[number % len(COLOURS)],
        "linestyle": ("-", "--", ":")[number // len(COLOURS) % 3],
        "marker": _MARKERS[(number + number // len(COLOURS)) % len(_MARKERS)],
        "linewidth": 1.4,
        "markersize": 4,
    }


_ENDINGS = (".png", ".svg")
_SHARES = ("closed", "closed_absolute")


def write_report(
    matrices: Sequence[Matrix],
    folder: Path,
    *,
    oracle: str | None = None,
    naive: str | None = None,
    figures: bool = True,
    most: int | None = None,
) -> str:
    """Write matrices, figures and measures of the runs into a folder; return a table with notes.

    | file | holds |
    |---|---|
    | RUN.json, RUN.csv | the matrix |
    | RUN-heat-map, RUN-lines | figures of one run, .png and .svg |
    | comparison | figure of several runs, .png and .svg |
    | summary.json, summary.csv | the measures of `p2l.chrono.matrix` |

    Without `figures` matplotlib is not needed; `most` is the number of rows of the table, None for all.
    """
    for matrix in matrices:
        write_matrix(matrix, folder)
    if figures:
        _draw_all(matrices, folder, oracle, naive)
    table = compare_runs(matrices, oracle=oracle, naive=naive)
    _write_summary(table, folder)
    return "\n".join([_render(table, most), *notes_on(matrices, oracle, naive), f"wrote {folder}"])


def notes_on(matrices: Sequence[Matrix], oracle: str | None, naive: str | None) -> list[str]:
    """Return what a reader who compares runs must know."""
    return [*_notes(matrices), *_noise(matrices, oracle, naive)]


def _draw_all(matrices: Sequence[Matrix], folder: Path, oracle: str | None, naive: str | None) -> None:
    for matrix in matrices:
        for draw, name in ((draw_heat_map, "heat-map"), (draw_lines, "lines")):
            save_figure(draw(matrix), *(folder / f"{matrix.run}-{name}{ending}" for ending in _ENDINGS))
    if len(matrices) > 1:
        figure = draw_comparison(matrices, oracle=oracle, naive=naive)
        save_figure(figure, *(folder / f"comparison{ending}" for ending in _ENDINGS))


def _write_summary(table: Mapping[str, Mapping[str, float | None]], folder: Path) -> None:
    write_json(folder / "summary.json", table, indent=2)
    names = list(next(iter(table.values())))
    write_csv(folder / "summary.csv", ["run", *names], [[run, *map(row.get, names)] for run, row in table.items()])


def _render(table: Mapping[str, Mapping[str, float | None]], most: int | None) -> str:
    names = [name for name in next(iter(table.values())) if any(row[name] is not None for row in table.values())]
    rows = [[run, *(_text(name, row[name]) for name in names)] for run, row in table.items()]
    return "\n".join(text_table(["run", *names], rows, most=most))


def _text(name: str, value: float | None) -> str:
    if value is None:
        return "-"
    return formatted(value, ".1%" if name in _SHARES else ".4f")


def _noise(matrices: Sequence[Matrix], oracle: str | None, naive: str | None) -> list[str]:
    """Return a note where the naive run's gap is noise, so that no share of it is stated."""
    by_name = {matrix.run: matrix for matrix in matrices}
    if oracle is None or naive is None or oracle == naive:
        return []
    ends = by_name[oracle], by_name[naive]
    if not is_noise(*ends, ends[1]):
        return []
    gap, error = gap_to(*ends), gap_error(*ends)
    return [
        f"note: the gap of {naive} to {oracle}, {gap:+.4f} with a standard error of {error:.4f}, is within its noise: "
        "no share of it is stated (more votes a slice, or more slices, would tell)."
    ]


def _notes(matrices: Sequence[Matrix]) -> list[str]:
    notes = []
    if len({tuple(matrix.slices) for matrix in matrices}) > 1:
        notes.append("note: the runs were asked about different slices; gaps are over those that two runs share.")
    votes = [dict(zip(one.slices, one.votes[-1].tolist(), strict=True)) for one in matrices]
    shared = set.intersection(*(set(one) for one in votes))
    if any(len({one[number] for one in votes if not np.isnan(one[number])}) > 1 for number in shared):
        notes.append("note: the runs know different models, so that slices hold different votes for each of them.")
    return notes
