"""From a YAML file to a checked configuration, or to everything that is wrong with it at once.

config = load_config("experiment.yaml", keys=load_keys(None, os.environ))
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import Field

from coeval.config.checks import (
    check_folder,
    check_items,
    check_keys,
    check_packages,
    check_reachable,
    check_states,
    check_together,
    find_source,
)
from coeval.config.keys import Keys
from coeval.config.models import read_experiment, read_models
from coeval.config.reading import Entry, Problems, expanded, read, read_yaml
from coeval.config.tasks import read_tasks
from coeval.interfaces import BATCHING, INTERFACES, batch_discount, price_at, table
from coeval.schema import BATCH_PHASES, ROLES, Config, Experiment, Model
from coeval.storage.records import now
from coeval.storage.run import Run, entries_of, stored_config, stored_meta
from coeval.storage.store import Log
from p2l.common.files import atomic_path


class _File(Entry):
    models: list[Any] = Field(default_factory=list)
    tasks: list[Any] | None = None
    experiment: Any = None


def load_config(
    path: str | Path,
    *,
    keys: Keys,
    resume: str | None = None,
    continue_in_place: bool = False,
    fresh: bool = True,
    in_use: bool = True,
) -> Config:
    """Read and check a configuration, whose `storage_folder` starts at the working folder.

    The keys decide what `interface: auto` becomes, and must include what the configuration of a run leaves out;
    `resume` takes the place of `experiment.resume_from`. The run's folder has to hold it with `continue_in_place`, and
    must not where it is `fresh`, which is False where nothing is going to be run; a folder that holds a run is no
    mistake where it is not `in_use`, as nothing is written. Raise ConfigErrors with one line for each mistake.
    """
    typed_path, path = path, expanded(path)
    raw, problems = read_yaml(path)
    file = read(_File, raw, (), problems)
    if not isinstance(raw, Mapping):
        problems.raise_any()
    models = read_models(file.models, problems)
    names = {model.name for model in models} if models and all(model.name for model in models) else None
    resume = resume or (_source_before(file.experiment) if continue_in_place else None)
    run = read_experiment(file.experiment, problems, resume, names)
    run = replace(run, resume_folder=find_source(run, problems))
    entries, are_written = _task_entries([] if problems.at("tasks") else file.tasks, run, continue_in_place)
    for part, values in (("models", models), ("tasks", entries)):
        # The run that is resumed may have tasks, once it is found.
        if not values and not problems.at(part) and not (part == "tasks" and problems.at("experiment", "resume_from")):
            problems.add((part,), "there are none; add a list of at least one", "V-01")
    tasks = read_tasks(entries, problems, names if are_written else None)
    choices = {**_choices(stored_config(Run(run.folder)) if continue_in_place else {}), **_choices(raw)}
    models, notes = _resolve_auto(models, choices, run, keys, problems)
    raw = {**raw, "tasks": entries}
    if run.resume_from and isinstance(file.experiment, Mapping):
        raw["experiment"] = {**file.experiment, "resume_from": run.resume_from}
    config = Config(models=models, tasks=tasks, experiment=run, raw=raw, path=path, notes=notes)
    check_together(config, problems)
    check_reachable(run, problems)
    if fresh or continue_in_place:
        check_packages(models, tasks, problems)
        check_items(tasks, run, problems)
        check_keys(models, keys, problems)
        check_states(run, problems, continue_in_place=continue_in_place)
        if in_use or continue_in_place:
            check_folder(run, typed_path, problems, continue_in_place=continue_in_place)
    problems.raise_any()
    return config


def _source_before(experiment: Any) -> str | None:
    """Return what a run was resumed from, where `--resume` named it at its start and the file does not."""
    if not isinstance(experiment, Mapping) or experiment.get("resume_from"):
        return None
    folder, name = experiment.get("storage_folder"), experiment.get("id")
    if not isinstance(folder, str) or not isinstance(name, str):
        return None
    before = (stored_meta(Run(expanded(folder) / name)) or {}).get("resume_from")
    return before if isinstance(before, str) else None


def _task_entries(written: list[Any] | None, run: Experiment, continue_in_place: bool) -> tuple[list[Any], bool]:
    """Return the tasks of the file, else of the run that is continued or resumed; and whether the file has them."""
    if written is not None:
        return written, True
    for folder in filter(None, (run.folder if continue_in_place else None, run.resume_folder)):
        tasks = stored_config(Run(folder)).get("tasks")
        if isinstance(tasks, list) and tasks:
            return tasks, False
    return [], True


def _choices(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Return what each model's `interface: auto` became before."""
    return {str(entry.get("name")): entry["resolved"] for entry in entries_of(raw, "models") if entry.get("resolved")}


# `interface: auto`: the cheapest of the providers that have a model and that there are credentials for.
#
# Providers have names of their own for a model; `auto_routing` in `prices.yaml` lists both.

_TOKENS_IN_AND_OUT = (4, 1)  # about what a run takes, and the manual's example


@dataclass(frozen=True)
class _Offer:
    """A provider that has everything that a model is asked for."""

    interface: str
    names: Mapping[str, str]  # model id in the configuration -> the provider's own name

    def cost(self, batched: set[str]) -> float:
        """Return the cost of the usual mix of tokens, with the discount of the interfaces that are batched."""
        factor = batch_discount(self.interface) if self.interface in batched else 1.0
        return factor * sum(price_at(self.interface, name).cost(*_TOKENS_IN_AND_OUT) for name in self.names.values())


def _resolve_auto(
    models: tuple[Model, ...], choices: Mapping[str, Any], experiment: Experiment, keys: Keys, problems: Problems
) -> tuple[tuple[Model, ...], tuple[str, ...]]:
    """Return the models with a provider each, and a sentence on every choice.

    `choices` has model -> {interface, model} that an earlier load of the same run chose. Models that no provider can
    serve are added to the problems.
    """
    resolved: list[Model] = []
    notes: list[str] = []
    for number, model in enumerate(models):
        # A mistake in the parameters leaves open what the model is asked for.
        is_unclear = any(problems.within("models", number, key) for key in ("parameters", "role_parameters"))
        if model.interface != "auto" or is_unclear:
            resolved.append(model)
            continue
        offer = _earlier(model, choices.get(model.name), keys) or _choose(model, experiment, keys, problems, number)
        if offer is None:
            resolved.append(model)
            continue
        resolved.append(_at_provider(model, offer))
        for model_id, name in offer.names.items():
            roles = f" as {' and '.join(model.asked_for[model_id])}" if len(offer.names) > 1 else ""
            price = price_at(offer.interface, name)
            prices = f"${price.input:g} in and ${price.output:g} out per million tokens"
            notes.append(f"{model.name}: auto is {offer.interface}, model {name}{roles}, {prices}")
    return tuple(resolved), tuple(notes)


def _at_provider(model: Model, offer: _Offer) -> Model:
    """Return the model with the provider of an offer, and the provider's names for it in every role."""
    by_role: dict[str, Mapping[str, Any]] = {}
    for role in ROLES:
        role_parameters = model.role_parameters.get(role)
        if role in model.roles and role_parameters:
            names = {"model": offer.names[model.model_id(role)]} if role_parameters.get("model") else {}
            by_role[role] = {**role_parameters, **names}
    usual = offer.names.get(model.model_id())
    parameters = {**model.parameters, "model": usual} if usual else model.parameters
    return replace(model, interface=offer.interface, parameters=parameters, role_parameters=by_role)


def _choose(model: Model, experiment: Experiment, keys: Keys, problems: Problems, number: int) -> _Offer | None:
    where = ("models", number, "interface")
    if model.access_key or model.parameters.get("api_key"):
        message = "`auto` cannot know whose key this model has; name the interface, or remove the key"
        problems.add(where, message, "V-06")
        return None
    # Interfaces at which calls of this model would go in batches, for less.
    batched = set(BATCHING) if model.batch_enabled else set()
    if model.batch_enabled is None:
        batched = {name for name, phases in experiment.batch.items() if any(map(phases.get, BATCH_PHASES))}
    offers = _offers(model, batched)
    if model.batch_enabled:
        offers = [offer for offer in offers if offer.interface in BATCHING]
    model_ids = " and ".join(map(repr, model.asked_for))
    if not offers:
        batches = " in batches" if model.batch_enabled else ""
        problems.add(where, f"auto: no provider of {model_ids}{batches} is known; name the interface", "V-06")
        return None
    choice = next((offer for offer in offers if keys.has(offer.interface)), None)
    if choice is None:
        names = ", ".join(offer.interface for offer in offers)
        files = ", ".join(map(str, keys.looked)) or "none"
        message = (
            f"auto: there are no credentials for {names}, who have {model_ids}; set the variable of one, or write "
            f"its key in a key file (looked in the environment and {keys.path or files})"
        )
        problems.add(where, message, "V-06")
    return choice


def _offers(model: Model, batched: set[str]) -> list[_Offer]:
    """Return the offers for a model, the cheapest first; of equal ones as in the table."""
    routes = {model_id: _routes(model_id) for model_id in model.asked_for}
    first, *others = routes.values()
    shared = [interface for interface in first if all(interface in other for other in others)]
    offers = [
        _Offer(interface, {model_id: names[interface] for model_id, names in routes.items()}) for interface in shared
    ]
    return sorted(offers, key=lambda offer: offer.cost(batched))


def _routes(model_id: str) -> dict[str, str]:
    """Return interface -> the model's name there, of the first entry of the table that fits."""
    lowered = model_id.lower()
    for entry in table()["auto_routing"]:
        if any(lowered.startswith(text[1:]) if text.startswith("^") else text in lowered for text in entry["match"]):
            name = model_id.rpartition("/")[2].removeprefix("amazon.")
            return {interface: text.format(id=model_id, name=name) for interface, text in entry["at"].items()}
    return {}


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
