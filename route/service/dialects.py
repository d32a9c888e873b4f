"""The APIs that clients speak; inside the router every request is one of OpenAI's chat completions."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence

from p2l.common.errors import InputError
from route.messages import HINTS, MessageStream, chat_request, error_of, message_of
from route.providers.base import JSON, Fault, ProviderError
from route.providers.chat import SHAPE_ERRORS
from route.service.errors import ApiError


class Dialect:
    """OpenAI's chat completions, unchanged; other dialects translate. An instance serves one request."""

    hints: Collection[str] = ()
    """Fields that `request` leaves out."""

    @staticmethod
    def request(body: JSON) -> JSON:
        """Return the body of a chat completion for that of a request; raise `ApiError` for a malformed one."""
        return body

    @staticmethod
    def answer(completion: JSON) -> JSON:
        """Return the answer for a chat completion; raise `ApiError` for a malformed one."""
        return completion

    @staticmethod
    def error(error: ApiError) -> JSON:
        """Return the body of an error."""
        return error.body()

    def take(self, chunk: JSON) -> bytes:
        """Return the events of a chunk, possibly none; raise ProviderError for a malformed one."""
        return b"data: " + json.dumps(chunk, separators=(",", ":")).encode() + b"\n\n"

    def fail(self, error: ApiError) -> bytes:
        """Return the last event of a stream that broke, after which no end follows."""
        return b"data: " + json.dumps(error.body()).encode() + b"\n\n"

    def end(self) -> bytes:
        """Return the end of a complete stream."""
        return b"data: [DONE]\n\n"


_NO_COMPLETION = "the answer of the provider is not a chat completion"


class Messages(Dialect):
    """Anthropic's Messages API."""

    hints = HINTS

    def __init__(self) -> None:
        self._stream = MessageStream()

    @staticmethod
    def request(body: JSON) -> JSON:
        """See `Dialect`; likewise the others."""
        try:
            return chat_request(body)
        except InputError as error:
            raise ApiError(400, "invalid_value", str(error)) from error

    @staticmethod
    def answer(completion: JSON) -> JSON:
        """Return a message."""
        try:
            return message_of(completion)
        except SHAPE_ERRORS as error:
            raise ApiError(502, "provider_error", f"{completion.get('model')}: {_NO_COMPLETION}") from error

    @staticmethod
    def error(error: ApiError) -> JSON:
        """Return the body of an error."""
        return error_of(error.status, str(error), error.code)

    def take(self, chunk: JSON) -> bytes:
        """Return the events of a chunk."""
        try:
            return _encode(self._stream.take(chunk))
        except SHAPE_ERRORS as error:
            raise ProviderError(Fault.MALFORMED, _NO_COMPLETION) from error

    def fail(self, error: ApiError) -> bytes:
        """Return an error event."""
        return _encode([self.error(error)])

    def end(self) -> bytes:
        """Return the closing events."""
        return _encode(self._stream.end())


def _encode(events: Sequence[JSON]) -> bytes:
    lines = (f"event: {event['type']}\ndata: {json.dumps(event, separators=(',', ':'))}\n\n" for event in events)
    return "".join(lines).encode()
