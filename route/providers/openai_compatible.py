"""The client of every provider that speaks OpenAI's chat completions: what was asked goes out as it is.

Fields that nobody here knows are passed through both ways, and so is content of null.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing

from route.providers.base import JSON, Account, ProviderError, Timeouts
from route.providers.chunks import asks_for_usage, chunks_of
from route.providers.content import named_by, without
from route.providers.dialect import dialect_of
from route.providers.history import for_another_model
from route.providers.registry import protocol
from route.providers.sse import Event
from route.providers.transport import WHOLE, Transport

__all__ = ["OpenAICompatible", "bearer"]


def bearer(account: Account) -> dict[str, str]:
    """The header with the key, if there is one."""
    return {"Authorization": f"Bearer {account.api_key}"} if account.api_key else {}


class OpenAICompatible:
    """One account at a provider of OpenAI's protocol."""

    def __init__(
        self,
        account: Account,
        *,
        headers: Mapping[str, str] | None = None,
        url: Callable[[JSON], str] | None = None,
        prepare: Callable[[JSON], JSON] | None = None,
    ) -> None:
        """A client that connects when it is asked.

        Args:
            account: of its options, `omit` names fields that this provider refuses and that are left out, `keep` those
                of its own answers that it wants to see again (`history.py`), and `dialect` is `classic` where it knows
                the first names of fields and roles alone (`dialect.py`).
            headers: with the key; the usual one by default.
            url: of a request; `base_url` and `/chat/completions` by default.
            prepare: what a request becomes before it is sent; the dialect says so by default.
        """
        completions = f"{account.base_url.rstrip('/')}/chat/completions"
        self._url = url or (lambda _: completions)
        self._prepare = prepare or dialect_of(account.options)
        self._omit = named_by(account.options, "omit")
        self._keep = named_by(account.options, "keep")
        self._transport = Transport(account, bearer(account) if headers is None else headers)

    async def chat(self, request: JSON, timeouts: Timeouts) -> JSON:
        """A whole chat completion.

        Raises:
            ProviderError: there is none.
        """
        # OpenAI refuses options of a stream where there is none.
        body = without(self._body(request), ("stream", "stream_options"))
        answer = await self._transport.answer(self._url(body), body, timeouts)
        return self._completion(answer)

    async def stream(self, request: JSON, timeouts: Timeouts) -> AsyncGenerator[JSON, None]:
        """The chunks of a chat completion.

        Raises:
            ProviderError: before the first chunk or after any; also where a stream ends before `[DONE]` and before each
                choice has its finish reason.
        """
        body = {**self._body(request), "stream": True}
        wanted = body["n"] if isinstance(body.get("n"), int) else 1
        finished, begun = set[int](), False
        async with aclosing(self._transport.events(self._url(body), body, timeouts)) as events:
            try:
                async for event in events:
                    if event.data == b"[DONE]" and begun:
                        return
                    for chunk in self._chunks(event, asks_for_usage(request)):
                        begun = True
                        finished.update(self._transport.understood(self._finished, chunk))
                        yield chunk
            except ProviderError:
                if len(finished) < wanted:
                    raise
        if len(finished) < wanted:
            raise self._transport.malformed("a stream without its end" if begun else "an empty stream")

    async def close(self) -> None:
        """Close the connections."""
        await self._transport.close()

    def _body(self, request: JSON) -> JSON:
        return without(self._prepare(for_another_model(request, self._keep)), self._omit)

    def _chunks(self, event: Event, with_usage: bool) -> list[JSON]:
        if event.data == b"[DONE]":
            raise self._transport.malformed("an empty stream")
        chunk = self._transport.parsed(event.data)
        if chunk.get("error") or event.name == "error" or chunk.get("object") == "error":
            raise self._transport.failure(chunk)
        if event.name == WHOLE:
            return chunks_of(self._completion(chunk), with_usage=with_usage)
        if "choices" not in chunk:
            raise self._transport.malformed("a chunk without choices")
        chunk["choices"] = chunk["choices"] or []
        return [chunk]

    @staticmethod
    def _finished(chunk: JSON) -> set[int]:
        """Which choices end with this chunk."""
        return {choice.get("index", 0) for choice in chunk["choices"] if choice.get("finish_reason")}

    def _completion(self, answer: JSON) -> JSON:
        choices = answer.get("choices")
        if not isinstance(choices, list) or not choices or not all(isinstance(choice, dict) for choice in choices):
            raise self._transport.malformed("an answer without choices")
        if not all(isinstance(choice.get("message"), dict) for choice in choices):
            raise self._transport.malformed("a choice without a message")
        return answer


protocol("openai", "dialect", "keep", "omit")(OpenAICompatible)
