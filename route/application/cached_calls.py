"""Answers of the cache in place of a provider's: which requests may have one, and how an answer is kept and given."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

from route.keep.answer_cache import AnswerCache
from route.observability.metrics import RouterMetrics
from route.providers.base import JSON, NATIVE, NativeRequest, Timeouts
from route.send.asking import Opened, ask_whole, open_stream
from route.send.charges import Charge
from route.send.dispatch import Answer
from route.send.fleet import Deployment


class CachedCalls:
    """Asks models for one request; what the cache has costs nothing."""

    def __init__(self, cache: AnswerCache, answer: Answer, metrics: RouterMetrics) -> None:
        """Ask for an answer of one request."""
        self._cache, self._answer, self._metrics = cache, answer, metrics

    def _digest(self, deployment: Deployment, request: JSON | NativeRequest, form: str) -> str | None:
        """Return the name of the entry for a request; None where it may have none."""
        body: JSON = request.body if isinstance(request, NativeRequest) else request
        settings: JSON = request.settings if isinstance(request, NativeRequest) else {}
        temperature = body.get("temperature", settings.get("temperature"))
        if isinstance(temperature, bool) or temperature != 0:
            return None
        key = self._answer.key
        owner = None if self._cache.across_keys or key is None else key.name
        headers = dict(request.headers) if isinstance(request, NativeRequest) else {}
        place = deployment.config.model_dump(exclude={"api_key", "cost", "price", "deployments"})
        return self._cache.digest(form, owner, deployment.name, place, headers, settings, body)

    def _count(self, outcome: str) -> None:
        self._metrics.answer_cache.labels(outcome).inc()

    def _count_none(self) -> None:
        self._count("miss" if self._cache.fault is None else "failed")

    async def whole(
        self, deployment: Deployment, request: JSON | NativeRequest, timeouts: Timeouts, charge: Charge
    ) -> JSON:
        """Return a whole answer; see `Call`."""
        digest = self._digest(deployment, request, "whole")
        kept = None if digest is None else await self._cache.get(digest)
        if isinstance(kept, dict):
            self._count("hit")
            charge.is_cached, charge.choices = True, len(kept.get("choices") or [0])
            charge.identify(kept)
            return kept
        if digest is not None:
            self._count_none()
        completion = await ask_whole(deployment, request, timeouts, charge)
        if digest is not None:
            await self._cache.put(digest, completion)
        return completion

    async def stream(
        self, deployment: Deployment, request: JSON | NativeRequest, timeouts: Timeouts, charge: Charge
    ) -> Opened:
        """Open a stream; see `Call`. One whose events pass as the provider sends them is not kept."""
        digest = None if isinstance(request, NativeRequest) else self._digest(deployment, request, "stream")
        kept = None if digest is None else await self._cache.get(digest)
        if isinstance(kept, list) and kept:
            self._count("hit")
            charge.is_cached = True
            charge.identify(kept[0])
            return Opened(kept, _nothing())
        if digest is not None:
            self._count_none()
        opened = await open_stream(deployment, request, timeouts, charge)
        if digest is None:
            return opened
        return Opened(opened.head, self._keeping(digest, [_copied(chunk) for chunk in opened.head], opened.rest))

    async def _keeping(
        self, digest: str, chunks: list[JSON], rest: AsyncGenerator[JSON, None]
    ) -> AsyncGenerator[JSON, None]:
        """Yield the rest of a stream and keep all of it when it is complete."""
        try:
            async for chunk in rest:
                chunks.append(_copied(chunk))
                yield chunk
        finally:
            await rest.aclose()
        if not any(NATIVE in chunk for chunk in chunks):
            await self._cache.put(digest, chunks)


def _copied(chunk: Any) -> Any:
    """Return a copy of a chunk, into which the router writes names of its own when it passes it on."""
    if isinstance(chunk, dict):
        return {name: part if name == NATIVE else _copied(part) for name, part in chunk.items()}
    return [_copied(each) for each in chunk] if isinstance(chunk, list) else chunk


async def _nothing() -> AsyncGenerator[JSON, None]:
    """Yield nothing: a stream of the cache has all of it at once."""
    for chunk in list[JSON]():
        yield chunk
