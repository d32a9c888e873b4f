"""How fast models answer: a guess by their interface, or measured with a few small questions."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from coeval.calling.call import Asking, Call, CallError, Reply
from coeval.config.schema import Config, Model

__all__ = ["Speed", "guessed", "measure"]


@dataclass(frozen=True)
class Speed:
    """Of one model."""

    latency_s: float
    """Of a short answer."""
    tokens_per_second: float
    error: str | None = None
    """Why it could not be measured."""

    def seconds(self, output_tokens: float) -> float:
        """Of a call whose answer has so many tokens."""
        return max(self.latency_s, output_tokens / self.tokens_per_second)


_GUESSES: Mapping[str, tuple[float, float]] = {
    "openai": (1.5, 80),
    "anthropic": (2.0, 60),
    "gemini": (2.0, 100),
    "openrouter": (2.5, 60),
    "groq": (0.3, 500),
    "cerebras": (1.5, 1000),
    "deepseek": (1.5, 80),
    "mistral": (1.5, 80),
    "deepinfra": (1.5, 80),
    "azure_openai": (2.0, 70),
    "azure_ai": (2.0, 70),
    "cohere": (2.0, 70),
    "together": (1.5, 80),
    "fireworks": (1.5, 80),
    "xai": (1.5, 80),
    "huggingface_api": (2.0, 60),
    "mock": (0.001, 1e6),
}
_OTHER = (10.0, 15)
_QUESTIONS = (
    "Name three primary colours and say in one sentence each where you see them in nature.",
    "Explain in about eighty words why the sky is blue.",
)


def guessed(model: Model) -> Speed:
    """What models of its interface usually reach."""
    return Speed(*_GUESSES.get(model.interface, _OTHER))


async def measure(config: Config, asking: Asking, samples: int) -> dict[str, Speed]:
    """Ask each model `samples` times; models of this machine, and those nobody asks, are left out."""
    models = [model for model in config.models if not model.is_virtual and model.interface != "huggingface"]
    speeds = await asyncio.gather(*(_measured(model, asking, samples) for model in models))
    return {model.name: speed for model, speed in zip(models, speeds, strict=True)}


async def _measured(model: Model, asking: Asking, samples: int) -> Speed:
    replies: list[Reply] = []
    roles = [roles[0] for roles in model.asked_for.values()]  # in turn, where they have models of their own
    for number in range(samples):
        question, role = _QUESTIONS[number % len(_QUESTIONS)], roles[number % len(roles)]
        call = Call(model, role, None, "", ("estimate", model.name, str(number)), question, attempt=number)
        try:
            replies.append(await asking.ask(call))
        except CallError as error:
            guess = guessed(model)
            return Speed(guess.latency_s, guess.tokens_per_second, str(error))
    return _speed(replies, guessed(model))


def _speed(replies: Sequence[Reply], guess: Speed) -> Speed:
    seconds = sum(reply.seconds for reply in replies)
    tokens = sum(reply.completion_tokens for reply in replies)
    if seconds <= 0 or not tokens:
        return guess
    return Speed(seconds / len(replies), tokens / seconds)
