"""`python tests/e2e/resume_in_turn.py PLAN`: each line of the plan is the flags of a run that must not come about.

Each refusal is printed on a line of its own, so that many runs take the start of one process.
"""

import sys
from pathlib import Path


def main() -> None:
    """Try every line of the plan."""
    from p2l.common.errors import InputError
    from p2l.train import main as train

    for line in Path(sys.argv[-1]).read_text(encoding="utf-8").splitlines():
        try:
            train(line.split("\t"))
        except InputError as error:
            print(f"refused: {error}", flush=True)
        else:
            print("it was trained", flush=True)


if __name__ == "__main__":
    main()
