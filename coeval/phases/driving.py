"""Asking: as many questions at once as may be in flight, each until its answer is of use, which is stored at once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TypeVar

from coeval.calling.calls import CallError, Reason, Reply
from coeval.interfaces import in_flight
from coeval.phases.question import Answer, Question, Settled, apply, read_answer
from coeval.phases.stage import Outcome, Stage
from coeval.schema import ROLE_OF, Model, Phase
from coeval.storage.jsonl import read_records
from coeval.storage.meta import claimed_work
from coeval.storage.run import Run
from coeval.storage.store import Store

# Answers that wait for others before they make a record: kept in a journal, so that a kill does not lose them.


class Parts:
    """The waiting answers of one model in one phase."""

    def __init__(self, store: Store, phase: str, model: str) -> None:
        self._store = store
        self._path = _journal(store.run, phase, model)
        self._waiting: dict[str, dict[str, Reply]] = {}
        for line in read_records(self._path):
            if "reply" in line:
                self._waiting.setdefault(line["id"], {})[line["part"]] = Reply(**line["reply"])
            else:
                self._waiting.pop(line["id"], None)

    def take(self, question: str) -> dict[str, Reply]:
        """Part -> answer that an earlier process got."""
        return self._waiting.pop(question, {})

    def keep(self, question: str, part: str, reply: Reply) -> None:
        """Write an answer down."""
        self._store.append(self._path, {"id": question, "part": part, "reply": asdict(reply)})

    def forget(self, question: str) -> None:
        """The record is made."""
        self._store.append(self._path, {"id": question})

    def clear(self) -> None:
        """Nothing of this work waits any more; the journal stays where answers of another task do."""
        if not self._waiting:
            self._store.forget_file(self._path)


def _journal(run: Run, phase: str, model: str) -> Path:
    return run.parts / f"{phase}.{model}.jsonl"


T = TypeVar("T")
ATTEMPTS = 3  # of an answer that is not what was asked for
_SPARE = 8  # questions that may wait for their turn besides those in flight


async def each_model(
    stage: Stage, phase: Phase, models: Sequence[Model], work: Callable[[Model], Awaitable[Outcome]]
) -> Outcome:
    """Let models work at once, each in no other process meanwhile; of local ones only one, for they share a device."""
    local = [model for model in models if model.interface == "huggingface"]
    chains = [[model] for model in models if model not in local] + ([local] if local else [])
    outcome = Outcome()
    for part in await together([_in_turn(stage, phase, chain, work) for chain in chains]):
        outcome.add(part)
    return outcome


async def _in_turn(
    stage: Stage, phase: Phase, models: Sequence[Model], work: Callable[[Model], Awaitable[Outcome]]
) -> Outcome:
    outcome = Outcome()
    for model in models:
        waits = f"{phase}: {model.name} waits for another process that is at work on it"
        async with claimed_work(stage.run, phase, model.name, on_wait=lambda text=waits: stage.log.info(text)):  # type: ignore[misc]
            adopted = await _adopt(stage, phase, model)
            outcome.add(adopted)
            if not adopted.refused:  # otherwise what is in a job would be asked, and paid for, again
                outcome.add(await work(model))
    return outcome


async def _adopt(stage: Stage, phase: Phase, model: Model) -> Outcome:
    """Answers of batch jobs that an earlier process sent; what they lack is asked for again as missing."""
    outcome = Outcome()
    if stage.batching is not None and not model.is_virtual:
        try:
            await stage.batching.adopt(phase, model, lambda question, answers: apply(stage.store, question, answers))
        except CallError as error:
            _stop(stage, phase, model, outcome, error)
    return outcome


async def together(works: Iterable[Awaitable[T]]) -> list[T]:
    """All of them at once; where one breaks the others are ended before it is told."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def drive(
    stage: Stage, phase: Phase, model: Model, questions: Iterable[Question], *, attempts: int = ATTEMPTS
) -> Outcome:
    """Ask one model's questions until all are settled, or it may be asked no more.

    Raises:
        OSError: an answer cannot be stored.
    """
    outcome = Outcome()
    if stage.batching is not None and stage.batching.takes(model, phase):
        await _drive_batch(stage, phase, model, questions, outcome)
        return outcome
    await _Pump(stage, phase, model, outcome, attempts).run(questions)
    return outcome


async def _drive_batch(
    stage: Stage, phase: Phase, model: Model, questions: Iterable[Question], outcome: Outcome
) -> None:
    def settle(question: Question, answers: Mapping[str, Answer]) -> Settled:
        settled = apply(stage.store, question, answers)
        _count(stage, outcome, settled)
        return settled

    try:
        await stage.batching.answer(model, questions, settle)  # type: ignore[union-attr]
    except CallError as error:
        _stop(stage, phase, model, outcome, error)


class _Pump:
    """The questions of one model in flight."""

    def __init__(self, stage: Stage, phase: Phase, model: Model, outcome: Outcome, attempts: int) -> None:
        self.stage, self.phase, self.model = stage, phase, model
        self.outcome, self.attempts = outcome, attempts
        self._parts = Parts(stage.store, phase, model.name)
        flights = in_flight(stage.config.experiment.concurrency, model.interface)
        self._slots = asyncio.Semaphore(2 * flights + _SPARE)
        self._tasks: set[asyncio.Task[None]] = set()
        self._broken: BaseException | None = None

    async def run(self, questions: Iterable[Question]) -> None:
        """Start them as places become free; wait for the last."""
        try:
            for question in questions:
                await self._slots.acquire()
                if self._is_over:
                    break
                task = asyncio.create_task(self._settle(question))
                self._tasks.add(task)
                task.add_done_callback(self._done)
            while self._tasks and self._broken is None:
                await asyncio.wait(self._tasks, return_when=asyncio.FIRST_EXCEPTION)
        finally:
            await self._end()
        if self._broken is not None:
            raise self._broken
        if not self._is_over:
            self._parts.clear()

    @property
    def _is_over(self) -> bool:
        halted = self.stage.halted is not None or self._broken is not None
        if self.stage.halted is not None:
            self.outcome.stopped.setdefault(self.model.name, self.stage.halted)
        return halted or bool(self.outcome.stopped or self.outcome.refused)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._slots.release()
        if not task.cancelled() and task.exception() is not None:
            self._broken = self._broken or task.exception()

    async def _end(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _settle(self, question: Question) -> None:
        """Ask until all parts have an answer of use, or the attempts are used up; then make the record."""
        kept = self._parts.take(question.waiting_id)
        found = await together(self._answer(question, part, kept.get(part)) for part in question.prompts)
        answers = dict(zip(question.prompts, found, strict=True))
        for answer in found:
            if isinstance(answer, CallError) and answer.reason is not Reason.FAILED:
                _stop(self.stage, self.phase, self.model, self.outcome, answer)
                return
        settled = apply(self.stage.store, question, answers)
        if len(answers) > 1:
            self._parts.forget(question.waiting_id)
        _count(self.stage, self.outcome, settled)

    async def _answer(self, question: Question, part: str, kept: Reply | None) -> Answer:
        """The first answer of use to one part, otherwise the last one; tokens are those of all attempts."""
        if kept is not None:
            return kept
        tried: list[Reply] = []
        for attempt in range(self.attempts):
            try:
                reply = await self.stage.ask(question.call(self.model, part, attempt))
            except CallError as error:
                return error
            tried.append(reply)
            _, why = read_answer(question, part, reply)
            if why is None:
                break
            self.stage.log.debug(f"{question.id}: attempt {attempt + 1}: {why}")
        total = _summed(tried)
        if why is None and len(question.prompts) > 1:
            self._parts.keep(question.waiting_id, part, total)
        return total


def _summed(replies: Sequence[Reply]) -> Reply:
    """The last of several replies, with the tokens of all."""
    return replace(
        replies[-1],
        prompt_tokens=sum(reply.prompt_tokens for reply in replies),
        completion_tokens=sum(reply.completion_tokens for reply in replies),
        cost_usd=sum(reply.cost_usd for reply in replies),
    )


def _count(stage: Stage, outcome: Outcome, settled: Settled) -> None:
    if settled.failures:
        outcome.failed += 1
    else:
        outcome.stored += 1
    stage.progress.advance(failed=bool(settled.failures))


def _stop(stage: Stage, phase: Phase, model: Model, outcome: Outcome, error: CallError) -> None:
    """Ask a model no more in this phase, and none at all where the dollars are used up; said, and noted, once."""
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
