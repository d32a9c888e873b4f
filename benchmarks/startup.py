"""How long a user waits before anything happens: `import p2l`, and `--help` of every command, beside the promises.

python -m benchmarks.startup
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time

from p2l.cli import COMMANDS
from p2l.common.cli import parser

IMPORT, HELP, TRAIN_HELP = 0.3, 1.5, 3.0  # promised seconds
REPEAT = 5


def median_seconds(*words: str) -> float:
    """Median wall time of a Python command, after one warm-up."""
    times = []
    for _ in range(REPEAT + 1):
        start = time.perf_counter()
        subprocess.run([sys.executable, *words], check=True, stdout=subprocess.DEVNULL)
        times.append(time.perf_counter() - start)
    return statistics.median(times[1:])


def build_parser() -> argparse.ArgumentParser:
    """Return the flags of the benchmark: none."""
    return parser("python -m benchmarks.startup", "Time the import of p2l and the help of every command.")


def main() -> None:
    """Print one line per command."""
    build_parser().parse_args()
    bare = median_seconds("-c", "pass")
    print(f"{'command':<24}{'seconds':>9}{'promise':>9}")
    print(f"{'python (nothing)':<24}{bare:>9.2f}")
    imported = max(0.0, median_seconds("-c", "import p2l") - bare)  # less than the noise of either
    print(f"{'import p2l':<24}{imported:>9.2f}{IMPORT:>9.1f}")
    for name in COMMANDS:
        promise = TRAIN_HELP if name == "train" else HELP
        print(f"{f'p2l {name} --help':<24}{median_seconds('-m', 'p2l.cli', name, '--help'):>9.2f}{promise:>9.1f}")


if __name__ == "__main__":
    main()
