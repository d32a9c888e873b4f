"""A simulated arena: votes whose true leaderboard per prompt, and so the best possible loss, are known.

Everything follows from a `SimulationConfig`. Votes are numbered: 0 to votes - 1 are the training votes, and the next
`validation_votes` are for validation, spread over the same time. They are generated in chunks, each from random streams
of its own, so that any number of votes needs the memory of one chunk and any vote can be made again alone.

Shapes: n votes (a vote and its prompt share a number), M models (sorted by name), K topics.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from p2l.common.cli import nearest
from p2l.common.errors import ConfigError
from p2l.likelihood import get
from p2l.simulation.config import SimulationConfig as SimulationConfig
from p2l.simulation.models import ModelTable, PromptEffect, make_models
from p2l.simulation.prompts import (
    PromptBatch,
    PromptSource,
    choose_words,
    example_batch,
    make_source,
    render,
    to_sentences,
    topic_names,
)

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa


FloatArray: TypeAlias = NDArray[np.float64]
IntArray: TypeAlias = NDArray[np.int64]
_CHUNK = 8192
_DAY = 86_400.0
# The purpose of a random stream is part of its seed, so that a change of one leaves the others.
_MODELS, _PEOPLE, _PROMPTS, _VOTES, _WORDS, TAGS, _EXAMPLES = range(7)


@dataclass(frozen=True)
class Truth:
    """Truth of n prompts: coefs (n, M) in the order of `Arena.model_list`, and eta (n,) of grk."""

    coefs: FloatArray
    eta: FloatArray


@dataclass(frozen=True)
class Examples:
    """Example prompts (lists of user turns) and their truth."""

    prompts: list[list[str]]
    truth: Truth


@dataclass(frozen=True)
class VoteChunk:
    """n consecutive votes with everything that decided them.

    ids: (n,) numbers of the votes. model_a, model_b: (n,) indices. winner: (n,) codes in order of `p2l.votes.WINNERS`.
    probs: (n, 4) true probability of each of them. propensity: (n,) probability that these two models were shown.
    version_a, version_b: (n,) updates of the two models up to then. day: (n,) days since the start.
    effect: what the prompts add to coefs and eta; truth: coefs and eta themselves.
    """

    ids: IntArray
    prompts: PromptBatch
    day: FloatArray
    model_a: IntArray
    model_b: IntArray
    version_a: IntArray
    version_b: IntArray
    propensity: FloatArray
    effect: PromptEffect
    truth: Truth
    probs: FloatArray
    winner: IntArray

    def __len__(self) -> int:
        return len(self.ids)


@dataclass(frozen=True)
class Arena:
    """A simulated arena; make one with `simulate`."""

    config: SimulationConfig
    models: ModelTable
    source: PromptSource

    @property
    def model_list(self) -> list[str]:
        """Names of the M models, sorted."""
        return self.models.names

    @cached_property
    def topics(self) -> list[str]:
        """Names of the K topics."""
        return topic_names(self.config.topics)

    def chunks(self, *, validation: bool = False) -> Iterator[VoteChunk]:
        """Yield all training votes, or all validation votes, in order of time."""
        count = self.config.validation_votes if validation else self.config.votes
        for index in range(-(-count // _CHUNK)):
            yield self._chunk(index, validation)

    def texts(self, chunk: VoteChunk) -> pa.ListArray:
        """Return the prompts of a chunk: lists of user turns."""
        return self._render(chunk.prompts, self.chunk_rng(_WORDS, int(chunk.ids[0])))

    def truth_of(self, prompt_ids: Any) -> Truth:
        """Return the true coefficients and eta of prompts by `question_id`; ConfigError for unknown ones."""
        ids = np.asarray(prompt_ids, np.int64)
        total = self.config.votes + self.config.validation_votes
        if ids.size and not 0 <= ids.min() <= ids.max() < total:
            raise ConfigError(f"prompt ids must be between 0 and {total - 1}, got {ids.min()} to {ids.max()}")
        truth = Truth(np.empty((len(ids), len(self.model_list))), np.empty(len(ids)))
        validation = ids >= self.config.votes
        local = ids - self.config.votes * validation
        # A chunk is drawn as a whole, so each is drawn once; its key is its number and kind.
        chunk_key = local // _CHUNK * 2 + validation
        for key in np.unique(chunk_key):
            rows = chunk_key == key
            prompts, day = self._prompts(int(key // 2), bool(key % 2))
            chosen = local[rows] % _CHUNK
            effect = self.models.prompt_effect(prompts.take(chosen), day[chosen])
            truth.coefs[rows], truth.eta[rows] = self.models.coefs_and_eta(effect)
        return truth

    def example_prompts(self, topic: str, n: int, seed: int = 0) -> Examples:
        """Return English prompts of one kind, as of the last day; ConfigError if the text names no topic of this arena.

        Kinds: "code", "poetry into code", "code without poetry", "poetry then code" (two turns).
        """
        rng = np.random.default_rng([self.config.seed, _EXAMPLES, seed])
        day = np.full(n, self.config.days)
        prompts = example_batch(self._parse_kind(topic), day, self.source.replaced(np.ones(n)), rng)
        texts = self._render(prompts, rng).to_pylist()
        return Examples(texts, self._truth(self.models.prompt_effect(prompts, day)))

    def _render(self, prompts: PromptBatch, rng: np.random.Generator) -> pa.ListArray:
        vocabulary = self.source.vocabulary
        words = choose_words(prompts, vocabulary, rng)
        if self.config.sentences:
            import pyarrow as pa

            return pa.array(to_sentences(prompts, words, vocabulary), pa.list_(pa.string()))
        return render(prompts, words, vocabulary)

    def bag_probs(self, chunk: VoteChunk) -> FloatArray:
        """Return the probability (n, 4) of each outcome given the prompt's bag of words: the best such a model can do.

        The words leave open how the topics were dealt to the clauses; both ways are equally likely.
        """
        other_truth = self._truth(chunk.effect, other_deal=True)
        return (chunk.probs + _outcome_probs(other_truth, chunk.model_a, chunk.model_b)) / 2

    def model_frame(self) -> pd.DataFrame:
        """Return one row per model: name, organisation, release, retirement, quality against the mean, skill by topic.

        Days count from the start (no retirement day: still there). Each skill turns from `skill_*` to `later_skill_*`.
        """
        import pandas as pd

        models = self.models
        frame: pd.DataFrame = pd.DataFrame(
            {"model": models.names, "organisation": models.organisations, "release_day": models.release}
        )
        frame["retirement_day"] = np.where(np.isfinite(models.retirement), models.retirement, np.nan)
        frame["quality"] = models.quality
        for k, topic in enumerate(self.topics):
            frame[f"skill_{topic}"] = models.effect * models.early_skill[k]
            frame[f"later_skill_{topic}"] = models.effect * models.late_skill[k]
        return frame

    def to_dict(self) -> dict[str, Any]:
        """Return the configuration as plain data; `simulate(SimulationConfig(**data))` makes this arena again."""
        return asdict(self.config)

    def _parse_kind(self, kind: str) -> tuple[str, int, int]:
        """Parse a kind into (joining word or "", first topic, second topic)."""
        joins = [word for word in ("into", "without", "then") if f" {word} " in kind]
        topics = kind.split(f" {joins[0]} ") if joins else [kind, kind]
        for topic in topics:
            if topic not in self.topics:
                raise ConfigError(
                    f"unknown topic {topic!r}{nearest(topic, self.topics)}; known: {', '.join(self.topics)}"
                )
        return joins[0] if joins else "", self.topics.index(topics[0]), self.topics.index(topics[1])

    def chunk_rng(self, purpose: int, first_id: int) -> np.random.Generator:
        """Return the random stream of one purpose for the chunk that begins with this vote."""
        return np.random.default_rng([self.config.seed, purpose, first_id])

    def _prompts(self, index: int, validation: bool) -> tuple[PromptBatch, FloatArray]:
        """Return the prompts of a chunk and their days: vote times are evenly spread quantiles of the growing rate."""
        config = self.config
        count, first = (config.validation_votes, config.votes) if validation else (config.votes, 0)
        local = np.arange(index * _CHUNK, min(count, (index + 1) * _CHUNK))
        rng = self.chunk_rng(_PROMPTS, first + index * _CHUNK)
        share = (local + rng.random(len(local))) / count
        age = share if config.growth == 1 else np.log1p(share * (config.growth - 1)) / np.log(config.growth)
        day = config.days * age
        return self.source.draw(config.start + _DAY * day, age, rng), day

    def _truth(self, effect: PromptEffect, *, other_deal: bool = False) -> Truth:
        return Truth(*self.models.coefs_and_eta(effect, other_deal=other_deal))

    def _chunk(self, index: int, validation: bool) -> VoteChunk:
        prompts, day = self._prompts(index, validation)
        first = index * _CHUNK + (self.config.votes if validation else 0)
        rng = self.chunk_rng(_VOTES, first)
        a, b, propensity = self.models.draw_pairs(day, rng)
        effect = self.models.prompt_effect(prompts, day)
        truth = self._truth(effect)
        rows = np.arange(len(day))
        probs = _outcome_probs(truth, a, b)
        version = self.models.version(day)
        return VoteChunk(
            ids=first + rows,
            prompts=prompts,
            day=day,
            model_a=a,
            model_b=b,
            version_a=version[rows, a],
            version_b=version[rows, b],
            propensity=propensity,
            effect=effect,
            truth=truth,
            probs=probs,
            winner=(rng.random((len(day), 1)) > probs.cumsum(axis=1)[:, :-1]).sum(axis=1),
        )


def simulate(config: SimulationConfig) -> Arena:
    """Draw an arena: its models, people and topics; votes come when asked for. ConfigError for a field out of range."""
    models = make_models(config, np.random.default_rng([config.seed, _MODELS]))
    source = make_source(config, np.random.default_rng([config.seed, _PEOPLE]))
    return Arena(config, models, source)


def _outcome_probs(truth: Truth, model_a: IntArray, model_b: IntArray) -> FloatArray:
    """Return (n, 4): grk's outcomes are win, loss, tie, bothbad, which is the order of `p2l.votes.WINNERS`."""
    rows = np.arange(len(model_a))
    probs: FloatArray = get("grk").probs(truth.coefs[rows, model_a], truth.coefs[rows, model_b], truth.eta)
    return probs
