"""The OpenAPI description: of every route, and true of what the router answers."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis.checks import not_a_server_error
from schemathesis.generation import GenerationMode
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from route.application.openapi import describe
from tests.route.router_helpers import HELLO, KEY, a_router

CHECKS: list[Any] = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]
HEADERS = {"authorization": f"Bearer {KEY}"}


def operations(url: str) -> list[Any]:
    """What the description at a router says can be asked."""
    description = schemathesis.openapi.from_url(f"{url}/openapi.json")
    return [operation.ok() for operation in description.get_all_operations()]


def test_every_route_is_described(tmp_path: Path) -> None:
    async def main() -> None:
        async with a_router(tmp_path) as router:
            routes: list[Any] = [route for route in router.app.routes if route.include_in_schema]  # pages are not
            served = {(route.path.replace(":path", ""), *(route.methods - {"HEAD"} or {"POST"})) for route in routes}
            described = {(path, method.upper()) for path, methods in describe()["paths"].items() for method in methods}
            assert described == served

    asyncio.run(main())


@pytest.mark.parametrize("mode", list(GenerationMode))
def test_answers_are_as_described(tmp_path: Path, mode: GenerationMode) -> None:
    def ask_each(url: str) -> None:
        for operation in operations(url):
            if mode is GenerationMode.NEGATIVE and not (operation.body or [*operation.iter_parameters()]):
                continue  # nothing can be wrong

            @settings(max_examples=5, suppress_health_check=list(HealthCheck), database=None)
            @given(case=operation.as_strategy(generation_mode=mode))
            def check(case: Any) -> None:
                case.call_and_validate(headers=HEADERS, checks=CHECKS)

            check()

    async def main() -> None:
        async with a_router(tmp_path) as router:
            await asyncio.to_thread(ask_each, router.url)

    asyncio.run(main())


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/v1/chat/completions", {"messages": HELLO}, 200),
        ("/v1/chat/completions", {"messages": HELLO, "compare": True}, 200),
        ("/v1/chat/completions", {"messages": HELLO, "direct_model": "good"}, 200),
        ("/v1/chat/completions", {"messages": HELLO, "stream": True}, 200),
        ("/v1/chat/completions", {"messages": HELLO, "cost": 0}, 400),
        ("/v1/messages", {"messages": HELLO, "max_tokens": 9}, 200),
        ("/v1/messages", {"messages": HELLO, "max_tokens": 9, "stream": True}, 200),
        ("/v1/messages", {"messages": []}, 400),
        ("/v1/route", {"messages": HELLO, "cost": 2}, 200),
        ("/v1/feedback", {"request_id": "req-of-nobody", "thumbs": "up"}, 404),
    ],
)
def test_ordinary_requests_are_answered_as_described(
    tmp_path: Path, path: str, body: dict[str, Any], status: int
) -> None:
    def ask(url: str) -> None:
        (operation,) = (each for each in operations(url) if each.path == path)
        case = operation.Case(body=body, media_type="application/json")
        assert case.call_and_validate(headers=HEADERS, checks=CHECKS).status_code == status

    async def main() -> None:
        async with a_router(tmp_path) as router:
            await asyncio.to_thread(ask, router.url)

    asyncio.run(main())


def test_a_vote_and_models_are_answered_as_described(tmp_path: Path) -> None:
    def ask(url: str, request_id: str) -> None:
        known = {operation.path: operation for operation in operations(url)}
        vote = known["/v1/feedback"].Case(
            body={"request_id": request_id, "thumbs": "up"}, media_type="application/json"
        )
        cases = [vote, known["/v1/models"].Case(), known["/v1/models/{name}"].Case(path_parameters={"name": "auto"})]
        for case in cases:
            assert case.call_and_validate(headers=HEADERS, checks=CHECKS).status_code == 200

    async def main() -> None:
        async with a_router(tmp_path) as router:
            _, _, headers = await router.post("/v1/chat/completions", {"messages": HELLO})
            await asyncio.to_thread(ask, router.url, headers["x-request-id"])

    asyncio.run(main())
