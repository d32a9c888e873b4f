"""What tests start as `python`: it asks the origin for a fork that runs the command line, and ends as that ends.

`python -I -S client.py SOCKET PYTHON WORDS...`. Signals are handed on, and a fork whose client is killed is killed. A
line or an environment that only a new interpreter can honour gets one.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import socket
import sys
from collections.abc import Sequence
from types import FrameType
from typing import NoReturn

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
LIMITS = [value for name, value in sorted(vars(resource).items()) if name.startswith("RLIMIT_")]


def main() -> NoReturn:
    """Run the line to its end."""
    address, python, *words = sys.argv[1:]
    ignored = [sign for sign in SIGNALS if signal.getsignal(sign) is signal.SIG_IGN]
    blocked = [*signal.pthread_sigmask(signal.SIG_BLOCK, ())]
    if can_fork(words):
        with socket.socket(socket.AF_UNIX) as origin:
            numbers = inherited()
            origin.connect(address)
            status = follow(origin, numbers, words, ignored, blocked)
        if status is not None:
            end(status)
    for sign in SIGNALS:
        signal.signal(sign, signal.SIG_IGN if sign in ignored else signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
    os.execv(python, [python, *words])


def can_fork(words: Sequence[str]) -> bool:
    """Whether the line is `[-u] [-B] (-m MODULE | -c CODE | SCRIPT) ...`."""
    rest = [*words]
    while rest and rest[0] in {"-u", "-B"}:
        rest.pop(0)
    return bool(rest) and (not rest[0].startswith("-") or (rest[0] in {"-m", "-c"} and len(rest) > 1))


def inherited() -> list[int]:
    """The open files that this process was started with: its own are closed by `exec`."""
    numbers = []
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208  (pathlib takes longer to import than all of this)
        try:
            if os.get_inheritable(int(name)):
                numbers.append(int(name))
        except OSError:  # that of the listing
            continue
    return sorted(numbers)


def follow(
    origin: socket.socket,
    numbers: list[int],
    words: list[str],
    ignored: list[signal.Signals],
    blocked: list[signal.Signals],
) -> int | None:
    """Ask for the fork and wait for its end: its status, or None if it needs a new interpreter."""
    limits = [(limit, *resource.getrlimit(limit)) for limit in LIMITS]
    umask = os.umask(0)
    os.umask(umask)
    request = json.dumps(
        {
            "words": words,
            "folder": os.getcwd(),  # noqa: PTH109
            "environment": dict(os.environ),
            "files": numbers,
            "limits": limits,
            "ignored": ignored,
            "blocked": blocked,
            "umask": umask,
        }
    ).encode()
    waiting: list[int] = []
    pid = 0

    def hand_on(sign: int, _: FrameType | None) -> None:
        if pid:
            os.kill(pid, sign)
        else:
            waiting.append(sign)

    for sign in SIGNALS:
        signal.signal(sign, hand_on)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    socket.send_fds(origin, [len(request).to_bytes(4, "big")], numbers)
    origin.sendall(request)
    with origin.makefile("rb") as answers:
        pid = int(answers.readline())
        if not pid:
            return None
        for number in numbers:  # a copy of a socket or a pipe would keep it open
            if number != 2:
                os.close(number)
        while waiting:
            os.kill(pid, waiting.pop(0))
        return int(answers.readline())


def end(status: int) -> NoReturn:
    """End with a code, or by a signal."""
    if os.WIFSIGNALED(status):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if os.WTERMSIG(status) != signal.SIGKILL:
            signal.signal(os.WTERMSIG(status), signal.SIG_DFL)
        os.kill(os.getpid(), os.WTERMSIG(status))
    os._exit(os.waitstatus_to_exitcode(status))


if __name__ == "__main__":
    main()
