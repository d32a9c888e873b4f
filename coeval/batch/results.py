"""From the results of a job to records: each answer is stored once, whatever is killed in between.

The results are downloaded first. Before the first record is appended, the lengths of the record files are stored: as
no other process appends to this model's files of the phase meanwhile, a later process finds behind these lengths what
is stored of this job. An unusable answer is asked again in a job that takes this one's place.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import BinaryIO, NamedTuple

from coeval.batch.backends import NO_RESULT, Result, State, UndecidedError, with_retries
from coeval.batch.pending import (
    Charges,
    Job,
    JobQuestion,
    PendingJobs,
    Sent,
    custom_id,
    job_questions,
    new_token,
    questions_file,
)
from coeval.batch.submission import Draft, JobContext, backend_for, look, look_up
from coeval.calling.caller import Accounts
from coeval.calling.calls import (
    NO_STRUCTURE,
    STRUCTURE_FIELDS,
    CallError,
    Reason,
    Reply,
    check_whole,
    structure_parameters,
    usage_of,
)
from coeval.calling.limits import Retries
from coeval.interfaces import BATCHING
from coeval.phases.question import Question, ReplyOrError, apply, kind_of, read_answer
from coeval.schema import Model
from coeval.storage.meta import Meta, adding, free_work
from coeval.storage.records import read_json, write_json
from coeval.storage.run import Run
from coeval.storage.store import Log, Store
from p2l.common.errors import P2LError
from p2l.common.files import parse_json, sync_path
from route.providers.base import JSON, Fault, ProviderError
from route.providers.completions import without

_LOST = (Fault.UNSUPPORTED, Fault.REQUEST)
_RESULTS = "results.jsonl"  # the downloaded answers
_START = "start.json"  # how long the record files were before this job's records
_ENDS = {"expired": "expired", "cancelled": "was cancelled"}


class _Answered(NamedTuple):
    """The answer to one request."""

    answer: ReplyOrError
    may_help: bool  # whether asking again may bring another answer
    is_form_refused: bool = False  # the provider does not take the form of the answer that was asked for


async def settle(context: JobContext, job: Job, state: State) -> Job | None:
    """Store a job's answers as records and forget the job; return the job that asks again, if there is one.

    Raise CallError if the results cannot be downloaded, OSError if a record cannot be stored; the job stays pending.
    """
    job = replace(job, status=f"api_{state.status}")
    context.pending.put(job)
    with contextlib.closing(_Settling(context, job, state, await _download(context, job, state))) as settling:
        again = await settling.run()
    with contextlib.suppress(ProviderError):
        await context.backend.tidy(state)
    return again


async def _download(context: JobContext, job: Job, state: State) -> ProviderError | None:
    """Download the results, or leave an empty file where they are lost; return why asking again would be useless."""
    path = questions_file(context.run, job.token, _RESULTS)
    if path.exists():
        return None
    unfinished = path.with_suffix(".part")

    async def download() -> None:
        unfinished.write_bytes(b"")
        await context.backend.results(state, unfinished)

    useless = None
    try:
        await with_retries(context.retries, download)
    except ProviderError as error:
        if error.fault not in _LOST:
            why = f"{error}; the answers of batch job {job.batch_id} stay there for --continue"
            raise CallError(Reason.FATAL, why) from None
        context.tell(job, f"the answers of batch job {job.batch_id} are lost: {error}", "WARNING")
        useless = error if error.fault is Fault.REQUEST else None
    unfinished.rename(path)
    return useless


class _Settling:
    """The answers of one job becoming records."""

    def __init__(self, context: JobContext, job: Job, state: State, useless: ProviderError | None) -> None:
        self._context, self._job, self._state, self._useless = context, job, state, useless
        self._questions = questions_file(context.run, job.token)
        self._counts: Counter[str] = Counter()
        self._usd = 0.0
        self._file: BinaryIO = questions_file(context.run, job.token, _RESULTS).open("rb")
        self._offsets = self._index()
        self._paths: set[Path] = set()
        self._again: Draft | None = None

    def close(self) -> None:
        """Close the files."""
        self._file.close()
        if self._again is not None:
            self._again.file.close()

    async def run(self) -> Job | None:
        """Settle all questions; return the job that asks again."""
        stored = self._stored_before()
        for number, entry in enumerate(job_questions(self._questions)):
            # The costs of what was stored before a kill are counted here, too.
            answered = {
                part: self._answered(entry.question, custom_id(self._job.token, number, place), sent)
                for place, (part, sent) in enumerate(entry.sent.items())
            }
            if entry.question.id not in stored:
                self._settle(entry, answered)
            if number % 50 == 0:  # calls of other models go on meanwhile
                await asyncio.sleep(0)
        for path in filter(Path.exists, self._paths):  # the records reach the disk before the job is forgotten
            sync_path(path)
        # The job goes last, once its records are stored and its cost is settled; what asks again takes its place.
        context, job = self._context, self._job
        again = self._again.close() if self._again is not None else None
        context.charges.settle(job, self._counts.pop("unasked", 0), self._usd)
        if again is None:
            context.pending.remove(job)
        else:
            context.pending.put(again, instead=job)
        context.charges.forget(job)
        words = ("answered", "failed", "asked again")
        counts = ", ".join(f"{self._counts[word]} {word}" for word in words if self._counts[word]) or "nothing new"
        context.tell(job, f"batch job {job.batch_id} {self._state.status}: {counts}, ${self._usd:.4f}")
        return again

    def _index(self) -> Mapping[str, int]:
        """Return the offset of each request's result in the file."""
        offsets: dict[str, int] = {}
        offset = broken = 0
        for line in self._file:
            try:
                result = self._context.backend.read(parse_json(line))
                if result.completion is not None or result.custom_id not in offsets:  # an answer before any error
                    offsets[result.custom_id] = offset
            except NO_RESULT:
                broken += 1
            offset += len(line)
        if broken:
            self._context.tell(self._job, f"{broken} results of job {self._job.batch_id} cannot be read", "WARNING")
        return offsets

    def _stored_before(self) -> set[str]:
        """Return the ids of the questions that an earlier process settled."""
        start = questions_file(self._context.run, self._job.token, _START)
        for entry in job_questions(self._questions):
            question = entry.question
            self._paths.add(self._context.run.path_of(kind_of(question.kind).stored, question.context))
        lengths = read_json(start) if start.exists() else None
        if not isinstance(lengths, dict):
            write_json(start, {str(path): path.stat().st_size if path.exists() else 0 for path in self._paths})
            return set()
        stored = set()
        for path in filter(Path.exists, self._paths):
            with path.open("rb") as lines:
                lines.seek(lengths.get(str(path), 0))
                for line in lines:
                    with contextlib.suppress(*NO_RESULT):  # the last line, where a kill cut it off
                        stored.add(str(parse_json(line)["id"]))
        return stored

    def _settle(self, entry: JobQuestion, answered: Mapping[str, _Answered]) -> None:
        answers: dict[str, ReplyOrError] = {}
        bad = []
        for part, received in answered.items():
            answer = received.answer
            if read_answer(entry.question, part, answer)[1] is not None:
                bad.append(part)
            # Its tokens count together with those of the unusable answers before it.
            before = entry.used.get(part)
            if before is not None:
                answer = before if isinstance(answer, CallError) else before.plus(answer)
            answers[part] = answer
        self._counts["answered"] += len(answered) - len(bad)
        if (
            bad
            and all(answered[part].may_help for part in bad)
            and self._ask_again(entry, answers, bad, plain=[part for part in bad if answered[part].is_form_refused])
        ):
            self._counts["asked again"] += len(bad)
        else:
            settled = self._context.apply(entry.question, {**entry.kept, **answers})
            self._counts["failed"] += len(settled.failures)

    def _has_form(self, question: Question, sent: Sent) -> bool:
        """Return whether a request asks for a form of answers that its model may refuse; one of the user's stays."""
        schema = question.schema
        is_ours = schema is not None and structure_parameters(self._context.model, question.role, schema)
        return bool(is_ours) and without_form(sent.body) != sent.body

    def _answered(self, question: Question, custom: str, sent: Sent) -> _Answered:
        """Return the answer to a request, and count what it cost."""
        result = self._result(custom)
        if result.completion is None:
            self._counts["unasked"] += result.unasked
            error = result.error or ProviderError(Fault.MALFORMED, "the batch job has no answer to this request")
            is_form_refused = error.fault in (Fault.REQUEST, Fault.UNSUPPORTED) and self._has_form(question, sent)
            if is_form_refused and not self._counts["refused forms"]:
                self._context.tell(self._job, f"{self._job.model}: {NO_STRUCTURE} ({error})", "WARNING")
            self._counts["refused forms"] += is_form_refused
            return _Answered(
                CallError(Reason.FAILED, str(error)), error.fault.is_transient or is_form_refused, is_form_refused
            )
        usage, counted = usage_of(result.completion, {"messages": []})
        if not counted:
            usage = usage._replace(prompt=sent.prompt_tokens)
        usd = self._context.price.cost_of(usage)
        self._usd += usd
        try:
            text = check_whole(result.completion)
        except ProviderError as error:
            return _Answered(CallError(Reason.FAILED, str(error)), error.fault.is_transient)
        return _Answered(
            Reply(text, usage.prompt or 0, usage.completion or 0, usd, 0.0, counted=counted),
            True,
        )

    def _result(self, custom: str) -> Result:
        offset = self._offsets.get(custom)
        if offset is not None:
            self._file.seek(offset)
            return self._context.backend.read(parse_json(self._file.readline()))
        if self._state.status in _ENDS:
            return Result.unprocessed(custom, _ENDS[self._state.status])
        return Result(custom, error=self._useless)

    def _ask_again(
        self, entry: JobQuestion, answers: Mapping[str, ReplyOrError], bad: list[str], plain: list[str]
    ) -> bool:
        """Put what has no usable answer into the next job, unless attempts, calls or dollars are used up.

        The parts in `plain` are asked without a form of the answer.
        """
        context, sent = self._context, {part: entry.sent[part] for part in bad}
        sent |= {part: replace(sent[part], body=without_form(sent[part].body)) for part in plain}
        usd = context.most_cost(*sent.values())
        if entry.attempt + 1 >= context.attempts or not context.has_room_for(usd):
            return False
        token = self._again.token if self._again is not None else new_token()
        if not context.charges.charge(token, [(len(sent), usd)]):
            return False
        replies = {part: answer for part, answer in answers.items() if isinstance(answer, Reply)}
        kept = {part: reply for part, reply in replies.items() if part not in bad}
        used = {part: reply for part, reply in replies.items() if part in bad}
        if self._again is None:
            self._again = Draft.begin(context, token)
        again = JobQuestion(
            question=entry.question,
            sent=sent,
            kept={**entry.kept, **kept},
            used={**entry.used, **used},
            attempt=entry.attempt + 1,
        )
        self._again.add(again, usd)
        return True


# Where providers have the form of an answer within other settings.
_FORMS_WITHIN = {"output_config": ("format",), "generationConfig": ("responseJsonSchema", "responseMimeType")}


def without_form(body: JSON) -> JSON:
    """Return a request, in the format of any provider, that asks for text."""
    plain = without(body, (*STRUCTURE_FIELDS, "toolConfig"))
    for key, names in _FORMS_WITHIN.items():
        if isinstance(plain.get(key), dict):
            plain[key] = without(plain[key], names)
    return plain


# `coeval status --fetch-batches` stores the answers of finished jobs without a run. Nothing is submitted: an unusable
# answer fails, and `coeval run --continue` asks it again.

_RETRIES = Retries(attempts=4, rate_limited=4, timed_out=2)


async def fetch_batches(run: Run, keys: Accounts, tell: Callable[[str], None]) -> int:
    """Store the answers of finished jobs, telling a line of each; return how many jobs could not be looked up."""
    meta, pending, failed = Meta(run), PendingJobs(run), 0
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
                charges = Charges(meta, job.phase, job.model)
                charges.reconcile(pending)
                try:
                    tell(f"{job.name}: {await _fetch(store, charges, pending, keys, job)}")
                except (CallError, P2LError) as error:
                    failed += 1
                    tell(f"{job.name}: {error}")
    return failed


async def _fetch(store: Store, charges: Charges, pending: PendingJobs, keys: Accounts, job: Job) -> str:
    """Store the answers of a job that has ended; return a line about it."""
    if job.interface not in BATCHING:
        return f"interface {job.interface} has no batches here"
    model, log = Model(job.model, job.interface, (), job.settings), Log(store.run.log(), "INFO")
    async with contextlib.aclosing(backend_for(job.interface, keys.account(model))) as backend:
        storing = partial(apply, store)
        context = JobContext(
            run=store.run,
            pending=pending,
            charges=charges,
            log=log,
            backend=backend,
            model=model,
            phase=job.phase,
            apply=storing,
            retries=_RETRIES,
        )
        if job.batch_id is None:
            try:
                batch_id = await look_up(context, job)
            except UndecidedError:
                return f"may be one of the jobs at work at {job.interface}; look again when those are done"
            if batch_id is None:
                return "was not sent; `coeval run ... --continue` sends it"
            job = replace(job, batch_id=batch_id, status="pending")
            pending.put(job)
        state = await look(context, job)
        if not state.done:
            return f"{state.status}{f', {state.counts}' if state.counts else ''}"
        if state.failure:
            context.cancel(job)
            return f"turned down: {state.failure}; `coeval run ... --continue` asks again"
        await settle(context, job, state)
        return f"{state.status}, its answers are stored"
