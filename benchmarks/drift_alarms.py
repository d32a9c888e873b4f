"""Does `p2l drift --follow` raise false alarms, and does it find a model that became worse at one topic?

    python -m benchmarks.drift_alarms [--runs 100] [--looks 3] [--window 5000]

Ten models of an arena with five topics: strengths N(0, 0.5), and N(0, 0.4) more by topic, as far apart as those of
arena140k. A vote draws topic and pair at random; chances are those of Bradley-Terry with a tenth of ties. A window of
5,000 votes has 200 of each model on each topic. Four windows stand before the first look.

controls  nothing changes. Printed: how many runs raise an alarm at any of their looks, with the interval of that share
          (Wilson, 95 %), and changed cells over all cells looked at
planted   in the newest window one model is worse at one topic. Printed: in how many runs that look finds the cell, at
          the first look and the last, and how many cells of other topics it calls changed

Both through the command's own loop over a file of JSON lines, as it is and with `--comparisons` of as many looks.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.tables import share, table
from p2l.common.cli import parser, positive, run
from p2l.insight.drift_follow import FEWEST_WINDOWS, DriftSettings, look_at
from p2l.leaderboard.board import POINTS_PER_LOGIT
from p2l.online_training.live_votes import LiveVotes, Waiting

MODELS, TOPICS, TIES = 10, 5, 0.1
FALLS = (150.0,)


def _write(file: Any, coefs: Any, count: int, rng: np.random.Generator, start: int) -> None:
    topic = rng.integers(TOPICS, size=count)
    first = rng.integers(MODELS, size=count)
    second = (first + rng.integers(1, MODELS, size=count)) % MODELS
    chance = 1.0 / (1.0 + np.exp(coefs[topic, second] - coefs[topic, first]))
    won = np.where(rng.random(count) < chance, "model_a", "model_b")
    winner = np.where(rng.random(count) < TIES, "tie", won)
    for row in range(count):
        vote = {"prompt": f"question {start + row}", "topic": f"topic {topic[row]}", "winner": str(winner[row])}
        names = {"model_a": f"model {first[row]:02}", "model_b": f"model {second[row]:02}"}
        file.write(json.dumps(vote | names) + "\n")


def _drifts(folder: Path, seed: int, looks: int, window: int, fall: float, comparisons: int | None = None) -> list[Any]:
    """Return what each look says of a run in whose last window `model 03` falls by so many points on `topic 2`."""
    rng = np.random.default_rng([seed, looks])
    coefs = 0.5 * rng.normal(size=MODELS) + 0.4 * rng.normal(size=(TOPICS, MODELS))
    path = folder / f"votes-{seed}.jsonl"
    with path.open("w", encoding="utf-8") as file:
        steady = (FEWEST_WINDOWS + looks - 1) * window
        _write(file, coefs, steady, rng, 0)
        coefs[2, 3] -= fall / POINTS_PER_LOGIT
        _write(file, coefs, window, rng, steady)
    votes = LiveVotes(path, waiting=Waiting(0.0, 0.0))
    drifts = list(look_at(votes, DriftSettings(window=window, by=["topic"], comparisons=comparisons)))
    votes.close()
    path.unlink()
    return drifts


def controls(folder: Path, runs: int, looks: int, window: int) -> str:
    """Return the table of runs in which nothing changes."""
    rows = []
    for way, comparisons in _ways(looks).items():
        alarms, cells, changed = 0, 0, 0
        for seed in range(runs):
            drifts = _drifts(folder, seed, looks, window, 0.0, comparisons)
            alarms += any(drift.found for drift in drifts)
            cells += sum(len(drift.cells) for drift in drifts)
            changed += sum(len(drift.found) for drift in drifts)
        low, high = _wilson(alarms, runs)
        share_of_runs = f"{alarms} of {runs} [{share(low, 1)}, {share(high, 1)}]"
        rows.append([way, "at most 5 % of runs", share_of_runs, f"{changed} of {cells:,}"])
    return table(["comparisons share the rate", "asked for", "runs with an alarm [95 %]", "cells called changed"], rows)


def _ways(looks: int) -> dict[str, int | None]:
    return {"for ever": None, f"evenly (`--comparisons {looks}`)": looks}


def _wilson(count: int, total: int) -> tuple[float, float]:
    share, z = count / total, 1.96
    middle = (share + z**2 / (2 * total)) / (1 + z**2 / total)
    width = z * np.sqrt(share * (1 - share) / total + z**2 / (4 * total**2)) / (1 + z**2 / total)
    return max(0.0, float(middle - width)), min(1.0, float(middle + width))


def planted(folder: Path, runs: int, looks: int, window: int, fall: float, comparisons: int | None) -> list[str]:
    """Return the row of a planted fall."""
    found = others = 0
    for seed in range(runs):
        drifts = _drifts(folder, 1000 + seed, looks, window, fall, comparisons)
        newest = drifts[-1] if drifts else None
        for cell in (
            newest.found
            if newest is not None and newest.after.endswith(f" {(FEWEST_WINDOWS + looks) * window:,}")
            else ()
        ):
            is_planted = (cell.category, cell.model, cell.verdict) == ("topic 2", "model 03", "fell")
            found += is_planted
            others += cell.by == "topic" and cell.category != "topic 2"
    low, high = _wilson(found, runs)
    before = f"{FEWEST_WINDOWS + looks - 1}"
    return [f"{fall:.0f}", str(looks), before, f"{found} of {runs} [{share(low)}, {share(high)}]", str(others)]


def build_parser() -> argparse.ArgumentParser:
    """Return the flags of the benchmark."""
    flags = parser("python -m benchmarks.drift_alarms", "Count false alarms of p2l drift --follow, and planted falls.")
    flags.add_argument("--runs", type=positive, default=100, help="of each kind")
    flags.add_argument("--looks", type=positive, default=3, help="comparisons of a run")
    flags.add_argument("--window", type=positive, default=5000, help="votes between two looks")
    return flags


def main(argv: Sequence[str] | None = None) -> None:
    """Print both tables."""
    flags = build_parser().parse_args(argv)
    sizes = flags.runs, flags.looks, flags.window
    with tempfile.TemporaryDirectory() as name:
        print(controls(Path(name), *sizes), flush=True)
        rows = [
            [way, *planted(Path(name), flags.runs, looks, flags.window, fall, comparisons)]
            for fall in FALLS
            for way, comparisons in _ways(flags.looks).items()
            for looks in (1, flags.looks)
        ]
    header = [
        "comparisons share the rate",
        "fall, points",
        "comparison",
        "windows before it",
        "found [95 %]",
        "cells of other topics called changed",
    ]
    print(f"\nplanted in the newest window ({flags.window * 2 // (MODELS * TOPICS)} votes in the cell):\n")
    print(table(header, rows))


if __name__ == "__main__":
    run(main)
