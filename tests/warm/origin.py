"""The process that others are forked from: `python origin.py LISTENER PYTHON`, until its input ends.

It imports the heavy packages once, then forks for every client, tells it the process id, and later how that ended.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import gc
import importlib
import json
import os
import resource
import runpy
import selectors
import signal
import socket
import sys
import threading
import types
from collections.abc import Mapping, Sequence
from multiprocessing import spawn
from pathlib import Path
from typing import Any, NoReturn

HEAVY = ["torch", "torch._dynamo", "deepspeed", "deepspeed.launcher.runner", "pandas", "pyarrow.dataset", "scipy.stats"]
HEAVY += ["transformers.models.qwen2.modeling_qwen2", "transformers.models.bert.modeling_bert", "safetensors.torch"]
HEAVY += ["pydantic", "yaml", "fastapi", "uvicorn", "httpx2", "aiohttp", "jinja2", "openai", "anthropic"]
# Read while packages are imported: with other values than here, a command needs an interpreter of its own.
READ_EARLY = (
    "PYTHON",
    "LC_",
    "LANG",
    "OMP_",
    "GOMP_",
    "KMP_",
    "MKL_",
    "OPENBLAS_",
    "TORCH_",
    "HF_",
    "TRANSFORMERS_",
    "LD_",
)
READ_LATE = ("PYTHONPATH", "PYTHONUNBUFFERED", "PYTHONDONTWRITEBYTECODE", "TORCH_NCCL_", "KMP_DUPLICATE_LIB_OK")
FIRST_FILE = 200
"""The origin's own open files have numbers from here on, so that those of clients are free."""


def main() -> None:
    """Import, then fork until nobody can ask any more."""
    listener = socket.socket(fileno=_moved(int(sys.argv[1])))
    python, own_path = sys.argv[2], os.environ.get("PYTHONPATH", "").split(os.pathsep)
    alive = _moved(0)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    path = [place for place in sys.path[1:] if place not in own_path]
    for name in HEAVY:
        with contextlib.suppress(ImportError):  # of an extra that is not installed
            importlib.import_module(name)
    sys.executable = python
    spawn.set_executable(python)
    sys.stdout.flush()
    gc.collect()
    gc.freeze()
    request = Origin(listener, alive).serve()
    if request is not None:
        _run(request, path)


def _moved(number: int) -> int:
    moved = fcntl.fcntl(number, fcntl.F_DUPFD_CLOEXEC, FIRST_FILE)
    os.close(number)
    return moved


class Origin:
    """Forks for those who connect."""

    def __init__(self, listener: socket.socket, alive: int) -> None:
        self.listener, self.alive = listener, alive
        self.clients: dict[int, socket.socket] = {}
        self.environment = _read_early(os.environ)
        self.wake = [_moved(number) for number in os.pipe()]
        for number in self.wake:
            os.set_blocking(number, False)

    def serve(self) -> dict[str, Any] | None:
        """Return in each fork with what it is to do, and here without when the input has ended."""
        held_back = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2}
        signal.pthread_sigmask(signal.SIG_BLOCK, held_back)  # until a fork is what its client asked for
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self.wake[1], warn_on_full_buffer=False)
        while True:
            with selectors.PollSelector() as selector:
                for one in (self.listener, self.alive, self.wake[0], *self.clients.values()):
                    selector.register(one, selectors.EVENT_READ)
                ready = {key.fileobj for key, _ in selector.select()}
            if self.alive in ready:
                return self._end()
            for pid, client in [*self.clients.items()]:
                if client in ready:  # it was killed; whoever asks next finds that its fork has ended too
                    os.kill(pid, signal.SIGKILL)
                    os.waitpid(pid, 0)
                    self.clients.pop(pid).close()
            if self.wake[0] in ready:
                os.read(self.wake[0], 4096)
                self._reap()
            if self.listener in ready and (request := self._fork()):
                return request

    def _fork(self) -> dict[str, Any] | None:
        client, _ = self.listener.accept()
        files: list[int] = []
        pid = -1
        # A client may be killed at any moment: before its request is whole, or before it is told of its fork.
        with contextlib.suppress(OSError, ValueError):
            head, files, _, _ = socket.recv_fds(client, 4, 250)
            with client.makefile("rb") as reader:
                request: dict[str, Any] = json.loads(reader.read(int.from_bytes(head, "big")))
            if _read_early(request["environment"]) != self.environment:
                client.sendall(b"0\n")
            elif pid := os.fork():
                kept = self.clients[pid] = socket.socket(fileno=_moved(client.detach()))
                kept.sendall(b"%d\n" % pid)
        if pid == 0:
            client.close()
            self._take_over(files, request["files"])
            return request
        client.close()
        for number in files:
            os.close(number)
        return None

    def _take_over(self, files: Sequence[int], numbers: Sequence[int]) -> None:
        """In a fork: nothing of the origin's is open, and the client's files have their numbers."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for client in self.clients.values():
            client.close()
        self.listener.close()
        for number in (self.alive, *self.wake):
            os.close(number)
        high = [_moved(number) for number in files]
        for number, wanted in zip(high, numbers, strict=True):
            os.dup2(number, wanted, inheritable=True)
        for number in set(high) - set(numbers):
            os.close(number)

    def _reap(self) -> None:
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                pid, status = ended
                if client := self.clients.pop(pid, None):
                    with contextlib.suppress(OSError):  # it was killed too
                        client.sendall(b"%d\n" % status)
                    client.close()

    def _end(self) -> None:
        for pid in self.clients:
            os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            while True:
                os.wait()


def _read_early(environment: Mapping[str, str]) -> dict[str, str]:
    return {
        name: value
        for name, value in environment.items()
        if name.startswith(READ_EARLY) and not name.startswith(READ_LATE)
    }


def _run(request: Mapping[str, Any], path: Sequence[str]) -> NoReturn:
    """Do what `python WORDS` does, and end as it ends."""
    for sign in request["ignored"]:
        signal.signal(sign, signal.SIG_IGN)
    os.chdir(request["folder"])
    os.umask(request["umask"])
    os.environ.clear()
    os.environ.update(request["environment"])
    for limit, *values in request["limits"]:
        resource.setrlimit(limit, tuple(values))
    words, buffering = [*request["words"]], -1
    sys.dont_write_bytecode = bool(os.environ.get("PYTHONDONTWRITEBYTECODE"))
    if os.environ.get("PYTHONUNBUFFERED"):
        words.insert(0, "-u")
    while words[0] in {"-u", "-B"}:
        if words.pop(0) == "-B":
            sys.dont_write_bytecode = True
        else:
            buffering = 1
    for name, number, lines in (("stdout", 1, buffering), ("stderr", 2, 1)):
        old = getattr(sys, name)
        new = open(number, "w", lines, encoding=old.encoding, errors=old.errors, closefd=False)  # noqa: SIM115
        setattr(sys, name, new)
        setattr(sys, f"__{name}__", new)
    first = {"-m": str(Path.cwd()), "-c": ""}.get(words[0], str(Path(words[0]).resolve().parent))
    sys.path[:] = [first, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)), *path]
    importlib.invalidate_caches()
    signal.pthread_sigmask(signal.SIG_SETMASK, request["blocked"])
    code = _exit_code(words)
    threading._shutdown()  # type: ignore[attr-defined]  # what an interpreter does at its end, in its order
    atexit._run_exitfuncs()
    try:
        for stream in (sys.stdout, sys.stderr):
            if not stream.closed:
                stream.flush()
    except OSError:
        code = code or 120
    os._exit(code)


def _exit_code(words: Sequence[str]) -> int:
    try:
        if words[0] == "-m":
            sys.argv = [*words[1:]]
            runpy.run_module(words[1], run_name="__main__", alter_sys=True)
        elif words[0] == "-c":
            sys.argv = ["-c", *words[2:]]
            sys.modules["__main__"] = types.ModuleType("__main__")
            exec(compile(words[1], "<string>", "exec"), vars(sys.modules["__main__"]))
        else:
            sys.argv = [*words]
            runpy.run_path(words[0], run_name="__main__")
    except SystemExit as ended:
        if ended.code is None or isinstance(ended.code, int):
            return (ended.code or 0) & 255
        print(ended.code, file=sys.stderr)
        return 1
    except BaseException as error:
        sys.excepthook(type(error), error, error.__traceback__)
        if isinstance(error, KeyboardInterrupt):
            sys.stdout.flush()
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGINT)
        return 1
    return 0


if __name__ == "__main__":
    main()
