"""Fetch what pending batch jobs have brought, without a run: `coeval status --fetch-batches`.

Nothing is sent: an answer of no use is settled as failed, and asked for again by `coeval run --continue`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from coeval.batch import ledger
from coeval.batch.backend import UndecidedError
from coeval.batch.desk import Desk, backend_for, look, look_up, opened
from coeval.batch.job import Job
from coeval.batch.pending import Pending
from coeval.batch.settling import settle
from coeval.calling.call import CallError
from coeval.calling.clients import Accounts
from coeval.calling.retry import Retries
from coeval.config.interfaces import BATCHING
from coeval.config.schema import Model
from coeval.phases.question import Answer, Question, Settled, apply
from coeval.storage.claims import adding, free_work
from coeval.storage.layout import Run
from coeval.storage.log import Log
from coeval.storage.meta import Meta
from coeval.storage.store import Store
from p2l.errors import P2LError

__all__ = ["fetch_batches"]

_RETRIES = Retries(attempts=4, rate_limited=4, timed_out=2)


async def fetch_batches(run: Run, keys: Accounts, tell: Callable[[str], None], *, retries: Retries = _RETRIES) -> int:
    """Look at every pending job of a run and store the answers of those that are done.

    Args:
        run: the folder; what it stores and spends is brought up to date.
        keys: where the keys are; keys that only stand in the configuration are not known here.
        tell: hears one line for each job.
        retries: how often a provider is asked that does not answer.

    Returns:
        Jobs that could not be looked at.

    Raises:
        RunInputError: the folder holds no run, or its list of jobs cannot be read.
        OSError: a record cannot be stored.
    """
    meta, pending, lost = Meta(run), Pending(run), 0
    jobs = pending.jobs()
    if not jobs:
        tell("no batch jobs are pending")
        return 0
    with adding(run), Store(run) as store:
        for job in jobs:
            with free_work(run, job.phase, job.model) as is_free:
                if not is_free:
                    tell(f"{job.name}: a process is at work on {job.phase} of {job.model}, and waits for it itself")
                    continue
                ledger.reconcile(meta, pending, job.phase, job.model)
                try:
                    tell(f"{job.name}: {await _fetched(store, meta, pending, keys, job, retries)}")
                except (CallError, P2LError) as error:
                    lost += 1
                    tell(f"{job.name}: {error}")
    return lost


async def _fetched(store: Store, meta: Meta, pending: Pending, keys: Accounts, job: Job, retries: Retries) -> str:
    """What became of one job."""
    if job.interface not in BATCHING:
        return f"interface {job.interface} has no batches here"
    model = Model(job.model, job.interface, (), job.settings)

    def settled(question: Question, answers: Mapping[str, Answer]) -> Settled:
        return apply(store, question, answers)

    backend = backend_for(job.interface, keys.account(model))
    log = Log(store.run.log(), "INFO")
    desk = Desk(store.run, pending, meta, log, backend, model, job.phase, settled, retries, 0.0, attempts=1)
    async with opened(desk):
        return await _looked_at(desk, job)


async def _looked_at(desk: Desk, job: Job) -> str:
    if job.batch_id is None:
        try:
            found = await look_up(desk, job)
        except UndecidedError:
            return f"may be one of the jobs at work at {job.interface}; look again when those are done"
        if found is None:
            return "was not sent; `coeval run ... --continue` sends it"
        job = _known(desk, job, found)
    state = await look(desk, job)
    if not state.done:
        return f"{state.status}{f', {state.counts}' if state.counts else ''}"
    if state.failure:
        desk.give_back(job)
        return f"turned down: {state.failure}; `coeval run ... --continue` asks again"
    await settle(desk, job, state)
    return f"{state.status}, its answers are stored"


def _known(desk: Desk, job: Job, batch_id: str) -> Job:
    job = replace(job, batch_id=batch_id, status="pending")
    desk.pending.put(job)
    return job
