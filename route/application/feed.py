"""The live parts of the console, rendered once a tick for everybody who looks, and only those that have changed.

Nothing runs while nobody looks: whoever comes first after a tick renders it, and the others take what is there.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from markupsafe import Markup

from p2l.common.report import render
from route.application import views
from route.application.live import Live
from route.application.service import Service
from route.observability.recent import POINT_SECONDS

_FRONTIER_SECONDS = 10.0  # it changes slowly
_NEW_REQUESTS = 5  # of a tick, at most
_Values: TypeAlias = "dict[str, Any]"


@dataclass
class Part:
    """One part of the page."""

    name: str
    read: Callable[[Service], _Values | Awaitable[_Values]]
    pause: float = 0.0
    """Seconds between two readings, at least."""
    values: _Values | None = None
    html: str = ""
    event: bytes = b""
    version: int = 0
    """How often it has changed."""
    read_at: float = float("-inf")


class Feed:
    """The live parts for all who look at the console of one worker."""

    def __init__(self, live: Live) -> None:
        """Render nothing yet."""
        self.parts = [
            Part("tiles", views.tiles),
            Part("models", _models),
            Part("frontier", views.frontier_of_the_hour, _FRONTIER_SECONDS),
            Part("health", views.health),
            Part("budgets", views.budgets),
            Part("requests", self._requests),
        ]
        self._tick = POINT_SECONDS
        self._live = live
        self._rendered = float("-inf")
        self._one_turn = asyncio.Lock()
        self._rows: dict[int, Markup] = {}
        """The requests of the page by their numbers, newest last: each is rendered once."""
        self._seen = 0
        self._is_whole = True
        """Whether the present turn is for a page that opens."""

    async def whole(self) -> dict[str, str]:
        """Return all parts as they are now."""
        async with self._one_turn:
            self._is_whole = True
            for part in self.parts:
                await self._refresh(part)
        return {part.name: part.html for part in self.parts}

    async def events(self, seconds: float) -> AsyncIterator[bytes]:
        """Yield parts whenever they change, and each new point of the charts, for some time."""
        end, sent, last = time.monotonic() + seconds, dict.fromkeys((part.name for part in self.parts), 0), 0.0
        while time.monotonic() < end:
            await self._turn()
            for part in self.parts:
                if part.version != sent[part.name]:
                    sent[part.name] = part.version
                    yield part.event
            recent = self._live.service.recent
            for point in recent.since(last) if last else list(recent.points)[-1:]:
                last = point["time"] or 0.0
                yield event("point", json.dumps(point))
            await asyncio.sleep(max(0.01, self._rendered + self._tick - time.monotonic()))

    async def _turn(self) -> None:
        """Refresh the parts that are due, if nobody has in this tick."""
        async with self._one_turn:
            now = time.monotonic()
            if now < self._rendered + self._tick:
                return
            self._rendered, self._is_whole = now, False
            for part in self.parts:
                if now - part.read_at >= part.pause:
                    await self._refresh(part)
                    # The event loop goes on between two parts, so that no request waits for more than one.
                    await asyncio.sleep(0)

    async def _refresh(self, part: Part) -> None:
        """Read the values of a part, and render it if they have changed."""
        part.read_at = time.monotonic()
        values = part.read(self._live.service)
        if inspect.isawaitable(values):
            values = await values
        if values == part.values:
            return
        part.values, part.version = values, part.version + 1
        part.html = render("route.application/parts.html", part=part.name, **values)
        part.event = event(part.name, part.html)

    def _requests(self, service: Service) -> _Values:
        """Return the latest requests: of many in one tick only some, since nobody could read them."""
        recent = service.recent
        first, end = recent.noted - len(recent.requests), recent.noted
        if self._is_whole:
            numbers = list(range(max(first, end - views.SHOWN_REQUESTS), end))
        else:
            new = range(max(first, self._seen, end - _NEW_REQUESTS), end)
            numbers = [*self._rows, *new][-views.SHOWN_REQUESTS :]
        rows = self._rows
        self._rows = {}
        for number in numbers:
            if number in rows:  # an ended request never changes
                self._rows[number] = rows[number]
            else:
                each = views.request(recent.requests[number - first])
                self._rows[number] = Markup(render("route.application/request.html", each=each))
        self._seen = end
        is_sample = bool(numbers) and numbers[-1] - numbers[0] >= len(numbers)
        return {"requests": list(self._rows.values())[::-1], "is_sample": is_sample}


def event(name: str, content: str) -> bytes:
    """Return a server-sent event, after whose end a page soon asks for more."""
    lines = "".join(f"data: {line}\n" for line in content.split("\n"))
    return f"retry: 100\nevent: {name}\n{lines}\n".encode()


async def _models(service: Service) -> _Values:
    return {"rows": await views.models(service)}
