"""Calls, accounts and configurations for tests of calling."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

from coeval.calling.caller import Cache, Caller
from coeval.calling.calls import Call, CallError, Reply
from coeval.calling.limits import MemoryLedger, Retries
from coeval.interfaces import Price
from coeval.schema import Config, Experiment, Model, Role
from p2l.common.errors import ConfigError
from route.providers.base import Account

AT_ONCE = Retries(base=0.0)


class OneAccount:
    """The same key for every model, at the address of its parameters."""

    def account(self, model: Model) -> Account:
        url = "https://huggingface.co" if model.interface == "huggingface" else model.parameters.get("base_url")
        if url is None:
            raise ConfigError(f"no key for {model.interface}")
        return Account(str(url), "a-key-of-ours", options=model.parameters.get("account", {}))


def model_at(url: str, name: str = "ant", interface: str = "openai", **parameters: Any) -> Model:
    return Model(name, interface, ("student",), {"base_url": url, "model": f"{name}-1", **parameters})


def call(model: Model, prompt: str = "Hello", **changes: Any) -> Call:
    role: Role = changes.pop("role", "student")
    phase = changes.pop("phase", "response_collection")
    return Call(model, role, phase, "letters", ("letters", model.name), prompt, **changes)


def caller_of(folder: Path, *, cache: bool = False, ledger: MemoryLedger | None = None, **experiment: Any) -> Caller:
    price = Price(*experiment.pop("price", (1.0, 1.0)))
    retries = experiment.pop("retries", AT_ONCE)
    config = Config((), (), Experiment("run", folder, **experiment))
    kept = Cache(folder / "cache.sqlite", fail) if cache else None
    return Caller(
        config, OneAccount(), ledger or MemoryLedger(), cache=kept, price=lambda _, __: price, retries=retries
    )


def fail(message: str) -> None:
    raise AssertionError(message)


def run(work: Callable[[Caller], Awaitable[Any]], caller: Caller) -> Any:
    """What some work with a caller gives."""

    async def all_of_it() -> Any:
        async with caller:
            return await work(caller)

    return asyncio.run(all_of_it())


def replies(caller: Caller, calls: Sequence[Call]) -> list[Reply | CallError]:
    """All replies, asked at once."""

    async def work(caller: Caller) -> list[Any]:
        return await asyncio.gather(*map(caller.ask, calls), return_exceptions=True)

    found: list[Reply | CallError] = run(work, caller)
    for one in found:
        if not isinstance(one, (Reply, CallError)):
            raise one
    return found
