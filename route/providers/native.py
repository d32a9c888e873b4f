"""Requests that a provider gets in its own protocol as the client sent them, and answers that pass as they came.

Beside what passes, each piece is read as a chunk of a chat completion: whoever counts tokens, looks for the first token
or for faults needs to know no other protocol.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from typing import NamedTuple

from route.providers import completions
from route.providers.base import JSON, NATIVE, ProviderError, Timeouts
from route.providers.http import WHOLE, Transport
from route.providers.translation import StreamTranslator


class NativeEvent(NamedTuple):
    """One event of a stream as the provider sent it."""

    content: JSON
    data: bytes
    """The text of the content."""

    def encoded(self) -> bytes:
        """Return the event as a stream carries it."""
        # A provider may write one event on several lines.
        data = self.data.replace(b"\n", b"\ndata: ")
        return b"event: " + str(self.content.get("type")).encode() + b"\ndata: " + data + b"\n\n"


class NativeCall(NamedTuple):
    """One request that is ready to be sent."""

    transport: Transport
    url: str
    body: JSON
    headers: Mapping[str, str]
    timeouts: Timeouts
    checked: Callable[[JSON], JSON]
    """Returns an answer, or an event of one, or raises the error that it stands for."""
    completion_of: Callable[[JSON], JSON]

    async def answer(self) -> JSON:
        """Return the answer as a chat completion, with the answer itself under `NATIVE`."""
        answer = self.checked(await self.transport.answer(self.url, self.body, self.timeouts, self.headers))
        return {**self.transport.understood(self.completion_of, answer), NATIVE: answer}

    async def stream(self, translator: StreamTranslator) -> AsyncGenerator[JSON, None]:
        """Yield the chunks of a stream, one of each event with the event itself under `NATIVE`."""
        transport = self.transport
        async with aclosing(transport.events(self.url, self.body, self.timeouts, self.headers)) as events:
            try:
                async for event in events:
                    if event.data == b"[DONE]":
                        continue
                    content = self.checked(await transport.loaded(event.data))
                    if event.name == WHOLE:
                        completion = transport.understood(self.completion_of, content)
                        for chunk in completions.chunks_of(completion, with_usage=True):
                            yield chunk
                        return
                    chunks = transport.understood(translator.take, content)
                    for chunk in chunks[:-1]:
                        yield chunk
                    last = chunks[-1] if chunks else translator.empty_chunk()
                    yield {**last, NATIVE: NativeEvent(content, event.data)}
            except ProviderError:
                if not translator.finished:  # a complete answer outlives the connection
                    raise
        if not translator.finished:
            raise transport.malformed("a stream without its end")
