"""A part of a set in memory: its votes, its distinct prompts, and what a forecast says of them.

Shapes: N votes, U distinct prompts, M models.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from p2l.common.files import atomic_path
from p2l.likelihood import get
from p2l.metrics import ScoredVotes, vote_values
from p2l.training.forecasts import Forecast
from p2l.votes import open_votes

__all__ = [
    "Part",
    "SidedForecast",
    "join_forecasts",
    "join_parts",
    "mean_loss",
    "of_votes",
    "read_forecast",
    "read_part",
    "vote_losses",
    "write_forecast",
]

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Part:
    """Votes on models `models`, of which `prompts` are the distinct prompts."""

    models: list[str]
    labels: NDArray[np.int32]  # (N, 3) [winner, loser, tie]
    categories: NDArray[np.object_]  # (N,)
    place: Ints  # (N,) which of the distinct prompts a vote is on
    clusters: Ints  # (N,) what an interval draws together: the prompt, or the vote where each has one of its own
    prompts: list[list[str]]  # (U)
    shown_first: Floats  # (N,) 1 where the winner was shown first, else -1


@dataclass(frozen=True)
class SidedForecast(Forecast):
    """A forecast that knows what being shown first is worth."""

    side: Floats | None = None
    """Log-odds, of prompts (U,) or votes (N,), between the answers shown first and last."""


def read_part(file: Path, models: Sequence[str] | None = None) -> Part:
    """The votes of a file, their labels by the given list of models."""
    with open_votes(str(file), model_list=None if models is None else list(models)) as votes:
        turns, questions = votes.prompts(), votes.column("question_id")
        place, _ = pd.factorize(pd.Series(["\x00".join(prompt) for prompt in turns]))
        first = np.unique(place, return_index=True)[1]
        labels = votes.labels()
        alone = len(set(questions)) == len(questions)
        return Part(
            models=votes.model_list,
            labels=labels,
            categories=np.asarray(votes.column("category"), dtype=object),
            place=np.asarray(place, dtype=np.int64),
            clusters=np.arange(len(questions)) if alone else np.asarray(place, dtype=np.int64),
            prompts=[list(turns[row]) for row in first],
            shown_first=np.where(labels[:, 0] == votes.pairs()[:, 0], 1.0, -1.0),
        )


def join_parts(parts: Sequence[Part]) -> Part:
    """Parts without a prompt in common as one."""
    first = parts[0]
    before = np.cumsum([0, *(len(part.prompts) for part in parts)])
    clusters = np.cumsum([0, *(int(part.clusters.max()) + 1 for part in parts)])
    return Part(
        models=first.models,
        labels=np.concatenate([part.labels for part in parts]),
        categories=np.concatenate([part.categories for part in parts]),
        place=np.concatenate([part.place + offset for part, offset in zip(parts, before, strict=False)]),
        clusters=np.concatenate([part.clusters + offset for part, offset in zip(parts, clusters, strict=False)]),
        prompts=[prompt for part in parts for prompt in part.prompts],
        shown_first=np.concatenate([part.shown_first for part in parts]),
    )


def join_forecasts(forecasts: Sequence[Forecast]) -> Forecast:
    """What forecasts of several parts say of those parts as one."""
    coefs = np.concatenate([one.coefs for one in forecasts])
    eta, gamma, side = (
        None if getattr(forecasts[0], name, None) is None else np.concatenate([getattr(one, name) for one in forecasts])
        for name in ("eta", "gamma", "side")
    )
    return SidedForecast(coefs, eta, gamma, side=side)


def of_votes(forecast: Forecast, place: Ints) -> Forecast:
    """A forecast of prompts (U) as one of votes (N)."""
    values = (forecast.eta, forecast.gamma, side_of(forecast))
    eta, gamma, side = (None if value is None else value[place] for value in values)
    return SidedForecast(forecast.coefs[place], eta, gamma, side=side)


def side_of(forecast: Forecast) -> Floats | None:
    """What being shown first is worth (U,) or (N,); None for a forecast that does not know."""
    return forecast.side if isinstance(forecast, SidedForecast) else None


def vote_losses(forecast: Forecast, part: Part, likelihood: str) -> Floats:
    """The loss (N,) of each vote; the forecast is one of votes."""
    return vote_values("Loss", scored(forecast, part, likelihood))


def mean_loss(forecast: Forecast, part: Part, likelihood: str) -> float:
    """The mean loss of the votes of a part; the forecast is one of votes."""
    return float(np.nanmean(vote_losses(forecast, part, likelihood)))


def scored(forecast: Forecast, part: Part, likelihood: str) -> ScoredVotes:
    """The votes beside their forecast, as metrics take them."""
    side, shift = side_of(forecast), None
    if side is not None:
        half = side * part.shown_first / 2
        shift = np.stack([half, -half, np.zeros_like(half)], axis=1)
    return ScoredVotes(get(likelihood), forecast.coefs, part.labels, forecast.eta, forecast.gamma, shift=shift)


def write_forecast(file: Path, forecast: Forecast) -> None:
    """Keep a forecast; the file is there as a whole or not at all."""
    given: dict[str, Any] = {"coefs": forecast.coefs, "eta": forecast.eta, "gamma": forecast.gamma}
    given |= {"side": side_of(forecast)}
    with atomic_path(file) as temporary, temporary.open("wb") as opened:
        np.savez(opened, **{name: value for name, value in given.items() if value is not None})


def read_forecast(file: Path) -> Forecast:
    """What `write_forecast` kept."""
    with np.load(file) as kept:
        return SidedForecast(kept["coefs"], kept.get("eta"), kept.get("gamma"), side=kept.get("side"))
