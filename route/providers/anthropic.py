"""The client of Anthropic's Messages API, and of whatever else speaks it at the account's `base_url`."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from functools import partial

from route.providers.anthropic_answer import Translator, completion_of
from route.providers.anthropic_request import messages_request
from route.providers.base import JSON, Account, ProviderError, Timeouts
from route.providers.chunks import asks_for_usage, chunks_of
from route.providers.content import named_by, translated, without
from route.providers.registry import protocol
from route.providers.transport import WHOLE, Transport

__all__ = ["Anthropic"]

_VERSION = "2023-06-01"
_MAX_TOKENS = 4096  # which every model of theirs may answer


@protocol("anthropic", "max_tokens", "omit")
class Anthropic:
    """One account at Anthropic."""

    def __init__(self, account: Account) -> None:
        """A client that connects when it is asked.

        `options["max_tokens"]` is what an answer may have where the request does not say (4,096); `options["omit"]`
        names fields to leave out, such as the `temperature` that their newest models refuse.
        """
        self._url = f"{account.base_url.rstrip('/').removesuffix('/v1')}/v1/messages"
        self._max_tokens = int(account.options.get("max_tokens", _MAX_TOKENS))
        self._omit = named_by(account.options, "omit")
        key = {"x-api-key": account.api_key} if account.api_key else {}
        self._transport = Transport(account, {"anthropic-version": _VERSION, **key})

    async def chat(self, request: JSON, timeouts: Timeouts) -> JSON:
        """A whole chat completion.

        Raises:
            ProviderError: there is none.
        """
        return self._completion(await self._transport.answer(self._url, self._body(request), timeouts))

    async def stream(self, request: JSON, timeouts: Timeouts) -> AsyncGenerator[JSON, None]:
        """The chunks of a chat completion.

        Raises:
            ProviderError: before the first chunk or after any.
        """
        with_usage = asks_for_usage(request)
        translator = Translator(with_usage=with_usage)
        body = {**self._body(request), "stream": True}
        async with aclosing(self._transport.events(self._url, body, timeouts)) as events:
            try:
                async for event in events:
                    parsed = self._transport.parsed(event.data)
                    if parsed.get("type") == "error":
                        raise self._transport.failure(parsed)
                    if event.name == WHOLE:
                        chunks, translator.finished = chunks_of(self._completion(parsed), with_usage=with_usage), True
                    else:
                        chunks = self._transport.understood(translator.take, parsed)
                    for chunk in chunks:
                        yield chunk
            except ProviderError:
                if not translator.finished:
                    raise
        if not translator.finished:
            raise self._transport.malformed("a stream without its end")

    async def close(self) -> None:
        """Close the connections."""
        await self._transport.close()

    def _body(self, request: JSON) -> JSON:
        translate = partial(messages_request, max_tokens=self._max_tokens)
        return translated("anthropic", translate, without(request, self._omit))

    def _completion(self, answer: JSON) -> JSON:
        if not isinstance(answer.get("content"), list):
            raise self._transport.malformed("an answer without content")
        return self._transport.understood(completion_of, answer)
