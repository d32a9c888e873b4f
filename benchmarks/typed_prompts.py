"""Boards by the public model for prompts that people typed: how far they are from the overall one, and what they say.

    python -m benchmarks.typed_prompts DATA_DIR

DATA_DIR holds `cje_arena_scores.parquet`, whose prompts were typed into an arena; fifty are drawn. A board differs
where a model that has answered prompts with a text moves by at least `_LEAST_MOVE` points against the overall board. It
explains itself where the model says that the prompt is not, or not quite, like those it was made of.

Shapes: n prompts, M models.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

from benchmarks.tables import table
from p2l import P2L
from p2l.common.cli import parser, run
from p2l.common.prompts import familiarity_note
from p2l.public.sample import public_sample

_PROMPTS = 50
_SAMPLED_VOTES = 300
"""Votes of the real sample over whose prompts the overall board is a mean."""
_LEAST_MOVE, _CLEAR_MOVE = 10.0, 25.0
"""Points: of votes between equal models one wins 51.4 %, and 53.6 %."""
_SHOWN_CHARS = 48


def build_parser() -> argparse.ArgumentParser:
    """Return the flags of the benchmark."""
    flags = parser("python -m benchmarks.typed_prompts", "Compare boards of typed prompts with the overall board.")
    flags.add_argument("data", metavar="DATA_DIR", type=Path, help="folder with cje_arena_scores.parquet")
    flags.add_argument("--all", action="store_true", help="also print a line for each prompt")
    return flags


def main(argv: Sequence[str] | None = None) -> None:
    """Print how many boards differ, and how many say why not."""
    flags = build_parser().parse_args(argv)
    typed = pq.read_table(flags.data / "cje_arena_scores.parquet", columns=["prompt"]).column("prompt").to_pylist()
    distinct = sorted(set(typed))
    drawn = np.random.default_rng(0).choice(len(distinct), size=min(_PROMPTS, len(distinct)), replace=False)
    prompts = [distinct[place] for place in sorted(drawn)]
    model = P2L.public()
    sample = public_sample(_SAMPLED_VOTES, seed=0)
    usual = model.predict([list(turns) for turns in sample.column("prompt").to_pylist()]).coefs
    prediction = model.predict(prompts)
    tried = np.isin(model.model_list, sample.column("model_a").to_pylist())
    shift = _centred(prediction.coefs) - _centred(usual).mean(axis=0)
    points = 400 / np.log(10) * np.abs(shift[:, tried])
    familiarity = prediction.familiarity
    assert familiarity is not None, "the public model has a posterior"
    differs = points.max(axis=1) >= _LEAST_MOVE
    explains = np.array([bool(familiarity_note(float(value))) for value in familiarity])
    if flags.all:
        for row, prompt in enumerate(prompts):
            start = " ".join(prompt[:_SHOWN_CHARS].split())
            print(f"{points[row].max():5.0f} points, familiarity {familiarity[row]:.2f}  {start}")
    rows = [
        [f"a model moves by {_LEAST_MOVE:.0f} points at least", f"{differs.sum()} of {len(prompts)}"],
        [
            f"a model moves by {_CLEAR_MOVE:.0f} points",
            f"{(points.max(axis=1) >= _CLEAR_MOVE).sum()} of {len(prompts)}",
        ],
        ["of those where none does, the board says why", f"{(explains & ~differs).sum()} of {(~differs).sum()}"],
        ["board is partly or mostly the overall one, and says so", f"{explains.sum()} of {len(prompts)}"],
        ["largest move of a model, median over prompts, points", f"{np.median(points.max(axis=1)):.0f}"],
        ["largest move, least over prompts", f"{points.max(axis=1).min():.0f}"],
        ["another model leads than overall", f"{_leads_differ(prediction.coefs, usual, tried)} of {len(prompts)}"],
    ]
    print(table(["fifty prompts that people typed", "boards"], rows))


def _centred(coefs: np.ndarray) -> np.ndarray:
    """Return coefficients (n, M) with a mean of zero on each prompt: how far the models lie apart."""
    return np.asarray(coefs - coefs.mean(axis=1, keepdims=True), dtype=np.float64)


def _leads_differ(coefs: np.ndarray, usual: np.ndarray, tried: np.ndarray) -> int:
    """Return on how many prompts another of the tried models leads than over all prompts."""
    first = usual[:, tried].mean(axis=0).argmax()
    return int((coefs[:, tried].argmax(axis=1) != first).sum())


if __name__ == "__main__":
    run(main)
