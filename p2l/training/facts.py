"""Measurements before and after training: votes, backbone and machine, and the leaderboards that a model must beat.

Shapes: N votes, M models, B leaderboards.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from p2l.common.errors import CheckpointError, VoteError
from p2l.leaderboard import Leaderboard, Prior, fit_labels, fit_table
from p2l.leaderboard.pair_tables import VoteCounter
from p2l.likelihood import counted, get
from p2l.metrics import ScoredVotes, bootstrap_mean, vote_values
from p2l.model import backbones
from p2l.model.checkpoint import read_object, weight_shapes
from p2l.model.encoding import PromptTokenizer
from p2l.model.scratch import sample_prompts
from p2l.model.sentence import MODULES_FILE, pooling_of
from p2l.training.comparison import HeldOutComparison
from p2l.training.data import Votes
from p2l.training.engine import local_size, world_size
from p2l.training.recipe import BackboneFacts, Machine, VoteFacts
from p2l.votes import VoteStore
from p2l.votes.splitting import hash_prompts

Floats = NDArray[np.float64]
Labels = NDArray[np.int32]
LENGTH_SAMPLE = 2_000
MOST_POSITIONS = 8192  # of a backbone that names no limit
_BLOCK = 1 << 16  # votes in memory at a time


def measure_machine() -> Machine:
    """Measure the processes of this run, and the memory of each."""
    processes = world_size()
    if torch.cuda.is_available():
        memory = torch.cuda.get_device_properties(0).total_memory
        return Machine(processes, memory, gpu=True, bfloat16=torch.cuda.is_bf16_supported())
    installed = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return Machine(processes, min([installed, *memory_limits()]) // local_size(), gpu=False)


def memory_limits(system: Path = Path("/")) -> list[int]:
    """Return the memory limits, in bytes, of this process's container and its parents; empty without a limit."""
    groups = system / "sys/fs/cgroup"
    files = [groups / "memory/memory.limit_in_bytes"]
    try:
        own = next(line for line in (system / "proc/self/cgroup").read_text().splitlines() if line.startswith("0::"))
    except (OSError, StopIteration):
        own = "0::/"
    path = Path(own.removeprefix("0::").lstrip("/"))
    files += [groups / part / "memory.max" for part in (path, *path.parents)]
    return [int(text) for text in map(_content, files) if text.isdecimal()]


def _content(file: Path) -> str:
    try:
        return file.read_text().strip()
    except OSError:
        return ""


def measure_backbone(folder: Path, name: str, chat_template: str | None) -> BackboneFacts:
    """Measure a backbone called `name` in the configuration; InputError if the folder holds none of a known family."""
    config = read_object(folder / "config.json")
    model_type = config.get("model_type")
    if not isinstance(model_type, str):
        raise CheckpointError(f"{folder / 'config.json'}: names no model_type; is this the folder of a text model?")
    backbones.get(model_type)
    parameters = sum(int(np.prod(shape)) for shape in weight_shapes(folder).values())
    positions = config.get("max_position_embeddings")
    pooled = (folder / MODULES_FILE).is_file() and model_type != "reader"
    return BackboneFacts(
        name,
        model_type,
        parameters,
        positions if isinstance(positions, int) else MOST_POSITIONS,
        chat_template,
        pooling_of(folder).kind if pooled else None,
    )


def measure_votes(votes: VoteStore, tokenizer: PromptTokenizer, seed: int) -> VoteFacts:
    """Count votes, prompts and ties, and sample the lengths of prompts; memory holds 8 bytes a vote."""
    ties, both_bad = count_ties(votes)
    sample = sample_prompts((batch for _, batch in votes.batches()), LENGTH_SAMPLE, seed=seed)
    lengths = [len(encoding.ids) for encoding in tokenizer.encode(sample)]
    prompts = len(np.unique(hash_prompts(votes)))
    models = len(votes.model_list)
    return VoteFacts(len(votes), prompts, ties, both_bad, lengths, weighted=votes.has_weights, models=models)


def count_ties(votes: VoteStore) -> tuple[int, int]:
    """Return the numbers of votes that are ties, and that call both answers bad."""
    counts = sum(np.bincount(votes.labels(ids)[:, 2], minlength=3) for ids in _chunks(len(votes)))
    _, ties, both_bad = (int(count) for count in np.asarray(counts))
    return ties, both_bad


def check_counted(votes: VoteStore, loss_type: str, *, weighted: bool = False) -> None:
    """Raise VoteError if the likelihood leaves out all votes, or all their weights are zero."""
    likelihood = get(loss_type)
    for ids in _chunks(len(votes)):
        takes = counted(likelihood, votes.labels(ids))
        if np.any(takes * votes.weights(ids) if weighted else takes):
            return
    why = f"holds ties alone, which loss_type {loss_type!r} leaves out"
    raise VoteError(f"{votes.name}: {why + ', or votes of weight zero' if weighted else why}")


def one_prompt_only(votes: VoteStore) -> bool:
    """Return whether all votes share one prompt; reads no further than the second one."""
    prompts = chain.from_iterable(votes.prompts(ids) for ids in _chunks(len(votes), 1024))
    first = next(prompts)
    return all(turns == first for turns in prompts)


def _chunks(count: int, size: int = _BLOCK) -> Iterator[np.ndarray]:
    return (np.arange(start, min(start + size, count)) for start in range(0, count, size))


# What a per-prompt model must beat: one leaderboard for all prompts, and one for each category.

CATEGORY_SD = 1.0


@dataclass(frozen=True)
class Forecast:
    """Predicted parameters of N votes: coefs (N, M), and eta, gamma (N,) or None where the likelihood has none."""

    coefs: NDArray[np.floating]
    eta: NDArray[np.floating] | None
    gamma: NDArray[np.floating] | None = None


def marginal(train: Labels, num_votes: int, models: Sequence[str], likelihood: str) -> Forecast:
    """Fit a single leaderboard to the training labels (n, 3) and repeat it for each of `num_votes` votes."""
    return _repeat(fit_labels(train, models=models, likelihood=likelihood, intervals=None), num_votes)


class ListedVotes(Votes, Protocol):
    """Votes and the names of their models: a `VoteStore`, or the first votes of a stream."""

    @property
    def model_list(self) -> list[str]:
        """The models, which labels number."""


def marginal_board(
    votes: ListedVotes, likelihood: str, *, weighted: bool = False, prior: Prior | None = None
) -> Leaderboard:
    """Fit a single leaderboard to all votes; models without a vote have the prior's mean, or coefficient zero.

    By default its prior is fitted to the models: with few votes on many models the best fit follows noise, and one
    that is shrunk towards equal models predicts other votes better. A `prior` has means (M,). Memory holds a count for
    each pair and outcome, and a block of votes.
    """
    table, names = _count(votes, weighted=weighted).table(0, votes.model_list)
    means = np.zeros(len(votes.model_list)) if prior is None or prior.coefs is None else prior.coefs
    if prior is not None:
        there = {name: place for place, name in enumerate(votes.model_list)}
        prior = replace(prior, coefs=means[[there[name] for name in names]])
    board = fit_table(table, models=names, likelihood=likelihood, intervals=None, prior=prior)
    return _with_all_models(board, votes.model_list, means)


def _count(votes: ListedVotes, *, weighted: bool) -> VoteCounter:
    counter = VoteCounter()
    for ids in _chunks(len(votes)):
        first, second, tie = votes.labels(ids).T.astype(np.int64)
        weights = votes.weights(ids) if weighted else np.ones(len(ids))
        counter.add(np.zeros(len(ids), dtype=np.int64), first, second, np.array([0, 2, 3])[tie], weights)
    return counter


def _with_all_models(board: Leaderboard, models: Sequence[str], means: Floats) -> Leaderboard:
    place = {name: float(coef) for name, coef in zip(board.models, board.coefs, strict=True)}
    coefs = np.array([place.get(name, mean) for name, mean in zip(models, means.tolist(), strict=True)])
    unknown = np.full(len(coefs), np.nan)
    return replace(board, models=list(models), coefs=coefs, lower=unknown, upper=unknown, votes=None)


def per_category(
    train: Labels,
    train_categories: NDArray[np.object_],
    categories: NDArray[np.object_],
    models: Sequence[str],
    likelihood: str,
    *,
    sd: float = CATEGORY_SD,
) -> Forecast:
    """Fit a leaderboard per category, shrunk towards the overall one, which stands in for categories that are new.

    `train` are the labels (n, 3) of training votes with `train_categories` (n,), `categories` (N,) those of the votes
    to predict, `sd` the expected distance, in coefficients, between a category's leaderboard and the overall one.
    """
    overall = fit_labels(train, models=models, likelihood=likelihood, intervals=None)
    prior = Prior(coefs=overall.coefs, eta=overall.eta, sd=sd)
    forecast = _repeat(overall, len(categories))
    for category in np.unique(categories):
        votes = train[train_categories == category]
        if not len(votes):
            continue
        board = fit_labels(votes, models=models, likelihood=likelihood, intervals=None, prior=prior)
        here = categories == category
        forecast.coefs[here] = board.coefs
        for values, value in ((forecast.eta, board.eta), (forecast.gamma, board.gamma)):
            if values is not None and value is not None:
                values[here] = value
    return forecast


def _repeat(board: Leaderboard, count: int) -> Forecast:
    def column(value: float | None) -> Floats | None:
        return None if value is None else np.full(count, value)

    return Forecast(np.tile(board.coefs, (count, 1)), column(board.eta), column(board.gamma))


# Whether a trained model reads prompts: its loss on held-out votes beside that of one leaderboard for all prompts.

_NAMES = ("Loss", "Accuracy")


def compare(
    model: Forecast,
    board: Forecast,
    labels: Labels,
    prompts: NDArray[Any],
    likelihood: str,
    *,
    factor: float | None = None,
    folds: int | None = None,
) -> HeldOutComparison:
    """Compare a model with one leaderboard on votes that neither has seen.

    `labels` are (N, 3), `prompts` (N,) codes or hashes; a forecast holds coefs (N, M), that of `board` also (M,).
    """
    ours, theirs = (_scores(forecast, labels, likelihood) for forecast in (model, board))
    clusters = np.unique(prompts, return_inverse=True)[1]
    gain = bootstrap_mean(theirs[:, 0] - ours[:, 0], clusters=clusters)
    return HeldOutComparison(
        len(labels), int(clusters.max()) + 1, _means(theirs), _means(ours), gain, factor=factor, folds=folds
    )


def _scores(forecast: Forecast, labels: Labels, likelihood: str) -> Floats:
    votes = ScoredVotes(get(likelihood), forecast.coefs, labels, forecast.eta, forecast.gamma)
    return np.stack([vote_values(name, votes) for name in _NAMES], axis=1)


def _means(scores: Floats) -> dict[str, float]:
    return {name: float(value) for name, value in zip(_NAMES, np.nanmean(scores, axis=0), strict=True)}
