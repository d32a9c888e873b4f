"""The summary of a simulated arena: outcomes, the best possible loss, and the gap of a single leaderboard to it.

It is gathered chunk by chunk in memory of the order M^2, for any number of votes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from p2l.common.text_table import align
from p2l.likelihood import get
from p2l.simulation.arena import Arena, VoteChunk

FloatArray: TypeAlias = NDArray[np.float64]
_VARIANCE_STRIDE = 8  # shares of variance are of one vote in eight: each has a row as wide as there are models


@dataclass
class _Moments:
    """Running mean and variance of (n, M) arrays over n."""

    count: int = 0
    total: FloatArray | float = 0.0
    squares: FloatArray | float = 0.0

    def add(self, values: FloatArray) -> None:
        """Add n rows."""
        self.count += len(values)
        self.total = self.total + values.sum(axis=0)
        self.squares = self.squares + (values**2).sum(axis=0)

    def variance(self) -> float:
        """Return the mean over the M columns of the variance over rows."""
        mean = np.asarray(self.total) / self.count
        return float(np.mean(np.asarray(self.squares) / self.count - mean**2))


@dataclass
class _OutcomeCounter:
    """Votes by pair and outcome, (M, M, 4), and the summed loss of the truth for each likelihood."""

    votes: NDArray[np.int64]
    losses: dict[str, float] = field(default_factory=lambda: dict.fromkeys(("grk", "rk", "bt-tie", "bt"), 0.0))
    bag_losses: float = 0.0

    def add(self, chunk: VoteChunk, bag_probs: FloatArray) -> None:
        """Count the votes of a chunk; `bag_probs` (n, 4) are the outcomes' chances given the bag of words."""
        self.bag_losses += float(_bayes_losses(bag_probs, chunk.winner)["grk"].sum())
        np.add.at(self.votes, (chunk.model_a, chunk.model_b, chunk.winner), 1)
        for name, losses in _bayes_losses(chunk.probs, chunk.winner).items():
            self.losses[name] += float(losses.sum())

    @property
    def count(self) -> int:
        """Number of votes."""
        return int(self.votes.sum())

    def bag(self) -> float:
        """Return the mean grk loss of the best prediction from the multiset of words."""
        return self.bag_losses / max(1, self.count)

    def bayes(self) -> dict[str, float]:
        """Return the mean loss of the truth by likelihood; bt over decided votes only."""
        decided = int(self.votes[..., :2].sum())
        return {
            name: loss / max(1, self.count if get(name).counts_ties else decided) for name, loss in self.losses.items()
        }


@dataclass
class ArenaSummary:
    """Figures of an arena that `p2l simulate` prints; `add` its chunks, then call `to_text`."""

    arena: Arena
    train: _OutcomeCounter = field(init=False)
    validation: _OutcomeCounter = field(init=False)
    effect: _Moments = field(default_factory=_Moments)
    hidden: _Moments = field(default_factory=_Moments)
    length: _Moments = field(default_factory=_Moments)

    def __post_init__(self) -> None:
        """Start without votes."""
        shape = (len(self.arena.model_list),) * 2 + (4,)
        self.train, self.validation = (_OutcomeCounter(np.zeros(shape, np.int64)) for _ in range(2))

    def add(self, chunk: VoteChunk, *, held_out: bool = False) -> None:
        """Count a chunk of training or validation votes."""
        (self.validation if held_out else self.train).add(chunk, self.arena.bag_probs(chunk))
        self.effect.add(chunk.effect.total()[0][::_VARIANCE_STRIDE])
        self.hidden.add(chunk.effect.hidden[::_VARIANCE_STRIDE])
        self.length.add(chunk.effect.length[::_VARIANCE_STRIDE])

    @property
    def held_out(self) -> _OutcomeCounter:
        """Votes that losses are reported on: for validation, or for training when there are none."""
        return self.validation if self.validation.count else self.train

    @property
    def hidden_share(self) -> float:
        """Share of the variance of coefs over prompts that no function of the multiset of words can explain."""
        return self.hidden.variance() / max(self.effect.variance(), 1e-300)

    def marginal_loss(self) -> float:
        """Return the mean grk loss of the single leaderboard that fits the training votes best."""
        from p2l.leaderboard.fitting import fit

        a, b, winner = np.nonzero(self.train.votes)
        weights = self.train.votes[a, b, winner]
        board = fit(a, b, winner, models=self.arena.model_list, likelihood="grk", weights=weights, intervals=None)
        log_probs = get("grk").log_probs(board.coefs[:, None], board.coefs[None, :], board.eta)
        votes = self.held_out.votes
        return -float((votes * log_probs).sum() / votes.sum())

    def to_text(self) -> str:
        """Render a summary for people."""
        config, count = self.arena.config, self.train.count
        held_out = self.held_out
        bayes, marginal = held_out.bayes(), self.marginal_loss()
        shares = self.train.votes.sum(axis=(0, 1)) / count
        on = "validation" if self.validation.count else "training"
        lines = [
            (
                "models",
                f"{config.models}, {int(np.isfinite(self.arena.models.retirement).sum())} of them retired by the end",
            ),
            ("topics, languages", f"{config.topics}, {config.languages}"),
            ("training votes", f"{count:,}"),
            ("validation votes", f"{self.validation.count:,}"),
            ("outcomes", "model_a {:.1%}, model_b {:.1%}, tie {:.1%}, both bad {:.1%}".format(*shares)),
            ("", ""),
            (f"loss on the {on} votes", "grk (all four outcomes), nats per vote"),
            ("  single leaderboard", f"{marginal:.4f}"),
            ("  best bag of words", f"{held_out.bag():.4f}"),
            ("  Bayes optimum", f"{bayes['grk']:.4f}"),
            ("  gap to close", f"{marginal - bayes['grk']:.4f}"),
            ("Bayes optimum of others", ", ".join(f"{name} {bayes[name]:.4f}" for name in ("rk", "bt-tie", "bt"))),
            ("", ""),
            (
                "prompt effect",
                f"standard deviation {self.effect.variance() ** 0.5:.3f} per coefficient, of its variance",
            ),
            ("  hidden", f"{self.hidden_share:.1%}: order, negation, turns; no bag of words can see it"),
            (
                "  length",
                f"{self.length.variance() / max(self.effect.variance(), 1e-300):.1%}: only the number of words tells",
            ),
        ]
        return "\n".join(align(lines, left=(0, 1)))


def _bayes_losses(probs: FloatArray, winner: NDArray[np.int64]) -> dict[str, FloatArray]:
    """Return the loss of each vote (n,) under the true probabilities (n, 4), by likelihood.

    rk does not tell the ties apart; bt-tie counts a tie as half a win and half a loss; bt sees decided votes only
    (others lose 0).
    """
    happened = probs[np.arange(len(winner)), winner]
    tie = winner >= 2
    win = probs[:, 0] + probs[:, 2:].sum(axis=1) / 2
    half = np.where(tie, 0.5, winner == 0)
    decided = probs[:, :2].sum(axis=1)
    return {
        "grk": -np.log(happened),
        "rk": -np.log(np.where(tie, 1 - decided, happened)),
        "bt-tie": -half * np.log(win) - (1 - half) * np.log1p(-win),
        "bt": np.where(tie, 0, np.log(decided) - np.log(happened)),
    }
