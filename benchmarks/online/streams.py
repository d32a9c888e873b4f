"""The streams that the benchmark trains on: a simulated arena with a known truth, and real votes without prompt texts.

Shapes: N training votes in order of arrival, n held-out votes in slices, M models in order of first appearance.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from p2l.common.errors import InputError
from p2l.simulate import write_arena
from p2l.simulation.arena import simulate
from p2l.simulation.config import SimulationConfig
from p2l.votes import VoteStore, open_votes

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["ARENA", "BATCHES", "SLICES", "Stream", "best_loss", "real", "simulated"]

Ints = NDArray[np.int64]
BATCHES = 4391
"""Batches of a stream, as in the published runs: a batch is so large a part of it."""
SLICES = 17
_BATCHES_PER_SLICE = 256
_BATCH, _HELD_OUT_PER_BATCH = 46, 2
ARENA = SimulationConfig(
    votes=_BATCH * BATCHES,
    validation_votes=_HELD_OUT_PER_BATCH * BATCHES,
    models=64,
    topics=16,
    languages=2,
    effect=1.8,
    drift=0.1,
    fashion=3.0,
    turnover=0.5,
    lifetime=120.0,
    growth=1.5,
    days=730.0,
    structures=(1.0, 0.0, 0.0, 0.0),
)
"""64 models over 24 months. What people ask changes, and so do the words for it; a model stays for four months."""


@dataclass(frozen=True)
class Stream:
    """Training votes in order of arrival and held-out votes of the same time."""

    name: str
    folder: Path
    model_list: list[str]
    pairs: Ints
    """(N, 2) models of each training vote."""
    tstamp: NDArray[np.float64]
    """(N,) seconds; NaN where unknown."""
    slices: Ints
    """(n,) slice of each held-out vote, 1 to 17; 0: it is not used."""
    held_pairs: Ints
    """(n, 2)"""
    outcomes: NDArray[np.float64]
    """(n, 4) what a loss is the mean of: the true probability of each outcome, or one for the one that was voted."""

    @property
    def batch_size(self) -> int:
        """Votes of a batch."""
        return len(self.pairs) // BATCHES

    @property
    def positions(self) -> list[int]:
        """Votes that have arrived at each checkpoint, the end of each slice."""
        return [_BATCHES_PER_SLICE * self.batch_size * number for number in range(1, SLICES + 1)]

    @cached_property
    def votes(self) -> VoteStore:
        """The training votes."""
        return open_votes(str(self.folder / "votes.parquet"), model_list=self.model_list)

    @cached_property
    def held_out(self) -> VoteStore:
        """The held-out votes, slices and others."""
        return open_votes(str(self.folder / "held_out.parquet"), model_list=self.model_list, drop_unknown=False)

    @cached_property
    def votes_before(self) -> Ints:
        """(17, M) votes of each model that had arrived at each checkpoint."""
        models = len(self.model_list)
        return np.stack([np.bincount(self.pairs[:end].ravel(), minlength=models) for end in self.positions])


def simulated(work: Path, config: SimulationConfig = ARENA) -> Stream:
    """The simulated arena; its losses are expectations under the truth, so that no luck of the held-out votes is in."""
    arena = simulate(config)
    folder = _prepared(
        work / (f"simulated-{config.seed}" if config.seed else "simulated"),
        arena.to_dict(),
        lambda folder: write_arena(arena, folder / "votes.parquet", validation=folder / "held_out.parquet"),
    )
    truth = np.concatenate([chunk.probs for chunk in arena.chunks(validation=True)])
    return _stream("simulated", folder, truth)


def real(work: Path, path: Path, seed: int = 0) -> Stream:
    """Votes without times or texts: months in order, seeded within a month; a prompt says its tags.

    Raises:
        InputError: the file lacks a column.
    """
    import pandas as pd

    votes = pd.read_parquet(path)
    tags = sorted(name for name in votes.columns if name.startswith("tag_"))
    for column in ("month_sim", "model_a", "model_b", "winner", "if_score"):
        if column not in votes.columns:
            raise InputError(f"{path}: column {column!r} is missing; give the real votes that the benchmark knows")
    votes = votes[votes["model_a"] != votes["model_b"]]
    rng = np.random.default_rng(seed)
    order = np.lexsort([rng.random(len(votes)), votes["month_sim"].to_numpy(str)])
    votes = votes.iloc[order].reset_index(drop=True)
    flags = votes[tags].to_numpy(bool)
    words = np.array([name.removeprefix("tag_") for name in tags], dtype=object)
    scores = votes["if_score"].fillna(0).astype(int)
    votes["prompt"] = [[" ".join([*words[row], f"score{score}"])] for row, score in zip(flags, scores, strict=True)]
    votes["tstamp"] = np.arange(len(votes), dtype=float)
    train = rng.permutation(len(votes))[: (len(votes) * 93 // 100) // BATCHES * BATCHES]
    held = np.ones(len(votes), dtype=bool)
    held[train] = False

    def write(folder: Path) -> None:
        columns = ["prompt", "model_a", "model_b", "winner", "tstamp"]
        votes.loc[~held, columns].to_parquet(folder / "votes.parquet", index=False)
        votes.loc[held, columns].to_parquet(folder / "held_out.parquet", index=False)

    return _stream("real", _prepared(work / "real", {"rows": len(votes), "seed": seed}, write), None)


def _prepared(folder: Path, description: dict[str, Any], write: Callable[[Path], object]) -> Path:
    """The folder with its votes; what was written for another description is an error."""
    said = json.dumps(description, default=str)
    note = folder / "stream.json"
    if note.exists():
        if note.read_text(encoding="utf-8") != said:
            raise InputError(f"{folder}: holds runs on other votes; give another --work, or remove it")
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    write(folder)
    note.write_text(said, encoding="utf-8")
    return folder


def _stream(name: str, folder: Path, truth: NDArray[np.float64] | None) -> Stream:
    import pandas as pd

    columns = ["model_a", "model_b", "tstamp"]
    train = pd.read_parquet(folder / "votes.parquet", columns=columns)
    held = pd.read_parquet(folder / "held_out.parquet", columns=[*columns, "winner"])
    first = pd.unique(train[["model_a", "model_b"]].to_numpy().ravel())
    code = {model: number for number, model in enumerate(first)}
    pairs = _codes(train, code)
    unseen = len(code)
    models = [*map(str, first), *sorted({*held["model_a"], *held["model_b"]} - set(code))]
    held_pairs = _codes(held, {model: number for number, model in enumerate(models)})
    if truth is None:
        truth = np.eye(4)[held["winner"].map({"model_a": 0, "model_b": 1, "tie": 2, "tie (bothbad)": 3}).to_numpy()]
    arrival = np.searchsorted(train["tstamp"].to_numpy(), held["tstamp"].to_numpy())
    period = _BATCHES_PER_SLICE * (len(pairs) // BATCHES)
    slices = arrival // period + 1
    seen_at = np.full(len(models), len(pairs))
    seen_at[:unseen] = np.unique(pairs.ravel(), return_index=True)[1] // 2
    known = seen_at[held_pairs].max(axis=1) < slices * period
    slices = np.where(known & (slices <= SLICES), slices, 0)
    return Stream(name, folder, models, pairs, train["tstamp"].to_numpy(), slices, held_pairs, truth)


def _codes(table: pd.DataFrame, code: dict[str, int]) -> Ints:
    return np.stack([table[side].map(code).to_numpy(np.int64) for side in ("model_a", "model_b")], axis=1)


def best_loss(stream: Stream) -> float:
    """The mean loss of the truth itself over the slices."""
    entropy = -(stream.outcomes * np.log(stream.outcomes.clip(min=1e-300))).sum(axis=1)
    return float(np.mean([entropy[stream.slices == number].mean() for number in range(1, SLICES + 1)]))
