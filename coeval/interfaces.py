"""The values of `interface`, providers and what CoEval itself answers, and the prices of their models.

`prices.yaml` has dollars per million tokens, by the longest known name that a model's id contains.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from coeval.schema import Model, Role
from route.providers.registry import OWN_MACHINE, PROVIDERS, ProviderSpec
from route.providers.usage import Rates, TokenCounts

PRICES = Path(__file__).parent / "prices.yaml"
_SHORT_NAME_LETTERS = 3


class Price(NamedTuple):
    """Dollars per million tokens."""

    input: float
    output: float

    def cost(self, prompt_tokens: float, completion_tokens: float) -> float:
        """Return the dollars for these tokens."""
        return (prompt_tokens * self.input + completion_tokens * self.output) / 1e6

    def cost_of(self, usage: TokenCounts) -> float:
        """Return the dollars for what a provider counted; input from its cache costs as much as other input."""
        return Rates(self.input, self.output).cost(usage)


@lru_cache(maxsize=1)
def table() -> dict[str, Any]:
    """Return the content of the file."""
    prices: dict[str, Any] = yaml.safe_load(PRICES.read_text(encoding="utf-8"))
    return prices


def price_of(model: Model, role: Role | None = None, *, batched: bool = False) -> Price:
    """Return the price of a model in a role, `batched` with its provider's discount; local models are free."""
    price = price_at(model.interface, model.model_id(role))
    return Price(*(part * batch_discount(model.interface) for part in price)) if batched else price


def price_at(interface: str, model_id: str) -> Price:
    """Return the price of a model id at an interface: in its own section, else in any, else the default."""
    if _is_free(interface):
        return Price(0.0, 0.0)
    price = _listed(interface, model_id) or table()["default"]
    return Price(float(price["input"]), float(price["output"]))


def is_listed(interface: str, model_id: str) -> bool:
    """Whether a model id is in the table or free; where not, its price is a guess."""
    return _is_free(interface) or _listed(interface, model_id) is not None


def batch_discount(interface: str) -> float:
    """Return the price of a batched call there, as a share of that of a single one."""
    spec = INTERFACES.get(interface)
    return 1.0 if spec is None or spec.batch_discount is None else spec.batch_discount


def _is_free(interface: str) -> bool:
    return interface in INTERFACES and INTERFACES[interface].is_free


def _listed(interface: str, model_id: str) -> Mapping[str, float] | None:
    """Return the price under the longest name that a model id contains, in the interface's section, else in any."""
    lowered = model_id.lower()
    for prices in (table()["providers"].get(interface, {}).get("models", {}), _everywhere()):
        # Names as short as `o1` and `8b` are parts of too many words: they count as words alone.
        names = [
            name
            for name in prices
            if name in lowered
            and (
                len(name) > _SHORT_NAME_LETTERS
                or re.search(rf"(?<![a-z0-9]){re.escape(name)}(?![a-z0-9])", lowered) is not None
            )
        ]
        if names:
            price: Mapping[str, float] = prices[max(names, key=len)]
            return price
    return None


@lru_cache(maxsize=1)
def _everywhere() -> dict[str, Mapping[str, float]]:
    """Return the models of all sections; where two have one, the first in the file."""
    merged: dict[str, Mapping[str, float]] = {}
    for provider in table()["providers"].values():
        for name, price in provider.get("models", {}).items():
            merged.setdefault(name, price)
    return merged


# Teachers and students that were ingested, and judges that compute: no model is called.
VIRTUAL = ("benchmark", "answers", "metric", "label")
LOCAL = ("huggingface", "mock")  # answered by this process
_HUGGINGFACE = ProviderSpec(
    name="huggingface",
    protocol="",
    base_url="https://huggingface.co",
    key_variables=PROVIDERS["huggingface"].key_variables,
    needs_key=False,
    interface="huggingface",
    key_fields=("api_key", "token"),
    is_free=True,
    speed=OWN_MACHINE,
    top_logprobs=0,
)
INTERFACES: Mapping[str, ProviderSpec] = {
    **{spec.interface: spec for spec in PROVIDERS.values() if spec.interface},
    "huggingface": _HUGGINGFACE,
    **{name: ProviderSpec(name, "", needs_key=False, is_free=True, top_logprobs=0) for name in VIRTUAL},
}
"""By the name in the configuration; `auto` stands for one of them."""
# Interfaces that take batch jobs.
BATCHING = tuple(name for name, spec in INTERFACES.items() if spec.batch_discount is not None)
_USUAL_CALLS_IN_FLIGHT = 10


def in_flight(concurrency: int | Mapping[str, int], interface: str) -> int:
    """Return how many calls may be in flight: 10 where a map does not name the interface, 1 for local models."""
    if interface == "huggingface":
        return 1
    return concurrency if isinstance(concurrency, int) else concurrency.get(interface, _USUAL_CALLS_IN_FLIGHT)


def tells_logprobs(interface: str) -> bool:
    """Whether answers can come with log-probabilities of their tokens."""
    return interface not in INTERFACES or INTERFACES[interface].top_logprobs > 0
