"""Pairs of models on one prompt: intervals of their log-odds, and votes with covariates counted in.

Shapes: P pairs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, Field

from p2l.common.errors import InputError
from p2l.inference import NO_POSTERIOR, P2L, Prediction
from p2l.serving.score_cache import Answer
from p2l.votes import WINNERS

MOST_PAIRS = 1000
MOST_COVARIATES = 100
LONGEST_NAME = 200  # characters
Pairs = Sequence[tuple[str, str]]


class PairInterval(BaseModel):
    """The log-odds of one model against another on one prompt: the difference of their coefficients."""

    model_a: str
    model_b: str
    log_odds: float
    sd: float = Field(description="Standard deviation of the true log-odds on this prompt.")
    lower: float = Field(description="Lower end of the central interval of probability `level`.")
    upper: float


class PairVote(BaseModel):
    """A vote between two models on one prompt, with its covariates counted in."""

    model_a: str
    model_b: str
    log_odds: float = Field(description="The difference of both coefficients, and what the covariates add to it.")
    probs: dict[str, float] = Field(description="Chance of each outcome that the likelihood has.")


def few_covariates(values: Any) -> Any:
    """Refuse many covariates, or long names, before each of them is looked at."""
    if isinstance(values, dict) and (len(values) > MOST_COVARIATES or any(len(name) > LONGEST_NAME for name in values)):
        raise ValueError  # the message says what is expected, as of every other fault
    return values


def check_posterior(model: P2L) -> None:
    """Raise InputError for a model without standard deviations."""
    if model.basis is None:
        raise InputError(NO_POSTERIOR)


def deviations(model: P2L, answer: Answer) -> list[float]:
    """Return the standard deviation of each coefficient."""
    sd: list[float] = _uncertain(model, answer).sd()[0].tolist()
    return sd


def intervals(model: P2L, answer: Answer, pairs: Pairs, level: float) -> list[PairInterval]:
    """Return log-odds, standard deviation and interval of each pair; InputError for an unknown name."""
    first, second = _places(model, pairs)
    deviation = _uncertain(model, answer).difference_sd(first, second)[0]
    reach = NormalDist().inv_cdf(0.5 + level / 2)
    coefs = answer.coefs
    return [
        PairInterval(model_a=a, model_b=b, log_odds=odds, sd=sd, lower=odds - reach * sd, upper=odds + reach * sd)
        for (a, b), place_a, place_b, sd in zip(pairs, first, second, deviation.tolist(), strict=True)
        for odds in [coefs[place_a] - coefs[place_b]]
    ]


def votes_on(model: P2L, answer: Answer, pairs: Pairs, covariates: Mapping[str, float]) -> list[PairVote]:
    """Return each pair's vote with these covariates, seen from its first model.

    InputError without pairs, for a model that is not in the list, or a covariate that this one was not trained with.
    """
    if not pairs:
        raise InputError("covariates: count in votes between two models; name the pairs too")
    first, second = _places(model, pairs)
    coefs = np.array(answer.coefs, dtype=np.float64)
    extras = [None if value is None else np.full(len(pairs), value) for value in (answer.eta, answer.gamma)]
    a, b, eta = model.with_covariates(coefs[first], coefs[second], extras[0], covariates)
    probs = model.likelihood.probs(a, b, eta, extras[1])
    return [
        # A likelihood has the first of the outcomes, all four or fewer.
        PairVote(model_a=name_a, model_b=name_b, log_odds=odds, probs=dict(zip(WINNERS, row, strict=False)))
        for (name_a, name_b), odds, row in zip(pairs, (a - b).tolist(), np.asarray(probs).tolist(), strict=True)
    ]


def _places(model: P2L, pairs: Pairs) -> NDArray[np.intp]:
    """Return the places (2, P) of the pairs' models in the list; InputError for an unknown name."""
    numbers = {name: number for number, name in enumerate(model.model_list)}
    for number, name in ((number, name) for number, pair in enumerate(pairs) for name in pair):
        if name not in numbers:
            raise InputError(f"pairs.{number}: names a model that is not in the list; GET /models has the names")
    first, second = zip(*pairs, strict=True)
    return np.array([[numbers[name] for name in names] for names in (first, second)], dtype=np.intp)


def _uncertain(model: P2L, answer: Answer) -> Prediction:
    """Return the answer as a prediction of one prompt, with its posterior."""
    return Prediction(
        coefs=np.array([answer.coefs], np.float32),
        eta=None,
        gamma=None,
        truncated=np.array([answer.truncated]),
        variances=None if answer.variances is None else np.array([answer.variances], np.float32),
        basis=model.basis,
    )
