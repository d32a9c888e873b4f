"""POST /v1/messages: Anthropic's Messages API, answered the way chat completions are."""

from __future__ import annotations

import json
from collections.abc import Sequence

from p2l.errors import InputError
from route.messages import MessageStream, chat_request, error_of, message_of
from route.providers.base import JSON, Fault, ProviderError
from route.providers.content import SHAPE_ERRORS
from route.service.dialect import Dialect
from route.service.errors import ApiError

__all__ = ["MESSAGES"]

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
