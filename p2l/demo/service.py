"""The demo's service: the trained model behind HTTP, called with curl and with the client, and stopped again."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from p2l.client import P2LClient, PromptLeaderboard
from p2l.common.errors import P2LError, UnavailableError

PATIENCE = 120.0
"""Seconds for a start on a busy machine."""


def show(folder: Path, model: str, prompts: list[list[str]]) -> Iterator[str]:
    """Serve `folder / model`, get the leaderboards of two prompts, and stop it; yield lines to print."""
    port = free_port()
    flags = ["--model-path", model, "--host", "127.0.0.1", "--port", str(port)]
    yield f"  $ {shlex.join(['p2l', 'endpoint', *flags])} &"
    with running(folder, ["p2l.cli", "endpoint", *flags], "endpoint.log") as process:
        url = f"http://127.0.0.1:{port}"
        with P2LClient(url) as client:
            _wait(client, process, folder)
            yield from _by_curl(url, prompts[0])
            yield f"  >>> P2LClient({url!r}).leaderboard({prompts[1]!r}).rows[:3]"
            yield from _rows(client.leaderboard(prompts[1]))
        yield "  $ kill %1"
        stop(process, folder / "endpoint.log")
    yield "  stopped, after every request was answered"


@contextlib.contextmanager
def running(folder: Path, words: list[str], log_name: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run `python -m WORDS` in the folder until the block ends; its output goes to a file there."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("P2L_")}
    with (folder / log_name).open("wb") as log:
        process = subprocess.Popen([sys.executable, "-m", *words], cwd=folder, env=environment, stdout=log, stderr=log)
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()


def stop(process: subprocess.Popen[bytes], log: Path) -> None:
    """Stop a service and wait until it has ended; P2LError if it ended with an error."""
    process.send_signal(signal.SIGTERM)
    code = process.wait(PATIENCE)
    if code:
        raise P2LError(f"the service ended with exit code {code}; {log} says why")


def _wait(client: P2LClient, process: subprocess.Popen[bytes], folder: Path) -> None:
    for _ in range(int(PATIENCE / 0.1)):
        with contextlib.suppress(UnavailableError):
            client.health()
            return
        if process.poll() is not None:
            break
        time.sleep(0.1)
    raise P2LError(f"the endpoint did not start; {folder / 'endpoint.log'} says why")


def _by_curl(url: str, prompt: list[str]) -> Iterator[str]:
    """Yield a prompt's leaderboard as any HTTP client gets it."""
    body = json.dumps({"prompt": prompt})
    line = ["curl", "-s", f"{url}/leaderboard", "-H", "content-type: application/json", "-d", body]
    yield f"  $ {shlex.join(line)}"
    if shutil.which("curl") is None:
        yield "  (curl is not installed here)"
        return
    answer = json.loads(subprocess.run(line, check=True, capture_output=True).stdout)
    first, *others = answer["leaderboard"]
    yield f'  {{"leaderboard": [{json.dumps(first)}, ... {len(others)} more], "revision": "{answer["revision"]}"}}'


def _rows(board: PromptLeaderboard) -> Iterator[str]:
    for row in board.rows[:3]:
        yield f"  {row.rank}. {row.model}: score {row.score:.0f}, beats the field {row.win_rate:.0%} of the time"


def free_port() -> int:
    """Return a port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
