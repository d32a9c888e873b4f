"""Who may ask, how often, for how much money a day, and what was spent.

Every question is answered from memory, in microseconds and without waiting. What happened is written to the database
every 100 ms, in its thread, and what other workers wrote there is read in the same transaction: workers share limits,
each seeing the others at most two such intervals late. See `route.database` for what a crash can lose.

A day is a day of UTC. A minute is any 60 seconds, counted by whole seconds. Spend is known when an answer ends, so a key
can exceed its spend per day by the requests it has in flight.
"""

from __future__ import annotations

import hmac
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from p2l.errors import ConfigError
from p2l.serving.access import digest_of
from route.database import Database

__all__ = ["Admission", "KeyRecord", "Ledger", "Refusal", "key_record"]


@dataclass(frozen=True)
class KeyRecord:
    """What a key may do; the key itself is not kept."""

    name: str
    """In logs, metrics and the database."""
    digest: str = field(repr=False)
    """SHA-256 of the key, in hexadecimal."""
    spend_per_day: float | None = None
    """In the unit of the models' costs; None: as much as it likes."""
    requests_per_minute: int | None = None
    models: frozenset[str] | None = None
    """Names of the models it may be answered by; None: all."""
    cost: float | None = None
    """Budget of its requests that state none."""


@dataclass(frozen=True)
class Refusal:
    """Why a request is not served, as the client hears it."""

    status: int
    """Of HTTP."""
    code: str
    """Of OpenAI's error object: invalid_api_key, rate_limit_exceeded, insufficient_quota, ..."""
    message: str
    retry_after: float | None = None
    """Seconds, where waiting helps."""


@dataclass(frozen=True)
class Admission:
    """A request that may be served."""

    key: KeyRecord
    models: tuple[str, ...]
    """Which of the models asked about may answer it, in the order asked."""


def key_record(
    key: str,
    *,
    name: str | None = None,
    spend_per_day: float | None = None,
    requests_per_minute: int | None = None,
    models: Collection[str] | None = None,
    cost: float | None = None,
) -> KeyRecord:
    """The record of a key as the configuration states it; unnamed keys are called after their digest."""
    digest = digest_of(key)
    allowed = None if models is None else frozenset(models)
    return KeyRecord(name or f"key-{digest[:12]}", digest, spend_per_day, requests_per_minute, allowed, cost)


class Ledger:
    """The accounts of all keys; used from one event loop."""

    def __init__(
        self, keys: Sequence[KeyRecord], database: Database, *, clock: Callable[[], float] = time.time
    ) -> None:
        """`clock` gives seconds since 1970, UTC.

        Raises:
            ConfigError: two keys are equal or have the same name.
        """
        self._keys = _by_digest(keys)
        self._database = database
        self._clock = clock

    async def start(self) -> None:
        """Read what was spent and asked before, and keep the database up to date from now on."""

    async def close(self) -> None:
        """Write what is not yet written; the database stays open."""

    def check(self, bearer: str | None) -> KeyRecord | Refusal:
        """Whose key this is: the text after `Bearer `, or None where there was none (401); 403 for a wrong one.

        The time it takes tells nothing about any key: keys are found by their digests.
        """
        if bearer is None:
            return Refusal(401, "invalid_api_key", "no API key: send the header 'Authorization: Bearer KEY'")
        digest = digest_of(bearer)
        record = self._keys.get(digest)
        if record is None or not hmac.compare_digest(record.digest, digest):
            return Refusal(403, "invalid_api_key", "wrong API key")
        return record

    def admit(self, key: KeyRecord, model_names: Sequence[str]) -> Admission | Refusal:
        """Whether this key may be served now, and by which of these models; counts the request if so.

        403 where none of the models is allowed, 429 with `retry_after` where the minute or the day is used up.
        """
        models = tuple(name for name in model_names if key.models is None or name in key.models)
        if not models:
            return Refusal(403, "model_not_allowed", "this API key may not use the model")
        return Admission(key, models)

    def charge(
        self,
        key: KeyRecord,
        model: str,
        cost: float,
        *,
        prompt_tokens: int | None = None,
        completion_tokens: int | None = None,
    ) -> None:
        """Book an answer, or a part of one that had to be paid, when it has ended; tokens as the provider counted them."""

    def spent_today(self, key: KeyRecord) -> float:
        """What a key has spent since midnight, UTC, as far as this worker knows."""
        return 0.0

    def spend_left(self, key: KeyRecord) -> float | None:
        """What a key may still spend today; None where it has no limit."""
        return None


def _by_digest(keys: Sequence[KeyRecord]) -> Mapping[str, KeyRecord]:
    records = {record.digest: record for record in keys}
    if len(records) < len(keys):
        raise ConfigError("keys: one key is listed twice")
    names = [record.name for record in keys]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ConfigError(f"keys: the name {twice!r} is given to two keys")
    return records
