"""Asks models for a run: in turn, again where that helps, within quotas and the budget, never twice what is kept."""

from __future__ import annotations

import asyncio
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Protocol

from coeval.calling.cache import Answer, Cache, cache_file, key_of
from coeval.calling.calls import (
    Call,
    CallError,
    Reason,
    Reply,
    Wishes,
    chat_request,
    check_whole,
    first_tokens,
    tokens_in,
    wished,
)
from coeval.calling.limits import Budget, Ledger, Limits, Retries, Tally, Turns, most_tokens
from coeval.interfaces import INTERFACES
from coeval.prices import price_of
from coeval.schema import Config, Model, Role
from coeval.storage.run import Run
from p2l.common.errors import ConfigError, P2LError
from route.providers.accounts import make_provider
from route.providers.base import JSON, Account, Fault, Provider, ProviderError, Timeouts

# A provider's client for each model; models of one account share their connections.

_MOCK = Account("http://mock")


class Accounts(Protocol):
    """Where the keys are."""

    def account(self, model: Model) -> Account:
        """Where a model is and the key for it.

        Raises:
            ConfigError: there is no key; names the variable and the file looked in.
        """
        ...


def kind_of(interface: str) -> str:
    """What `route.providers` calls an interface that is asked over the network.

    Raises:
        ConfigError: nothing here can ask it.
    """
    spec = INTERFACES.get(interface)
    if spec is None or not spec.protocol:
        raise ConfigError(f"interface: {interface} cannot be asked over the network")
    return spec.name


class Clients:
    """The clients of one run, each made when its first model is asked."""

    def __init__(self, accounts: Accounts) -> None:
        self._accounts = accounts
        self._of_model: dict[str, tuple[Account, Provider]] = {}
        self._made: list[tuple[str, Account, Provider]] = []

    def client_for(self, model: Model) -> tuple[Account, Provider]:
        """Where a model is, and who asks it.

        Raises:
            ConfigError: no key for it, or no client of its interface.
        """
        if model.name not in self._of_model:
            self._of_model[model.name] = self._client(model)
        return self._of_model[model.name]

    async def close(self) -> None:
        """Close all connections."""
        for _, _, provider in self._made:
            await provider.close()

    def _client(self, model: Model) -> tuple[Account, Provider]:
        account = _MOCK if model.interface == "mock" else self._accounts.account(model)
        for interface, other, provider in self._made:
            if (interface, other) == (model.interface, account):
                return account, provider
        provider = _make(model.interface, account)
        self._made.append((model.interface, account, provider))
        return account, provider


def _make(interface: str, account: Account) -> Provider:
    if interface == "mock":
        from coeval.mock.models import MockModel

        return MockModel(account)
    if interface == "huggingface":
        from coeval.calling.local import LocalModels

        return LocalModels(account)
    return make_provider(kind_of(interface), account)


Price = Callable[[Model, Role], tuple[float, float]]
_MILLION = 1e6
_CONNECT = 10.0  # seconds
_REFUSED = 5  # requests without any answer, before the parameters must be at fault
_BILLED = (Fault.TIMEOUT, Fault.MALFORMED)
"""After which the provider has done its work all the same."""


@dataclass
class Totals:
    """What was asked so far, in this process."""

    requests: int = 0
    """Sent, the failed ones too."""
    cached: int = 0
    retries: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost_usd: float = 0.0
    by_model: Counter[str] = field(default_factory=Counter)
    """Requests of each model."""


@dataclass(frozen=True)
class _Line:
    """Everything that asking one model in one role takes."""

    call: Call
    request: JSON
    provider: Provider
    turns: Turns
    price: tuple[float, float]

    def cost(self, prompt_tokens: int, completion_tokens: int) -> float:
        """Dollars."""
        return (prompt_tokens * self.price[0] + completion_tokens * self.price[1]) / _MILLION


@dataclass
class _Bill:
    """What a request cost."""

    usd: float = 0.0


class Caller:
    """Everything that is asked for one run; made and used in one event loop."""

    def __init__(
        self,
        config: Config,
        accounts: Accounts,
        ledger: Ledger,
        *,
        cache: Cache | None = None,
        price: Price | None = None,
        retries: Retries | None = None,
        warn: Callable[[str], None] | None = None,
    ) -> None:
        """A caller that connects when it is asked.

        Args:
            config: the run's.
            accounts: where the keys are.
            ledger: counts calls and dollars over all starts of the run.
            cache: of answers; none by default.
            price: dollars for a million tokens of prompt and of answer; list prices by default.
            retries: how often and how long.
            warn: hears what the user should know; stderr by default.
        """
        experiment = config.experiment
        self.totals = Totals()
        self._quota, self._ledger, self._cache = experiment.quota, ledger, cache
        self._price, self._retries = price or price_of, retries or Retries()
        self._prices: dict[tuple[str, str], tuple[float, float]] = {}
        self._clients = Clients(accounts)
        self._wishes = Wishes(warn or _to_stderr)
        self._limits = Limits(experiment.concurrency, experiment.rate_limit)
        self._budget = Budget(experiment.budget_usd, ledger)
        timeout = experiment.request_timeout
        self._timeouts = Timeouts(min(_CONNECT, timeout), timeout, timeout, timeout)
        self._stopped: dict[tuple[str, str], str] = {}
        self._refused: Counter[tuple[str, str]] = Counter()
        self._answered: set[tuple[str, str]] = set()

    async def __aenter__(self) -> Caller:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close all connections and the cache."""
        await self._clients.close()
        if self._cache is not None:
            self._cache.close()

    async def ask(self, call: Call) -> Reply:
        """The answer; waits for its turn at the provider, retries what may pass, counts quota and dollars.

        Raises:
            CallError: there is none.
        """
        line, key = self._line(call)
        kept = self._cache.get(key) if self._cache is not None and key is not None else None
        if kept is not None:
            self.totals.cached += 1
            answer = kept
        else:
            answer = await self._tried(line)
            if self._cache is not None and key is not None:
                self._cache.put(key, answer)
        if call.logprobs:
            self._wishes.check(call.model.name, answer.tokens)
        if kept is not None:
            return _reply(kept, 0.0, cached=True)
        return _reply(answer, line.cost(answer.prompt_tokens, answer.completion_tokens))

    def _line(self, call: Call) -> tuple[_Line, bytes | None]:
        """What asking takes, and the key of its answer where that may be kept."""
        model = call.model
        try:
            account, provider = self._clients.client_for(model)
        except P2LError as error:
            raise CallError(Reason.FATAL, str(error)) from None
        request = chat_request(model, call.role, call.prompt, wished(model) if call.logprobs else None)
        if model.interface == "mock":  # which costs nothing, and draws anew for each attempt
            request, key = {**request, "attempt": call.attempt}, None
        else:
            key = key_of(model.interface, account.base_url, request, call.attempt)
        line = _Line(call, request, provider, self._limits.at(model.interface), self._price_of(call))
        return line, key if call.phase is not None else None

    def _price_of(self, call: Call) -> tuple[float, float]:
        whose = _whose(call)
        if whose not in self._prices:
            self._prices[whose] = self._price(call.model, call.role)
        return self._prices[whose]

    async def _tried(self, line: _Line) -> Answer:
        """The answer, after as many requests as it takes."""
        failed, plain = 0, False
        while True:
            try:
                answer = await self._requested(line)
            except ProviderError as error:
                without = self._wishes.dropped(line.request, error) if line.call.logprobs else None
                if without is not None:
                    line, plain = replace(line, request=without), True
                    continue
                failed += 1
                wait = self._retries.wait(error, failed)
                if wait is None:
                    raise self._given_up(line.call, error) from None
                if error.fault is Fault.RATE_LIMIT and error.retry_after:
                    line.turns.pause(error.retry_after)
                self.totals.retries += 1
                await asyncio.sleep(wait)
            else:
                self._answered.add(_whose(line.call))
                if plain:
                    self._wishes.refused(_whose(line.call))
                return answer

    async def _requested(self, line: _Line) -> Answer:
        """The answer to one request, paid for.

        Raises:
            ProviderError: none came.
            CallError: nothing may be asked any more.
        """
        async with line.turns.turn(line.call.model.name):
            self._check_goes_on(line.call)
            held, bill = line.cost(*most_tokens(line.request)), _Bill()
            await self._budget.hold(held)
            try:
                self._count(line.call)
                return await self._sent(line, bill)
            finally:
                self.totals.cost_usd += bill.usd
                self._budget.settle(held, bill.usd)

    async def _sent(self, line: _Line, bill: _Bill) -> Answer:
        # Whoever goes away in the middle may have to pay for the question.
        bill.usd = line.cost(most_tokens(line.request)[0], 0)
        request = self._wishes.sent(line.request, _whose(line.call)) if line.call.logprobs else line.request
        started = time.perf_counter()
        try:
            completion = await line.provider.chat(request, self._timeouts)
        except ProviderError as error:
            bill.usd *= error.fault in _BILLED
            raise
        seconds = time.perf_counter() - started
        read, written, counted = tokens_in(completion, line.request)
        bill.usd = line.cost(read, written)
        self.totals.prompt_tokens += read
        self.totals.completion_tokens += written
        tokens = first_tokens(completion) if line.call.logprobs else None
        return Answer(check_whole(completion), read, written, counted, seconds, tokens)

    def _count(self, call: Call) -> None:
        """Count a request that is about to be sent."""
        name = call.model.name
        if call.phase is not None and not self._ledger.reserve_call(name, self._quota.get(name)):
            raise CallError(Reason.QUOTA, f"its quota of {self._quota[name]} calls is used up")
        self.totals.requests += 1
        self.totals.by_model[name] += 1

    def _check_goes_on(self, call: Call) -> None:
        why = self._stopped.get((call.model.name, "")) or self._stopped.get(_whose(call))
        if why is not None:
            raise CallError(Reason.FATAL, why)

    def _given_up(self, call: Call, error: ProviderError) -> CallError:
        """The error of a call; what will fail whatever is asked stops the model, or the model in this role."""
        whose, fault = _whose(call), error.fault
        text = str(error)
        if fault is Fault.UNSUPPORTED and error.detail:
            text += f": {error.detail}"
        if fault is Fault.REQUEST and whose not in self._answered:
            self._refused[whose] += 1
        if fault is Fault.CREDENTIALS:
            whose = (call.model.name, "")
        elif fault is not Fault.UNSUPPORTED and self._refused[whose] < _REFUSED:
            return CallError(Reason.FAILED, text)
        self._stopped[whose] = text
        return CallError(Reason.FATAL, text)


def make_caller(
    config: Config,
    keys: Accounts,
    run: Run | None = None,
    meta: Ledger | None = None,
    *,
    warn: Callable[[str], None] | None = None,
) -> Caller:
    """The caller of a run.

    Args:
        config: the run's; with `cache: false` everything is asked anew.
        keys: where the keys are.
        run: beside its folder answers are kept; beside those of the configuration by default.
        meta: counts calls and dollars over all starts; those of this caller alone by default.
        warn: hears what the user should know; stderr by default.
    """
    folder = run.folder.parent if run is not None else config.experiment.storage_folder
    cache = Cache(cache_file(folder), warn or _to_stderr) if config.experiment.cache else None
    return Caller(config, keys, meta or Tally(), cache=cache, warn=warn)


def _to_stderr(message: str) -> None:
    print(f"warning: {message}", file=sys.stderr)


def _whose(call: Call) -> tuple[str, str]:
    return call.model.name, call.role


def _reply(answer: Answer, cost_usd: float, *, cached: bool = False) -> Reply:
    return Reply(
        answer.text,
        answer.prompt_tokens,
        answer.completion_tokens,
        cost_usd,
        answer.seconds,
        counted=answer.counted,
        cached=cached,
        tokens=answer.tokens,
    )
