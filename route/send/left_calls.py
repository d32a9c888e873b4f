"""Calls that a killed worker had under way: settled by the provider's record or by what was noted, and booked.

A worker that starts looks for the files of those that have ended. One that was settled and not yet in the database is
booked as it was; of one that was under way the provider is asked, where it keeps records, and else the estimate of the
last tenth of a second holds. All calls of a file are booked in one transaction, which a second worker does not repeat.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from pathlib import Path

from route.keep.accounts import places_of
from route.keep.database import Connection, Database, DatabaseError
from route.keep.ledger import Ledger
from route.keep.reservations import Reservation
from route.keep.under_way import LeftCall, LeftNotes, left_files, left_notes
from route.keep.usage import (
    ALL_BOOKED,
    News,
    Sums,
    Usage,
    add_to,
    forget_batches,
    last_batch,
    note_batch,
    write_sums,
)
from route.send.charges import Charge
from route.send.dispatch import UNREAD
from route.send.fleet import Deployment, Fleet

_LOGGER = logging.getLogger("route")


def calls_folder(journal: Path) -> Path:
    """Return where the workers of a router note their calls: beside its journal."""
    return journal.with_name(f"{journal.name}.calls")


async def book_left_calls(folder: Path, database: Database, ledger: Ledger, fleet: Fleet) -> None:
    """Book what the files of killed workers hold; what cannot be written now waits for the next start."""
    for path in await asyncio.to_thread(left_files, folder):
        try:
            with left_notes(path) as left:
                if left is None:
                    continue
                await _book(left, database, ledger, fleet)
                path.unlink()
        except (DatabaseError, OSError, ValueError) as error:
            _LOGGER.error("calls of a killed worker wait for the next start: %s", error)


async def _book(left: LeftNotes, database: Database, ledger: Ledger, fleet: Fleet) -> None:
    booked = await database.read(lambda connection: last_batch(connection, left.worker))
    calls = [call for call in left.calls if booked < (ALL_BOOKED if call.batch is None else call.batch)]
    settled = await asyncio.gather(*(_settled(call, fleet) for call in calls))
    sums = _sums_of(calls, [cost for cost, _ in settled])

    def book(connection: Connection) -> News:
        connection.lock("ledger")
        if last_batch(connection, left.worker) < ALL_BOOKED:
            now = time.time()
            write_sums(connection, sums, now=now)
            note_batch(connection, left.worker, ALL_BOOKED, now=now)
            forget_batches(connection, now=now)
            connection.execute("DELETE FROM leases WHERE worker = ?", (left.worker,))
        return ledger.read(connection)

    ledger.absorb(await database.run(book))
    for call, (cost, is_told) in zip(calls, settled, strict=True):
        facts = {name: call.facts[name] for name in ("request_id", "key", "model")}
        fields = {**facts, "cost": cost, "cost_is_estimated": not is_told}
        _LOGGER.warning("a call of a killed worker was booked", extra={"fields": fields})


async def _settled(call: LeftCall, fleet: Fleet) -> tuple[float, bool]:
    """Return the cost of a call, and whether its provider told it."""
    deployment = _deployment_of(call, fleet)
    if call.is_told or call.batch is not None or deployment is None or not call.identifier:
        return call.cost, call.is_told
    facts = call.facts
    charge = Charge(facts["model"], deployment.config, UNREAD, Reservation(facts["key"], facts["day"]))
    charge.identity, charge.provider, charge.identifier = deployment.identity, deployment.provider, call.identifier
    charge.choices = facts["choices"]
    if charge.has_record:
        await charge.look_up()
    return (charge.cost(), True) if charge.is_told else (call.cost, False)


def _deployment_of(call: LeftCall, fleet: Fleet) -> Deployment | None:
    """Return where a call was sent; None where that is not configured any more."""
    target = fleet.targets.get(call.facts["model"])
    deployments = [] if target is None else target.deployments
    return next((each for each in deployments if each.label == call.facts["deployment"]), None)


def _sums_of(calls: Sequence[LeftCall], costs: Sequence[float]) -> Sums:
    sums = Sums()
    for call, cost in zip(calls, costs, strict=True):
        day, key, team = (call.facts[name] for name in ("day", "key", "team"))
        add_to(sums.usage, (day, call.facts["model"], key), Usage.of(1, cost, None, None))
        budgets = ((int(when), str(account)) for when, account in call.facts["places"])
        for place in places_of(day, key, team, budgets):
            add_to(sums.spend, place, cost)
    return sums
