"""Simulated votes and their truth as Arrow batches: the columns that files of an arena have."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from p2l.simulation.arena import TAGS, Arena, VoteChunk
from p2l.simulation.prompts import LANGUAGES, STRUCTURES, PromptBatch
from p2l.votes import WINNERS

# Share of prompts with each criterion in a public arena of 2025.
_CRITERIA = {
    "complexity": 0.49,
    "creativity": 0.53,
    "domain_knowledge": 0.81,
    "problem_solving": 0.68,
    "real_world": 0.57,
    "specificity": 0.59,
    "technical_accuracy": 0.61,
}
_CRITERION_PER_DEMANDING_WORD = 0.9  # in log odds
_INSTRUCTIONS = 0.18


def vote_batch(arena: Arena, chunk: VoteChunk) -> pa.RecordBatch:
    """Return the votes of a chunk with every column of the contract, and beside them:

    topic: the topic that decides. mentioned: all topics of the prompt, as a bag of words would tag it. structure: how
    they are related. model_version: updates of model_a and of model_b up to then.
    """
    names = _words(arena.model_list)
    prompts = chunk.prompts
    # "first+second" in alphabetical order, or the only one.
    pairs = [[a if a == b else "+".join(sorted((a, b))) for b in arena.topics] for a in arena.topics]
    first, second = prompts.topics.T
    columns = {
        "question_id": pa.array(chunk.ids).cast(pa.string()),
        "tstamp": prompts.tstamp,
        "prompt": arena.texts(chunk),
        "model_a": names(chunk.model_a),
        "model_b": names(chunk.model_b),
        "winner": _words(WINNERS)(chunk.winner),
        "weight": np.ones(len(chunk)),
        "propensity": chunk.propensity,
        "model_version": _rows(np.stack([chunk.version_a, chunk.version_b], axis=1).astype(np.int32)),
        "language": _words(LANGUAGES)(prompts.language),
        "is_code": _mentions(arena, prompts, "code"),
        "category_tag": _tags(arena, chunk),
        "user": pa.array([f"user-{user}" for user in prompts.user.tolist()]),
        "topic": _words(arena.topics)(prompts.topics[np.arange(len(prompts)), prompts.decisive]),
        "mentioned": pa.array(np.array(pairs)[first, second]),
        "structure": _words(STRUCTURES)(prompts.structure),
    }
    return pa.record_batch({name: pa.array(values) for name, values in columns.items()})


def truth_batch(chunk: VoteChunk, split: str) -> pa.RecordBatch:
    """Return the truth of a chunk.

    coefs (in the order of the model list) and eta of each prompt; probs: true probability of each outcome of its vote;
    loss: of the vote under them.
    """
    rows = np.arange(len(chunk))
    return pa.record_batch(
        {
            "question_id": pa.array(chunk.ids).cast(pa.string()),
            "split": pa.array([split] * len(chunk)),
            "coefs": _rows(chunk.truth.coefs.astype(np.float32)),
            "eta": pa.array(chunk.truth.eta),
            "probs": _rows(chunk.probs),
            "loss": pa.array(-np.log(chunk.probs[rows, chunk.winner])),
        }
    )


def _mentions(arena: Arena, prompts: PromptBatch, topic: str) -> NDArray[np.bool_]:
    """Return whether each prompt speaks of the topic at all."""
    if topic not in arena.topics:
        return np.zeros(len(prompts), bool)
    mentions: NDArray[np.bool_] = (prompts.topics == arena.topics.index(topic)).any(axis=1)
    return mentions


def _tags(arena: Arena, chunk: VoteChunk) -> pa.StructArray:
    """Return the nested tags of arena votes; criteria are likelier in demanding prompts, so that some are `hard`."""
    rng = arena.chunk_rng(TAGS, int(chunk.ids[0]))
    extra = _CRITERION_PER_DEMANDING_WORD * (chunk.prompts.difficulty - 1.05)
    criteria = {
        name: rng.random(len(chunk)) < 1 / (1 + (1 - share) / share * np.exp(-extra))
        for name, share in _CRITERIA.items()
    }
    groups = {
        "creative_writing_v0.1": {"creative_writing": _mentions(arena, chunk.prompts, "poetry")},
        "criteria_v0.1": criteria,
        "if_v0.1": {"if": rng.random(len(chunk)) < _INSTRUCTIONS},
        "math_v0.1": {"math": _mentions(arena, chunk.prompts, "math")},
    }
    return _struct(
        {name: _struct({tag: pa.array(value) for tag, value in tags.items()}) for name, tags in groups.items()}
    )


def _struct(fields: dict[str, pa.Array]) -> pa.StructArray:
    return pa.StructArray.from_arrays(list(fields.values()), names=list(fields))


def _words(words: Iterable[str]) -> Callable[[NDArray[Any]], pa.Array]:
    """Return a function from indices to the words themselves."""
    vocabulary = pa.array(list(words), pa.string())
    return lambda indices: vocabulary.take(pa.array(indices))


def _rows(matrix: NDArray[Any]) -> pa.ListArray:
    """Return (n, c) as a column of lists."""
    offsets = np.arange(len(matrix) + 1, dtype=np.int32) * matrix.shape[1]
    return pa.ListArray.from_arrays(offsets, pa.array(matrix.ravel()))
