"""How the workers of one service agree on the model: files in a folder that only this service can read.

`wanted.json` says which model every worker is to serve, with a number that grows; each worker answers in a file of its
own when it serves that model, or why it does not. A worker that is started anew begins with the wanted model, or with
the last one that could be loaded, which `kept.json` names.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from p2l.serving.metrics import is_alive

__all__ = [
    "Control",
    "Status",
    "Wanted",
]


@dataclass(frozen=True)
class Wanted:
    """The model that every worker is to serve."""

    generation: int
    model_path: str
    stamp: int = 0
    """When the weights were written (ns), for a model of a watched folder."""


@dataclass(frozen=True)
class Status:
    """What one worker has done of it."""

    pid: int
    generation: int
    revision: str
    problem: str | None = None
    """Why the worker serves the model before."""


class Control:
    """The folder."""

    def __init__(self, folder: Path) -> None:
        """The folder exists."""
        self._folder = folder

    def wanted(self) -> Wanted | None:
        """The last wish; None before the first."""
        content = _read(self._folder / "wanted.json")
        return None if content is None else Wanted(**content)

    def want(self, model_path: str, stamp: int = 0) -> Wanted:
        """Wish for a model (again)."""
        with self._alone():
            return self._want(self.wanted(), model_path, stamp)

    def want_newer(self, model_path: str, stamp: int) -> None:
        """Wish for a model unless one of its age was wished for already."""
        with self._alone():
            last = self.wanted()
            if last is None or last.stamp < stamp:
                self._want(last, model_path, stamp)

    @contextlib.contextmanager
    def turn(self) -> Iterator[bool]:
        """Whether it is this caller's turn to wish and wait for the outcome; it is nobody else's until the end."""
        with (self._folder / "turn.lock").open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
            else:
                yield True

    def kept(self) -> str | None:
        """The path of the last wanted model that could be loaded."""
        content = _read(self._folder / "kept.json")
        return None if content is None else str(content)

    def keep(self, model_path: str) -> None:
        """Say that a wanted model could be loaded."""
        _write(self._folder / "kept.json", model_path)

    def report(self, status: Status) -> None:
        """Say what this worker serves."""
        _write(self._folder / f"worker-{status.pid}.json", asdict(status))

    def statuses(self) -> list[Status]:
        """What the living workers said last."""
        contents = [_read(file) for file in sorted(self._folder.glob("worker-*.json"))]
        statuses = [Status(**content) for content in contents if content is not None]
        return [status for status in statuses if is_alive(status.pid)]

    def _want(self, last: Wanted | None, model_path: str, stamp: int) -> Wanted:
        wish = Wanted(1 if last is None else last.generation + 1, model_path, stamp)
        _write(self._folder / "wanted.json", asdict(wish))
        return wish

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        with (self._folder / "wanted.lock").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield


def _read(file: Path) -> Any:
    try:
        return json.loads(file.read_text("utf-8"))
    except FileNotFoundError:
        return None


def _write(file: Path, content: Any) -> None:
    temporary = file.with_suffix(f".{os.getpid()}.tmp")
    temporary.write_text(json.dumps(content), "utf-8")
    temporary.replace(file)
