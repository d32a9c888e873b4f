"""Where should a model start that joins an online run: at the mean coefficient of the others, or at random?

Every vote of a simulated arena is forecast before it is learned from (a step's loss is taken before its update, and no
vote is seen twice), so the mean loss over the steps is an honest figure for a model that is always a little behind.
Steps in which models joined, and the nine after each, are told apart: there the start matters most.

python -m benchmarks.new_models [--votes 20000] [--seeds 3]
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import yaml
from numpy.typing import NDArray

ROOT = Path(__file__).resolve().parents[1]
STARTS = ("random", "mean")
AFTER = 10  # steps, the one of the first vote included


def build_parser() -> argparse.ArgumentParser:
    """Return the flags of the benchmark."""
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("--votes", type=int, default=20_000)
    flags.add_argument("--seeds", type=int, default=3)
    flags.add_argument("--batch-size", type=int, default=64)
    return flags


def main() -> None:
    """Train with each start and each seed, and print the losses side by side."""
    asked = build_parser().parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _make_votes(folder, asked.votes)
        runs = {
            (start, seed): _losses(folder, start, seed, asked.batch_size)
            for seed in range(asked.seeds)
            for start in STARTS
        }
    _print(runs, asked.seeds)


def _make_votes(folder: Path, count: int) -> None:
    from p2l.commands.model import init_main as init
    from p2l.simulate import main as simulate

    votes = folder / "votes.parquet"
    with contextlib.redirect_stdout(io.StringIO()):
        simulate(["--votes", str(count), "--models", "60", "--output", str(votes), "--quiet"])
        init(["--votes", str(votes), "--output", str(folder / "backbone"), "--hidden-size", "64", "--quiet"])


def _losses(folder: Path, start: str, seed: int, batch_size: int) -> NDArray[np.float64]:
    """(steps, 3): loss, votes, models known."""
    config = yaml.safe_load((ROOT / "training_configs" / "online" / "tiny.yaml").read_text(encoding="utf-8"))
    config |= {
        "proj_name": f"{start}-{seed}",
        "seed": seed,
        "new_models": start,
        "buffer": {"type": "none"},
        "batch_size": batch_size,
        "train_data_path": str(folder / "votes.parquet"),
        "pretrain_model_name": str(folder / "backbone"),
        "output_dir": str(folder / "out"),
        "deepspeed_config_path": str(ROOT / "training_configs" / "deepspeed" / "zero1.json"),
    }
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump(config), encoding="utf-8")
    line = [sys.executable, "-m", "p2l.online_training.online_train", "--config", str(path), "--no-eval", "--quiet"]
    subprocess.run(line, cwd=ROOT, check=True, capture_output=True)
    log = (folder / "out" / f"{start}-{seed}" / "metrics.jsonl").read_text(encoding="utf-8")
    steps = [json.loads(text) for text in log.splitlines()]
    return np.array([[step["loss"], step["votes"], step["models"]] for step in steps])


def _print(runs: dict[tuple[str, int], NDArray[np.float64]], seeds: int) -> None:
    known = runs[STARTS[0], 0][:, 2]
    joined = np.flatnonzero(np.diff(known, prepend=known[0]) > 0)
    near = np.zeros(len(known), dtype=bool)
    for step in joined:
        near[step : step + AFTER] = True
    print(f"{len(known)} steps, {int(known[0])} models at first and {int(known[-1])} at the end")
    print(f"{'loss over':34} {'random':>8} {'mean':>8} {'mean - random':>16}")
    for name, chosen in (
        ("all steps", near | True),
        (f"{AFTER} steps from a model's first vote", near),
        ("others", ~near),
    ):
        figures = np.array([[_mean(runs[start, seed][chosen]) for start in STARTS] for seed in range(seeds)])
        change = figures[:, 1] - figures[:, 0]
        error = change.std(ddof=1) / np.sqrt(seeds) if seeds > 1 else float("nan")
        random, mean = figures.mean(axis=0)
        print(f"{name:34} {random:8.4f} {mean:8.4f} {change.mean():+9.4f} ± {error:.4f}")


def _mean(steps: NDArray[np.float64]) -> float:
    return float(np.average(steps[:, 0], weights=steps[:, 1]))


if __name__ == "__main__":
    main()
