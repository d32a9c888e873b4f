"""Does `p2l explain` tell the size of a strength, with an interval that holds it?

    python -m benchmarks.explain_planted [--arenas 4] [--folder DIR]

The prompts are those of one simulated arena; models, their truth and 12,000 votes are drawn anew for each arena, and
one model loses 248 points on all prompts that mention one topic. `p2l train --votes` learns from the votes, and `p2l
explain` finds clusters of 1,000 other prompts. The truth of every cell is known: the mean of the true coefficients over
the cluster's measured prompts less that over all measured ones.

planted   the cell of that model in the cluster with the largest share of the topic: its truth, and what is said of it
          from the votes that the model keeps, and from its predictions alone
hold      share of the 95 % intervals of all cells that hold the truth
slope     of what is said on the truth, over all cells: 1 where sizes are right on average
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.tables import share, table
from benchmarks.uncertainty import held_out, train, training_votes
from p2l.common.cli import parser, positive, run
from p2l.inference import P2L
from p2l.insight import Explanation, explain
from p2l.insight.answers import ask
from p2l.leaderboard.board import POINTS_PER_LOGIT
from p2l.likelihood import get
from p2l.simulation import SimulationConfig, simulate
from p2l.votes import WINNERS
from p2l.votes.schema import hash_turns

Floats = npt.NDArray[np.float64]
FALL, VOTES, ASKED, MODELS, TOPICS, POOL_SEED = 248.0, 12_000, 1000, 16, 6, 60


class Cells(NamedTuple):
    """Changes of every cell in points: the truth, what is said, the interval; and the place of the planted cell."""

    true: Floats
    said: Floats
    lower: Floats
    upper: Floats
    planted: int

    @property
    def holds(self) -> npt.NDArray[np.bool_]:
        """Which intervals hold the truth."""
        return (self.lower <= self.true) & (self.true <= self.upper)

    def planted_text(self) -> str:
        """Return the planted cell's change with its interval."""
        said, lower, upper = (part[self.planted] for part in (self.said, self.lower, self.upper))
        return f"{said:+.0f} [{lower:+.0f}, {upper:+.0f}]"


def measure(seed: int, folder: Path) -> dict[str, Cells]:
    """Return the cells of one arena, from the kept votes and from predictions alone."""
    config = SimulationConfig(votes=VOTES, validation_votes=ASKED, models=MODELS, topics=TOPICS, seed=seed)
    arena = replace(simulate(replace(config, seed=POOL_SEED)), models=simulate(config).models)
    rng = np.random.default_rng(seed)
    names, topic = arena.model_list, str(rng.choice(arena.topics))
    fallen = int(rng.integers(MODELS))
    place = folder / str(seed)
    votes = training_votes(arena, 1, seed)
    mentions = np.array([topic in text.split("+") for text in votes["mentioned"].to_pylist()])
    votes = _with_fall(votes, arena.truth_of(np.arange(VOTES)), names, fallen, mentions, rng)
    model = train(votes, place, "reader", None)
    prompts = held_out(arena)
    pq.write_table(pa.table({"prompt": prompts.turns}), place / "asked.parquet")
    answers = ask(str(place / "run"), str(place / "asked.parquet"))
    asked_mentions = np.array([topic in text.split("+") for text in prompts.mentioned])
    truth = prompts.coefs.copy()
    truth[asked_mentions, fallen] -= FALL / POINTS_PER_LOGIT
    truth = truth[:, [names.index(name) for name in model.model_list]]
    rows = {hash_turns(turns): row for row, turns in enumerate(prompts.turns)}
    every = {}
    for way, kept in (("votes", answers.votes), ("predictions", None)):
        explanation = explain(
            answers.coefs,
            answers.models,
            likelihood=answers.likelihood,
            eta=answers.eta,
            gamma=answers.gamma,
            texts=answers.texts,
            votes=kept,
        )
        every[way] = _cells(explanation, model, truth, rows, asked_mentions, names[fallen])
    return every


def _with_fall(
    votes: pa.Table,
    truth: object,
    names: Sequence[str],
    fallen: int,
    here: npt.NDArray[np.bool_],
    rng: np.random.Generator,
) -> pa.Table:
    """Return the votes with winners drawn anew, the fallen model's coefficient lower where `here`."""
    at = np.arange(VOTES)
    coefs = truth.coefs - 0.0  # type: ignore[attr-defined]
    coefs[here, fallen] -= FALL / POINTS_PER_LOGIT
    pairs = [np.array([names.index(name) for name in votes[side].to_pylist()]) for side in ("model_a", "model_b")]
    probs = get("grk").probs(coefs[at, pairs[0]], coefs[at, pairs[1]], truth.eta)  # type: ignore[attr-defined]
    winner = (rng.random((VOTES, 1)) > probs.cumsum(axis=1)[:, :-1]).sum(axis=1)
    drawn = pa.array(np.array(WINNERS, dtype=object)[winner])
    return votes.set_column(votes.column_names.index("winner"), "winner", drawn)


def _cells(
    explanation: Explanation,
    model: P2L,
    truth: Floats,
    rows: dict[int, int],
    mentions: npt.NDArray[np.bool_],
    fallen: str,
) -> Cells:
    centred = truth - truth.mean(axis=1, keepdims=True)
    measured = {rows[key]: cluster for key, cluster in explanation.known.items()}
    used = np.array(sorted(measured))
    cluster = np.array([measured[row] for row in used])
    whole = centred[used].mean(axis=0)
    true, shares = list[float](), list[float]()
    for cell in explanation.strengths:
        inside = used[cluster == explanation.names.index(cell.cluster)]
        column = model.model_list.index(cell.model)
        true.append(POINTS_PER_LOGIT * float(centred[inside, column].mean() - whole[column]))
        shares.append(float(mentions[inside].mean()) if cell.model == fallen else -1.0)
    parts = ([getattr(cell, name) for cell in explanation.strengths] for name in ("change", "lower", "upper"))
    return Cells(np.array(true), *(np.array(part) for part in parts), planted=int(np.argmax(shares)))


def build_parser() -> argparse.ArgumentParser:
    """Return the flags of the benchmark."""
    flags = parser("python -m benchmarks.explain_planted", "Measure what p2l explain says of planted strengths.")
    flags.add_argument("--arenas", type=positive, default=4)
    flags.add_argument("--first-seed", type=int, default=300)
    flags.add_argument("--folder", type=Path, help="keep models here, and go on with those that are trained")
    return flags


def main(argv: Sequence[str] | None = None) -> None:
    """Print a row for each arena, and what holds over all cells."""
    args = build_parser().parse_args(argv)
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.folder or Path(temporary)
        seeds = range(args.first_seed, args.first_seed + args.arenas)
        arenas = [measure(seed, folder) for seed in seeds]
    rows = [
        [str(seed), f"{one['votes'].true[one['votes'].planted]:+.0f}", *(one[way].planted_text() for way in one)]
        for seed, one in zip(seeds, arenas, strict=True)
    ]
    print(table(["arena", "planted: truth, points", "by the kept votes", "by predictions"], rows))
    summary = []
    for way in ("votes", "predictions"):
        holds = np.concatenate([one[way].holds for one in arenas])
        true, said = (np.concatenate([getattr(one[way], name) for one in arenas]) for name in ("true", "said"))
        planted = sum(bool(one[way].holds[one[way].planted]) for one in arenas)
        slope = f"{float(true @ said / (true @ true)):.2f}"
        summary.append([way, f"{planted} of {len(arenas)}", f"{len(holds):,}", share(float(holds.mean())), slope])
    print(f"\n{table(['from', 'planted cells held', 'cells', '95 % intervals hold', 'slope'], summary)}")


if __name__ == "__main__":
    run(main)
