"""Counts of a prompt's tokens: the provider's own where its protocol is the client's, else an estimate."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from p2l.common.long_texts import to_json
from route.application.chat import read_chat
from route.application.service import Service
from route.keep.ledger import KeyRecord
from route.providers.base import JSON, NativeProvider, NotSpokenError, ProviderError
from route.request.api_errors import ApiError
from route.request.chat import ChatRequest, Dialect
from route.request.messages import Messages
from route.request.native import native_request
from route.request.responses import Responses
from route.send.dispatch import Answer

_SECONDS = 30.0
ESTIMATED = "x-p2l-estimated"
"""Header of a count that is an estimate: four bytes of text count as a token, an image as a thousand."""


async def count_message(service: Service, request: Request) -> Response:
    """Answer with the tokens of the prompt of Anthropic's Messages API."""
    return await _count(service, request, Messages(), {})


async def count_response(service: Service, request: Request) -> Response:
    """Answer with the tokens of the prompt of OpenAI's Responses API."""
    return await _count(service, request, Responses(), {"object": "response.input_tokens"})


async def _count(service: Service, request: Request, dialect: Dialect, form: JSON) -> Response:
    """Answer with the tokens of a prompt in a dialect's own form, which has further fields in `form`.

    The provider counts where the client names a model of its protocol, or every model that may answer speaks that.
    """
    try:
        key = await service.authenticate(request.headers)
        chat = await read_chat(service, request.headers, request.receive, dialect, Answer("", key=key))
        chat = await dialect.prepare(chat, service.responses, key.name, service.settings.max_body_mb * 2**20)
    except ApiError as error:
        return error.response(body=dialect.error(error))
    counted = await _counted(service, chat, key)
    if counted is not None:
        return Response(await to_json(counted), media_type="application/json")
    tokens = max(1, await chat.apart(lambda: chat.prompt_tokens))
    answer = {**form, "input_tokens": tokens}
    return Response(await to_json(answer), headers={ESTIMATED: "true"}, media_type="application/json")


async def _counted(service: Service, chat: ChatRequest, key: KeyRecord) -> JSON | None:
    """Return the count of a provider; None where none counts, or it fails."""
    form = chat.native
    assert form is not None
    names = service.routable if chat.direct is None else [chat.direct]
    targets = [service.fleet.targets[name] for name in names if key.models is None or name in key.models]
    if not targets or not all(target.speaks(form.protocol) for target in targets):
        return None
    deployment = targets[0].pick(stream=False)
    if deployment is None or not isinstance(deployment.provider, NativeProvider):
        return None
    settings: JSON = {}
    request, _ = native_request(form, deployment.config, deployment.pass_fields, settings, stream=False)
    timeouts = service.config.timeouts.of_attempt(_SECONDS, int(service.config.max_answer_mb * 2**20), stream=False)
    try:
        return await deployment.provider.count_natively(request, timeouts)
    except (ProviderError, NotSpokenError):
        return None
