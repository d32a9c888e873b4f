"""From the results of a job to records: each answer once, whatever was killed in between.

The results are fetched into a file first. Before the first record is added, the lengths of the files of records are
noted: as nobody else adds to the files of this model and phase meanwhile, a later process finds behind them what of
this job is stored. An answer of no use is asked for again in a job that takes this one's place.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO

from coeval.batch import job as ledger
from coeval.batch.backends import Result, State, UndecidedError, patiently
from coeval.batch.job import Entry, Job, Pending, Sent, custom_id, entries, new_token, questions_file
from coeval.batch.outbox import Packing, begin, closed, cost_of
from coeval.batch.submission import Desk, backend_for, look, look_up, opened
from coeval.calling.caller import Accounts
from coeval.calling.calls import CallError, Reason, Reply, check_whole, tokens_in
from coeval.calling.limits import Retries
from coeval.interfaces import BATCHING
from coeval.phases.question import Answer, Question, Settled, apply, kind_of, read_answer
from coeval.schema import Model
from coeval.storage.jsonl import read_json, write_json
from coeval.storage.meta import Meta, adding, free_work
from coeval.storage.run import Run
from coeval.storage.store import Log, Store
from p2l.common.errors import P2LError
from route.providers.base import Fault, ProviderError


@dataclass
class _Tally:
    """What came of a job."""

    answered: int = 0
    failed: int = 0
    again: int = 0
    unasked: int = 0
    usd: float = 0.0


@dataclass(frozen=True)
class _Outcome:
    """What came of one request."""

    answer: Answer
    may_help: bool
    """Whether asking again may bring another answer."""


async def settle(desk: Desk, job: Job, state: State) -> Job | None:
    """Make records of a job's answers and forget the job; the job that asks again, if there is one.

    Raises:
        CallError: the results cannot be fetched; the job stays noted.
        OSError: a record cannot be stored.
    """
    job = replace(job, status=f"api_{state.status}")
    desk.pending.put(job)
    settling = _Settling(desk, job, state, await _fetch(desk, job, state))
    try:
        again = await settling.run()
    finally:
        settling.close()
    with contextlib.suppress(ProviderError):
        await desk.backend.tidy(state)
    return again


async def _fetch(desk: Desk, job: Job, state: State) -> ProviderError | None:
    """The results as a file of ours, empty where they are lost; why it can be of no use to ask for them again."""
    path, useless = desk.pending.results_file(job), None
    if path.exists():
        return None
    part = path.with_suffix(".part")

    async def fetch() -> None:
        part.unlink(missing_ok=True)
        part.touch()
        await desk.backend.results(state, part)

    try:
        await patiently(desk.retries, fetch)
    except ProviderError as error:
        if error.fault not in _LOST:
            why = f"{error}; the answers of batch job {job.batch_id} stay there for --continue"
            raise CallError(Reason.FATAL, why) from None
        desk.log.warning(f"{job.phase}: {job.model}: the answers of batch job {job.batch_id} are lost: {error}")
        useless = error if error.fault is Fault.REQUEST else None
    part.rename(path)
    return useless


_LOST = (Fault.UNSUPPORTED, Fault.REQUEST)


class _Settling:
    """The answers of one job becoming records."""

    def __init__(self, desk: Desk, job: Job, state: State, useless: ProviderError | None) -> None:
        self._desk, self._job, self._state, self._useless = desk, job, state, useless
        self._tally = _Tally()
        self._file: BinaryIO = desk.pending.results_file(job).open("rb")
        self._places = self._indexed()
        self._paths: set[Path] = set()
        self._again: Packing | None = None

    def close(self) -> None:
        """Let go of the files."""
        self._file.close()
        if self._again is not None:
            self._again.file.close()

    async def run(self) -> Job | None:
        """Settle all questions; the job that asks again."""
        stored = self._stored_before()
        for number, entry in enumerate(entries(self._questions)):
            found = {
                part: self._outcome(custom_id(self._job.token, number, place), sent)
                for place, (part, sent) in enumerate(entry.sent.items())
            }  # counts what the answers cost, of those stored before a kill too
            if entry.question.id not in stored:
                self._settle(entry, found)
            if number % 50 == 0:
                await asyncio.sleep(0)
        _sync(self._paths)
        again = self._finish()
        self._tell(again)
        return again

    @property
    def _questions(self) -> Path:
        return questions_file(self._desk.run, self._job.token)

    def _indexed(self) -> Mapping[str, int]:
        """Id of each request that has a result -> where its line begins."""
        places: dict[str, int] = {}
        place = broken = 0
        for line in self._file:
            try:
                result = self._desk.backend.read(json.loads(line))
                if result.completion is not None or result.custom_id not in places:  # an answer before any error
                    places[result.custom_id] = place
            except _NO_RESULT:
                broken += 1
            place += len(line)
        if broken:
            job = self._job
            self._desk.log.warning(f"{job.phase}: {job.model}: {broken} results of job {job.batch_id} cannot be read")
        return places

    def _stored_before(self) -> set[str]:
        """Ids of the questions that an earlier process settled."""
        start = self._desk.pending.start_file(self._job)
        known = read_json(start) if start.exists() else None
        for entry in entries(self._questions):
            self._paths.add(_path(self._desk, entry.question))
        if isinstance(known, dict):
            return {found for path in self._paths for found in _ids_behind(path, known.get(str(path), 0))}
        write_json(start, {str(path): path.stat().st_size if path.exists() else 0 for path in self._paths})
        return set()

    def _settle(self, entry: Entry, found: Mapping[str, _Outcome]) -> None:
        good = {
            part: one.answer for part, one in found.items() if read_answer(entry.question, part, one.answer)[1] is None
        }
        bad = {part: one for part, one in found.items() if part not in good}
        kept = {part: _summed(entry, part, answer) for part, answer in good.items()}
        if bad and all(one.may_help for one in bad.values()) and self._ask_again(entry, kept, bad):
            self._tally.again += len(bad)
            self._tally.answered += len(good)
            return
        answers = {**entry.kept, **kept, **{part: _summed(entry, part, one.answer) for part, one in bad.items()}}
        failures = self._desk.apply(entry.question, answers).failures
        self._tally.failed += len(failures)
        self._tally.answered += len(found) - len(bad)

    def _outcome(self, custom: str, sent: Sent) -> _Outcome:
        """What came of a request; counts what it cost."""
        result = self._result(custom)
        if result.completion is None:
            self._tally.unasked += result.unasked
            error = result.error or ProviderError(Fault.MALFORMED, "the batch job has no answer to this request")
            return _Outcome(CallError(Reason.FAILED, str(error)), error.fault.may_pass)
        read, written, counted = tokens_in(result.completion, {"messages": []})
        if not counted:
            read = sent.prompt_tokens
        usd = self._desk.price.cost(read, written)
        self._tally.usd += usd
        try:
            text = check_whole(result.completion)
        except ProviderError as error:
            return _Outcome(CallError(Reason.FAILED, str(error)), error.fault.may_pass)
        return _Outcome(Reply(text, read, written, usd, 0.0, counted=counted), True)

    def _result(self, custom: str) -> Result:
        place = self._places.get(custom)
        if place is not None:
            self._file.seek(place)
            return self._desk.backend.read(json.loads(self._file.readline()))
        if self._state.status in ("expired", "cancelled"):
            word = "expired" if self._state.status == "expired" else "was cancelled"
            fault = Fault.TIMEOUT if word == "expired" else Fault.REQUEST
            return Result(custom, error=ProviderError(fault, f"the batch job {word} before this request"), unasked=True)
        return Result(custom, error=self._useless)

    def _ask_again(self, entry: Entry, kept: Mapping[str, Answer], bad: Mapping[str, _Outcome]) -> bool:
        """Put what has no answer of use into the next job, unless it was tried often enough, or may not be."""
        desk, sent = self._desk, {part: entry.sent[part] for part in bad}
        usd = sum(cost_of(desk, one) for one in sent.values())
        if entry.attempt + 1 >= desk.attempts or not desk.has_room_for(usd):
            return False
        token = self._again.token if self._again is not None else new_token()
        if not ledger.charge_more(desk.meta, token, desk.phase, desk.model.name, desk.quota, len(sent), usd):
            return False
        replies = {part: reply for part, reply in {**entry.kept, **kept}.items() if isinstance(reply, Reply)}
        used = {part: _summed(entry, part, one.answer) for part, one in bad.items()}
        tried = {part: reply for part, reply in used.items() if isinstance(reply, Reply)}
        if self._again is None:
            self._again = begin(desk, token)
        self._again.add(Entry(entry.question, sent, replies, {**entry.used, **tried}, entry.attempt + 1), usd, 0)
        return True

    def _finish(self) -> Job | None:
        """Count what the job cost and forget it; the job that asks again, noted in its place."""
        desk, job = self._desk, self._job
        again = closed(desk, self._again) if self._again is not None else None
        ledger.settle(desk.meta, job, self._tally.unasked, self._tally.usd)
        if again is None:
            desk.pending.remove(job)
        else:
            desk.pending.put(again, instead=job)
        ledger.drop(desk.meta, job)
        return again

    def _tell(self, again: Job | None) -> None:
        job, tally = self._job, self._tally
        counts = {"answered": tally.answered, "failed": tally.failed, "asked again": again.n_requests if again else 0}
        said = ", ".join(f"{count} {word}" for word, count in counts.items() if count) or "nothing new"
        self._desk.log.info(
            f"{job.phase}: {job.model}: batch job {job.batch_id} {self._state.status}: {said}, ${tally.usd:.4f}"
        )


_NO_RESULT = (ValueError, KeyError, TypeError, AttributeError, IndexError)


def _path(desk: Desk, question: Question) -> Path:
    return kind_of(question.kind).path(desk.run, question.context)


def _ids_behind(path: Path, start: int) -> Iterator[str]:
    """Ids of the records that a file has from a place on."""
    if not path.exists():
        return
    with path.open("rb") as lines:
        lines.seek(start)
        for line in lines:
            with contextlib.suppress(*_NO_RESULT):
                yield str(json.loads(line)["id"])


def _summed(entry: Entry, part: str, answer: Answer) -> Answer:
    """An answer with the tokens of those before it."""
    before = entry.used.get(part)
    if before is None:
        return answer
    if isinstance(answer, CallError):
        return before
    return replace(
        answer,
        prompt_tokens=answer.prompt_tokens + before.prompt_tokens,
        completion_tokens=answer.completion_tokens + before.completion_tokens,
        cost_usd=answer.cost_usd + before.cost_usd,
    )


def _sync(paths: set[Path]) -> None:
    """Bring the records to the disk before the job is forgotten."""
    for path in paths:
        if path.exists():
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)


# Fetch what pending batch jobs have brought, without a run: `coeval status --fetch-batches`.
#
# Nothing is sent: an answer of no use is settled as failed, and asked for again by `coeval run --continue`.

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
