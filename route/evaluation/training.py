"""Train a P2L on graded answers: features of frozen backbones, a fitted head, a folder that every command reads.

The likelihood is the grounded one. Under grk a model whose coefficient is minus infinity never gives a usable answer. A
vote of model m against it is won with probability sigmoid(coef_m), is both-bad otherwise, and cannot be tied or lost
(`p2l.likelihood`, b = 0). A graded answer is such a vote, a fractional score s two of them with weights s and 1 - s;
their log-likelihood is

    sum over answers of  s log sigmoid(coef) + (1 - s) log sigmoid(-coef),    coef_m = x v_m + c_m

with features x of a prompt. Votes between two answers would need more, namely how the errors of two models coincide,
which no choice of one model depends on.

What is learned is decided in a linear model of scores (`route.evaluation.gaussian`), whose prior is fitted too; the
likelihood above is then given the scores that this model expects, in place of the answers, so that coefficients say
them within 0 and 1.

The features are a prompt's group: the category in front of it, or how far it belongs to the categories of the table, as
recognised, or to clusters of the training prompts. What states foresee beyond that pays where a budget is a mean over
prompts, of which one with much to gain may exceed it; there they may be read too. Where each prompt has the same
budget, that lowers the squared error of scores, but also the worth of the choice.

Which groups, what is read and how much of the differences between models counts are chosen by folds of the training
prompts, for the worth of what is expected then when budgets are spent. Categories give way to clusters that are better
beyond two standard errors. Of all else that is as good as the best within one, the smallest differences are taken, none
of them being one leaderboard: with few prompts the best is so by chance. The more prompts, the smaller that tolerance.

The folder holds a reader, or a bag of words that reads nothing but the category in front of the prompt.

Shapes: Q prompts, T training prompts, M models, F features, D hidden of a backbone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from p2l.common.cli import nearest
from p2l.common.errors import InputError
from p2l.common.files import atomic_path
from route.evaluation.cost_curves import Worth, Worths
from route.evaluation.features import CategoryReader, Encoder, Form, Words, shrunk
from route.evaluation.gaussian import fit_gaussian, held_out
from route.evaluation.groups import Groups, Reader, reader_with_groups
from route.evaluation.table import Floats, ScoreTable, parts_of
from route.routing.guard import Guard, told_apart
from route.routing.optimizers import Opponents, grounded_scores, scores_against

if TYPE_CHECKING:
    from p2l.inference import P2L
    from p2l.model.posterior import Posterior


_MOST_STEPS = 200
_LEAST_RATE = 1e-3  # scores of 0 and 1 would have infinite coefficients


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


def fit_graded(features: Floats, scores: Floats, precision: float) -> Fit:
    """Fit the most probable weights.

    Args:
        features: (Q, F) of mean zero.
        scores: (Q, M) between 0 and 1.
        precision: of the normal prior of weights, in units of one prompt whose features have length 1.
    """
    from scipy.optimize import minimize

    rates = scores.mean(axis=0).clip(_LEAST_RATE, 1.0 - _LEAST_RATE)
    # By this much a unit of coefficient moves a score at most, on average.
    slope = float((rates * (1.0 - rates)).mean())
    lengths, basis = np.linalg.eigh(features.T @ features)
    # Along these axes and in these units the posterior is nearly round.
    scales = np.sqrt(len(scores) / ((lengths.clip(0.0) + precision) * slope))
    posterior = _Posterior(features @ basis, scores, scales, precision * slope)
    start = np.concatenate([np.zeros(len(scales) * len(rates)), np.log(rates / (1.0 - rates))])
    optimum = minimize(posterior, start, jac=True, method="L-BFGS-B", options={"maxiter": _MOST_STEPS, "ftol": 1e-10})
    weights, bias = posterior.parts(np.asarray(optimum.x))
    return Fit(weights @ basis.T, bias)


@dataclass(frozen=True)
class _Posterior:
    """The negative log-posterior per prompt, and its gradient."""

    rows: Floats
    """(Q, F) features along the principal axes"""
    scores: Floats
    scales: Floats
    """(F,) the coordinates' units"""
    precision: float

    def parts(self, x: Floats) -> tuple[Floats, Floats]:
        """Return weights (M, F) and biases (M,)."""
        count, width = self.scores.shape[1], self.rows.shape[1]
        return x[: width * count].reshape(count, width) * self.scales, x[width * count :]

    def __call__(self, x: Floats) -> tuple[float, Floats]:
        weights, bias = self.parts(x)
        coefs = self.rows @ weights.T + bias
        number = len(self.scores)
        slope = 0.5 + 0.5 * np.tanh(0.5 * coefs) - self.scores  # sigmoid less score, without overflow
        # The negative log-likelihood of the graded answers, and that of the prior.
        losses = np.logaddexp(0.0, coefs) - self.scores * coefs
        value = losses.sum() + 0.5 * self.precision * (weights**2).sum()
        gradient = ((slope.T @ self.rows + self.precision * weights) * self.scales).ravel()
        return float(value) / number, np.concatenate([gradient, slope.sum(axis=0)]) / number


RECIPES: Mapping[str, tuple[str, ...]] = {
    "both": ("encoder", "words", "form"),
    "encoder": ("encoder",),
    "words": ("words", "form"),
}
"""The backbones of each recipe."""
_LENGTHS: Mapping[str, float] = {"encoder": 0.5, "words": 0.25, "form": 0.25}
"""Of the backbones' features where they are read beside groups, in which a prompt has a length of 1."""
_ERRORS_TO_LEAVE = 2.0
"""Standard errors by which others must be better than what is at hand: clusters than the categories that a user has
named, a P2L that was trained elsewhere than the constant."""
CATEGORY, GROUPS = "category", "groups"
_FEATURES = {CATEGORY: "categories", GROUPS: "groups of prompts"}
"""Features of a prompt's group, of which one is there at most, and comes last: `route.evaluation.groups`."""
STRENGTHS = (0.0, 0.3, 0.6, 1.0)
"""Of the differences between models that are foreseen, how much may count."""
_DISTILLED, _DISTILLED_BEYOND = 0.03, 1.0
"""Precision where the scores are those of a model, without luck: of groups alone, and of states too, in whose many
directions the head would otherwise make up for what a logistic function of them cannot say."""
MOST_PAIRS = 20_000
SMALL = 1000
"""Training questions up to which what tells models apart less may be worse than the best by a whole standard error."""


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
    posterior: Posterior | None = None
    """Shrinks the coefficients of strange prompts."""

    def coefs(self, states: Mapping[str, Floats]) -> Floats:
        """Return the grounded coefficients (Q, M) of prompts, from their states by backbone, without shrinking."""
        return self.fit.coefs(_side_by_side(self.names, self.scaled, states))

    def expected(self, states: Mapping[str, Floats], known: Floats | None = None) -> Floats:
        """Return the chance (Q, M) of a usable answer; `known` (Q,) are the shares of words in the vocabulary."""
        coefs = self.coefs(states)
        return grounded_scores(coefs if self.posterior is None else shrunk(self.posterior, coefs, states, known))


def train(table: ScoreTable, states: Mapping[str, Floats], worth: Worths, *, beyond_groups: bool = False) -> Trained:
    """Fit a head to the states (T, D) of each backbone and the table's answers; `worth` selects what counts.

    The last of the states are those of groups; they are read alone, unless `beyond_groups` offers the others too.
    """
    names = tuple(states)
    offered = [names[-1:], names] if beyond_groups else [names[-1:]]
    mean = table.scores.mean(axis=0)
    parts = parts_of(table.prompts)
    tried = []
    for used in offered:
        scaled = {name: _scaled(name, states[name]) for name in used}
        features = _side_by_side(tuple(scaled), tuple(scaled.values()), states)
        tried.append((scaled, features, held_out(features, table.scores, parts) - mean))
    # The smallest differences come first, and of those as good as the best the first is taken.
    choices = [
        (strength, scaled, features, deviations) for strength in STRENGTHS for scaled, features, deviations in tried
    ]
    worths = [worth(mean + told_apart(deviations, strength)) for strength, _, _, deviations in choices]
    strength, scaled, features, _ = choices[_simplest(worths)]
    expected = mean + features @ told_apart(fit_gaussian(features, table.scores).weights, strength)
    precision = _DISTILLED if len(scaled) == 1 else _DISTILLED_BEYOND
    fit = fit_graded(features, expected.clip(_LEAST_RATE, 1.0 - _LEAST_RATE), precision)
    read = ", ".join(f"{states[name].shape[1]} {_FEATURES.get(name, f'features of {name}')}" for name in scaled)
    weights, start = [], 0
    for name in names:
        width = states[name].shape[1]
        if name in scaled:
            weights.append(fit.weights[:, start : start + width])
            start += width
        else:
            weights.append(np.zeros((len(fit.bias), width)))
    zeros = {name: Scaled(np.zeros(states[name].shape[1]), 0.0) for name in names if name not in scaled}
    every = {**zeros, **scaled}
    all_scaled, fit = tuple(every[name] for name in names), Fit(np.concatenate(weights, axis=1), fit.bias)
    return Trained(
        models=table.models,
        names=names,
        scaled=all_scaled,
        fit=fit,
        settings=f"reads {read}; {share_in_words(strength)} of the differences between models count",
    )


def share_in_words(share: float) -> str:
    """Return how much of something counts: `none`, `30%` or `all`."""
    return {0.0: "none", 1.0: "all"}.get(share, f"{share:.0%}")


def best_groups(shares: Sequence[Floats], table: ScoreTable, worth: Worths, *, categories: bool) -> int:
    """Return which shares of groups (T, F) to take: the first of those about as good as the best on their own.

    With `categories` the first are those of categories, which others must beat by two standard errors.
    """
    parts = parts_of(table.prompts)
    worths = [worth(held_out(share, table.scores, parts)) for share in shares]
    best = _simplest(worths)
    return 0 if categories and _as_good(worths[0], worths[best], errors=_ERRORS_TO_LEAVE) else best


def _simplest(worths: Sequence[Worth]) -> int:
    """Return the place of the first that is as good as the best."""
    best = max(worths, key=lambda worth: worth.area)
    return next(place for place, worth in enumerate(worths) if _as_good(worth, best))


def _side_by_side(names: tuple[str, ...], scaled: tuple[Scaled, ...], states: Mapping[str, Floats]) -> Floats:
    return np.concatenate([scaling.features(states[name]) for name, scaling in zip(names, scaled, strict=True)], axis=1)


def _as_good(worth: Worth, best: Worth, *, errors: float | None = None) -> bool:
    """Return whether the best is better by no more than `errors` standard errors of the difference.

    Without `errors` it is one, or a part of one that falls with the number of prompts.
    """
    less = best.by_prompt - worth.by_prompt
    tolerance = min(1.0, SMALL / len(less)) if errors is None else errors
    return best.area - worth.area <= tolerance * float(less.std()) / float(np.sqrt(len(less)))


def _scaled(name: str, states: Floats) -> Scaled:
    centre = states.mean(axis=0)
    if name in _FEATURES:
        return Scaled(centre, 1.0)
    length = float(np.sqrt(((states - centre) ** 2).sum(axis=1).mean()))
    return Scaled(centre, _LENGTHS[name] / length if length > 0.0 else 0.0)


def save(trained: Trained, backbones: Mapping[str, Reader], eta: float, output: Path) -> None:
    """Write the model as a folder that `p2l endpoint`, `p2l eval` and `--model` read.

    `eta` is that of grk: the width of ties between two models. Raises InputError if the folder exists or cannot be
    written, or if the model reads a category and other features, which no backbone does.
    """
    import torch

    from p2l.model import heads
    from p2l.model.checkpoint import P2LRecord
    from p2l.model.model import P2LModel, write_folder

    if output.exists():
        raise InputError(f"{output}: exists; choose another folder or remove it")
    names = list(trained.names)
    if CATEGORY in names:
        names = [name for name, scaled in zip(trained.names, trained.scaled, strict=True) if scaled.scale]
        if names != [CATEGORY]:
            raise InputError("a P2L that reads more than the category in front of prompts cannot be saved")
    kind, (backbone, tokenizer), places = _as_backbone({name: backbones[name] for name in names})
    width, models = backbone.config.hidden_size, trained.models
    weights, bias = np.zeros((len(models), width)), trained.fit.bias.copy()
    ends = np.cumsum([0, *(len(scaled.centre) for scaled in trained.scaled)])
    for number, (name, scaled) in enumerate(zip(trained.names, trained.scaled, strict=True)):
        if name in places:
            own = trained.fit.weights[:, ends[number] : ends[number + 1]] * scaled.scale
            bias -= own @ scaled.centre
            start, factor = places[name]
            weights[:, start : start + own.shape[1]] = own * factor
    record = P2LRecord(kind, "rk", "grk", max_length=tokenizer.max_length)
    model = P2LModel(backbone, heads.build("rk", width, len(models)), models, record)
    head: Any = model.head
    with torch.no_grad():
        head.head.weight.copy_(torch.from_numpy(weights))
        head.head.bias.copy_(torch.from_numpy(bias))
        head.eta_head.weight.zero_()  # eta is the same for all prompts
        head.eta_head.bias.fill_(eta)
    posterior = trained.posterior
    with atomic_path(output, directory=True) as unfinished:
        write_folder(unfinished, model, tokenizer, add_files=posterior.save if posterior else lambda _: None)


def _as_backbone(parts: Mapping[str, Reader]) -> tuple[str, tuple[Any, Any], dict[str, tuple[int, float]]]:
    """Return the type, the backbone with its tokenizer, and by part where its features begin in the hidden state.

    The number beside a place is a feature over its hidden unit.
    """
    if isinstance(category := parts.get(CATEGORY), CategoryReader):
        import torch

        from p2l.model.backbones import TfidfBackbone, TfidfConfig

        count = category.tokenizer.vocab_size
        backbone = TfidfBackbone(TfidfConfig(count, count))
        with torch.no_grad():
            backbone.embedding.copy_(torch.eye(count))
        return "tfidf", (backbone, category.tokenizer), {CATEGORY: (0, 1.0)}
    encoder, words, form, groups = (parts.get(name) for name in ("encoder", "words", "form", GROUPS))
    assert encoder is None or isinstance(encoder, Encoder)
    assert words is None or isinstance(words, Words)
    assert form is None or isinstance(form, Form)
    assert groups is None or isinstance(groups, Groups)
    *starts, units = np.cumsum([0, *(0 if part is None else part.width for part in (encoder, words, form))]).tolist()
    root = 1.0 if groups is None else float(np.sqrt(len(groups.biases)))
    places = {name: (start, 1.0) for name, start in zip(("encoder", "words", "form"), starts, strict=True)}
    places[GROUPS] = (units, root)
    return "reader", reader_with_groups(encoder, words, form, groups), {name: places[name] for name in parts}


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


@dataclass(frozen=True)
class Given:
    """A P2L that was trained elsewhere."""

    folder: Path
    memory: dict[str, Floats] = field(default_factory=dict)
    """Coefficients (M,) of its own models by prompt, so that a prompt is read once."""

    def expected(self, table: ScoreTable) -> Floats:
        """Predict scores (Q, M): the chance of a usable answer if coefficients are grounded, else to beat the rest."""
        new = [prompt for prompt in dict.fromkeys(table.prompts) if prompt not in self.memory]
        if new:
            self.memory.update(zip(new, self._model.predict(new).coefs.astype(np.float64), strict=True))
        coefs = np.stack([self.memory[prompt] for prompt in table.prompts])
        columns = [self._model.model_list.index(name) for name in known_models(self.folder, table)]
        if self._model.likelihood.grounded:
            return grounded_scores(coefs[:, columns])
        weights = np.full(coefs.shape[1], 1.0 / coefs.shape[1])
        return np.stack([scores_against(row[columns], Opponents(row, weights)) for row in coefs])

    @property
    def revision(self) -> str:
        """The revision of the model."""
        return self._model.revision

    @cached_property
    def _model(self) -> P2L:
        from p2l.inference import P2L

        return P2L.from_pretrained(self.folder)


def guard_of(expected: Floats, table: ScoreTable, worth: Worths, revision: str = "") -> Guard:
    """Return the guard of a P2L (of this revision) that expects the scores `expected` (T, M) of a table new to it.

    Each prompt is left out of the means by which the share is chosen: none, unless another one is surely better, and of
    these the smallest that is about as good as the best.
    """
    parts = parts_of(table.prompts)
    means, deviations = (np.tile(values.mean(axis=0), (len(parts), 1)) for values in (table.scores, expected))
    for part in np.unique(parts):
        here, others = parts == part, parts != part
        if others.any():
            means[here], deviations[here] = table.scores[others].mean(axis=0), expected[others].mean(axis=0)
    deviations = expected - deviations
    worths = [worth(means + told_apart(deviations, share)) for share in STRENGTHS]
    best = _simplest(worths)
    share = STRENGTHS[0 if _as_good(worths[0], worths[best], errors=_ERRORS_TO_LEAVE) else best]
    averages = (values.mean(axis=0).tolist() for values in (table.scores, expected))
    of_scores, of_expected = (dict(zip(table.models, values, strict=True)) for values in averages)
    return Guard(of_scores, of_expected, share, revision)
