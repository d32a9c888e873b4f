"""What ends a run or a command of CoEval: input that cannot be used, or a run that cannot go on."""

from __future__ import annotations

from p2l.common.errors import InputError, P2LError


class RunInputError(InputError):
    """A folder, a record or a flag cannot be used as it is; the message says what to change."""


class RunError(P2LError):
    """The run cannot go on: a phase brought nothing that the next could build on."""
