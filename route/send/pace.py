"""How fast a deployment makes tokens, learnt from the streams that it counted: what the answer of a cut one may have.

A stream that its client cuts tells the text so far and no count. Tokens of prompt and text follow from their bytes,
and the hidden ones (thoughts that nobody is shown) from the seconds before the answer's own words, all by the dearest
of the last streams, since what is booked must not be less than the provider's bill.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field

from route.providers.completions import BYTES_PER_TOKEN
from route.providers.usage import TokenCounts

_STREAMS = 50  # that are remembered
_LEAST_STREAMS = 5
_SURE_STREAMS = 20  # after which a deployment hides no more than it was seen to
_LONG_PROMPT_TOKENS = 100
_LEAST_TOKENS = 20  # of a stream that says something of the bytes of a token, or of the speed of all
LEAST_PIECES = 4  # of a stream that says how fast words are made, not how fast they are sent
_MOST_PER_SECOND = 1000.0  # tokens; whoever is faster sends what was made before
_DENSE_BYTES = 2.0
"""Bytes of a token in dense text, such as digits: where thoughts are not counted, tokens beyond these are hidden."""
_LOOSE_BYTES = 6.0
"""Bytes of a token in loose text: where some are hidden and not counted, the text has no fewer tokens than by these."""
_LEAST_SHARE_OF_THOUGHTS = 0.25
"""Of the wait for the first words of a stream that hides some."""


@dataclass(frozen=True)
class Heard:
    """What passed through the router of a complete stream."""

    text_bytes: int
    """Of all of it, thoughts among them."""
    thought_bytes: int
    wait: float
    """Seconds before its own words: those of the queue, of the prompt, and of thoughts."""
    seconds: float
    """Of all of it."""
    pieces: int = 1
    """Of all of it; a single one tells no speed."""


@dataclass
class Pace:
    """The last streams of a deployment whose tokens the provider counted."""

    _bytes_per_token: deque[float] = field(default_factory=lambda: deque(maxlen=_STREAMS))
    _hidden_per_second: deque[float] = field(default_factory=lambda: deque(maxlen=_STREAMS))
    _tokens_per_second: deque[float] = field(default_factory=lambda: deque(maxlen=_STREAMS))
    _words_per_second: deque[float] = field(default_factory=lambda: deque(maxlen=_STREAMS))
    _waits: deque[float] = field(default_factory=lambda: deque(maxlen=_STREAMS))
    _prompt_ratios: deque[float] = field(default_factory=lambda: deque(maxlen=_STREAMS))
    _prompt_extras: deque[int] = field(default_factory=lambda: deque(maxlen=_STREAMS))

    def observe(self, usage: TokenCounts, heard: Heard) -> None:
        """Take over a complete stream: its tokens, and what was heard of it."""
        tokens = usage.completion or 0
        text = tokens - usage.reasoning
        if usage.reasoning:  # some of which may have been shown
            hidden = max(0.0, usage.reasoning - heard.thought_bytes / BYTES_PER_TOKEN)
            text_bytes = heard.text_bytes - heard.thought_bytes
        else:
            text_bytes = heard.text_bytes
            is_hiding = tokens > text_bytes / _DENSE_BYTES
            hidden = tokens - text_bytes / _LOOSE_BYTES if is_hiding else 0.0
            text = 0 if is_hiding else tokens
        if text >= _LEAST_TOKENS:
            self._bytes_per_token.append(text_bytes / text)
        if not hidden:
            self._waits.append(heard.wait)
        thinking = max(heard.wait - self._usual_wait, heard.wait * _LEAST_SHARE_OF_THOUGHTS, 1e-3)
        self._hidden_per_second.append(hidden / thinking)
        self.observe_whole(usage, heard.seconds)
        words = heard.seconds - heard.wait
        if text and heard.pieces >= LEAST_PIECES:
            self._words_per_second.append(min(text / max(words, 1e-3), _MOST_PER_SECOND))

    def observe_whole(self, usage: TokenCounts, seconds: float) -> None:
        """Take over an answer that came whole: its tokens, and the seconds until then."""
        if (usage.completion or 0) >= _LEAST_TOKENS:
            self._tokens_per_second.append((usage.completion or 0) / max(seconds, 1e-3))

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
        """Return the hidden tokens that may have been made in the wait for words; None where too little is known."""
        if not self._hidden_per_second:
            return None
        speed = max(self._hidden_per_second)
        if len(self._hidden_per_second) < _SURE_STREAMS:  # it may think faster, about as fast as it writes
            speed = max(speed, self.words_per_second)
        return math.ceil(speed * max(0.0, seconds - self._usual_wait))

    @property
    def words_per_second(self) -> float:
        """Return the tokens of text that are made in a second, at most; 0 where no stream has told."""
        return max(self._words_per_second, default=0.0)

    def tokens_by(self, seconds: float) -> int | None:
        """Return the tokens that an answer may have by now of which nothing was seen; None where too little is known.

        Of one that is not streamed, its text too.
        """
        if len(self._tokens_per_second) < _LEAST_STREAMS:
            return None
        return math.ceil(max(self._tokens_per_second) * seconds)

    @property
    def _usual_wait(self) -> float:
        """Return the seconds until the first words of a stream that hides nothing, at least."""
        return min(self._waits, default=0.0)
