"""Time and memory of `p2l auto-evals` on simulated votes with forecasts that miss the truth by a little.

    python -m benchmarks.auto_evals [--sizes 4000x49 20000x130]

All four blocks with their default sizes and samples, 1,000 replicates of the intervals, grk. The forecast of a vote is
the truth of the simulated arena with normal noise on every coefficient. Seconds are of computing (user), not wall time.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.tables import table
from p2l.common.cli import parser, run
from p2l.simulation.arena import simulate
from p2l.simulation.batches import vote_batch
from p2l.simulation.config import SimulationConfig

TRAINING = 88_000
NOISE = 0.3


def size(text: str) -> tuple[int, int]:
    """Return votes and models of a text such as 4000x49."""
    if not re.fullmatch(r"\d+x\d+", text):
        raise argparse.ArgumentTypeError(f"{text!r} is not VOTESxMODELS, such as 4000x49")
    votes, models = map(int, text.split("x"))
    return votes, models


def build_parser() -> argparse.ArgumentParser:
    """Return the flags of the benchmark."""
    flags = parser("python -m benchmarks.auto_evals", "Time the evaluation of forecasts of votes.")
    flags.add_argument("--sizes", nargs="+", type=size, metavar="VOTESxMODELS", default=[(4000, 49), (20_000, 130)])
    flags.add_argument("--training", type=int, default=TRAINING, help="votes of the marginal leaderboard")
    return flags


def main(argv: Sequence[str] | None = None) -> None:
    """Print the table."""
    flags = build_parser().parse_args(argv)
    rows = []
    for votes, models in flags.sizes:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            topics = write(folder, votes, models, flags.training)
            for categories in (["all"], ["all", *(f"topic={topic}" for topic in topics)]):
                seconds, gigabytes = evaluate(folder, categories)
                cells = [f"{votes:,}", str(models), str(len(categories)), f"{seconds:.1f}", f"{gigabytes:.2f} GB"]
                print("  ".join(cells), file=sys.stderr, flush=True)
                rows.append(cells)
    print(table(["votes", "models", "categories", "seconds", "memory"], rows))


def write(folder: Path, votes: int, models: int, training: int) -> list[str]:
    """Write training votes, and held-out votes with forecasts; return five topics."""
    arena = simulate(SimulationConfig(votes=training, validation_votes=votes, models=models, seed=0))
    chunks = [vote_batch(arena, chunk) for chunk in arena.chunks()]
    pq.write_table(pa.Table.from_batches(chunks), folder / "train.parquet")
    rng = np.random.default_rng(0)
    parts = []
    for chunk in arena.chunks(validation=True):
        coefs = chunk.truth.coefs + NOISE * rng.standard_normal(chunk.truth.coefs.shape)
        part = pa.Table.from_batches([vote_batch(arena, chunk)])
        part = part.append_column("coefs", pa.array(list(coefs.astype(np.float32))))
        eta = np.broadcast_to(np.asarray(chunk.truth.eta, dtype=np.float32), len(part))
        parts.append(part.append_column("eta", pa.array(eta)))
    forecasts = pa.concat_tables(parts)
    pq.write_table(forecasts, folder / "forecasts.parquet")
    (folder / "models.json").write_text(json.dumps(list(arena.model_list)), encoding="utf-8")
    return sorted(set(forecasts["topic"].to_pylist()))[:5]


def evaluate(folder: Path, categories: list[str]) -> tuple[float, float]:
    """Run the command; return its seconds of computing and the most memory, in GB."""
    files = {"model_list_path": "models.json", "checkpoint_path": "forecasts.parquet", "train_path": "train.parquet"}
    words = [word for flag, file in files.items() for word in (f"--{flag}", file)]
    words += ["--loss_type", "grk", "--output_dir", "metrics", "--quiet", "--categories", *categories]
    line = [sys.executable, "-m", "p2l.cli", "auto-evals", *words]
    process = subprocess.Popen(line, cwd=folder, stdout=sys.stderr, env={**os.environ, "OMP_NUM_THREADS": "1"})
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"p2l auto-evals ended with {process.returncode}")
    return usage.ru_utime, usage.ru_maxrss / 1e6


if __name__ == "__main__":
    run(main)
