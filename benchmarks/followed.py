"""Does a live run keep up with training anew, and with a leaderboard of the votes so far?

    python -m benchmarks.followed arenas [--seeds 5] [--folder DIR]
    python -m benchmarks.followed months DATA_DIR [--folder DIR]
    python -m benchmarks.followed newcomers DATA_DIR [--models 12] [--folder DIR]

arenas     simulated arenas: a model is trained on 5,000 votes in one line and follows 4,000 more, three new models
           among them. After each eighth of these, losses on the same 12,000 held-out votes: as it was, what the live
           line serves and its own weights, and one line on all votes so far, the mean of three orders, since one
           differs from another by some thousandths of a nat
months     the same of 21,000 votes of arena140k in the order of its months, 5,000 before and 16,000 followed, tags for
           prompts; twelve of its 49 models join on the way
newcomers  20,000 votes of arena140k without its twelve newest models train a model on tags; the votes of each newest
           model are streamed to a live line. Printed: its loss on the model's other votes, less that of one leaderboard
           refitted to all votes so far, after 100, 400 and 3,000 votes

All draws are seeded. Runs that are finished in the folder are not made again.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.real_votes.sets import arena_votes
from benchmarks.tables import table
from p2l.common.cli import parser, positive, run
from p2l.leaderboard import Leaderboard, fit_labels
from p2l.likelihood import Likelihood, vote_losses

Floats = npt.NDArray[np.float64]
BEFORE, AFTER, CHECKPOINTS, HELD, ORDERS = 5000, 4000, 8, 12_000, 3
MONTHS_AFTER, PUBLISHED_VOTES, MOST = 16_000, 1000, 0.01
_COLUMNS = ["prompt", "model_a", "model_b", "winner"]
NEWEST, KNOWN_VOTES, COUNTS, MOST_LATER = 12, 20_000, (100, 400, 3000), 3000


def command(*words: object) -> float:
    """Run a command of p2l, and return its seconds."""
    started = time.monotonic()
    line = [sys.executable, "-m", "p2l.cli", *map(str, words)]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(line)}: {done.stderr[-2000:]}")
    return time.monotonic() - started


def train(votes: Path, folder: Path) -> float:
    """Train in one line unless that was done, and return its seconds."""
    if (folder / "model_list.json").is_file():
        return 0.0
    shutil.rmtree(folder, ignore_errors=True)
    return command("train", "--votes", votes, "--output", folder, "--size", "tiny", "--quiet")


def losses(folder: Path, votes: Any) -> Floats:
    """Return the loss (n,) of votes under a model; NaN where it does not know both models."""
    from p2l import P2L

    model = P2L.from_pretrained(folder, device="cpu")
    place = {name: number for number, name in enumerate(model.model_list)}
    labels, is_known = _labels(votes, place)
    prompts = [[prompt] if isinstance(prompt, str) else list(prompt) for prompt in votes.prompt[is_known]]
    found = model.predict(prompts)
    out = np.full(len(votes), np.nan)
    out[is_known] = vote_losses(model.likelihood, found.coefs.astype(float), labels, found.eta, found.gamma)
    return out


def _labels(votes: Any, place: dict[str, int]) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.bool_]]:
    """Return labels of the votes whose models are known, and which these are."""
    a, b = (votes[side].map(place).to_numpy(float) for side in ("model_a", "model_b"))
    is_known = ~np.isnan(a) & ~np.isnan(b)
    b_won = (votes.winner == "model_b").to_numpy()
    ties = votes.winner.map({"model_a": 0, "model_b": 0, "tie": 1, "tie (bothbad)": 2}).to_numpy()
    first, second = np.where(b_won, b, a), np.where(b_won, a, b)
    return np.stack([first, second, ties], axis=1)[is_known].astype(np.int32), is_known


@dataclass(frozen=True)
class Checkpoint:
    """Losses at one point of a stream, means over the held-out votes."""

    votes: int
    as_it_was: float
    """Of votes between the models that it knows."""
    served: float
    """Of the model that the live line published last."""
    own: float
    """Of the weights of the run itself, which nothing has shrunk."""
    anew: Floats
    """(O,) trained on all votes so far in each of O orders."""
    error: float
    """Standard error, over votes, of `served` less the mean of `anew`."""
    among_new: float
    """`served` less the mean of `anew`, of votes with a new model."""

    @property
    def distance(self) -> float:
        """What the served model loses to training anew."""
        return self.served - float(self.anew.mean())


@dataclass(frozen=True)
class Stream:
    """Votes to train on first, those to follow, and held-out ones."""

    place: Path
    first: Any
    later: Any
    held: Any


def arenas(folder: Path, seeds: int) -> Iterator[str]:
    """Yield the table of what the live line loses to training anew, by arena and checkpoint."""
    yield _distances({f"arena {seed + 1}": _simulated(folder / str(seed), seed) for seed in range(seeds)})


def months(data: Path, folder: Path) -> Iterator[str]:
    """Yield the same table of arena140k, in the order of its months."""
    import pandas as pd

    battles = pd.read_parquet(data / "arena140k_votes.parquet")
    votes = arena_votes(battles.sample(frac=1, random_state=0), 1, np.random.default_rng(0))
    votes = votes.merge(battles[["question_id", "month_sim"]], on="question_id")
    followed, held = votes.iloc[: BEFORE + MONTHS_AFTER], votes.iloc[BEFORE + MONTHS_AFTER :].iloc[:HELD]
    followed = followed.sort_values("month_sim", kind="stable")[_COLUMNS]
    yield _distances({"arena140k": Stream(folder, followed.iloc[:BEFORE], followed.iloc[BEFORE:], held[_COLUMNS])})


def _distances(streams: Mapping[str, Stream]) -> str:
    runs: list[list[Checkpoint]] = []
    for name, stream in streams.items():
        runs.append([])
        for number in range(1, CHECKPOINTS + 1):
            point = _checkpoint(stream, number)
            runs[-1].append(point)
            cells = (
                f"as it was {point.as_it_was:.4f}, served {point.served:.4f}, own {point.own:.4f}, anew {point.anew}"
            )
            print(f"{name}, {point.votes:,} votes: {cells}", file=sys.stderr, flush=True)
    rows = [
        [f"{row[0].votes:,}", *(f"{one.distance:+.4f} ± {one.error:.4f}" for one in row)]
        for row in zip(*runs, strict=True)
    ]
    served = [np.array([one.distance for one in run]) for run in runs]
    own = [np.array([one.own - one.anew.mean() for one in run]) for run in runs]
    one_order = [np.array([one.served - one.anew[0] for one in run]) for run in runs]
    rows += [
        [f"at most {MOST}", *_kept(served)],
        ["largest", *(f"{gaps.max():+.4f}" for gaps in served)],
        ["mean", *(f"{gaps.mean():+.4f}" for gaps in served)],
        ["mean of votes with a new model", *(f"{np.mean([one.among_new for one in run]):+.4f}" for run in runs)],
        [f"of the first order alone, at most {MOST}", *_kept(one_order)],
        [f"of the run's own weights, at most {MOST}", *_kept(own)],
        ["their largest", *(f"{gaps.max():+.4f}" for gaps in own)],
        ["their mean", *(f"{gaps.mean():+.4f}" for gaps in own)],
        ["loss at the end: served, anew", *(f"{run[-1].served:.4f}, {run[-1].anew.mean():.4f}" for run in runs)],
    ]
    return table(["votes", *streams], rows)


def _kept(runs: list[Floats]) -> list[str]:
    return [f"{(gaps <= MOST).sum()} of {CHECKPOINTS}" for gaps in runs]


def _simulated(place: Path, seed: int) -> Stream:
    """Simulate an arena of 15 models, of which the three newest are new to the first votes."""
    import pandas as pd

    place.mkdir(parents=True, exist_ok=True)
    votes, held = place / "votes.parquet", place / "held.parquet"
    if not held.is_file():
        models = ("--models", 15, "--seed", seed + 1, "--quiet")
        command("simulate", "--votes", BEFORE + AFTER, "--output", votes, "--val", HELD, "--val-output", held, *models)
    every = pd.read_parquet(votes)
    newest = sorted({*every.model_a})[-3:]
    is_new = every.model_a.isin(newest) | every.model_b.isin(newest)
    first = every[~is_new].iloc[:BEFORE]
    return Stream(place, first, every.drop(first.index).iloc[:AFTER], pd.read_parquet(held))


def _checkpoint(stream: Stream, number: int) -> Checkpoint:
    """Train, follow and measure after so many eighths of the later votes."""
    import pandas as pd

    place, first, test = stream.place, stream.first, stream.held
    later = stream.later.iloc[: len(stream.later) * number // CHECKPOINTS]
    first.to_json(place / "first.jsonl", orient="records", lines=True)
    later.to_json(place / f"later-{number}.jsonl", orient="records", lines=True)
    for order in range(ORDERS):
        mixed = pd.concat([first, later]).sample(frac=1, random_state=order)
        mixed.to_json(place / f"all-{number}-{order}.jsonl", orient="records", lines=True)
        train(place / f"all-{number}-{order}.jsonl", place / f"all-{number}-{order}")
    train(place / "first.jsonl", place / "first")
    published = place / f"served-{number}"
    publish = ("--publish", published, "--publish-votes", PUBLISHED_VOTES, "--gate")
    own = follow(place / "first", place / f"later-{number}.jsonl", place / f"followed-{number}", *publish)
    newest_served = max(published.glob("checkpoint-*"), key=lambda one: int(one.name.rpartition("-")[2]))
    trained_anew = [place / f"all-{number}-{order}" for order in range(ORDERS)]
    served, of_own, *anew = (losses(one, test) for one in (newest_served, own, *trained_anew))
    is_known = ~np.isnan(served + of_own + np.sum(anew, axis=0))
    distances = served - np.mean(anew, axis=0)
    old = {*first.model_a, *first.model_b}
    among_new = ~(test.model_a.isin(old) & test.model_b.isin(old)).to_numpy()
    return Checkpoint(
        votes=BEFORE + len(later),
        as_it_was=float(np.nanmean(losses(place / "first", test))),
        served=float(served[is_known].mean()),
        own=float(of_own[is_known].mean()),
        anew=np.array(anew)[:, is_known].mean(axis=1),
        error=float(distances[is_known].std() / np.sqrt(is_known.sum())),
        among_new=float(distances[is_known & among_new].mean()),
    )


def follow(first: Path, votes: Path, folder: Path, *more: object) -> Path:
    """Follow a file with the live line to its end, from a copy of a model, and return the run's folder."""
    if not (folder / "model_list.json").is_file():
        shutil.rmtree(folder, ignore_errors=True)
        made = first.with_name(f"{first.name}-online")
        shutil.rmtree(made, ignore_errors=True)
        line = ("--no-eval", "--follow", votes, "--stop-when-idle", 0, "--quiet", *more)
        command("online-train", "--checkpoint", first, *line)
        made.rename(folder)
    return folder


def newcomers(data: Path, folder: Path, models: int) -> Iterator[str]:
    """Yield lines about the votes of each newest model, streamed."""
    import pandas as pd

    battles = pd.read_parquet(data / "arena140k_votes.parquet")
    battles = battles[battles.model_a != battles.model_b].sample(frac=1, random_state=0)
    battles = battles.sort_values("month_sim", kind="stable")
    votes = arena_votes(battles, 1, np.random.default_rng(0))[["prompt", "model_a", "model_b", "winner"]]
    long = pd.concat([votes.model_a, votes.model_b]).reset_index()
    newest = long.groupby(0)["index"].min().sort_values().index[-NEWEST:]
    touched = votes.model_a.isin(newest) | votes.model_b.isin(newest)
    known = votes[~touched].sample(KNOWN_VOTES, random_state=0)
    known.to_json(folder / "known.jsonl", orient="records", lines=True)
    train(folder / "known.jsonl", folder / "first")
    rows = []
    for name in list(newest)[::-1][:models]:
        own = votes[(votes.model_a == name) | (votes.model_b == name)]
        others = np.where(own.model_a == name, own.model_b, own.model_a)
        own = own[~pd.Series(others, index=own.index).isin(newest)].sample(frac=1, random_state=1)
        row = [_excess(folder, known, own, name, count) for count in COUNTS]
        rows.append(row)
        cells = "  ".join(f"{excess:+.4f}" for excess in row)
        print(f"{name:44} {len(own):6,} votes  {cells}", file=sys.stderr, flush=True)
    columns = np.array(rows).T
    lines = [
        ["mean of the models", *(f"{np.nanmean(column):+.4f}" for column in columns)],
        ["least, largest", *(f"{np.nanmin(column):+.4f}, {np.nanmax(column):+.4f}" for column in columns)],
        ["at most 0.003", *(f"{(column <= 0.003).sum()} of {(~np.isnan(column)).sum()}" for column in columns)],
    ]
    yield table(["", f"{COUNTS[0]:,} votes", *(f"{count:,}" for count in COUNTS[1:])], lines)


def _excess(folder: Path, known: Any, own: Any, name: str, count: int) -> float:
    """Return the loss of a model's later votes under the live line less that of a refitted leaderboard."""
    import pandas as pd

    if len(own) < count + 200:
        return float("nan")
    stream, later = own.iloc[:count], own.iloc[max(COUNTS) if len(own) > max(COUNTS) + 200 else count :]
    later = later.iloc[:MOST_LATER]
    word = f"{name}-{count}".replace("/", "_")
    stream.to_json(folder / f"{word}.jsonl", orient="records", lines=True)
    followed = follow(folder / "first", folder / f"{word}.jsonl", folder / word)
    so_far = pd.concat([known, stream])
    names = sorted({*so_far.model_a, *so_far.model_b})
    place = {one: number for number, one in enumerate(names)}
    board = fit_labels(_labels(so_far, place)[0], models=names, likelihood="grk", intervals=None)
    labels, is_known = _labels(later, place)
    return float(np.nanmean(losses(followed, later)[is_known]) - _board_losses(board, labels).mean())


def _board_losses(board: Leaderboard, labels: npt.NDArray[np.int32]) -> Floats:
    from p2l.likelihood import get

    likelihood: Likelihood = get(board.likelihood)
    coefs = np.tile(board.coefs, (len(labels), 1))
    sides = (None if value is None else np.full(len(labels), value) for value in (board.eta, board.gamma))
    return np.asarray(vote_losses(likelihood, coefs, labels, *sides))


def build_parser() -> argparse.ArgumentParser:
    """Return the flags of the benchmark."""
    flags = parser("python -m benchmarks.followed", "Compare live runs with training anew and with leaderboards.")
    commands = flags.add_subparsers(dest="command", required=True)
    one = commands.add_parser("arenas")
    one.add_argument("--seeds", type=positive, default=5)
    one.add_argument("--folder", type=Path)
    one = commands.add_parser("months")
    one.add_argument("data", type=Path, metavar="DATA_DIR")
    one.add_argument("--folder", type=Path)
    one = commands.add_parser("newcomers")
    one.add_argument("data", type=Path, metavar="DATA_DIR")
    one.add_argument("--models", type=positive, default=NEWEST)
    one.add_argument("--folder", type=Path)
    return flags


def main(argv: Sequence[str] | None = None) -> None:
    """Run one part."""
    args = build_parser().parse_args(argv)
    with tempfile.TemporaryDirectory() as name:
        folder = args.folder or Path(name)
        folder.mkdir(parents=True, exist_ok=True)
        lines = {
            "arenas": lambda: arenas(folder, args.seeds),
            "months": lambda: months(args.data, folder),
            "newcomers": lambda: newcomers(args.data, folder, args.models),
        }[args.command]()
        for line in lines:
            print(line, flush=True)


if __name__ == "__main__":
    run(main)
