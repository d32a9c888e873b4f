"""The providers, each declared once: the router, CoEval, its price list and the documentation's tests read this table.

To add one that speaks OpenAI's protocol, add a `ProviderSpec` to `_SPECS`; its prices go into `coeval/prices.yaml`
under its `interface`. Any other such service is `openai` with a `base_url`. Another protocol also needs a client: a
file here, and its line in `accounts.clients`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from p2l.common.cli import nearest
from p2l.common.errors import ConfigError


class ModelList(NamedTuple):
    """Where a provider lists its models, seen from its base URL."""

    strip: str = ""
    """End of the base URL that the path replaces."""
    path: str = "/models"
    query: str = ""
    """For one page that holds all of them."""
    key_check: str | None = None
    """An address that needs the key, for a list that is open to everybody."""


_USUAL_LIST = ModelList()
OWN_MACHINE = (10.0, 15.0)
"""Speed of a model on the user's own machine."""


@dataclass(frozen=True)
class ProviderSpec:
    """One provider, or one way to talk to it."""

    name: str
    """The `type` in the router's configuration; an underscore is read as a hyphen."""
    protocol: str
    """The client that talks to it (`accounts.clients`); empty where nothing is asked over HTTP."""
    base_url: str | None = None
    """None where every user has an address of their own; `{region}` or `{location}` stands for that option."""
    key_variables: tuple[str, ...] = ()
    """Environment variables with the key; the first that is set wins."""
    url_variables: tuple[str, ...] = ()
    """Environment variables with the address."""
    needs_key: bool = True
    headers: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, object] = field(default_factory=dict)
    """Of the client, below those of the configuration."""
    option_variables: Mapping[str, str] = field(default_factory=dict)
    """Environment variables with options, the first that is set of several."""
    models: ModelList = _USUAL_LIST
    # From here on for CoEval.
    interface: str | None = None
    """The `interface` in CoEval's configuration and the section of its prices; None where it has none."""
    key_fields: tuple[str, ...] = ("api_key", "base_url")
    """Fields that its entry of a key file may hold."""
    batch_discount: float | None = None
    """Price of a call in a batch job, as a share of a single one's; None: no batch jobs are sent there."""
    batch_options: tuple[str, ...] = ()
    """Options that its batch jobs need, of a model or of the key file."""
    is_free: bool = False
    speed: tuple[float, float] = (1.5, 80)
    """Usual seconds of a short answer and tokens a second, until they are measured."""
    max_tokens: int | None = None
    """Tokens of an answer where CoEval's configuration sets no limit and the protocol requires one."""
    top_logprobs: int = 20
    """Most alternatives of a token whose log-probabilities it returns; 0: it returns none."""
    names_model: bool = True
    """Whether its answers say which model gave them."""
    answers_as: Literal["schema", "tool"] = "schema"
    """How an answer of a given form is asked for: `response_format` with a JSON schema, or a tool to be called."""
    has_openai_models: bool = False
    """Whether names such as `o3` and `gpt-5` are OpenAI's reasoning models there, which refuse sampling parameters."""


_OPENAI = "https://api.openai.com/v1"
_OPENAI_KEY = ("OPENAI_API_KEY",)
_OPENAI_URL = ("OPENAI_BASE_URL",)
_GEMINI = "https://generativelanguage.googleapis.com/v1beta"
_GEMINI_KEY = ("GEMINI_API_KEY", "GOOGLE_API_KEY")
_CLASSIC: Mapping[str, object] = {"dialect": "classic"}
# The service may have the Responses API; where it answers 404 there, chat completions are asked for.
_RESPONSES: Mapping[str, object] = {"responses": True}
# The text may begin with thoughts where the server has no parser for those of its model.
_THINK_TAGS: Mapping[str, object] = {"think_tags": True}


def _compatible(name: str, base_url: str, *key_variables: str, **more: Any) -> ProviderSpec:
    """Return a provider of OpenAI's protocol; CoEval calls it by the same name unless `more` has another."""
    return ProviderSpec(name, "openai", base_url, key_variables, **{"interface": name, **more})


_SPECS = (
    ProviderSpec(
        "openai",
        protocol="openai",
        base_url=_OPENAI,
        key_variables=_OPENAI_KEY,
        url_variables=_OPENAI_URL,
        options=_RESPONSES,
        interface="openai",
        batch_discount=0.5,
        has_openai_models=True,
    ),
    ProviderSpec("openai-reasoning", "openai-reasoning", _OPENAI, _OPENAI_KEY, _OPENAI_URL, options=_RESPONSES),
    ProviderSpec("openai-responses", "openai-responses", _OPENAI, _OPENAI_KEY, _OPENAI_URL, options=_RESPONSES),
    ProviderSpec("openai-o1", "openai-o1", _OPENAI, _OPENAI_KEY, _OPENAI_URL),
    ProviderSpec(
        "anthropic",
        protocol="anthropic",
        base_url="https://api.anthropic.com",
        key_variables=("ANTHROPIC_API_KEY",),
        url_variables=("ANTHROPIC_BASE_URL",),
        models=ModelList("/v1", "/v1/models", "?limit=1000"),
        interface="anthropic",
        batch_discount=0.5,
        speed=(2.0, 60),
        max_tokens=1024,
        top_logprobs=0,
    ),
    ProviderSpec(
        "gemini",
        protocol="gemini",
        base_url=_GEMINI,
        key_variables=_GEMINI_KEY,
        models=ModelList(query="?pageSize=1000"),
        interface="gemini",
        batch_discount=0.5,
        speed=(2.0, 100),
        top_logprobs=0,
    ),
    ProviderSpec(
        "gemini-compatible",
        protocol="openai",
        base_url=f"{_GEMINI}/openai",
        key_variables=_GEMINI_KEY,
        options={"keep": ("extra_content",)},
    ),
    ProviderSpec(
        "azure",
        protocol="azure",
        key_variables=("AZURE_OPENAI_API_KEY",),
        url_variables=("AZURE_OPENAI_ENDPOINT",),
        options={"api_version": "2024-08-01-preview", **_RESPONSES},
        option_variables={"api_version": "AZURE_OPENAI_API_VERSION"},
        interface="azure_openai",
        key_fields=("api_key", "endpoint", "api_version"),
        batch_discount=0.5,
        speed=(2.0, 70),
        has_openai_models=True,
    ),
    _compatible(
        "azure-ai",
        "https://models.inference.ai.azure.com",
        "AZURE_AI_API_KEY",
        "GITHUB_TOKEN",
        interface="azure_ai",
        key_fields=("api_key", "endpoint"),
        speed=(2.0, 70),
        has_openai_models=True,
    ),
    _compatible(
        "openrouter",
        "https://openrouter.ai/api/v1",
        "OPENROUTER_API_KEY",
        headers={"HTTP-Referer": "http://localhost", "X-Title": "P2L"},
        options={
            "keep": ("reasoning", "reasoning_details", "extra_content"),
            "record": "generation",
            **_RESPONSES,
        },
        models=ModelList(key_check="https://openrouter.ai/api/v1/key"),
        speed=(2.5, 60),
        has_openai_models=True,
    ),
    _compatible("groq", "https://api.groq.com/openai/v1", "GROQ_API_KEY", options=_RESPONSES, speed=(0.3, 500)),
    _compatible(
        "deepseek",
        "https://api.deepseek.com/v1",
        "DEEPSEEK_API_KEY",
        options={**_CLASSIC, "keep": ("reasoning_content",)},
        answers_as="tool",
    ),
    _compatible(
        "moonshot",
        "https://api.moonshot.ai/v1",
        "MOONSHOT_API_KEY",
        # Its thinking models want the thoughts before a call of a tool back.
        options={**_CLASSIC, "keep": ("reasoning_content",)},
        interface=None,
    ),
    _compatible(
        "mistral",
        "https://api.mistral.ai/v1",
        "MISTRAL_API_KEY",
        # It refuses unknown fields, this one too; its streams carry the usage without it.
        options={**_CLASSIC, "omit": ("stream_options",), "tool_ids": "nine"},
    ),
    _compatible("deepinfra", "https://api.deepinfra.com/v1/openai", "DEEPINFRA_API_KEY", options=_CLASSIC),
    _compatible("cerebras", "https://api.cerebras.ai/v1", "CEREBRAS_API_KEY", speed=(1.5, 1000)),
    ProviderSpec(
        "cohere",
        protocol="cohere",
        base_url="https://api.cohere.com",
        key_variables=("COHERE_API_KEY",),
        models=ModelList("/compatibility/v1", "/v1/models", "?page_size=1000"),
        interface="cohere",
        speed=(2.0, 70),
        top_logprobs=0,
        names_model=False,
    ),
    _compatible(
        "huggingface",
        "https://router.huggingface.co/v1",
        "HF_TOKEN",
        "HUGGINGFACE_HUB_TOKEN",
        options=_CLASSIC,
        models=ModelList(key_check="https://huggingface.co/api/whoami-v2"),
        interface="huggingface_api",  # CoEval's `huggingface` runs models in its own process
        key_fields=("api_key", "token", "base_url"),
        speed=(2.0, 60),
    ),
    _compatible("together", "https://api.together.xyz/v1", "TOGETHER_API_KEY", options=_CLASSIC),
    _compatible("fireworks", "https://api.fireworks.ai/inference/v1", "FIREWORKS_API_KEY", top_logprobs=5),
    _compatible("xai", "https://api.x.ai/v1", "XAI_API_KEY", options=_RESPONSES, top_logprobs=8),
    _compatible(
        "ollama",
        "http://localhost:11434/v1",
        url_variables=("OLLAMA_HOST",),
        needs_key=False,
        options={**_CLASSIC, **_RESPONSES, **_THINK_TAGS},
        is_free=True,
        speed=OWN_MACHINE,
    ),
    _compatible(
        "vllm",
        "http://localhost:8000/v1",
        "VLLM_API_KEY",
        needs_key=False,
        options={**_RESPONSES, **_THINK_TAGS, "dialect": "open"},
        is_free=True,
        speed=OWN_MACHINE,
    ),
    _compatible(
        "sglang",
        "http://localhost:30000/v1",
        needs_key=False,
        options={**_THINK_TAGS, "dialect": "open"},
        interface=None,
    ),
    _compatible(
        "llama-cpp",
        "http://localhost:8080/v1",
        "LLAMA_API_KEY",
        needs_key=False,
        options={**_CLASSIC, **_THINK_TAGS},
        interface=None,
    ),
    ProviderSpec(
        "bedrock",
        protocol="bedrock",
        base_url="https://bedrock-runtime.{region}.amazonaws.com",
        key_variables=("AWS_BEARER_TOKEN_BEDROCK",),
        needs_key=False,
        options={"region": "us-east-1"},
        option_variables={
            "region": "AWS_REGION AWS_DEFAULT_REGION",
            "access_key_id": "AWS_ACCESS_KEY_ID",
            "secret_access_key": "AWS_SECRET_ACCESS_KEY",
            "session_token": "AWS_SESSION_TOKEN",
        },
        models=ModelList(path="/foundation-models"),
        interface="bedrock",
        key_fields=("api_key", "access_key_id", "secret_access_key", "session_token", "region", "base_url"),
        batch_discount=0.5,
        batch_options=("batch_s3_bucket", "batch_s3_prefix", "batch_role_arn"),
        speed=(2.0, 70),
        max_tokens=1024,
        top_logprobs=0,
        answers_as="tool",
        names_model=False,
    ),
    ProviderSpec(
        "vertex",
        protocol="vertex",
        base_url="https://{location}-aiplatform.googleapis.com",
        key_variables=("GOOGLE_VERTEX_API_KEY",),
        needs_key=False,
        options={"location": "us-central1"},
        option_variables={
            "project": "GOOGLE_CLOUD_PROJECT GCLOUD_PROJECT",
            "location": "GOOGLE_CLOUD_LOCATION",
            "service_account_key": "",  # google-auth itself reads GOOGLE_APPLICATION_CREDENTIALS
        },
        models=ModelList(path="/v1beta1/publishers/google/models"),
        interface="vertex",
        key_fields=("project", "location", "service_account_key", "api_key", "base_url"),
        batch_discount=0.5,
        batch_options=("batch_gcs_bucket", "batch_gcs_prefix"),
        speed=(2.0, 100),
        top_logprobs=0,
    ),
    ProviderSpec("mock", "mock", "http://mock", needs_key=False, interface="mock", is_free=True, speed=(0.001, 1e6)),
)
PROVIDERS: Mapping[str, ProviderSpec] = {spec.name: spec for spec in _SPECS}
"""By the name in the router's configuration."""
ALIASES: Mapping[str, str] = {
    "azure-openai": "azure",
    "huggingface-api": "huggingface",
    "openai-compatible": "openai",
}
"""Other spellings."""


def spec_of(name: str) -> ProviderSpec:
    """Return the entry of a provider by its name or another spelling of it. Raise ConfigError if there is none."""
    key = name.strip().lower().replace("_", "-")
    key = ALIASES.get(key, key)
    if key not in PROVIDERS:
        raise ConfigError(
            f"type: there is no provider {name!r}{nearest(key, PROVIDERS)}; choose from {', '.join(PROVIDERS)}, "
            "or openai with a base_url for any other service that speaks OpenAI's protocol"
        )
    return PROVIDERS[key]
