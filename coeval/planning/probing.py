"""Ask providers whether every model is there, before a run asks anything of it: no probe costs a token.

Models of one account share one list; all accounts are asked at the same time.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args
from urllib.parse import quote

from coeval.config.keys import REDACTED, Keys, snapshot
from coeval.errors import RunError
from coeval.interfaces import INTERFACES
from coeval.phases.mapping import Halt, attributes_of, map_attributes, map_rubrics, rubric_of
from coeval.phases.progress import Stage
from coeval.phases.start import extended_tasks
from coeval.schema import PHASES, ROLE_OF, Config, Mode, Model, Phase, Role
from coeval.storage.meta import create_meta
from coeval.storage.run import AttributeKind, Run, copy_run
from coeval.storage.store import Log, Store
from p2l.common.cli import nearest
from p2l.common.errors import ConfigError
from route.providers.base import Account, Fault, ProviderError, Timeouts

if TYPE_CHECKING:
    from route.providers.files import Catalogue


OK = "ok"
PATIENCE = Timeouts(connect=10.0, first_token=20.0, stall=20.0, total=20.0)


def models_needed(config: Config, phases: Iterable[Phase]) -> list[Model]:
    """Return the models with a role in any of these phases, each with these roles alone."""
    roles = {ROLE_OF[phase] for phase in phases}
    needed = [replace(model, roles=tuple(role for role in model.roles if role in roles)) for model in config.models]
    return [model for model in needed if model.roles]


async def probe_models(config: Config, keys: Keys, phases_left: Iterable[Phase] = PHASES) -> dict[str, str]:
    """Return model -> `ok`, or why it cannot be asked, for the models that these phases need, in their roles there."""
    states: dict[str, str] = {}
    groups: list[tuple[str, Account, list[Model]]] = []  # an account cannot be hashed
    for model in models_needed(config, phases_left):
        if model.is_virtual or model.interface == "mock":
            states[model.name] = OK
            continue
        try:
            account = keys.account(model)
        except ConfigError as error:
            states[model.name] = str(error)
            continue
        group = next((group for group in groups if group[:2] == (model.interface, account)), None)
        if group is None:
            groups.append((model.interface, account, [model]))
        else:
            group[2].append(model)
    for group_states in await asyncio.gather(*(_probe(*group) for group in groups)):
        states.update(group_states)
    return {model.name: states[model.name] for model in config.models if model.name in states}


def log_probe(states: Mapping[str, str], log: Log) -> list[str]:
    """Log the results of a probe; return the models that are not available."""
    for name, state in sorted(states.items()):
        (log.info if state == OK else log.warning)(f"probe: {name}: {state}")
    return sorted(name for name, state in states.items() if state != OK)


def probe_results(mode: str, on_fail: str, states: Mapping[str, str]) -> dict[str, Any]:
    """Return the content of `probe_results.json`."""
    return {"mode": mode, "on_fail": on_fail, "results": dict(states), "probed_models": sorted(states)}


async def _probe(interface: str, account: Account, models: Sequence[Model]) -> dict[str, str]:
    """Probe the models of one account."""
    if interface == "huggingface":
        return {model.name: await _local(model, account) for model in models}
    from route.providers.files import Catalogue

    try:
        catalogue = Catalogue(INTERFACES[interface].name, account)
    except ConfigError as error:  # a package is missing
        return dict.fromkeys((model.name for model in models), str(error))
    try:
        listed = await catalogue.models(PATIENCE)
        states = await asyncio.gather(*(_listed(catalogue, model, listed) for model in models))
        return {model.name: state for model, state in zip(models, states, strict=True)}
    except ProviderError as error:
        return dict.fromkeys((model.name for model in models), str(error))
    finally:
        await catalogue.close()


async def _listed(catalogue: Catalogue, model: Model, listed: Collection[str]) -> str:
    if not catalogue.names_models or not listed:
        return OK
    for name, roles in model.asked_for.items():
        if not _is_listed(name, listed) and not await catalogue.has(name, PATIENCE):
            return f"{model.interface} has no model {name!r}{nearest(name, listed)}; correct {_key_of(model, roles)}"
    return OK


def _key_of(model: Model, roles: Sequence[Role]) -> str:
    """Return the key of the configuration with the provider's name for the model in some roles."""
    own = next((role for role in roles if model.role_parameters.get(role, {}).get("model")), None)
    return f"role_parameters.{own}.model" if own else "parameters.model"


def _is_listed(name: str, listed: Collection[str]) -> bool:
    """Whether a list has a model: by its name, a dated form of it, without its maker, or a variant such as `:free`."""
    model = name.lower().removeprefix("models/")
    names = {other.lower() for other in listed}
    if names & {model, model.partition(":")[0], f"{model}:latest", model.rpartition("/")[2]}:
        return True
    stem = model.removesuffix("-latest")
    return any(other.startswith(f"{stem}-") and other[len(stem) + 1 :].replace("-", "").isdigit() for other in names)


async def _local(model: Model, account: Account) -> str:
    """Probe a local model: whether there is something to run it on, and whether it is here or at the hub."""
    devices = {str(model.parameters_for(role).get("device") or "auto") for role in model.roles}
    if devices - {"cpu"} and not await asyncio.to_thread(_has_gpu):
        return "no CUDA device here; run it on one, or write `device: cpu` in its parameters"
    states = [await _at_hub(name, _key_of(model, roles), account) for name, roles in model.asked_for.items()]
    return next((state for state in states if state != OK), OK)


async def _at_hub(name: str, key: str, account: Account) -> str:
    """Whether a folder, the cache or the hub has a model; `key` is where the configuration names it."""
    if Path(name).expanduser().exists() or _is_cached(name):
        return OK
    from route.providers.http import Transport

    transport = Transport(account)
    try:
        await transport.fetch(f"{account.base_url}/api/models/{quote(name, safe='/')}", PATIENCE)
    except ProviderError as error:
        if error.fault in (Fault.UNSUPPORTED, Fault.CREDENTIALS):
            return f"the hub shows no model {name!r}; correct {key}, or set HF_TOKEN where it is not public"
        return str(error)
    finally:
        await transport.close()
    return OK


def _has_gpu() -> bool:
    try:
        import torch
    except ModuleNotFoundError:
        return False
    return bool(torch.cuda.is_available())


def _is_cached(name: str) -> bool:
    """Whether the hub's cache on this machine has the model."""
    try:
        from huggingface_hub import try_to_load_from_cache

        return isinstance(try_to_load_from_cache(name, "config.json"), str)
    except (ModuleNotFoundError, ValueError):  # the latter for what is not a name that the hub could have
        return False


# Phases 1 and 2 on their own: what teachers propose, as a configuration in which nothing is left to them.


async def generate(config: Config, keys: Keys, log: Log) -> tuple[dict[str, Any], list[str]]:
    """Return the configuration with static attributes and rubrics, and each change in words; P2LError if none came."""
    from coeval.calling.caller import make_caller

    with tempfile.TemporaryDirectory(prefix="coeval-") as folder:
        run = Run(Path(folder) / config.experiment.id)
        run.folder.mkdir()
        modes: dict[Phase, Mode] = dict.fromkeys(PHASES, "Extend")
        source = config.experiment.resume_folder
        if source is not None:
            only_rubrics: dict[Phase, Mode] = {**dict.fromkeys(PHASES, "New"), PHASES[1]: "Extend"}
            copy_run(Run(source), run, [task.name for task in config.tasks], only_rubrics, extended_tasks(config))
        meta = create_meta(run, config.experiment.id)
        uncached = replace(config, experiment=replace(config.experiment, storage_folder=run.folder.parent, cache=False))
        with Store(run) as store:
            async with make_caller(uncached, keys, run, meta) as caller:
                stage = Stage(uncached, run, store, caller, log, modes)
                try:
                    await map_attributes(stage)
                    await map_rubrics(stage)
                except Halt as halt:
                    raise RunError(f"{halt}; raise the quota or budget_usd") from None
                except RunError as error:  # the folder it points at is about to go
                    raise RunError(str(error).removesuffix(f"; see {run.errors}") + "; each said why above") from None
        return _as_static(config, run)


def _as_static(config: Config, run: Run) -> tuple[dict[str, Any], list[str]]:
    raw, changes = snapshot(config), list[str]()
    if REDACTED in str(raw):
        changes.append(
            "keys were left out: they come from the key file or the environment, or have to be written again"
        )
    for entry, task in zip(raw["tasks"], config.tasks, strict=True):
        for kind in get_args(AttributeKind):
            key = f"{kind}_attributes"
            if isinstance(entry.get(key), str):
                names = attributes_of(run, task.name, kind) or {}
                changes.append(f"{task.name}.{key}: {entry[key]} became {len(names)} attributes: {', '.join(names)}")
                entry[key] = names
                if entry.pop(f"{key}_seed", None) is not None:
                    changes.append(f"{task.name}.{key}_seed: removed; its values are among the attributes")
        if isinstance(task.rubric, str):
            rubric = rubric_of(run, task.name) or {}
            changes.append(f"{task.name}.rubric: {task.rubric} became {len(rubric)} factors: {', '.join(rubric)}")
            entry["rubric"] = rubric
    return raw, changes


def static_text(raw: Mapping[str, Any], changes: list[str], source: str) -> str:
    """Return the configuration as YAML below a comment that lists the changes."""
    import yaml

    changes = changes or ["nothing was left to teachers; nothing has changed"]
    head = [f"# {source} with what its teachers proposed.", *(f"# - {' '.join(change.split())}" for change in changes)]
    body = yaml.safe_dump(dict(raw), sort_keys=False, allow_unicode=True, width=120)
    return "\n".join([*head, "", body])
