"""The ledger: who may ask, how often, for how much money a day, and what was spent.

Every question is answered from memory, without waiting. Sums are written to the database every 100 ms, and what other
workers wrote there is read in the same transaction: workers share limits, each seeing the others at most two such
intervals late. See `route.keep.database` for what a crash can lose.

A day is a day of UTC. A minute is any 60 seconds, counted by whole seconds. Spend is known when an answer ends; until
then its worst case is reserved, exactly across workers, see `route.keep.reservations`. A request belongs to the day
on which it was reserved.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import secrets
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from p2l.common.access import digest_of
from p2l.common.errors import ConfigError
from route.keep.accounts import Budget, Labels, Payer, payers_of, places_of, team_account
from route.keep.database import Connection, Database, DatabaseError, WriteBehind
from route.keep.reservations import (
    IDLE_SECONDS,
    LEASE_SECONDS,
    RENEW_SECONDS,
    Lease,
    LimitsUnavailableError,
    Purse,
    Reservation,
    Shortage,
    Worst,
    draw_lease,
    hold_leases,
    shrink_leases,
)
from route.keep.under_way import CallNote, CallNotes
from route.keep.usage import (
    DAY,
    News,
    Sums,
    Usage,
    Windows,
    add_to,
    note_batch,
    read_sums,
    write_sums,
)
from route.keep.workers import Peers, SharedCounts

if TYPE_CHECKING:
    from route.keep.redis_limits import RedisLimits

MAX_IN_FLIGHT = 1000
"""Requests of a key that a worker answers at once, where the configuration does not say."""


@dataclass(frozen=True)
class KeyRecord:
    """An API key and its limits; the key itself is not kept."""

    name: str
    """The name in logs, metrics and the database."""
    digest: str = field(repr=False)
    """SHA-256 of the key, in hexadecimal."""
    team: str | None = None
    """The team that shares its budget with the key."""
    spend_per_day: float | None = None
    """Limit in the unit of the models' costs; None: no limit."""
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    """Limit of the tokens of prompts and answers."""
    votes_per_day: int | None = None
    """Answers it may vote on in one day, UTC."""
    models: frozenset[str] | None = None
    """Names of the models it may be answered by; None: all."""
    cost: float | None = None
    """Budget of its requests that name none."""
    budget_usd: float | None = None
    """Dollars that its requests may cost on average, in every 1,000 of them."""
    max_cost_per_request: float | None = None
    """Ceiling of the cost of one request."""
    max_in_flight: int = MAX_IN_FLIGHT
    """Requests that the workers of one machine answer at once; the default is that of each worker."""


@dataclass(frozen=True)
class Refusal:
    """Why a request is not served, for the client."""

    status: int
    """Status of HTTP."""
    code: str
    """Code of OpenAI's error object: invalid_api_key, rate_limit_exceeded, insufficient_quota, ..."""
    message: str
    retry_after: float | None = None
    """Seconds, where waiting helps."""


def key_record(key: str, *, name: str | None = None, **limits: Any) -> KeyRecord:
    """Return the record of a key of the configuration; an unnamed one is called after its digest."""
    return key_of_digest(digest_of(key), name=name, **limits)


def key_of_digest(
    digest: str, *, name: str | None = None, models: Collection[str] | None = None, **limits: Any
) -> KeyRecord:
    """Return the record of a key of which the digest is known; `limits` are the fields of `KeyRecord`."""
    allowed = None if models is None else frozenset(models)
    return KeyRecord(name or f"key-{digest[:12]}", digest, models=allowed, **limits)


_ALONE = Refusal(503, "limits_unavailable", "the limits of this API key cannot be read now; send it again later", 1.0)


class Ledger(WriteBehind):
    """The accounts of all keys; used from one event loop."""

    def __init__(
        self,
        keys: Sequence[KeyRecord],
        database: Database,
        *,
        teams: Mapping[str, float] | None = None,
        budgets: Sequence[Budget] = (),
        shared_limits: str | None = None,
        without_shared: str = "local",
        peers: Peers | None = None,
        notes: Path | None = None,
        clock: Callable[[], float] = time.time,
        grace: float | None = None,
    ) -> None:
        """Know these keys, and what teams may spend a day; raise ConfigError if two are equal or have the same name.

        `shared_limits` is the URL of a Redis; `without_shared` says whether limited keys go on ("local") or are refused
        ("refuse") while it is gone, `grace` for how many seconds nobody leases where all have to say what they hold,
        `notes` in which folder calls under way are noted, so that a kill loses none (None: they are not).
        """
        super().__init__(database, clock)
        self._refuses_alone = without_shared == "refuse"
        self.shared: RedisLimits | None = None
        """Limits in Redis, beside those of the database; None: there is none."""
        self._configured: Mapping[str, KeyRecord] = {}
        self._stored: Mapping[str, KeyRecord] = {}
        self._keys: Mapping[str, KeyRecord] = {}  # all of them, by digest
        self._teams: Mapping[str, float] = {}
        self._budgets: Sequence[Budget] = ()
        self._gathered = Sums()
        self._spent: dict[tuple[int, str], float] = {}  # by (day, name): the database's sum and what has gathered
        self._requests, self._tokens = Windows(), Windows()
        self._seen = -1  # number of the last transaction whose rows are known
        self._worker = secrets.token_hex(8)
        self.notes = CallNotes(notes, self._worker)
        self._batch = 1  # number of the sums that gather
        self._noted: list[CallNote] = []  # of the batch that was taken last
        if shared_limits is not None:
            from route.keep.redis_limits import RedisLimits

            options = {} if grace is None else {"grace": grace}
            self.shared = RedisLimits(shared_limits, self._worker, clock=clock, **options)
            self.shared.on_loss = self._hold_in_database
        self._purses: dict[tuple[int, str], Purse] = {}  # by (day, name)
        self._renewed = -math.inf
        self._in_flight = Counter[str]()
        self._under_way = SharedCounts(peers or Peers(), "keys")
        self.check_keys(keys)
        self.replace_keys(keys, teams or {}, budgets)

    @property
    def names(self) -> set[str]:
        """Return the names of all keys."""
        return {record.name for record in self._keys.values()}

    @property
    def records(self) -> list[KeyRecord]:
        """Return all keys and their limits."""
        return list(self._keys.values())

    def check_keys(self, keys: Sequence[KeyRecord]) -> None:
        """Raise ConfigError if two keys of a configuration are equal, or have the name of another or a stored one."""
        records = _by_digest(keys)
        stored = {record.name for record in self._stored.values()}
        for record in records.values():
            if record.name in stored:
                raise ConfigError(f"keys: {record.name!r} is the name of a key in the database; choose another")

    def replace_keys(
        self, keys: Sequence[KeyRecord], teams: Mapping[str, float], budgets: Sequence[Budget] = ()
    ) -> None:
        """Know these keys of the configuration from now on, which `check_keys` has let pass, teams and budgets."""
        self._configured, self._teams, self._budgets = _by_digest(keys), teams, budgets
        self._use_keys()

    def replace_stored(self, keys: Sequence[KeyRecord]) -> list[str]:
        """Know these keys of the database from now on; return the names of those that a configured one has."""
        names = {record.name for record in self._configured.values()}
        self._stored = {record.digest: record for record in keys if record.name not in names}
        self._use_keys()
        return [record.name for record in keys if record.name in names]

    def _use_keys(self) -> None:
        self._keys = {**self._stored, **self._configured}
        limits = {team_account(name): limit for name, limit in self._teams.items()}
        limits |= {key.name: key.spend_per_day for key in self._keys.values() if key.spend_per_day is not None}
        for (_, account), purse in self._purses.items():
            purse.limit = limits.get(account, purse.limit)  # those of other budgets follow at their next request

    def check(self, bearer: str | None) -> KeyRecord | Refusal:
        """Return the record of a request's key; refuse a request without one, or with a wrong one (401)."""
        if bearer is None:
            return Refusal(
                401, "invalid_api_key", "no API key: send the header 'Authorization: Bearer KEY' or 'x-api-key: KEY'"
            )
        record = self._keys.get(digest_of(bearer))  # how long it takes to find tells nothing of a key by its digest
        if record is None:
            return Refusal(401, "invalid_api_key", "wrong API key")
        if record.team is not None and record.team not in self._teams:
            return Refusal(
                403, "unknown_team", f"the team of this API key, {record.team!r}, is not configured any more"
            )
        return record

    async def admit(
        self, key: KeyRecord, model_names: Sequence[str], tokens: int = 0, labels: Labels | None = None
    ) -> tuple[str, ...] | Refusal:
        """Count a request and return those of the models that may answer it, in the same order; or refuse it.

        403 if the key may use none of the models, 429 with `retry_after` if its minute or its day is used up. `tokens`
        is an estimate of those of the prompt.
        """
        models = tuple(name for name in model_names if key.models is None or name in key.models)
        if not models:
            return Refusal(403, "model_not_allowed", "this API key may not use the model")
        now = self._clock()
        for payer in self._payers(key, labels, now):
            if self._spent.get(payer.place, 0.0) >= payer.limit:
                what = "today" if payer.period == "day" else "this month"
                message = (
                    f"{payer.whose} has spent its {payer.limit:g} of {what}; "
                    f"the next {payer.period} begins at midnight, UTC"
                )
                return Refusal(429, "insufficient_quota", message, payer.seconds_left)
        if key.requests_per_minute is None and key.tokens_per_minute is None:
            return models
        return await self.count(key, tokens) or models

    async def count(self, key: KeyRecord, tokens: int = 0) -> Refusal | None:
        """Count a request of a key with a rate, in Redis where there is one; or refuse it."""
        now = self._clock()
        requests_a_minute, tokens_a_minute = key.requests_per_minute, key.tokens_per_minute
        is_shared = False
        if self.shared is not None:
            try:
                full = await self.shared.count(
                    key.name, now, requests=requests_a_minute, tokens=tokens_a_minute, size=tokens
                )
                is_shared = True
            except LimitsUnavailableError:
                if self._refuses_alone:
                    return _ALONE
        if not is_shared:
            full = self._full_rate(key, now, tokens)
        if full is not None:
            kind, wait = full
            message = f"this API key may use {tokens_a_minute} tokens a minute"
            if kind == "requests":
                message = f"this API key may ask {requests_a_minute} times a minute"
            return Refusal(429, "rate_limit_exceeded", message, wait)
        second = int(now)
        # Looked up after the call of Redis, during which a flush may have put other sums in place of `_gathered`. What
        # Redis has counted does not go to the database as well.
        gathered = Sums() if is_shared else self._gathered
        if requests_a_minute is not None:
            self._requests.add(key.name, second, 1)
            add_to(gathered.arrivals, (second, key.name), 1)
        if tokens_a_minute is not None:
            self._tokens.add(key.name, second, tokens)
            add_to(gathered.tokens, (second, key.name), tokens)
        return None

    def _full_rate(self, key: KeyRecord, now: float, tokens: int) -> tuple[str, float] | None:
        """Return which rate of a key is used up, by what this worker knows, and the seconds to wait."""
        most = key.requests_per_minute
        wait = None if most is None else self._requests.wait(key.name, now, most=most, more=1)
        if wait is not None:
            return "requests", wait
        most = key.tokens_per_minute
        # A prompt without tokens has an answer all the same, which needs room.
        wait = None if most is None else self._tokens.wait(key.name, now, most=most, more=max(tokens, 1))
        return None if wait is None else ("tokens", wait)

    def enter(self, key: KeyRecord) -> Refusal | None:
        """Count a request that this worker answers, until `leave`; or refuse it, if the key has too many of them.

        Those of other workers of the machine count where the key has a limit of its own.
        """
        has_own = key.max_in_flight != MAX_IN_FLIGHT
        elsewhere = self._under_way.elsewhere(key.name) if has_own else 0
        if self._in_flight[key.name] + elsewhere >= key.max_in_flight:
            message = f"this API key has {key.max_in_flight} requests under way, as many as it may"
            return Refusal(429, "rate_limit_exceeded", message, 1.0)
        self._in_flight[key.name] += 1
        if has_own:
            self._under_way.set(key.name, self._in_flight[key.name])
        return None

    def leave(self, key: KeyRecord) -> None:
        """Count the end of a request."""
        self._in_flight[key.name] -= 1
        if key.max_in_flight != MAX_IN_FLIGHT:
            self._under_way.set(key.name, self._in_flight[key.name])

    def has_limits(self, key: KeyRecord, labels: Labels | None = None) -> bool:
        """Return whether an account pays for a request that may not spend more than it has."""
        return bool(self._payers(key, labels, self._clock()))

    async def reserve(self, key: KeyRecord, worst: Worst, labels: Labels | None = None) -> Reservation | Refusal:
        """Reserve what a request may cost, or less where the day holds no more; a reservation must be settled.

        Where other requests of the key hold what is left, it waits for them a few seconds. 429 if that does not help,
        503 if the database cannot say what is left.
        """
        now = self._clock()
        day = int(now // DAY)
        held: list[tuple[Purse, float]] = []
        payers = self._payers(key, labels, now)
        amount = worst.most
        for payer in payers:
            whose = payer.whose
            purse = self._purse(payer.place, payer.limit, now)
            try:
                # Of what the key's own day does not cover, the team's needs not hold more.
                granted = await purse.reserve(
                    Worst(amount, min(worst.enough, amount), min(worst.least, amount)) if held else worst
                )
            except BaseException as error:  # a client that leaves while it waits, too
                _release(held, 0.0)
                if not isinstance(error, DatabaseError | LimitsUnavailableError):
                    raise
                if isinstance(error, LimitsUnavailableError):
                    return _ALONE
                message = f"what {whose} has spent cannot be read or written now"
                return Refusal(503, "database_unavailable", message, 1.0)
            if isinstance(granted, Shortage):
                _release(held, 0.0)
                budget = f"what is left of {whose}'s {purse.limit:g} a {payer.period}"
                if granted.spent:
                    message = f"{budget} does not cover the request"
                    return Refusal(429, "insufficient_quota", message, payer.seconds_left)
                message = f"other requests hold {budget}; try again when they end"
                return Refusal(429, "insufficient_quota", message, 1.0)
            held.append((purse, granted))
            amount = granted
        _release(held, amount)
        return Reservation(
            key=key.name,
            day=day,
            amount=amount if payers else None,
            places=tuple(payer.place for payer in payers),
            team=key.team,
            counts_tokens=key.tokens_per_minute is not None,
        )

    def _payers(self, key: KeyRecord, labels: Labels | None, now: float) -> list[Payer]:
        """Return the accounts with a limit that pay for a request."""
        payers = []
        day, left = int(now // DAY), DAY - now % DAY
        if key.spend_per_day is not None:
            payers.append(Payer((day, key.name), key.spend_per_day, "this API key", "day", left))
        if key.team is not None and key.team in self._teams:
            place = day, team_account(key.team)
            payers.append(Payer(place, self._teams[key.team], "the team of this API key", "day", left))
        return [*payers, *payers_of(self._budgets, key.name, key.team, labels, now)] if self._budgets else payers

    def _purse(self, place: tuple[int, str], limit: float, now: float) -> Purse:
        purse = self._purses.get(place)
        if purse is not None:
            purse.limit = limit
        else:
            # From Redis where it is there; from the database once every replica knows that it is gone.
            async def draw(need: float) -> Lease:
                shared = self.shared
                if shared is not None:
                    try:
                        return await shared.draw(place, limit=new.limit, need=need)
                    except LimitsUnavailableError:
                        if self._refuses_alone:
                            raise
                    if not shared.may_draw_elsewhere():  # others may hold what the database does not know yet
                        return Lease(0.0, self._spent.get(place, 0.0), math.inf)
                lease = await self._database.run(
                    lambda connection: draw_lease(
                        connection,
                        self._worker,
                        place,
                        limit=new.limit,
                        need=need,
                        now=self._clock(),
                        lost_seconds=self._database.lost_seconds,
                    )
                )
                if shared is not None:
                    shared.held[place] = shared.held.get(place, 0.0) + lease.granted
                return lease

            purse = new = Purse(limit, draw, lambda: self._spent.get(place, 0.0), self._clock)
            self._purses[place] = purse
            self._renewed = max(self._renewed, now)
        if self.shared is None and now > self._renewed + LEASE_SECONDS:  # expired: others may have leased it since
            for other in self._purses.values():
                other.give_back()
        return purse

    async def _hold_in_database(self, amounts: Mapping[tuple[int, str], float]) -> None:
        """Write down what this worker holds in a Redis that is gone, before anyone leases in the database."""
        with contextlib.suppress(DatabaseError):
            await self._database.run(
                lambda connection: hold_leases(connection, self._worker, amounts, now=self._clock())
            )

    def settle(
        self,
        reservation: Reservation,
        model: str,
        cost: float,
        *,
        answers: int = 1,
        prompt_tokens: int | None = None,
        completion_tokens: int | None = None,
        answer_tokens: int = 0,
        is_told: bool = True,
    ) -> None:
        """Release a reservation and book what the request has cost, on its day.

        Cost and tokens are those of all `answers` (choices) together, as the provider counts them; `answer_tokens` are
        those of the answer by any count, for keys with a limit; `is_told` says whether the provider told the cost.
        Raises ValueError for a cost below 0 or not a number.
        """
        if reservation.settled:
            raise ValueError("a reservation is settled once")
        reservation.settled = True
        day, name = reservation.day, reservation.key
        if cost or answers:
            if not (math.isfinite(cost) and cost >= 0):
                raise ValueError(f"cost is {cost!r}; it must be a finite number, zero or more")
            usage = Usage.of(answers, cost, prompt_tokens, completion_tokens)
            add_to(self._gathered.usage, (day, model, name), usage)
            for place in places_of(day, name, reservation.team, reservation.places):
                for sums in (self._gathered.spend, self._spent):
                    add_to(sums, place, cost)
        if reservation.note is not None:
            self._settle_note(reservation.note, cost, has_sums=bool(cost or answers), is_told=is_told)
        if answer_tokens and reservation.counts_tokens:
            self._use_tokens(name, answer_tokens)
        for place in reservation.places:
            purse = self._purses.get(place)
            leased = 0.0 if purse is None else purse.settle(reservation.amount or 0.0, cost)
            if leased:
                add_to(self._gathered.leases, place, leased)

    def _use_tokens(self, name: str, tokens: int) -> None:
        second = int(self._clock())
        self._tokens.add(name, second, tokens)
        if self.shared is not None:
            self.shared.use(name, second, tokens)
        else:
            add_to(self._gathered.tokens, (second, name), tokens)

    def _settle_note(self, note: CallNote, cost: float, *, has_sums: bool, is_told: bool) -> None:
        if not has_sums:
            note.end()
            return
        note.settle(cost, self._batch, is_told=is_told)
        self._gathered.notes.append(note)

    def spent_of(self, account: str) -> float:
        """Return what a key, by its name, or a `team_account` has spent since midnight, UTC, as this worker knows."""
        return self._spent.get((int(self._clock() // DAY), account), 0.0)

    def take(self) -> Sums:
        """See `WriteBehind`."""
        self._return_leases(IDLE_SECONDS)
        # The last batch is in the database, or would have been given back.
        for note in self._noted:
            note.end()
        self.notes.refresh()
        batch, self._gathered = self._gathered, Sums()
        batch.number, self._noted = self._batch, batch.notes
        self._batch += 1
        return batch

    async def start(self) -> None:
        """Read what earlier runs and other workers wrote, and share limits from now on."""
        try:
            await asyncio.to_thread(self.notes.start)
        except OSError as error:
            raise ConfigError(f"journal: {self.notes.path}: cannot be used: {error}") from error
        await super().start()
        if self.shared is not None:
            await self.shared.start()

    async def close(self) -> None:
        """Give back what is leased, and write what has gathered; the database stays open."""
        self._return_leases(-math.inf)
        await super().close()
        if self.shared is not None:
            await self.shared.close()

    def _return_leases(self, idle_seconds: float) -> None:
        """Give back what no request has reserved for so long, and renew the rest in time."""
        now = self._clock()
        for place, purse in list(self._purses.items()):
            if abs(now - purse.used) >= idle_seconds and (amount := purse.give_back()):
                add_to(self._gathered.leases, place, amount)
            if place[0] < now // DAY - 1:
                del self._purses[place]
        holds = not all(purse.is_empty for purse in self._purses.values())
        # abs: a clock that jumped back would else renew nothing until it is there again.
        self._gathered.renew = holds and abs(now - self._renewed) >= RENEW_SECONDS

    def write(self, connection: Connection, batch: Sums) -> News:
        """See `WriteBehind`."""
        if batch:
            connection.lock("ledger")
            write_sums(connection, batch, now=self._clock())
        if batch.notes:
            note_batch(connection, self._worker, batch.number, now=self._clock())
        if batch.leases or batch.renew:
            if self.shared is None or self.shared.fault is not None:
                lost = self._database.lost_seconds
                shrink_leases(connection, self._worker, batch.leases, now=self._clock(), lost_seconds=lost)
            self._renewed = self._clock()
        return self.read(connection)._replace(released=batch.leases)

    def read(self, connection: Connection) -> News:
        """Read the rows that other transactions changed since the last one that is known."""
        return read_sums(connection, self._seen)

    def absorb(self, news: News) -> None:
        """See `WriteBehind`."""
        self._seen = news.flush
        # Yesterday's sums stay: a request belongs to the day on which it was reserved.
        oldest = int(self._clock() // DAY) - 1
        self._spent = {place: cost for place, cost in self._spent.items() if place[0] >= oldest}
        for day, name, cost in news.spend:
            # Never less than before: a replica that was promoted may lack what others are about to write again.
            known = cost + self._gathered.spend.get((day, name), 0.0)
            self._spent[day, name] = max(known, self._spent.get((day, name), 0.0))
        if self.shared is not None:
            self.shared.note(news.released, {(day, name): cost for day, name, cost in news.spend})
        for second, name, requests in news.arrivals:
            self._requests.note(name, second, requests + self._gathered.arrivals.get((second, name), 0))
        for second, name, tokens in news.tokens:
            self._tokens.note(name, second, tokens + self._gathered.tokens.get((second, name), 0))

    def give_back(self, batch: Sums) -> None:
        """See `WriteBehind`."""
        self._gathered.add(batch)
        self._noted = []

    def recover(self, connection: Connection, batch: Sums | None) -> int:
        """See `WriteBehind`: the leases that this worker holds; and all sums are read anew."""
        self._seen = -1
        if self.shared is None or self.shared.fault is not None:
            # What was spent of a lease is taken off it with the batch that tells of it.
            untold = {} if batch is None else batch.leases
            amounts = {
                place: purse.held + self._gathered.leases.get(place, 0.0) + untold.get(place, 0.0)
                for place, purse in list(self._purses.items())
                if not purse.is_empty
            }
            hold_leases(connection, self._worker, amounts, now=self._clock())
        return 0


def _release(held: Sequence[tuple[Purse, float]], kept: float) -> None:
    """Release what was reserved beyond what is kept."""
    for purse, amount in held:
        if amount > kept:
            purse.settle(amount - kept, 0.0)


def _by_digest(keys: Sequence[KeyRecord]) -> Mapping[str, KeyRecord]:
    records = {record.digest: record for record in keys}
    if len(records) < len(keys):
        raise ConfigError("keys: one key is listed twice")
    names = Counter(record.name for record in keys)
    shared_name = next((name for name, times in names.items() if times > 1), None)
    if shared_name is not None:
        raise ConfigError(f"keys: the name {shared_name!r} is given to two keys")
    return records
