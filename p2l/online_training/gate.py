"""Whether a candidate may replace the model that is served: not if it forecasts new votes worse, beyond noise.

A share of the prompts, chosen by their hash, is never trained on. The newest votes on them are the recent slice. With
d_i the candidate's loss of vote i less that of the served model, and the votes of one prompt taken together,

    mean d > 2 SE(mean d),    SE = sqrt( P/(P - 1) sum_p (sum_{i in p} (d_i - mean d))^2 ) / N

refuses the candidate (N votes on P prompts). An equally good candidate is refused once in 44 times, and the next one
gets its chance. Votes on a model that either of the two does not know are left out: newcomers are no reason to refuse.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from p2l.likelihood import counted, vote_losses
from p2l.online_training.publishing import Verdict
from p2l.votes import translate_labels
from p2l.votes.schema import hash_turns

if TYPE_CHECKING:
    from p2l.inference import P2L

__all__ = ["FEWEST_PROMPTS", "Difference", "HeldVotes", "Slice", "compare", "judge", "paired_difference", "recent"]

FEWEST_PROMPTS = 20
"""With fewer prompts nothing can be told, and the candidate is published."""

_ERRORS = 2.0


class HeldVotes(Protocol):
    """Votes that were kept out of training, oldest first."""

    @property
    def model_list(self) -> list[str]:
        """Names that labels refer to."""
        ...

    def up_to(self, place: int) -> int:
        """How many of them came before the run had `place` votes to train on."""
        ...

    def prompts(self, ids: NDArray[np.int64]) -> list[list[str]]:
        """The user's turns of each vote."""
        ...

    def labels(self, ids: NDArray[np.int64]) -> NDArray[np.int32]:
        """(n, 3) `[winner, loser, tie]`."""
        ...


@dataclass(frozen=True)
class Slice:
    """n votes to judge by."""

    prompts: list[list[str]]
    labels: NDArray[np.int32]
    """(n, 3) positions in `model_list`."""
    model_list: list[str]


@dataclass(frozen=True)
class Difference:
    """The mean paired difference of two models' losses, in nats per vote; above zero: the candidate is worse."""

    mean: float
    error: float
    """Its standard error, clustered by prompt."""
    votes: int
    prompts: int
    candidate_loss: float
    served_loss: float


def recent(held: HeldVotes, place: int, count: int) -> Slice:
    """The newest `count` votes that had come when the run had `place` votes to train on."""
    end = held.up_to(place)
    ids = np.arange(max(0, end - count), end)
    return Slice(held.prompts(ids), held.labels(ids), held.model_list)


def judge(candidate: Path, served: Path | None, votes: Slice, device: str | None = None) -> Verdict:
    """Compare two model folders on the slice.

    Raises:
        InputError: a folder cannot be loaded.
    """
    if served is None:
        return Verdict(True, "the first one", {})
    found = compare(candidate, served, votes, device)
    numbers: dict[str, float | int] = {"held_votes": found.votes, "held_prompts": found.prompts}
    if found.prompts < FEWEST_PROMPTS:
        return Verdict(True, f"{found.prompts} held-out prompts are too few to judge by", numbers)
    if not math.isfinite(found.mean):
        return Verdict(False, f"its loss on {found.votes:,} held-out votes is no number", numbers)
    numbers |= {"loss": found.candidate_loss, "served_loss": found.served_loss}
    numbers |= {"difference": found.mean, "error": found.error}
    said = (
        f"loss {found.candidate_loss:.4f} against {found.served_loss:.4f} of {served.name} on {found.votes:,} held-out "
        f"votes: {found.mean:+.4f} +- {found.error:.4f}"
    )
    good = found.mean <= _ERRORS * found.error
    return Verdict(good, said if good else f"{said}, worse beyond noise", numbers)


def compare(candidate: Path, served: Path, votes: Slice, device: str | None = None) -> Difference:
    """The paired difference of two model folders on the votes whose models both know."""
    from p2l.inference import P2L

    new = P2L.from_pretrained(candidate, device=device)
    old = P2L.from_pretrained(served, device=device)
    new_labels, old_labels = (
        translate_labels(votes.labels, votes.model_list, model.model_list) for model in (new, old)
    )
    told = counted(new.likelihood, votes.labels) > 0
    known = np.flatnonzero(told & (new_labels[:, :2] >= 0).all(axis=1) & (old_labels[:, :2] >= 0).all(axis=1))
    prompts = [votes.prompts[row] for row in known]
    return paired_difference(
        _losses(new, prompts, new_labels[known]),
        _losses(old, prompts, old_labels[known]),
        np.array([hash_turns(prompt) for prompt in prompts], dtype=np.uint64),
    )


def _losses(model: P2L, prompts: list[list[str]], labels: NDArray[np.int32]) -> NDArray[np.float64]:
    """(n,) nats of each vote."""
    if not prompts:
        return np.zeros(0)
    different: dict[tuple[str, ...], int] = {}
    about = np.array([different.setdefault(tuple(prompt), len(different)) for prompt in prompts])
    said = model.predict([list(prompt) for prompt in different])
    coefs, eta, gamma = (
        None if values is None else values[about].astype(np.float64) for values in (said.coefs, said.eta, said.gamma)
    )
    return np.asarray(vote_losses(model.likelihood, coefs, labels, eta, gamma), dtype=np.float64)


def paired_difference(
    candidate: NDArray[np.float64], served: NDArray[np.float64], prompt: NDArray[np.uint64]
) -> Difference:
    """The mean of candidate - served over n votes, and its standard error clustered by `prompt`, a number of each."""
    if not len(candidate):
        return Difference(0.0, math.inf, 0, 0, math.nan, math.nan)
    difference = candidate - served
    mean = float(difference.mean())
    _, cluster = np.unique(prompt, return_inverse=True)
    sums = np.bincount(cluster, weights=difference - mean)
    prompts, votes = len(sums), len(candidate)
    spread = prompts / (prompts - 1) * float((sums**2).sum()) if prompts > 1 else math.inf
    return Difference(mean, math.sqrt(spread) / votes, votes, prompts, float(candidate.mean()), float(served.mean()))
