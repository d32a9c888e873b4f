"""Train a P2L on graded answers: features of frozen backbones, a fitted head, a folder that every command reads.

The likelihood is the grounded one. Under grk a model whose coefficient is minus infinity never gives a usable answer. A
vote of model m against it is won with probability sigmoid(coef_m), is both-bad otherwise, and cannot be tied or lost
(`p2l.likelihood`, b = 0). A graded answer is such a vote, a fractional score s two of them with weights s and 1 - s;
their log-likelihood is

    sum over answers of  s log sigmoid(coef) + (1 - s) log sigmoid(-coef),    coef_m = x (w + v_m) + c_m

with features x of a prompt, a part w that all models share (how hard the prompt is) and a part v_m of each (what the
choice between them rests on). Both have a normal prior, of precisions `shared` and `own`; c_m has none, so that with
large precisions every model is as good as its mean score. Votes between two answers would need more, namely how the
errors of two models coincide, which no choice of one model depends on.

Features of each backbone are centred, scaled to a mean squared length of 1, weighted and concatenated. Precisions are
tuned by leaving one prompt out, in the linear model of scores that has the same prior, where that takes one
decomposition. The strongest prior is taken whose worth under the router's own optimizer is within a standard error of
the best: with few prompts the best is so by chance. The more prompts, the smaller that tolerance.

The features of a prompt's group have a prior of their own, tuned first and alone: overall mean, then group, then
prompt. With a strong prior on all else the P2L predicts the mean of each group. Groups are the categories in front of
prompts, and without them clusters.

The folder holds a reader. Only a category in front of the prompt is read by a bag of words beside it, in a committee
(`p2l committee`), whose coefficients are averaged: each member carries its part of the sum times their number.

Shapes: Q prompts, T training prompts, M models, F features, D hidden of a backbone.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np

from p2l.common.cli import nearest
from p2l.common.errors import InputError
from p2l.common.files import atomic_path
from route.evaluation.features import CategoryReader, Clusters, Encoder, Reader, Words, untrained_reader
from route.evaluation.spending import Worth, Worths
from route.evaluation.table import Floats, ScoreTable
from route.routing.optimizers import Opponents, grounded_scores, scores_against

if TYPE_CHECKING:
    from p2l.model.model import P2LModel
    from p2l.model.tfidf import TfidfBackbone


SHARED = (1.0, 3.0, 10.0, 30.0, 100.0)
OWN = (3.0, 10.0, 30.0, 100.0, 300.0, 1000.0, 3000.0)
MOST_STEPS = 200
_LEAST_RATE = 1e-3  # mean scores of 0 and 1 would have infinite coefficients


@dataclass(frozen=True)
class Precision:
    """Precisions of the priors in the linear model, in units of one prompt whose features have length 1."""

    shared: float
    own: float


@dataclass(frozen=True)
class Fit:
    """coef = x @ weights.T + bias."""

    weights: Floats
    """(M, F)"""
    bias: Floats
    """(M,)"""

    def coefs(self, features: Floats) -> Floats:
        """Return the coefficients (Q, M) of prompts with these features."""
        return np.asarray(features @ self.weights.T + self.bias)


def left_out(features: Floats, scores: Floats, own: float) -> tuple[Precision, Floats]:
    """Return the scores (Q, M) that the linear model expects of each prompt when that is left out of the fit.

    The shared precision is the one of `SHARED` with the least squared error of the mean score over models; it matters
    little to the choice between them. Features have mean zero.
    """
    lengths, basis = np.linalg.eigh(features.T @ features)
    nonzero = lengths > lengths.max() * 1e-10  # directions that no prompt has
    lengths, rows = lengths[nonzero], features @ (basis[:, nonzero] / np.sqrt(lengths[nonzero]))
    squares, mean = rows**2, scores.mean(axis=0)
    level = (scores - mean).mean(axis=1, keepdims=True)

    def without(target: Floats, precision: float) -> Floats:
        keep = lengths / (lengths + precision)
        leverage = (squares @ keep)[:, None]
        return np.asarray(((rows * keep) @ (rows.T @ target) - leverage * target) / (1.0 - leverage))

    levels = {precision: without(level, precision) for precision in SHARED}
    shared = min(SHARED, key=lambda precision: float(((levels[precision] - level) ** 2).sum()))
    return Precision(shared, own), mean + levels[shared] + without(scores - mean - level, own)


def fit_graded(features: Floats, scores: Floats, precision: Precision) -> Fit:
    """Fit the most probable weights.

    Args:
        features: (Q, F) of mean zero.
        scores: (Q, M) between 0 and 1.
        precision: of the linear model; a unit of coefficient moves a score by p (1 - p) at most, so that the prior of
            the weights here has the precision times the mean of that.
    """
    from scipy.optimize import minimize

    rates = scores.mean(axis=0).clip(_LEAST_RATE, 1.0 - _LEAST_RATE)
    posterior = _posterior(features, scores, precision, float((rates * (1.0 - rates)).mean()))
    start = np.concatenate([np.zeros(posterior.rows.shape[1] * (len(rates) + 1)), np.log(rates / (1.0 - rates))])
    optimum = minimize(posterior, start, jac=True, method="L-BFGS-B", options={"maxiter": MOST_STEPS, "ftol": 1e-10})
    shared, own, bias = posterior.parts(np.asarray(optimum.x))
    return Fit(posterior.back(shared, own), bias)


def graded_loss(coefs: Floats, scores: Floats) -> Floats:
    """Return the negative log-likelihood (Q, M) of each graded answer."""
    return np.asarray(np.logaddexp(0.0, coefs) - scores * coefs)


@dataclass(frozen=True)
class _Posterior:
    """The negative log-posterior per prompt, and its gradient, in coordinates in which it is nearly round."""

    rows: Floats
    """(Q, F) features along the principal axes"""
    scores: Floats
    scales: tuple[Floats, Floats]
    """(F,) standard deviations of the shared and the own weights given the data; the coordinates' units"""
    precisions: tuple[float, float]
    back: Callable[[Floats, Floats], Floats]

    def parts(self, x: Floats) -> tuple[Floats, Floats, Floats]:
        """Return shared weights (F,), own weights (M, F) and biases (M,)."""
        count, width = self.scores.shape[1], self.rows.shape[1]
        cut = x[: width * (count + 1)].reshape(count + 1, width)
        return cut[0] * self.scales[0], cut[1:] * self.scales[1], x[width * (count + 1) :]

    def __call__(self, x: Floats) -> tuple[float, Floats]:
        shared, own, bias = self.parts(x)
        coefs, number = self.rows @ (own + shared).T + bias, len(self.scores)
        slope = 0.5 + 0.5 * np.tanh(0.5 * coefs) - self.scores
        pull = slope.T @ self.rows
        first, second = self.precisions
        value = graded_loss(coefs, self.scores).sum() + 0.5 * (first * (shared**2).sum() + second * (own**2).sum())
        gradient = [
            (pull.sum(axis=0) + first * shared) * self.scales[0],
            ((pull + second * own) * self.scales[1]).ravel(),
        ]
        return float(value) / number, np.concatenate([*gradient, slope.sum(axis=0)]) / number


def _posterior(features: Floats, scores: Floats, precision: Precision, slope: float) -> _Posterior:
    lengths, basis = np.linalg.eigh(features.T @ features)
    lengths, count = lengths.clip(0.0), scores.shape[1]
    # The mean over models has the precision `shared` in the linear model; M models pull at the shared weights.
    precisions = (precision.shared * slope * count, precision.own * slope)
    scales = (
        np.sqrt(len(scores) / (lengths * slope * count + precisions[0])),
        np.sqrt(len(scores) / (lengths * slope + precisions[1])),
    )

    def back(shared: Floats, own: Floats) -> Floats:
        return np.asarray((own + shared) @ basis.T)

    return _Posterior(features @ basis, scores, scales, precisions, back)


RECIPES: Mapping[str, tuple[str, ...]] = {
    "committee": ("encoder", "words"),
    "encoder": ("encoder",),
    "words": ("words",),
}
"""The backbones of each recipe."""
MIXES: Mapping[int, tuple[tuple[float, ...], ...]] = {1: ((1.0,),), 2: ((1.0, 0.5), (0.7, 0.7), (0.5, 1.0))}
"""Weights of the backbones' features that are tried, by their number."""
CATEGORY, CLUSTERS = "category", "clusters"
"""Features of a prompt's group, of which one is there at most, and comes last: `route.evaluation.features`."""
SHRINKAGES = (1.0, 3.0, 10.0, 30.0, 100.0, 300.0)
MOST_PAIRS = 20_000
SMALL = 1000
"""Training questions up to which a stronger prior may be worse than the best by a whole standard error."""


@dataclass(frozen=True)
class Scaled:
    """The features of one backbone: (state - centre) * scale."""

    centre: Floats
    """(D,)"""
    scale: float

    def features(self, states: Floats) -> Floats:
        """Return the features (Q, D)."""
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
        """Return the grounded coefficients (Q, M) of prompts, from their states by backbone."""
        return self.fit.coefs(_side_by_side(self.names, self.scaled, states))

    def expected(self, states: Mapping[str, Floats]) -> Floats:
        """Return the chance (Q, M) of a usable answer."""
        return grounded_scores(self.coefs(states))


def train(models: tuple[str, ...], states: Mapping[str, Floats], scores: Floats, worth: Worths) -> Trained:
    """Fit a head to the states (T, D) of each backbone and graded answers (T, M); `worth` selects weights and prior."""
    names = tuple(states)
    group = next((name for name in (CATEGORY, CLUSTERS) if name in states), None)
    shrink = None if group is None else _shrinkage(states[group], scores, worth)
    tried = []
    for mix, own in product(MIXES[len(names) - (shrink is not None)], OWN):
        weights = mix if shrink is None else (*mix, float(np.sqrt(own / shrink)))
        scaled = tuple(
            _scaled(states[name], weight, unscaled=name == group) for name, weight in zip(names, weights, strict=True)
        )
        precision, expected = left_out(_side_by_side(names, scaled, states), scores, own)
        tried.append((worth(expected), precision, mix, scaled))
    best = max((worth for worth, *_ in tried), key=lambda worth: worth.area)
    near = [one for one in tried if _as_good(one[0], best)]
    _, precision, mix, scaled = max(near, key=lambda one: (one[1].own, one[0].area))
    features = _side_by_side(names, scaled, states)
    words = ", ".join(f"{name} {weight:g}" for name, weight in zip(names, mix, strict=False))
    words += f"; precision {precision.shared:g} shared, {precision.own:g} own"
    words += "" if shrink is None else f", {shrink:g} of {group}"
    return Trained(models, names, scaled, fit_graded(features, scores, precision), words)


def _side_by_side(names: tuple[str, ...], scaled: tuple[Scaled, ...], states: Mapping[str, Floats]) -> Floats:
    return np.concatenate([one.features(states[name]) for name, one in zip(names, scaled, strict=True)], axis=1)


def _shrinkage(states: Floats, scores: Floats, worth: Worths) -> float:
    """Return how many prompts the overall mean counts in that of a group, if nothing but the group is read."""
    features = _scaled(states, 1.0, unscaled=True).features(states)
    return max(SHRINKAGES, key=lambda shrink: worth(left_out(features, scores, shrink)[1]).area)


def _as_good(worth: Worth, best: Worth) -> bool:
    """Return whether the best is better by no more than a standard error of the difference."""
    less = best.by_prompt - worth.by_prompt
    tolerance = min(1.0, SMALL / len(less))
    return best.area - worth.area <= tolerance * float(less.std()) / float(np.sqrt(len(less)))


def _scaled(states: Floats, weight: float, *, unscaled: bool = False) -> Scaled:
    centre = states.mean(axis=0)
    if unscaled:
        return Scaled(centre, weight)
    length = float(np.sqrt(((states - centre) ** 2).sum(axis=1).mean()))
    return Scaled(centre, weight / length if length > 0.0 else 0.0)


def save(trained: Trained, backbones: Mapping[str, Reader], eta: float, output: Path) -> None:
    """Write the model as a folder that `p2l endpoint`, `p2l eval` and `--model` read.

    `eta` is that of grk: the width of ties between two models. Raises InputError if the folder exists or cannot be
    written.
    """
    if output.exists():
        raise InputError(f"{output}: exists; choose another folder or remove it")
    names = [name for name in trained.names if name != CATEGORY]
    groups = [names, *([[CATEGORY]] if CATEGORY in trained.names else [])]
    with TemporaryDirectory() as place:
        folders = [Path(place) / "-".join(group) for group in groups]
        for group, folder in zip(groups, folders, strict=True):
            # The mean of the members is the sum of their parts.
            _save_member(folder, group, backbones, trained, eta, share=len(groups))
        if len(folders) > 1:
            from p2l.model.committee import join

            join(folders, output)
            return
        with atomic_path(output, directory=True) as unfinished:
            shutil.copytree(folders[0], unfinished, dirs_exist_ok=True)


def _save_member(
    folder: Path, names: Sequence[str], backbones: Mapping[str, Reader], trained: Trained, eta: float, *, share: int
) -> None:
    """Write the model that has these backbones' part of the coefficients, times `share`."""
    from p2l.model import heads
    from p2l.model.model import P2LModel, P2LRecord

    kind, (backbone, tokenizer), places = _as_backbone({name: backbones[name] for name in names})
    width, models = backbone.config.hidden_size, trained.models
    weights, bias = np.zeros((len(models), width)), trained.fit.bias.copy()
    ends = np.cumsum([0, *(len(one.centre) for one in trained.scaled)])
    for number, (name, scaled) in enumerate(zip(trained.names, trained.scaled, strict=True)):
        if name in places:
            own = trained.fit.weights[:, ends[number] : ends[number + 1]] * scaled.scale * share
            bias -= own @ scaled.centre
            start, factor = places[name]
            weights[:, start : start + own.shape[1]] = own * factor
    record = P2LRecord(kind, "rk", "grk", max_length=tokenizer.max_length)
    model = P2LModel(backbone, heads.build("rk", width, len(models)), models, record)
    _set_head(model, weights, bias, eta)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _as_backbone(parts: Mapping[str, Reader]) -> tuple[str, tuple[Any, Any], dict[str, tuple[int, float]]]:
    """Return the type, the backbone with its tokenizer, and by part where its features begin in the hidden state.

    The number beside a place is a feature over its hidden unit.
    """
    if isinstance(category := parts.get(CATEGORY), CategoryReader):
        return "tfidf", (_bag(category), category.tokenizer), {CATEGORY: (0, 1.0)}
    encoder, words, clusters = parts.get("encoder"), parts.get("words"), parts.get(CLUSTERS)
    assert encoder is None or isinstance(encoder, Encoder)
    assert words is None or isinstance(words, Words)
    assert clusters is None or isinstance(clusters, Clusters)
    width = 0 if encoder is None else encoder.width
    units = width + (0 if words is None else words.directions.shape[1])
    root = 1.0 if clusters is None else float(np.sqrt(len(clusters.centres)))
    places = {"encoder": (0, 1.0), "words": (width, 1.0), CLUSTERS: (units, root)}
    return "reader", untrained_reader(encoder, words, clusters), {name: places[name] for name in parts}


def _bag(category: CategoryReader) -> TfidfBackbone:
    """Return a bag of words with a direction of its own for each category."""
    import torch

    from p2l.model.tfidf import TfidfBackbone, TfidfConfig

    count = category.tokenizer.vocab_size
    backbone = TfidfBackbone(TfidfConfig(count, count))
    with torch.no_grad():
        backbone.embedding.copy_(torch.eye(count))
    return backbone


def _set_head(model: P2LModel, weights: Floats, bias: Floats, eta: float) -> None:
    import torch

    head: Any = model.head
    with torch.no_grad():
        head.head.weight.copy_(torch.from_numpy(weights))
        head.head.bias.copy_(torch.from_numpy(bias))
        head.eta_head.weight.zero_()
        head.eta_head.bias.fill_(eta)


def width_of_ties(scores: Floats, *, seed: int = 0) -> float:
    """Fit the eta of grk to pairs of graded answers (Q, M): two right ones tie, two wrong ones are both-bad."""
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


def known_models(folder: Path, table: ScoreTable) -> tuple[str, ...]:
    """Return the models of the table that the P2L knows; raise InputError if there are fewer than two."""
    from p2l.model.checkpoint import local_folder, read_model_list

    names = read_model_list(local_folder(folder))
    shared = tuple(model for model in table.models if model in names)
    if len(shared) < 2:
        missing = next(model for model in table.models if model not in names)
        raise InputError(
            f"{folder}: knows {len(shared)} of the table's {len(table.models)} models; "
            f"{missing!r} is not in its list{nearest(missing, names)}"
        )
    return shared


def expected_by(folder: Path, table: ScoreTable) -> Floats:
    """Predict scores (Q, M): the chance of a usable answer if coefficients are grounded, else of beating the rest."""
    from p2l.inference import P2L

    model = P2L.from_pretrained(folder)
    coefs = model.predict(list(table.prompts)).coefs.astype(np.float64)
    columns = [model.model_list.index(name) for name in known_models(folder, table)]
    if model.likelihood.grounded:
        return grounded_scores(coefs[:, columns])
    weights = np.full(coefs.shape[1], 1.0 / coefs.shape[1])
    return np.stack([scores_against(row[columns], Opponents(row, weights)) for row in coefs])
