"""How one deployment is asked: for a whole answer, or for a stream up to its first token."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import cast

from p2l.common.web import time_limit
from route.providers.base import JSON, NATIVE, Fault, NativeProvider, NativeRequest, ProviderError, Timeouts
from route.request import functions
from route.send.charges import Charge
from route.send.fleet import Deployment

_BARE_DELTA = {"role", "content", "refusal"}
_BEFORE_CONTENT = {"message_start", "ping", "keepalive", "response.created", "response.queued", "response.in_progress"}
"""Events of other protocols that say nothing of the answer."""


@dataclass
class Opened:
    """A stream after its first token."""

    head: list[JSON]
    """All chunks so far."""
    rest: AsyncGenerator[JSON, None]


async def open_stream(
    deployment: Deployment, request: JSON | NativeRequest, timeouts: Timeouts, charge: Charge
) -> Opened:
    """Ask for a stream and wait for its first token; see `Call`.

    Signs of life that come before it, such as a role or a ping, do not put off its deadline.
    """
    late = ProviderError(Fault.TIMEOUT, f"no token in {timeouts.first_token:.3g} s")
    with time_limit(min(timeouts.first_token, timeouts.total), late):
        opened = await _opened(deployment, request, timeouts, is_old=_has_old_functions(request, charge))
    for chunk in opened.head:
        charge.identify(chunk)
    try:
        _check_identity(deployment, charge)
    except ProviderError:
        await opened.rest.aclose()
        raise
    return opened


def _has_old_functions(request: JSON | NativeRequest, charge: Charge) -> bool:
    """Return whether the client has functions, which the request to the provider says as tools."""
    body = charge.request.body
    return bool(body.get("functions")) and isinstance(request, dict) and not request.get("functions")


async def _opened(deployment: Deployment, request: JSON | NativeRequest, timeouts: Timeouts, *, is_old: bool) -> Opened:
    provider = deployment.provider
    if isinstance(request, NativeRequest):
        pieces = cast("NativeProvider", provider).stream_natively(request, timeouts)
    else:
        pieces = provider.stream(request, timeouts)
    chunks = cast("AsyncGenerator[JSON, None]", pieces)
    if is_old:
        chunks = functions.chunks_of(chunks)
    head: list[JSON] = []
    try:
        async for chunk in chunks:
            head.append(chunk)
            if _has_content(chunk):
                return Opened(head, chunks)
    except BaseException:
        await chunks.aclose()  # else its connection would stay until the generator is collected
        raise
    # An answer of no text that has ended properly, as some models give, is an answer.
    if any(choice.get("finish_reason") for chunk in head for choice in chunk.get("choices") or []):
        return Opened(head, chunks)
    raise ProviderError(Fault.MALFORMED, "the stream ended before it began")


def _has_content(chunk: JSON) -> bool:
    """Return whether a chunk holds more than the role, which a provider may send before its first token."""
    event = chunk.get(NATIVE)
    if event is not None and event.content.get("type") not in _BEFORE_CONTENT:
        return True
    for choice in chunk.get("choices") or []:
        delta = choice.get("delta") or {}
        if choice.get("finish_reason") or delta.get("content") or delta.get("refusal"):
            return True
        if any(value for key, value in delta.items() if key not in _BARE_DELTA):
            return True
    return False


async def ask_whole(deployment: Deployment, request: JSON | NativeRequest, timeouts: Timeouts, charge: Charge) -> JSON:
    """Ask for a whole answer; see `Call`."""
    provider = deployment.provider
    if isinstance(request, NativeRequest):
        answering = cast("NativeProvider", provider).answer_natively(request, timeouts)
    else:
        answering = provider.chat(request, timeouts)
    if charge.config.price is None:
        answer = await answering
    else:
        # The provider charges for an answer whether or not the client waits, so its counts are waited for.
        charge.pending = asyncio.ensure_future(answering)
        answer = await asyncio.shield(charge.pending)
    deployment.breaker.succeeded()
    charge.complete(answer)
    charge.pending = None
    if _has_old_functions(request, charge):
        answer = functions.answer_of(answer)
    _check_identity(deployment, charge)
    return answer


def _check_identity(deployment: Deployment, charge: Charge) -> None:
    """Leave a deployment that answers as another model, and raise ProviderError for its answer, where so configured."""
    if charge.is_expected:
        return
    if deployment.is_left_if_other:
        deployment.breaker.leave()
    if deployment.is_refused_if_other:
        text = f"the provider answered as {charge.served.model}"
        raise ProviderError(Fault.OTHER_MODEL, text, detail=text)
