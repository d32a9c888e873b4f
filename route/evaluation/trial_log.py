"""The trials of a router's log: requests split between policies, or shadowed by one, and what came of them.

Shapes: N requests, K policies, M models.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from p2l.common.cli import listed, nearest
from p2l.common.errors import InputError
from p2l.common.files import bounded_lines
from route.routing.experiments import CURRENT, SHADOW

Floats: TypeAlias = npt.NDArray[np.float64]
Places: TypeAlias = npt.NDArray[np.intp]
_Json = Mapping[str, Any]
_LEAST_CHANCE = 1e-6
"""Of a model that was asked; a smaller one means that it was not drawn from the logged chances."""
_GONE = 499  # status of a client that left before its answer


@dataclass
class Trials:
    """Requests of one experiment, or of one shadow policy, in the order of the log."""

    experiment: str
    """`shadow` for a shadow policy outside experiments."""
    policies: tuple[str, ...]
    """The first is the one that the others are compared with."""
    models: tuple[str, ...]
    requests: list[str]
    units: Places
    """(N,) codes of what was assigned together: conversations or keys."""
    asked: Places
    """(N,) the model that was chosen first."""
    policy: Places
    """(N,) the one that answered."""
    chances: Floats
    """(K, N, M) of each model to be chosen first by each policy."""
    weights: Floats
    """(K, N) by which the outcome of a request counts for each policy: how much likelier it was under that policy."""
    scores: Floats
    """(N, M) of P2L; NaN without."""
    outcomes: dict[str, Floats]
    """(N,) by measure; NaN where unknown."""
    unseen: list[str | None]
    """(N,) the model that a shadow policy drew, where that answers too."""
    notes: list[str] = field(default_factory=list)
    """What was left out, and why."""


def read_log(paths: Sequence[str | Path]) -> tuple[list[_Json], dict[str, str]]:
    """Return the requests with trials in logs of routers, and the verdict by request of what was voted on.

    Lines that are no events of the router are passed over, as other programs may write to one log. Raises InputError
    where no request has a trial.
    """
    requests: dict[str, _Json] = {}
    votes: dict[str, str] = {}
    for path in paths:
        for event in _events(path):
            name, request_id = event.get("event"), str(event.get("request_id"))
            if name == "vote":
                votes[request_id] = str(event.get("verdict"))  # a later vote takes the place of the first
            elif name == "request" and isinstance(event.get("trial"), dict) and event.get("tried"):
                requests[request_id] = event
    if not requests:
        raise InputError(
            f"{listed([str(path) for path in paths])}: no request of an experiment or a shadow; configure "
            "'experiments' or 'shadow', and give what the router writes to standard error"
        )
    return list(requests.values()), votes


def _events(path: str | Path) -> Iterator[_Json]:
    with contextlib.ExitStack() as stack:
        file = sys.stdin.buffer if str(path) == "-" else stack.enter_context(Path(path).expanduser().open("rb"))
        for line, _ in bounded_lines(file):
            if b'"trial"' not in line and b'"vote"' not in line:
                continue
            try:
                event = json.loads(line)
            except ValueError:  # torn, as the last line of a running router may be
                continue
            if isinstance(event, dict):
                yield event


def trials_of(requests: Sequence[_Json], votes: Mapping[str, str], name: str | None = None) -> Trials:
    """Return the trials of the experiment `name`, or of `shadow`; by default of the only one that there is."""
    found = list(dict.fromkeys(request["trial"].get("experiment", SHADOW) for request in requests))
    if any(SHADOW in request["trial"]["chances"] for request in requests) and SHADOW not in found:
        found.append(SHADOW)
    if name is None:
        if len(found) > 1:
            raise InputError(f"the log has several trials: {listed(found)}; name one by --experiment")
        name = found[0]
    if name not in found:
        raise InputError(f"--experiment: the log has no {name!r}{nearest(name, found)}; it has {listed(found)}")
    if name == SHADOW:
        chosen = [request for request in requests if SHADOW in request["trial"]["chances"]]
    else:
        chosen = [request for request in requests if request["trial"].get("experiment") == name]
    return _trials(name, chosen, votes)


def _trials(name: str, requests: Sequence[_Json], votes: Mapping[str, str]) -> Trials:
    whole = len(requests)
    requests = [request for request in requests if request["status"] != _GONE]
    decided = _decisions(requests, name)
    requests = [request for request, decision in zip(requests, decided, strict=True) if decision is not None]
    decisions = [decision for decision in decided if decision is not None]
    if not decisions:
        raise InputError(f"{name}: no request whose client waited for the answer has chances of its model")
    policies = (CURRENT, SHADOW) if name == SHADOW else tuple(decisions[-1].shares)
    models = tuple(dict.fromkeys(model for each in decisions for chances in each.chances.values() for model in chances))
    place = {model: number for number, model in enumerate(models)}
    chances = np.zeros((len(policies), len(requests), len(models)))
    scores = np.full((len(requests), len(models)), np.nan)
    for row, decision in enumerate(decisions):
        for column, policy in enumerate(policies):
            for model, chance in decision.chances.get(policy, {}).items():
                chances[column, row, place[model]] = chance
        for model, score in decision.scores.items():
            if model in place:
                scores[row, place[model]] = score
    units = [request["trial"].get("unit") or request["trial"].get("conversation") for request in requests]
    trials = Trials(
        experiment=name,
        policies=policies,
        models=models,
        requests=[request["request_id"] for request in requests],
        units=np.unique(np.array(units, dtype=object).astype(str), return_inverse=True)[1],
        asked=np.array([place[decision.asked] for decision in decisions]),
        policy=np.array([policies.index(decision.policy) for decision in decisions]),
        chances=chances,
        weights=np.array([[decision.weight(policy) for decision in decisions] for policy in policies]),
        scores=scores,
        outcomes=_outcomes(requests, votes),
        unseen=[request["trial"].get("unseen") for request in requests],
    )
    if blind := sum(bool(request["trial"].get("blind")) for request in requests):
        trials.notes.append(f"P2L gave no scores in time for {blind:,} requests, for which the static order chose")
    if left_out := whole - len(requests):
        trials.notes.append(
            f"{left_out:,} of {whole:,} requests are left out: their clients left, or no policy is known to have "
            "chosen their model"
        )
    return trials


@dataclass(frozen=True)
class _Decision:
    """How the model of a request was chosen."""

    asked: str
    policy: str
    shares: Mapping[str, float]
    chances: Mapping[str, Mapping[str, float]]
    scores: Mapping[str, float]
    by_assignment: bool
    """Whether earlier choices of the conversation led here, so that only the draw of its policy is known."""

    def weight(self, policy: str) -> float:
        """Return how much likelier the choice was under a policy than under what chose."""
        if self.by_assignment and policy in self.shares:
            return float(policy == self.policy) / self.shares[policy]
        drawn = sum(share * self.chances.get(name, {}).get(self.asked, 0.0) for name, share in self.shares.items())
        return self.chances.get(policy, {}).get(self.asked, 0.0) / drawn


def _decisions(requests: Sequence[_Json], name: str) -> list[_Decision | None]:
    """Return the decision behind each request; None where the log does not have it.

    A turn that keeps the model of its conversation has the decision of the turn that chose it. A conversation that was
    chosen for several times has been led by its policy from one choice to the next, so that the chances of a later one
    are no longer those of the other policies.
    """
    by_conversation: dict[str, _Decision] = {}
    free_turns: dict[str, int] = {}
    for request in requests:
        if not request.get("sticky"):
            conversation = request["trial"].get("conversation", "")
            free_turns[conversation] = free_turns.get(conversation, 0) + 1
    decisions: list[_Decision | None] = []
    for request in requests:
        trial = request["trial"]
        conversation = trial.get("conversation", "")
        if request.get("sticky"):
            decisions.append(by_conversation.get(conversation))
            continue
        decision = _decision(request, name, by_assignment=free_turns[conversation] > 1)
        decisions.append(decision)
        if decision is not None:
            by_conversation[conversation] = decision
    return decisions


def _decision(request: _Json, name: str, *, by_assignment: bool) -> _Decision | None:
    trial = request["trial"]
    shares, chances = trial.get("shares") or {CURRENT: 1.0}, trial["chances"]
    policy, asked = trial.get("policy", CURRENT), request["tried"][0]
    if not all(chances.values()) or chances.get(policy, {}).get(asked, 0.0) < _LEAST_CHANCE:
        return None
    if name == SHADOW:  # what the router does, whatever experiments there are
        mixture: dict[str, float] = {}
        for each, share in shares.items():
            for model, chance in chances[each].items():
                mixture[model] = mixture.get(model, 0.0) + share * chance
        policy, shares, by_assignment = CURRENT, {CURRENT: 1.0}, False
        chances = {CURRENT: mixture, SHADOW: chances[SHADOW]}
    return _Decision(
        asked=asked,
        policy=policy,
        shares=shares,
        chances=chances,
        scores=trial.get("scores", {}),
        by_assignment=by_assignment,
    )


def _outcomes(requests: Iterable[_Json], votes: Mapping[str, str]) -> dict[str, Floats]:
    thumbs = {"up": 1.0, "down": 0.0}
    rows = [
        (
            request.get("cost", np.nan),
            request["seconds"],
            float(request["status"] != 200),
            thumbs.get(votes.get(request["request_id"], ""), np.nan),
        )
        for request in requests
    ]
    cost, seconds, failures, liked = np.array(rows, dtype=np.float64).T
    measures = {"cost": cost, "seconds": seconds, "failures": failures, "votes": liked}
    return {name: values for name, values in measures.items() if np.isfinite(values).any()}
