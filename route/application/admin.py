"""The operator's endpoints below /admin: reload the configuration; make, limit and revoke keys; who is an operator."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import asdict
from functools import partial

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from p2l.common.access import PAUSE_SECONDS, TooManyKeysError, is_from_this_machine
from p2l.common.errors import ConfigError, InputError
from route.application.live import Live, Reloaded
from route.application.service import Service, key_records
from route.keep.accounts import team_account
from route.keep.database import DatabaseError
from route.keep.journal import JournalError
from route.keep.ledger import MAX_IN_FLIGHT, KeyRecord, Refusal
from route.keep.stored_keys import KeyTakenError, StoredKey, UnknownKeyError, limit_key, revoke_key, stored_keys
from route.manage_keys import checked_limits, checked_name
from route.observability.logs import LOGGER
from route.providers.base import JSON
from route.request.api_errors import ApiError
from route.request.chat import key_of, parse_object, read_body

_BODY_BYTES = 2**16
_BODY_SECONDS = 10.0


async def why_not_operator(service: Service, request: Request) -> ApiError | None:
    """Return why a request is not an operator's: it must bring the admin key, or come from here where there is none.

    A wrong key is told after a pause, unless it is a client's.
    """
    digest = service.config.admin_key
    if digest is None:
        if is_from_this_machine(request.client and request.client.host, request.headers, request.scope["http_version"]):
            return None
        advice = "set admin_key in the router's configuration to read it from elsewhere"
        return ApiError(403, "not_local", f"this is for the router's own machine alone; {advice}")
    key = key_of(request.headers)
    if key is None:
        return ApiError(401, "invalid_api_key", "no key: send the header 'Authorization: Bearer ADMIN_KEY'")
    wrong = ApiError(403, "invalid_api_key", "wrong admin key")
    if not isinstance(service.ledger.check(key), Refusal):
        return wrong  # a client's key, which is no guess
    try:
        is_right = await service.key_judge.is_right(key, digest, request.client and request.client.host)
    except TooManyKeysError as error:
        return ApiError(429, "rate_limit_exceeded", str(error), retry_after=PAUSE_SECONDS)
    return None if is_right else wrong


async def operate(live: Live, request: Request) -> Response:
    """Answer a request below `/admin`: reload the configuration; list, make, limit or revoke keys."""
    service, method = live.service, request.method
    # Unlike /metrics, what changes the router is open to nobody without a key, not even from this machine.
    if service.config.admin_key is None:
        text = "set admin_key in the router's configuration, and reload it (SIGHUP), to use this"
        raise ApiError(403, "no_admin_key", text)
    refusal = await why_not_operator(service, request)
    if refusal is not None:
        raise refusal
    if request.url.path == "/admin/reload":
        return JSONResponse({"object": "route.reload", **asdict(await reload_now(live))})
    if request.url.path == "/admin/votes":
        return JSONResponse(await _waiting_votes(service, is_discarded=method == "DELETE"))
    if method in ("GET", "HEAD"):
        return JSONResponse(await keys_of(service))
    if method == "DELETE":
        return JSONResponse(await end_key(service, request.path_params["name"]))
    body = parse_object(await read_body(request.headers, request.receive, _BODY_BYTES, _BODY_SECONDS))
    if method == "PATCH":
        return JSONResponse(await change_key(service, request.path_params["name"], body))
    return JSONResponse(await make_key(service, body), 201)


async def reload_now(live: Live) -> Reloaded:
    """Take the configuration anew; raise `ApiError` for a faulty one."""
    try:
        return await live.reload()
    except ConfigError as error:
        raise ApiError(400, "invalid_configuration", f"the old configuration stays: {error}") from error


async def _waiting_votes(service: Service, *, is_discarded: bool) -> JSON:
    """Return the votes that wait in this router's journal, by key, after discarding them where that is asked for."""
    journal = service.feedback.journal
    if journal is None:
        return {"object": "route.waiting_votes", "waiting": 0, "by_key": {}, "discarded": 0}
    try:
        discarded = await journal.discard() if is_discarded else 0
        by_key = await journal.waiting_by_key()
    except JournalError as error:
        text = f"the journal cannot be read or written: {error}"
        raise ApiError(503, "journal_unavailable", text, retry_after=1.0) from error
    if discarded:
        LOGGER.warning("an operator discarded %d votes that waited", discarded)
    waiting = sum(by_key.values())
    return {"object": "route.waiting_votes", "waiting": waiting, "by_key": by_key, "discarded": discarded}


async def keys_of(service: Service) -> JSON:
    """Return the keys of the configuration and of the database, and the teams, with what each has spent today."""
    with _api_errors():
        stored = {key.name: key for key in await service.database.read(stored_keys)}
    ledger = service.ledger
    limits = {key.name: _limits_of(key) for key in key_records(service.config, service.settings)}
    keys: list[JSON] = [
        {
            "object": "route.key",
            "name": name,
            "source": "configuration",
            "limits": limits.get(name, {}),
            "spent_today": ledger.spent_of(name),
        }
        for name in sorted(ledger.names - stored.keys())
    ]
    keys += [_card(service, key) for key in stored.values()]
    teams = [
        {"name": name, "spend_per_day": team.spend_per_day, "spent_today": ledger.spent_of(team_account(name))}
        for name, team in service.config.teams.items()
    ]
    return {"object": "list", "data": keys, "teams": teams}


def _limits_of(key: KeyRecord) -> JSON:
    """Return the limits of a key of the configuration, as those of a key of the database are listed."""
    limits = {
        name: limit for name, limit in asdict(key).items() if limit is not None and name not in ("name", "digest")
    }
    if key.models is not None:
        limits["models"] = sorted(key.models)
    if key.max_in_flight == MAX_IN_FLIGHT:
        del limits["max_in_flight"]
    return limits


async def make_key(service: Service, body: JSON) -> JSON:
    """Make a key with the name and the limits of `body`, which this answer alone tells; raise `ApiError`."""
    with _api_errors():
        name = checked_name(body.pop("name", None))
        limits = checked_limits(body, teams=service.config.teams, models=service.config.model_configs)
        _check_database(service)
        key = await service.keys.add(name, limits)
    return {"object": "route.key", "name": name, "key": key, "limits": limits}


async def change_key(service: Service, name: str, body: JSON) -> JSON:
    """Change the limits of a key that `body` names, of which null ends one; raise `ApiError` where that cannot be."""
    with _api_errors():
        changes = checked_limits(body, teams=service.config.teams, models=service.config.model_configs)
        _check_database(service)
        key = await service.keys.change(partial(limit_key, name=name, changes=changes))
    return _card(service, key)


async def end_key(service: Service, name: str) -> JSON:
    """End a key; raise `ApiError` where that cannot be."""
    _check_database(service)
    with _api_errors():
        key = await service.keys.change(partial(revoke_key, name=name, now=time.time()))
    return _card(service, key)


def _check_database(service: Service) -> None:
    if service.config.database is None:
        text = "keys are kept in the database: name a file as `database` in the router's configuration"
        raise ApiError(409, "no_database", text)


@contextlib.contextmanager
def _api_errors() -> Iterator[None]:
    """Raise `ApiError` for what the checks of names and limits, or the database, refuse."""
    try:
        yield
    except KeyTakenError as error:
        raise ApiError(409, "key_exists", str(error)) from error
    except UnknownKeyError as error:
        raise ApiError(404, "key_not_found", str(error)) from error
    except InputError as error:
        raise ApiError(400, "invalid_value", str(error)) from error
    except DatabaseError as error:
        text = "keys cannot be read or written now"
        raise ApiError(503, "database_unavailable", text, retry_after=1.0) from error


def _card(service: Service, key: StoredKey) -> JSON:
    times = [
        None if seconds is None else time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))
        for seconds in (key.created, key.revoked)
    ]
    return {
        "object": "route.key",
        "name": key.name,
        "source": "database",
        "limits": key.limits,
        "created": times[0],
        "revoked": times[1],
        "spent_today": service.ledger.spent_of(key.name),
    }
