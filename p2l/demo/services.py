"""Services that a program starts: run until their own log says that they are up, asked, and stopped again."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from p2l.common.errors import P2LError

UP = "Uvicorn running on"
"""What the endpoint and the router write into their log when they take requests."""
_POLL_SECONDS = 0.1


@contextlib.contextmanager
def running(folder: Path, words: list[str], log_name: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run `python -m WORDS` in the folder until the block ends; its output goes to a file there."""
    # Keys and settings of the user's own services are not those of the demo; the folder of its caches is.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("P2L_") or "CACHE" in name}
    with (folder / log_name).open("wb") as log:
        process = subprocess.Popen([sys.executable, "-m", *words], cwd=folder, env=environment, stdout=log, stderr=log)
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()


def wait_for(word: str, process: subprocess.Popen[bytes], log: Path) -> None:
    """Wait until a service has written `word` into its log, however slow the machine; P2LError if it ends before."""
    while word not in log.read_text("utf-8", errors="replace"):
        if process.poll() is not None:
            raise P2LError(f"the service ended with exit code {process.returncode}; {log} says why")
        time.sleep(_POLL_SECONDS)


def stop(process: subprocess.Popen[bytes], log: Path) -> None:
    """Stop a service and wait until it has answered what it took; P2LError if it ended with an error."""
    process.send_signal(signal.SIGTERM)
    code = process.wait()
    if code:
        raise P2LError(f"the service ended with exit code {code}; {log} says why")


def free_port() -> int:
    """Return a port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
