"""The log of a run: one line each, in its file and, from INFO up, on the terminal."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path

from coeval.storage.records import now

__all__ = ["LEVELS", "Log"]

LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR")


class Log:
    """Lines `time [LEVEL] message`; warnings and errors also go to stderr, the rest to stdout."""

    def __init__(self, path: Path | None = None, level: str = "INFO") -> None:
        """`path` None: nothing is kept, until there is a file; see `keep_in`."""
        self.path = path
        self._early: list[str] = []
        self._least = LEVELS.index(level)

    def keep_in(self, path: Path) -> None:
        """Keep lines in a file from now on, those said before included."""
        self.path = path
        for line in self._early:
            _keep(path, line)
        self._early.clear()

    def debug(self, message: str) -> None:
        """What helps to find a fault."""
        self._write("DEBUG", message)

    def info(self, message: str) -> None:
        """What happens."""
        self._write("INFO", message)

    def warning(self, message: str) -> None:
        """What is missing afterwards, or costs more."""
        self._write("WARNING", message)

    def error(self, message: str) -> None:
        """What makes the exit code 1."""
        self._write("ERROR", message)

    def _write(self, level: str, message: str) -> None:
        if LEVELS.index(level) < self._least:
            return
        text = " ".join(message.split("\n"))
        line = f"{now()} [{level}] {text}\n"
        if self.path is None:
            self._early.append(line)
        else:
            _keep(self.path, line)
        _show(text if level == "INFO" else f"{level.lower()}: {text}", to_stderr=level in ("WARNING", "ERROR"))


def _keep(path: Path, line: str) -> None:
    # Where the disk is full the terminal still has to hear of it.
    with contextlib.suppress(OSError), path.open("a", encoding="utf-8", errors="replace") as file:
        file.write(line)


def _show(text: str, *, to_stderr: bool) -> None:
    stream = sys.stderr if to_stderr else sys.stdout
    if sys.stderr.isatty():  # a progress bar may be there
        from tqdm import tqdm

        tqdm.write(text, file=stream)
    else:
        print(text, file=stream, flush=True)
