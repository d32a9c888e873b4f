"""Errors for clients: one sentence in OpenAI's error object, with the status that fits."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping

from starlette.responses import Response

from p2l.common.errors import P2LError
from route.keep.ledger import Refusal
from route.providers.base import JSON, Fault, ProviderError
from route.providers.errors import without_addresses
from route.routing.candidates import NoModelError

_TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
"""Statuses for which OpenAI has a type of its own."""
_FAULTS = {
    Fault.RATE_LIMIT: (429, "rate_limit_exceeded"),
    Fault.TIMEOUT: (504, "provider_timeout"),
    Fault.CONTEXT_LENGTH: (400, "context_length_exceeded"),
    Fault.CONTENT_FILTER: (400, "content_filter"),
    Fault.REQUEST: (400, "invalid_request"),
    Fault.UNSUPPORTED: (400, "unsupported"),
}
"""Status and code of a provider's fault; any other is a bad gateway."""
# A day, whatever a provider says: clients sleep for as long as they are told.
_LONGEST_PAUSE_SECONDS = 86_400.0


class ApiError(Exception):
    """An error response; the message is for the client."""

    def __init__(
        self, status: int, code: str, message: str, *, param: str | None = None, retry_after: float | None = None
    ) -> None:
        """Fail with a status; `param` names the wrong field of the body, `retry_after` is in seconds."""
        super().__init__(message)
        self.status = status
        self.code = code
        self.param = param
        self.retry_after = retry_after

    def body(self) -> JSON:
        """Return `{"error": {message, type, param, code}}`."""
        kind = _TYPES.get(self.status, "invalid_request_error" if self.status < 500 else "server_error")
        return {"error": {"message": str(self), "type": kind, "param": self.param, "code": self.code}}

    def response(self, headers: Mapping[str, str] | None = None, body: JSON | None = None) -> Response:
        """Return the response, by default with OpenAI's body."""
        fields = dict(headers or {})
        if self.retry_after is not None:
            # Whole seconds, as HTTP has them; 0 would bring the client back at once.
            fields["retry-after"] = str(max(1, math.ceil(min(self.retry_after, _LONGEST_PAUSE_SECONDS))))
        if self.status in (401, 403, 408, 413):
            fields["connection"] = "close"  # the rest of the body is never read
        return Response(json.dumps(body or self.body()), self.status, fields, media_type="application/json")


_EARLY = {
    408: "request_timeout",
    414: "address_too_long",
    431: "headers_too_large",
    503: "too_many_connections",
}
"""Codes of what is refused before it is a request; any other is not HTTP."""


def early_body(status: int, sentence: str) -> JSON:
    """Return the body of an error before there is a request, as in `p2l.common.protocol`."""
    return ApiError(status, _EARLY.get(status, "invalid_http"), sentence).body()


def of_refusal(refusal: Refusal) -> ApiError:
    """Return the error for a refusal of the ledger or the feedback store."""
    return ApiError(refusal.status, refusal.code, refusal.message, retry_after=refusal.retry_after)


def of_choice(error: P2LError) -> ApiError:
    """Return the error for a request for which no model can be chosen."""
    if not isinstance(error, NoModelError):
        return ApiError(400, "infeasible_budget", str(error), param="cost")
    if error.oversize:
        return ApiError(400, "context_length_exceeded", str(error), param="messages")
    return ApiError(400, "unsupported" if error.lacking else "no_model", str(error))


def of_fault(error: ProviderError, model: str) -> ApiError:
    """Return the error for the fault of the last provider."""
    status, code = _FAULTS.get(error.fault, (502, "provider_error"))
    # These statuses say more than 400; a provider's 401 or 500 would mislead, since it is not the client's key or ours.
    passed_on = {Fault.REQUEST: (404, 413, 422), Fault.UNSUPPORTED: (413, 415)}.get(error.fault, ())
    if error.status in passed_on:
        status = int(error.status or status)
    text = error.detail or (str(error).replace(error.host, "the provider") if error.host else str(error))
    text = without_addresses(text, error.host)
    return ApiError(status, code, f"{model}: {text}", retry_after=error.retry_after)


def responses_unreadable() -> ApiError:
    """Return the error for a database that cannot be read or written."""
    return ApiError(503, "database_unavailable", "responses cannot be read or written now", retry_after=1.0)
