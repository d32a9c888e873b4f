"""`interface: auto`: who of those that have a model, and that there are credentials for, asks least for it.

The price counts four tokens in for one out, about what a run takes, with the batch discount where the model's calls go
in batches. What a model is called differs from provider to provider; `auto_routing` in `prices.yaml` has both.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from coeval.config.keys import Keys
from coeval.config.reading import Problems
from coeval.interfaces import BATCHING, INTERFACES, LATER
from coeval.prices import Price, batch_discount, price_at, table
from coeval.schema import BATCH_PHASES, ROLES, Config, Experiment, Model
from coeval.storage.records import now
from coeval.storage.run import Run, entries_of, stored_config
from coeval.storage.store import Log
from p2l.common.files import atomic_path

_MIX = (4, 1)  # tokens in and out, as in the manual's example


@dataclass(frozen=True)
class Offer:
    """A provider that has the model."""

    interface: str
    model_id: str
    """What it calls it."""
    price: Price


_Deal: TypeAlias = dict[str, Offer]
"""What one provider offers for everything that a model is asked for, by the names in the configuration."""


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
        if model.interface != "auto" or _is_unreadable(number, problems):
            resolved.append(model)
            continue
        deal = _earlier(model, chosen.get(model.name), keys) or _choice(model, experiment, keys, problems, number)
        resolved.append(_at_provider(model, deal) if deal else model)
        notes += [_note(model, name, offer) for name, offer in (deal or {}).items()]
    return tuple(resolved), tuple(notes)


def _is_unreadable(number: int, problems: Problems) -> bool:
    """Whether what the model is asked for has to be mended first."""
    return any(problems.within("models", number, key) for key in ("parameters", "role_parameters"))


def _at_provider(model: Model, deal: _Deal) -> Model:
    """The model with the provider's interface and names."""
    by_role: dict[str, Mapping[str, Any]] = {
        role: {**inner, "model": deal[model.model_id(role)].model_id} if inner.get("model") else inner
        for role in ROLES
        if role in model.roles and (inner := model.role_parameters.get(role))
    }
    usual = deal.get(model.model_id())
    parameters = {**model.parameters, "model": usual.model_id} if usual else model.parameters
    return replace(model, interface=_interface(deal), parameters=parameters, role_parameters=by_role)


def _note(model: Model, name: str, offer: Offer) -> str:
    roles = f" as {' and '.join(model.asked_for[name])}" if len(model.asked_for) > 1 else ""
    price = f"${offer.price.input:g} in and ${offer.price.output:g} out per million tokens"
    return f"{model.name}: auto is {offer.interface}, model {offer.model_id}{roles}, {price}"


def _choice(model: Model, experiment: Experiment, keys: Keys, problems: Problems, number: int) -> _Deal | None:
    where = ("models", number, "interface")
    if model.access_key or model.parameters.get("api_key"):
        problems.add(
            where, "`auto` cannot know whose key this model has; name the interface, or remove the key", "V-06"
        )
        return None
    deals = _deals(model, _batched(model, experiment))
    if model.batch_enabled:
        deals = [deal for deal in deals if _interface(deal) in BATCHING]
    if not deals:
        what = " in batches" if model.batch_enabled else ""
        problems.add(where, f"auto: no provider of {_wanted(model)}{what} is known; name the interface", "V-06")
        return None
    found = next((deal for deal in deals if keys.has(_interface(deal))), None)
    if found is None:
        problems.add(where, _nobody(model, [_interface(deal) for deal in deals], keys), "V-06")
    return found


def _nobody(model: Model, interfaces: list[str], keys: Keys) -> str:
    names = ", ".join(interfaces)
    if all(interface in LATER for interface in interfaces):
        return f"auto: {_wanted(model)} is at {names} alone, which is not supported yet"
    files = ", ".join(str(path) for path in keys.looked) or "none"
    return (
        f"auto: there are no credentials for {names}, who have {_wanted(model)}; set the variable of one, or write "
        f"its key in a key file (looked in the environment and {keys.path or files})"
    )


def _wanted(model: Model) -> str:
    return " and ".join(map(repr, model.asked_for))


def _deals(model: Model, batched: set[str]) -> list[_Deal]:
    """Of each provider that has everything that the model is asked for, the cheapest first."""
    offers = {name: _offers(name) for name in model.asked_for}
    first, *others = offers.values()
    shared = [interface for interface in first if all(interface in other for other in others)]
    deals = [{name: found[interface] for name, found in offers.items()} for interface in shared]
    return sorted(deals, key=lambda deal: _cost(deal, batched))  # keeps the order of the table where costs are equal


def _cost(deal: _Deal, batched: set[str]) -> float:
    factor = batch_discount(_interface(deal)) if _interface(deal) in batched else 1.0
    return factor * sum(offer.price.cost(*_MIX) for offer in deal.values())


def _interface(deal: _Deal) -> str:
    return next(iter(deal.values())).interface


def _offers(model_id: str) -> dict[str, Offer]:
    """By interface, in the order of the table."""
    return {interface: Offer(interface, name, price_at(interface, name)) for interface, name in _at(model_id)}


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


def _earlier(model: Model, before: object, keys: Keys) -> _Deal | None:
    """Of the provider that an earlier load of the run chose, so that answers go on coming from the same place."""
    interface = str(before.get("interface")) if isinstance(before, Mapping) else ""
    if interface not in INTERFACES or not keys.has(interface):
        return None
    return next((deal for deal in _deals(model, set()) if _interface(deal) == interface), None)


# What a run had in its configuration and a start leaves out: said, and the old configuration is kept.


def put_aside(config: Config, run: Run, log: Log) -> None:
    """Keep the configuration of the start before where tasks or models of it are gone; one line names them.

    Raises:
        InputError: it cannot be copied.
    """
    stored = stored_config(run)
    names = {"task": {task.name for task in config.tasks}, "model": {model.name for model in config.models}}
    before = {word: [str(entry.get("name")) for entry in entries_of(stored, f"{word}s")] for word in names}
    gone = [f"{word} {name}" for word, there in names.items() for name in before[word] if name not in there]
    if not gone:
        return
    copy = run.folder / "archive" / now().replace(":", "") / run.config.name
    with atomic_path(copy) as temporary:
        shutil.copyfile(run.config, temporary)
    log.warning(
        f"{', '.join(gone)}: in the configuration of the start before, not in {config.path}, so left out from now on; "
        f"what is stored stays, and --config {copy} has them"
    )
