"""What a request needs of the model that answers it, and which models have lately refused such requests."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from route.providers.base import JSON, Fault, ProviderError
from route.providers.refusals import Refused, read_refusal
from route.routing.decision import NO_DEMAND, Demand, bits_of, features_in
from route.service.wire import Incoming, count_of, tokens_of

REMEMBERED_SECONDS = 600.0
"""How long a refusal is remembered."""
_MOST_REMEMBERED = 32
"""Refusals of one model."""


@dataclass(frozen=True)
class Memo:
    """A refusal: requests with all of these are not sent there again for a while."""

    features: int = 0
    parameter: str = ""
    tokens: int | None = None
    """Of the shortest prompt that was refused."""
    answer: int | None = None
    """Tokens of the longest answer; longer ones are refused."""

    def fits(self, incoming: Incoming) -> bool:
        """Return whether a request would be refused for the same reason."""
        body = incoming.body
        if self.features & ~incoming.features:
            return False
        if self.parameter and body.get(self.parameter) is None:
            return False
        if self.answer is not None and answer_of(body) <= self.answer:
            return False
        return self.tokens is None or incoming.prompt_tokens >= self.tokens


def answer_of(body: JSON) -> int:
    """Return the tokens of the longest answer that a request asks for; 0 if it does not say."""
    return max(count_of(body.get("max_tokens")), count_of(body.get("max_completion_tokens")))


@dataclass
class Refusals:
    """What models have refused lately; of one worker."""

    clock: Callable[[], float] = time.monotonic
    _memos: dict[str, dict[Memo, float]] = field(default_factory=dict)
    """By model: until when each counts."""

    def learn(self, model: str, error: ProviderError, incoming: Incoming) -> Memo | None:
        """Remember a refusal about capability, size or parameters; return what is new in it."""
        if error.fault not in (Fault.UNSUPPORTED, Fault.CONTEXT_LENGTH):
            return None
        needed = features_in(incoming.features)
        refused = read_refusal(error.detail or str(error), needed, incoming.body.keys())
        memo = _memo_of(refused, error.fault, incoming)
        if memo is None:
            return None
        memos, now = self._memos.setdefault(model, {}), self.clock()
        is_new = memos.pop(memo, -math.inf) <= now
        memos[memo] = now + REMEMBERED_SECONDS
        if len(memos) > _MOST_REMEMBERED:
            del memos[next(iter(memos))]
        return memo if is_new else None

    def of(self, incoming: Incoming) -> frozenset[str]:
        """Return the models that have refused what a request needs."""
        if not self._memos:
            return frozenset()
        now = self.clock()
        for model, memos in list(self._memos.items()):
            for memo in [memo for memo, until in memos.items() if until <= now]:
                del memos[memo]
            if not memos:
                del self._memos[model]
        return frozenset(model for model, memos in self._memos.items() if any(memo.fits(incoming) for memo in memos))


def _memo_of(refused: Refused, fault: Fault, incoming: Incoming) -> Memo | None:
    if refused.longest is not None and answer_of(incoming.body) > refused.longest:
        return Memo(answer=refused.longest)
    if fault is Fault.CONTEXT_LENGTH:
        # Four bytes a token is a guess: what surely is as long, unless the provider says where its limit is.
        return Memo(tokens=incoming.size if refused.window is None else refused.window)
    if refused.features:
        return Memo(features=bits_of(refused.features))
    return Memo(parameter=refused.parameter) if refused.parameter else None


def demand_of(incoming: Incoming, refusals: Refusals, rare: int, least_window: float) -> Demand:
    """Return what a request needs, as far as it matters: `rare` and `least_window` are those of `Menu`."""
    tokens = None if least_window == math.inf else tokens_of(incoming, int(least_window))
    refused = refusals.of(incoming)
    features = incoming.features if rare else 0
    answer = answer_of(incoming.body)
    if not features and tokens is None and not refused and not answer:
        return NO_DEMAND
    return Demand(features, tokens, answer, refused)
