"""The APIs that clients speak; inside the router every request is one of OpenAI's chat completions."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Sequence
from typing import TypeAlias

from p2l.common.errors import InputError
from route.application.service import Service
from route.keep.ledger import KeyRecord
from route.providers.base import JSON, Fault, ProviderError
from route.providers.chat import SHAPE_ERRORS
from route.request.api_errors import ApiError
from route.request.chat import Incoming
from route.request.messages import HINTS, chat_request
from route.request.messages_answer import MessageStream, error_of, message_of

Dump: TypeAlias = Callable[[JSON], str]
"""Writes JSON."""
compact: Dump = json.JSONEncoder(separators=(",", ":"), check_circular=False).encode
"""Made once: each token of a stream is written so. What was read from JSON holds no circle."""


class Dialect:
    """OpenAI's chat completions, unchanged; other dialects translate. An instance serves one request."""

    hints: Collection[str] = ()
    """Fields that `request` leaves out."""

    def request(self, body: JSON) -> JSON:
        """Return the body of a chat completion for that of a request; raise `ApiError` for a malformed one."""
        return body

    async def prepare(self, _service: Service, _key: KeyRecord, incoming: Incoming) -> Incoming:
        """Return the request with what it refers to."""
        return incoming

    def answer(self, completion: JSON) -> JSON:
        """Return the answer for a chat completion; raise `ApiError` for a malformed one."""
        return completion

    async def keep(self) -> None:
        """Store what the client may come back to, after the last chunk or `answer` and before `end`."""

    def error(self, error: ApiError) -> JSON:
        """Return the body of an error."""
        return error.body()

    def take(self, chunk: JSON, dump: Dump = compact) -> bytes:
        """Return the events of a chunk, possibly none; raise ProviderError for a malformed one."""
        return b"data: " + dump(chunk).encode() + b"\n\n"

    def fail(self, error: ApiError) -> bytes:
        """Return the last event of a stream that broke, after which no end follows."""
        return b"data: " + json.dumps(error.body()).encode() + b"\n\n"

    def end(self) -> bytes:
        """Return the end of a complete stream."""
        return b"data: [DONE]\n\n"


NO_COMPLETION = "the answer of the provider is not a chat completion"


class Messages(Dialect):
    """Anthropic's Messages API."""

    hints = HINTS

    def __init__(self) -> None:
        self._stream = MessageStream()

    def request(self, body: JSON) -> JSON:
        """See `Dialect`; likewise the others."""
        try:
            return chat_request(body)
        except InputError as error:
            raise ApiError(400, "invalid_value", str(error)) from error

    def answer(self, completion: JSON) -> JSON:
        """Return a message."""
        try:
            return message_of(completion)
        except SHAPE_ERRORS as error:
            raise ApiError(502, "provider_error", f"{completion.get('model')}: {NO_COMPLETION}") from error

    def error(self, error: ApiError) -> JSON:
        """Return the body of an error."""
        return error_of(error.status, str(error), error.code)

    def take(self, chunk: JSON, dump: Dump = compact) -> bytes:
        """Return the events of a chunk."""
        try:
            return encode(self._stream.take(chunk), dump)
        except SHAPE_ERRORS as error:
            raise ProviderError(Fault.MALFORMED, NO_COMPLETION) from error

    def fail(self, error: ApiError) -> bytes:
        """Return an error event."""
        return encode([self.error(error)])

    def end(self) -> bytes:
        """Return the closing events."""
        return encode(self._stream.end())


def encode(events: Sequence[JSON], dump: Dump = compact) -> bytes:
    """Return events as a stream carries them."""
    lines = (f"event: {event['type']}\ndata: {dump(event)}\n\n" for event in events)
    return "".join(lines).encode()
