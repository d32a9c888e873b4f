"""Fields that command a provider: they pass where the configuration lists them, and are dropped and named elsewhere."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from route.request.fields import header_of, passed
from tests.route.router_helpers import HELLO, a_router

COMMANDS = {
    "api_base": "http://127.0.0.1:9",
    "base_url": "http://127.0.0.1:9",
    "api_key": "another",
    "extra_headers": {"authorization": "Bearer another"},
    "store": True,
    "metadata": {"a": "b"},
    "fallbacks": ["dear"],
    "models": ["dear"],
    "route": "fallback",
    "preset": "dear",
    "max_output_tokens": 10**6,
    "generationConfig": {"maxOutputTokens": 10**6},
    "best_of": 64,
}
FUNCTION = {"type": "function", "function": {"name": "look"}}


def run(main: Any) -> None:
    asyncio.run(main())


def test_fields_that_command_the_provider_are_dropped_and_named(tmp_path: Path) -> None:
    async def main() -> None:
        async with a_router(tmp_path) as router:
            for stream in (False, True):
                raw = await router.client.chat.completions.with_raw_response.create(
                    model="-", messages=HELLO, stream=stream, extra_body=COMMANDS
                )
                assert raw.headers["x-p2l-dropped-fields"].split(", ") == list(COMMANDS)
                assert not COMMANDS.keys() & router.last("good").keys()
            raw = await router.client.chat.completions.with_raw_response.create(model="-", messages=HELLO, top_p=0.5)
            assert "x-p2l-dropped-fields" not in raw.headers

    run(main)


def test_listed_fields_pass_to_the_models_they_are_listed_for(tmp_path: Path) -> None:
    async def main() -> None:
        models = {"good": {"pass_fields": ["metadata", "tools.googleSearch"]}}
        body = {"messages": HELLO, "store": False, "metadata": {"a": "b"}, "models": [], "cost": 3}
        tools = [FUNCTION, {"googleSearch": {}}, {"urlContext": {}}]
        async with a_router(tmp_path, models, pass_fields=["store"]) as router:
            _, _, headers = await router.post("/v1/chat/completions", body | {"tools": tools})
            sent = router.last("good")
            assert (sent["store"], sent["metadata"], sent["tools"]) == (False, {"a": "b"}, tools[:2])
            assert headers["x-p2l-dropped-fields"] == "models, tools.urlContext"
            _, _, headers = await router.post("/v1/chat/completions", body | {"tools": tools[1:], "cost": 2})
            sent = router.last("fair")
            assert sent["store"] is False
            assert not {"metadata", "tools"} & sent.keys()
            dropped = "metadata, models, tools.googleSearch, tools.urlContext"
            assert headers["x-p2l-dropped-fields"] == dropped

    run(main)


def test_what_a_chat_provider_publishes_passes_whole(tmp_path: Path) -> None:
    async def main() -> None:
        body = {"messages": HELLO, "service_tier": "flex", "provider": {"order": ["x"]}, "reasoning_format": "parsed"}
        body |= {"prompt_cache_key": "k", "tools": [{"type": "web_search"}], "tool_choice": "auto"}
        async with a_router(tmp_path) as router:
            _, _, headers = await router.post("/v1/chat/completions", body)
            assert "x-p2l-dropped-fields" not in headers
            assert {name: router.last("good")[name] for name in body} == body

    run(main)


def test_a_listed_setting_of_the_configuration_is_not_the_clients_to_change(tmp_path: Path) -> None:
    async def main() -> None:
        async with a_router(tmp_path, {"good": {"extra_fields": {"service_tier": "flex"}}}) as router:
            await router.ask(extra_body={"service_tier": "priority"})
            assert router.last("good")["service_tier"] == "flex"

    run(main)


def test_hints_of_another_protocol_are_named_too(tmp_path: Path) -> None:
    async def main() -> None:
        async with a_router(tmp_path) as router:
            body = {"messages": HELLO, "max_tokens": 9, "service_tier": "auto", "container": None, "unheard": 1}
            _, _, headers = await router.post("/v1/messages", body)
            assert headers["x-p2l-dropped-fields"].split(", ") == ["service_tier", "container", "unheard"]

    run(main)


@given(st.lists(st.text(), max_size=40))
def test_whatever_a_field_is_called_its_name_fits_a_header(names: list[str]) -> None:
    text = header_of(names)
    assert text.isascii()
    assert text.isprintable()
    assert len(text) < 20_000
    assert len(text.split(", ")) <= 21


@pytest.mark.parametrize(
    "tool", [{"type": ["x"]}, {}, {"type": None}, {"": 1}, {"type": {}}, {"type": "custom", "googleSearch": {}}]
)
def test_malformed_tools_are_nobodys_functions(tool: dict[str, Any]) -> None:
    fields, dropped = passed({"tools": [tool, FUNCTION]}, ())
    assert fields == {"tools": [FUNCTION]}
    assert len(dropped) == 1


@pytest.mark.parametrize(
    ("tools", "place"),
    [
        ("look", "tools"),
        ([None], "tools[0]"),
        ([FUNCTION, {**FUNCTION, "type": {}}], "tools[1].type"),
        ([{"type": "function"}], "tools[0].function"),
        ([{"function": "look"}], "tools[0].function"),
        ([{}], "tools[0].function"),
    ],
)
def test_a_malformed_tool_is_refused_and_not_dropped(tmp_path: Path, tools: Any, place: str) -> None:
    async def main() -> None:
        async with a_router(tmp_path) as router:
            status, told, _ = await router.post("/v1/chat/completions", {"messages": HELLO, "tools": tools})
            assert (status, told["error"]["param"]) == (400, place)
            assert not router.mocks["good"].bodies

    run(main)


@pytest.mark.parametrize("choice", ["required", "auto"])
def test_a_choice_among_tools_that_are_dropped_is_named_with_them(tmp_path: Path, choice: str) -> None:
    async def main() -> None:
        async with a_router(tmp_path, {"good": {"type": "gemini"}}) as router:
            body = {
                "messages": HELLO,
                "tools": [{"type": "web_search"}],
                "tool_choice": choice,
                "direct_model": "good",
            }
            _, _, headers = await router.post("/v1/chat/completions", body)
            assert headers["x-p2l-dropped-fields"] == "tools.web_search, tool_choice"

    run(main)
