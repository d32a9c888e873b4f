"""What operators do over HTTP: reload the configuration; make, limit and revoke keys. And who is an operator."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from typing import Any, TypeAlias

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from p2l.common.access import is_from_this_machine, matches
from p2l.common.errors import ConfigError, InputError
from route.application.live import Live, Reloaded
from route.application.service import Service
from route.config import RouterConfig
from route.keep.database import DatabaseError
from route.keep.ledger import team_account
from route.keep.stored_keys import KeyTakenError, StoredKey, UnknownKeyError
from route.manage_keys import checked_limits, checked_name
from route.providers.base import JSON
from route.request.api_errors import ApiError
from route.request.chat import key_of, parse_object, read_body

_BODY_BYTES = 2**16
_BODY_SECONDS = 10.0
Operation: TypeAlias = Callable[[Live, Request], Awaitable[Response]]


def why_not_operator(service: Service, request: Request) -> ApiError | None:
    """Return why a request is not an operator's: it must bring the admin key, or come from here where there is none."""
    digest = service.config.admin_key
    if digest is None:
        if is_from_this_machine(request.client and request.client.host, request.headers, request.scope["http_version"]):
            return None
        advice = "set admin_key in the router's configuration to read it from elsewhere"
        return ApiError(403, "not_local", f"this is for the router's own machine alone; {advice}")
    key = key_of(request.headers)
    if key is None:
        return ApiError(401, "invalid_api_key", "no key: send the header 'Authorization: Bearer ADMIN_KEY'")
    return None if matches(key, digest) else ApiError(403, "invalid_api_key", "wrong admin key")


def _check_admin(service: Service, request: Request) -> None:
    """Raise `ApiError` for a request without the admin key: what changes the router is open to nobody without one."""
    if service.config.admin_key is None:
        raise ApiError(
            403, "no_admin_key", "set admin_key in the router's configuration, and reload it (SIGHUP), to use this"
        )
    refusal = why_not_operator(service, request)
    if refusal is not None:
        raise refusal


async def reload(live: Live, request: Request) -> Response:
    """Take the configuration anew, in every worker."""
    _check_admin(live.service, request)
    return JSONResponse({"object": "route.reload", **asdict(await reload_now(live))})


async def reload_now(live: Live) -> Reloaded:
    """Take the configuration anew; raise `ApiError` for a faulty one."""
    try:
        return await live.reload()
    except ConfigError as error:
        raise ApiError(400, "invalid_configuration", f"the old configuration stays: {error}") from error


async def list_keys(live: Live, request: Request) -> Response:
    """List the keys of the configuration and of the database, and what each has spent today."""
    _check_admin(live.service, request)
    return JSONResponse(await keys_of(live.service))


async def keys_of(service: Service) -> JSON:
    """Return the keys of the configuration and of the database, and the teams, with what each has spent today."""
    stored = {key.name: key for key in await _stored(service)}
    keys = [_configured_card(service, name) for name in sorted(service.ledger.names - stored.keys())]
    keys += [_card(service, key) for key in stored.values()]
    teams = [
        {"name": name, "spend_per_day": team.spend_per_day, "spent_today": service.ledger.spent_of(team_account(name))}
        for name, team in service.config.teams.items()
    ]
    return {"object": "list", "data": keys, "teams": teams}


async def add_key(live: Live, request: Request) -> Response:
    """Make a key, which this answer alone tells."""
    service = live.service
    _check_admin(service, request)
    return JSONResponse(await make_key(service, await _body(request)), 201)


async def make_key(service: Service, body: JSON) -> JSON:
    """Make a key with the name and the limits of `body`; raise `ApiError` where that cannot be."""
    name, limits = _parsed(lambda: checked_name(body.pop("name", None))), _limits(body, service.config)
    key = await _changed(service, lambda: service.keys.add(name, limits))
    return {"object": "route.key", "name": name, "key": key, "limits": limits}


async def limit_key(live: Live, request: Request) -> Response:
    """Change limits of a key; null ends one."""
    service = live.service
    _check_admin(service, request)
    return JSONResponse(await change_key(service, request.path_params["name"], await _body(request)))


async def change_key(service: Service, name: str, body: JSON) -> JSON:
    """Change the limits of a key that `body` names; raise `ApiError` where that cannot be."""
    limits = _limits(body, service.config)
    return _card(service, await _changed(service, lambda: service.keys.limit(name, limits)))


async def revoke_key(live: Live, request: Request) -> Response:
    """End a key."""
    service = live.service
    _check_admin(service, request)
    return JSONResponse(await end_key(service, request.path_params["name"]))


async def end_key(service: Service, name: str) -> JSON:
    """End a key; raise `ApiError` where that cannot be."""
    return _card(service, await _changed(service, lambda: service.keys.revoke(name)))


async def _body(request: Request) -> JSON:
    return parse_object(await read_body(request.headers, request.receive, _BODY_BYTES, _BODY_SECONDS))


def _parsed(parse: Callable[[], Any]) -> Any:
    try:
        return parse()
    except InputError as error:
        raise ApiError(400, "invalid_value", str(error)) from error


def _limits(body: JSON, config: RouterConfig) -> JSON:
    limits: JSON = _parsed(lambda: checked_limits(body, teams=config.teams, models=config.model_configs))
    return limits


async def _stored(service: Service) -> list[StoredKey]:
    try:
        return await service.keys.all()
    except DatabaseError as error:
        raise _unavailable() from error


async def _changed(service: Service, change: Callable[[], Awaitable[Any]]) -> Any:
    if service.config.database is None:
        text = "keys are kept in the database: name a file as `database` in the router's configuration"
        raise ApiError(409, "no_database", text)
    try:
        return await change()
    except KeyTakenError as error:
        raise ApiError(409, "key_exists", str(error)) from error
    except UnknownKeyError as error:
        raise ApiError(404, "key_not_found", str(error)) from error
    except DatabaseError as error:
        raise _unavailable() from error


def _unavailable() -> ApiError:
    return ApiError(503, "database_unavailable", "keys cannot be read or written now", retry_after=1.0)


def _configured_card(service: Service, name: str) -> JSON:
    return {
        "object": "route.key",
        "name": name,
        "source": "configuration",
        "spent_today": service.ledger.spent_of(name),
    }


def _card(service: Service, key: StoredKey) -> JSON:
    return {
        "object": "route.key",
        "name": key.name,
        "source": "database",
        "limits": key.limits,
        "created": _iso(key.created),
        "revoked": None if key.revoked is None else _iso(key.revoked),
        "spent_today": service.ledger.spent_of(key.name),
    }


def _iso(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))
