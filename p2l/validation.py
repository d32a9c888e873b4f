"""Validation inside a training run: coefficients for every validation vote, their metrics, the two result files."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from p2l.command import atomic_path
from p2l.engine import Engine
from p2l.likelihood import Likelihood
from p2l.metrics import simple_metrics
from p2l.votes import VoteStore
from p2l.windows import Windows

__all__ = ["Predictions", "summarise", "validate", "write_results"]

Floats = NDArray[np.float32]
_ROWS = 1024  # votes looked at, and rows of the output file made, at a time


@dataclass(frozen=True)
class Predictions:
    """What the model says of N prompts: coefs (N, M), and eta, gamma (N,) where the head has them."""

    coefs: Floats
    eta: Floats | None
    gamma: Floats | None


def validate(engine: Engine, windows: Windows) -> Predictions | None:
    """Coefficients for the prompt of every vote, on rank 0; None on the others (every rank must call this)."""
    numbers, blocks = [], []
    count = len(windows.votes)
    starts = range(0, count, _ROWS)
    for ids, parts in windows.read_ahead(np.arange(start, min(start + _ROWS, count)) for start in starts):
        for part in engine.even_out(parts, windows.filler):
            output = engine.predict(part.batch)
            columns = [
                values.cpu().numpy() for values in (output.coefs, output.eta, output.gamma) if values is not None
            ]
            numbers.append(ids[part.votes])
            blocks.append(np.column_stack(columns)[part.prompt.numpy()])
    gathered = engine.gather((np.concatenate(numbers), np.concatenate(blocks)))
    if gathered is None:
        return None
    order = np.argsort(np.concatenate([ids for ids, _ in gathered]))
    table = np.concatenate([values for _, values in gathered])[order]
    return _split(table, len(engine.model.model_list))


def _split(table: Floats, num_models: int) -> Predictions:
    scalars = [table[:, column] for column in range(num_models, table.shape[1])]
    eta, gamma = [*scalars, None, None][:2]
    return Predictions(table[:, :num_models], eta, gamma)


def summarise(predictions: Predictions, votes: VoteStore, likelihood: Likelihood) -> dict[str, float]:
    """The simple metrics of the predictions, those that mean something under this likelihood."""
    labels = votes.labels(np.arange(len(votes)))
    values = simple_metrics(predictions.coefs, labels, predictions.eta, predictions.gamma, likelihood=likelihood)
    return {name: value for name, value in values.items() if value is not None and math.isfinite(value)}


def write_results(folder: Path, predictions: Predictions, votes: VoteStore, likelihood: Likelihood) -> None:
    """Write `eval_results.json` (metrics) and `eval_output.jsonl` (validation rows with `betas`, `eta`, `gamma`)."""
    with atomic_path(folder / "eval_results.json") as temporary:
        results = {"votes": len(votes), **summarise(predictions, votes, likelihood)}
        temporary.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
    with atomic_path(folder / "eval_output.jsonl") as temporary, temporary.open("w", encoding="utf-8") as file:
        for row in _rows(predictions, votes):
            file.write(json.dumps(row, ensure_ascii=False, default=str) + "\n")


def _rows(predictions: Predictions, votes: VoteStore) -> Iterator[dict[str, object]]:
    for start in range(0, len(votes), _ROWS):
        ids = np.arange(start, min(start + _ROWS, len(votes)))
        labels = votes.labels(ids)
        for place, (number, row) in enumerate(zip(ids, votes.rows(ids), strict=True)):
            row |= {"labels": labels[place].tolist(), "betas": predictions.coefs[number].tolist()}
            for name in ("eta", "gamma"):
                values = getattr(predictions, name)
                if values is not None:
                    row[name] = float(values[number])
            yield row
