"""The exceptions of this package.

Messages are one line: what is wrong, where, and what to do about it.
"""

from __future__ import annotations

import re


class P2LError(Exception):
    """Base of all errors raised on purpose by p2l."""

    @property
    def messages(self) -> tuple[str, ...]:
        """The mistakes, each a line of its own."""
        return (str(self),)


class InputError(P2LError):
    """The user's input cannot be used as it is, and the message says what to change: exit code 2, no traceback."""


class VoteError(InputError):
    """A vote source is missing, unreadable, or holds a row that is not a vote; the message names file and row."""


class ConfigError(InputError):
    """A configuration file, key or flag, which the message names, is wrong or contradicts another."""


class CheckpointError(InputError):
    """A model folder is incomplete or contradicts the flags."""


class ConvergenceError(P2LError):
    """A leaderboard fit stopped before its gradient vanished."""


class TrainingError(P2LError):
    """Training cannot go on: its loss is not a number."""


class PeerError(TrainingError):
    """This process cannot go on because another one of the run ended."""


class P2LClientError(P2LError):
    """A request to an endpoint failed; the message names its URL, never the key or the prompt."""


class KeyRefusedError(P2LClientError, InputError):
    """The endpoint refused the API key, or there was none."""


class BadRequestError(P2LClientError, InputError):
    """The endpoint cannot use the prompt; the message ends with its own sentence."""


class UnavailableError(P2LClientError):
    """The endpoint cannot be reached, is overloaded, is not ready, or failed."""


class AnswerTimeoutError(P2LClientError):
    """No response within the time limit of the client or the deadline of the endpoint."""


class MalformedAnswerError(P2LClientError):
    """The response is not that of a P2L endpoint: the URL may be that of another service."""


def first_line(error: BaseException) -> str:
    """Return the first line of an error's text, or its kind where it has none; other libraries write pages."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


_HUB_REASONS = {
    "GatedRepoError": "its owner has to grant access on the hub",
    "RepositoryNotFoundError": "the hub has none of this name, or it is private: `hf auth login` lets you in",
    "OfflineModeIsEnabled": "HF_HUB_OFFLINE is set, and the cache does not have it",
}
_HUB_DEBRIS = re.compile(r"^Got: |\w+(Error|Exception): |\[Errno -?\d+\] | ?\(Request ID: [^)]*\)")


def hub_reason(error: Exception) -> str:
    """Return in plain words why the hub's client failed."""
    # Errors are told apart by name: to import their classes would load the client, and they move between versions.
    kinds = [kind.__name__ for kind in type(error).__mro__]
    named = next((_HUB_REASONS[kind] for kind in kinds if kind in _HUB_REASONS), None)
    if named is not None:
        return named
    line = _HUB_DEBRIS.sub("", first_line(error))
    is_network = {"LocalEntryNotFoundError", "ConnectionError", "TransportError", "Timeout"} & {
        *kinds,
        *(kind.__name__ for kind in type(error.__cause__).__mro__),
    }
    return f"no connection to the hub: {line}" if is_network else line
