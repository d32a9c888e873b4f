"""The router's configuration: one YAML file, validated before a port is opened.

A mistake is reported in one line that begins with the file and the number of the line to fix.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import Field, ValidationError, ValidationInfo, field_validator, model_validator
from pydantic.functional_validators import AfterValidator

from p2l.common.access import digest_of, matches, weakness_of
from p2l.common.cli import nearest
from p2l.common.config import Number, Whole, line_of, owner_of, read_yaml
from p2l.common.errors import ConfigError
from route.catalogue import LACKING_TYPES, entry_of
from route.efforts import arms_of
from route.keep.accounts import BUDGET, TEAM
from route.keep.location import located, location_in
from route.key_config import (
    Above,
    Amount,
    AnswerCacheConfig,
    ArenaConfig,
    BudgetConfig,
    GuardConfig,
    HookConfig,
    KeyConfig,
    Section,
    TeamConfig,
    key_in,
)
from route.providers.base import Timeouts
from route.providers.usage import Rates, TokenCounts
from route.routing.decision import Limit, RoutedModel
from route.routing.experiments import ExperimentConfig, ShadowConfig, mistake_in, policies_in

ROUTER_NAME = "p2l-router"
"""The router's own name in GET /v1/models."""
ROUTER_ALIAS = "auto"
"""Its other name."""
SERVED = {
    "completions": ("completions",),
    "embeddings": ("embeddings",),
    "moderations": ("moderations",),
    "images": ("images/generations", "images/edits", "images/variations"),
    "speech": ("audio/speech",),
    "transcriptions": ("audio/transcriptions", "audio/translations"),
}
"""Endpoints beside chat completions by what a model states in `serves`: their paths below /v1."""
Served: TypeAlias = Literal["chat", "completions", "embeddings", "moderations", "images", "speech", "transcriptions"]
"""What a model may state in `serves`."""
Feature: TypeAlias = Literal[
    "images", "audio", "files", "video", "audio_output", "image_output",
    "tools", "parallel_tools", "json_schema", "logprobs", "n", "reasoning",
]  # fmt: skip
"""What a model may state in `capabilities`: `route.routing.decision.FEATURES`."""
_SECRET = (
    *("key", "api_key", "keys", "admin_key", "deployments", "database", "limits", "shared_limits", "p2l_api_key"),
    "where",
)
_RESERVED = {"messages", "model", "stream"}
_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^\s/?#@]+")


def _checked_url(url: str | None) -> str | None:
    if url is not None and not url.startswith(("http://", "https://", "${")):
        raise ValueError("must begin with http:// or https://")
    return url


_Url = Annotated[str | None, AfterValidator(_checked_url)]


class Price(Section):
    """A provider's price per million tokens, in the unit of the costs."""

    input: Amount
    output: Amount
    cached: Amount | None = None
    """Of input tokens that are in the provider's prompt cache; without it conversations move freely between turns."""
    cache_write: Amount | None = None
    """Of input tokens that are written to the cache for five minutes; by default 1.25 times `input`."""
    cache_write_1h: Amount | None = None
    """Of input tokens that are written to the cache for an hour; by default twice `input`."""
    audio_input: Amount | None = None
    audio_output: Amount | None = None
    web_searches: Amount = 0.0
    """Of a thousand searches that the provider makes for an answer."""
    tiers: dict[str, Amount] = Field(default_factory=dict)
    """By the service tier that the provider names, such as `flex` or `priority`: what its answers cost of these."""

    def rates(self) -> Rates:
        """Return these prices."""
        return Rates(
            input=self.input,
            output=self.output,
            cached=self.cached,
            written=self.cache_write,
            written_for_hour=self.cache_write_1h,
            heard=self.audio_input,
            spoken=self.audio_output,
            searches=self.web_searches,
        )

    def cost(self, usage: TokenCounts) -> float:
        """Return what an answer costs by its tokens."""
        return self.rates().cost(usage) * self.tiers.get(usage.tier, 1.0)


class DeploymentConfig(Section):
    """One place where a model can be asked, or one key of it; what it leaves out is that of the model."""

    name: str | None = Field(default=None, min_length=1)
    type: str | None = None
    api_key: str | None = Field(default=None, repr=False)
    """Without it that of the model, unless type or address differ from the model's."""
    base_url: _Url = None
    options: dict[str, Any] | None = None
    weight: Above = 1.0
    """Its share of the requests, relative to the others."""
    max_in_flight: Annotated[Whole, Field(ge=1)] | None = None
    """Requests that each worker has under way there at once."""
    requests_per_minute: Annotated[Whole, Field(ge=1)] | None = None
    """Of all workers together, in equal shares."""
    tokens_per_minute: Annotated[Whole, Field(ge=1)] | None = None
    """Of prompts and answers; shared likewise."""


class ModelConfig(Section):
    """One model that requests can go to."""

    name: str = Field(min_length=1)
    """The model's name at the provider."""
    type: str
    """The kind of provider; `openai` with a `base_url` for any compatible service."""
    api_key: str | None = Field(default=None, repr=False)
    """The key, or `${VARIABLE}`; without it the provider's usual environment variable."""
    base_url: _Url = None
    options: dict[str, Any] = Field(default_factory=dict)
    """Further settings of one kind of provider: `api_version` of azure, the script of a mock."""
    cost: Amount
    """Of an average answer, in the unit of the budgets."""
    price: Price | None = None
    """With it, spend is counted from tokens, not from `cost`."""
    reported_cost: bool = False
    """Whether the provider's answers say what they cost (`usage.cost`), and that is booked."""
    temp: Annotated[Number, Field(ge=0)] | None = None
    top_p: Annotated[Number, Field(gt=0, le=1)] | None = None
    top_k: Annotated[Whole, Field(ge=1)] | None = None
    max_tokens: Annotated[Whole, Field(ge=1)] | None = None
    system_prompt: str | None = None
    extra_fields: dict[str, Any] = Field(default_factory=dict)
    """Further fields of every request to this model; those that pass from a client override them."""
    pass_fields: list[str] = Field(default_factory=list)
    """Fields that clients may send to this model, beside the plain ones and those of the whole configuration."""
    longest_answer: Annotated[Whole, Field(ge=1)] | None = None
    """Tokens of the longest answer that this model can give; the worst case of requests that name no limit."""
    context_window: Annotated[Whole, Field(ge=1)] | None = None
    """Tokens; longer prompts go elsewhere."""
    capabilities: dict[Feature, bool] = Field(default_factory=dict)
    """Features that it has or lacks; the rest is that of the catalogue, and possible where that does not know it."""
    catalogue: bool | str = True
    """Whether it inherits from the catalogue, or `SECTION/NAME` of the entry there that it inherits from."""
    prior_coef: Number | None = None
    """Makes a model routable that P2L does not know."""
    provider: str | None = None
    """The provider that limits such as `share:openai` count it to; by default its type."""
    latency: Amount | None = None
    """Seconds of an average answer; a shorthand for `amounts: {latency: ...}`."""
    amounts: dict[str, Amount] = Field(default_factory=dict)
    """Of further limited quantities."""
    served_as: list[str] = Field(default_factory=list)
    """Further names under which its provider may answer for it, such as `gpt-4o*`; `*` for any."""
    version: str | None = None
    """Stored with feedback, to identify what was voted on."""
    serves: Annotated[list[Served], Field(min_length=1)] = ["chat"]  # noqa: RUF012 - pydantic copies it
    """The endpoints that it has: requests are routed to models with `chat`, others reach a model by its name."""
    deployments: dict[str, DeploymentConfig] = Field(default_factory=dict)
    """Where it can be asked, by a name for logs; by default at one place, with the settings above."""
    balance: Literal["weight", "in_flight", "latency"] = "weight"
    """How one of the deployments is chosen: by weight, by the fewest requests under way, or by the lowest latency."""

    @model_validator(mode="before")
    @classmethod
    def _with_listed_price(cls, data: Any) -> Any:
        """Take the price of the catalogue where the model says `price: listed`, and check that it is listed there."""
        if not isinstance(data, dict) or (data.get("price") != "listed" and not isinstance(data.get("catalogue"), str)):
            return data
        try:
            reference = data.get("catalogue", True)
            entry = entry_of(str(data.get("type")), str(data.get("name")), data.get("base_url"), reference)
        except ConfigError as error:
            raise ValueError(str(error)) from None
        if data.get("price") != "listed":
            return data
        if entry is None or entry.input is None or entry.output is None:
            raise ValueError("price: the catalogue has none for this model; write {input: ..., output: ...}")
        return data | {"price": {"input": entry.input, "output": entry.output, "cached": entry.cached}}

    @field_validator("deployments")
    @classmethod
    def _has_one(cls, deployments: dict[str, DeploymentConfig]) -> dict[str, DeploymentConfig]:
        if not deployments:
            raise ValueError("has none; add one by its name, or leave the key out")
        return deployments

    @field_validator("extra_fields")
    @classmethod
    def _is_json(cls, fields: dict[str, Any]) -> dict[str, Any]:
        try:
            json.dumps(fields, allow_nan=False)
        except (TypeError, ValueError, RecursionError):
            raise ValueError("must be what JSON can say; put dates in quotes") from None
        reserved = _RESERVED & set(fields)
        if reserved:
            raise ValueError(f"cannot set {', '.join(sorted(reserved))}, which the router sets itself")
        return fields

    def places(self) -> dict[str, tuple[ModelConfig, DeploymentConfig]]:
        """Return this model as each deployment has it, and the limits of that; one where none is configured."""
        if not self.deployments:
            return {"": (self, DeploymentConfig())}
        return {label: (self._at(place), place) for label, place in self.deployments.items()}

    def _at(self, place: DeploymentConfig) -> ModelConfig:
        changes: dict[str, Any] = {"name": place.name or self.name, "options": place.options or self.options}
        if place.type is not None or place.base_url is not None:
            # A key goes to the address that it was written beside, and nowhere else.
            changes |= {"type": place.type or self.type, "base_url": place.base_url, "api_key": None}
            if place.type is not None:
                changes["options"] = place.options or {}
        if place.api_key is not None:
            changes["api_key"] = place.api_key
        return self.model_copy(update=changes)

    @property
    def is_bound(self) -> bool:
        """Return whether the configuration bounds what an answer can cost."""
        return self.price is None or bool(self.longest_answer or self.max_tokens)

    def routed(self, key: str) -> RoutedModel:
        """Return the model as routing needs it; `key` is its name in the configuration."""
        latency = {} if self.latency is None else {"latency": self.latency}
        entry = entry_of(self.type, self.name, self.base_url, self.catalogue)
        doubts = {*(entry.lacks if entry else ()), *LACKING_TYPES.get(self.type, ())} - self.capabilities.keys()
        return RoutedModel(
            name=key,
            cost=self.cost,
            provider=self.provider or self.type,
            context_window=self.context_window,
            prior_coef=self.prior_coef,
            amounts={**latency, **self.amounts},
            price=None if self.price is None else (self.price.input, self.price.output),
            lacks=tuple(feature for feature, has in self.capabilities.items() if not has),
            doubts=tuple(sorted(doubts)),
            longest_answer=self.longest_answer or (entry.longest if entry else None),
            listed_window=entry.window if entry else None,
        )


class TimeoutsConfig(Section):
    """Seconds a provider may take."""

    connect: Above = 5.0
    first_token: Above = 60.0
    """Of a stream."""
    answer: Above = 300.0
    """The whole of it, without streaming."""
    stall: Above = 30.0
    total: Above = 600.0
    """Of the whole request, all attempts included."""
    ping: Above = 10.0
    """Of silence, after which the client of a stream gets a sign of life."""

    def of_attempt(self, left: float, max_bytes: int, *, stream: bool) -> Timeouts:
        """Return the limits of one attempt when `left` seconds of the request are left."""
        first = self.first_token if stream else self.answer
        return Timeouts(min(self.connect, left), min(first, left), self.stall, left, max_bytes)


class BreakerConfig(Section):
    """When the circuit breaker of a deployment opens."""

    failures: Annotated[Whole, Field(ge=1)] = 5
    """In a row."""
    seconds: Above = 10.0
    """Until one request probes it."""


class LimitConfig(Section):
    """At most `most` of a quantity, on average over requests; needs the optimizer `lp`."""

    quantity: str
    """`cost`, `latency`, another key of `amounts`, or `share:PROVIDER`."""
    most: Amount


class RouterConfig(Section):
    """The whole configuration, except the flags of the command."""

    model_configs: dict[str, ModelConfig] = Field(min_length=1)
    """By the names in P2L's model list."""
    keys: list[KeyConfig] = Field(default_factory=list)
    teams: dict[str, TeamConfig] = Field(default_factory=dict)
    """By name, which keys give as their `team`."""
    admin_key: str | None = Field(default=None, min_length=1, repr=False)
    """Digest of the key for GET /metrics, which is read as the key or `${VARIABLE}`."""
    opponent_weights: dict[str, Amount] | None = None
    """Weights of the opponents, normalised; by default every model of the leaderboard alike."""
    static_order: list[str] = Field(default_factory=list)
    """The models to prefer without scores, best first; by default the dearest that the budget allows."""
    score_timeout_ms: Above = 2000.0
    max_answer_mb: Above = 32.0
    """MiB of a provider's answer, or of a whole stream."""
    max_attempts: Annotated[Whole, Field(ge=1)] = 3
    """Of a request; one more try of the same model at once does not count."""
    retry_seconds: Amount = 1.0
    """The longest pause before a model is asked once more instead of another one; 0: there is none."""
    timeouts: TimeoutsConfig = TimeoutsConfig()
    breaker: BreakerConfig = BreakerConfig()
    unexpected_model: Literal["warn", "leave", "refuse"] = "warn"
    """Where another model answers: log it, ask there no more for an hour, or not pass the answer on either."""
    limits: list[LimitConfig] = Field(default_factory=list)
    budget_usd: Above | None = None
    """Dollars that all requests may cost on average, in every 1,000 of them; prices must be in dollars."""
    guard: GuardConfig | None = None
    sticky: bool = False
    """Whether a conversation keeps its model."""
    explore: Annotated[Number, Field(ge=0, le=1)] = 0.0
    """The share of requests that go to a random model within the budget."""
    pairs: Path | None = None
    """File of `p2l next-pairs`, by which the second model of a comparison is drawn; None: uniformly."""
    experiments: dict[str, ExperimentConfig] = Field(default_factory=dict)
    """By name; a request takes part in the first whose `keys` hold its key."""
    shadow: ShadowConfig | None = None
    newcomers: bool = True
    """Whether models that P2L does not know are explored, and ratings move models beside P2L's coefficients."""
    pass_fields: list[str] = Field(default_factory=list)
    """Fields that clients may send to every model, beside the plain ones; see `route.request.fields`."""
    arena: ArenaConfig | None = None
    answer_cache: AnswerCacheConfig | None = None
    """None: no answers are kept."""
    budgets: list[BudgetConfig] = Field(default_factory=list)
    """All hold."""
    hooks: list[HookConfig] = Field(default_factory=list)
    """Asked in this order."""
    store_prompts: bool = False
    store_responses: bool = True
    """Whether responses of the Responses API are kept in the database, for 30 days."""
    responses_mb_per_key: Above = 256.0
    """Space that the stored responses of one key may take; the oldest leave first."""
    cors_origins: list[str] = Field(default_factory=list)
    """Origins whose pages may call the router from a browser; `*` for all."""
    database: str | None = Field(default=None, min_length=1, repr=False)
    """SQLite file (a path, or `sqlite:///PATH`) or `postgresql://` URL of spend, feedback and keys made while it runs;
    without it they end with the process."""
    shared_limits: str | None = Field(default=None, repr=False)
    """`redis://` URL where replicas share rates and what may be spent; `limits: redis://...` is short for it."""
    without_shared_limits: Literal["local", "refuse"] = "local"
    """Whether keys with limits go on by what this router and its database know while Redis is gone, or are refused."""
    journal: Path | None = None
    """File of votes that wait for a PostgreSQL server that is gone; by default beside the configuration."""

    @field_validator("cors_origins")
    @classmethod
    def _are_origins(cls, origins: list[str]) -> list[str]:
        for origin in origins:
            # Browsers send exactly this, so that anything else would silently never match.
            if origin not in ("*", "null") and not _ORIGIN.fullmatch(origin):
                raise ValueError(
                    f"{origin!r:.80} is not an origin; write for example https://chat.example.com, no path"
                )
        return origins

    @field_validator("admin_key")
    @classmethod
    def _digested(cls, text: str | None) -> str | None:
        if text is None:
            return None
        key = key_in(text)
        weakness = weakness_of(key)
        if weakness is not None:
            raise ValueError(weakness)
        return digest_of(key)

    @field_validator("database", "shared_limits")
    @classmethod
    def _is_location(cls, location: str | None, info: ValidationInfo) -> str | None:
        return None if location is None else location_in(location, redis=info.field_name == "shared_limits")

    @model_validator(mode="before")
    @classmethod
    def _take_short_limits(cls, data: Any) -> Any:
        if not isinstance(data, dict) or not isinstance(data.get("limits"), str):
            return data
        if data.get("shared_limits") is not None:
            raise ValueError("limits: is a URL, and shared_limits is one too; leave out one of them")
        return {name: entry for name, entry in data.items() if name != "limits"} | {"shared_limits": data["limits"]}

    @model_validator(mode="before")
    @classmethod
    def _expand_efforts(cls, data: Any) -> Any:
        if not isinstance(data, dict) or not isinstance(data.get("model_configs"), dict):
            return data
        models = data["model_configs"]
        expanded: dict[str, Any] = {}
        for name, model in models.items():
            if not isinstance(model, dict) or "efforts" not in model:
                expanded[name] = model
                continue
            arms = arms_of(name, model, _EFFORT_KEYS)
            for arm in arms:
                if arm in expanded or arm in models:
                    where = f"model_configs.{name}.efforts.{arm}"
                    raise ValueError(f"{where}: is the name of another model; choose another")
            expanded |= arms
        return data | {"model_configs": expanded}

    @model_validator(mode="after")
    def _check_names(self) -> RouterConfig:
        for name in (ROUTER_NAME, ROUTER_ALIAS):
            if name in self.model_configs:
                raise ValueError(f"model_configs.{name}: is the router's own name; choose another")
        if not self.routed_models():
            raise ValueError("model_configs: no model serves chat, so that there is nothing to route to")
        keys = [(f"keys.{number}.models", key.models or []) for number, key in enumerate(self.keys)]
        for where, names in [("static_order", self.static_order), *keys]:
            for name in names:
                if name not in self.model_configs:
                    raise ValueError(f"{where}: no model {name!r} in model_configs{nearest(name, self.model_configs)}")
        if self.opponent_weights is not None and not sum(self.opponent_weights.values()) > 0:
            raise ValueError("opponent_weights: must not all be 0")
        if self.store_prompts and self.database is None:
            raise ValueError("store_prompts: needs a 'database' to store them in")
        if self.shared_limits is not None and self.database is None:
            raise ValueError("shared_limits: needs a 'database', from which spend is rebuilt where Redis has lost it")
        return self

    @model_validator(mode="after")
    def _check_keys(self) -> RouterConfig:
        for number, key in enumerate(self.keys):
            before = self.keys[:number]
            if self.admin_key is not None and matches(key.key, self.admin_key):
                raise ValueError(f"keys.{number}.key: is the admin_key too; give clients another one")
            if any(key.key == other.key for other in before):
                raise ValueError(f"keys.{number}.key: is given twice")
            if key.name is not None and any(key.name == other.name for other in before):
                raise ValueError(f"keys.{number}.name: is given twice")
            prefix = next((each for each in (TEAM, BUDGET) if (key.name or "").startswith(each)), None)
            if prefix is not None:
                raise ValueError(f"keys.{number}.name: must not begin with {prefix!r}, as other accounts do")
            if key.team is not None and key.team not in self.teams:
                raise ValueError(f"keys.{number}.team: no team {key.team!r} in teams{nearest(key.team, self.teams)}")
        names = [key.name for key in self.keys if key.name is not None]
        for number, budget in enumerate(self.budgets):
            if budget.by == "team" and budget.of is not None and budget.of not in self.teams:
                raise ValueError(f"budgets.{number}.of: no team {budget.of!r} in teams{nearest(budget.of, self.teams)}")
        if self.arena is not None and self.arena.key not in names:
            raise ValueError(
                f"arena.key: no key of 'keys' has the name {self.arena.key!r}{nearest(self.arena.key, names)}"
            )
        return self

    @model_validator(mode="after")
    def _check_policies(self) -> RouterConfig:
        models, keys = [model.name for model in self.routed_models()], [key.name for key in self.keys if key.name]
        mistake = mistake_in(self.experiments, self.shadow, models=models, keys=keys)
        if mistake is not None:
            raise ValueError(mistake)
        if self.guard is not None:
            missing = [name for name in models if name not in self.guard.models]
            if missing:
                raise ValueError(f"guard.models: lacks {missing[0]!r}; measure again by p2l eval-routing --model")
            if any(policy.p2l is not None for policy in policies_in(self.experiments, self.shadow).values()):
                raise ValueError("guard: is of the router's own P2L; leave it out, or the p2l of policies")
        return self

    @model_validator(mode="after")
    def _check_limits(self) -> RouterConfig:
        models = self.routed_models()
        for number, limit in enumerate(self.limits):
            kind, _, rest = limit.quantity.partition(":")
            if kind == "share" and rest not in {model.provider for model in models}:
                raise ValueError(f"limits.{number}.quantity: no model is of provider {rest!r}")
            if kind != "share" and limit.quantity != "cost":
                missing = [model.name for model in models if limit.quantity not in model.amounts]
                if missing:
                    raise ValueError(
                        f"limits.{number}.quantity: model {missing[0]!r} has no {limit.quantity!r}; add it"
                    )
        return self

    def routed_models(self) -> list[RoutedModel]:
        """Return all models of chat completions in the order of the file."""
        return [model.routed(name) for name, model in self.model_configs.items() if "chat" in model.serves]

    def routed_limits(self) -> list[Limit]:
        """Return the limits beside the budget."""
        return [Limit(limit.quantity, limit.most) for limit in self.limits]


_EFFORT_KEYS = ("effort", *ModelConfig.model_fields)


def load_config(path: str | Path) -> RouterConfig:
    """Read a router's configuration, whose paths start at its folder; ConfigError, with the line, for a wrong key."""
    raw = read_yaml(path)
    try:
        config = RouterConfig.model_validate(raw)
    except ValidationError as error:
        has_short_limits = isinstance(raw.get("limits"), str)
        raise ConfigError(_first_problem(error, Path(path).expanduser(), has_short_limits)) from error
    file = Path(path).expanduser()
    if config.pairs is not None:
        config = config.model_copy(update={"pairs": file.parent / config.pairs.expanduser()})
    if config.shadow is not None and config.shadow.pairs is not None:
        shadow = config.shadow.model_copy(update={"pairs": file.parent / config.shadow.pairs.expanduser()})
        config = config.model_copy(update={"shadow": shadow})
    if config.answer_cache is not None and "://" not in config.answer_cache.where:
        where = str(file.parent / Path(config.answer_cache.where).expanduser())
        config = config.model_copy(update={"answer_cache": config.answer_cache.model_copy(update={"where": where})})
    if config.database is None:
        return config
    journal = file.parent / (config.journal or Path(f"{file.stem}.journal.sqlite")).expanduser()
    return config.model_copy(update={"database": located(config.database, path), "journal": journal})


def _first_problem(error: ValidationError, path: Path, has_short_limits: bool) -> str:
    """Return `file:line: key 'a.b': problem`; an unknown key comes first, since it may be a missing one misspelt.

    With `has_short_limits` the file has `limits: redis://...`, which is read as `shared_limits`.
    """
    problems = error.errors()
    problem = next((each for each in problems if each["type"] == "extra_forbidden"), problems[0])
    place = [str(part) for part in problem["loc"] if part != "[key]"]  # which pydantic adds where a key is wrong
    message = problem["msg"].removeprefix("Value error, ")
    if not place:
        name, _, message = message.partition(": ")
        place = name.split(".") if name else []
    if has_short_limits and place == ["shared_limits"]:
        place = ["limits"]
    key = f"{'.'.join(place)!r:.200}"
    where = f"{path}:{line_of(path, place) or 1}"
    if not problem["loc"]:
        return f"{where}: key {key}: {message}"
    if problem["type"] == "extra_forbidden":
        owner = owner_of(RouterConfig, problem["loc"])
        known = [*owner.model_fields, *(["efforts"] if owner is ModelConfig else [])]
        return f"{where}: unknown key {key}{nearest(place[-1], known)}"
    if problem["type"] == "missing":
        return f"{where}: key {key} is missing; add it"
    # What may be an API key, or a section that may hold one, is not repeated.
    holds_keys = place[-1] in _SECRET or place[-2:-1] in (["keys"], ["model_configs"], ["deployments"], ["hooks"])
    got = "" if holds_keys or isinstance(problem["input"], (dict, list)) else f", got {problem['input']!r:.80}"
    return f"{where}: key {key}: {message[0].lower()}{message[1:]}{got}"
