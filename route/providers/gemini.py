"""The client of Gemini's own protocol, generateContent."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from urllib.parse import quote

from route.providers.base import JSON, Account, Fault, ProviderError, Timeouts
from route.providers.chunks import asks_for_usage
from route.providers.content import named_by, translated, without
from route.providers.gemini_answer import Translator, completion_of, why_not
from route.providers.gemini_request import generate_request
from route.providers.registry import protocol
from route.providers.transport import Transport

__all__ = ["Gemini"]


@protocol("gemini", "omit")
class Gemini:
    """One account at Google."""

    def __init__(self, account: Account) -> None:
        """A client that connects when it is asked; `options["omit"]` names fields to leave out."""
        self._base = account.base_url.rstrip("/")
        self._omit = named_by(account.options, "omit")
        self._transport = Transport(account, {"x-goog-api-key": account.api_key} if account.api_key else {})

    async def chat(self, request: JSON, timeouts: Timeouts) -> JSON:
        """A whole chat completion.

        Raises:
            ProviderError: there is none.
        """
        body = self._body(request)
        answer = self._checked(await self._transport.answer(self._url(request, "generateContent"), body, timeouts))
        if not answer.get("candidates"):
            raise self._transport.malformed("an answer without candidates")
        return self._transport.understood(completion_of, answer)

    async def stream(self, request: JSON, timeouts: Timeouts) -> AsyncGenerator[JSON, None]:
        """The chunks of a chat completion.

        Raises:
            ProviderError: before the first chunk or after any.
        """
        translator = Translator(with_usage=asks_for_usage(request))
        url = self._url(request, "streamGenerateContent?alt=sse")
        body = self._body(request)
        async with aclosing(self._transport.events(url, body, timeouts)) as events:
            try:
                async for event in events:
                    answer = self._checked(self._transport.parsed(event.data))
                    for chunk in self._transport.understood(translator.take, answer):
                        yield chunk
            except ProviderError:
                if not translator.finished:
                    raise
        if not translator.finished:
            raise self._transport.malformed("a stream without its end")
        for chunk in translator.end():
            yield chunk

    async def close(self) -> None:
        """Close the connections."""
        await self._transport.close()

    def _body(self, request: JSON) -> JSON:
        return translated("gemini", generate_request, without(request, self._omit))

    def _url(self, request: JSON, method: str) -> str:
        model = quote(str(request.get("model")).removeprefix("models/"), safe="/")
        return f"{self._base}/models/{model}:{method}"

    def _checked(self, answer: JSON) -> JSON:
        """The answer, unless it says why there is none.

        Raises:
            ProviderError: it does.
        """
        if answer.get("error"):
            raise self._transport.failure(answer)
        blocked, broken = self._transport.understood(why_not, answer)
        if blocked:
            raise ProviderError(Fault.CONTENT_FILTER, f"gemini refuses the content ({blocked[:64]})")
        if broken:
            raise self._transport.malformed(f"an answer that ended with {broken}")
        return answer
