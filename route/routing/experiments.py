"""Experiments: requests split at random between ways to choose models, each unit of them always to the same.

A unit is a conversation, or a key. Its policy follows from a digest, so that all workers and replicas agree and nothing
is stored. A policy is what the router does, but for the budget, the models and the optimizer that it has of its own.

What is logged of a request is how likely each policy was to choose each model for it, at the moment it was made; with
the shares of the policies that says how likely the model that was asked was in all, by which `p2l-route
compare-policies` weighs its outcome.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, Field, model_validator

from p2l.common.cli import nearest
from p2l.common.config import Number
from route.routing.decision import Decision
from route.routing.router import Router
from route.routing.scoring import Scorer

SHADOW = "shadow"
"""Name of the shadow policy, in the log and the configuration."""
CURRENT = "current"
"""Name of what the router does, beside the shadow of requests that are in no experiment."""
Chances = Mapping[str, float]
"""Probability of each model to be chosen first; empty where there is no choice."""


def _in_utc(time: datetime) -> datetime:
    """Take a time without a zone as UTC."""
    return time.replace(tzinfo=timezone.utc) if time.tzinfo is None else time


class PolicyConfig(BaseModel, extra="forbid", frozen=True, allow_inf_nan=False):
    """A way to choose models; what it leaves out is that of the router."""

    budget: Annotated[Number, Field(ge=0)] | None = None
    """In the unit of the costs, of requests that name none."""
    models: Annotated[list[str], Field(min_length=1)] | None = None
    cost_optimizer: str | None = None
    p2l: Annotated[str, Field(min_length=1)] | None = None
    """URL of an endpoint, or folder, of another P2L with the same kind of likelihood."""
    p2l_api_key: str | None = Field(default=None, repr=False)
    """Of that endpoint, or `${VARIABLE}`; the key of the router's own is never sent there."""


class ArmConfig(PolicyConfig, frozen=True):
    """A policy of an experiment."""

    share: Annotated[Number, Field(gt=0)]
    """Of the units, relative to the other policies."""


class ExperimentConfig(BaseModel, extra="forbid", frozen=True):
    """Policies that requests are split between."""

    policies: Annotated[dict[str, ArmConfig], Field(min_length=2)]
    """The first is the one that the others are compared with, and that everybody has once the experiment has ended."""
    by: Literal["conversation", "key"] = "conversation"
    keys: list[str] | None = None
    """Names of the keys whose requests take part; by default all."""
    ends: Annotated[datetime, AfterValidator(_in_utc)] | None = None


class ShadowConfig(PolicyConfig, frozen=True):
    """A policy that is asked what it would choose, and whose choice nobody is answered by."""

    share: Annotated[Number, Field(gt=0, le=1)]
    """Of the requests."""
    key: str | None = None
    """Name of one of `keys`, at whose cost and within whose limits its choices answer too, unseen."""
    pairs: Path | None = None
    """File for the unseen answers beside those that were shown, for a judge."""

    @model_validator(mode="after")
    def _go_together(self) -> ShadowConfig:
        if (self.key is None) != (self.pairs is None):
            raise ValueError("key, which pays for unseen answers, and pairs, where they are written, go together")
        return self


@dataclass(frozen=True)
class Policy:
    """A way to choose models, of a running router."""

    name: str
    router: Router
    budget: float | None
    models: frozenset[str] | None
    """None: all."""
    scorer: Scorer | None = None
    """Of its own P2L; None: the router's."""

    def permitted(self, allowed: Collection[str]) -> tuple[str, ...]:
        """Return those of the `allowed` models that the policy may choose."""
        return tuple(name for name in allowed if self.models is None or name in self.models)


@dataclass(frozen=True)
class Experiment:
    """Policies that requests are split between, with their shares of the units, 1 in sum."""

    name: str
    policies: tuple[Policy, ...]
    shares: tuple[float, ...]
    by_conversation: bool
    keys: frozenset[str] | None
    ends: datetime | None

    def includes(self, key: str, allowed: Collection[str], now: datetime) -> bool:
        """Return whether a request takes part: its key, which may use models of every policy, before the end.

        A key that one policy has no model for would be missing in that policy alone, which would no longer be random.
        """
        if (self.keys is not None and key not in self.keys) or (self.ends is not None and now >= self.ends):
            return False
        return all(policy.permitted(allowed) for policy in self.policies)

    def policy_of(self, unit: str) -> Policy:
        """Return the policy that a unit has throughout: with another name of the experiment it may have another."""
        digest = hashlib.sha256(f"{self.name}\0{unit}".encode()).digest()
        mark = int.from_bytes(digest[:8], "big") / 2**64
        for policy, share in zip(self.policies, self.shares, strict=True):
            mark -= share
            if mark < 0:
                return policy
        return self.policies[-1]


@dataclass
class Trial:
    """One request of an experiment, or of a shadow policy, as it is logged."""

    conversation: str
    """Digest of the conversation, whose later turns may keep its model."""
    chances: dict[str, Chances] = field(default_factory=dict)
    """By policy."""
    scores: Mapping[str, float] = field(default_factory=dict)
    """P2L's, of the models."""
    experiment: str | None = None
    policy: str | None = None
    """The one that answers; None: the router's own, beside a shadow."""
    shares: Mapping[str, float] | None = None
    """By policy."""
    unit: str | None = None
    """Digest of the unit that was assigned."""
    blind: tuple[str, ...] = ()
    """Policies without P2L's scores in time, so that the static order chose for them."""
    unseen: str | None = None
    """The model that the shadow policy drew, which answers too, unseen."""


def chances_of(decision: Decision, explore: float, candidates: Collection[str]) -> Chances:
    """Return how likely each model was, with `explore` of the requests drawn uniformly from the `candidates`."""
    if not explore or not candidates or decision.static:
        return decision.probabilities
    chances = {name: (1 - explore) * share for name, share in decision.probabilities.items()}
    for name in candidates:
        chances[name] = chances.get(name, 0.0) + explore / len(candidates)
    return chances


def policies_in(experiments: Mapping[str, ExperimentConfig], shadow: ShadowConfig | None) -> dict[str, PolicyConfig]:
    """Return all policies by their place in the configuration."""
    policies: dict[str, PolicyConfig] = {}
    for name, experiment in experiments.items():
        policies |= {f"experiments.{name}.policies.{policy}": entry for policy, entry in experiment.policies.items()}
    return policies if shadow is None else policies | {SHADOW: shadow}


def mistake_in(
    experiments: Mapping[str, ExperimentConfig],
    shadow: ShadowConfig | None,
    *,
    models: Collection[str],
    keys: Collection[str],
) -> str | None:
    """Return what is wrong with experiments and shadow beside these models and names of keys, after its place."""
    for name, experiment in experiments.items():
        if SHADOW in experiment.policies:
            return f"experiments.{name}.policies.{SHADOW}: is the name of the shadow policy; choose another"
        for key in experiment.keys or ():
            if key not in keys:
                return f"experiments.{name}.keys: no key of 'keys' has the name {key!r}{nearest(key, keys)}"
    if shadow is not None and shadow.key is not None and shadow.key not in keys:
        return f"{SHADOW}.key: no key of 'keys' has the name {shadow.key!r}{nearest(shadow.key, keys)}"
    for place, policy in policies_in(experiments, shadow).items():
        for model in policy.models or ():
            if model not in models:
                return f"{place}.models: no model {model!r} that serves chat in model_configs{nearest(model, models)}"
    return None
