"""How long the board of one prompt takes from a cold start, with its memory: without torch, beside the same with torch.

    python -m benchmarks.cold_board [--prompts 200]

Each way is `p2l leaderboard PROMPT` of the public model in a process of its own, by turns; then both read prompts of
the packaged sample in one process, which says how alike their boards are.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time

import numpy as np
from scipy.stats import spearmanr

from p2l.common.cli import parser, positive
from p2l.inference import P2L
from p2l.public.model import public_folder
from p2l.public.sample import public_sample

_PROMPT = "Write a Python function that reverses a string."
# The second way hides OpenVINO, as on a machine without it.
_WAYS = {
    "without torch": "",
    "with torch": "import importlib.util as u; find = u.find_spec; "
    "u.find_spec = lambda name, *rest: None if name == 'openvino' else find(name, *rest); ",
}
_BOARD = """
import os, resource, sys
from p2l.cli import main
sys.argv[1:] = ["leaderboard", {prompt!r}, "--top", "5"]
try:
    main()
finally:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    print("USED", usage.ru_utime + usage.ru_stime, usage.ru_maxrss // 1024, "torch" in sys.modules, file=sys.stderr)
"""


def cold_board(hidden: str) -> tuple[float, float, int, bool]:
    """Return seconds, seconds of processors, MiB at most, and whether torch was imported, of a board in a process."""
    start = time.perf_counter()
    program = [sys.executable, "-c", hidden + _BOARD.format(prompt=_PROMPT)]
    finished = subprocess.run(program, check=True, capture_output=True, text=True)
    seconds = time.perf_counter() - start
    line = next(line for line in finished.stderr.splitlines() if line.startswith("USED"))
    _, processor, memory, torch = line.split()
    return seconds, float(processor), int(memory), torch == "True"


def build_parser() -> argparse.ArgumentParser:
    """Return the flags of the benchmark."""
    flags = parser("python -m benchmarks.cold_board", "Time the board of one prompt from a cold start.")
    flags.add_argument("--repeat", type=positive, default=5, help="cold starts of each way")
    flags.add_argument("--prompts", type=positive, default=200, help="prompts whose boards are compared")
    return flags


def main() -> None:
    """Print a table of both ways and their ratio, and how alike their boards are."""
    flags = build_parser().parse_args()
    public_folder()  # written once
    runs: dict[str, list[tuple[float, float, int, bool]]] = {way: [] for way in _WAYS}
    for _ in range(flags.repeat):
        for way, hidden in _WAYS.items():
            runs[way].append(cold_board(hidden))
    print("| | seconds | seconds of processors | MiB at most | imports torch |\n|---|--:|--:|--:|---|")
    medians = {}
    for way, rows in runs.items():
        medians[way] = [statistics.median(column) for column in list(zip(*rows, strict=True))[:3]]
        seconds, processor, memory = medians[way]
        imports = "yes" if rows[0][3] else "no"
        print(f"| {way} | {seconds:.2f} | {processor:.2f} | {memory:.0f} | {imports} |")
    ratios = [with_torch / light for light, with_torch in zip(*medians.values(), strict=True)]
    print(f"| ratio | {ratios[0]:.1f} | {ratios[1]:.1f} | {ratios[2]:.1f} | |\n")
    votes = public_sample(2500, seed=0)
    different = dict.fromkeys(tuple(turns) for turns in votes.column("prompt").to_pylist())
    prompts = [list(turns) for turns in different][: flags.prompts]
    light = P2L.public().predict(prompts).coefs
    exact = P2L.from_pretrained(public_folder(), dtype="float32").predict(prompts).coefs
    ranks = [float(spearmanr(*rows).statistic) for rows in zip(light, exact, strict=True)]
    error = float(np.abs(light - exact).max())
    print(
        f"{len(prompts)} boards: rank correlation at least {min(ranks):.6f}; coefficients differ by {error:.1e} at most"
    )


if __name__ == "__main__":
    main()
