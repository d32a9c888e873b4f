"""Is a trained model ever worse than one leaderboard for all prompts? Sixty small sets of real votes.

    python -m benchmarks.never_worse DATA_DIR [--output DIR]

Promises: over training sets of 100 to 3,000 votes from every file of DATA_DIR that has prompts or tags, `p2l train
--votes` is never worse than one leaderboard of the same votes by more than 0.003 nats beyond noise (the 95 % interval,
prompts drawn whole), and better by an interval on half of the sets of 1,000 votes or more. On the human votes of
llama3_70b_arena_prompts, in five folds, it is better by an interval, and below the nearest prompts.

Of each file three tenths of the prompts are held out of all its sets, and choose nothing. A set has either one vote a
prompt or several. Each set is trained by the command that a user types, with the held-out votes as --val. Lines of
`sets.jsonl` in the output folder are finished sets: the same command again goes on with the next one.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd

from benchmarks.real_votes.neighbours import embed, tuned_neighbours
from benchmarks.real_votes.parts import of_votes, read_part, vote_losses
from benchmarks.real_votes.recipes import encoder_folder
from benchmarks.real_votes.sets import COLUMNS, arena_votes, votes_from_scores
from p2l.common.bootstrap import bootstrap_mean
from p2l.common.cli import parser, run
from p2l.common.errors import InputError
from p2l.common.text_table import text_table

SIZES = (100, 300, 1000, 2000, 3000)
LARGE = 1000
HELD_OUT, MOST_HELD_OUT = 0.3, 3000
MOST_HELD_PROMPTS = 800
TOLERANCE = 0.003
SEED = 18
HUMAN, FOLDS = "llama3_70b_arena_prompts", 5
_SEVERAL = 6  # votes a prompt, in every second set


def from_battles(battles: pd.DataFrame, _per_prompt: int, _rng: np.random.Generator) -> pd.DataFrame:
    """Return battles as they are."""
    battles = battles[battles["model_a"] != battles["model_b"]]
    category = battles["source"] if "source" in battles else pd.Series("all", index=battles.index)
    ids = battles["question_id"] if "question_id" in battles else pd.Series(range(len(battles)), index=battles.index)
    return battles.assign(category=category.fillna("none"), question_id=ids)[COLUMNS].reset_index(drop=True)


def from_scores(scores: pd.DataFrame, per_prompt: int, rng: np.random.Generator) -> pd.DataFrame:
    """Return two answers to a question as a vote; with two models a question has one."""
    scores = scores.drop_duplicates(["question_id", "model"])
    scores = scores[scores.groupby("question_id")["model"].transform("size") > 1]
    return votes_from_scores(scores, 1 if scores["model"].nunique() == 2 else per_prompt, rng)


FILES: dict[str, Callable[[pd.DataFrame, int, np.random.Generator], pd.DataFrame]] = {
    "alpaca_eval_battles": from_battles,
    "arena140k_votes": arena_votes,
    HUMAN: from_battles,
    "llmfao_votes": from_battles,
    "mmlu_pro_scores": from_scores,
    "oasst_vicuna_gpt4_battles": from_battles,
    "pandalm_human": from_battles,
    "routerarena_two_models": from_scores,
    "routerbench_subset": from_scores,
    "routerdc_7b_scores": from_scores,
    "routellm_two_models": from_scores,
    "zeroeval_scores": from_scores,
}


@dataclass(frozen=True)
class Finished:
    """A trained set: its votes and prompts, and the losses of held-out votes."""

    file: str
    size: int
    votes: int
    prompts: int
    held_votes: int
    held_prompts: int
    one_leaderboard: float
    model: float
    gain: tuple[float, float, float]
    """Estimate and 95 % interval, in nats a vote."""
    factor: float | None
    seconds: float


def build_parser() -> argparse.ArgumentParser:
    """Return the flags of the benchmark."""
    flags = parser("python -m benchmarks.never_worse", "Train on sixty small sets and compare with one leaderboard.")
    flags.add_argument("data", metavar="DATA_DIR", type=Path, help="folder of the votes and scores")
    flags.add_argument("--output", type=Path, default=Path("outputs/never_worse"), help="work folder; goes on there")
    flags.add_argument("--files", nargs="+", choices=FILES, default=list(FILES), help="which files (default: all)")
    flags.add_argument("--train", default="", help="further flags of p2l train, in quotes")
    flags.add_argument("--skip-human", action="store_true", help="leave out the five folds of human votes")
    return flags


def main(argv: Sequence[str] | None = None) -> None:
    """Train what is not finished, then print the tables."""
    flags = build_parser().parse_args(argv)
    folder = flags.output.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    more = flags.train.split()
    finished = [
        _finished(flags.data, folder, name, number, more) for number in range(len(SIZES)) for name in flags.files
    ]
    print("\n".join(report(sorted(finished, key=lambda one: (one.file, one.size)))))
    if not flags.skip_human and HUMAN in flags.files:
        print("\n".join(human_votes(flags.data, folder / "human", more)))


def _finished(data: Path, folder: Path, name: str, number: int, more: list[str]) -> Finished:
    log = folder / "sets.jsonl"
    for line in log.read_text(encoding="utf-8").splitlines() if log.exists() else []:
        record = json.loads(line)
        if (record["file"], record["size"]) == (name, SIZES[number]):
            return Finished(**record)
    work = folder / "work"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir()
    train, held = draw(data, name, number)
    done = train_on(train, held, work, more, name, SIZES[number])
    with log.open("a", encoding="utf-8") as file:
        file.write(json.dumps(asdict(done)) + "\n")
    told = f"{name} {done.votes}: {done.gain[0]:+.4f}, factor {done.factor}, {done.seconds:.0f} s"
    print(told, file=sys.stderr, flush=True)
    return done


@cache
def pools(data: Path, name: str, per_prompt: int) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the votes of a file that training may use, and those on held-out prompts."""
    file = data / f"{name}.parquet"
    if not file.is_file():
        raise InputError(f"{file}: no such file; give the folder that holds it")
    rng = np.random.default_rng(SEED)
    votes = FILES[name](pd.read_parquet(file), per_prompt, rng)
    text = votes["prompt"].map(lambda turns: turns if isinstance(turns, str) else "\x00".join(turns))
    prompt = pd.factorize(text)[0]
    order = rng.permutation(prompt.max() + 1)
    is_held = np.isin(prompt, order[: max(2, round(HELD_OUT * len(order)))])
    votes = votes.assign(text=text)
    return votes[~is_held], _few(votes[is_held], MOST_HELD_PROMPTS, MOST_HELD_OUT, rng)


def _few(votes: pd.DataFrame, prompts: int, most: int, rng: np.random.Generator) -> pd.DataFrame:
    names = votes["text"].unique()
    chosen = votes[votes["text"].isin(rng.permutation(names)[:prompts])]
    return chosen.iloc[np.sort(rng.permutation(len(chosen))[:most])]


def draw(data: Path, name: str, number: int) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the training votes of a file's set, and the held-out votes between models that are among them."""
    pool, held = pools(data, name, _SEVERAL)
    rng = np.random.default_rng([SEED, number])
    votes = pool.iloc[rng.permutation(len(pool))]
    turn = votes.groupby("text").cumcount()
    # A vote a prompt as far as that goes, or the votes of a few prompts.
    if number % 2 == 0:
        votes = votes.iloc[np.argsort(turn.to_numpy(), kind="stable")]
    else:
        place = pd.Series(rng.permutation(votes["text"].nunique()), index=votes["text"].unique())
        votes = votes[turn < max(_SEVERAL, -(-SIZES[number] // len(place)))]
        votes = votes.iloc[np.argsort(votes["text"].map(place).to_numpy(), kind="stable")]
    votes = votes.iloc[: SIZES[number]]
    seen = set(votes["model_a"]) | set(votes["model_b"])
    return votes.sample(frac=1, random_state=number), held[held["model_a"].isin(seen) & held["model_b"].isin(seen)]


def train_on(train: pd.DataFrame, held: pd.DataFrame, work: Path, more: list[str], name: str, size: int) -> Finished:
    """Train by the command on the votes in a folder, and return what its closing table says."""
    from p2l.train import main as p2l_train

    for part, votes in (("train", train), ("held", held)):
        votes[COLUMNS].to_parquet(work / f"{part}.parquet", index=False)
    files = ["--votes", work / "train.parquet", "--val", work / "held.parquet", "--output", work / "run"]
    started = time.monotonic()
    with contextlib.redirect_stdout(io.StringIO()):
        p2l_train([*map(str, files), "--save-steps", "-1", "--eval-steps", "1000000", "--quiet", *more])
    seconds = time.monotonic() - started
    table = json.loads((work / "run" / "comparison.json").read_text(encoding="utf-8"))
    gain = table["gain"]
    return Finished(
        name,
        size,
        len(train),
        train["text"].nunique(),
        table["votes"],
        table["prompts"],
        table["one_leaderboard"]["Loss"],
        table["model"]["Loss"],
        (gain["estimate"], gain["lower"], gain["upper"]),
        table["factor"],
        round(seconds, 1),
    )


def report(finished: Sequence[Finished]) -> Iterator[str]:
    """Yield the table of all sets, and whether the promises are kept."""
    header = ["file", "votes", "prompts", "held out", "one leaderboard", "model", "lower by", "factor", "seconds"]
    yield from text_table(header, [_row(one) for one in finished], left={0})
    worse = [one for one in finished if one.gain[2] < -TOLERANCE]
    large = [one for one in finished if one.votes >= LARGE]
    better = [one for one in large if one.gain[1] > 0]
    below = [one for one in finished if one.gain[0] < -TOLERANCE]
    yield ""
    yield f"{len(finished)} sets; worse by more than {TOLERANCE} nats beyond noise: {len(worse)} (promise: none)"
    yield f"worse by more than {TOLERANCE} nats as measured: {len(below)}; least gain {_least(finished):+.4f}"
    yield f"better by an interval on {len(better)} of {len(large)} sets of {LARGE:,} votes or more (promise: half)"
    yield f"mean gain {np.mean([one.gain[0] for one in finished]):+.4f} nats a vote"


def _least(finished: Sequence[Finished]) -> float:
    return min(one.gain[0] for one in finished)


def _row(one: Finished) -> list[str]:
    estimate, lower, upper = one.gain
    return [
        one.file,
        f"{one.votes:,}",
        f"{one.prompts:,}",
        f"{one.held_votes:,} on {one.held_prompts:,}",
        f"{one.one_leaderboard:.4f}",
        f"{one.model:.4f}",
        f"{estimate:+.4f} [{lower:+.4f}, {upper:+.4f}]",
        "" if one.factor is None else f"{one.factor:.2f}",
        f"{one.seconds:.0f}",
    ]


def human_votes(data: Path, folder: Path, more: list[str]) -> Iterator[str]:
    """Yield losses of human votes in five folds: one leaderboard, nearest prompts and the trained model."""
    votes = from_battles(pd.read_parquet(data / f"{HUMAN}.parquet"), 1, np.random.default_rng(SEED))
    votes = votes.assign(text=votes["prompt"].map("\x00".join))
    prompt = pd.factorize(votes["text"])[0]
    fold = np.random.default_rng(SEED).permutation(prompt.max() + 1)[prompt] % FOLDS
    losses: dict[str, list[np.ndarray]] = {}
    for number in range(FOLDS):
        for name, values in _fold(votes[fold != number], votes[fold == number], folder / str(number), more).items():
            losses.setdefault(name, []).append(values)
    clusters = np.concatenate([prompt[fold == number] for number in range(FOLDS)])
    whole = {name: np.concatenate(parts) for name, parts in losses.items()}
    rows = []
    for name, values in whole.items():
        gain = bootstrap_mean(whole["one leaderboard"] - values, clusters=clusters)
        rows.append([name, f"{values.mean():.4f}", f"{gain.estimate:+.4f} [{gain.lower:+.4f}, {gain.upper:+.4f}]"])
    yield ""
    yield f"{len(clusters):,} human votes of {HUMAN} in {FOLDS} folds"
    yield from text_table(["forecast", "loss", "lower than one leaderboard by"], rows, left={0})


def _fold(train: pd.DataFrame, held: pd.DataFrame, folder: Path, more: list[str]) -> dict[str, np.ndarray]:
    """Return the losses of held-out votes; a fold that was finished before is read."""
    kept = folder / "losses.npz"
    if kept.exists():
        with np.load(kept) as arrays:
            return dict(arrays)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    train_on(train, held, folder, more, HUMAN, len(train))
    from p2l.leaderboard import fit_labels
    from p2l.training.forecasts import Forecast

    part = read_part(folder / "train.parquet")
    asked = read_part(folder / "held.parquet", part.models)
    board = fit_labels(part.labels, models=part.models, likelihood="bt", intervals=None)
    with (folder / "run" / "eval_output.jsonl").open(encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    model = Forecast(np.array([row["betas"] for row in rows]), None)
    losses = {"one leaderboard": vote_losses(Forecast(np.tile(board.coefs, (len(asked.labels), 1)), None), asked, "bt")}
    if (encoder := encoder_folder()) is not None:
        losses["nearest prompts"] = vote_losses(_nearest(train, folder, part.models, encoder), asked, "bt")
    losses["p2l train --votes"] = vote_losses(model, asked, "bt")
    np.savez(kept, **losses)  # type: ignore[arg-type]
    return losses


def _nearest(train: pd.DataFrame, folder: Path, models: list[str], encoder: Path) -> object:
    """Return the forecast of the nearest prompts, whose number and shrinkage a part of the training prompts chooses."""
    names = train["text"].unique()
    tuning = train["text"].isin(np.random.default_rng(SEED).permutation(names)[: len(names) // 5])
    for name, votes in (("rest", train[~tuning]), ("tune", train[tuning])):
        votes[COLUMNS].to_parquet(folder / f"{name}.parquet", index=False)
    parts = {name: read_part(folder / f"{name}.parquet", models) for name in ("train", "held", "rest", "tune")}
    prompts = sorted({tuple(turns) for name in ("train", "held") for turns in parts[name].prompts})
    states = embed(encoder, [list(turns) for turns in prompts], folder.parent / "embedding.npy", quiet=True)
    place = {turns: number for number, turns in enumerate(prompts)}  # the folds have the same prompts together
    vectors = {
        "val" if name == "held" else name: states[[place[tuple(turns)] for turns in part.prompts]]
        for name, part in parts.items()
    }
    forecast, _ = tuned_neighbours(parts["rest"], parts["tune"], parts["train"], "bt", vectors, quiet=True)
    return of_votes(forecast, parts["held"].place)


if __name__ == "__main__":
    run(main)
