"""Does `p2l drift` between two models find what was planted, and nothing where nothing changed?

    python -m benchmarks.drift_trained [--runs 10] [--still-runs 100] [--folder DIR]

The prompts are those of one simulated arena, read once by the default encoder of a reader that `p2l train --votes`
trained; sixteen models and their truth are drawn anew for each run. Each side has 8,000 votes on prompts of its own,
kept as training keeps them: training changes nothing else that is compared. Prompts asked about have a topic each.

still    nothing changes: runs in which any cell is called changed are false alarms
fall     from one side to the other one of the better models loses a quarter of its votes that it had won (from 60 to
         35 %, say), or of its wins, on all prompts or on one topic: runs in which its cell there is found, its mean
         change, and that of two leaderboards of the labelled votes (`--votes`)

Asked about are prompts that no vote is on. The models were trained either on votes with a column of topics, or without,
so that topics are read off the votes' places. Which of two topics a prompt is about is often told by the order of its
words alone, which places do not show: such votes say less of a topic. All draws are seeded. What is in the folder is
not computed again.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.tables import share, table
from p2l.common.cli import parser, positive, run
from p2l.inference import P2L
from p2l.insight.drift import Measured, judge
from p2l.insight.drift_models import ChangesOfVotes
from p2l.insight.drift_votes import between_times, drift_of_votes
from p2l.insight.kept_boards import VotesOnPrompts
from p2l.likelihood import get
from p2l.model.kept_votes import KeptVotes
from p2l.model.reader import keep_states
from p2l.simulation import SimulationConfig, simulate
from p2l.simulation.arena import Arena
from p2l.simulation.batches import vote_batch
from p2l.train import main as train
from p2l.votes import WINNERS

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
MODELS, TOPICS, PROMPTS, ASKED, VOTES = 16, 6, 12_000, 1000, 8000
LOST, LEVEL, FDR, LEAST_PROMPTS = 0.25, 0.95, 0.05, 20
POOL_SEED = 60
STILL = "still"
WITH_TOPICS, WITHOUT_TOPICS = "votes with topics", "votes without topics"
FALLS = ("votes, everywhere", "wins, everywhere", "votes, on one topic", "wins, on one topic")
"""What the model loses a quarter of, and where."""


class Pool:
    """The prompts of one arena: inputs of the reader and topics, of those with votes and of those asked about."""

    def __init__(self, folder: Path) -> None:
        import pandas as pd

        self.arena = simulate(_config(POOL_SEED))
        frames = [
            pd.concat(vote_batch(self.arena, chunk).to_pandas() for chunk in self.arena.chunks(validation=is_asked))
            for is_asked in (False, True)
        ]
        if not (folder / "reader" / "model_list.json").is_file():
            columns = ["prompt", "model_a", "model_b", "winner"]
            frames[0][columns].to_json(folder / "votes.jsonl", orient="records", lines=True)
            train(["--votes", str(folder / "votes.jsonl"), "--output", str(folder / "reader"), "--quiet"])
        model = P2L.from_pretrained(folder / "reader", device="cpu")
        keep_states(model.model.model)
        self.inputs, self.asked = (model.inputs([list(turns) for turns in frame["prompt"]]) for frame in frames)
        self.hashes = np.arange(PROMPTS, PROMPTS + ASKED).astype(np.uint64)
        self.topic, self.asked_topic = (frame["topic"].astype(str).to_numpy() for frame in frames)


def _config(seed: int) -> SimulationConfig:
    return SimulationConfig(votes=PROMPTS, validation_votes=ASKED, models=MODELS, topics=TOPICS, seed=seed)


class Side:
    """The votes of one side: their prompts (N,) in the pool, labels (N, 3)."""

    def __init__(self, arena: Arena, rows: Ints, rng: np.random.Generator) -> None:
        self.prompt = np.sort(rng.choice(rows, VOTES))
        truth, votes = arena.truth_of(self.prompt), np.arange(VOTES)
        pairs = np.argsort(rng.random((VOTES, MODELS)), axis=1)[:, :2]
        probs = get("grk").probs(truth.coefs[votes, pairs[:, 0]], truth.coefs[votes, pairs[:, 1]], truth.eta)
        outcome = (rng.random((VOTES, 1)) > probs.cumsum(axis=1)[:, :-1]).sum(axis=1)
        ordered = np.where((outcome == 1)[:, None], pairs[:, ::-1], pairs)
        self.labels = np.column_stack([ordered, np.array([0, 0, 1, 2])[outcome]])

    def lose(self, model: int, among: npt.NDArray[np.bool_], rng: np.random.Generator, *, of_wins: bool) -> None:
        """Turn wins of a model among some votes into losses: a quarter of them, or of its votes."""
        wins = np.flatnonzero((self.labels[:, 0] == model) & (self.labels[:, 2] == 0) & among)
        votes = (self.labels[:, :2] == model).any(axis=1) & among
        count = round(LOST * (len(wins) if of_wins else votes.sum()))
        lost = rng.permutation(wins)[:count]
        self.labels[lost, :2] = self.labels[lost, 1::-1]

    def kept(self, pool: Pool, names: Sequence[str], *, with_topics: bool) -> KeptVotes:
        """Return the votes as a model's folder keeps them; the hash of a prompt is its number in the pool."""
        used, prompt = np.unique(self.prompt, return_inverse=True)
        columns = {"topic": pool.topic[used].tolist()} if with_topics else {}
        return KeptVotes.of(names, used, pool.inputs[used], prompt, self.labels, np.ones(VOTES), VOTES, columns)


def measure(pool: Pool, seed: int, what: str) -> dict[str, Any]:
    """Return for each way to ask: whether the planted cell is found, its change, and the cells called changed."""
    arena = replace(pool.arena, models=simulate(_config(seed)).models)
    rng = np.random.default_rng([seed, [STILL, *FALLS].index(what)])
    rows = rng.permutation(PROMPTS)
    sides = [Side(arena, half, rng) for half in np.split(rows, 2)]
    wins = np.bincount(sides[0].labels[sides[0].labels[:, 2] == 0, 0], minlength=MODELS)
    model, topic = int(rng.choice(np.argsort(-wins)[: MODELS // 4])), str(rng.choice(np.unique(pool.topic)))
    is_local = what.endswith("topic")
    if what != STILL:
        here = pool.topic[sides[1].prompt] == topic
        sides[1].lose(model, here if is_local else np.ones(VOTES, dtype=bool), rng, of_wins=what.startswith("wins"))
    category = topic if is_local else "all"
    planted = arena.model_list[model], category
    result = {}
    for way in (WITH_TOPICS, WITHOUT_TOPICS):
        kept = [side.kept(pool, arena.model_list, with_topics=way == WITH_TOPICS) for side in sides]
        asked = [VotesOnPrompts(votes, get("grk"), pool.hashes, votes.place(pool.asked)) for votes in kept]
        changes = ChangesOfVotes(*asked, arena.model_list, LEAST_PROMPTS)
        cells = changes.cells("", "all", np.arange(ASKED))
        for name in np.unique(pool.asked_topic):
            cells += changes.cells("topic", str(name), np.flatnonzero(pool.asked_topic == name))
        result[way] = _judged(cells, planted)
    if what != STILL:
        changes_of_labels = drift_of_votes(_frame(pool, arena, sides), between_times(1.0, 1.0), by=["topic"])
        result["two leaderboards"] = _judged(changes_of_labels.measured, planted)
    return result


def _frame(pool: Pool, arena: Arena, sides: Sequence[Side]) -> Any:
    import pandas as pd

    names = np.array(arena.model_list)
    parts = [
        pd.DataFrame(
            {
                "prompt": [f"{number}" for number in side.prompt],
                "model_a": names[side.labels[:, 0]],
                "model_b": names[side.labels[:, 1]],
                "winner": np.array([WINNERS[0], *WINNERS[2:]])[side.labels[:, 2]],
                "tstamp": float(place),
                "topic": pool.topic[side.prompt],
            }
        )
        for place, side in enumerate(sides)
    ]
    return pd.concat(parts, ignore_index=True)


def _judged(cells: Sequence[Measured], planted: tuple[str, str]) -> dict[str, Any]:
    judged = judge(cells, level=LEVEL, fdr=FDR)
    cell = next(cell for cell in judged if (cell.model, cell.category) == planted)
    return {
        "is_found": cell.verdict == "fell",
        "change": cell.change,
        "half": (cell.upper - cell.lower) / 2,
        "changed": sum(bool(cell.verdict) for cell in judged),
        "cells": len(judged),
        "hold_zero": sum(cell.lower <= 0 <= cell.upper for cell in judged),
    }


def wilson(count: int, total: int) -> str:
    """Return count of total with the interval of the share (95 %)."""
    part, z = count / total, 1.96
    middle = (part + z**2 / (2 * total)) / (1 + z**2 / total)
    width = z * np.sqrt(part * (1 - part) / total + z**2 / (4 * total**2)) / (1 + z**2 / total)
    low, high = max(0.0, middle - width), min(1.0, middle + width)
    return f"{count} of {total} [{share(low)}, {share(high)}]"


def results(pool: Pool, folder: Path, what: str, runs: int) -> list[dict[str, Any]]:
    """Return the result of each run, from the folder as far as it is there."""
    every = []
    for number in range(runs):
        file = folder / f"{what.replace(', ', '-').replace(' ', '-')}-{number}.json"
        if not file.is_file():
            file.write_text(json.dumps(measure(pool, 1000 + number, what)), encoding="utf-8")
        every.append(json.loads(file.read_text(encoding="utf-8")))
    return every


def build_parser() -> argparse.ArgumentParser:
    """Return the flags of the benchmark."""
    flags = parser("python -m benchmarks.drift_trained", "Count what p2l drift between models finds, and false alarms.")
    flags.add_argument("--runs", type=positive, default=10, help="of each fall")
    flags.add_argument("--still-runs", type=positive, default=100)
    flags.add_argument("--folder", type=Path, help="keep the reader and results here, and go on with what is there")
    return flags


def main(argv: Sequence[str] | None = None) -> None:
    """Print the tables."""
    args = build_parser().parse_args(argv)
    with tempfile.TemporaryDirectory() as name:
        folder = args.folder or Path(name)
        folder.mkdir(parents=True, exist_ok=True)
        pool = Pool(folder)
        falls = {what: results(pool, folder, what, args.runs) for what in FALLS}
        still = results(pool, folder, STILL, args.still_runs)
    rows = []
    for what, runs in falls.items():
        for way in runs[0]:
            cells = [one[way] for one in runs]
            changes, halves = (np.mean([cell[name] for cell in cells]) for name in ("change", "half"))
            found = sum(cell["is_found"] for cell in cells)
            rows.append([what, way, wilson(found, len(cells)), f"{changes:.0f} ± {halves:.0f}"])
    print(table(["a quarter of its", "trained on", "runs that find it [95 %]", "mean change, half its interval"], rows))
    alarms = []
    for way in (WITH_TOPICS, WITHOUT_TOPICS):
        cells = [one[way] for one in still]
        looked_at, changed, held = (sum(cell[name] for cell in cells) for name in ("cells", "changed", "hold_zero"))
        false = wilson(sum(bool(cell["changed"]) for cell in cells), len(cells))
        alarms.append([way, false, f"{changed} of {looked_at:,}", share(held / looked_at, 1)])
    header = ["trained on", "runs with a false alarm [95 %]", "cells called changed", "intervals that hold zero"]
    print(f"\n{table(header, alarms)}")


if __name__ == "__main__":
    run(main)
