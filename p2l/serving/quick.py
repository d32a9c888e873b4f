"""The shortest way through the HTTP layer, for the request that is nearly every one: a well-formed prompt.

FastAPI takes a request apart, and checks and converts what is answered, in many general steps; for a small model they
are a third of the work. What is in any way unusual (another content type, a header that FastAPI reads, a body that is
no such request) goes that way all the same, with its body, so that there is one place that says what was wrong.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from pydantic import BaseModel, ValidationError
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Match, Route, Router
from starlette.types import Message, Receive, Scope, Send

_SLOW = "p2l.slow"


class QuickRoute(Route):
    """Answers plain JSON requests to `path`; put it before the route that answers all of them."""

    def __init__(
        self,
        path: str,
        router: Router,
        body: type[BaseModel],
        answer: Callable[[Request, BaseModel], Awaitable[BaseModel]],
        *,
        unusual: frozenset[bytes],
    ) -> None:
        """Let `answer` answer what can be read as `body`; `router` gets the rest, as it came.

        Of the answer goes out what was set. `unusual` are headers of requests that are left to the router.
        """
        super().__init__(path, self._answer, methods=["POST"], include_in_schema=False)
        self.app = self._answer
        self._router, self._body, self._make, self._unusual = router, body, answer, unusual

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """As any route, but for requests that were tried before."""
        if scope.get("method") != "POST" or _SLOW in scope or not self._is_plain(scope):
            return Match.NONE, {}
        return super().matches(scope)

    def _is_plain(self, scope: Scope) -> bool:
        kinds = [value for name, value in scope["headers"] if name == b"content-type"]
        return kinds == [b"application/json"] and not any(name in self._unusual for name, _ in scope["headers"])

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        try:
            content = await request.body()
        except ClientDisconnect:
            return
        try:
            asked = self._body.model_validate_json(content)
        except ValidationError:
            await self._router({**scope, _SLOW: True}, _again(content, receive), send)
            return
        found = await self._make(request, asked)
        body = found.model_dump_json(exclude_unset=True)
        await Response(body, media_type="application/json")(scope, receive, send)


def _again(content: bytes, receive: Receive) -> Receive:
    """A body that was read, once more, and then what comes after it."""
    messages: list[Message] = [{"type": "http.request", "body": content, "more_body": False}]

    async def receive_again() -> Message:
        return messages.pop() if messages else await receive()

    return receive_again
