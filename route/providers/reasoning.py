"""OpenAI's reasoning models: no sampling parameters, and for the first of them no streaming and no system message."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from route.providers.base import JSON, Account, Provider, Timeouts
from route.providers.chunks import asks_for_usage, chunks_of
from route.providers.content import SYSTEM_ROLES, renamed
from route.providers.openai_compatible import OpenAICompatible
from route.providers.registry import protocol

__all__ = ["WholeAnswers", "for_o1", "for_reasoning", "o1", "reasoning"]

_SAMPLING = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "logprobs",
    "top_logprobs",
    "logit_bias",
)


def for_reasoning(request: JSON) -> JSON:
    """The request without what reasoning models refuse; `max_tokens` is called `max_completion_tokens` there."""
    body = {key: value for key, value in request.items() if key not in _SAMPLING}
    limit = body.pop("max_tokens", None)
    if limit is not None:
        body.setdefault("max_completion_tokens", limit)
    return body


def for_o1(request: JSON) -> JSON:
    """The same for o1: what the system says comes from the user, since o1's first versions have no other role."""
    return renamed(for_reasoning(request), dict.fromkeys(SYSTEM_ROLES, "user"))


class WholeAnswers:
    """A provider that does not stream: its answer comes as one chunk."""

    def __init__(self, provider: Provider) -> None:
        self._provider = provider

    async def chat(self, request: JSON, timeouts: Timeouts) -> JSON:
        """As the provider does it."""
        return await self._provider.chat(request, timeouts)

    async def stream(self, request: JSON, timeouts: Timeouts) -> AsyncGenerator[JSON, None]:
        """The whole answer as one chunk, and one with the usage if it was asked for.

        Raises:
            ProviderError: there is no answer.
        """
        answer = await self._provider.chat(request, timeouts)
        for chunk in chunks_of(answer, with_usage=asks_for_usage(request)):
            yield chunk

    async def close(self) -> None:
        """Close the provider's connections."""
        await self._provider.close()


@protocol("openai-reasoning", "omit")
def reasoning(account: Account) -> Provider:
    """A client of reasoning models."""
    return OpenAICompatible(account, prepare=for_reasoning)


@protocol("openai-o1", "omit")
def o1(account: Account) -> Provider:
    """A client of o1 and its like."""
    return WholeAnswers(OpenAICompatible(account, prepare=for_o1))
