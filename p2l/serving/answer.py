"""What the service says of one prompt, and why it may say nothing."""

from __future__ import annotations

from array import array
from dataclasses import dataclass

from p2l.errors import InputError, P2LError

__all__ = ["Answer", "BusyError", "ModelFailedError", "TooLargeError"]


@dataclass(frozen=True, slots=True)
class Answer:
    """The coefficients of one prompt and which model gave them."""

    coefs: array[float]
    """(M,) in single precision: thousands of answers are kept, and a list would take eight times the memory."""
    eta: float | None
    gamma: float | None
    truncated: bool
    revision: str


class BusyError(P2LError):
    """The queue is full, or the service is shutting down; the client may come again."""


class TooLargeError(InputError):
    """A prompt alone does not fit into the memory of the device."""


class ModelFailedError(P2LError):
    """The forward pass failed for a reason that is not the client's."""
