"""What every provider client offers, whatever the provider speaks: OpenAI's chat completions in and out.

A request is the body of a chat completion as OpenAI's API takes it, with the provider's own name of the model; an
answer is a chat completion, a stream is its chunks. Translation into other protocols, both ways, is the client's job.
"""

from __future__ import annotations

import enum
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, TypeAlias, TypeVar

JSON: TypeAlias = dict[str, Any]
"""A JSON object."""


class Fault(enum.Enum):
    """Why a provider gave no answer, as far as it matters for what to do next."""

    RATE_LIMIT = "rate_limit"
    """429: come again, here or elsewhere."""
    SERVER = "server"
    """5xx: the provider's own trouble."""
    CONNECTION = "connection"
    """It cannot be reached, or the connection broke."""
    TIMEOUT = "timeout"
    """No answer, no first token or no next token in time."""
    MALFORMED = "malformed"
    """What it sent is no answer: a broken chunk, a stream without its end."""
    CONTEXT_LENGTH = "context_length"
    """The prompt is too long for this model."""
    CONTENT_FILTER = "content_filter"
    """The provider refuses the content."""
    REQUEST = "request"
    """The provider cannot use the request as it is (400, 413, 422)."""
    UNSUPPORTED = "unsupported"
    """This model is not there (404) or cannot do what the request asks, an assistant prefill say; another one may."""
    CREDENTIALS = "credentials"
    """The account at this provider is not accepted: a wrong key, no credit left (401, 402, 403)."""

    @property
    def may_pass(self) -> bool:
        """Whether the same request may succeed at the same provider a moment later."""
        return self in (Fault.RATE_LIMIT, Fault.SERVER, Fault.CONNECTION, Fault.TIMEOUT, Fault.MALFORMED)

    @property
    def is_the_requests(self) -> bool:
        """Whether another model would refuse it just as well, so that the client has to hear of it."""
        return self in (Fault.CONTENT_FILTER, Fault.REQUEST)


class ProviderError(Exception):
    """No answer, or none to the end; the text is one sentence without keys and without the prompt."""

    def __init__(
        self,
        fault: Fault,
        message: str,
        *,
        status: int | None = None,
        retry_after: float | None = None,
        detail: str = "",
    ) -> None:
        """Say why, and what the provider said.

        `status` is the provider's; `retry_after` is in seconds, if it said so; `detail` are its own words, keys masked.
        They may quote the request: they are for the client that sent it, not for logs.
        """
        super().__init__(message)
        self.fault = fault
        self.status = status
        self.retry_after = retry_after
        self.detail = detail


@dataclass(frozen=True)
class Account:
    """Where a provider is and who asks; never printed."""

    base_url: str
    api_key: str | None = field(default=None, repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    options: Mapping[str, Any] = field(default_factory=dict)
    """What one kind of provider needs beyond that (Azure's API version, the script of a mock)."""


@dataclass(frozen=True)
class Timeouts:
    """Seconds a provider may take."""

    connect: float = 5.0
    first_token: float = 60.0
    """Until the whole answer without streaming, until the first chunk with."""
    stall: float = 30.0
    """Between two chunks."""
    total: float = 600.0


class Provider(Protocol):
    """One account at one provider: a pool of connections that is made once."""

    async def chat(self, request: JSON, timeouts: Timeouts) -> JSON:
        """Return a whole chat completion.

        Raises:
            ProviderError: there is none.
        """
        ...

    def stream(self, request: JSON, timeouts: Timeouts) -> AsyncIterator[JSON]:
        """Yield the chunks of a chat completion; closing the iterator ends the request at the provider.

        Raises:
            ProviderError: before the first chunk or after any; a stream that ends without an error was complete.
        """
        ...

    async def close(self) -> None:
        """Close the connections."""
        ...


# The protocols that a client exists for. To add one, decorate its maker with `@protocol(NAME)`: a function that takes
# an `Account` and returns a `Provider`.

Maker: TypeAlias = Callable[[Account], Provider]
Made = TypeVar("Made", bound=Maker)


class Registered(NamedTuple):
    """A protocol's client."""

    make: Maker
    options: frozenset[str]
    """Of an account, as far as it reads them."""


PROTOCOLS: dict[str, Registered] = {}
"""How the client of each protocol is made."""


def protocol(name: str, *options: str) -> Callable[[Made], Made]:
    """Register the decorated maker of a client, a function or a class, and the options of an account that it reads."""

    def register(make: Made) -> Made:
        PROTOCOLS[name] = Registered(make, frozenset(options))
        return make

    return register
