"""Which models have lately refused requests for what these need, their size or a parameter."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from route.providers.base import JSON, Fault, ProviderError
from route.providers.errors import read_refusal
from route.routing.decision import bits_of, features_in

REMEMBERED_SECONDS = 600.0
"""How long a refusal is remembered."""
_MOST_REMEMBERED = 32
"""Refusals of one model."""


class Request(Protocol):
    """A request, as far as refusals are concerned."""

    @property
    def body(self) -> JSON:
        """Return the body for a provider."""
        ...

    @property
    def size(self) -> int:
        """Return its bytes."""
        ...

    @property
    def features(self) -> int:
        """Return the bits of the features that it needs."""
        ...

    @property
    def prompt_tokens(self) -> int:
        """Return the tokens of the prompt, estimated."""
        ...


@dataclass(frozen=True)
class _Memo:
    """A refusal: requests with all of these are not sent there again for a while."""

    features: int = 0
    parameter: str = ""
    tokens: int | None = None
    """Of the shortest prompt that was refused."""
    answer: int | None = None
    """Tokens of the longest answer; longer ones are refused."""

    def fits(self, request: Request) -> bool:
        """Return whether a request would be refused for the same reason."""
        body = request.body
        if self.features & ~request.features:
            return False
        if self.parameter and body.get(self.parameter) is None:
            return False
        if self.answer is not None and answer_of(body) <= self.answer:
            return False
        return self.tokens is None or request.prompt_tokens >= self.tokens


def answer_of(body: JSON) -> int:
    """Return the tokens of the longest answer that a request asks for; 0 if it does not say."""
    limits = (body.get("max_tokens"), body.get("max_completion_tokens"))
    return max((limit for limit in limits if isinstance(limit, int)), default=0)


@dataclass
class Refusals:
    """What models have refused lately; of one worker."""

    clock: Callable[[], float] = time.monotonic
    _memos: dict[str, dict[_Memo, float]] = field(default_factory=dict)
    """By model: until when each counts."""

    def learn(self, model: str, error: ProviderError, request: Request) -> _Memo | None:
        """Remember a refusal about capability, size or parameters; return what is new in it."""
        if error.fault not in (Fault.UNSUPPORTED, Fault.CONTEXT_LENGTH):
            return None
        refused = read_refusal(error.detail or str(error), features_in(request.features), request.body.keys())
        if refused.longest is not None and answer_of(request.body) > refused.longest:
            memo = _Memo(answer=refused.longest)
        elif error.fault is Fault.CONTEXT_LENGTH:
            # Four bytes a token is a guess: what surely is as long, unless the provider says where its limit is.
            memo = _Memo(tokens=request.size if refused.window is None else refused.window)
        elif refused.features:
            memo = _Memo(features=bits_of(refused.features))
        elif refused.parameter:
            memo = _Memo(parameter=refused.parameter)
        else:
            return None
        memos = self._memos.setdefault(model, {})
        now = self.clock()
        # It moves to the end: the oldest one is forgotten first.
        is_new = memos.pop(memo, -math.inf) <= now
        memos[memo] = now + REMEMBERED_SECONDS
        if len(memos) > _MOST_REMEMBERED:
            del memos[next(iter(memos))]
        return memo if is_new else None

    def of(self, request: Request) -> frozenset[str]:
        """Return the models that have refused what a request needs."""
        if not self._memos:
            return frozenset()
        now = self.clock()
        for model, memos in list(self._memos.items()):
            for memo in [memo for memo, until in memos.items() if until <= now]:
                del memos[memo]
            if not memos:
                del self._memos[model]
        return frozenset(model for model, memos in self._memos.items() if any(memo.fits(request) for memo in memos))
