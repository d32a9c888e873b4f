"""Models of the simulated arena: who made them, when they came and went, and how strong they are on which prompt.

    coef[x, m] = level + quality[m] - hardness(x)
                 + effect * (weights(x) . skill[m](t) + language_skill[m, language(x)] + length_skill[m, length(x)])

The skill of a model turns slowly from one profile to another as its maker updates it behind its name: it depends on the
time of its latest update, which `version` counts. Organisations improve: quality grows with the release date, at a rate
of their own.

Shapes: n prompts, M models (sorted by name), K topics.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from p2l.common.errors import ConfigError
from p2l.simulation.config import SimulationConfig
from p2l.simulation.prompts import LENGTHS, PromptBatch, topic_weights

FloatArray: TypeAlias = NDArray[np.float64]
IntArray: TypeAlias = NDArray[np.int64]
_LEVEL = 1.0  # mean coefficient: the odds of a usable answer from a middling model are e to 1
_ETA = -0.2  # with it about one vote in seven is a tie between good answers
_TIERS = {"": 0.0, "-mini": -0.5, "-pro": 0.25}
_ORGANISATIONS = (
    *("aster", "boreal", "cobalt", "dune", "ember", "fjord", "glacier", "heron", "indigo", "juniper", "kestrel"),
    *("lumen", "marlin", "nimbus", "onyx", "prairie", "quill", "rowan", "sable", "tundra", "umber", "vireo", "zephyr"),
)
_UPDATE_DAYS = 120
_HARDNESS = 0.3  # lost by every model per demanding word
_NEWCOMER_BOOST = 4.0  # a model just released is shown this many times more often, on top
_NEWCOMER_DAYS = 30


@dataclass(frozen=True)
class PromptEffect:
    """Effect of prompts on coefs, `seen` + `hidden` (n, M), and on eta, `eta_seen` + `eta_hidden` (n,).

    The hidden parts have mean zero given the multiset of the prompt's words: they flip sign with the way the topics
    were dealt. `length` (n, M) is the part of `seen` that follows the number of words alone.
    """

    seen: FloatArray
    hidden: FloatArray
    length: FloatArray
    eta_seen: FloatArray
    eta_hidden: FloatArray

    def total(self, *, other_deal: bool = False) -> tuple[FloatArray, FloatArray]:
        """Return the effect on coefs and eta; with `other_deal`, of the topics dealt to the clauses the other way."""
        sign = -1.0 if other_deal else 1.0
        return self.seen + sign * self.hidden, self.eta_seen + sign * self.eta_hidden


@dataclass(frozen=True)
class ModelTable:
    """All models, by index in the order of their names.

    release, retirement: days since the first vote (negative: before it; infinite: still there). quality: (M,).
    early_skill, late_skill: (K, M) profiles between which skill turns by `drift` radians a year.
    language_skill (L, M), length_skill (3, M), topic_eta (K,). effect: scale of everything that depends on the prompt.
    """

    names: list[str]
    organisations: list[str]
    release: FloatArray
    retirement: FloatArray
    quality: FloatArray
    early_skill: FloatArray
    late_skill: FloatArray
    language_skill: FloatArray
    length_skill: FloatArray
    topic_eta: FloatArray
    effect: float
    drift: float

    def version(self, day: FloatArray) -> IntArray:
        """Return the number of updates (n, M) of each model up to then."""
        return np.floor((day[:, None] - self.release).clip(min=0) / _UPDATE_DAYS).astype(np.int64)

    def shown(self, day: FloatArray) -> FloatArray:
        """Return the chance (n, M) of each model to be drawn first; zero before release and after retirement."""
        age = day[:, None] - self.release
        is_there = (age >= 0) & (day[:, None] < self.retirement)
        weight: FloatArray = np.where(is_there, 1 + _NEWCOMER_BOOST * np.exp(-age.clip(min=0) / _NEWCOMER_DAYS), 0)
        weight /= weight.sum(axis=1, keepdims=True)
        return weight

    def draw_pairs(self, day: FloatArray, rng: np.random.Generator) -> tuple[IntArray, IntArray, FloatArray]:
        """Draw two different models per vote, on random sides; return them and the probability of this pair."""
        is_shown = self.shown(day)
        rows = np.arange(len(day))
        with np.errstate(divide="ignore"):  # exponential races: the first two to arrive; probability zero never arrives
            arrival = rng.standard_exponential(is_shown.shape) / is_shown
        first = arrival.argmin(axis=1)
        arrival[rows, first] = np.inf
        second = arrival.argmin(axis=1)
        p, q = is_shown[rows, first], is_shown[rows, second]
        swap = rng.random(len(day)) < 0.5
        # Where only two models are out yet, rounding would take the sum above one.
        propensity = np.minimum(p * q * (1 / (1 - p) + 1 / (1 - q)), 1.0)
        return np.where(swap, second, first), np.where(swap, first, second), propensity

    def prompt_effect(self, prompts: PromptBatch, day: FloatArray) -> PromptEffect:
        """Return what the prompts add to each model's coefficient, scaled by `effect`."""
        weights, is_known = topic_weights(prompts, len(self.topic_eta))
        # Each model's skill at its latest update is made of both profiles, in these shares (n, M).
        version = self.version(day)
        updated = self.release + _UPDATE_DAYS * np.arange(version.max() + 1)[:, None]
        angle = self.drift * updated / 365
        models = np.arange(len(self.names))
        early = self.effect * np.cos(angle)[version, models]
        late = self.effect * np.sin(angle)[version, models]
        length = self.effect * self.length_skill[prompts.length]
        seen = length + self.effect * self.language_skill[prompts.language]
        seen += early * (is_known @ self.early_skill) + late * (is_known @ self.late_skill)
        seen -= _HARDNESS * (prompts.difficulty - 1.0)[:, None]
        unknown = weights - is_known
        hidden = early * (unknown @ self.early_skill) + late * (unknown @ self.late_skill)
        return PromptEffect(
            seen=seen,
            hidden=hidden,
            length=length,
            eta_seen=is_known @ self.topic_eta,
            eta_hidden=unknown @ self.topic_eta,
        )

    def coefs_and_eta(self, effect: PromptEffect, *, other_deal: bool = False) -> tuple[FloatArray, FloatArray]:
        """Return coefficients (n, M) and eta (n,); with `other_deal` as in `PromptEffect.total`."""
        coefs, eta = effect.total(other_deal=other_deal)
        return _LEVEL + self.quality + coefs, _ETA + eta


def make_models(config: SimulationConfig, rng: np.random.Generator) -> ModelTable:
    """Draw an arena's models; ConfigError for fewer than two."""
    models, topics = config.models, config.topics
    if models < 2:
        raise ConfigError(f"models: {models} asked for; at least 2 are needed for a vote")
    # The order of draws is part of the seed's meaning: a new draw comes last.
    # The first few organisations make most of the models.
    num_makers = max(2, min(len(_ORGANISATIONS), models // 4))
    share = 1 / np.arange(1, num_makers + 1) ** 0.7
    maker = rng.choice(num_makers, size=models, p=share / share.sum())
    # Two fifths are released before the first vote, the others at an even pace.
    early = max(2, round(0.4 * models))
    before = -np.sort(rng.uniform(0, 250, early))[::-1]
    arrivals = (np.arange(models - early) + rng.random(models - early)) / max(1, models - early)
    release = np.concatenate([before, 0.9 * config.days * arrivals])
    tier = rng.choice(len(_TIERS), size=models, p=[0.55, 0.3, 0.15])
    # Numbered in order of release.
    count = [0] * len(_ORGANISATIONS)
    names = []
    for organisation, size in zip(maker, tier, strict=True):
        count[organisation] += 1
        names.append(f"{_ORGANISATIONS[organisation]}-{count[organisation]}{list(_TIERS)[size]}")
    quality = _quality(maker, tier, release, config.improvement, rng)
    order = np.argsort(names)
    skill = [_profile(maker, topics, rng)[:, order] for _ in range(2)]
    return ModelTable(
        names=[names[m] for m in order],
        organisations=[_ORGANISATIONS[maker[m]] for m in order],
        release=release[order],
        retirement=_retirements(release, config.days, config.lifetime, rng)[order],
        quality=quality[order],
        early_skill=skill[0],
        late_skill=skill[1],
        language_skill=rng.normal(0, 0.25, (config.languages, models)),
        length_skill=rng.normal(0, 0.2, (1, models)) * np.linspace(-1, 1, len(LENGTHS))[:, None],
        topic_eta=rng.normal(0, 0.35, topics),
        effect=config.effect,
        drift=config.drift,
    )


def _retirements(release: FloatArray, days: float, lifetime: float, rng: np.random.Generator) -> FloatArray:
    """Return retirement days (M,); none leaves fewer than six models (or half of them) behind."""
    planned = release + lifetime * rng.lognormal(0, 0.5, len(release))
    retirement = np.full(len(release), np.inf)
    floor = max(2, min(6, len(release) // 2))
    for m in np.argsort(planned):
        is_there = (release <= planned[m]) & (retirement > planned[m])
        if 0 < planned[m] < days and is_there.sum() > floor:
            retirement[m] = planned[m]
    return retirement


def _quality(
    maker: IntArray, tier: IntArray, release: FloatArray, improvement: float, rng: np.random.Generator
) -> FloatArray:
    """Return qualities (M,) of mean zero: where the organisation started, its pace, the model's size, and luck."""
    makers = maker.max() + 1
    start, rate = rng.normal(0, 0.25, makers), improvement * rng.lognormal(0, 0.3, makers)
    quality: FloatArray = start[maker] + rate[maker] * release / 365
    quality += np.array(list(_TIERS.values()))[tier] + rng.normal(0, 0.15, len(maker))
    quality -= quality.mean()
    return quality


def _profile(maker: IntArray, topics: int, rng: np.random.Generator) -> FloatArray:
    """Return skills (K, M) of unit variance, half the organisation's, half the model's; mean zero for each model."""
    shared = rng.normal(0, np.sqrt(0.5), (topics, maker.max() + 1))[:, maker]
    skill: FloatArray = shared + rng.normal(0, np.sqrt(0.5), (topics, len(maker)))
    skill -= skill.mean(axis=0)
    return skill
