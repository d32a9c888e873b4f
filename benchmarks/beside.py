"""Whole commands of this checkout beside the same commands of another one, in turns: what a change costs or saves.

    git worktree add ../before COMMIT
    python -m benchmarks.beside ../before [--rounds 5] [--only NAME]

Both run with this interpreter and its packages, on the same input. The runs of a pair follow each other at once, old
and new taking the lead in turn, so that a busy moment of the machine meets both; the ratio (new / old) is the median of
the pairs, with the least and the largest. User plus system seconds of the process and its children are what a
command costs, wall seconds what a person waits.

`train` is a whole tiny training (start-up, 60 steps, saving); `step` is the same with four times the epochs, less
`train`: steps alone. Its weights must be the same bytes in both checkouts, which is checked.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import yaml

from p2l.common.cli import parser, positive, run
from p2l.common.errors import InputError

HERE = Path(__file__).resolve().parent.parent
HEADER = (
    f"{'command':<26}{'old wall':>10}{'new wall':>10}{'ratio':>8}{'  [least, most]':<18}{'old cpu':>9}{'new cpu':>9}"
)


class Times(NamedTuple):
    """Seconds of one run."""

    wall: float
    cpu: float


class Pair(NamedTuple):
    """One run of each checkout."""

    old: Times
    new: Times


def build_parser() -> argparse.ArgumentParser:
    """The flags."""
    flags = parser("python -m benchmarks.beside", "Time commands of this checkout beside those of another one.")
    flags.add_argument("old", help="the other checkout")
    flags.add_argument("--rounds", type=positive, default=5, help="pairs of runs of each command, after one warm-up")
    flags.add_argument("--only", help="commands whose name contains this text")
    return flags


def timed(checkout: Path, words: Sequence[str]) -> Times:
    """Run `python WORDS` with a checkout's packages.

    Raises:
        InputError: it failed.
    """
    environment = {**os.environ, "PYTHONPATH": str(checkout), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run([sys.executable, *words], cwd=checkout, env=environment, check=False, capture_output=True)
    if done.returncode:
        raise InputError(f"{checkout}: {' '.join(words)}: {done.stderr.decode().strip().splitlines()[-1:]}")
    wall, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    return Times(wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)


def pairs(old: Path, words: Sequence[str], rounds: int) -> list[Pair]:
    """Time both checkouts in turn, the first run of each not counted."""
    timed(old, words), timed(HERE, words)
    done = []
    for number in range(rounds):
        if number % 2:
            new = timed(HERE, words)
            done.append(Pair(timed(old, words), new))
        else:
            done.append(Pair(timed(old, words), timed(HERE, words)))
    return done


def line(name: str, done: Sequence[Pair]) -> str:
    """One row of the table."""
    ratios = sorted(pair.new.wall / pair.old.wall for pair in done)
    wall_old, wall_new, cpu_old, cpu_new = (
        statistics.median(times)
        for times in zip(*((p.old.wall, p.new.wall, p.old.cpu, p.new.cpu) for p in done), strict=True)
    )
    spread = f"  [{ratios[0]:.2f}, {ratios[-1]:.2f}]"
    return (
        f"{name:<26}{wall_old:>10.3f}{wall_new:>10.3f}{statistics.median(ratios):>8.2f}{spread:<18}"
        f"{cpu_old:>9.3f}{cpu_new:>9.3f}"
    )


def make_inputs(folder: Path) -> None:
    """Votes of a simulated arena, a tiny backbone and two training configurations."""
    votes, backbone = folder / "votes.parquet", folder / "backbone"
    command = [sys.executable, "-m", "p2l.cli"]
    simulate = ["simulate", "--votes", "20000", "--models", "30", "--seed", "1", "--output", str(votes), "--quiet"]
    init = ["init", "--votes", str(votes), "--output", str(backbone), "--model-type", "qwen2", "--hidden-size", "32"]
    for words in (simulate, [*init, "--layers", "2", "--heads", "2", "--max-prompts", "2000", "--quiet"]):
        subprocess.run([*command, *words], cwd=HERE, check=True, capture_output=True)
    (folder / "engine.json").write_text(json.dumps({"zero_optimization": {"stage": 0}}), encoding="utf-8")
    for name, epochs in (("train", 1), ("train4", 4)):
        settings = {
            "proj_name": name,
            "pretrain_model_name": str(backbone),
            "train_data_path": str(folder / "few.parquet"),
            "val_data_path": str(folder / "few.parquet"),
            "output_dir": str(folder / "models"),
            "model_type": "qwen2",
            "head_type": "rk",
            "loss_type": "grk",
            "init_type": "marginal",
            "chat_template": "chatml",
            "max_length": 64,
            "batch_size": 32,
            "gradient_accumulation_steps": 1,
            "num_train_epochs": epochs,
            "learning_rate": 1e-3,
            "adam_epsilon": 1e-8,
            "deepspeed_config_path": str(folder / "engine.json"),
        }
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(settings), encoding="utf-8")
    import pyarrow.parquet as pq

    pq.write_table(pq.read_table(votes).slice(0, 1920), folder / "few.parquet")


def commands(folder: Path) -> dict[str, list[str]]:
    """Name -> the words after `python`."""
    votes = str(folder / "votes.parquet")
    return {
        "python": ["-c", "pass"],
        "import p2l": ["-c", "import p2l"],
        "import p2l.leaderboard": ["-c", "import p2l.leaderboard"],
        "p2l --help": ["-m", "p2l.cli", "--help"],
        "p2l train --help": ["-m", "p2l.cli", "train", "--help"],
        "router --help": ["-m", "route.openai_server", "--help"],
        "coeval run --help": ["-m", "coeval", "run", "--help"],
        "import p2l.inference": ["-c", "import p2l.inference"],
        "simulate": [
            "-m",
            "p2l.cli",
            "simulate",
            "--votes",
            "20000",
            "--output",
            str(folder / "out.parquet"),
            "--quiet",
        ],
        "votes check": ["-m", "p2l.cli", "votes", "check", votes],
        "leaderboard": ["-m", "p2l.cli", "leaderboard", "--votes", votes, "--likelihood", "grk", "--quiet"],
        "train": ["-m", "p2l.cli", "train", "--config", str(folder / "train.yaml"), "--no-eval"],
        "train4": ["-m", "p2l.cli", "train", "--config", str(folder / "train4.yaml"), "--no-eval"],
    }


def weights(folder: Path) -> set[str]:
    """Digests of all weights trained so far, by number of epochs."""
    paths = [path for path in (folder / "models").rglob("model.safetensors") if "checkpoint" not in str(path)]
    return {hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}


def main(argv: Sequence[str] | None = None) -> None:
    """Print one line a command."""
    args = build_parser().parse_args(argv)
    old = Path(args.old).resolve()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_inputs(folder)
        print(HEADER)
        results: dict[str, list[Pair]] = {}
        for label, words in commands(folder).items():
            if args.only is None or args.only in label:
                results[label] = pairs(old, words, args.rounds)
                print(line(label, results[label]), flush=True)
        if {"train", "train4"} <= results.keys():
            steps = [
                Pair(
                    Times(more.old.wall - one.old.wall, more.old.cpu - one.old.cpu),
                    Times(more.new.wall - one.new.wall, more.new.cpu - one.new.cpu),
                )
                for one, more in zip(results["train"], results["train4"], strict=True)
            ]
            print(line("step (180 of them)", steps))
            print(f"different weights: {len(weights(folder))} for 2 configurations")


if __name__ == "__main__":
    run(main)
