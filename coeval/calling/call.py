"""One question to one model, and what came of it: what phases and the caller agree on."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Protocol

from coeval.config.schema import Model, Phase, Role

__all__ = ["Asking", "Call", "CallError", "Reason", "Reply"]


@dataclass(frozen=True)
class Call:
    """A question."""

    model: Model
    role: Role
    phase: Phase | None
    """None for probes and estimates, which no quota counts."""
    task: str
    key: tuple[str, ...]
    """Names the question in the run, for batches and messages: (task, teacher, seq, attempt) and the like."""
    prompt: str = field(repr=False)
    attempt: int = 0
    """Of a repeated question: part of the key under which answers are kept, so that asking again asks again."""
    logprobs: bool = False
    """Whether the likeliest first tokens are wanted too, where the provider tells them."""


@dataclass(frozen=True)
class Reply:
    """An answer."""

    text: str
    """Stripped; never empty."""
    prompt_tokens: int
    completion_tokens: int
    cost_usd: float
    seconds: float
    counted: bool = True
    """Whether the provider counted the tokens; otherwise they are guessed as characters / 4."""
    cached: bool = False
    tokens: tuple[tuple[str, float], ...] | None = None
    """Where they were wanted and told: what the first token could have been, with the logarithm of its probability."""


class Reason(enum.Enum):
    """Why there is no answer."""

    QUOTA = "quota"
    """The model's calls are used up."""
    BUDGET = "budget"
    """The run's dollars are used up."""
    FATAL = "fatal"
    """The provider refuses this model or account whatever is asked: stop asking it."""
    FAILED = "failed"
    """This question got no answer, after all retries."""


class CallError(Exception):
    """No answer; the text is one sentence without keys and without the prompt."""

    def __init__(self, reason: Reason, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class Asking(Protocol):
    """What phases ask with."""

    async def ask(self, call: Call) -> Reply:
        """The answer; waits for its turn at the provider, retries what may pass, counts quota and dollars.

        Raises:
            CallError: there is none.
        """
        ...
