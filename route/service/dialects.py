"""The APIs that clients speak; inside the router every request is one of OpenAI's chat completions."""

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
    """The server-sent events of one stream."""

    def take(self, chunk: JSON) -> bytes:
        """Translate a chunk of a chat completion, possibly to nothing; raise ProviderError for a malformed one."""
        ...

    def fail(self, error: ApiError) -> bytes:
        """Return the last event of a stream that broke, after which no end follows."""
        ...

    def end(self) -> bytes:
        """Return the end of a complete stream."""
        ...


@dataclass(frozen=True)
class Dialect:
    """Translations from and to one API; those of requests and answers raise `ApiError`."""

    request: Callable[[JSON], JSON]
    """From the body of a request to that of a chat completion."""
    answer: Callable[[JSON], JSON]
    """From a chat completion to an answer."""
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


def _unchanged(body: JSON) -> JSON:
    return body


OPENAI = Dialect(_unchanged, _unchanged, ApiError.body, _ChunkEvents)
"""Chat completions."""

_NO_COMPLETION = "the answer of the provider is not a chat completion"


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
