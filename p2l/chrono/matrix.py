"""The loss matrix of a run (how well each checkpoint forecast the votes of each slice), its plan and its measures.

Shapes: C checkpoints, S slices, N votes of a cell, M models.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from p2l.common.cli import nearest
from p2l.common.errors import InputError
from p2l.common.files import parse_json, write_json
from p2l.common.report.tables import Column, Table
from p2l.common.report.text import write_csv
from p2l.likelihood import get
from p2l.metrics import METRICS, simple_metrics
from p2l.model.checkpoint import read_json, read_object

Floats: TypeAlias = NDArray[np.float64]
_NAME = re.compile(r"(?P<folder>\D*(?P<checkpoint>\d+))-val-(?P<slice>\d+)\.json")
_LOSS_TYPE = "grk"  # of outputs that do not record theirs


@dataclass(frozen=True)
class Matrix:
    """One metric of one run, over checkpoints and slices."""

    run: str
    metric: str
    checkpoints: list[int]
    slices: list[int]
    values: Floats  # (C, S), NaN where a checkpoint was not asked or no vote counts
    votes: Floats  # (C, S), NaN where their number is unknown
    later: NDArray[np.bool_]  # (C, S) whether the slice is later than the checkpoint

    def to_dict(self) -> dict[str, dict[str, float | None]]:
        """Return {checkpoint: {slice: value}} of the cells that exist."""
        is_filled = ~np.isnan(self.values) | ~np.isnan(self.votes)
        return {
            str(checkpoint): {
                str(number): None if np.isnan(value) else float(value)
                for number, value, here in zip(self.slices, self.values[row], is_filled[row], strict=True)
                if here
            }
            for row, checkpoint in enumerate(self.checkpoints)
        }


def read_matrix(folder: Path, metric: str, *, run: str, loss_type: str | None = None) -> Matrix:
    """Read what `p2l eval-chrono` wrote into a folder; outputs without info files are scored from their rows.

    `loss_type` is the likelihood of outputs that do not record theirs (grk by default). Raise InputError for an unknown
    metric, outputs that are absent or unreadable, or a contradicting likelihood.
    """
    if metric not in METRICS:
        raise InputError(f"unknown metric {metric!r}{nearest(metric, METRICS)}; known: {', '.join(METRICS)}")
    if not folder.is_dir():
        raise InputError(f"{folder}: no such folder; give the --output-dir of `p2l eval-chrono`")
    cells = dict(_cells(folder, metric, loss_type))
    if not cells:
        raise InputError(f"{folder}: holds no checkpoint-N/checkpoint-N-val-V.json; `p2l eval-chrono` writes them")
    checkpoints, slices = (sorted({place[side] for place in cells}) for side in (0, 1))
    values, votes = (np.full((len(checkpoints), len(slices)), np.nan) for _ in range(2))
    later = np.array([[number > checkpoint for number in slices] for checkpoint in checkpoints])
    for (checkpoint, number), cell in cells.items():
        place = checkpoints.index(checkpoint), slices.index(number)
        values[place], votes[place], later[place] = cell
    return Matrix(
        run=run,
        metric=metric,
        checkpoints=checkpoints,
        slices=slices,
        values=values,
        votes=votes,
        later=later,
    )


def _cells(
    folder: Path, metric: str, loss_type: str | None
) -> Iterator[tuple[tuple[int, int], tuple[float, float, bool]]]:
    """Yield checkpoint and slice with value, votes, and whether the slice is later."""
    for file in sorted(folder.glob("*/*-val-*.json")):
        match = _NAME.fullmatch(file.name)
        if match is None or match["folder"] != file.parent.name:
            continue
        info = read_object(file.with_suffix(".info.json"), missing={})
        if info and loss_type is not None and get(loss_type).name != info["loss_type"]:
            raise InputError(f"{file}: was written under {info['loss_type']}, not {loss_type}; leave out --loss-type")
        metrics = info["metrics"] if info else _score(file, metric, loss_type or _LOSS_TYPE)
        if metric not in metrics:
            raise InputError(f"{file}: was written without {metric}; `p2l eval-chrono --restart` writes it")
        value, votes = metrics[metric], (info or metrics)["votes"]
        checkpoint, number = int(match["checkpoint"]), int(match["slice"])
        later = bool(info.get("later", number > checkpoint))
        yield (checkpoint, number), (np.nan if value is None else float(value), float(votes), later)


def _score(file: Path, metric: str, loss_type: str) -> dict[str, Any]:
    rows = read_json(file)
    if not isinstance(rows, list):
        raise InputError(f"{file}: must be an array of rows, not {type(rows).__name__}")
    if not rows:
        return {metric: None, "votes": 0}
    try:
        labels = _labels(rows, bothbad="bothbad" in get(loss_type).outcomes)
        coefs = np.array([np.reshape(row["coefs"], -1) for row in rows], dtype=np.float64)
        eta, gamma = (
            None if rows[0].get(name) is None else np.array([np.reshape(row[name], -1)[0] for row in rows], np.float64)
            for name in ("eta", "gamma")
        )
        if labels[:, :2].max() >= coefs.shape[1]:
            raise InputError(f"{file}: labels lie outside its {coefs.shape[1]} coefficients")
        return {**simple_metrics(coefs, labels, eta, gamma, likelihood=loss_type, names=[metric]), "votes": len(rows)}
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"{file}: rows need columns labels and coefs (and eta): {error!r}") from error


def _labels(rows: list[dict[str, Any]], *, bothbad: bool) -> NDArray[np.int64]:
    """Return labels (N, 3); texts such as `[ 1 2 0]` say of a both-bad vote only that it is a tie."""
    import pyarrow as pa

    from p2l.votes.schema import parse_labels

    texts = [label if isinstance(label, str) else str(list(label)) for label in (row["labels"] for row in rows)]
    parsed = parse_labels(pa.array(texts))
    if not parsed.valid.all():
        raise ValueError(f"labels {texts[int(np.argmin(parsed.valid))]!r} are not [winner, loser, tie]")
    labels = np.array(parsed.triples)
    if bothbad:
        labels[[row.get("winner") == "tie (bothbad)" for row in rows], 2] = 2
    return labels


def write_matrix(matrix: Matrix, folder: Path) -> list[Path]:
    """Write RUN.json, `{checkpoint: {slice: value}}`, and RUN.csv, a row for each checkpoint; return their paths."""
    as_json, as_csv = (folder / f"{matrix.run}{ending}" for ending in (".json", ".csv"))
    write_json(as_json, matrix.to_dict(), indent=2)
    columns = [Column("Checkpoint"), *(Column(str(number)) for number in matrix.slices)]
    rows = zip(matrix.checkpoints, matrix.values.tolist(), strict=True)
    write_csv(Table(columns, [[checkpoint, *values] for checkpoint, values in rows]), as_csv)
    return [as_json, as_csv]


# The slices that a checkpoint is evaluated on.
#
# By number: those up to its own. By time: a checkpoint c of a run that saves every f batches is asked about the slices
# that ended before T, the latest time of a vote in its last f batches (those numbered c - f to c - 1, from 0).

Plan = dict[int, list[int]]  # checkpoint: the numbers of its slices, both in order


def by_number(checkpoints: Sequence[int], slices: Sequence[int], *, all_slices: bool = False) -> Plan:
    """Plan the slices up to each checkpoint, or all; InputError if every slice is later than all checkpoints."""
    return _checked({c: [v for v in slices if all_slices or v <= c] for c in checkpoints}, slices)


def by_time(
    checkpoints: Sequence[int], slices: Sequence[int], train: Mapping[int, float], val: Mapping[int, float]
) -> Plan:
    """Plan for each checkpoint the slices that ended before its last votes; numbers are in order.

    `train` and `val` are the last vote time, in seconds, of each training batch and of each slice. Raise InputError
    for checkpoints that are not evenly spaced, or a batch or slice without a time.
    """
    spacing = checkpoints[0]
    for place, number in enumerate(checkpoints, 1):
        if spacing < 1 or number != place * spacing:
            raise InputError(
                f"--time-align needs checkpoints at even distances, each a multiple of the first, {spacing}; "
                f"{number} is number {place}: remove it or those around it"
            )
    missing = next((number for number in slices if number not in val), None)
    if missing is not None:
        raise InputError(f"--val-time: has no time of slice {missing}")
    plan: Plan = {}
    for end in checkpoints:
        # A buffer may have trained on votes that are older, or newer, than the number of the batch says.
        batches = range(end - spacing, end)
        missing = next((batch for batch in batches if batch not in train), None)
        if missing is not None:
            raise InputError(f"--train-time: has no time of batch {missing}, which checkpoint {end} was trained on")
        latest = max(train[batch] for batch in batches)
        plan[end] = [number for number in slices if val[number] < latest]
    return _checked(plan, slices)


def _checked(plan: Plan, slices: Sequence[int]) -> Plan:
    if not any(plan.values()):
        raise InputError(
            f"no checkpoint (the last is {max(plan)}) is as late as a slice (the first is {min(slices)}); "
            "give slices of the run's own time"
        )
    return plan


def read_times(path: str) -> dict[int, float]:
    """Read times in seconds by number, from a JSON object of `{"end_tstamp": seconds}` by number."""
    try:
        content = parse_json(Path(path).expanduser().read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: cannot be read as JSON: {error}") from error
    if not isinstance(content, dict) or not content:
        raise InputError(f'{path}: must be an object such as {{"0": {{"end_tstamp": 1.7e9}}}}')
    times: dict[int, float] = {}
    for key, value in content.items():
        if not key.isdecimal():
            raise InputError(f"{path}: key {key!r} is not a number of a batch or slice")
        seconds = value.get("end_tstamp") if isinstance(value, dict) else value
        if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not math.isfinite(seconds):
            raise InputError(f"{path}: key {key!r} must hold {{'end_tstamp': seconds}}, not {value!r:.60}")
        times[int(key)] = float(seconds)
    return times


# Measures of a run in one number each: how good it ended, how it went, what it forgot.
#
# With L[c, s] the loss of checkpoint c on slice s (for metrics where more is better, read all differences the other way
# round, so that positive always means better):
#
#     final       mean over slices of the last checkpoint
#     newest      the last checkpoint on the newest slice
#     so_far      mean over checkpoints of the mean over the slices so far: the area under the time-aligned curve
#     next        mean over checkpoints of the first slice that is later
#     backward    backward transfer: what the last checkpoint gained on a slice over the first checkpoint that had its
#                 time behind it, mean over slices but the newest; negative: it has forgotten
#     forward     forward transfer: what the last checkpoint before a slice gained on it over the first checkpoint
#
# Measures without their cells are None (`next` and `forward` need `--all-slices`).
#
# Against an oracle run (shuffled data), over the slices that both final checkpoints were asked about:
#
#     gap         mean by which the run is worse; gap_absolute: mean of the absolute differences
#     gap_error   standard error of the gap, from the scatter around a straight line over the slices
#     closed      1 - gap / gap of a naive run, over the slices of all three; closed_absolute: of the absolute ones;
#                 None where the naive run's gap is within two of its standard errors
#
# Shapes: C checkpoints, S slices.


def more_is_better(metric: str) -> bool:
    """Return whether larger values are better."""
    return metric.endswith("Accuracy")


def measure_run(matrix: Matrix) -> dict[str, float | None]:
    """Return every measure of one run; None where its cells are missing."""
    behind = np.where(matrix.later, np.nan, matrix.values)
    ahead = np.where(matrix.later, matrix.values, np.nan)
    last_before = np.array([_first(column[::-1]) for column in ahead.T])
    is_asked_again = (~np.isnan(ahead)).sum(axis=0) > 1
    measures = {
        "final": known_mean(matrix.values[-1]),
        "newest": float(matrix.values[-1, -1]),
        "so_far": known_mean(np.array([known_mean(row) for row in behind])),
        "next": known_mean(np.array([_first(row) for row in ahead])),
        "backward": known_mean(gains_again(matrix)),
        "forward": known_mean(_gain(matrix.metric, ahead[0], last_before)[is_asked_again]),
    }
    return {name: _plain(value) for name, value in measures.items()}


def compare_runs(
    matrices: Sequence[Matrix], *, oracle: str | None = None, naive: str | None = None
) -> dict[str, dict[str, float | None]]:
    """Return the measures of each run by its name, with gaps to the oracle and shares of the naive run's gap closed."""
    by_name = {matrix.run: matrix for matrix in matrices}
    table = {name: measure_run(matrix) for name, matrix in by_name.items()}
    if oracle is None:
        return table
    for name, matrix in by_name.items():
        table[name]["gap_error"] = _plain(gap_error(by_name[oracle], matrix))
        for ending, is_absolute in (("", False), ("_absolute", True)):
            table[name][f"gap{ending}"] = _plain(gap_to(by_name[oracle], matrix, absolute=is_absolute))
            if naive is not None:
                ends = by_name[oracle], by_name[naive]
                whole = gap_to(*ends, matrix, absolute=is_absolute)
                left = gap_to(ends[0], matrix, ends[1], absolute=is_absolute)
                is_stated = whole != 0.0 and not is_noise(ends[0], matrix, ends[1])
                table[name][f"closed{ending}"] = _plain(1.0 - left / whole) if is_stated else None
    return table


def gap_to(oracle: Matrix, run: Matrix, *others: Matrix, absolute: bool = False) -> float:
    """Return the mean loss of the run's last checkpoint against the oracle's, over the slices of these and `others`."""
    worse = last_gaps(oracle, run, *others)
    return known_mean(np.abs(worse) if absolute else worse)


def gap_error(oracle: Matrix, run: Matrix, *others: Matrix) -> float:
    """Return the standard error of `gap_to`, NaN with fewer than three slices.

    Forgetting makes a gap grow or shrink over the slices; the scatter around a straight line over them is noise.
    """
    worse = last_gaps(oracle, run, *others)
    if len(worse) < 3:
        return np.nan
    place = np.arange(len(worse), dtype=np.float64)
    scatter = worse - np.polyval(np.polyfit(place, worse, 1), place)
    return math.sqrt(float((scatter**2).sum()) / (len(worse) - 2) / len(worse))


_NOISE_ERRORS = 2.0  # standard errors within which a gap is noise


def is_noise(oracle: Matrix, run: Matrix, naive: Matrix) -> bool:
    """Return whether the naive run's gap, over the slices of all three, is too small for shares of it to mean much."""
    return abs(gap_to(oracle, naive, run)) <= _NOISE_ERRORS * gap_error(oracle, naive, run)


def last_gaps(oracle: Matrix, run: Matrix, *others: Matrix) -> Floats:
    """Return by how much the run's last checkpoint is worse than the oracle's, on each slice that all have."""
    by_slice = [
        {number: value for number, value in zip(matrix.slices, matrix.values[-1], strict=True) if not np.isnan(value)}
        for matrix in (oracle, run, *others)
    ]
    common = [number for number in by_slice[1] if all(number in values for values in by_slice)]
    of_oracle, of_run = (np.array([values[number] for number in common]) for values in by_slice[:2])
    return _gain(oracle.metric, of_run, of_oracle)


def _gain(metric: str, before: Floats, after: Floats) -> Floats:
    return after - before if more_is_better(metric) else before - after


def known_mean(values: Floats) -> float:
    """Return the mean of the values that are not NaN; NaN without any."""
    numbers = values[~np.isnan(values)]
    return float(numbers.mean()) if len(numbers) else np.nan


def _plain(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


def gains_again(matrix: Matrix) -> Floats:
    """Return the gains of the last checkpoint on slices that an earlier one had behind it too, without the newest."""
    behind = np.where(matrix.later, np.nan, matrix.values)[:, :-1]
    first = np.array([_first(column) for column in behind.T])
    asked_again = (~np.isnan(behind)).sum(axis=0) > 1
    gains = _gain(matrix.metric, first, behind[-1])[asked_again]
    return np.asarray(gains[~np.isnan(gains)])


def _first(values: Floats) -> float:
    """Return the first value that is not NaN; NaN without any."""
    numbers = values[~np.isnan(values)]
    return float(numbers[0]) if len(numbers) else np.nan
