"""A worker whose supervisor was killed ends as if told to: nobody else could, and it would keep the port."""

from __future__ import annotations

import asyncio
import os
import signal
from multiprocessing import parent_process
from pathlib import Path

from route.logs import LOGGER
from route.service.settings import SETTINGS_VARIABLE

__all__ = ["end_when_orphaned"]

_SECONDS_BETWEEN_LOOKS = 1.0


async def end_when_orphaned() -> None:
    """Wait for the end of the process that started this one; return at once where multiprocessing did not."""
    supervisor = parent_process()
    if supervisor is None:
        return
    while supervisor.is_alive():
        await asyncio.sleep(_SECONDS_BETWEEN_LOOKS)
    LOGGER.error("the process that started this worker is gone; shutting down")
    settings = os.environ.get(SETTINGS_VARIABLE)
    if settings:
        Path(settings).unlink(missing_ok=True)  # it may hold the key of the P2L endpoint
    os.kill(os.getpid(), signal.SIGTERM)
