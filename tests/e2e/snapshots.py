"""Train, and keep a copy of a folder at every touch of the disk: what a kill -9 there would have left behind.

python tests/e2e/snapshots.py FOLDER SNAPSHOTS MODULE FLAGS..., or under the DeepSpeed launcher; copies are named by
rank, number and what was touched.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import shutil
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

EVENTS = {"open", "os.rename", "os.remove", "os.rmdir", "os.mkdir", "shutil.rmtree"}


class Camera:
    """Copies `watched` whenever this process is about to change something in it."""

    def __init__(self, watched: Path, snapshots: Path) -> None:
        self.watched, self.snapshots = str(watched), snapshots
        self.busy, self.count = False, 0

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self.busy or event not in EVENTS or not str(arguments[0]).startswith(self.watched):
            return
        self.busy = True
        name = f"{os.environ.get('RANK', '0')}-{self.count:04}-{event}-{Path(str(arguments[0])).name}"
        # What another rank moves away in the meantime is not there.
        with contextlib.suppress(shutil.Error, FileNotFoundError):
            shutil.copytree(self.watched, self.snapshots / name, symlinks=True)
        self.count += 1
        self.busy = False


def main() -> None:
    """Train as the flags say, watched."""
    watched, snapshots, module, *flags = [word for word in sys.argv[1:] if not word.startswith("--local_rank")]
    train = importlib.import_module(module).main
    sys.addaudithook(Camera(Path(watched), Path(snapshots)))
    train(flags)


if __name__ == "__main__":
    main()
