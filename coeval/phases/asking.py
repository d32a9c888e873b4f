"""Ask the questions of a phase: as many at once as may be in flight, each until its answer is usable."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from functools import partial, reduce
from itertools import chain
from typing import TypeAlias, TypeVar

from coeval.calling.calls import CallError, Reason, Reply
from coeval.interfaces import in_flight
from coeval.parsing import shown
from coeval.phases.progress import Outcome, Stage
from coeval.phases.question import Question, ReplyOrError, Settled, apply, read_answer
from coeval.schema import ROLE_OF, Model, Phase
from coeval.storage.claims import Claims
from coeval.storage.meta import claimed_work
from coeval.storage.records import read_records
from coeval.storage.store import Store

T = TypeVar("T")
ATTEMPTS = 3  # to get a usable answer
_UNUSABLE_BEFORE_REST = 20  # answers of a judge without a usable one, after which it is asked no more in the phase
_POLL_SECONDS = 0.3  # seconds between two looks at what others are at
_QUEUED_QUESTIONS = 8  # questions that may wait for their turn besides those in flight


class ReplyJournal:
    """Replies of one model in one phase that wait for others of their record, on the disk so that a kill loses none."""

    def __init__(self, store: Store, phase: str, model: str, process: str = "") -> None:
        """`process` names one of several that share the work: each writes a file of its own and reads all."""
        self._store = store
        name = f"{phase}.{model}+{process}" if process else f"{phase}.{model}"
        self._path = store.run.waiting / f"{name}.jsonl"
        self._waiting: dict[str, dict[str, Reply]] = {}
        paths = sorted({self._path, *store.run.waiting.glob(f"{phase}.{model}+*.jsonl")})
        self._read = paths if not process else [self._path]
        for line in chain.from_iterable(read_records(path) for path in paths):
            if "reply" in line:
                self._waiting.setdefault(line["id"], {})[line["part"]] = Reply(**line["reply"])
            else:
                self._waiting.pop(line["id"], None)

    def pop(self, question: str) -> dict[str, Reply]:
        """Return, by part, the replies that an earlier process received."""
        return self._waiting.pop(question, {})

    def put(self, question: str, part: str, reply: Reply) -> None:
        """Store a reply."""
        self._store.append(self._path, {"id": question, "part": part, "reply": asdict(reply)})

    def forget(self, question: str) -> None:
        """Note that the record is stored."""
        self._store.append(self._path, {"id": question})

    def clear(self) -> None:
        """Remove the file, unless replies of another task wait in it."""
        if not self._waiting:
            for path in self._read:
                self._store.forget_file(path)


Work: TypeAlias = Callable[[Model], Awaitable[Outcome]]


async def each_model(
    stage: Stage, phase: Phase, models: Sequence[Model], work: Work, *, by_item: bool = False
) -> Outcome:
    """Let models work at once, each in one process at a time; `by_item`: processes that joined share its records."""
    # Local models share a device, so they work one by one.
    local = [model for model in models if model.interface == "huggingface"]
    queues = [*([model] for model in models if model not in local), local]
    outcome = Outcome()

    async def one_by_one(queue: Sequence[Model]) -> None:
        for model in queue:
            in_batches = stage.batching is not None and stage.batching.takes(model, phase)
            if stage.claims is not None and by_item and not model.is_virtual and not in_batches:
                outcome.add(await _beside_others(stage.claims, f"{phase}+{model.name}", model, work))
                continue
            waits = partial(stage.log.info, f"{phase}: {model.name} waits for another process that is at work on it")
            async with claimed_work(stage.run, phase, model.name, on_wait=waits):
                try:
                    # Batch jobs that an earlier process sent; what they lack is asked again as missing.
                    if stage.batching is not None and not model.is_virtual:
                        await stage.batching.adopt(phase, model, partial(apply, stage.store))
                except CallError as error:  # what is in a job must not be asked, and paid for, again
                    _stop(stage, phase, model, outcome, error)
                else:
                    outcome.add(await work(model))

    await together(map(one_by_one, queues))
    return outcome


async def _beside_others(claims: Claims, name: str, model: Model, work: Work) -> Outcome:
    """Let a model make what no other process makes, until nobody is at it and nothing of killed ones is left."""
    outcome = Outcome()
    try:
        while True:
            claims.begin(name)
            outcome.add(await work(model))
            if outcome.stopped or outcome.refused:
                return outcome
            while claims.is_awaited(name):
                await asyncio.sleep(_POLL_SECONDS)
            if not claims.is_left(name):
                return outcome
    finally:
        claims.end(name)


async def in_turn(parts: Iterable[Awaitable[Outcome]]) -> Outcome:
    """Await parts of one model's work one after the other, until it may not be asked any more; return their sum."""
    outcome = Outcome()
    for part in parts:
        outcome.add(await part)
        if outcome.stopped or outcome.refused:
            break
    return outcome


async def together(works: Iterable[Awaitable[T]]) -> list[T]:
    """Run all at once; if one fails, cancel the others before its error is raised."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def drive(
    stage: Stage,
    phase: Phase,
    model: Model,
    questions: Iterable[Question],
    *,
    expected: int = 0,
    attempts: int = ATTEMPTS,
) -> Outcome:
    """Ask one model's questions until all `expected` are settled, or it may not be asked any more."""
    outcome = Outcome(expected)
    stage.progress.expect(expected)
    if stage.batching is None or not stage.batching.takes(model, phase):
        await _Asker(stage, phase, model, outcome, attempts).run(questions)
        return outcome

    def settle(question: Question, answers: Mapping[str, ReplyOrError]) -> Settled:
        settled = apply(stage.store, question, answers)
        _count(stage, outcome, question, settled)
        return settled

    try:
        await stage.batching.answer(model, questions, settle)
    except CallError as error:
        _stop(stage, phase, model, outcome, error)
    return outcome


class _Asker:
    """Asks the questions of one model, a bounded number at once."""

    def __init__(self, stage: Stage, phase: Phase, model: Model, outcome: Outcome, attempts: int) -> None:
        self.stage, self.phase, self.model = stage, phase, model
        self.outcome, self.attempts = outcome, attempts
        self._work = f"{phase}+{model.name}"
        self._claims = stage.claims if stage.claims is not None and self._work in stage.claims.begun else None
        self._journal = ReplyJournal(stage.store, phase, model.name, self._claims.name if self._claims else "")
        # More than may be in flight, so that a turn that is free finds a question that is ready.
        self._slots = asyncio.Semaphore(
            2 * in_flight(stage.config.experiment.concurrency, model.interface) + _QUEUED_QUESTIONS
        )
        self._tasks: set[asyncio.Task[None]] = set()
        self._error: BaseException | None = None
        self._last_unusable = ""

    async def run(self, questions: Iterable[Question]) -> None:
        """Start questions as slots become free; wait for the last."""
        try:
            if self._claims is not None:
                questions = self._claims.take(
                    self._work, iter(questions), lambda question: question.id, self._leave_out
                )
            for question in questions:
                await self._slots.acquire()
                if self._is_over:
                    break
                task = asyncio.create_task(self._settle(question))
                self._tasks.add(task)
                task.add_done_callback(self._done)
            while self._tasks and self._error is None:
                await asyncio.wait(self._tasks, return_when=asyncio.FIRST_EXCEPTION)
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._error is not None:
            raise self._error
        if not self._is_over:
            self._journal.clear()

    def _leave_out(self, count: int) -> None:
        """Take what other processes make out of what is expected of this one."""
        self.outcome.expected -= count
        self.stage.progress.expect(-count)

    @property
    def _is_over(self) -> bool:
        if self.stage.halted is not None:
            self.outcome.stopped.setdefault(self.model.name, self.stage.halted)
        return self._error is not None or bool(self.outcome.stopped or self.outcome.refused)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._slots.release()
        if not task.cancelled() and task.exception() is not None:
            self._error = self._error or task.exception()

    async def _settle(self, question: Question) -> None:
        """Ask until all parts have a usable answer, or the attempts are used up; then store the record."""
        earlier = self._journal.pop(question.waiting_id)
        replies = await together(self._answer(question, part, earlier.get(part)) for part in question.prompts)
        for reply in replies:
            if isinstance(reply, CallError) and reply.reason is not Reason.FAILED:
                _stop(self.stage, self.phase, self.model, self.outcome, reply)
                return
        settled = apply(self.stage.store, question, dict(zip(question.prompts, replies, strict=True)))
        if len(replies) > 1:
            self._journal.forget(question.waiting_id)
        if self._claims is not None:
            self._claims.settle(self._work, question.id)
        _count(self.stage, self.outcome, question, settled)

    async def _answer(self, question: Question, part: str, earlier: Reply | None) -> ReplyOrError:
        """Return the first usable answer to a part, otherwise the last, with the tokens of all attempts."""
        if earlier is not None:
            return earlier
        replies: list[Reply] = []
        for attempt in range(self.attempts):
            if (rest := self._rest()) is not None:
                if replies:
                    break
                return rest
            try:
                replies.append(await self.stage.ask(question.call(self.model, part, attempt)))
            except CallError as error:
                return error
            _, why = read_answer(question, part, replies[-1], self.stage.store)
            if why is None:
                self.stage.usable.add(self._work)
                break
            self.stage.unusable[self._work] += 1
            self._last_unusable = f"{why}{_sample(question, replies[-1])}"
            self.stage.log.debug(f"{question.id}: attempt {attempt + 1}: {why}")
        total = reduce(Reply.plus, replies)
        if why is None and len(question.prompts) > 1:
            self._journal.put(question.waiting_id, part, total)
        return total

    def _rest(self) -> CallError | None:
        """Return why a judge is not asked again: it has answered often, and never usably."""
        count = self.stage.unusable[self._work]
        if ROLE_OF[self.phase] != "judge" or self._work in self.stage.usable or count < _UNUSABLE_BEFORE_REST:
            return None
        return CallError(
            Reason.FATAL,
            f"{count} answers and none that can be used; the last: {self._last_unusable}. It rests; "
            "--continue or `coeval repair` asks it again",
        )


def _sample(question: Question, reply: Reply) -> str:
    """Return how a reply begins, for an error; nothing of one with a rationale, which stays out of logs."""
    return "" if question.context.get("grading", {}).get("rationale") else f" (it began {shown(reply.text)})"


def _count(stage: Stage, outcome: Outcome, question: Question, settled: Settled) -> None:
    is_failed = bool(settled.failures)
    if is_failed:
        stage.failed.add(question.id)
    outcome.failed += is_failed
    outcome.stored += not is_failed
    stage.progress.advance(failed=is_failed)


def _stop(stage: Stage, phase: Phase, model: Model, outcome: Outcome, error: CallError) -> None:
    """Stop asking a model in this phase, or every model once the budget is used up; report it once."""
    if error.reason is Reason.BUDGET:
        outcome.stopped[model.name] = str(error)
        if stage.halted is None:
            stage.halted = str(error)
            stage.log.warning(f"{error}; nothing more is asked; raise experiment.budget_usd and use --continue")
    elif error.reason is Reason.QUOTA:
        if model.name not in outcome.stopped:
            stage.log.warning(f"{model.name}: {error}; raise experiment.quota and use --continue for the rest")
        outcome.stopped[model.name] = str(error)
    else:
        if model.name not in outcome.refused:
            stage.log.error(f"{model.name}: {error}; it is asked no more in this phase")
            stage.store.error(phase, str(error), model=model.name, role=ROLE_OF[phase])
        outcome.refused[model.name] = str(error)
