"""Whether every model is there, before anything is asked of it: no probe costs a token.

Models of one account share one list; all accounts are asked at the same time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from coeval.config.interfaces import INTERFACES
from coeval.config.keys import Keys
from coeval.config.schema import PHASES, ROLE_OF, Config, Model, Phase, Role
from coeval.storage.log import Log
from p2l.command import nearest
from p2l.errors import ConfigError
from route.providers.base import Account, Fault, ProviderError, Timeouts

if TYPE_CHECKING:
    from route.providers.listing import Catalogue

__all__ = ["OK", "PATIENCE", "models_needed", "probe_models", "probe_results", "tell_probe"]

OK = "ok"
PATIENCE = Timeouts(connect=10.0, first_token=20.0, stall=20.0, total=20.0)
_LATEST = "-latest"


def models_needed(config: Config, phases: Iterable[Phase]) -> list[Model]:
    """The models with a role in any of these phases, each with these roles alone."""
    roles = {ROLE_OF[phase] for phase in phases}
    needed = [replace(model, roles=tuple(role for role in model.roles if role in roles)) for model in config.models]
    return [model for model in needed if model.roles]


async def probe_models(config: Config, keys: Keys, phases_left: Iterable[Phase] = PHASES) -> dict[str, str]:
    """Model -> `ok`, or why it cannot be asked, for the models that these phases need, in the roles that they need."""
    results: dict[str, str] = {}
    groups: list[tuple[str, Account, list[Model]]] = []
    for model in models_needed(config, phases_left):
        if model.is_virtual or model.interface == "mock":
            results[model.name] = OK
            continue
        try:
            account = keys.account(model)
        except ConfigError as error:
            results[model.name] = str(error)
            continue
        group = next((group for group in groups if group[:2] == (model.interface, account)), None)
        if group is None:
            groups.append((model.interface, account, [model]))
        else:
            group[2].append(model)
    for found in await asyncio.gather(*(_probe(*group) for group in groups)):
        results.update(found)
    return {model.name: results[model.name] for model in config.models if model.name in results}


def tell_probe(found: Mapping[str, str], log: Log) -> list[str]:
    """Log what was found; the models that are not available."""
    for name, said in sorted(found.items()):
        (log.info if said == OK else log.warning)(f"probe: {name}: {said}")
    return sorted(name for name, said in found.items() if said != OK)


def probe_results(mode: str, on_fail: str, found: Mapping[str, str]) -> dict[str, Any]:
    """What `probe_results.json` holds."""
    return {"mode": mode, "on_fail": on_fail, "results": dict(found), "probed_models": sorted(found)}


async def _probe(interface: str, account: Account, models: Sequence[Model]) -> dict[str, str]:
    """The models of one account."""
    if interface == "huggingface":
        return {model.name: await _local(model, account) for model in models}
    from route.providers.listing import Catalogue

    catalogue = Catalogue(INTERFACES[interface].provider or "", account)
    try:
        listed = await catalogue.models(PATIENCE)
        said = await asyncio.gather(*(_found(catalogue, model, listed) for model in models))
        return {model.name: text for model, text in zip(models, said, strict=True)}
    except ProviderError as error:
        return dict.fromkeys((model.name for model in models), str(error))
    finally:
        await catalogue.close()


async def _found(catalogue: Catalogue, model: Model, listed: Collection[str]) -> str:
    if not catalogue.names_models or not listed:
        return OK
    for name, roles in model.asked_for.items():
        if not _is_listed(name, listed) and not await catalogue.has(name, PATIENCE):
            return f"{model.interface} has no model {name!r}{nearest(name, listed)}; mend {_key_of(model, roles)}"
    return OK


def _key_of(model: Model, roles: Sequence[Role]) -> str:
    """Where the configuration says what the provider calls the model in some roles."""
    own = next((role for role in roles if model.role_parameters.get(role, {}).get("model")), None)
    return f"role_parameters.{own}.model" if own else "parameters.model"


def _is_listed(name: str, listed: Collection[str]) -> bool:
    """Whether a list has a model: by its name, a dated form of it, without its maker, or a variant such as `:free`."""
    wanted = name.lower().removeprefix("models/")
    names = {other.lower() for other in listed}
    if names & {wanted, wanted.partition(":")[0], f"{wanted}:latest", wanted.rpartition("/")[2]}:
        return True
    stem = wanted.removesuffix(_LATEST)
    return any(other.startswith(f"{stem}-") and other[len(stem) + 1 :].replace("-", "").isdigit() for other in names)


async def _local(model: Model, account: Account) -> str:
    """A model of this machine: whether there is something to run it on, and whether it is there or at the hub."""
    devices = {str(model.parameters_for(role).get("device") or "auto") for role in model.roles}
    if devices - {"cpu"} and not await asyncio.to_thread(_has_gpu):
        return "no CUDA device here; run it on one, or write `device: cpu` in its parameters"
    found = [await _at_hub(name, _key_of(model, roles), account) for name, roles in model.asked_for.items()]
    return next((said for said in found if said != OK), OK)


async def _at_hub(name: str, key: str, account: Account) -> str:
    """Whether a folder, the cache or the hub has a model; `key` is where the configuration names it."""
    if Path(name).expanduser().exists() or _is_cached(name):
        return OK
    from route.providers.transport import Transport

    headers = {"Authorization": f"Bearer {account.api_key}"} if account.api_key else {}
    transport = Transport(account, headers)
    try:
        await transport.fetch(f"{account.base_url}/api/models/{quote(name, safe='/')}", PATIENCE)
    except ProviderError as error:
        if error.fault in (Fault.UNSUPPORTED, Fault.CREDENTIALS):
            return f"the hub shows no model {name!r}; mend {key}, or set HF_TOKEN where it is not public"
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
    except ModuleNotFoundError:
        return False
    try:
        return isinstance(try_to_load_from_cache(name, "config.json"), str)
    except ValueError:  # not a name that the hub could have
        return False
