"""Answers to prompts, and those that workers share in Redis: what one has computed no other computes again.

A key is the model's revision and form, and a keyed hash of the prompt's tokens; neither it nor the answer has the
prompt. A Redis that is slow or gone costs `_TIMEOUT_SECONDS` once in `_PAUSE_SECONDS`: without it each worker computes.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import struct
import time
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from p2l.common.errors import ConfigError

if TYPE_CHECKING:
    from p2l.inference import P2L

_TIMEOUT_SECONDS = 0.25
_PAUSE_SECONDS = 5.0
_LIFETIME_SECONDS = 24 * 3600
_CONNECTIONS = 16
_HEAD = struct.Struct("<4sBfffII")  # mark, flags, eta, gamma, familiarity, number of coefs, number of variances
_MARK = b"p2l2"  # of another form than what older workers have stored, who read none of this either
_ETA, _GAMMA, _TRUNCATED, _VARIANCES, _FAMILIARITY = 1, 2, 4, 8, 16
_log = logging.getLogger("p2l.serving")


@dataclass(frozen=True, slots=True)
class Answer:
    """The coefficients of one prompt and which model gave them."""

    coefs: array[float]
    """(M,) in single precision: thousands of answers are kept, and a list would take eight times the memory."""
    eta: float | None
    gamma: float | None
    truncated: bool
    revision: str
    variances: array[float] | None = None
    """(R,) of the posterior's components."""
    familiarity: float | None = None
    """Share of the prompt's own departure from the overall leaderboard that is kept; None without a posterior."""


@dataclass(frozen=True)
class Form:
    """Numbers in an answer of a model."""

    coefs: int
    variances: int


class ScoreCache:
    """The answers of one service in Redis; use it inside one event loop."""

    def __init__(self, url: str, secret: str = "", dtype: str = "") -> None:
        """Connect to nothing yet; ConfigError unless `url` is that of a Redis server.

        `secret` keys the hashes, so that a reader of Redis cannot try prompts; `dtype` tells precisions apart.
        """
        from redis.asyncio import BlockingConnectionPool, Redis

        try:
            pool = BlockingConnectionPool.from_url(
                url,
                max_connections=_CONNECTIONS,
                timeout=_TIMEOUT_SECONDS,
                socket_timeout=_TIMEOUT_SECONDS,
                socket_connect_timeout=_TIMEOUT_SECONDS,
            )
        except ValueError as error:  # its text may have the password
            raise ConfigError("--score-cache: not the URL of a Redis server; write redis://HOST:6379/0") from error
        self._redis = Redis.from_pool(pool)  # which it closes
        self._secret = hashlib.blake2b(secret.encode(), digest_size=32).digest()
        self._dtype = dtype.replace(" ", "")
        self._away_until = 0.0
        self._tasks: set[asyncio.Task[None]] = set()

    async def get(self, model: P2L, prompts: Sequence[bytes]) -> dict[bytes, Answer]:
        """Return the answers that are there, by the keys of encoded prompts; none while Redis is away."""
        if not prompts or time.monotonic() < self._away_until:
            return {}
        form = Form(coefs=len(model.model_list), variances=0 if model.basis is None else model.basis.shape[1])
        try:
            blocks = await self._redis.mget([self._key(model.revision, prompt) for prompt in prompts])
        except Exception as error:
            self._away(error)
            return {}
        pairs = zip(prompts, blocks, strict=True)
        answers = {prompt: unpack(block, model.revision, form) for prompt, block in pairs if isinstance(block, bytes)}
        return {prompt: answer for prompt, answer in answers.items() if answer is not None}

    def put(self, answers: Mapping[bytes, Answer]) -> None:
        """Store answers, by the keys of encoded prompts, without waiting for it."""
        if answers and time.monotonic() >= self._away_until:
            task = asyncio.ensure_future(self._put(dict(answers)))
            self._tasks.add(task)  # asyncio itself holds tasks by weak references
            task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Finish what is being stored."""
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._redis.aclose()

    async def _put(self, answers: dict[bytes, Answer]) -> None:
        try:
            async with self._redis.pipeline(transaction=False) as pipeline:
                for prompt, answer in answers.items():
                    pipeline.set(self._key(answer.revision, prompt), pack(answer), ex=_LIFETIME_SECONDS)
                await pipeline.execute()
        except Exception as error:
            self._away(error)

    def _key(self, revision: str, prompt: bytes) -> str:
        digest = hashlib.blake2b(prompt, key=self._secret, digest_size=20).hexdigest()
        return f"p2l:score:{revision}:{self._dtype}:{digest}"

    def _away(self, error: Exception) -> None:
        """Ask no more for a while; the text of the error is left out, since it may name a password."""
        if time.monotonic() >= self._away_until:
            _log.warning("the score cache is away (%s); workers compute for themselves", type(error).__name__)
        self._away_until = time.monotonic() + _PAUSE_SECONDS


def pack(answer: Answer) -> bytes:
    """Return an answer as bytes, without its revision."""
    flags = (answer.eta is not None) * _ETA | (answer.gamma is not None) * _GAMMA | answer.truncated * _TRUNCATED
    flags |= (answer.variances is not None) * _VARIANCES | (answer.familiarity is not None) * _FAMILIARITY
    numbers = (answer.eta or 0.0, answer.gamma or 0.0, answer.familiarity or 0.0)
    lengths = (len(answer.coefs), len(answer.variances or ()))
    tail = b"" if answer.variances is None else answer.variances.tobytes()
    return _HEAD.pack(_MARK, flags, *numbers, *lengths) + answer.coefs.tobytes() + tail


def unpack(block: bytes, revision: str, form: Form) -> Answer | None:
    """Return the answer that `pack` wrote; None for bytes of another form."""
    if len(block) != _HEAD.size + 4 * (form.coefs + form.variances):
        return None
    mark, flags, eta, gamma, familiarity, *counts = _HEAD.unpack_from(block)
    # Redis may hold anything under this key; what is not an answer is computed again.
    numbers = np.frombuffer(block, np.float32, offset=_HEAD.size)
    if mark != _MARK or counts != [form.coefs, form.variances]:
        return None
    if not np.isfinite([eta, gamma, familiarity, *numbers]).all():
        return None
    return Answer(
        coefs=array("f", numbers[: form.coefs].tobytes()),
        eta=eta if flags & _ETA else None,
        gamma=gamma if flags & _GAMMA else None,
        truncated=bool(flags & _TRUNCATED),
        revision=revision,
        variances=array("f", numbers[form.coefs :].tobytes()) if flags & _VARIANCES else None,
        familiarity=familiarity if flags & _FAMILIARITY else None,
    )
