"""Streams: nothing is sent before the first token, so that until then another model can take over.

A later failure cannot be hidden: the stream ends with an error event, without a finish reason and `[DONE]`.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import cast

from route.application.exchange import Exchange
from route.providers.base import JSON, Fault, ProviderError, Timeouts
from route.providers.chat import asks_for_usage
from route.request.api_errors import of_fault
from route.request.chat import is_usage_only, mark_chunk, outputs_of
from route.send.charges import Charge
from route.send.dispatch import Trip
from route.send.fleet import Deployment

Write = Callable[[Sequence[JSON]], Awaitable[None]]
"""Sends chunks to the client, in one piece."""
_BARE_DELTA = {"role", "content", "refusal"}


@dataclass
class Opened:
    """A stream whose first token has arrived."""

    head: list[JSON]
    """All chunks so far."""
    rest: AsyncGenerator[JSON, None]


async def open_stream(deployment: Deployment, request: JSON, timeouts: Timeouts, _: Charge) -> Opened:
    """Ask for a stream and wait for its first token; see `Call`."""
    chunks = cast("AsyncGenerator[JSON, None]", deployment.provider.stream(request, timeouts))
    head: list[JSON] = []
    try:
        async for chunk in chunks:
            head.append(chunk)
            if _has_content(chunk):
                return Opened(head, chunks)
    except BaseException:
        await chunks.aclose()
        raise
    if any(choice.get("finish_reason") for chunk in head for choice in chunk.get("choices") or []):
        return Opened(head, chunks)
    raise ProviderError(Fault.MALFORMED, "the stream ended before it began")


def _has_content(chunk: JSON) -> bool:
    """Return whether a chunk holds more than the role, which a provider may send before its first token."""
    for choice in chunk.get("choices") or []:
        delta = choice.get("delta") or {}
        if choice.get("finish_reason") or delta.get("content") or delta.get("refusal"):
            return True
        if any(value for key, value in delta.items() if key not in _BARE_DELTA):
            return True
    return False


async def relay(exchange: Exchange, trip: Trip, deployment: Deployment, opened: Opened, write: Write) -> None:
    """Pass every chunk on and count the usage; raise `ApiError` if the stream breaks."""
    async with aclosing(opened.rest):
        try:
            opened.head[0] = {**opened.head[0], **outputs_of(trip.choice.decision, trip.tried)}
            # In one write: the role, sent by itself, would wake the client before the token that it waits for.
            await write([mark_chunk(chunk, deployment.name) for chunk in opened.head if _count(trip, chunk)])
            async for chunk in opened.rest:
                if _count(trip, chunk):
                    await write([mark_chunk(chunk, deployment.name)])
            deployment.breaker.succeeded()
        except ProviderError as error:
            deployment.breaker.failed(error)
            trip.faults.append(error)
            exchange.service.metrics.failed(deployment.name, error)
            raise of_fault(error, deployment.name) from error


def _count(trip: Trip, chunk: JSON) -> bool:
    """Count what a chunk brings; return whether the client gets it."""
    charge = trip.charges[-1]
    charge.count(chunk.get("choices"))
    if chunk.get("usage") is not None:
        charge.take_usage(chunk)
        # The router asks for the usage of every stream.
        return not is_usage_only(chunk) or asks_for_usage(trip.incoming.body)
    return True
