"""How fast a deployment makes tokens, learnt from the streams that it counted: what the answer of a cut one may have.

A stream that its client cuts tells the text so far and no count. Tokens of prompt and text follow from their bytes,
and the hidden ones (thoughts before the first text) from the seconds until then, all by the dearest of the last
streams, since what is booked must not be less than the provider's bill.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field

from route.providers.completions import BYTES_PER_TOKEN
from route.providers.usage import TokenCounts

_STREAMS = 50  # that are remembered
_LEAST_STREAMS = 5
_LONG_PROMPT_TOKENS = 100
_LEAST_TOKENS = 20  # of a stream that says something of the bytes of a token
_DENSE_BYTES = 2.0
"""Bytes of a token in dense text, such as digits: where thoughts are not counted, tokens beyond these are hidden."""
_LEAST_SHARE_OF_THOUGHTS = 0.25
"""Of the wait for the first text of a stream that hides some."""


@dataclass
class Pace:
    """The last streams of a deployment whose tokens the provider counted."""

    _bytes_per_token: deque[float] = field(default_factory=lambda: deque(maxlen=_STREAMS))
    _hidden_per_second: deque[float] = field(default_factory=lambda: deque(maxlen=_STREAMS))
    _waits: deque[float] = field(default_factory=lambda: deque(maxlen=_STREAMS))
    _prompt_ratios: deque[float] = field(default_factory=lambda: deque(maxlen=_STREAMS))
    _prompt_extras: deque[int] = field(default_factory=lambda: deque(maxlen=_STREAMS))

    def observe(self, usage: TokenCounts, text_bytes: int, thought_bytes: int, seconds: float) -> None:
        """Take over a complete stream: its tokens, the bytes of its text and of thoughts in it, and its first wait."""
        tokens = usage.completion or 0
        if usage.reasoning:  # some of which may have been shown
            hidden = max(0.0, usage.reasoning - thought_bytes / BYTES_PER_TOKEN)
        else:
            hidden = max(0.0, tokens - text_bytes / _DENSE_BYTES)
            if not hidden and tokens >= _LEAST_TOKENS:
                self._bytes_per_token.append(text_bytes / tokens)
        if not hidden:
            self._waits.append(seconds)
        thinking = max(seconds - self._usual_wait, seconds * _LEAST_SHARE_OF_THOUGHTS, 1e-3)
        self._hidden_per_second.append(hidden / thinking)

    def observe_prompt(self, tokens: int, estimated: int) -> None:
        """Take over the tokens of a prompt, and what its bytes had let expect."""
        if estimated >= _LONG_PROMPT_TOKENS:
            self._prompt_ratios.append(tokens / estimated)
        else:  # what a template adds shows in short ones
            self._prompt_extras.append(tokens - estimated)

    def prompt_tokens(self, estimated: int) -> int:
        """Return the tokens that a prompt may have by what its bytes let expect."""
        ratio = max(self._prompt_ratios, default=1.0)
        return math.ceil(estimated * max(1.0, ratio)) + max(0, max(self._prompt_extras, default=0))

    def text_tokens(self, text_bytes: int) -> int:
        """Return the tokens that a text of so many bytes may have."""
        dense = min(self._bytes_per_token, default=BYTES_PER_TOKEN)
        return math.ceil(text_bytes / min(dense, BYTES_PER_TOKEN))

    def hidden_tokens(self, seconds: float) -> int | None:
        """Return the hidden tokens that may have been made before the first text; None where too little is known."""
        if len(self._hidden_per_second) < _LEAST_STREAMS:
            return None
        return math.ceil(max(self._hidden_per_second) * max(0.0, seconds - self._usual_wait))

    @property
    def _usual_wait(self) -> float:
        """Return the seconds until the first text of a stream that hides nothing, at least."""
        return min(self._waits, default=0.0)
