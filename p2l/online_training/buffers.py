"""The buffers by name, and the settings that make one: `make_buffer(BufferSettings(type="geometric"), 512, seed=42)`.

A further type registers a function that makes it, and names the settings that it reads:

    @register("name", keys={"epsilon"})
    def _make_name(parts: Parts) -> Buffer: ...
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from p2l.command import nearest
from p2l.config import Number, Whole
from p2l.online_training.buffer import Buffer

__all__ = ["BUFFERS", "BufferSettings", "Parts", "make_buffer", "register"]


@dataclass(frozen=True)
class Parts:
    """What a buffer is made of."""

    settings: BufferSettings
    batch_size: int
    seed: int
    initial_counts: Mapping[int, int] = field(default_factory=dict)


Make: TypeAlias = Callable[[Parts], Buffer]
BUFFERS: dict[str, tuple[Make, frozenset[str]]] = {}
"""Type: (function that makes it, settings that it reads)."""


def register(name: str, *, keys: set[str]) -> Callable[[Make], Make]:
    """A decorator that puts a function that makes a buffer into `BUFFERS`."""

    def put(make: Make) -> Make:
        BUFFERS[name] = (make, frozenset(keys))
        return make

    return put


class BufferSettings(BaseModel):
    """The key `buffer` of an online training configuration."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    type: str = "none"
    """none, replay, geometric, or another registered name."""
    gamma: Number = Field(default=0.995, gt=0, le=1)
    """Geometric: a vote whose less familiar model has n votes so far has p = max(epsilon, gamma^n)."""
    epsilon: Number | None = Field(default=None, gt=0, le=1)
    """Geometric: least p, default 0.001. Replay: share of replayed votes in a batch, below 1, default 0.2."""
    limit: Whole | None = Field(default=None, ge=1)
    """Replay: most votes that stand ready to be replayed; the default is all."""
    min_batches: Whole = Field(default=5, ge=0)
    """Replay: batches of new votes alone before the first replay."""
    keep_size: bool = False
    """Replay: a batch has batch_size votes in all, rather than batch_size new ones and the replayed on top."""
    drop_tail: bool = False
    """Give up what waits at the end of the stream, rather than train on it."""
    on: BufferSettings | None = None
    """Replay: the buffer whose batches it takes as new votes, geometric say."""

    @classmethod
    def of_experience_replay(cls, limit: int, ratio: float, min_iter: int) -> BufferSettings:
        """The settings of the older key `experience_replay`; `ratio` in (0, 1] is the share of new votes."""
        if ratio == 1:
            return cls()
        return cls(type="replay", limit=limit, epsilon=1 - ratio, min_batches=min_iter, keep_size=True)

    @field_validator("type")
    @classmethod
    def _known_type(cls, value: str) -> str:
        if value not in BUFFERS:
            raise ValueError(f"must be one of {', '.join(BUFFERS)}{nearest(value, BUFFERS)}")
        return value

    @model_validator(mode="after")
    def _only_keys_of_type(self) -> BufferSettings:
        foreign = sorted(self.model_fields_set - BUFFERS[self.type][1] - {"type"})
        if foreign:
            raise ValueError(f"{foreign[0]}: a buffer of type {self.type!r} does not read it; remove it")
        if self.type == "replay" and self.epsilon == 1:
            raise ValueError("epsilon: a share of 1 would leave no room for new votes; give less than 1")
        return self


def make_buffer(
    settings: BufferSettings, batch_size: int, seed: int, initial_counts: Mapping[int, int] | None = None
) -> Buffer:
    """The buffer that the settings describe.

    Args:
        batch_size: new votes of a batch; with `keep_size`, all votes of a batch.
        seed: of everything that is drawn.
        initial_counts: how many votes each model (by its position in the model list) had before this stream.
    """
    make, _ = BUFFERS[settings.type]
    return make(Parts(settings, batch_size, seed, initial_counts or {}))


@register("none", keys={"drop_tail"})
def _make_none(parts: Parts) -> Buffer:
    from p2l.online_training.straight import StraightBuffer

    return StraightBuffer(parts.batch_size, drop_tail=parts.settings.drop_tail)


@register("geometric", keys={"gamma", "epsilon", "drop_tail"})
def _make_geometric(parts: Parts) -> Buffer:
    from p2l.online_training.geometric import GeometricBuffer

    settings = parts.settings
    return GeometricBuffer(
        parts.batch_size,
        gamma=settings.gamma,
        epsilon=0.001 if settings.epsilon is None else settings.epsilon,
        seed=parts.seed,
        initial_counts=parts.initial_counts,
        drop_tail=settings.drop_tail,
    )


@register("replay", keys={"epsilon", "limit", "min_batches", "keep_size", "drop_tail", "on"})
def _make_replay(parts: Parts) -> Buffer:
    from p2l.online_training.replay import ReplayBuffer, new_votes

    settings = parts.settings
    epsilon = 0.2 if settings.epsilon is None else settings.epsilon
    size = new_votes(parts.batch_size, epsilon) if settings.keep_size else parts.batch_size
    inner = settings.on or BufferSettings()
    if settings.drop_tail:
        inner = inner.model_copy(update={"drop_tail": True})
    return ReplayBuffer(
        make_buffer(inner, size, parts.seed, parts.initial_counts),
        epsilon=epsilon,
        full_size=parts.batch_size if settings.keep_size else None,
        limit=settings.limit,
        min_batches=settings.min_batches,
        seed=parts.seed,
        drop_tail=settings.drop_tail,
    )
