"""Every error this package raises on purpose.

P2LError
├── InputError              what a user can mend: exit code 2, one line, no traceback
│   ├── VoteError           a vote file: names the file and the row
│   ├── ConfigError         a configuration file or flag: names the key
│   └── CheckpointError     a model folder that is incomplete or contradicts a flag
├── ConvergenceError        a fit that did not reach its optimum
└── TrainingError           a training run that went astray
    └── PeerError           another process of the run ended, and said why

Messages are one line that says what is wrong, where, and what to do about it.
"""

__all__ = [
    "CheckpointError",
    "ConfigError",
    "ConvergenceError",
    "InputError",
    "P2LError",
    "PeerError",
    "TrainingError",
    "VoteError",
]


class P2LError(Exception):
    """Base of all errors raised on purpose by p2l."""


class InputError(P2LError):
    """The user's input cannot be used as it is; the message says what to change."""


class VoteError(InputError):
    """A vote source is missing, unreadable, or holds a row that is no vote."""


class ConfigError(InputError):
    """A configuration file, key or flag is wrong or contradicts another."""


class CheckpointError(InputError):
    """A model folder is incomplete, or says something else than the flags do."""


class ConvergenceError(P2LError):
    """A leaderboard fit stopped before its gradient vanished."""


class TrainingError(P2LError):
    """Training cannot go on: its loss is no number any more."""


class PeerError(TrainingError):
    """This process cannot go on because another one of the run ended."""
