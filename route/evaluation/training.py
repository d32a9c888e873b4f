"""From graded answers to a P2L: features of frozen backbones, a fitted head, a folder that every command reads.

Features of each backbone are centred and brought to a mean squared length of 1, then laid side by side, each with a
weight. The prior is the strongest whose left-out expectations are worth as much under the router's own rule as those
of the best are, but for a standard error: with few prompts the best is so by chance, and following it costs. The more
prompts, the smaller the part of a standard error.

Where the category is told, its features have a prior of their own, chosen first, with nothing else read: overall mean,
then category, then prompt. With a strong prior on all else the P2L says what the mean of each category does.

In the folder the backbones are the members of a committee (`p2l committee`), whose coefficients are averaged: each
member carries its part of the sum times the number of members.

Shapes: Q prompts, T training prompts, M models, D hidden of a backbone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from p2l.command import atomic_path
from p2l.errors import InputError
from route.evaluation.features import Encoder, Words
from route.evaluation.fitting import OWN, Fit, fit_graded, left_out
from route.evaluation.headers import CategoryReader, Reader
from route.evaluation.worth import Worth, Worths
from route.strength import grounded_scores

if TYPE_CHECKING:
    from p2l.model import P2LModel

__all__ = ["RECIPES", "Trained", "save", "train", "width_of_ties"]

Floats: TypeAlias = npt.NDArray[np.float64]

RECIPES: Mapping[str, tuple[str, ...]] = {
    "committee": ("encoder", "words"),
    "encoder": ("encoder",),
    "words": ("words",),
}
"""The backbones of each recipe."""
MIXES: Mapping[int, tuple[tuple[float, ...], ...]] = {1: ((1.0,),), 2: ((1.0, 0.5), (0.7, 0.7), (0.5, 1.0))}
"""Weights of the backbones' features that are tried, by their number."""
CATEGORY = "category"
"""The backbone of `route.evaluation.headers`; comes last."""
SHRINKAGES = (1.0, 3.0, 10.0, 30.0, 100.0, 300.0)
MOST_PAIRS = 20_000
SMALL = 1000
"""Training questions up to which a stronger prior may be worse than the best by a standard error, on left-out prompts,
and still be taken; with more questions by so much less: the best is then less likely so by chance."""


@dataclass(frozen=True)
class Scaled:
    """How the states of one backbone become features: (state - centre) * scale."""

    centre: Floats
    """(D,)"""
    scale: float

    def features(self, states: Floats) -> Floats:
        """(Q, D)."""
        return np.asarray((states - self.centre) * self.scale)


@dataclass(frozen=True)
class Trained:
    """A head on backbones, by their names."""

    models: tuple[str, ...]
    names: tuple[str, ...]
    scaled: tuple[Scaled, ...]
    fit: Fit
    settings: str

    def coefs(self, states: Mapping[str, Floats]) -> Floats:
        """(Q, M) grounded coefficients of prompts, from their states by backbone."""
        parts = [scale.features(states[name]) for name, scale in zip(self.names, self.scaled, strict=True)]
        return self.fit.coefs(np.concatenate(parts, axis=1))

    def expected(self, states: Mapping[str, Floats]) -> Floats:
        """(Q, M) chance of a usable answer."""
        return grounded_scores(self.coefs(states))


def train(models: tuple[str, ...], states: Mapping[str, Floats], scores: Floats, worth: Worths) -> Trained:
    """Fit a head to the states (T, D) of each backbone and graded answers (T, M).

    `worth` says how good expected scores (T, M) of the training prompts are; it chooses weights and prior.
    """
    names = tuple(states)
    shrink = _shrinkage(states[CATEGORY], scores, worth) if CATEGORY in states else None
    tried = []
    for mix, own in product(MIXES[len(names) - (shrink is not None)], OWN):
        weights = mix if shrink is None else (*mix, float(np.sqrt(own / shrink)))
        scaled = tuple(
            _scaled(states[name], weight, as_it_is=name == CATEGORY)
            for name, weight in zip(names, weights, strict=True)
        )
        precision, said = left_out(_side_by_side(names, scaled, states), scores, own)
        tried.append((worth(said), precision, mix, scaled))
    best = max((worth for worth, *_ in tried), key=lambda worth: worth.area)
    near = [one for one in tried if _as_good(one[0], best)]
    _, precision, mix, scaled = max(near, key=lambda one: (one[1].own, one[0].area))
    features = _side_by_side(names, scaled, states)
    words = ", ".join(f"{name} {weight:g}" for name, weight in zip(names, mix, strict=False))
    words += f"; precision {precision.shared:g} shared, {precision.own:g} own"
    words += "" if shrink is None else f", {shrink:g} of a category"
    return Trained(models, names, scaled, fit_graded(features, scores, precision), words)


def _side_by_side(names: tuple[str, ...], scaled: tuple[Scaled, ...], states: Mapping[str, Floats]) -> Floats:
    return np.concatenate([one.features(states[name]) for name, one in zip(names, scaled, strict=True)], axis=1)


def _shrinkage(states: Floats, scores: Floats, worth: Worths) -> float:
    """How many prompts the overall mean counts in that of a category, where nothing but the category is read."""
    features = _scaled(states, 1.0, as_it_is=True).features(states)
    return max(SHRINKAGES, key=lambda value: worth(left_out(features, scores, value)[1]).area)


def _as_good(worth: Worth, best: Worth) -> bool:
    """Whether the best is better by no more than a standard error of the difference."""
    less = best.by_prompt - worth.by_prompt
    tolerance = min(1.0, SMALL / len(less))
    return best.area - worth.area <= tolerance * float(less.std()) / float(np.sqrt(len(less)))


def _scaled(states: Floats, weight: float, *, as_it_is: bool = False) -> Scaled:
    centre = states.mean(axis=0)
    if as_it_is:
        return Scaled(centre, weight)
    length = float(np.sqrt(((states - centre) ** 2).sum(axis=1).mean()))
    return Scaled(centre, weight / length if length > 0.0 else 0.0)


def save(trained: Trained, backbones: Mapping[str, Reader], eta: float, output: Path) -> None:
    """Write the model as a folder that `p2l endpoint`, `p2l eval` and `--model` read.

    Args:
        trained: the heads.
        backbones: by name.
        eta: of grk, for those who compare two models: how wide ties are.
        output: must not exist.

    Raises:
        InputError: the folder exists or cannot be written.
    """
    if output.exists():
        raise InputError(f"{output}: exists; choose another folder or remove it")
    with TemporaryDirectory() as place:
        folders = []
        for number, name in enumerate(trained.names):
            folder = Path(place) / name
            _save_member(folder, backbones[name], trained, number, eta)
            folders.append(folder)
        if len(folders) > 1:
            from p2l.members import join

            join(folders, output)
            return
        with atomic_path(output, directory=True) as unfinished:
            for file in folders[0].iterdir():
                (unfinished / file.name).write_bytes(file.read_bytes())


def _save_member(folder: Path, backbone: Reader, trained: Trained, number: int, eta: float) -> None:
    asked = backbone.asked(trained.models) if isinstance(backbone, Encoder) else _words_model(backbone, trained.models)
    member, count = asked.members[0], len(trained.names)
    starts = np.cumsum([0, *(len(one.centre) for one in trained.scaled)])
    scaled = trained.scaled[number]
    weights = trained.fit.weights[:, starts[number] : starts[number + 1]] * scaled.scale * count
    _set_head(member.model, weights, trained.fit.bias - weights @ scaled.centre, eta)
    member.model.save_pretrained(folder)
    member.tokenizer.save_pretrained(folder)


def _set_head(model: P2LModel, weights: Floats, bias: Floats, eta: float) -> None:
    import torch

    head: Any = model.head
    with torch.no_grad():
        head.head.weight.copy_(torch.from_numpy(weights))
        head.head.bias.copy_(torch.from_numpy(bias))
        head.eta_head.weight.zero_()
        head.eta_head.bias.fill_(eta)


def _words_model(words: Words | CategoryReader, models: Sequence[str]) -> Any:
    import torch

    from p2l import heads
    from p2l.inference import P2L, Member
    from p2l.model import P2LModel, P2LRecord
    from p2l.tfidf import TfidfBackbone, TfidfConfig

    vocabulary, width = words.directions.shape
    backbone = TfidfBackbone(TfidfConfig(vocabulary, width))
    with torch.no_grad():
        backbone.embedding.copy_(torch.from_numpy(words.directions))
    record = P2LRecord("tfidf", "rk", "grk", max_length=words.tokenizer.max_length)
    model = P2LModel(backbone, heads.build("rk", width, len(models)), models, record)
    return P2L([Member(model, words.tokenizer)], torch.device("cpu"))


def width_of_ties(scores: Floats, *, seed: int = 0) -> float:
    """eta of grk that fits pairs of graded answers (Q, M): both right tie, both wrong are both-bad."""
    from p2l.leaderboard import Prior, fit_labels

    rng, (questions, models) = np.random.default_rng(seed), scores.shape
    rows = rng.integers(0, questions, MOST_PAIRS)
    first = rng.integers(0, models, MOST_PAIRS)
    second = (first + rng.integers(1, models, MOST_PAIRS)) % models
    right = np.stack([scores[rows, first], scores[rows, second]]) > 0.5
    winner, loser = np.where(right[0], (first, second), (second, first))
    labels = np.stack([winner, loser, np.select([right.all(axis=0), ~right.any(axis=0)], [1, 2], 0)], axis=1)
    prior = Prior(coefs=np.zeros(models), eta=0.0, sd=1.0)
    board = fit_labels(labels, models=[str(m) for m in range(models)], likelihood="grk", intervals=None, prior=prior)
    return 0.0 if board.eta is None else float(board.eta)
