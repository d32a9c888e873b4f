"""What runs in a test's own process leave behind is undone."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    """A run sets a launcher's variables, and takes signals; what comes after it has its own."""
    kept, signals = dict(os.environ), {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    os.environ.clear()
    os.environ.update(kept)
    for number, handler in signals.items():
        signal.signal(number, handler)
