"""Whether intervals hold and strange prompts do no harm: simulated arenas, in distribution and with a topic left out.

    python -m benchmarks.uncertainty [--arenas 6] [--votes 12000] [--votes-per-prompt 1] [--encoder none] [--size tiny]
    python -m benchmarks.uncertainty --pool 60 --within [--arenas 16] [--folder DIR]

For each arena, `p2l train --votes` trains a model of that size (default: a reader; tfidf: a bag of words) on all votes,
and another on those whose prompts do not mention one topic. On held-out prompts the true log-odds of every pair are
known. Printed are

    coverage    share of the pairs' 90 % intervals that hold the true log-odds; bar: 85 to 95 %
    width       mean width of these intervals
    error       root mean square error of the predicted log-odds, and of one leaderboard's
    skill       share of the gap between one leaderboard and the truth that the model closes, in expected loss, with a
                95 % interval over prompts; bar on the left-out topic: not below zero by the interval
    unshrunk    the skill without shrinking by distance

With `--pool` all arenas ask the prompts of the arena of that seed, which the default encoder then reads once; models,
their truth and votes are drawn anew for each. `--within` leaves the left-out topics out. Models in the folder are not
trained again.

"within" are prompts of the topics trained on, "left out" those that the left-out topic decides. A left-out topic is one
draw, and how much prompts differ is estimated once for each training: coverage varies more between arenas than prompts
tell, so that its mean has a standard error over arenas. Of more than six arenas the means are printed in place of a row
for each, which goes to standard error.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from benchmarks.tables import table
from p2l.inference import P2L
from p2l.leaderboard import Leaderboard, fit
from p2l.likelihood import get
from p2l.metrics import bootstrap_mean
from p2l.model.reader import keep_states
from p2l.simulation.arena import Arena, simulate
from p2l.simulation.batches import vote_batch
from p2l.simulation.config import SimulationConfig

Floats = npt.NDArray[np.float64]
LEVEL, REACH = 0.9, 1.6448536269514722
LOW, HIGH = 0.85, 0.95
MOST_ROWS = 6  # arenas that have a row each in what is printed
ROUNDING = 0.0005  # of a skill: a model that is one leaderboard differs from it by how far both fits converged


@dataclass(frozen=True)
class Prompts:
    """Held-out prompts and their truth."""

    turns: list[list[str]]
    coefs: Floats
    """(n, M)"""
    eta: Floats
    topic: npt.NDArray[np.object_]
    """Which decides."""
    mentioned: npt.NDArray[np.object_]


@dataclass(frozen=True)
class Figures:
    """What was measured on some prompts."""

    prompts: int
    coverage: float
    width: float
    error: float
    board_error: float
    skill: Floats
    """Estimate, lower and upper end."""
    unshrunk: Floats

    def row(self, *names: str) -> tuple[str, ...]:
        """Return the cells of a table."""

        def cell(skill: Floats) -> str:
            return f"{skill[0]:+.3f} [{skill[1]:+.3f}, {skill[2]:+.3f}]"

        numbers = (f"{self.prompts:,}", f"{self.coverage:.1%}", f"{self.width:.2f}")
        errors = (f"{self.error:.3f}", f"{self.board_error:.3f}")
        return (*names, *numbers, *errors, cell(self.skill), cell(self.unshrunk))


HEADER = (
    "arena", "trained on", "prompts", "number", "coverage", "width", "error", "one board's", "skill", "unshrunk"
)  # fmt: skip


def training_votes(arena: Arena, per_prompt: int, seed: int | None = None) -> pa.Table:
    """Return the training votes, drawn anew with a seed; `per_prompt` on each of some prompts where that is above 1."""
    batches = [vote_batch(arena, chunk) for chunk in arena.chunks()]
    table = pa.Table.from_batches(batches).select(["prompt", "model_a", "model_b", "winner", "topic", "mentioned"])
    if per_prompt == 1 and seed is None:
        return table
    rng = np.random.default_rng([arena.config.seed if seed is None else seed, per_prompt])
    rows = np.repeat(np.sort(rng.permutation(len(table))[: len(table) // per_prompt]), per_prompt)
    truth = arena.truth_of(rows)
    names = np.array(arena.model_list, dtype=object)
    pairs = np.stack([rng.permutation(len(names))[:2] for _ in rows])
    at = np.arange(len(rows))
    probs = get("grk").probs(truth.coefs[at, pairs[:, 0]], truth.coefs[at, pairs[:, 1]], truth.eta)
    winner = (rng.random((len(rows), 1)) > probs.cumsum(1)[:, :-1]).sum(1)
    outcomes = np.array(["model_a", "model_b", "tie", "tie (bothbad)"], dtype=object)
    drawn = {"model_a": names[pairs[:, 0]], "model_b": names[pairs[:, 1]], "winner": outcomes[winner]}
    table = table.take(rows)
    for name, column in drawn.items():
        table = table.set_column(table.column_names.index(name), name, pa.array(column))
    return table


def held_out(arena: Arena) -> Prompts:
    """Return the validation prompts of the arena."""
    parts = [(vote_batch(arena, chunk), chunk.truth) for chunk in arena.chunks(validation=True)]
    batch = pa.Table.from_batches([batch for batch, _ in parts])
    return Prompts(
        batch["prompt"].to_pylist(),
        np.concatenate([truth.coefs for _, truth in parts]),
        np.concatenate([truth.eta for _, truth in parts]),
        np.array(batch["topic"].to_pylist(), dtype=object),
        np.array(batch["mentioned"].to_pylist(), dtype=object),
    )


def train(votes: pa.Table, folder: Path, size: str, encoder: str | None) -> P2L:
    """Run `p2l train --votes`, unless that is done, and load what it wrote."""
    if (folder / "run" / "comparison.json").is_file():
        return P2L.from_pretrained(folder / "run", device="cpu")
    folder.mkdir(parents=True)
    pq.write_table(votes.drop_columns(["topic", "mentioned"]), folder / "votes.parquet")
    flags = ["--votes", str(folder / "votes.parquet"), "--quiet"]
    own = [] if encoder is None else ["--encoder", encoder]
    if size == "tfidf":
        call("p2l.cli", "init", "--model-type", "tfidf", *flags, "--output", str(folder / "words"))
        own = ["--size", "tiny", "--backbone", str(folder / "words")]
    elif size == "tiny":
        own = ["--size", "tiny"]
    call("p2l.train", *flags, "--output", str(folder / "run"), *own)
    return P2L.from_pretrained(folder / "run", device="cpu")


def call(module: str, *arguments: str) -> None:
    """Run a command; SystemExit with what it says if it fails."""
    done = subprocess.run([sys.executable, "-m", module, *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr)


def board_of(folder: Path, models: list[str]) -> Leaderboard:
    """Return one leaderboard of the votes that a run trained on."""
    part = folder / "run" / "train.parquet"  # of few votes all are trained on
    votes = pq.read_table(part if part.is_file() else folder / "votes.parquet")
    places = {name: number for number, name in enumerate(models)}
    winners = {name: number for number, name in enumerate(("model_a", "model_b", "tie", "tie (bothbad)"))}
    a, b = (np.array([places[name] for name in votes[side].to_pylist()]) for side in ("model_a", "model_b"))
    winner = np.array([winners[name] for name in votes["winner"].to_pylist()])
    return fit(a, b, winner, models=models, likelihood="grk", intervals=None)


def measure(
    model: P2L, board: Leaderboard, prompts: Prompts, rows: npt.NDArray[np.bool_], models: list[str]
) -> Figures:
    """Measure the model on the prompts at `rows`; models that it does not know count nowhere."""
    chosen = np.flatnonzero(rows)
    turns = [prompts.turns[row] for row in chosen]
    columns = [models.index(name) for name in model.model_list]
    truth, eta = prompts.coefs[chosen][:, columns], prompts.eta[chosen]
    keep_states(model.model.model)
    prediction = model.predict(turns)
    pairs = np.array(list(combinations(range(len(columns)), 2)))
    first, second = pairs.T
    odds = prediction.coefs[:, first] - prediction.coefs[:, second]
    true = truth[:, first] - truth[:, second]
    deviation = prediction.difference_sd(first, second)
    flat = board.coefs[columns]
    mean_board = (flat[first] - flat[second])[None, :]
    losses = expected_losses(truth, eta, pairs, (prediction.coefs, prediction.eta))
    posterior, model.model.posterior = model.model.posterior, None
    bare = model.predict(turns)
    model.model.posterior = posterior
    unshrunk = expected_losses(truth, eta, pairs, (bare.coefs, bare.eta))
    one = expected_losses(truth, eta, pairs, (np.tile(flat, (len(chosen), 1)), np.full(len(chosen), board.eta)))
    best = expected_losses(truth, eta, pairs, (truth, eta))
    return Figures(
        prompts=len(chosen),
        coverage=float((np.abs(true - odds) <= REACH * deviation).mean()),
        width=float(2 * REACH * deviation.mean()),
        error=float(np.sqrt(((true - odds) ** 2).mean())),
        board_error=float(np.sqrt(((true - mean_board) ** 2).mean())),
        skill=skill(one, losses, best),
        unshrunk=skill(one, unshrunk, best),
    )


def expected_losses(truth: Floats, eta: Floats, pairs: npt.NDArray[np.int64], said: tuple[Floats, Floats]) -> Floats:
    """Return the loss (n,) of each prompt, expected over the outcomes of votes on these pairs."""
    grk = get("grk")
    first, second = pairs.T
    probs = grk.probs(truth[:, first], truth[:, second], eta[:, None])
    coefs, own_eta = (np.asarray(part, dtype=np.float64) for part in said)
    logs = grk.log_probs(coefs[:, first], coefs[:, second], own_eta[:, None])
    return np.asarray(-(probs * logs).sum(-1).mean(1))


def skill(one: Floats, model: Floats, best: Floats) -> Floats:
    """Return the share of the gap to the truth that is closed, with its interval over prompts."""
    gap = float((one - best).mean())
    gain = bootstrap_mean(one - model)
    return np.array([gain.estimate, gain.lower, gain.upper]) / gap


def run(seed: int, flags: argparse.Namespace, folder: Path) -> Iterator[tuple[str, str, Figures]]:
    """Yield the figures of one arena: what was trained on, on which prompts, and what came out."""
    config = SimulationConfig(
        votes=flags.votes, validation_votes=flags.prompts, models=flags.models, topics=flags.topics, seed=seed
    )
    arena = simulate(config)
    if flags.pool is not None:
        arena = replace(simulate(replace(config, seed=flags.pool)), models=arena.models)
    votes = training_votes(arena, flags.votes_per_prompt, None if flags.pool is None else seed)
    prompts = held_out(arena)
    names = arena.model_list
    everything = np.ones(len(prompts.turns), bool)
    model = train(votes, folder / f"all-{seed}", flags.size, flags.encoder)
    board = board_of(folder / f"all-{seed}", names)
    yield "all topics", "within", measure(model, board, prompts, everything, names)
    if flags.within:
        return
    topic = arena.topics[seed % len(arena.topics)]
    rest = votes.filter(pc.invert(pc.match_substring_regex(votes["mentioned"], rf"(^|\+){topic}($|\+)")))
    model = train(rest, folder / f"rest-{seed}", flags.size, flags.encoder)
    board = board_of(folder / f"rest-{seed}", names)
    mentions = np.array([topic in mentioned.split("+") for mentioned in prompts.mentioned])
    yield f"all but {topic}", "within", measure(model, board, prompts, ~mentions, names)
    yield f"all but {topic}", "left out", measure(model, board, prompts, prompts.topic == topic, names)


def verdict_on(shares: list[float]) -> str:
    """Return the mean coverage over arenas with its standard error, and whether it is inside the bar beyond noise."""
    mean, count = float(np.mean(shares)), len(shares)
    error = float(np.std(shares, ddof=1)) / count**0.5 if count > 1 else float("nan")
    beyond = max(LOW - mean, mean - HIGH)
    verdict = "holds" if beyond <= 0 else "missed" if beyond > 2 * error else "outside, but by less than two errors"
    return f"{mean:.1%} +- {error:.1%} over {count} arenas ({LOW:.0%} to {HIGH:.0%}: {verdict})"


def means(figures: Mapping[tuple[bool, str], Sequence[Figures]]) -> str:
    """Return a table of means over arenas, by what was trained on and on which prompts it was measured."""
    header = (
        "trained on",
        "prompts",
        "arenas",
        "coverage",
        "least",
        "greatest",
        "width",
        "error",
        "one board's",
        "skill",
    )
    rows = []
    for (whole, kind), arenas in figures.items():
        coverage = np.array([one.coverage for one in arenas])
        spread = coverage.std(ddof=1) / len(arenas) ** 0.5
        numbers = np.array([[one.width, one.error, one.board_error, one.skill[0]] for one in arenas]).mean(0)
        trained = "all topics" if whole else "all but one topic"
        shares = (f"{coverage.mean():.1%} ± {spread:.1%}", f"{coverage.min():.1%}", f"{coverage.max():.1%}")
        width, error, board_error, skill_mean = numbers.tolist()
        others = (f"{width:.2f}", f"{error:.3f}", f"{board_error:.3f}", f"{skill_mean:+.3f}")
        rows.append((trained, kind, str(len(arenas)), *shares, *others))
    return table(header, rows)


def build_parser() -> argparse.ArgumentParser:
    """Return the flags of the benchmark."""
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("--arenas", type=int, default=6)
    flags.add_argument("--first-seed", type=int, default=0)
    flags.add_argument("--votes", type=int, default=12_000)
    flags.add_argument("--votes-per-prompt", type=int, default=1)
    flags.add_argument("--prompts", type=int, default=2000)
    flags.add_argument("--models", type=int, default=16)
    flags.add_argument("--topics", type=int, default=6)
    flags.add_argument("--pool", type=int, metavar="SEED", help="ask the prompts of this arena in all of them")
    flags.add_argument("--within", action="store_true", help="leave the left-out topics out")
    flags.add_argument("--folder", type=Path, help="keep models here, and go on with those that are trained")
    flags.add_argument("--size", choices=["reader", "tfidf", "tiny"], default="reader")
    flags.add_argument("--encoder", help="the reader's encoder (none; default: MiniLM if installed)")
    return flags


def main() -> None:
    """Print a row for each arena and kind of prompts, and whether the bars hold."""
    flags = build_parser().parse_args()
    each = f"{flags.votes_per_prompt} on each prompt"
    arenas = f"{flags.arenas} arenas of {flags.votes:,} votes, {each}"
    print(f"{flags.size}: {arenas}, {flags.models} models, {flags.topics} topics")
    rows: list[tuple[str, ...]] = []
    harmed: list[bool] = []
    measured: dict[tuple[bool, str], list[Figures]] = defaultdict(list)
    with tempfile.TemporaryDirectory() as temporary:
        folder = flags.folder or Path(temporary)
        for seed in range(flags.first_seed, flags.first_seed + flags.arenas):
            for trained, kind, figures in run(seed, flags, folder):
                rows.append(figures.row(str(seed), trained, kind))
                print("  ".join(rows[-1]), file=sys.stderr, flush=True)
                measured[trained == "all topics", kind].append(figures)
                harmed.append(kind == "left out" and figures.skill[2] < -ROUNDING)
    print(f"\n{table(HEADER, rows) if flags.arenas <= MOST_ROWS else means(measured)}\n")
    for (whole, kind), of_arenas in measured.items():
        trained = "all topics" if whole else "all but one topic"
        verdict = verdict_on([one.coverage for one in of_arenas])
        print(f"coverage of {LEVEL:.0%} intervals, trained on {trained}, {kind}: {verdict}")
    if flags.within:
        return
    print(f"skill on a left-out topic below zero by its interval: {sum(harmed)} of {flags.arenas} arenas")


if __name__ == "__main__":
    main()
