"""Prompt-to-leaderboard models: read a prompt, return how strong each LLM is on that prompt."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from p2l.common.version import __version__

if TYPE_CHECKING:
    from p2l.inference import P2L

__all__ = ["P2L", "__version__"]


def __getattr__(name: str) -> Any:
    """Import the model API (and with it torch) only when it is asked for."""
    if name == "P2L":
        from p2l.inference import P2L

        return P2L
    raise AttributeError(f"module 'p2l' has no attribute {name!r}")
