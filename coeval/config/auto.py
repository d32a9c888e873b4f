"""`interface: auto`: who of those that have a model, and that there are credentials for, asks least for it.

The price counts four tokens in for one out, about what a run takes, with the batch discount where the model's calls go
in batches. What a model is called differs from provider to provider; `auto_routing` in `prices.yaml` has both.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from coeval.config.interfaces import BATCHING, INTERFACES, LATER
from coeval.config.keys import Keys
from coeval.config.problems import Problems
from coeval.config.schema import BATCH_PHASES, Experiment, Model
from coeval.pricing.table import Price, batch_discount, price_at, table

__all__ = ["Offer", "offers_for", "resolve_auto"]

_MIX = (4, 1)  # tokens in and out, as in the manual's example


@dataclass(frozen=True)
class Offer:
    """A provider that has the model."""

    interface: str
    model_id: str
    """What it calls it."""
    price: Price


def offers_for(model_id: str) -> list[Offer]:
    """Who has a model, cheapest first, whether or not there are credentials; single calls."""
    return _ranked(model_id, set())


def resolve_auto(
    models: tuple[Model, ...], chosen: Mapping[str, Any], experiment: Experiment, keys: Keys, problems: Problems
) -> tuple[tuple[Model, ...], tuple[str, ...]]:
    """The models with a provider each, and a sentence on every choice.

    Args:
        models: as they were read.
        chosen: what an earlier load of the same run made of a model: {interface, model}.
        experiment: says which interfaces' calls go in batches.
        keys: who there are credentials for.
        problems: where models go that nobody can serve.
    """
    resolved: list[Model] = []
    notes: list[str] = []
    for number, model in enumerate(models):
        if model.interface != "auto":
            resolved.append(model)
            continue
        offer = _earlier(chosen.get(model.name), keys) or _choice(model, experiment, keys, problems, number)
        if offer is None:
            resolved.append(model)
            continue
        parameters = {**model.parameters, "model": offer.model_id}
        resolved.append(replace(model, interface=offer.interface, parameters=parameters))
        price = f"${offer.price.input:g} in and ${offer.price.output:g} out per million tokens"
        notes.append(f"{model.name}: auto is {offer.interface}, model {offer.model_id}, {price}")
    return tuple(resolved), tuple(notes)


def _choice(model: Model, experiment: Experiment, keys: Keys, problems: Problems, number: int) -> Offer | None:
    where = ("models", number, "interface")
    if model.access_key or model.parameters.get("api_key"):
        problems.add(
            where, "`auto` cannot know whose key this model has; name the interface, or remove the key", "V-06"
        )
        return None
    offers = _ranked(model.model_id, _batched(model, experiment))
    if model.batch_enabled:
        offers = [offer for offer in offers if offer.interface in BATCHING]
    if not offers:
        what = " in batches" if model.batch_enabled else ""
        problems.add(where, f"auto: no provider of {model.model_id!r}{what} is known; name the interface", "V-06")
        return None
    found = next((offer for offer in offers if keys.has(offer.interface)), None)
    if found is None:
        problems.add(where, _nobody(model, offers, keys), "V-06")
    return found


def _nobody(model: Model, offers: list[Offer], keys: Keys) -> str:
    names = ", ".join(offer.interface for offer in offers)
    if all(offer.interface in LATER for offer in offers):
        return f"auto: {model.model_id!r} is at {names} alone, which is not supported yet"
    files = ", ".join(str(path) for path in keys.looked) or "none"
    return (
        f"auto: there are no credentials for {names}, who have {model.model_id!r}; set the variable of one, or write "
        f"its key in a key file (looked in the environment and {keys.path or files})"
    )


def _ranked(model_id: str, batched: set[str]) -> list[Offer]:
    offers = [Offer(interface, name, price_at(interface, name)) for interface, name in _at(model_id)]
    return sorted(offers, key=lambda offer: _cost(offer, batched))  # keeps the order of the table where costs are equal


def _cost(offer: Offer, batched: set[str]) -> float:
    factor = batch_discount(offer.interface) if offer.interface in batched else 1.0
    return factor * offer.price.cost(*_MIX)


def _at(model_id: str) -> list[tuple[str, str]]:
    """(interface, name of the model there) of the first entry that fits."""
    lowered = model_id.lower()
    for entry in table()["auto_routing"]:
        if any(_fits(lowered, text) for text in entry["match"]):
            name = model_id.rpartition("/")[2]
            named = {"id": model_id, "name": name.removeprefix("amazon.")}
            return [(interface, text.format(**named)) for interface, text in entry["at"].items()]
    return []


def _fits(model_id: str, text: str) -> bool:
    return model_id.startswith(text[1:]) if text.startswith("^") else text in model_id


def _batched(model: Model, experiment: Experiment) -> set[str]:
    """The interfaces at which calls of this model would go in batches."""
    if model.batch_enabled is not None:
        return set(BATCHING) if model.batch_enabled else set()
    return {
        interface for interface, phases in experiment.batch.items() if any(phases.get(phase) for phase in BATCH_PHASES)
    }


def _earlier(before: object, keys: Keys) -> Offer | None:
    """What an earlier load of the run chose, so that its answers go on coming from the same place."""
    if not isinstance(before, Mapping):
        return None
    interface, model_id = str(before.get("interface")), str(before.get("model"))
    if interface not in INTERFACES or not keys.has(interface):
        return None
    return Offer(interface, model_id, price_at(interface, model_id))
