"""The course of a job: sent, waited for, settled; sent again, or in parts, where the provider has no room for it."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from coeval.batch.backend import NoRoomError, State
from coeval.batch.desk import Desk, locate, send, wait_for
from coeval.batch.job import SUBMITTING, Job, entries, questions_file
from coeval.batch.outbox import split
from coeval.batch.settling import settle
from coeval.calling.call import CallError, Reason
from route.providers.base import ProviderError

__all__ = ["TurnedDownError", "seen_through", "taken_up"]

_PATIENCE = 24 * 3600.0  # seconds: as long as a job may take
_LONGEST = 600.0
_ROOM = re.compile(r"limit(?::| of)\s*([\d,]+)\s*([KMB]?)\b", re.IGNORECASE)
_UNITS = {"": 1, "K": 10**3, "M": 10**6, "B": 10**9}


class TurnedDownError(CallError):
    """The provider did nothing of a whole job."""


async def taken_up(desk: Desk, jobs: Sequence[Job]) -> None:
    """Go on with jobs of an earlier process, one after the other; one turned down is asked again by the phase.

    Raises:
        CallError: one cannot be sent or looked at; it stays noted.
    """
    # Those at the provider first: they may take the room that the others wait for.
    known = [job if job.batch_id is not None else await locate(desk, job) or job for job in jobs]
    for job in sorted(known, key=lambda job: job.batch_id is None):
        try:
            await seen_through(desk, job)
        except TurnedDownError as error:
            desk.log.warning(f"{job.phase}: {job.model}: {error}")


async def seen_through(desk: Desk, job: Job, refusal: NoRoomError | None = None) -> None:
    """Wait for a job and settle it, and those that ask again what it had no answer of use to.

    `refusal` is what the provider said when the job was sent just now, if it was not taken.

    Raises:
        TurnedDownError: the provider did nothing of it.
        CallError: it cannot be sent or looked at; it stays noted.
    """
    following: Job | None = job
    waits = _waits(desk.interval)
    while following is not None:
        following, state = await _ended(desk, following) if refusal is None else (following, _refused(refusal))
        refusal = None
        if state.later:
            parts = await _in_parts(desk, following, state)
            if parts:
                for part in parts:
                    await seen_through(desk, part)
                return
            wait = next(waits, None)
            if wait is not None:
                following = await _unsent(desk, following, state, wait)
                continue
        if state.failure:
            desk.give_back(following)
            why = f"turned down batch job {following.batch_id or following.token}: {state.failure}"
            raise TurnedDownError(Reason.FATAL, f"{following.interface} {why}")
        following = await settle(desk, following, state)


async def _ended(desk: Desk, job: Job) -> tuple[Job, State]:
    """The end of a job, sent before if it was not."""
    try:
        sent = job if job.batch_id is not None else await send(desk, job)
        return sent, await wait_for(desk, sent)
    except NoRoomError as error:
        return job, _refused(error)


def _refused(error: NoRoomError) -> State:
    return State("failed", True, " ".join(str(error).split())[:300], later=True)


async def _in_parts(desk: Desk, job: Job, state: State) -> list[Job]:
    """A job that found no room in parts; none where it may find room when others have ended, or is one question."""
    found = list(entries(questions_file(desk.run, job.token)))
    tokens, room = sum(entry.prompt_tokens for entry in found), _room_in(state.failure)
    if len(found) < 2 or (room is not None and tokens <= room) or not _is_alone(desk, job):
        return []
    desk.most_tokens = room or -(-tokens // 2)
    parts = split(desk, job, desk.most_tokens)
    desk.log.warning(
        f"{job.phase}: {job.model}: {state.failure}; the batch job is sent in {len(parts)} parts, one after the other"
    )
    with contextlib.suppress(ProviderError):
        await desk.backend.tidy(state)
    return parts


def _is_alone(desk: Desk, job: Job) -> bool:
    """Whether no other job of the model is at work: otherwise it is these that take the room."""
    return not any(one.batch_id and one.token != job.token for one in desk.pending.jobs(model=job.model))


def _room_in(text: str) -> int | None:
    """Tokens that may wait at once, if the provider says so."""
    found = _ROOM.search(text)
    return int(found[1].replace(",", "")) * _UNITS[found[2].upper()] or None if found else None


def _waits(interval: float) -> Iterator[float]:
    """Seconds before a job is sent again that found no room: ever more, a day in all."""
    wait, waited = interval, 0.0
    while waited < _PATIENCE:
        yield wait
        waited, wait = waited + wait, min(2 * wait, _LONGEST)


async def _unsent(desk: Desk, job: Job, state: State, wait: float) -> Job:
    """A job that found no room, after a while; noted as unsent, so that another process would send it too."""
    desk.log.warning(f"{job.phase}: {job.model}: {state.failure}; the batch job is sent again in {wait:.0f} s")
    job = replace(job, batch_id=None, status=SUBMITTING)
    desk.pending.put(job)
    await asyncio.sleep(wait)
    return job
