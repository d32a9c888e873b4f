"""What the clients of one API say and hear; between the two everything is one of OpenAI's chat completions."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from p2l.common.errors import InputError
from route.messages import MessageStream, chat_request, error_of, message_of
from route.providers.base import JSON, Fault, ProviderError
from route.providers.content import SHAPE_ERRORS
from route.service.errors import ApiError


class Events(Protocol):
    """The events of one stream, as they are sent."""

    def take(self, chunk: JSON) -> bytes:
        """What a chunk of a chat completion becomes; may be nothing.

        Raises:
            ProviderError: it is no chunk, or does not fit to those before.
        """
        ...

    def fail(self, error: ApiError) -> bytes:
        """The last event of a stream that broke: nothing that looks like an end comes after it."""
        ...

    def end(self) -> bytes:
        """The end of a stream that is complete."""
        ...


@dataclass(frozen=True)
class Dialect:
    """The translation from and to one API."""

    request: Callable[[JSON], JSON]
    """The body of a chat completion from that of a request; raises `ApiError`."""
    answer: Callable[[JSON], JSON]
    """A whole answer from a chat completion; raises `ApiError`."""
    error: Callable[[ApiError], JSON]
    """The body of an error."""
    events: Callable[[], Events]
    """A new stream."""


class _ChunkEvents:
    def take(self, chunk: JSON) -> bytes:
        return b"data: " + json.dumps(chunk, separators=(",", ":")).encode() + b"\n\n"

    def fail(self, error: ApiError) -> bytes:
        return b"data: " + json.dumps(error.body()).encode() + b"\n\n"

    def end(self) -> bytes:
        return b"data: [DONE]\n\n"


def _as_it_is(body: JSON) -> JSON:
    return body


OPENAI = Dialect(_as_it_is, _as_it_is, ApiError.body, _ChunkEvents)
"""Chat completions."""

# POST /v1/messages: Anthropic's Messages API, answered the way chat completions are.

_NO_COMPLETION = "what the provider said is not of the form of a chat completion"


def _request(body: JSON) -> JSON:
    try:
        return chat_request(body)
    except InputError as error:
        raise ApiError(400, "invalid_value", str(error)) from error


def _answer(completion: JSON) -> JSON:
    try:
        return message_of(completion)
    except SHAPE_ERRORS as error:
        raise ApiError(502, "provider_error", f"{completion.get('model')}: {_NO_COMPLETION}") from error


def _error(error: ApiError) -> JSON:
    return error_of(error.status, str(error), error.code)


class _Events:
    def __init__(self) -> None:
        self._stream = MessageStream()

    def take(self, chunk: JSON) -> bytes:
        try:
            return _encode(self._stream.take(chunk))
        except SHAPE_ERRORS as error:
            raise ProviderError(Fault.MALFORMED, _NO_COMPLETION) from error

    def fail(self, error: ApiError) -> bytes:
        return _encode([_error(error)])

    def end(self) -> bytes:
        return _encode(self._stream.end())


def _encode(events: Sequence[JSON]) -> bytes:
    lines = (f"event: {event['type']}\ndata: {json.dumps(event, separators=(',', ':'))}\n\n" for event in events)
    return "".join(lines).encode()


MESSAGES = Dialect(_request, _answer, _error, _Events)
"""The Messages API."""
