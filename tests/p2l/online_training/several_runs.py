"""Several training runs one after the other in the processes of one launch; each line of the file is one's flags.

python tests/p2l/online_training/several_runs.py FILE, or under the DeepSpeed launcher.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))


def main() -> None:
    """Train as every line says."""
    from p2l.online_training.online_train import main as online
    from p2l.train import main as train

    commands = {"train": train, "online": online}
    for line in Path(sys.argv[-1]).read_text(encoding="utf-8").splitlines():
        name, *flags = line.split("\t")
        commands[name](flags)


if __name__ == "__main__":
    from p2l.command import run

    run(lambda _: main())
