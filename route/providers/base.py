"""The interface of all provider clients: OpenAI's chat completions in and out, whatever protocol the provider speaks.

A request is the body of a chat completion with the provider's own name of the model; an answer is a chat completion,
a stream its chunks. The client translates both ways.
"""

from __future__ import annotations

import enum
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias, runtime_checkable

JSON: TypeAlias = dict[str, Any]
"""A JSON object."""
TRACE_HEADERS: ContextVar[Mapping[str, str] | None] = ContextVar("trace_headers", default=None)
"""Headers that tell a provider of the trace that a request belongs to."""


DROPPED_FIELDS: ContextVar[list[str] | None] = ContextVar("dropped_fields", default=None)
"""Names of what the client of a provider leaves out of the request under way, for the response's header."""


OWN_HISTORY: ContextVar[bool] = ContextVar("own_history", default=False)
"""Whether earlier answers of the request under way are of the model that is asked, which may want its thoughts back.
"""


def note_dropped(*names: str) -> None:
    """Note that the request under way reaches the provider without these; the caller of the client is told."""
    dropped = DROPPED_FIELDS.get()
    if dropped is not None:
        dropped.extend(name for name in names if name not in dropped)


class Fault(enum.Enum):
    """The kind of a provider's failure, as far as it decides what to do next."""

    RATE_LIMIT = "rate_limit"
    """429: retry later, here or elsewhere."""
    SERVER = "server"
    """5xx: a failure of the provider's own."""
    CONNECTION = "connection"
    """The provider cannot be reached, or the connection broke."""
    TIMEOUT = "timeout"
    """No answer, no first token or no next token in time."""
    MALFORMED = "malformed"
    """The answer cannot be read: a broken chunk, a stream without its end."""
    CONTEXT_LENGTH = "context_length"
    """The prompt is too long for this model."""
    CONTENT_FILTER = "content_filter"
    """The provider refuses the content."""
    REQUEST = "request"
    """The request is invalid (400, 422)."""
    UNSUPPORTED = "unsupported"
    """The model does not exist (404) or lacks what the request needs: a capability, size or parameter."""
    CREDENTIALS = "credentials"
    """The account is refused: a wrong key, no credit left (401, 402, 403)."""
    OTHER_MODEL = "other_model"
    """Another model than the one that was asked for has answered."""

    @property
    def is_transient(self) -> bool:
        """Whether the same request may succeed at the same provider on a retry."""
        return self in (Fault.RATE_LIMIT, Fault.SERVER, Fault.CONNECTION, Fault.TIMEOUT, Fault.MALFORMED)


class ProviderError(Exception):
    """No complete answer; the message is one sentence without keys and without the prompt."""

    def __init__(
        self,
        fault: Fault,
        message: str,
        *,
        status: int | None = None,
        retry_after: float | None = None,
        detail: str = "",
        host: str = "",
    ) -> None:
        """Keep the provider's status, its Retry-After in seconds, its own message and its address.

        The message, `detail`, has its keys masked but may quote the request: it is for the client, not for logs.
        """
        super().__init__(message)
        self.fault = fault
        self.status = status
        self.retry_after = retry_after
        self.detail = detail
        self.host = host
        self.has_begun = False
        """Whether the answer broke off after its head, so that the provider may have made some of it."""
        self.usage: JSON | None = None
        """What the provider counted of an answer that cannot be used; it charges for that all the same."""


SECRET_OPTIONS = ("access_key_id", "secret_access_key", "session_token")
"""Options of an account that no message shows."""


@dataclass(frozen=True)
class Account:
    """The address, key and options for one provider; never printed."""

    base_url: str
    api_key: str | None = field(default=None, repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    options: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """Options of the client, such as Azure's API version or the script of a mock."""


@dataclass(frozen=True)
class Timeouts:
    """Seconds a provider may take, and bytes it may send."""

    connect: float = 5.0
    first_token: float = 60.0
    """Until the first chunk of a stream, or the whole answer without one."""
    stall: float = 30.0
    """Between two chunks."""
    total: float = 600.0
    max_bytes: int = 32 * 2**20
    """Of an answer or a whole stream, after decompression."""


@dataclass(frozen=True)
class Forwarded:
    """The answer of another endpoint than chat completions, as the provider sends it."""

    content_type: str
    chunks: AsyncGenerator[bytes, None]
    """Its body; closing it ends the request. It raises ProviderError where it breaks off."""


USAGE_SO_FAR = "usage_so_far"
"""Key of a chunk under which the counts stand that a provider tells before the end: the prompt's, perhaps all so far.

`completion_tokens` is None there where the provider does not tell how many were made.
"""
NATIVE = "native"
"""Key of a completion or a chunk under which the provider's own answer, or the events that the chunk is of, stand."""


@dataclass(frozen=True)
class NativeRequest:
    """A request in a provider's own protocol."""

    protocol: str
    """`messages` (Anthropic) or `responses` (OpenAI)."""
    body: JSON
    headers: Mapping[str, str] = field(default_factory=dict)
    """Headers of the client that belong to the protocol."""
    path: str = ""
    """What is asked for below the protocol's own path, such as `compact`; empty for an answer."""
    settings: JSON = field(default_factory=dict)
    """What the configuration sets, as fields of a chat completion request; those of the body go before it."""


class NotSpokenError(Exception):
    """The service does not have this protocol after all, so that the request has to be translated."""


@runtime_checkable
class NativeProvider(Protocol):
    """A client that also takes requests in another protocol than chat completions, and answers in that.

    Each answer is a chat completion, each piece a chunk, for whoever counts tokens or looks for faults; what the
    provider sent stands beside it under `NATIVE`. Both methods raise NotSpokenError before the first piece.
    """

    def speaks(self, protocol: str) -> bool:
        """Return whether requests of a protocol may be sent as they are."""
        ...

    async def answer_natively(self, request: NativeRequest, timeouts: Timeouts) -> JSON:
        """Request a whole answer. Raise ProviderError if there is none."""
        ...

    async def count_natively(self, request: NativeRequest, timeouts: Timeouts) -> JSON:
        """Request the number of tokens of a prompt, in the protocol's own form. Raise ProviderError for none."""
        ...

    def stream_natively(self, request: NativeRequest, timeouts: Timeouts) -> AsyncIterator[JSON]:
        """Request an answer and yield its pieces, as `Provider.stream` does."""
        ...


@runtime_checkable
class Forwarding(Protocol):
    """A client that has other endpoints than chat completions."""

    async def forward(self, path: str, model: str, body: bytes, content_type: str, timeouts: Timeouts) -> Forwarded:
        """Post a body to a path below the base URL. Raise ProviderError if there is no answer."""
        ...


@runtime_checkable
class Recording(Protocol):
    """A client of a provider that keeps a record of what an answer has used, also of one that nobody saw the end of."""

    def keeps(self, identifier: str) -> bool:
        """Return whether there may be a record of the answer with this identifier."""
        ...

    async def recorded(self, identifier: str, timeouts: Timeouts) -> JSON:
        """Return the record as a chunk with its usage, None where the answer is still being made.

        Raise ProviderError if there is no record, or not yet.
        """
        ...


@runtime_checkable
class KeepsResponses(Recording, Protocol):
    """A client of a provider that keeps responses, and can be told what becomes of one."""

    async def cancel(self, identifier: str, timeouts: Timeouts) -> JSON:
        """Stop a response that is made in the background; return it as `recorded` does. Raise ProviderError."""
        ...

    async def forget(self, identifier: str, timeouts: Timeouts) -> None:
        """Delete a response. Raise ProviderError where it is not deleted, or was not there."""
        ...


class Provider(Protocol):
    """A client of one account, with one pool of connections."""

    async def chat(self, request: JSON, timeouts: Timeouts) -> JSON:
        """Request a whole chat completion. Raise ProviderError if there is none."""
        ...

    def stream(self, request: JSON, timeouts: Timeouts) -> AsyncIterator[JSON]:
        """Request a chat completion and yield its chunks; closing the iterator ends the request at the provider.

        Raise ProviderError before the first chunk or after any: a stream that ends without an error was complete.
        """
        ...

    async def close(self) -> None:
        """Close the connections."""
        ...
