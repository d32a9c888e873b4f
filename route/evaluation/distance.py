"""How far a prompt lies from the training prompts: expected scores of strange ones are shrunk towards the mean ones.

A head that is fitted to graded answers on some prompts says something about every prompt. Off the training's
distribution that is worse than the mean score of each model. So a P2L that is trained here gets the posterior that
other trained models have (`p2l.model.posterior`): coefficients are shrunk towards those whose chances are the mean
training scores, by how much of the variance between prompts the answers determine, and by how many words are known.

The posterior is fitted to votes between answers to the same prompt, each answer in one vote at most: the higher score
wins, equal ones tie if they are usable and are both-bad if not.

Shapes: Q prompts, M models, N votes, F inputs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from route.evaluation.table import Floats, Rows

if TYPE_CHECKING:
    from p2l.model.posterior import Posterior
    from p2l.model.tfidf import WordUsage


INPUTS = ("encoder", "words", "form")
"""What tells prompts apart, in the order of a reader's inputs."""
_MOST_VOTES = 40_000
_LEAST_RATE = 1e-3  # mean scores of 0 and 1 would have infinite coefficients


def inputs_of(states: Mapping[str, Floats]) -> Floats:
    """Return the inputs (Q, F) of a reader from the states of its backbones."""
    return np.concatenate([states[name] for name in INPUTS if name in states], axis=1)


def fit_distance(
    inputs: Floats, coefs: Floats, usage: WordUsage | None, scores: Floats, eta: float, *, seed: int = 0
) -> Posterior:
    """Fit the posterior of a head with these coefficients (Q, M) on prompts with graded answers (Q, M)."""
    from p2l.likelihood import get
    from p2l.model.heads import HeadStart
    from p2l.training.posterior import KnownPrompts, posterior_of

    rng = np.random.default_rng(seed)
    prompt, labels = votes_between(scores, rng)
    rows = np.sort(rng.permutation(len(labels))[:_MOST_VOTES])
    # Strange prompts get the grounded coefficients whose chances are the mean scores.
    rates = scores.mean(axis=0).clip(_LEAST_RATE, 1.0 - _LEAST_RATE)
    board = HeadStart(np.log(rates / (1.0 - rates)), eta, None)
    prompts = KnownPrompts(inputs, coefs, usage)
    return posterior_of(prompts, prompt[rows], labels[rows], board, get("grk"), len(labels), rng)


def votes_between(scores: Floats, rng: np.random.Generator) -> tuple[Rows, Rows]:
    """Return the prompt (N,) and `[winner, loser, tie]` (N, 3) of votes between answers, drawn in pairs at random."""
    questions, models = scores.shape
    order = np.argsort(rng.random((questions, models)), axis=1)[:, : models // 2 * 2].reshape(questions, -1, 2)
    first, second = order[..., 0].ravel(), order[..., 1].ravel()
    prompt = np.repeat(np.arange(questions), models // 2)
    first_score = scores[prompt, first]
    second_score = scores[prompt, second]
    better = first_score >= second_score
    ties = np.select([first_score != second_score, first_score > 0.5], [0, 1], 2)
    return prompt, np.stack([np.where(better, first, second), np.where(better, second, first), ties], axis=1)


def shrunk(posterior: Posterior, coefs: Floats, states: Mapping[str, Floats], known: Floats | None) -> Floats:
    """Return coefficients (Q, M) of prompts shrunk towards the mean ones, as far as the prompts are strange."""
    import torch

    with torch.inference_mode():
        squares = posterior.squares(torch.from_numpy(inputs_of(states)))
        trust = posterior.trust(squares, None if known is None else torch.from_numpy(known).float())
        return np.asarray(posterior.shrunk(trust, torch.from_numpy(coefs).float(), None, None)[0].double().numpy())
