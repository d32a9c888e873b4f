"""A server as a process of its own, as a user starts it."""

from __future__ import annotations

import contextlib
import http.client
import os
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

from tests.conftest import ROOT, free_port
from tests.warm import warm_python

__all__ = ["answers", "half_open", "serving"]


@contextlib.contextmanager
def serving(
    module: str,
    *flags: str | Path,
    probe: str,
    log: Path | None = None,
    begun: str | None = None,
    python: str | None = None,
    **env: str,
) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """A running `python -m module flags`, once `probe` answers 200 or `begun` is logged: its URL and its process.

    It logs into the file `log`, by default into a pipe, which a long log would fill. `python` is by default a warm one.
    """
    port = free_port()
    words = [python or warm_python(), "-m", module, *map(str, flags), "--port", str(port)]
    environment = {**os.environ, **env}
    with contextlib.ExitStack() as stack:
        stderr = subprocess.PIPE if log is None else stack.enter_context(log.open("w", encoding="utf-8"))
        process = stack.enter_context(
            subprocess.Popen(words, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=stderr, text=True)
        )
        try:
            url = f"http://127.0.0.1:{port}"
            while process.poll() is None and not (begun in log.read_text() if log and begun else answers(url + probe)):
                time.sleep(0.02)
            yield url, process
        finally:
            if process.poll() is None:
                process.kill()


def answers(url: str) -> bool:
    """Whether somebody answers 200 there."""
    parts = urlsplit(url)  # httpx2 reads all certificates of the machine for each client
    with contextlib.closing(http.client.HTTPConnection(parts.netloc, timeout=30)) as client:
        try:
            client.request("GET", f"{parts.path}?{parts.query}")
            return client.getresponse().status == 200
        except (OSError, http.client.HTTPException):
            return False


@contextlib.contextmanager
def half_open(url: str, count: int, peer: str) -> Iterator[list[socket.socket]]:
    """Connections of a peer on loopback, each with the beginning of a request that never goes on."""
    parts = urlsplit(url)
    with contextlib.ExitStack() as stack:
        clients = []
        for _ in range(count):
            client = socket.create_connection((parts.hostname, parts.port), timeout=60, source_address=(peer, 0))
            clients.append(stack.enter_context(client))
            with contextlib.suppress(ConnectionError):  # one that is refused
                client.sendall(b"GET /health HTTP/1.1\r\nhost: h\r\n")
        yield clients
