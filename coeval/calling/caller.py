"""Make the calls of a run: within limits, quotas and the budget, with retries, never for a reply that is cached."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import sqlite3
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from coeval.calling import calls
from coeval.calling.calls import Call, CallError, Reason, Reply
from coeval.calling.limits import Budget, Ledger, Limits, MemoryLedger, Retries, Turns, most_tokens
from coeval.interfaces import INTERFACES, Price, price_of
from coeval.schema import Config, Model, Role
from coeval.storage.run import Run
from p2l.common.errors import ConfigError, P2LError
from route.providers.accounts import make_provider
from route.providers.base import JSON, Account, Fault, Provider, ProviderError, Timeouts

_MOCK = Account("http://mock")
_CONNECT_SECONDS = 10.0
_MAX_REJECTIONS = 5  # requests rejected before any reply, after which the parameters must be at fault
_BILLED = (Fault.TIMEOUT, Fault.MALFORMED)  # after which the provider has done its work all the same


class Accounts(Protocol):
    """Where the API keys are."""

    def account(self, model: Model) -> Account:
        """Return a model's address and key. Raise ConfigError, which names the places tried, if there is none."""
        ...


def _connect(interface: str, account: Account) -> Provider:
    if interface == "mock":
        from coeval.mock.models import MockModel

        return MockModel(account)
    if interface == "huggingface":
        from coeval.calling.local import LocalModels

        return LocalModels(account)
    spec = INTERFACES.get(interface)
    if spec is None or not spec.protocol:
        raise ConfigError(f"interface: {interface} cannot be asked over the network")
    return make_provider(spec.name, account)


@dataclass
class _Totals:
    """Counts of this process."""

    requests: int = 0  # sent, the failed ones too
    cached: int = 0
    retries: int = 0
    prompt_tokens: int = 0
    cost_usd: float = 0.0


@dataclass(frozen=True)
class _Prepared:
    """A call with everything that sending it needs."""

    call: Call
    request: JSON
    provider: Provider
    turns: Turns
    price: Price
    cache_key: bytes | None

    @property
    def who(self) -> tuple[str, str]:
        """Return the model and its role."""
        return self.call.model.name, self.call.role


class Caller:
    """Makes the calls of one run; used in one event loop."""

    def __init__(
        self,
        config: Config,
        accounts: Accounts,
        ledger: Ledger,
        *,
        cache: Cache | None = None,
        price: Callable[[Model, Role], Price] = price_of,
        retries: Retries | None = None,
        warn: Callable[[str], None] | None = None,
    ) -> None:
        """Create a caller; `ledger` counts over all starts of the run, `warn` receives what the user should know."""
        experiment = config.experiment
        self.totals = _Totals()
        self._quota, self._ledger, self._cache = experiment.quota, ledger, cache
        self._price, self._retries = price, retries or Retries()
        self._prices: dict[tuple[str, str], Price] = {}
        self._accounts = accounts
        self._clients: dict[str, tuple[str, Account, Provider]] = {}
        told = warn or _to_stderr
        self._logprobs = calls.OptionalFields(calls.LOGPROB_FIELDS, calls.NO_LOGPROBS, told)
        self._structure = calls.OptionalFields(calls.STRUCTURE_FIELDS, calls.NO_STRUCTURE, told)
        self._limits = Limits(experiment.concurrency, experiment.rate_limit)
        self._budget = Budget(experiment.budget_usd, ledger)
        timeout = experiment.request_timeout
        max_bytes = int(experiment.max_answer_mb * 2**20)
        self._timeouts = Timeouts(min(_CONNECT_SECONDS, timeout), timeout, timeout, timeout, max_bytes)
        self._stopped: dict[tuple[str, str], str] = {}
        self._rejections: Counter[tuple[str, str]] = Counter()
        self._answered: set[tuple[str, str]] = set()

    async def __aenter__(self) -> Caller:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close all connections and the cache."""
        for provider in {provider for *_, provider in self._clients.values()}:
            await provider.close()
        if self._cache is not None:
            self._cache.close()

    async def ask(self, call: Call) -> Reply:
        """Return the reply to a call, from the cache or within all limits. Raise CallError if there is none."""
        prepared = self._prepare(call)
        cache, key = self._cache, prepared.cache_key
        cached = cache.get(key) if cache is not None and key is not None else None
        self.totals.cached += cached is not None
        reply = cached or await self._with_retries(prepared)
        if cache is not None and key is not None and cached is None:
            cache.put(key, reply)
        if call.logprobs and not reply.tokens:
            self._logprobs.warn(call.model.name)
        return reply

    def _prepare(self, call: Call) -> _Prepared:
        model, key = call.model, None
        try:
            if model.name not in self._clients:
                origin = model.interface, _MOCK if model.interface == "mock" else self._accounts.account(model)
                # Models of one account share their connections.
                shared = next((client for *other, client in self._clients.values() if tuple(other) == origin), None)
                self._clients[model.name] = (*origin, shared or _connect(*origin))
            _, account, provider = self._clients[model.name]
        except P2LError as error:
            raise CallError(Reason.FATAL, str(error)) from None
        request = calls.chat_request(model, call.role, call.prompt, _optional_parameters(call))
        if model.interface == "mock":  # costs nothing, and draws anew for each attempt
            request["attempt"] = call.attempt
        elif call.phase is not None:
            key = key_of(model.interface, account.base_url, request, call.attempt)
        role = model.name, call.role
        if role not in self._prices:
            self._prices[role] = self._price(model, call.role)
        return _Prepared(
            call=call,
            request=request,
            provider=provider,
            turns=self._limits.at(model.interface),
            price=self._prices[role],
            cache_key=key,
        )

    async def _with_retries(self, prepared: _Prepared) -> Reply:
        """Return the reply, after as many requests as it takes."""
        failed, is_fallback = 0, False
        while True:
            try:
                reply = await self._send(prepared)
            except ProviderError as error:
                optional = self._optional(prepared.call)
                fallback = optional.fallback(prepared.request, error) if optional is not None else None
                if fallback is not None:
                    prepared, is_fallback = replace(prepared, request=fallback), True
                    continue
                failed += 1
                wait = self._retries.wait(error, failed)
                if wait is None:
                    raise self._final_error(prepared, error) from None
                if error.fault is Fault.RATE_LIMIT and error.retry_after:
                    prepared.turns.pause(error.retry_after)
                self.totals.retries += 1
                await asyncio.sleep(wait)
            else:
                self._answered.add(prepared.who)
                optional = self._optional(prepared.call)
                if is_fallback and optional is not None:
                    optional.reject(prepared.who)
                return reply

    def _optional(self, call: Call) -> calls.OptionalFields | None:
        """Return the fields of a call that its model may refuse; None where it has none."""
        if not _optional_parameters(call):  # a form that the user asks for stays
            return None
        return self._logprobs if call.logprobs else self._structure

    async def _send(self, prepared: _Prepared) -> Reply:
        """Send one request and count what it costs. Raise ProviderError or CallError if there is no reply."""
        call, price = prepared.call, prepared.price
        async with prepared.turns.turn(call.model.name):
            name = call.model.name
            why = self._stopped.get((name, "")) or self._stopped.get(prepared.who)
            if why is not None:
                raise CallError(Reason.FATAL, why)
            most_prompt, most_answer = most_tokens(prepared.request)
            held, cost = price.cost(most_prompt, most_answer), 0.0
            await self._budget.hold(held)
            try:
                if call.phase is not None and not self._ledger.reserve_call(name, self._quota.get(name)):
                    raise CallError(Reason.QUOTA, f"its quota of {self._quota[name]} calls is used up")
                self.totals.requests += 1
                cost = price.cost(most_prompt, 0)  # due even if the call is cancelled from here on
                request = prepared.request
                optional = self._optional(call)
                if optional is not None:
                    request = optional.supported(request, prepared.who)
                started = time.perf_counter()
                try:
                    completion = await prepared.provider.chat(request, self._timeouts)
                except ProviderError as error:
                    cost *= error.fault in _BILLED
                    raise
                seconds = time.perf_counter() - started
                usage, counted = calls.usage_of(completion, request)
                read, written = usage.prompt or 0, usage.completion or 0
                cost = price.cost_of(usage)
                self.totals.prompt_tokens += read
                tokens = calls.first_tokens(completion) if call.logprobs else None
                return Reply(calls.check_whole(completion), read, written, cost, seconds, counted, tokens=tokens)
            finally:
                self.totals.cost_usd += cost
                self._budget.settle(held, cost)

    def _final_error(self, prepared: _Prepared, error: ProviderError) -> CallError:
        """Return the error of a call; one that would meet every call stops the model, or the model in this role."""
        who, fault, text = prepared.who, error.fault, str(error)
        if fault is Fault.UNSUPPORTED and error.detail:
            text += f": {error.detail}"
        if fault is Fault.REQUEST and who not in self._answered:
            self._rejections[who] += 1
        if fault is Fault.CREDENTIALS:
            who = (prepared.call.model.name, "")
        elif fault is not Fault.UNSUPPORTED and self._rejections[who] < _MAX_REJECTIONS:
            return CallError(Reason.FAILED, text)
        self._stopped[who] = text
        return CallError(Reason.FATAL, text)


def _optional_parameters(call: Call) -> dict[str, Any] | None:
    """Return the parameters of a call that its model may refuse.

    Log-probabilities are of the first word of a reply in words, so that they exclude a form of another kind.
    """
    if call.logprobs:
        return calls.logprob_parameters(call.model)
    return None if call.schema is None else calls.structure_parameters(call.model, call.role, call.schema)


def make_caller(
    config: Config,
    keys: Accounts,
    run: Run | None = None,
    meta: Ledger | None = None,
    *,
    warn: Callable[[str], None] | None = None,
) -> Caller:
    """Return a caller with the cache beside the run; without `meta` calls and dollars are counted in memory."""
    folder = run.folder.parent if run is not None else config.experiment.storage_folder
    cache = Cache(cache_file(folder), warn or _to_stderr) if config.experiment.cache else None
    return Caller(config, keys, meta or MemoryLedger(), cache=cache, warn=warn)


def _to_stderr(message: str) -> None:
    print(f"warning: {message}", file=sys.stderr)


# The response cache: replies that were paid for once, in one SQLite file that several runs may share.
#
# A key is a hash of everything that decides a reply; neither prompts nor API keys are stored. The cache is a
# convenience: where the file cannot be read or written, calls are made.

_VARIABLE = "COEVAL_CACHE"
_LOCK_SECONDS = 5.0  # seconds that another run may lock the file
_TABLE = """CREATE TABLE IF NOT EXISTS answers (
    key BLOB PRIMARY KEY, text TEXT NOT NULL, prompt_tokens INTEGER NOT NULL, completion_tokens INTEGER NOT NULL,
    counted INTEGER NOT NULL, seconds REAL NOT NULL
) WITHOUT ROWID"""
# A table of its own, as files of earlier versions have no such column.
_TOKENS = "CREATE TABLE IF NOT EXISTS tokens (key BLOB PRIMARY KEY, tokens TEXT NOT NULL) WITHOUT ROWID"


def cache_file(storage_folder: Path) -> Path:
    """Return the path of the cache: in the folder that `COEVAL_CACHE` names, or in that of the runs."""
    folder = os.environ.get(_VARIABLE)
    return Path(folder).expanduser() / "responses.sqlite" if folder else storage_folder / "coeval-cache.sqlite"


def key_of(interface: str, base_url: str, request: dict[str, Any], attempt: int) -> bytes:
    """Return the hash of what decides a reply: provider, address, request, and the number of the attempt."""
    text = json.dumps([interface, base_url, request, attempt], sort_keys=True, default=str)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()


class Cache:
    """The replies in one file, which is opened, and created, on first use."""

    def __init__(self, path: Path, warn: Callable[[str], None]) -> None:
        """`warn` receives, once, why replies are not cached."""
        self._path, self._warn = path, warn
        self._file: sqlite3.Connection | None = None
        self._is_broken = False

    def get(self, key: bytes) -> Reply | None:
        """Return a cached reply, if there is one."""
        if self._file is None and not self._path.exists():
            return None
        row = self._do(
            "SELECT text, prompt_tokens, completion_tokens, counted, seconds FROM answers WHERE key = ?", (key,)
        )
        if row is None:
            return None
        tokens = self._do("SELECT tokens FROM tokens WHERE key = ?", (key,))
        pairs = tuple((token, logprob) for token, logprob in json.loads(tokens[0])) if tokens else None
        return Reply(row[0], row[1], row[2], 0.0, row[4], counted=bool(row[3]), cached=True, tokens=pairs)

    def put(self, key: bytes, reply: Reply) -> None:
        """Store a reply; it survives a kill right after."""
        if reply.tokens:  # first, so that a reply that is there has them
            self._do("INSERT OR REPLACE INTO tokens VALUES (?, ?)", (key, json.dumps(reply.tokens)))
        columns = (reply.text, reply.prompt_tokens, reply.completion_tokens, reply.counted, reply.seconds)
        self._do("INSERT OR REPLACE INTO answers VALUES (?, ?, ?, ?, ?, ?)", (key, *columns))

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _do(self, statement: str, parameters: tuple[Any, ...]) -> Any:
        """Return the first row; None if there is none, or the file cannot be used."""
        if self._is_broken:
            return None
        try:
            if self._file is None:
                self._path.parent.mkdir(parents=True, exist_ok=True)
                # Without transactions of several statements: runs that share the file wait for one statement at most.
                self._file = sqlite3.connect(self._path, timeout=_LOCK_SECONDS, isolation_level=None)
                # A crash of the machine may lose the last replies, never the file; a kill loses nothing.
                for setting in ("PRAGMA journal_mode = WAL", "PRAGMA synchronous = NORMAL", _TABLE, _TOKENS):
                    self._file.execute(setting)
            return self._file.execute(statement, parameters).fetchone()
        except UnicodeError:  # text that SQLite cannot store
            return None
        except (sqlite3.Error, OSError) as error:
            self._is_broken = True
            self._warn(f"{self._path}: {error}; answers are not kept from here on")
            return None
