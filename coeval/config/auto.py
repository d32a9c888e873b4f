"""`interface: auto`: the cheapest of the providers that have a model and that there are credentials for.

The price counts four tokens in for one out, about what a run takes, with the batch discount where the model's calls go
in batches. Providers have names of their own for a model; `auto_routing` in `prices.yaml` lists both.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from coeval.config.keys import Keys
from coeval.config.reading import Problems
from coeval.interfaces import BATCHING, INTERFACES
from coeval.prices import batch_discount, price_at, table
from coeval.schema import BATCH_PHASES, ROLES, Config, Experiment, Model
from coeval.storage.records import now
from coeval.storage.run import Run, entries_of, stored_config
from coeval.storage.store import Log
from p2l.common.files import atomic_path

_MIX = (4, 1)  # tokens in and out, as in the manual's example


@dataclass(frozen=True)
class _Offer:
    """A provider that has everything that a model is asked for."""

    interface: str
    names: Mapping[str, str]
    """Model id in the configuration -> the provider's own name."""

    def cost(self, batched: set[str]) -> float:
        """Return the cost of the usual mix of tokens, with the discount of the interfaces that are batched."""
        factor = batch_discount(self.interface) if self.interface in batched else 1.0
        return factor * sum(price_at(self.interface, name).cost(*_MIX) for name in self.names.values())


def resolve_auto(
    models: tuple[Model, ...], choices: Mapping[str, Any], experiment: Experiment, keys: Keys, problems: Problems
) -> tuple[tuple[Model, ...], tuple[str, ...]]:
    """Return the models with a provider each, and a sentence on every choice.

    `choices` has model -> {interface, model} that an earlier load of the same run chose. Models that no provider can
    serve are added to the problems.
    """
    resolved: list[Model] = []
    notes: list[str] = []
    for number, model in enumerate(models):
        if model.interface != "auto" or _is_unclear(number, problems):
            resolved.append(model)
            continue
        offer = _earlier(model, choices.get(model.name), keys) or _choose(model, experiment, keys, problems, number)
        resolved.append(_at_provider(model, offer) if offer else model)
        notes += _notes(model, offer) if offer else []
    return tuple(resolved), tuple(notes)


def _is_unclear(number: int, problems: Problems) -> bool:
    """Whether a mistake leaves open what the model is asked for."""
    return any(problems.within("models", number, key) for key in ("parameters", "role_parameters"))


def _at_provider(model: Model, offer: _Offer) -> Model:
    by_role: dict[str, Mapping[str, Any]] = {
        role: {**own, "model": offer.names[model.model_id(role)]} if own.get("model") else own
        for role in ROLES
        if role in model.roles and (own := model.role_parameters.get(role))
    }
    usual = offer.names.get(model.model_id())
    parameters = {**model.parameters, "model": usual} if usual else model.parameters
    return replace(model, interface=offer.interface, parameters=parameters, role_parameters=by_role)


def _notes(model: Model, offer: _Offer) -> list[str]:
    notes = []
    for model_id, name in offer.names.items():
        roles = f" as {' and '.join(model.asked_for[model_id])}" if len(offer.names) > 1 else ""
        price = price_at(offer.interface, name)
        prices = f"${price.input:g} in and ${price.output:g} out per million tokens"
        notes.append(f"{model.name}: auto is {offer.interface}, model {name}{roles}, {prices}")
    return notes


def _choose(model: Model, experiment: Experiment, keys: Keys, problems: Problems, number: int) -> _Offer | None:
    where = ("models", number, "interface")
    if model.access_key or model.parameters.get("api_key"):
        message = "`auto` cannot know whose key this model has; name the interface, or remove the key"
        problems.add(where, message, "V-06")
        return None
    offers = _offers(model, _batched(model, experiment))
    if model.batch_enabled:
        offers = [offer for offer in offers if offer.interface in BATCHING]
    if not offers:
        batches = " in batches" if model.batch_enabled else ""
        problems.add(where, f"auto: no provider of {_ids(model)}{batches} is known; name the interface", "V-06")
        return None
    choice = next((offer for offer in offers if keys.has(offer.interface)), None)
    if choice is None:
        problems.add(where, _no_credentials(model, [offer.interface for offer in offers], keys), "V-06")
    return choice


def _no_credentials(model: Model, interfaces: list[str], keys: Keys) -> str:
    names = ", ".join(interfaces)
    files = ", ".join(map(str, keys.looked)) or "none"
    return (
        f"auto: there are no credentials for {names}, who have {_ids(model)}; set the variable of one, or write "
        f"its key in a key file (looked in the environment and {keys.path or files})"
    )


def _ids(model: Model) -> str:
    return " and ".join(map(repr, model.asked_for))


def _offers(model: Model, batched: set[str]) -> list[_Offer]:
    """Return the offers for a model, the cheapest first; of equal ones as in the table."""
    routes = {model_id: _routes(model_id) for model_id in model.asked_for}
    first, *others = routes.values()
    shared = [interface for interface in first if all(interface in other for other in others)]
    offers = [_Offer(interface, {each: names[interface] for each, names in routes.items()}) for interface in shared]
    return sorted(offers, key=lambda offer: offer.cost(batched))


def _routes(model_id: str) -> dict[str, str]:
    """Return interface -> the model's name there, of the first entry of the table that fits."""
    lowered = model_id.lower()
    for entry in table()["auto_routing"]:
        if any(lowered.startswith(text[1:]) if text.startswith("^") else text in lowered for text in entry["match"]):
            name = model_id.rpartition("/")[2].removeprefix("amazon.")
            return {interface: text.format(id=model_id, name=name) for interface, text in entry["at"].items()}
    return {}


def _batched(model: Model, experiment: Experiment) -> set[str]:
    """Return the interfaces at which calls of this model would go in batches."""
    if model.batch_enabled is not None:
        return set(BATCHING) if model.batch_enabled else set()
    return {
        interface for interface, phases in experiment.batch.items() if any(phases.get(phase) for phase in BATCH_PHASES)
    }


def _earlier(model: Model, choice: object, keys: Keys) -> _Offer | None:
    """Return the provider that an earlier load of the run chose, so that answers go on coming from the same place."""
    interface = str(choice.get("interface")) if isinstance(choice, Mapping) else ""
    if interface not in INTERFACES or not keys.has(interface):
        return None
    return next((offer for offer in _offers(model, set()) if offer.interface == interface), None)


def put_aside(config: Config, run: Run, log: Log) -> None:
    """Store the last start's configuration if this one leaves out tasks or models; InputError if unwritable."""
    stored = stored_config(run)
    names = {"task": {task.name for task in config.tasks}, "model": {model.name for model in config.models}}
    before = {kind: [str(entry.get("name")) for entry in entries_of(stored, f"{kind}s")] for kind in names}
    missing = [f"{kind} {name}" for kind, present in names.items() for name in before[kind] if name not in present]
    if not missing:
        return
    copy = run.folder / "archive" / now().replace(":", "") / run.config.name
    with atomic_path(copy) as temporary:
        shutil.copyfile(run.config, temporary)
    log.warning(
        f"{', '.join(missing)}: in the configuration of the start before, not in {config.path}, so left out from now "
        f"on; what is stored stays, and --config {copy} has them"
    )
