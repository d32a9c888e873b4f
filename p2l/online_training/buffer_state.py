"""Saving buffers: parameters that must agree, parts under a prefix."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from p2l.errors import CheckpointError

__all__ = ["check_state", "with_prefix", "without_prefix"]


def check_state(state: Mapping[str, Any], own: Mapping[str, str | int | float]) -> None:
    """Refuse a state that was saved by another type of buffer, or with other parameters.

    Raises:
        CheckpointError: naming the parameter and both values.
    """
    for name, value in own.items():
        if name not in state:
            raise CheckpointError(f"buffer state: holds no {name!r}; it is the state of something else")
        saved = np.asarray(state[name]).item()
        if saved != value:
            raise CheckpointError(
                f"buffer state: saved with {name} {saved!r}, but now {name} is {value!r}; "
                "continue with what it was saved with, or start afresh"
            )


def with_prefix(prefix: str, state: Mapping[str, Any]) -> dict[str, Any]:
    """A state as a part of another."""
    return {prefix + name: value for name, value in state.items()}


def without_prefix(prefix: str, state: Mapping[str, Any]) -> dict[str, Any]:
    """The part that `with_prefix` put in."""
    return {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}
