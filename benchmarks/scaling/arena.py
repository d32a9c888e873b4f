"""The votes that scaling is measured on: a simulated arena whose best possible loss is known.

Shapes: N held-out votes (each on a prompt of its own), M models, K outcomes, C blocks of held-out votes.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray

from p2l.leaderboard import fit_labels
from p2l.likelihood import get
from p2l.simulate import write_arena
from p2l.simulation.arena import simulate
from p2l.simulation.config import SimulationConfig
from p2l.votes import open_votes

__all__ = ["BLOCKS", "HeldOut", "arena_config", "draw_votes", "held_out", "marginal_losses", "write_pool"]

Floats = NDArray[np.float64]

BLOCKS = 64
"""Held-out votes are kept as the mean losses of so many blocks, which the bootstrap draws."""
_LIKELIHOOD = "grk"


def arena_config(votes: int, held_out: int) -> SimulationConfig:
    """Sixteen models that stay, six topics, no drift: held-out votes are of the same world as the training votes."""
    still = {"drift": 0.0, "improvement": 0.0, "growth": 1.0, "lifetime": 1e6}
    return SimulationConfig(
        votes=votes, validation_votes=held_out, models=16, topics=6, languages=1, effect=1.0, **still
    )


def write_pool(folder: Path, config: SimulationConfig) -> None:
    """Write all training and held-out votes, unless they are there."""
    if not (folder / "held-out.parquet").exists():
        folder.mkdir(parents=True, exist_ok=True)
        write_arena(simulate(config), folder / "pool.parquet", validation=folder / "held-out.parquet")


def draw_votes(folder: Path, target: Path, count: int, seed: int) -> None:
    """The first `count` votes of the pool in an order of the seed's: the sets of one seed contain each other."""
    table = pq.read_table(folder / "pool.parquet")
    rows = np.random.default_rng(seed).permutation(len(table))[:count]
    pq.write_table(table.take(np.sort(rows)), target)


@dataclass(frozen=True)
class HeldOut:
    """Held-out prompts and what is true of the votes on them."""

    models: list[str]
    prompts: list[list[str]]
    pairs: NDArray[np.int64]  # (N, 2)
    probs: Floats  # (N, K)

    def losses(self, models: list[str], coefs: Floats, eta: Floats | float) -> list[float]:
        """Mean loss (C,) of each block, expected over the outcomes: coefs (N, M) in the order of `models`."""
        place = np.array([models.index(name) for name in self.models])
        rows = np.arange(len(self.pairs))
        first, second = (coefs[rows, place[side]] for side in self.pairs.T)
        log_probs = get(_LIKELIHOOD).log_probs(first, second, np.broadcast_to(np.asarray(eta, float), len(rows)))
        return self._blocks(-(self.probs * log_probs).sum(axis=1))

    def best(self) -> list[float]:
        """(C,) that of the truth itself."""
        return self._blocks(-(self.probs * np.log(self.probs)).sum(axis=1))

    def _blocks(self, losses: Floats) -> list[float]:
        size = len(losses) // BLOCKS * BLOCKS
        return [round(float(value), 6) for value in losses[:size].reshape(-1, BLOCKS).mean(axis=0)]


def held_out(folder: Path, config: SimulationConfig) -> HeldOut:
    """The held-out votes of the pool with their truth."""
    arena = simulate(config)
    chunks = list(arena.chunks(validation=True))
    pairs = np.concatenate([np.stack([chunk.model_a, chunk.model_b], axis=1) for chunk in chunks])
    prompts = pq.read_table(folder / "held-out.parquet", columns=["prompt"]).column("prompt").to_pylist()
    return HeldOut(arena.model_list, prompts, pairs, np.concatenate([chunk.probs for chunk in chunks]))


def marginal_losses(file: Path, held: HeldOut) -> list[float]:
    """(C,) of the one leaderboard that fits the votes of a file best."""
    with open_votes(str(file)) as votes:
        board = fit_labels(votes.labels(), models=votes.model_list, likelihood=_LIKELIHOOD, intervals=None)
    return held.losses(board.models, np.tile(board.coefs, (len(held.pairs), 1)), board.eta or 0.0)
