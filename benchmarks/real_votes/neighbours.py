"""Baselines that are leaderboards of some of the training votes: those of the category, or of the nearest prompts.

Both are shrunk towards the leaderboard of all votes. How much, and how many neighbours, is chosen on a part of the
training prompts, so each is as strong as its kind can be.

Shapes: N votes, U distinct prompts, M models, D dimensions of an embedding.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.real_votes.parts import Part, mean_loss, of_votes
from p2l.common.cli import progress
from p2l.common.files import atomic_path
from p2l.leaderboard import Prior, fit_labels
from p2l.training.forecasts import Forecast, per_category

__all__ = ["best_setting", "embed", "nearest_votes", "neighbours", "tuned_neighbours", "tuned_per_category"]

Floats = NDArray[np.float64]
DEVIATIONS = (0.1, 0.2, 0.35, 0.5, 1.0)
"""How far a category's or a neighbourhood's leaderboard may be expected from the one of all votes."""
NEIGHBOUR_DEVIATIONS = (0.2, 0.4, 0.8)
NEIGHBOUR_VOTES = (300, 1000, 4000)
MOST_TUNING_PROMPTS = 250
TOKENS = 128
_TOKENS_AT_ONCE = 4096


def best_setting(loss_of: Callable[..., float], *choices: tuple[Any, ...]) -> tuple[Any, ...]:
    """The combination of one value of each of the choices with the least loss."""
    return min(product(*choices), key=lambda setting: loss_of(*setting))


def tuned_per_category(rest: Part, tune: Part, train: Part, held: Part, likelihood: str) -> tuple[Forecast, str]:
    """A leaderboard for each category, a forecast of the held-out votes; and its settings in words."""

    def forecast(known: Part, asked: Part, sd: float) -> Forecast:
        return per_category(known.labels, known.categories, asked.categories, known.models, likelihood, sd=sd)

    (sd,) = best_setting(lambda sd: mean_loss(forecast(rest, tune, sd), tune, likelihood), DEVIATIONS)
    return forecast(train, held, sd), f"{len(set(train.categories))} categories, deviation {sd}"


def tuned_neighbours(
    rest: Part, tune: Part, train: Part, likelihood: str, embedding: dict[str, Floats], *, quiet: bool
) -> tuple[Forecast, str]:
    """The nearest prompts' votes, a forecast of the distinct held-out prompts; and its settings in words.

    `embedding` has the vectors (U, D), of length 1, of each part's distinct prompts by the part's name.
    """
    few = min(len(tune.prompts), MOST_TUNING_PROMPTS)
    asked = tune.place < few

    def loss(votes: int, sd: float) -> float:
        guess = neighbours(embedding["rest"], rest, embedding["tune"][:few], likelihood, votes, sd, quiet=quiet)
        columns = ("labels", "categories", "place", "clusters", "shown_first")
        part = replace(tune, prompts=[], **{name: getattr(tune, name)[asked] for name in columns})
        return mean_loss(of_votes(guess, part.place), part, likelihood)

    votes, sd = best_setting(loss, NEIGHBOUR_VOTES, NEIGHBOUR_DEVIATIONS)
    guess = neighbours(embedding["train"], train, embedding["val"], likelihood, votes, sd, quiet=quiet)
    return guess, f"{votes} votes of the nearest prompts, deviation {sd}"


def neighbours(
    known: Floats, train: Part, asked: Floats, likelihood: str, votes: int, sd: float, *, quiet: bool = True
) -> Forecast:
    """For each asked embedding the leaderboard of the nearest prompts that have `votes` votes together."""
    overall = fit_labels(train.labels, models=train.models, likelihood=likelihood, intervals=None)
    prior = Prior(coefs=overall.coefs, eta=overall.eta, sd=sd)
    of_prompt = rows_of(train.place, len(known))
    coefs, eta = np.empty((len(asked), len(train.models))), np.empty(len(asked))
    with progress(description=f"{votes} neighbours", total=len(asked), unit="prompts", quiet=quiet) as bar:
        for number, vector in enumerate(asked):
            rows = nearest_votes(known @ vector, of_prompt, votes)
            labels = train.labels[rows]
            board = fit_labels(labels, models=train.models, likelihood=likelihood, intervals=None, prior=prior)
            coefs[number], eta[number] = board.coefs, board.eta or 0.0
            bar.update(1)
    return Forecast(coefs, eta if overall.eta is not None else None)


def nearest_votes(similarity: Floats, of_prompt: list[NDArray[np.intp]], votes: int) -> NDArray[np.intp]:
    """Rows of the votes on the most similar prompts, whole prompts until there are at least `votes`."""
    sizes = np.array([len(rows) for rows in of_prompt])
    order = np.argsort(-similarity, kind="stable")
    enough = int(np.searchsorted(np.cumsum(sizes[order]), votes)) + 1
    return np.concatenate([of_prompt[prompt] for prompt in order[:enough]])


def rows_of(place: NDArray[np.int64], prompts: int) -> list[NDArray[np.intp]]:
    """The rows of the votes on each prompt."""
    order = np.argsort(place, kind="stable")
    return np.split(order, np.searchsorted(place[order], np.arange(1, prompts)))


def embed(model: Path, prompts: list[list[str]], kept: Path, *, quiet: bool) -> Floats:
    """Mean states (U, D) of a sentence encoder over each prompt, of length 1; `kept` holds them for the next time."""
    if kept.is_file():
        return np.asarray(np.load(kept), dtype=np.float64)
    import torch
    from transformers import AutoModel, AutoTokenizer
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    tokenizer = AutoTokenizer.from_pretrained(model)
    encoder = AutoModel.from_pretrained(model, add_pooling_layer=False).eval()
    texts = ["\n".join(turns) for turns in prompts]
    found = np.empty((len(texts), encoder.config.hidden_size))
    with progress(description="embedding prompts", total=len(texts), unit="prompts", quiet=quiet) as bar:
        for rows in _batches(texts):
            batch = tokenizer([texts[row] for row in rows], padding=True, truncation=True, max_length=TOKENS)
            inputs = {name: torch.tensor(batch[name]) for name in ("input_ids", "attention_mask")}
            with torch.inference_mode():
                states = encoder(**inputs).last_hidden_state
            mask = inputs["attention_mask"][:, :, None]
            found[rows] = ((states * mask).sum(1) / mask.sum(1)).numpy()
            bar.update(len(rows))
    found /= np.linalg.norm(found, axis=1, keepdims=True)
    with atomic_path(kept) as temporary, temporary.open("wb") as opened:
        np.save(opened, found.astype(np.float32))
    return found


def _batches(texts: list[str]) -> list[NDArray[np.intp]]:
    """Rows of about equal length together, about `_TOKENS_AT_ONCE` tokens in each batch."""
    order = np.argsort([len(text) for text in texts])
    lengths = np.array([min(TOKENS, len(texts[row]) // 3 + 2) for row in order])
    return np.split(order, np.flatnonzero(np.diff(np.cumsum(lengths) // _TOKENS_AT_ONCE)) + 1)
