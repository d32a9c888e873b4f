"""How often something is broken on purpose, and how it ended: told behind the summary of the tests."""

from __future__ import annotations

import os
from collections import Counter

__all__ = ["ENDINGS", "MOMENTS", "ended"]

MOMENTS = int(os.environ.get("P2L_FAULT_MOMENTS", "3"))
"""Random moments at which something is killed; `make test-nightly` has twenty."""
ENDINGS: Counter[tuple[str, str]] = Counter()
"""By what was done, and how that ended."""


def ended(what: str, how: str, times: int = 1) -> None:
    """Count how often something was broken, once it is known that nothing was lost."""
    ENDINGS[what, how] += times
