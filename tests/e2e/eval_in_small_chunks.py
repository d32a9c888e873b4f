"""`p2l eval` with chunks of 8 prompts that are saved at once, then a rest of EVAL_REST seconds; it counts the chunks.

python tests/e2e/eval_in_small_chunks.py FLAGS, or under a launcher.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))


def main() -> None:
    """Run the command; say at the end how many chunks this process asked the model for."""
    import p2l.batch_inference.prompts
    import p2l.batch_inference.run
    from p2l.batch_inference.output import PartFolder
    from p2l.eval import main as evaluate

    p2l.batch_inference.prompts.ROWS = 8
    p2l.batch_inference.run.SAVE_AFTER_SECONDS = 0.0
    write, count = PartFolder.write, [0]

    def counted(self: PartFolder, chunks: dict[int, object]) -> None:
        write(self, chunks)
        count[0] += len(chunks)
        time.sleep(float(os.environ.get("EVAL_REST", "0")))

    PartFolder.write = counted  # type: ignore[method-assign,assignment]
    evaluate(sys.argv[1:])
    sys.stderr.write(f"chunks: {count[0]}\n")


if __name__ == "__main__":
    from p2l.common.cli import run

    run(lambda _: main())
