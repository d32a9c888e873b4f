"""Several training runs one after the other in the processes of one launch: starting those takes most of a short run.

`python tests/in_turn.py PLAN`, or under the DeepSpeed launcher, is what `run_in_turn` starts: each line of the plan is
a command, `train` or `online`, and its flags, with tabs between them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

__all__ = ["run_in_turn"]


def run_in_turn(
    command: Callable[..., Any], plan: Path, runs: Sequence[Sequence[str | Path]], *launcher: str
) -> list[Path]:
    """Train in turn; the folders of the trained models, of runs that are not `--quiet`."""
    plan.write_text("\n".join("\t".join(map(str, run)) for run in runs), encoding="utf-8")
    done = command(*(launcher or ["python"]), "tests/in_turn.py", plan)
    assert done.returncode == 0, done.stderr[-4000:]
    said = "trained model: "
    return [Path(line.removeprefix(said)) for line in done.stdout.splitlines() if line.startswith(said)]


def main() -> None:
    """Train as every line says."""
    from p2l.online_training.online_train import main as online
    from p2l.train import main as train

    commands = {"train": train, "online": online}
    for line in Path(sys.argv[-1]).read_text(encoding="utf-8").splitlines():
        name, *flags = line.split("\t")
        commands[name](flags)


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    from p2l.common.cli import run

    run(lambda _: main())
