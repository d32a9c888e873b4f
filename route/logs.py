"""Logs as JSON lines, without prompts, answers or keys.

A request is logged by a record with fixed fields, so that nothing else can slip in.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TextIO

__all__ = ["LOGGER", "RequestRecord", "log_request", "set_up_logs"]

LOGGER = logging.getLogger("route")
"""For everything else that the router has to say: `LOGGER.warning("...", extra={"fields": {...}})`."""


@dataclass(frozen=True)
class RequestRecord:
    """One request, when it has ended."""

    request_id: str
    key: str
    """Name of the key, never the key."""
    status: int
    """Of HTTP; 499: the client went away."""
    seconds: float
    model: str | None = None
    """Who answered; None: nobody."""
    tried: tuple[str, ...] = ()
    """Every model that was asked, in order."""
    faults: tuple[str, ...] = ()
    """Of those that failed, in order (`route.providers.base.Fault`)."""
    streamed: bool = False
    first_token_seconds: float | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cost: float | None = None
    budget: float | None = None
    probabilities: Mapping[str, float] | None = None
    """Of the mixture that was drawn from."""
    propensity: float | None = None
    """Probability of the choice, exploring included."""
    explored: bool = False
    static: bool = False
    sticky: bool = False
    revision: str = ""
    """Of the P2L model."""
    code: str | None = None
    """Of the error the client got."""


def log_request(record: RequestRecord) -> None:
    """Write one line; fields that are None or empty are left out."""


def set_up_logs(stream: TextIO | None = None, level: int = logging.INFO) -> None:
    """Send everything that is logged, uvicorn's lines too, to `stream` (standard error) as JSON lines."""
