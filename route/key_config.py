"""What the router's configuration says of whoever asks: keys, teams, budgets, hooks, the arena, and of a guard."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from p2l.common.config import Number, Whole
from route.keep.accounts import TAG
from route.keep.ledger import MAX_IN_FLIGHT
from route.keep.location import filled
from route.routing.guard import Guard

Amount = Annotated[Number, Field(ge=0)]
Above = Annotated[Number, Field(gt=0)]
_FUNCTION = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")


class Section(BaseModel):
    """A part of the configuration, which knows all of its keys."""

    # protected_namespaces: before 2.10 pydantic warns of fields that begin with `model_`, as `model_configs` does.
    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=(), allow_inf_nan=False)


class TeamConfig(Section):
    """Keys that share a budget."""

    spend_per_day: Amount
    """Of all its keys together, in the unit of the costs, UTC days."""


class KeyLimits(Section):
    """What a key of clients may do."""

    team: str | None = None
    """One of `teams`, whose budget it spends beside its own."""
    spend_per_day: Amount | None = None
    """In the unit of the costs, UTC days."""
    requests_per_minute: Annotated[Whole, Field(ge=1)] | None = None
    tokens_per_minute: Annotated[Whole, Field(ge=1)] | None = None
    """Of prompts and answers."""
    votes_per_day: Annotated[Whole, Field(ge=0)] | None = None
    """Answers it may vote on in one day, UTC."""
    models: list[str] | None = None
    """The models it may use; by default all."""
    cost: Amount | None = None
    """The budget of its requests that name none."""
    budget_usd: Above | None = None
    """Dollars that its requests may cost on average, in every 1,000 of them."""
    max_cost_per_request: Amount | None = None
    """What one request may cost at most, whatever budget, model and length it asks for."""
    max_in_flight: Annotated[Whole, Field(ge=1)] = MAX_IN_FLIGHT
    """Requests that one worker answers at once."""


class KeyConfig(KeyLimits):
    """A key of clients, and its limits."""

    key: str = Field(min_length=1, repr=False)
    """The key, or `${VARIABLE}`."""
    name: str | None = None
    """For logs and metrics; by default the beginning of the key's digest."""

    @field_validator("key")
    @classmethod
    def _resolved(cls, text: str) -> str:
        return key_in(text)


class BudgetConfig(Section):
    """What each key, team, end user or value of a tag may spend, beside what `keys` and `teams` say."""

    by: str
    """`key`, `team`, `user` or `tag:NAME`."""
    of: str | None = None
    """The one key, team, end user or value that it holds for; by default each of them."""
    spend_per_day: Amount | None = None
    """In the unit of the costs, UTC days."""
    spend_per_month: Amount | None = None

    @field_validator("by")
    @classmethod
    def _is_kind(cls, by: str) -> str:
        if by not in ("key", "team", "user") and not (by.startswith(TAG) and by != TAG):
            raise ValueError("must be key, team, user or tag:NAME")
        return by

    @model_validator(mode="after")
    def _has_limit(self) -> BudgetConfig:
        if self.spend_per_day is None and self.spend_per_month is None:
            raise ValueError("has no limit; add spend_per_day or spend_per_month")
        return self


class AnswerCacheConfig(Section):
    """Where answers are kept for requests at temperature 0 that come again word for word."""

    where: str = Field(min_length=1, repr=False)
    """A SQLite file, or the `redis://` URL of a Redis."""
    seconds: Above = 3600.0
    max_mb: Above = 256.0
    """Of the file; Redis has a limit of its own."""
    across_keys: bool = False
    """Whether a key may get what was answered to another one."""

    @field_validator("where")
    @classmethod
    def _filled(cls, where: str) -> str:
        return filled(where)


class HookConfig(Section):
    """Code of the platform's own that sees requests before they are routed, or answers before clients get them."""

    name: str = Field(min_length=1)
    """For logs, metrics and errors."""
    call: str
    """`package.module:function`, or the URL that a POST goes to."""
    when: Annotated[list[Literal["before", "after"]], Field(min_length=1)] = ["before"]
    seconds: Above = 2.0
    """Until it has failed."""
    on_failure: Literal["refuse", "pass"] = "refuse"
    """Whether a request is refused where the hook fails, or goes on without it."""
    api_key: str | None = Field(default=None, repr=False)
    """Sent to a URL as its bearer; the key, or `${VARIABLE}`."""

    @property
    def is_address(self) -> bool:
        """Return whether it is asked over HTTP."""
        return self.call.startswith(("http://", "https://"))

    @field_validator("call")
    @classmethod
    def _is_callable(cls, call: str) -> str:
        if not call.startswith(("http://", "https://")) and not _FUNCTION.fullmatch(call):
            raise ValueError("must be package.module:function, or begin with http:// or https://")
        return call

    @field_validator("api_key")
    @classmethod
    def _resolved(cls, text: str | None) -> str | None:
        return None if text is None else key_in(text)


class ArenaConfig(Section):
    """A page on which anybody who reaches the router compares two anonymous answers and votes."""

    key: str
    """Name of one of `keys`: what the arena asks counts as its requests, within its limits."""
    per_minute: Annotated[Whole, Field(ge=1)] = 6
    """Prompts of one network (/24, or /64 of IPv6), in all workers and replicas together."""
    votes_per_day: Annotated[Whole, Field(ge=1)] = 100
    """Votes of one network in a day of UTC."""
    proxies: Whole = 0
    """Proxies before the router, each of which adds the address of its client to `X-Forwarded-For`."""
    max_chars: Annotated[Whole, Field(ge=1)] = 4000
    mask_names: bool = False
    """Whether names are hidden in sentences in which an answer tells its own model or maker."""
    work_bits: Annotated[Whole, Field(ge=0, le=24)] = 0
    """Zero bits with which the hash of a vote's proof of work begins; 0 asks for none."""


def key_in(text: str) -> str:
    """Return a key with its variables filled in; raise ValueError for one that no client could send."""
    key = filled(text).strip()
    if not key or not key.isascii() or not key.isprintable():
        raise ValueError("must be text that an HTTP header can carry")
    return key


class GuardedModel(Section):
    """What graded answers say of a model."""

    score: Number
    """Its mean."""
    expected: Number
    """The mean that P2L expected, on the scale of the router's scores."""


class GuardConfig(Section):
    """How far P2L may depart from the mean scores of graded answers; `p2l eval-routing --model` writes it."""

    share: Annotated[Number, Field(ge=0, le=1)]
    """Of the differences between models by which P2L departs, how much counts."""
    revision: str = ""
    """Of the P2L that it was measured with."""
    models: dict[str, GuardedModel]
    """Every model of the configuration."""

    def routed(self) -> Guard:
        """Return the guard as routing needs it."""
        means = {name: model.score for name, model in self.models.items()}
        expected = {name: model.expected for name, model in self.models.items()}
        return Guard(means, expected, self.share, self.revision)
