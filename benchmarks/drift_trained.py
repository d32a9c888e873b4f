"""Does `p2l drift` between two models call changed what votes of the same truth did not change?

    python -m benchmarks.drift_trained [--pairs 20] [--votes 2000] [--folder DIR]

A simulated arena whose truth stands still: ten models, six topics. Its votes are dealt at random into two halves, and a
reader without an encoder is trained on each in one line (`p2l train --votes`). Both models are compared by `p2l drift`
on 1,500 held-out prompts, for all of them and by topic, as it stands and without what the posteriors say of the noise
of training (intervals over prompts alone). Every cell that is called changed is a false alarm. The true changes are
zero, so that the intervals' coverage can be counted too.

planted  the second half is of an arena in which one model has lost 150 points on one topic. Printed: in how many pairs
         that cell is found

All draws are seeded. Models that are trained in the folder are not trained again.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.tables import share, table
from p2l.common.cli import parser, positive, run
from p2l.insight.drift import Changes, Drift, drift_of_models, judge
from p2l.leaderboard.board import POINTS_PER_LOGIT
from p2l.likelihood import get
from p2l.model.checkpoint import seal
from p2l.simulation import SimulationConfig, simulate
from p2l.simulation.batches import vote_batch
from p2l.train import main as train
from p2l.votes import WINNERS

MODELS, TOPICS, ASKED, FALL = 10, 6, 1500, 150.0
POSTERIOR = "posterior.safetensors"
LEVEL, FDR = 0.95, 0.05


class Pair(NamedTuple):
    """Cells of a pair of models, judged with the noise of training and without, and whether the fall was found."""

    whole: Drift
    bare: Drift
    is_found: bool


def pair_of(place: Path, seed: int, votes: int, *, falls: bool) -> Pair:
    """Train two models on halves of an arena's votes, and compare them."""
    kept = place / "planted.jsonl" if falls else place / "second.jsonl"
    prompts = place / "prompts.jsonl"
    fallen = _write(place, seed, votes) if not (place / "planted.jsonl").is_file() else _fallen(place)
    folders = [_trained(path, path.with_suffix("")) for path in (place / "first.jsonl", kept)]
    bare = [_without_posterior(folder) for folder in folders]
    drifts = [_judged(drift_of_models(*map(str, pair), str(prompts), by=["topic"])) for pair in (folders, bare)]
    found = any((cell.model, cell.category, cell.verdict) == (*fallen, "fell") for cell in drifts[0].found)
    return Pair(drifts[0], drifts[1], found)


def _judged(changes: Changes) -> Drift:
    cells = judge(changes.measured, level=LEVEL, fdr=FDR)
    return Drift("first", "second", changes.likelihood, LEVEL, FDR, cells, changes.notes)


def _write(place: Path, seed: int, votes: int) -> tuple[str, str]:
    """Write both halves, the second one also with a planted fall, and the prompts; return who falls where."""
    import pandas as pd

    place.mkdir(parents=True, exist_ok=True)
    still = {"drift": 0.0, "fashion": 0.0, "turnover": 0.0, "improvement": 0.0}
    config = SimulationConfig(
        votes=2 * votes, validation_votes=ASKED, models=MODELS, topics=TOPICS, languages=1, seed=seed + 1, **still
    )
    arena = simulate(config)
    parts = []
    for is_held_out in (False, True):
        frames = []
        for chunk in arena.chunks(validation=is_held_out):
            frame = vote_batch(arena, chunk).to_pandas()[["prompt", "model_a", "model_b", "winner", "topic"]]
            rows, coefs = np.arange(len(frame)), chunk.truth.coefs
            true = {"coef_a": coefs[rows, chunk.model_a], "coef_b": coefs[rows, chunk.model_b]}
            frames.append(frame.assign(**true, eta=chunk.truth.eta))
        parts.append(pd.concat(frames, ignore_index=True))
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(parts[0]))
    halves = parts[0].iloc[order[:votes]], parts[0].iloc[order[votes:]]
    names, topics = sorted({*halves[0].model_a}), sorted({*halves[0].topic})
    fallen = names[int(rng.integers(len(names)))], topics[int(rng.integers(len(topics)))]
    columns = ["prompt", "model_a", "model_b", "winner"]
    for name, half in zip(("first", "second"), halves, strict=True):
        half[columns].to_json(place / f"{name}.jsonl", orient="records", lines=True)
    parts[1][["prompt", "topic"]].to_json(place / "prompts.jsonl", orient="records", lines=True)
    (place / "fallen.txt").write_text("\n".join(fallen), encoding="utf-8")
    planted = halves[1].assign(winner=_drawn(halves[1], *fallen, rng))
    planted[columns].to_json(place / "planted.jsonl", orient="records", lines=True)
    return fallen


def _fallen(place: Path) -> tuple[str, str]:
    model, topic = (place / "fallen.txt").read_text(encoding="utf-8").splitlines()
    return model, topic


def _drawn(half: Any, model: str, topic: str, rng: np.random.Generator) -> Any:
    """Draw the winners of a half in which the model has lost `FALL` points on the topic."""
    lost = np.where(half.topic == topic, FALL / POINTS_PER_LOGIT, 0.0)
    sides = [half[f"coef_{side}"] - lost * (half[f"model_{side}"] == model) for side in ("a", "b")]
    probs = get("grk").probs(*(side.to_numpy(float) for side in sides), half.eta.to_numpy(float))
    draws = (rng.random(len(half))[:, None] > probs.cumsum(axis=1)[:, :-1]).sum(axis=1)
    return np.asarray(WINNERS)[draws]


def _trained(votes: Path, folder: Path) -> Path:
    if not (folder / "model_list.json").is_file():
        shutil.rmtree(folder, ignore_errors=True)
        train(["--votes", str(votes), "--output", str(folder), "--encoder", "none", "--quiet"])
    return folder


def _without_posterior(folder: Path) -> Path:
    """Return a copy of a model that says nothing of what its votes leave open."""
    bare = folder.with_name(f"{folder.name}-bare")
    shutil.rmtree(bare, ignore_errors=True)
    shutil.copytree(folder, bare, ignore=shutil.ignore_patterns(POSTERIOR, "checkpoint-*"))
    seal(bare)
    return bare


def wilson(count: int, total: int) -> str:
    """Return count of total with the interval of the share (95 %)."""
    part, z = count / total, 1.96
    middle = (part + z**2 / (2 * total)) / (1 + z**2 / total)
    width = z * np.sqrt(part * (1 - part) / total + z**2 / (4 * total**2)) / (1 + z**2 / total)
    low, high = max(0.0, middle - width), min(1.0, middle + width)
    return f"{count} of {total} [{share(low)}, {share(high)}]"


def _row(name: str, drifts: Sequence[Drift]) -> list[str]:
    cells = [cell for drift in drifts for cell in drift.cells]
    alarms = sum(bool(drift.found) for drift in drifts)
    changed = sum(len(drift.found) for drift in drifts)
    covered = sum(cell.lower <= 0 <= cell.upper for cell in cells)
    return [name, wilson(alarms, len(drifts)), f"{changed} of {len(cells):,}", share(covered / len(cells), 1)]


def build_parser() -> argparse.ArgumentParser:
    """Return the flags of the benchmark."""
    flags = parser("python -m benchmarks.drift_trained", "Count false alarms of p2l drift between trained models.")
    flags.add_argument("--pairs", type=positive, default=20)
    flags.add_argument("--votes", type=positive, default=2000, help="of each half")
    flags.add_argument("--folder", type=Path, help="keep models here, and go on with those that are trained")
    return flags


def main(argv: Sequence[str] | None = None) -> None:
    """Print the tables."""
    args = build_parser().parse_args(argv)
    with tempfile.TemporaryDirectory() as name:
        folder = args.folder or Path(name)
        places = [(folder / str(seed), seed, args.votes) for seed in range(args.pairs)]
        steady = [pair_of(*place, falls=False) for place in places]
        planted = [pair_of(*place, falls=True) for place in places]
    header = ["intervals hold", "pairs with a false alarm [95 %]", "cells called changed", "intervals that hold zero"]
    rows = [
        _row("prompts and training (as they are)", [one.whole for one in steady]),
        _row("prompts alone", [one.bare for one in steady]),
    ]
    print(table(header, rows))
    print(f"\nplanted, {FALL:.0f} points on one of {TOPICS} topics:\n")
    print(table(["found [95 %]"], [[wilson(sum(one.is_found for one in planted), len(planted))]]))


if __name__ == "__main__":
    run(main)
