"""Which models an account can reach: every provider's list in its own shape, at its own address."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from p2l.common.errors import ConfigError
from route.providers.base import Account, Fault, ProviderError, Timeouts
from route.providers.files import Catalogue
from tests.route.providers.lists import Lists, serving

PATIENCE = Timeouts(connect=5, first_token=5, stall=5, total=5)


@pytest.fixture
def lists() -> Iterator[Lists]:
    with serving() as made:
        yield made


def models(kind: str, base_url: str, **options: Any) -> list[str]:
    async def ask() -> list[str]:
        catalogue = Catalogue(kind, Account(base_url, "the-key", options=options))
        try:
            return await catalogue.models(PATIENCE)
        finally:
            await catalogue.close()

    return asyncio.run(ask())


@pytest.mark.parametrize(
    ("kind", "base", "address", "document", "header"),
    [
        ("openai", "/v1", "/v1/models", {"data": [{"id": "b"}, {"id": "a"}]}, "authorization"),
        ("groq", "/openai/v1", "/openai/v1/models", {"data": [{"id": "b"}, {"id": "a"}]}, "authorization"),
        ("together", "/v1", "/v1/models", [{"id": "a"}, {"id": "b"}], "authorization"),
        ("azure-ai", "", "/models", [{"name": "a"}, {"name": "b"}], "authorization"),
        ("anthropic", "", "/v1/models?limit=1000", {"data": [{"id": "a"}, {"id": "b"}]}, "x-api-key"),
        (
            "gemini",
            "/v1beta",
            "/v1beta/models?pageSize=1000",
            {"models": [{"name": "models/a"}, {"name": "models/b"}]},
            "x-goog-api-key",
        ),
        (
            "cohere",
            "/compatibility/v1",
            "/v1/models?page_size=1000",
            {"models": [{"name": "a"}, {"name": "b"}]},
            "authorization",
        ),
        ("azure", "", "/openai/models?api-version=v1", {"data": [{"id": "a"}, {"id": "b"}]}, "api-key"),
    ],
)
def test_each_provider_is_asked_in_its_own_way(
    lists: Lists, kind: str, base: str, address: str, document: Any, header: str
) -> None:
    lists.documents[address] = document
    options = {"api_version": "v1"} if kind == "azure" else {}
    assert models(kind, lists.url + base, **options) == ["a", "b"]
    [(path, headers)] = lists.asked
    assert path == address
    assert headers[header].endswith("the-key")


def test_a_model_that_is_not_listed_may_be_there_by_another_name(lists: Lists) -> None:
    lists.documents["/v1/models/alias"] = {"id": "a-2024"}

    async def ask(name: str) -> bool:
        catalogue = Catalogue("openai", Account(f"{lists.url}/v1"))
        try:
            return await catalogue.has(name, PATIENCE)
        finally:
            await catalogue.close()

    assert asyncio.run(ask("alias"))
    assert not asyncio.run(ask("none"))


@pytest.mark.parametrize("document", [{"data": "x"}, {"other": []}, [5], b"no json", 7])
def test_what_is_no_list_is_no_provider(lists: Lists, document: Any) -> None:
    lists.documents["/v1/models"] = document
    with pytest.raises(ProviderError) as caught:
        models("openai", f"{lists.url}/v1")
    assert caught.value.fault is Fault.MALFORMED


def test_the_mock_in_this_process_has_no_list() -> None:
    with pytest.raises(ConfigError, match="lists no models"):
        Catalogue("mock", Account("http://mock"))
