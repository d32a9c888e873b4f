"""From a provider's chat completion to its text and tokens."""

from __future__ import annotations

from route.providers.base import JSON, Fault, ProviderError
from route.providers.content import joined_text

__all__ = ["check_whole", "guessed", "text_in", "tokens_in"]

_CHARACTERS = 4
"""In a token, where nobody counts them."""


def guessed(text: str) -> int:
    """Tokens of a text, four characters each; at least one."""
    return max(1, len(text) // _CHARACTERS)


def text_in(completion: JSON) -> str:
    """What a completion says, stripped; a refusal is an answer too."""
    message = completion["choices"][0].get("message") or {}
    return (joined_text(message.get("content")) or str(message.get("refusal") or "")).strip()


def tokens_in(completion: JSON, request: JSON) -> tuple[int, int, bool]:
    """Tokens of prompt and answer, and whether the provider counted them."""
    counts = completion.get("usage") or {}
    read, written = counts.get("prompt_tokens"), counts.get("completion_tokens")
    if isinstance(read, int) and isinstance(written, int) and read + written > 0:
        return read, written, True
    asked = "".join(joined_text(message.get("content")) for message in request["messages"])
    return guessed(asked), guessed(text_in(completion)), False


def check_whole(completion: JSON) -> str:
    """The text of a completion.

    Raises:
        ProviderError: it says nothing, or the provider's filter withheld it.
    """
    text, finish = text_in(completion), completion["choices"][0].get("finish_reason")
    if finish == "content_filter":
        raise ProviderError(Fault.CONTENT_FILTER, "the provider's filter withheld the answer")
    if finish == "error":  # as a provider of providers says that one of them broke off
        raise ProviderError(Fault.MALFORMED, "the answer broke off")
    if not text and finish == "length":
        raise ProviderError(Fault.REQUEST, "the answer ended before its first word: its limit of tokens is too low")
    if not text:
        raise ProviderError(Fault.MALFORMED, "the answer is empty")
    return text
