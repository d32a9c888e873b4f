"""The last step of the demo: the trained model behind HTTP, asked with curl and with the client, and stopped again."""

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
from p2l.errors import P2LError, UnavailableError

__all__ = ["show"]

_PATIENCE = 120.0  # seconds for a start on a busy machine


def show(folder: Path, model: str, prompts: list[list[str]]) -> Iterator[str]:
    """Serve `folder / model`, ask it for the leaderboards of two prompts, and stop it; yields what is to be read."""
    port = _free_port()
    flags = ["--model-path", model, "--host", "127.0.0.1", "--port", str(port)]
    yield f"  $ {shlex.join(['p2l', 'endpoint', *flags])} &"
    with _endpoint(folder, flags) as process:
        url = f"http://127.0.0.1:{port}"
        with P2LClient(url) as client:
            _wait(client, process, folder)
            yield from _by_curl(url, prompts[0])
            yield f"  >>> P2LClient({url!r}).leaderboard({prompts[1]!r}).rows[:3]"
            yield from _rows(client.leaderboard(prompts[1]))
        yield "  $ kill %1"
        process.send_signal(signal.SIGTERM)
        code = process.wait(_PATIENCE)
    if code:
        raise P2LError(f"the endpoint ended with exit code {code}; {folder / 'endpoint.log'} says why")
    yield "  stopped, after every request was answered"


@contextlib.contextmanager
def _endpoint(folder: Path, flags: list[str]) -> Iterator[subprocess.Popen[bytes]]:
    environment = {name: value for name, value in os.environ.items() if name != "P2L_API_KEY"}
    with (folder / "endpoint.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "p2l.cli", "endpoint", *flags], cwd=folder, env=environment, stdout=log, stderr=log
        )
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()


def _wait(client: P2LClient, process: subprocess.Popen[bytes], folder: Path) -> None:
    for _ in range(int(_PATIENCE / 0.1)):
        with contextlib.suppress(UnavailableError):
            client.health()
            return
        if process.poll() is not None:
            break
        time.sleep(0.1)
    raise P2LError(f"the endpoint did not start; {folder / 'endpoint.log'} says why")


def _by_curl(url: str, prompt: list[str]) -> Iterator[str]:
    """A prompt's leaderboard as any HTTP client gets it."""
    body = json.dumps({"prompt": prompt})
    line = ["curl", "-s", f"{url}/leaderboard", "-H", "content-type: application/json", "-d", body]
    yield f"  $ {shlex.join(line)}"
    if shutil.which("curl") is None:
        yield "  (curl is not installed here)"
        return
    said = json.loads(subprocess.run(line, check=True, capture_output=True).stdout)
    first = json.dumps(said["leaderboard"][0])
    yield f'  {{"leaderboard": [{first}, ... {len(said["leaderboard"]) - 1} more], "revision": "{said["revision"]}"}}'


def _rows(board: PromptLeaderboard) -> Iterator[str]:
    for row in board.rows[:3]:
        yield f"  {row.rank}. {row.model}: coefficient {row.score:.2f}, beats the field {row.win_rate:.0%} of the time"


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
