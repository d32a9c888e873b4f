"""The interface `mock`: a client like any other provider's, answered in this process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

from coeval.mock.brain import answer, logprobs
from coeval.mock.persona import Persona
from p2l.errors import ConfigError
from route.providers.base import JSON, Account, Fault, ProviderError, Timeouts
from route.providers.chunks import asks_for_usage, chunks_of, completion, usage
from route.providers.content import joined_text, system_text
from route.providers.registry import protocol

__all__ = ["MockModel", "completion_for", "question_of"]


def question_of(request: JSON) -> tuple[str, str]:
    """What the user says last and what the system says."""
    users = [message for message in request.get("messages") or [] if message.get("role") == "user"]
    return joined_text(users[-1].get("content")) if users else "", system_text(request)


def completion_for(request: JSON) -> JSON:
    """The chat completion that a mock model answers with; four characters are a token.

    Raises:
        ConfigError: a parameter of the wrong kind.
    """
    prompt, system = question_of(request)
    text = answer(prompt, system, request)
    counts = usage(max(1, (len(prompt) + len(system)) // 4), max(1, len(text) // 4))
    made = completion(str(request.get("model")), {"role": "assistant", "content": text}, "stop", counts)
    made["choices"][0]["logprobs"] = logprobs(prompt, system, request, text) if request.get("logprobs") else None
    return made


@protocol("coeval-mock")
class MockModel:
    """All mock models of a run; what each is like is in its requests."""

    def __init__(self, account: Account) -> None:  # noqa: ARG002
        self._failed: dict[str, int] = {}  # question -> failures in a row, so that another try is another draw

    async def chat(self, request: JSON, timeouts: Timeouts) -> JSON:
        """A whole chat completion.

        Raises:
            ProviderError: the persona fails, is too slow or is no persona.
        """
        try:
            persona = Persona.of(request)
        except ConfigError as error:
            raise ProviderError(Fault.UNSUPPORTED, str(error)) from None
        limit = min(timeouts.first_token, timeouts.total)
        await asyncio.sleep(min(persona.latency, limit))
        if persona.latency > limit:
            raise ProviderError(Fault.TIMEOUT, "mock took too long")
        self._fail(persona, repr(question_of(request)))
        return completion_for(request)

    def _fail(self, persona: Persona, question: str) -> None:
        if not persona.failure_rate:
            return
        question = f"{persona.model} {persona.attempt} {question}"
        failures = self._failed.pop(question, 0)
        if persona.uniform("failure", failures, question) < persona.failure_rate:
            self._failed[question] = failures + 1
            raise ProviderError(Fault.SERVER, "mock failed, as its failure_rate wants it", status=500)

    async def stream(self, request: JSON, timeouts: Timeouts) -> AsyncGenerator[JSON, None]:
        """The whole answer as one chunk.

        Raises:
            ProviderError: there is none.
        """
        for chunk in chunks_of(await self.chat(request, timeouts), with_usage=asks_for_usage(request)):
            yield chunk

    async def close(self) -> None:
        """There is nothing to close."""
