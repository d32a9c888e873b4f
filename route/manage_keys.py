"""Command: `p2l-route keys`: make, list, limit and revoke keys of clients, while the router runs or before it starts.

They are in the database of the router's configuration, as digests. A running router knows a change within 0.2 seconds,
in every worker; the same can be asked of it over HTTP, under `/admin/keys`.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from p2l.common.cli import add_command, add_config, nearest, parser, run
from p2l.common.errors import ConfigError, InputError, P2LError

if TYPE_CHECKING:
    from route.keep.database import Connection
    from route.keep.stored_keys import StoredKey

T = TypeVar("T")
_LONGEST_NAME = 100
_NONE = "none"
_FLAGS: dict[str, tuple[Callable[[str], Any], str]] = {
    "team": (str, "team of the configuration whose budget it spends, beside its own"),
    "spend_per_day": (float, "most that it may spend in a day of UTC, in the unit of the costs"),
    "requests_per_minute": (int, "most requests in any minute"),
    "tokens_per_minute": (int, "most tokens of prompts and answers in any minute"),
    "votes_per_day": (int, "most answers that it may vote on in a day of UTC"),
    "models": (lambda text: [name.strip() for name in text.split(",")], "models it may use, with commas between them"),
    "cost": (float, "budget of its requests that name none"),
    "budget_usd": (float, "dollars a request on average, in blocks of 1,000; its ceiling"),
    "max_cost_per_request": (float, "most that one request may cost"),
    "max_in_flight": (int, "most requests that the workers of one machine answer at once"),
}
"""The limits: how each is read, and what it is."""


def build_parser() -> argparse.ArgumentParser:
    """Build the command line."""
    flags = parser("p2l-route keys", "Make, list, limit and revoke keys of clients.")
    commands = flags.add_subparsers(dest="action", required=True, metavar="ACTION", help="what to do")
    add = add_command(commands, "add", "make a key and print it, once")
    listing = add_command(commands, "list", "list the keys of the database, and what each has spent today")
    limit = add_command(commands, "limit", f"change limits of a key; '{_NONE}' ends one")
    revoke = add_command(commands, "revoke", "end a key; every worker refuses it within 0.2 seconds")
    for command in (add, limit, revoke):
        command.add_argument("name", help="of the key, in logs, metrics and accounts")
    for command in (add, listing, limit, revoke):
        add_config(command, "the router's configuration", "-c", required=True)
    for command in (add, limit):
        for name, (kind, text) in _FLAGS.items():
            command.add_argument(f"--{name.replace('_', '-')}", type=_or_none(kind), metavar="X", help=text)
        command.arrange({"limits": [f"--{name.replace('_', '-')}" for name in _FLAGS]})
    return flags


def _or_none(kind: Callable[[str], Any]) -> Callable[[str], Any]:
    def read(text: str) -> Any:
        return _NONE if text == _NONE else kind(text)

    read.__name__ = getattr(kind, "__name__", "list")  # for the message of argparse
    return read


def main(argv: Sequence[str] | None = None) -> int | None:
    """Run the command."""
    args = build_parser().parse_args(argv)
    from p2l.common.config import read_yaml

    config = dict(read_yaml(args.config))
    path = _database_of(config, args.config)
    if args.action != "add" and "://" not in path and not Path(path).is_file():
        raise InputError(f"{path}: no such file; no router has run with it, and no key was made")
    from route.keep import stored_keys as keys

    if args.action == "list":
        print("\n".join(_table(*_in_database(path, _listing))))
        return None
    if args.action == "revoke":
        _in_database(path, lambda connection: keys.revoke_key(connection, args.name, now=time.time()))
        print(f"{args.name}: revoked")
        return None
    given = {name: getattr(args, name) for name in _FLAGS if getattr(args, name) is not None}
    limits = checked_limits(
        {name: None if value == _NONE else value for name, value in given.items()},
        teams=_names(config, "teams"),
        models=_names(config, "model_configs"),
    )
    if args.action == "limit":
        changed = _in_database(path, lambda connection: keys.limit_key(connection, args.name, limits))
        print(f"{args.name}: {_text_of(changed.limits)}")
        return None
    name = checked_name(args.name)
    if name in (key.get("name") for key in config.get("keys") or () if isinstance(key, Mapping)):
        raise InputError(f"there is a key {name!r} in {args.config} already; choose another name")
    key = _in_database(path, lambda connection: keys.add_key(connection, name, limits, now=time.time()))
    print(f"{name}: {_text_of(limits)}; this is shown once, keep it:\n{key}")
    return None


def checked_name(name: object) -> str:
    """Return the name of a new key; raise InputError for one that logs, paths and tables could not show."""
    from route.keep.accounts import BUDGET, TEAM

    if not isinstance(name, str) or not name.strip() or len(name) > _LONGEST_NAME or not name.isprintable():
        raise InputError(f"name: must be a text of at most {_LONGEST_NAME} letters that can be shown")
    if "/" in name or name.startswith((TEAM, BUDGET)):
        raise InputError(f"name: must hold no '/' and not begin with {TEAM!r} or {BUDGET!r}")
    return name


def checked_limits(limits: Mapping[str, Any], *, teams: Collection[str], models: Collection[str]) -> dict[str, Any]:
    """Return limits of a key, of which None ends one; raise InputError, with its name, for one that cannot be used."""
    from pydantic import ValidationError

    from route.key_config import KeyLimits

    try:
        checked = KeyLimits.model_validate({name: value for name, value in limits.items() if value is not None})
    except ValidationError as error:
        problem = error.errors()[0]
        name = str(problem["loc"][0])
        if problem["type"] == "extra_forbidden":
            raise InputError(f"unknown limit {name!r}{nearest(name, KeyLimits.model_fields)}") from error
        raise InputError(f"{name}: {problem['msg'][0].lower()}{problem['msg'][1:]}") from error
    for unknown in sorted(limits.keys() - KeyLimits.model_fields.keys()):
        raise InputError(f"unknown limit {unknown!r}{nearest(unknown, KeyLimits.model_fields)}")
    if checked.team is not None and checked.team not in teams:
        raise InputError(f"team: no team {checked.team!r} in the configuration{nearest(checked.team, teams)}")
    for name in checked.models or ():
        if name not in models:
            raise InputError(f"models: no model {name!r} in the configuration{nearest(name, models)}")
    return {name: getattr(checked, name) if value is not None else None for name, value in limits.items()}


def _names(config: Mapping[str, Any], section: str) -> list[str]:
    entries = config.get(section)
    return [str(name) for name in entries] if isinstance(entries, Mapping) else []


def _database_of(config: Mapping[str, Any], path: str) -> str:
    from route.keep.location import located, location_in

    database = config.get("database")
    if not isinstance(database, str) or not database:
        raise ConfigError(f"{path}: has no database, in which keys are kept; add one: database: router.sqlite")
    try:
        return located(location_in(database), path)
    except ValueError as error:
        raise ConfigError(f"{path}: database: {error}") from None


def _in_database(path: str, work: Callable[[Connection], T]) -> T:
    from route.keep.database import DatabaseError
    from route.keep.location import open_database

    async def run_once() -> T:
        database = open_database(path)
        await database.start()
        try:
            return await database.run(work)
        finally:
            await database.close()

    try:
        return asyncio.run(run_once())
    except DatabaseError as error:
        raise P2LError(f"the database cannot be written: {error}") from error


def has_stored_keys(database: str | None) -> bool:
    """Return whether a router's database, if it is there, has a key that is not revoked."""
    from route.keep import stored_keys as keys

    if database is None or ("://" not in database and not Path(database).is_file()):
        return False
    stored = _in_database(database, keys.stored_keys)
    return any(key.revoked is None for key in stored)


def _listing(connection: Connection) -> tuple[list[StoredKey], dict[str, float]]:
    from route.keep.stored_keys import stored_keys
    from route.keep.usage import DAY

    today = (int(time.time() // DAY),)
    spent = dict(connection.execute("SELECT key, cost FROM spend WHERE day = ?", today).fetchall())
    return stored_keys(connection), spent


def _table(keys: Sequence[StoredKey], spent: Mapping[str, float]) -> list[str]:
    from p2l.common.text_table import text_table

    rows = [
        (
            key.name,
            "valid" if key.revoked is None else f"revoked {_day(key.revoked)}",
            _day(key.created),
            f"{spent.get(key.name, 0.0):.6g}",
            _text_of(key.limits),
        )
        for key in keys
    ]
    return text_table(("name", "state", "made", "spent today", "limits"), rows, left=(0, 1, 2, 4))


def _day(seconds: float) -> str:
    return time.strftime("%Y-%m-%d", time.gmtime(seconds))


def _text_of(limits: Mapping[str, Any]) -> str:
    shown = {name: ", ".join(limit) if isinstance(limit, list) else limit for name, limit in limits.items()}
    return ", ".join(f"{name} {limit}" for name, limit in shown.items() if limit is not None) or "no limits"


if __name__ == "__main__":
    run(main)
