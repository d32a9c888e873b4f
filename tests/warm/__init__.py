"""A Python that starts at once: its processes are forked from one that has imported the heavy packages.

Of torch, transformers and DeepSpeed alone, 4 s of computing a start. `warm_python()` is an executable with the command
line of `python`; it takes the folder, environment, limits, signals and open files that it is started with. Nothing of
this repository is imported before the fork: a command imports its own modules, and reads its flags, as one started
from a shell does. What such a process starts with `sys.executable`, as the launchers and `multiprocessing` do, starts
so too. One origin serves all workers of a test run.
"""

from __future__ import annotations

import atexit
import fcntl
import os
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["alone", "warm_python"]

_HERE = Path(__file__).resolve().parent
_NAME = "P2L_TEST_PYTHON"


def warm_python() -> str:
    """Path of the executable; its origin is started if none is, and ends with the process that has started it."""
    if _NAME not in os.environ:
        _start()
    return os.environ[_NAME]


@contextmanager
def alone() -> Iterator[None]:
    """Of the processes of one test run none other is inside; a run of one process does not wait."""
    if _NAME not in os.environ:
        yield
        return
    with Path(os.environ[_NAME]).with_name("lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _start() -> None:
    folder = Path(tempfile.mkdtemp(prefix="p2l-warm-"))
    script, address = folder / "python", folder / "socket"
    words = map(str, (sys.executable, "-I", "-S", _HERE / "client.py", address, sys.executable))
    script.write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n', encoding="utf-8")
    script.chmod(0o700)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(address))  # whoever asks waits until the imports are done
    listener.listen(128)
    with (folder / "log").open("wb") as log:
        origin = subprocess.Popen(
            [sys.executable, str(_HERE / "origin.py"), str(listener.fileno()), str(script)],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            pass_fds=[listener.fileno()],
        )
    listener.close()
    os.environ[_NAME] = str(script)
    atexit.register(_stop, origin, folder)


def _stop(origin: subprocess.Popen[bytes], folder: Path) -> None:
    assert origin.stdin is not None
    origin.stdin.close()
    origin.wait()
    shutil.rmtree(folder, ignore_errors=True)
