"""Training: one loop and what it needs. `train` runs a whole offline training from a configuration file.

Importing this package does not import torch; the names below import it at their first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from p2l.training.loop import RunOptions
    from p2l.training.offline import train

__all__ = ["RunOptions", "train"]


def __getattr__(name: str) -> Any:
    """Import the training loop, and with it torch, at its first use."""
    if name in __all__:
        from p2l.training import offline

        return getattr(offline, name)
    raise AttributeError(f"module 'p2l.training' has no attribute {name!r}")
