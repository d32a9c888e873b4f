"""Whether a trained model reads prompts: its loss on held-out votes beside that of one leaderboard for all prompts.

Shapes: N held-out votes, M models, B leaderboards.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from p2l.baselines import marginal_boards
from p2l.checkpoint import read_model_list, write_json
from p2l.command import atomic_path
from p2l.leaderboard import Leaderboard
from p2l.likelihood import get
from p2l.metrics import Interval, ScoredVotes, bootstrap_mean, vote_values
from p2l.votes import open_votes
from p2l.votes.schema import hash_turns

__all__ = ["COMPARISON_FILE", "Comparison", "compare", "write_comparison"]

Floats = NDArray[np.float64]
COMPARISON_FILE = "comparison.json"
_ROWS = 4096  # predicted votes in memory at a time
_NAMES = ("Loss", "Accuracy")
_SDS = (1.0, 0.3, 0.1, 0.03)  # of priors, from hardly any effect to models that are nearly equal


@dataclass(frozen=True)
class Comparison:
    """Two forecasts of the same held-out votes."""

    votes: int
    prompts: int
    one_leaderboard: dict[str, float]
    """Loss and Accuracy."""
    model: dict[str, float]
    gain: Interval
    """Nats per vote that the model's loss is lower by, 95 % interval clustered by prompt."""

    @property
    def verdict(self) -> str:
        """What a stranger should make of it."""
        if self.gain.lower > 0:
            return "The model reads prompts: it forecasts votes on new prompts better than any one leaderboard."
        if self.gain.upper < 0:
            return (
                "The model is worse than one leaderboard for all prompts: do not use it. Bring more votes, "
                "or another --size or --backbone."
            )
        return (
            "It is not shown that the model reads prompts: the interval holds zero. "
            "Bring more votes, or another --size or --backbone."
        )

    def to_text(self) -> str:
        """A short table and the verdict."""
        gain = self.gain
        interval = f"95 % interval {gain.lower:.4f} to {gain.upper:.4f}"
        rows = (("one leaderboard for all prompts", self.one_leaderboard), ("this model", self.model))
        return "\n".join(
            [
                f"{f'{self.votes:,} held-out votes on {self.prompts:,} prompts':<46} loss     accuracy",
                *(f"{name:<46} {row['Loss']:.4f}   {row['Accuracy']:>8.1%}" for name, row in rows),
                f"{'gain in nats per vote':<46} {gain.estimate:.4f}   ({interval})",
                self.verdict,
            ]
        )

    def to_dict(self) -> dict[str, Any]:
        """The numbers, for comparison.json."""
        gain = {name: float(getattr(self.gain, name)) for name in ("estimate", "lower", "upper")}
        return {
            "votes": self.votes,
            "prompts": self.prompts,
            "one_leaderboard": self.one_leaderboard,
            "model": self.model,
            "gain": gain,
        }


def write_comparison(folder: Path, train_votes: str, loss_type: str, *, weighted: bool = False) -> Comparison:
    """`compare`, written into the run's folder as `comparison.json`."""
    found = compare(folder, train_votes, loss_type, weighted=weighted)
    with atomic_path(folder / COMPARISON_FILE) as temporary:
        write_json(temporary, found.to_dict())
    return found


def compare(folder: Path, train_votes: str, loss_type: str, *, weighted: bool = False) -> Comparison:
    """Compare the validation output of a run with a leaderboard of its training votes.

    Of the one that fits best and those that are held towards equal models, it is the one with the lowest loss on the
    held-out votes: fitted to few votes on many models, the first alone would be too easy to beat.

    Args:
        folder: of a finished run, with `eval_output.jsonl` and `model_list.json`.
        train_votes: the votes that it was trained on.
        loss_type: its likelihood.
        weighted: whether it was trained on weighted votes, as the leaderboard then is too; held-out votes count alike.

    Raises:
        InputError: the votes cannot be read.
    """
    with open_votes(train_votes, model_list=read_model_list(folder), need_prompt=False) as votes:
        boards = marginal_boards(votes, loss_type, weighted=weighted, sds=_SDS)
    blocks = list(_blocks(folder / "eval_output.jsonl", boards, loss_type))
    prompts, ours, all_theirs = (np.concatenate(parts) for parts in zip(*blocks, strict=True))
    theirs = all_theirs[:, np.nanmean(all_theirs[:, :, 0], axis=0).argmin()]
    _, clusters = np.unique(prompts, return_inverse=True)
    gain = bootstrap_mean(theirs[:, 0] - ours[:, 0], clusters=clusters)
    return Comparison(len(ours), int(clusters.max()) + 1, _means(theirs), _means(ours), gain)


def _blocks(
    output: Path, boards: Sequence[Leaderboard], loss_type: str
) -> Iterator[tuple[NDArray[np.uint64], Floats, Floats]]:
    """Prompt hashes (n,), loss and accuracy of the model (n, 2) and of B boards (n, B, 2), some rows at a time."""
    likelihood = get(loss_type)
    with output.open(encoding="utf-8") as file:
        while rows := [json.loads(line) for line in islice(file, _ROWS)]:
            labels = np.array([row["labels"] for row in rows], dtype=np.int64)
            columns = {name: np.array([row[name] for row in rows]) for name in ("eta", "gamma") if name in rows[0]}
            ours = ScoredVotes(likelihood, np.array([row["betas"] for row in rows]), labels, **columns)
            theirs = [ScoredVotes(likelihood, board.coefs, labels, board.eta, board.gamma) for board in boards]
            hashes = [hash_turns([row["prompt"]] if isinstance(row["prompt"], str) else row["prompt"]) for row in rows]
            yield np.array(hashes, dtype=np.uint64), _scores(ours), np.stack([*map(_scores, theirs)], axis=1)


def _scores(votes: ScoredVotes) -> Floats:
    return np.stack([vote_values(name, votes) for name in _NAMES], axis=1)


def _means(scores: Floats) -> dict[str, float]:
    return {name: float(value) for name, value in zip(_NAMES, np.nanmean(scores, axis=0), strict=True)}
