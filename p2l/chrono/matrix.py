"""The loss matrix of a run: how well each checkpoint forecast the votes of each slice, from what eval_chrono wrote.

Shapes: C checkpoints, S slices, N votes of a cell, M models.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from p2l.checkpoint import read_json, read_object, write_json
from p2l.command import atomic_path, nearest
from p2l.errors import InputError
from p2l.likelihood import get
from p2l.metrics import METRICS, simple_metrics

__all__ = ["Matrix", "read_matrix", "write_matrix"]

Floats: TypeAlias = NDArray[np.float64]
_NAME = re.compile(r"(?P<folder>\D*(?P<checkpoint>\d+))-val-(?P<slice>\d+)\.json")
_LOSS_TYPE = "grk"  # of outputs that do not say theirs


@dataclass(frozen=True)
class Matrix:
    """One metric of one run; NaN where a checkpoint was not asked, or no vote of a slice counts."""

    run: str
    metric: str
    checkpoints: list[int]
    slices: list[int]
    values: Floats
    """(C, S)"""
    votes: Floats
    """(C, S) that count; NaN where it is not known"""
    later: NDArray[np.bool_]
    """(C, S) whether the slice is later than the checkpoint"""

    def to_dict(self) -> dict[str, dict[str, float | None]]:
        """{checkpoint: {slice: value}} of the cells that there are."""
        asked = ~np.isnan(self.values) | ~np.isnan(self.votes)
        return {
            str(checkpoint): {
                str(number): None if np.isnan(value) else float(value)
                for number, value, here in zip(self.slices, self.values[row], asked[row], strict=True)
                if here
            }
            for row, checkpoint in enumerate(self.checkpoints)
        }


@dataclass(frozen=True)
class _Cell:
    checkpoint: int
    slice: int
    value: float
    votes: float
    later: bool


def read_matrix(folder: Path, metric: str, *, run: str, loss_type: str | None = None) -> Matrix:
    """The matrix of what `p2l eval-chrono` wrote into a folder.

    Outputs without info files, as earlier releases wrote them, are scored from their rows.

    Args:
        folder: with checkpoint-C/checkpoint-C-val-V.json.
        metric: a name of `p2l.metrics.METRICS`.
        run: what to call it.
        loss_type: the likelihood of outputs that do not say theirs (grk).

    Raises:
        InputError: no such folder or metric, no outputs, one that cannot be read, or a contradicting likelihood.
    """
    if metric not in METRICS:
        raise InputError(f"unknown metric {metric!r}{nearest(metric, METRICS)}; known: {', '.join(METRICS)}")
    if not folder.is_dir():
        raise InputError(f"{folder}: no such folder; give the --output-dir of `p2l eval-chrono`")
    cells = list(_cells(folder, metric, loss_type))
    if not cells:
        raise InputError(f"{folder}: holds no checkpoint-N/checkpoint-N-val-V.json; `p2l eval-chrono` writes them")
    checkpoints, slices = (sorted({getattr(one, name) for one in cells}) for name in ("checkpoint", "slice"))
    values, votes = (np.full((len(checkpoints), len(slices)), np.nan) for _ in range(2))
    later = np.array([[number > checkpoint for number in slices] for checkpoint in checkpoints])
    for one in cells:
        place = checkpoints.index(one.checkpoint), slices.index(one.slice)
        values[place], votes[place], later[place] = one.value, one.votes, one.later
    return Matrix(run, metric, checkpoints, slices, values, votes, later)


def _cells(folder: Path, metric: str, loss_type: str | None) -> Iterator[_Cell]:
    for file in sorted(folder.glob("*/*-val-*.json")):
        match = _NAME.fullmatch(file.name)
        if match is None or match["folder"] != file.parent.name:
            continue
        info = read_object(file.with_suffix(".info.json"), missing={})
        if info and loss_type is not None and get(loss_type).name != info["loss_type"]:
            raise InputError(f"{file}: was written under {info['loss_type']}, not {loss_type}; leave out --loss-type")
        found = info["metrics"] if info else _score(file, metric, loss_type or _LOSS_TYPE)
        if metric not in found:
            raise InputError(f"{file}: was written without {metric}; `p2l eval-chrono --restart` writes it")
        value, votes = found[metric], (info or found)["votes"]
        checkpoint, number = int(match["checkpoint"]), int(match["slice"])
        later = bool(info.get("later", number > checkpoint))
        yield _Cell(checkpoint, number, np.nan if value is None else float(value), float(votes), later)


def _score(file: Path, metric: str, loss_type: str) -> dict[str, Any]:
    rows = read_json(file)
    if not isinstance(rows, list):
        raise InputError(f"{file}: must be an array of rows, not {type(rows).__name__}")
    if not rows:
        return {metric: None, "votes": 0}
    try:
        labels = _labels(rows, bothbad="bothbad" in get(loss_type).outcomes)
        coefs = np.array([np.reshape(row["coefs"], -1) for row in rows], dtype=np.float64)
        eta, gamma = (_column(rows, name) for name in ("eta", "gamma"))
        if labels[:, :2].max() >= coefs.shape[1]:
            raise InputError(f"{file}: labels lie outside its {coefs.shape[1]} coefficients")
        return {**simple_metrics(coefs, labels, eta, gamma, likelihood=loss_type, names=[metric]), "votes": len(rows)}
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"{file}: rows need columns labels and coefs (and eta): {error!r}") from error


def _labels(rows: list[dict[str, Any]], *, bothbad: bool) -> NDArray[np.int64]:
    """(N, 3); a list, or a text such as `[ 1 2 0]`, which only says of a both-bad vote that it is a tie."""
    import pyarrow as pa

    from p2l.votes.schema import parse_labels

    texts = [label if isinstance(label, str) else str(list(label)) for label in (row["labels"] for row in rows)]
    found = parse_labels(pa.array(texts))
    if not found.valid.all():
        raise ValueError(f"labels {texts[int(np.argmin(found.valid))]!r} are not [winner, loser, tie]")
    labels = np.array(found.triples)
    if bothbad:
        labels[[row.get("winner") == "tie (bothbad)" for row in rows], 2] = 2
    return labels


def _column(rows: list[dict[str, Any]], name: str) -> Floats | None:
    if rows[0].get(name) is None:
        return None
    return np.array([np.reshape(row[name], -1)[0] for row in rows], dtype=np.float64)


def write_matrix(matrix: Matrix, folder: Path) -> list[Path]:
    """Write RUN.json, `{checkpoint: {slice: value}}`, and RUN.csv, a row for each checkpoint; returns their paths.

    Raises:
        InputError: a file cannot be written.
    """
    as_json, as_csv = (folder / f"{matrix.run}{ending}" for ending in (".json", ".csv"))
    with atomic_path(as_json) as temporary:
        write_json(temporary, matrix.to_dict())
    with atomic_path(as_csv) as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(["checkpoint", *matrix.slices])
        for checkpoint, row in zip(matrix.checkpoints, matrix.values, strict=True):
            table.writerow([checkpoint, *("" if np.isnan(value) else repr(float(value)) for value in row)])
    return [as_json, as_csv]
