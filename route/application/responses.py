"""OpenAI's Responses API: POST /v1/responses as a dialect, and what is kept of earlier responses."""

from __future__ import annotations

from dataclasses import replace

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from p2l.common.errors import InputError
from p2l.common.long_texts import apart, to_json
from route.application.chat import authenticate
from route.application.dialects import NO_COMPLETION, Dialect, Dump, compact, encode
from route.application.service import Service
from route.keep.database import DatabaseError
from route.keep.ledger import KeyRecord
from route.keep.stored_responses import StoredResponse
from route.providers.base import JSON, Fault, ProviderError
from route.providers.chat import SHAPE_ERRORS
from route.request.api_errors import ApiError
from route.request.chat import Incoming, turns_of
from route.request.responses import HINTS, chat_request, input_items, messages_of
from route.request.responses_answer import ResponseStream, answer_of, frame_of, response_of

_LISTED = 1000  # items in one answer of `input_items`


class Responses(Dialect):
    """OpenAI's Responses API."""

    hints = HINTS - {"store", "metadata"}

    def __init__(self) -> None:
        self._sent: JSON = {}
        self._items: list[JSON] = []
        self._frame: JSON = {}
        self._service: Service | None = None
        self._key = ""
        self._response: JSON | None = None
        self._stream = ResponseStream({})
        self._closing: list[JSON] = []
        """The last events before the end."""

    def request(self, body: JSON) -> JSON:
        """See `Dialect`; likewise the others."""
        try:
            request = chat_request(body)
            self._items = input_items(body.get("input"))
        except InputError as error:  # which begins with the place
            raise ApiError(400, "invalid_value", str(error), param=str(error).partition(":")[0]) from error
        self._sent = body
        return request

    async def prepare(self, service: Service, key: KeyRecord, incoming: Incoming) -> Incoming:
        """Put what came before `previous_response_id` in front of the request."""
        stored = service.responses.enabled and self._sent.get("store") is not False
        self._frame = frame_of(self._sent, stored=stored)
        self._stream = ResponseStream(self._frame)
        self._service, self._key = service, key.name
        previous = self._sent.get("previous_response_id")
        if previous is None:
            return incoming
        chain = await _stored_chain(service, key, previous)
        size = incoming.size + sum(row.size for row in chain)
        if size > service.settings.max_body_mb * 2**20:
            raise ApiError(413, "request_too_large", "previous_response_id: the conversation has become too large")

        def joined() -> tuple[list[JSON], tuple[str, ...]]:
            sent = incoming.body["messages"]
            # The instructions of earlier requests do not carry over.
            instructions = sent[: len(sent) - len(messages_of(self._items))]
            items = [item for row in chain for item in (*row.items, *answer_of(row.response))]
            messages = [*instructions, *messages_of([*items, *self._items])]
            return messages, turns_of(messages)

        messages, turns = await apart([self._items, [row.items for row in chain]], joined)
        return replace(incoming, body={**incoming.body, "messages": messages}, turns=turns, size=size)

    def answer(self, completion: JSON) -> JSON:
        """Return a response."""
        try:
            self._response = response_of(completion, self._frame)
        except SHAPE_ERRORS as error:
            raise ApiError(502, "provider_error", f"{completion.get('model')}: {NO_COMPLETION}") from error
        return self._response

    async def keep(self) -> None:
        """Store the response, before its client has the end of it."""
        if self._service is None or not self._frame.get("store"):
            return
        if self._response is None:
            self._closing = self._stream.close()
        response = self._response or self._stream.response()
        try:
            await self._service.responses.put(self._key, response, self._items)
        except DatabaseError:
            self._frame["store"] = response["store"] = False  # it is answered all the same, and says that

    def take(self, chunk: JSON, dump: Dump = compact) -> bytes:
        """Return the events of a chunk."""
        try:
            return encode(self._stream.take(chunk), dump)
        except SHAPE_ERRORS as error:
            raise ProviderError(Fault.MALFORMED, NO_COMPLETION) from error

    def fail(self, error: ApiError) -> bytes:
        """Return an event with the failed response."""
        return encode(self._stream.fail(error.code, str(error)))

    def end(self) -> bytes:
        """Return the closing events."""
        return encode([*self._closing, *self._stream.end()])


async def _stored_chain(service: Service, key: KeyRecord, identifier: object) -> list[StoredResponse]:
    _check_enabled(service, "previous_response_id")
    try:
        chain = await service.responses.chain(key.name, str(identifier))
    except DatabaseError as error:
        raise _unreadable() from error
    if not chain:
        raise _not_found(str(identifier), param="previous_response_id")
    return chain


def _check_enabled(service: Service, what: str) -> None:
    if not service.responses.enabled:
        text = f"{what}: this router keeps no responses; send the whole conversation as input"
        raise ApiError(400, "responses_not_stored", text, param="previous_response_id")


def _unreadable() -> ApiError:
    return ApiError(503, "database_unavailable", "responses cannot be read or written now", retry_after=1.0)


def _not_found(identifier: str, *, param: str | None = None) -> ApiError:
    text = f"no response {identifier!r} of this key; they are kept for 30 days, unless store is false"
    return ApiError(404, "response_not_found", text, param=param)


async def _one(service: Service, request: Request) -> tuple[KeyRecord, StoredResponse]:
    key = await authenticate(service, request.headers)
    _check_enabled(service, "responses")
    try:
        row = await service.responses.get(key.name, request.path_params["response_id"])
    except DatabaseError as error:
        raise _unreadable() from error
    if row is None:
        raise _not_found(request.path_params["response_id"])
    return key, row


async def retrieve(service: Service, request: Request) -> Response:
    """Answer with a response that is kept."""
    _, row = await _one(service, request)
    return Response(await to_json(row.response), media_type="application/json")


async def delete(service: Service, request: Request) -> Response:
    """Forget a response."""
    key, row = await _one(service, request)
    try:
        await service.responses.delete(key.name, row.response["id"])
    except DatabaseError as error:
        raise _unreadable() from error
    return JSONResponse({"id": row.response["id"], "object": "response", "deleted": True})


async def list_input(service: Service, request: Request) -> Response:
    """Answer with the input of the request that a response belongs to."""
    _, row = await _one(service, request)
    items = row.items[:_LISTED]
    if request.query_params.get("order") != "asc":
        items = items[::-1]  # the newest first, as OpenAI lists them
    first, last = (items[0].get("id"), items[-1].get("id")) if items else (None, None)
    more = len(row.items) > _LISTED
    listed = {"object": "list", "data": items, "first_id": first, "last_id": last, "has_more": more}
    return Response(await to_json(listed), media_type="application/json")
