"""Accounts come from the configuration, its ${VARIABLES} or the environment; each mistake names its cure."""

import re

import pytest

from p2l.common.errors import ConfigError
from route.providers.accounts import account_for, clients, expand, make_provider
from route.providers.base import Account, Fault
from route.providers.mock import TROUBLES
from route.providers.registry import ALIASES, PROVIDERS, spec_of
from tests.conftest import ROOT
from tests.route.providers.servers import run

KINDS = (
    "openai azure groq deepseek mistral deepinfra cerebras openrouter cohere huggingface ollama vllm anthropic gemini"
)
KINDS += " openai-reasoning openai-o1 openai-responses gemini-compatible azure-ai mock"


@pytest.mark.parametrize("kind", KINDS.split())
def test_every_provider_has_a_client(kind: str) -> None:
    account = account_for(kind, "a-key", "https://name.openai.azure.com" if kind == "azure" else None, {})
    assert account.api_key == "a-key"
    provider = make_provider(kind, account)
    run(provider.close())


def test_aliases_lead_to_providers() -> None:
    assert set(ALIASES.values()) <= set(PROVIDERS)
    assert spec_of("azure_openai") is spec_of("azure")
    assert spec_of(" Huggingface_API ") is spec_of("huggingface")


def test_a_key_comes_from_the_environment() -> None:
    account = account_for("gemini", None, None, {"GOOGLE_API_KEY": "second"})
    assert account.api_key == "second"
    both = {"GOOGLE_API_KEY": "second", "GEMINI_API_KEY": "first"}
    assert account_for("gemini", None, None, both).api_key == "first"
    assert account_for("gemini", "mine", None, both).api_key == "mine"


def test_a_key_names_a_variable() -> None:
    account = account_for("openai", "${TEAM_KEY}", "https://${HOST}/v1/", {"TEAM_KEY": " k1 ", "HOST": "gateway"})
    assert (account.api_key, account.base_url) == ("k1", "https://gateway/v1")
    with pytest.raises(ConfigError, match="environment variable TEAM_KEY is not set"):
        account_for("openai", "${TEAM_KEY}", None, {"OPENAI_API_KEY": "other"})
    assert expand("no variable: $HOME {x}", {}, "here") == "no variable: $HOME {x}"


def test_a_missing_key_names_its_variables() -> None:
    with pytest.raises(ConfigError, match=r"^groq: no API key: set GROQ_API_KEY, or write api_key"):
        account_for("groq", None, None, {"OPENAI_API_KEY": "another provider's"})
    with pytest.raises(ConfigError, match="GEMINI_API_KEY or GOOGLE_API_KEY"):
        account_for("gemini", None, None, {})


def test_a_key_of_the_environment_goes_to_its_provider_alone() -> None:
    env = {"OPENAI_API_KEY": "secret"}
    assert account_for("openai", None, "http://localhost:8000/v1", env).api_key is None
    assert account_for("openai", None, "https://api.openai.com/v1/", env).api_key == "secret"
    assert account_for("openai", None, None, env | {"OPENAI_BASE_URL": "https://proxy/v1"}).api_key == "secret"


@pytest.mark.parametrize("key", [" ", "a\nb", "schlüssel"])
def test_a_key_that_no_header_carries_is_refused_and_not_shown(key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        account_for("openai", key, None, {})
    assert "no HTTP header can carry" in str(caught.value)
    assert "schl" not in str(caught.value)


def test_azure_takes_its_address_and_version_from_the_environment() -> None:
    env = {"AZURE_OPENAI_API_KEY": "k", "AZURE_OPENAI_ENDPOINT": "https://name.openai.azure.com/"}
    account = account_for("azure", None, None, env)
    assert (account.base_url, account.options["api_version"]) == (
        "https://name.openai.azure.com",
        "2024-08-01-preview",
    )
    later = env | {"AZURE_OPENAI_API_VERSION": "2025-01-01"}
    assert account_for("azure", None, None, later).options["api_version"] == "2025-01-01"
    assert account_for("azure", None, None, later, {"api_version": "v"}).options["api_version"] == "v"
    with pytest.raises(
        ConfigError, match="no address: write base_url in the configuration or set AZURE_OPENAI_ENDPOINT"
    ):
        account_for("azure", "k", None, {})


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("box:11434", "http://box:11434/v1"),
        ("http://box:1/", "http://box:1/v1"),
        ("http://box/api/v1", "http://box/api/v1"),
        ("", "http://localhost:11434/v1"),
    ],
)
def test_ollama_is_where_its_variable_says(host: str, url: str) -> None:
    account = account_for("ollama", None, None, {"OLLAMA_HOST": host})
    assert (account.base_url, account.api_key) == (url, None)


@pytest.mark.parametrize(
    "url", ["ftp://host/v1", "https://", "http:///v1", "http://host:port", "http://host:99999", "http://[x/v1"]
)
def test_an_address_has_to_be_one(url: str) -> None:
    with pytest.raises(ConfigError, match="not an http or https address"):
        account_for("openai", "k", url, {})


def test_an_unknown_provider_gets_a_hint() -> None:
    with pytest.raises(ConfigError, match=r"there is no provider 'antropic' .did you mean 'anthropic'"):
        account_for("antropic", "k", None, {})
    with pytest.raises(ConfigError, match="openai with a base_url"):
        make_provider("pigeon", Account("http://host"))


def test_an_unknown_option_gets_a_hint() -> None:
    with pytest.raises(ConfigError, match=r"azure: options: 'api_versoin' is not known .did you mean 'api_version'"):
        make_provider("azure", Account("http://host", options={"api_versoin": "1"}))
    with pytest.raises(ConfigError, match="'zzz' is not known; there are max_tokens, omit"):
        make_provider("anthropic", Account("http://host", options={"zzz": "1"}))


@pytest.mark.parametrize("omit", [5, {"temperature": True}, [["temperature"]]])
def test_fields_to_leave_out_are_names(omit: object) -> None:
    with pytest.raises(ConfigError, match="options: omit must be a list of names of fields"):
        make_provider("openai", Account("http://host", options={"omit": omit}))


def test_an_account_does_not_show_its_key() -> None:
    account = account_for("openrouter", "sk-secret", None, {})
    assert "sk-secret" not in repr(account)
    assert account.headers["X-Title"]


def test_a_password_in_the_address_is_refused_and_not_shown() -> None:
    with pytest.raises(ConfigError, match="write the key as api_key") as caught:
        account_for("openai", "k", "https://user:hunter2@host/v1", {})
    assert "hunter2" not in str(caught.value)


def test_an_unknown_dialect_gets_a_hint() -> None:
    with pytest.raises(ConfigError, match=r"dialect 'clasic' is unknown .did you mean 'classic'"):
        make_provider("openai", Account("http://host", options={"dialect": "clasic"}))


def test_the_documentation_has_every_provider_option_and_trouble() -> None:
    page = (ROOT / "docs" / "route" / "providers.md").read_text(encoding="utf-8")
    types = page.partition("## Types")[2].partition("\n## ")[0]
    rows = dict(re.findall(r"^\| `([\w-]+)` \|(.*)\|$", types, re.MULTILINE))
    assert set(rows) == set(PROVIDERS)
    for kind, spec in PROVIDERS.items():
        assert all(f"`{name}`" in rows[kind] for name in spec.key_variables), kind
        assert spec.base_url is None or kind == "mock" or f"`{spec.base_url}`" in rows[kind], kind
    options = {option for name, (_, own) in clients().items() if name != "mock" for option in own}
    assert options == set(re.findall(r"^\| `(\w+)` \|", page.partition("## Options")[2].partition("\n## ")[0], re.M))
    faults = page.partition("## Errors")[2].partition("\n## ")[0]
    assert [fault.value for fault in Fault] == re.findall(r"^\| `(\w+)` \|", faults, re.MULTILINE)
    assert all(f"`{trouble}" in page for trouble in TROUBLES)
