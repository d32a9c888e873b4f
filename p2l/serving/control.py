"""How the workers of one service agree on the model: files in a folder that only this service can read.

`wanted.json` says which model every worker is to serve, with a number that grows; each worker answers in a file of its
own when it serves that model, or why it does not. A worker that is started anew begins with the wanted model.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

__all__ = ["Control", "Status", "Wanted"]


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
        last = self.wanted()
        wish = Wanted(1 if last is None else last.generation + 1, model_path, stamp)
        _write(self._folder / "wanted.json", asdict(wish))
        return wish

    def report(self, status: Status) -> None:
        """Say what this worker serves."""
        _write(self._folder / f"worker-{status.pid}.json", asdict(status))

    def statuses(self) -> list[Status]:
        """What the living workers said last."""
        contents = [_read(file) for file in sorted(self._folder.glob("worker-*.json"))]
        statuses = [Status(**content) for content in contents if content is not None]
        return [status for status in statuses if _is_alive(status.pid)]


def _read(file: Path) -> Any:
    try:
        return json.loads(file.read_text("utf-8"))
    except FileNotFoundError:
        return None


def _write(file: Path, content: dict[str, Any]) -> None:
    temporary = file.with_suffix(f".{os.getpid()}.tmp")
    temporary.write_text(json.dumps(content), "utf-8")
    temporary.replace(file)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
