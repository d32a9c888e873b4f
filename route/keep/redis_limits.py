"""Limits that replicas share through Redis: requests and tokens of a minute, and who may spend what of a day.

A request of a key with a rate is counted by one script, exactly, whichever replica it comes to. Spend is reserved in
leases, as `route.keep.reservations` explains: one script settles what a replica has spent and reserves more, so that
spend and leases together never exceed a limit. A lease is sent as its whole amount and spend as the database's sum, of
which the greater one counts: a script that ran twice, or whose reply was lost, changes nothing.

Redis need not keep anything. What a lease covers stays in it until the database has it as spend, so that a Redis that
comes back empty is told both: leases by those who hold them, spend by all. Nobody leases more for the first moments, in
which that happens. While Redis is gone the same holds of the leases that are in the database meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import TypeVar
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from p2l.common.errors import ConfigError
from route.keep.database import without_password
from route.keep.reservations import LEASE_SECONDS, OF_FREE, OF_LIMIT, RENEW_SECONDS, Lease, LimitsUnavailableError
from route.keep.usage import AHEAD, WINDOW, Windows

try:
    import redis.asyncio
    from redis.asyncio.retry import Retry
    from redis.backoff import NoBackoff
    from redis.exceptions import RedisError
except ImportError as error:
    raise ConfigError("shared_limits: a redis:// URL needs the extra: pip install 'p2l[replicas]'") from error

T = TypeVar("T")
Place = tuple[int, str]
"""A day (since 1970, UTC) and an account."""
_GRACE = 2.0
"""Seconds in which all replicas notice that Redis is empty or gone, and say what they hold."""
_SETTLE_SECONDS = 0.1
_REPLY_SECONDS = 1.0
_RETRY_SECONDS = 0.5  # between two tries to reach a Redis that is gone
_LOGGER = logging.getLogger("route")

_COUNT = """
local second, ahead, window = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local more = {}
for place, key in ipairs(KEYS) do
  local most = tonumber(ARGV[2 + 2 * place])
  more[place] = tonumber(ARGV[3 + 2 * place])
  local sum, rows = 0, redis.call('HGETALL', key)
  for at = 1, #rows, 2 do
    local bucket = tonumber(rows[at])
    if bucket <= second - window or bucket > second + ahead then redis.call('HDEL', key, rows[at])
    else sum = sum + tonumber(rows[at + 1]) end
  end
  if most >= 0 and sum + more[place] > most then return {place, redis.call('HGETALL', key)} end
end
for place, key in ipairs(KEYS) do
  redis.call('HINCRBY', key, second, more[place])
  redis.call('EXPIRE', key, 2 * window)
end
return false
"""
"""Count a request in the windows of requests and tokens, or return which of them is full, and its seconds."""
_LEASE = """
local account, epoch = KEYS[1], KEYS[2]
local worker, now, out, spent = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local limit, need, seconds = tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[7])
local clock = redis.call('TIME')
local moment = tonumber(clock[1]) + tonumber(clock[2]) / 1e6
local since = redis.call('GET', epoch)
if not since then
  since = string.format('%.6f', moment)
  redis.call('SET', epoch, since)
end
local known = tonumber(redis.call('HGET', account, 'spent') or '0')
if spent > known then
  known = spent
  redis.call('HSET', account, 'spent', ARGV[4])
end
local others, rows = 0, redis.call('HGETALL', account)
for at = 1, #rows, 2 do
  local owner = string.match(rows[at], '^lease:(.*)$')
  if owner and owner ~= worker then
    local amount, expires = string.match(rows[at + 1], '^(%S+) (%S+)$')
    expires = tonumber(expires)
    if expires < now or expires > now + 2 * seconds then redis.call('HDEL', account, rows[at])
    else others = others + tonumber(amount) end
  end
end
local granted, young = 0, moment - tonumber(since) < tonumber(ARGV[10])
if need > 0 and not young then
  local free = limit - known - others - out
  local share = math.min(free / tonumber(ARGV[8]), limit / tonumber(ARGV[9]))
  granted = math.max(0, math.min(free, math.max(need, share)))
end
if out + granted > 0 then
  local lease = string.format('%.17g %.17g', out + granted, now + seconds)
  redis.call('HSET', account, 'lease:' .. worker, lease)
else
  redis.call('HDEL', account, 'lease:' .. worker)
end
redis.call('EXPIRE', account, 172800)
return {string.format('%.17g', granted), string.format('%.17g', known), string.format('%.17g', others),
        young and 1 or 0, since}
"""
"""Take over what a worker holds and what the database says is spent, and lease as much more as is needed."""


class RedisLimits:
    """The limits of one worker's keys in Redis; used from one event loop."""

    def __init__(self, url: str, worker: str, *, clock: Callable[[], float] = time.time, grace: float = _GRACE) -> None:
        """Connect to nothing yet; `?prefix=NAME` of the URL begins all keys (default: p2l)."""
        parts = urlsplit(url)
        query = dict(parse_qsl(parts.query))
        prefix = query.pop("prefix", "p2l")
        if not prefix.isidentifier():
            raise ConfigError("shared_limits: prefix must be of letters, digits and underscores")
        parts = parts._replace(query=urlencode(query))
        self._url = urlunsplit(parts)
        self.name = urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))
        """The URL without user and password."""
        # In braces Redis takes it alone for the slot of a key: a script needs all its keys on one node of a cluster.
        self._prefix = f"{{{prefix}}}"
        self._worker, self._clock, self._grace = worker, clock, grace
        self.fault: str | None = None
        """Why Redis cannot be asked; None: it can."""
        self.on_loss: Callable[[Mapping[Place, float]], Awaitable[None]] | None = None
        """Called once with what this worker holds when Redis is gone."""
        self.held: dict[Place, float] = {}
        """Leased, and not yet given back or written to the database as spend."""
        self.spent: dict[Place, float] = {}
        """Spend by the database."""
        self._lost = -math.inf
        self._tried = -math.inf
        self._renewed = -math.inf
        self._since: str | None = None
        self._changed: set[Place] = set()
        self._tokens: dict[tuple[str, int], int] = {}
        self._one_call = asyncio.Lock()
        self._ticking: asyncio.Task[None] | None = None
        self._stop = asyncio.Event()
        try:
            self._client: redis.asyncio.Redis = redis.asyncio.from_url(
                self._url,
                socket_timeout=_REPLY_SECONDS,
                socket_connect_timeout=_REPLY_SECONDS,
                retry=Retry(NoBackoff(), 1),
                decode_responses=True,
            )
        except ValueError as error:
            reason = without_password(error, self._url)
            raise ConfigError(f"shared_limits: {self.name}: is not the URL of a Redis server: {reason}") from None
        self._count = self._client.register_script(_COUNT)
        self._lease = self._client.register_script(_LEASE)

    async def start(self) -> None:
        """Tell Redis every 100 ms from now on what this worker holds; raise ConfigError where it cannot be reached."""
        try:
            await self._client.ping()
        except (RedisError, OSError) as error:
            await self._client.aclose()
            reason = without_password(error, self._url)
            raise ConfigError(f"shared_limits: {self.name}: cannot be reached: {reason}") from None
        self._ticking = asyncio.create_task(self._tick(), name="route-limits")

    async def close(self) -> None:
        """Tell what is still held, and disconnect; a second call does nothing."""
        if self._ticking is not None:
            self._stop.set()  # not a cancellation: redis-py can swallow one that comes while it reads
            await asyncio.gather(self._ticking, return_exceptions=True)
            self._ticking = None
            if self.fault is None:
                with contextlib.suppress(LimitsUnavailableError):
                    await self.settle()
        await self._client.aclose()

    async def count(
        self, name: str, now: float, *, requests: int | None, tokens: int | None, size: int
    ) -> tuple[str, float] | None:
        """Count a request of `size` tokens, or return which rate is used up and the seconds to wait.

        `requests` and `tokens` are the most in a minute. Raise LimitsUnavailableError if Redis cannot be asked.
        """
        both = (("requests", requests, 1), ("tokens", tokens, max(size, 1)))
        rates = [(kind, most, more) for kind, most, more in both if most is not None]
        keys = [self._key(kind, name) for kind, _, _ in rates]
        numbers = [number for _, most, more in rates for number in (most, more)]
        reply = await self._call(lambda: self._count(keys=keys, args=[int(now), AHEAD, WINDOW, *numbers]))
        if not reply:
            return None
        kind, most, more = rates[int(reply[0]) - 1]
        window = Windows()
        for second, amount in zip(reply[1][::2], reply[1][1::2], strict=True):
            window.add(name, int(second), int(amount))
        return kind, window.wait(name, now, most=most, more=more) or 1.0

    def use(self, name: str, second: int, tokens: int) -> None:
        """Count tokens of an answer, without waiting."""
        place = name, second
        self._tokens[place] = self._tokens.get(place, 0) + tokens

    async def draw(self, place: Place, *, limit: float, need: float) -> Lease:
        """Lease at least `need` of a day, if there is so much; raise LimitsUnavailableError if Redis cannot be asked.

        A lease of nothing, with all of it elsewhere, asks to try again: replicas are telling Redis what they hold.
        """
        async with self._one_call:
            granted, spent, elsewhere, young = await self._send(place, limit=limit, need=need)
            self.held[place] = self.held.get(place, 0.0) + granted
        return Lease(granted, spent, math.inf if young else elsewhere)

    def may_draw_elsewhere(self) -> bool:
        """Return whether Redis has been gone for long enough that every replica has noticed."""
        return self.fault is not None and time.monotonic() - self._lost >= self._grace

    def note(self, released: Mapping[Place, float], spent: Mapping[Place, float]) -> None:
        """Take over what the database has now: spend, and what is no longer held because of it."""
        for place, amount in released.items():
            self.held[place] = max(0.0, self.held.get(place, 0.0) - amount)
        self._changed.update(released)
        self.spent.update(spent)
        today = int(self._clock() // 86_400)
        for place in [place for place in (*self.held, *self.spent) if place[0] < today - 1]:
            self.held.pop(place, None)
            self.spent.pop(place, None)

    async def _tick(self) -> None:
        while not self._stop.is_set():
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._stop.wait(), _SETTLE_SECONDS)
            now = time.monotonic()
            if self.fault is not None:
                if now - self._tried < _RETRY_SECONDS:
                    continue
                self._tried = now
            with contextlib.suppress(LimitsUnavailableError):
                await self.settle()

    async def settle(self) -> None:
        """Send what has changed; everything to a Redis that is another one, or that was gone, or that may forget.

        Raise LimitsUnavailableError if Redis cannot be asked.
        """
        since = await self._call(self._begun, probe=True)
        async with self._one_call:
            now = self._clock()
            is_new = since != self._since or self.fault is not None
            everything = is_new or abs(now - self._renewed) >= RENEW_SECONDS  # of a clock that may jump back
            for place in list(self.held) if everything else [each for each in self._changed if each in self.held]:
                await self._send(place, limit=0.0, need=0.0, probe=True)
                self._changed.discard(place)
                if not self.held[place]:
                    del self.held[place]
            if everything:
                self._renewed = now
                self._since = since
        tokens, self._tokens = self._tokens, {}
        for (name, second), amount in tokens.items():
            if second > self._clock() - WINDOW:
                add = partial(self._client.hincrby, self._key("tokens", name), str(second), amount)
                await self._call(add, probe=True)
        if self.fault is not None:
            self.fault = None
            _LOGGER.warning("limits are shared through Redis again")

    async def _begun(self) -> str:
        """Return when this Redis began, or came back empty."""
        key = self._key("epoch")
        since = await self._client.get(key)
        if since is None:
            seconds, microseconds = await self._client.time()
            await self._client.set(key, f"{seconds}.{microseconds:06}", nx=True)
            since = await self._client.get(key)
        return str(since)

    async def _send(
        self, place: Place, *, limit: float, need: float, probe: bool = False
    ) -> tuple[float, float, float, bool]:
        args: list[str | float] = [
            *(self._worker, repr(self._clock()), repr(self.held.get(place, 0.0)), repr(self.spent.get(place, 0.0))),
            *(repr(limit), repr(need), LEASE_SECONDS, OF_FREE, OF_LIMIT, self._grace),
        ]
        keys = [self._key("day", f"{place[0]}:{place[1]}"), self._key("epoch")]
        granted, spent, elsewhere, young, _ = await self._call(lambda: self._lease(keys=keys, args=args), probe=probe)
        return float(granted), float(spent), float(elsewhere), bool(young)

    async def _call(self, ask: Callable[[], Awaitable[T]], *, probe: bool = False) -> T:
        if self.fault is not None and not probe:
            raise LimitsUnavailableError(self.fault)
        try:
            return await ask()
        except (RedisError, OSError) as error:
            if self.fault is None:
                self.fault = without_password(error, self._url)
                self._lost = time.monotonic()
                self._since = None
                _LOGGER.error("Redis cannot be asked, limits are those of the database: %s", self.fault)
                if self.on_loss is not None:
                    # Not awaited: no request waits for the database while Redis is being lost.
                    asyncio.ensure_future(self.on_loss(dict(self.held)))  # noqa: RUF006
            raise LimitsUnavailableError(self.fault) from None

    def _key(self, kind: str, name: str = "") -> str:
        return f"{self._prefix}:{kind}:{name}" if name else f"{self._prefix}:{kind}"
