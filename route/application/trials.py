"""Trials: which policy of an experiment a request has, and what a shadow policy would have chosen or answered.

The pairs of answers of a shadow policy are written to a file for a judge; nobody waits for them, and what they cost is
booked to a key of their own.
"""

from __future__ import annotations

import asyncio
import errno
import hashlib
import json
import os
import random
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path

from p2l.common.errors import InputError
from p2l.common.web import Deadline
from route.application.record import keep
from route.application.service import Service
from route.keep.conversations import HEADER, conversation_of
from route.keep.ledger import Refusal
from route.observability.logs import LOGGER
from route.providers.base import JSON
from route.request.api_errors import ApiError, of_refusal
from route.request.chat import ChatRequest
from route.routing.candidates import NoModelError
from route.routing.experiments import CURRENT, Chances, Policy, Trial, chances_of
from route.send.asking import ask_whole
from route.send.charges import ceiling_of
from route.send.dispatch import Answer, Choice, UnseenAnswer, text_in

_MOST_FILE_BYTES = 2**30
_MOST_UNDER_WAY = 32
"""Unseen answers that a worker waits for at once; the choices of further requests are logged alone."""
_DIGEST_LETTERS = 16
_TASK = "unseen answer"
_random = random.SystemRandom()


async def begin_trial(
    service: Service, answer: Answer, request: ChatRequest, headers: Mapping[str, str], conversation: str | None
) -> None:
    """Give a request the policy of its experiment, and note what other policies would have chosen for it."""
    key, choice = answer.key, answer.choice
    assert key is not None
    if request.compare:  # two models answer, whatever the policy
        return
    now = datetime.now(timezone.utc)
    experiment = next((each for each in service.experiments if each.includes(key.name, choice.allowed, now)), None)
    shadow = _drawn_shadow(service, choice)
    policies = [*(experiment.policies if experiment else ()), *([shadow] if shadow else ())]
    if not policies:
        return
    if conversation is None:
        name = key.name
        conversation = await request.apart(lambda: conversation_of(request.body, key=name, header=headers.get(HEADER)))
    choices = {policy.name: await _choice_of(service, policy, answer, request) for policy in policies}
    trial = Trial(
        conversation=_digest(conversation),
        blind=tuple(name for name, each in choices.items() if each.coefficients is None),
    )
    if experiment is None:
        choices[CURRENT] = choice
    else:
        unit = conversation if experiment.by_conversation else key.name
        policy = experiment.policy_of(unit)
        answer.choice = choices[policy.name]
        trial.experiment, trial.policy, trial.unit = experiment.name, policy.name, _digest(unit)
        trial.shares = dict(zip((each.name for each in experiment.policies), experiment.shares, strict=True))
    for name, each in choices.items():
        trial.chances[name], scores = _weigh(service, each)
        trial.scores = trial.scores or scores
    answer.trial = trial
    chances = {} if shadow is None else trial.chances[shadow.name]
    if chances and service.shadow_file is not None:
        (trial.unseen,) = _random.choices([*chances], [*chances.values()])
        answer.unseen = UnseenAnswer(trial.unseen)


def _drawn_shadow(service: Service, choice: Choice) -> Policy | None:
    """Return the shadow policy for its share of the requests, of those that it has a model for."""
    shadow, config = service.shadow, service.config.shadow
    if shadow is None or config is None or not shadow.permitted(choice.allowed):
        return None
    return shadow if _random.random() < config.share else None


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:_DIGEST_LETTERS]


async def _choice_of(service: Service, policy: Policy, answer: Answer, request: ChatRequest) -> Choice:
    """Return the choice of a request as a policy makes it."""
    choice, key = answer.choice, answer.key
    assert key is not None
    budget = choice.budget
    names_none = request.budget is None and request.budget_usd is None
    dollars = None if choice.allowance is None else choice.allowance.dollars
    is_in_dollars = dollars is not None and dollars.is_budget
    if policy.budget is not None and names_none and not is_in_dollars:
        ceiling = ceiling_of(key, 1)
        budget = policy.budget if ceiling is None else min(policy.budget, ceiling)
    coefficients, scorer = choice.coefficients, policy.scorer
    if scorer is not None:
        turns = await request.apart(lambda: scorer.newest(request.turns))
        coefficients = await scorer.coefficients(turns, service.config.score_timeout_ms / 1000)
    return replace(
        choice,
        router=policy.router,
        coefficients=coefficients,
        budget=budget,
        allowed=policy.permitted(choice.allowed),
    )


def _weigh(service: Service, choice: Choice) -> tuple[Chances, Mapping[str, float]]:
    """Return the chances of each model to be chosen first, and the scores; both empty where there is no choice."""
    blocked = service.fleet.blocked()
    assert choice.router is not None
    try:
        decision = choice.decide(choice.router, blocked)
    except (InputError, NoModelError):
        return {}, {}
    candidates = choice.router.fitting(choice.budget, choice.allowed, blocked, choice.demand)
    explore = 0.0 if choice.fixed is not None else service.config.explore
    return chances_of(decision, explore, candidates), decision.limited_to(choice.allowed).scores


def ask_unseen(service: Service, answer: Answer) -> None:
    """Let the model of the shadow policy answer a request as well, and write both answers for a judge; at once return.

    Nothing is asked where that is the model that answered, or where either answer is no text.
    """
    unseen, config = answer.unseen, service.config.shadow
    if unseen is None or config is None or not answer.shown or answer.shown[0].model == unseen.model:
        return
    if unseen.is_text and sum(task.get_name() == _TASK for task in service.finishing) < _MOST_UNDER_WAY:
        task = asyncio.ensure_future(_ask_unseen(service, answer, unseen, config.key or ""))
        task.set_name(_TASK)
        service.finishing.add(task)
        task.add_done_callback(service.finishing.discard)


async def _ask_unseen(service: Service, answer: Answer, unseen: UnseenAnswer, key_name: str) -> None:
    body = {name: entry for name, entry in answer.request.body.items() if name not in ("stream", "stream_options")}
    side = Answer(
        service.feedback.ids.new(),
        replace(answer.request, body=body, stream=False),
        choice=Choice([unseen.model]),
        deadline=Deadline.after(service.config.timeouts.total),
    )
    try:
        key = next(record for record in service.ledger.records if record.name == key_name)
        service.enter(side, key)
        admitted = await service.ledger.admit(key, [unseen.model], 0)
        if isinstance(admitted, Refusal):
            raise of_refusal(admitted)
        _, completion = await service.dispatcher.run(side, ask_whole)
        side.shown.append(side.charges[-1])
        side.status = 200
        text = text_in(completion)
        if text and service.shadow_file is not None:
            row = _row(answer, unseen, text)
            await asyncio.to_thread(append_row, service.shadow_file, row)
    except ApiError as error:
        side.status, side.code = error.status, error.code
    except OSError as error:
        LOGGER.error("an unseen answer could not be written: %s", error.strerror)
    finally:
        keep(service, side)


def _row(answer: Answer, unseen: UnseenAnswer, text: str) -> JSON:
    """Return a pair of answers in random order, so that a judge cannot tell which was shown by its place."""
    pair = [(answer.shown[0].model, "".join(unseen.shown)), (unseen.model, text)]
    _random.shuffle(pair)
    (model_a, response_a), (model_b, response_b) = pair
    turns = list(answer.request.turns)
    return {
        "question_id": answer.request_id,
        "prompt": turns[0] if len(turns) == 1 else turns,
        "model_a": model_a,
        "model_b": model_b,
        "response_a": response_a,
        "response_b": response_b,
    }


def append_row(path: Path, row: JSON) -> None:
    """Append a line of JSON to a file that only its owner may read, unless it has reached 1 GiB; OSError else."""
    line = json.dumps(row, ensure_ascii=False) + "\n"
    # Workers append to one file: what is written by one call with O_APPEND is not torn by another's.
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        if os.fstat(descriptor).st_size + len(line) > _MOST_FILE_BYTES:
            raise OSError(errno.EFBIG, f"{path} has 1 GiB; move it away")
        os.write(descriptor, line.encode(errors="replace"))
    finally:
        os.close(descriptor)
