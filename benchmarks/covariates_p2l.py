"""Covariates trained with a P2L model: planted effects, and what `side` is worth on prompts that were not trained on.

Promises: 95 % intervals of planted effects hold them in 93 to 97 % of the simulations, under every likelihood; `side`
lowers the loss of held-out votes of `oasst_vicuna_gpt4_battles` by at least 0.010 nats.

Votes are simulated from the outcome model itself: models whose abilities differ by topic, prompts whose words tell the
topic, answers with lengths of their own. The model is a reader without an encoder, trained with the settings that
`p2l train --votes` derives. Beside it stands one leaderboard of the same votes, which cannot read topics. Real votes go
through the command, in five folds of whole prompts; the interval of a gain draws prompts. Run it as
`python -m benchmarks.covariates_p2l DATA_DIR`; without the data, that part is left out.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import yaml

from benchmarks.covariates import EFFECTS, FOLDS
from benchmarks.tables import table
from p2l import likelihood as likelihoods
from p2l.common.bootstrap import bootstrap_mean
from p2l.leaderboard import fit
from p2l.metrics import ScoredVotes, vote_values
from p2l.votes import WINNERS, encode_votes

MODELS, TOPICS, PROMPTS = 8, 6, 400
SPREAD = 0.5
"""Standard deviation of a model's ability between topics."""
WORDS = 12


def simulate(likelihood: str, votes: int, rng: np.random.Generator) -> pd.DataFrame:
    """Return votes with columns `length_a`, `length_b`, `bold_a`, `bold_b`, whose effects are `EFFECTS`."""
    model = likelihoods.get(likelihood)
    ability = rng.normal(0.3, 0.8, MODELS) + rng.normal(0, SPREAD, (TOPICS, MODELS))
    topic = rng.integers(0, TOPICS, PROMPTS)
    texts = [" ".join(f"t{one}w{word}" for word in rng.integers(0, WORDS, 8)) for one in topic]
    prompt, a = rng.integers(0, PROMPTS, votes), rng.integers(0, MODELS, votes)
    b = (a + rng.integers(1, MODELS, votes)) % MODELS
    verbosity = rng.normal(0.0, 0.5, MODELS)
    lean, columns = np.full(votes, EFFECTS["side"]), dict[str, Any]()
    for name in ("length", "bold"):
        sizes = [np.exp(verbosity[side] + rng.normal(0, 0.7, votes)) for side in (a, b)]
        columns |= {f"{name}_a": sizes[0], f"{name}_b": sizes[1]}
        lean += EFFECTS[name] * (sizes[0] - sizes[1]) / (sizes[0] + sizes[1])
    first, second = (ability[topic[prompt], side] + sign * lean / 2 for side, sign in ((a, 1), (b, -1)))
    eta = np.asarray(-6.0 if likelihood == "rk" else -0.3)
    probs = model.probs(first, second, eta, np.asarray(0.0))
    outcome = np.minimum((rng.random(votes)[:, None] > probs.cumsum(axis=1)).sum(axis=1), probs.shape[1] - 1)
    names = np.array([f"m{code}" for code in range(MODELS)])
    votes_of = {"prompt": np.array(texts)[prompt], "model_a": names[a], "model_b": names[b]}
    return pd.DataFrame({**votes_of, "winner": np.array(WINNERS)[outcome], **columns})


def train(folder: Path, votes: pd.DataFrame, likelihood: str) -> dict[str, Any]:
    """Train a reader on these votes and return its covariates.json."""
    from p2l.training.loop import RunOptions
    from p2l.training.offline import train as train_offline
    from p2l.training.planning import CONFIG_FILE, Request, plan_run

    file, run = folder / "votes.parquet", folder / "run"
    votes.to_parquet(file)
    request = Request(str(file), "reader", output=str(run), encoder="none", control=tuple(EFFECTS), validate=False)
    plan_run(request, quiet=True)
    settings = yaml.safe_load((run / CONFIG_FILE).read_text(encoding="utf-8"))
    settings |= {"loss_type": likelihood, "head_type": likelihoods.get(likelihood).head}
    (run / CONFIG_FILE).write_text(yaml.safe_dump(settings), encoding="utf-8")
    with contextlib.redirect_stdout(io.StringIO()):
        train_offline(str(run / CONFIG_FILE), RunOptions(quiet=True, folder=run))
    stored: dict[str, Any] = json.loads((run / "covariates.json").read_text(encoding="utf-8"))
    return stored


def planted(chosen: list[str], simulations: int, votes: int) -> None:
    """Print how often the intervals of a trained model, and of one leaderboard, hold the planted effects."""
    rows = []
    for likelihood in chosen:
        rng = np.random.default_rng(18)
        inside, beside, errors, seconds = [], [], [], 0.0
        for _ in range(simulations):
            frame = simulate(likelihood, votes, rng)
            with tempfile.TemporaryDirectory() as folder:
                start = time.perf_counter()
                stored = {row["name"]: row for row in train(Path(folder), frame, likelihood)["covariates"]}
                seconds += time.perf_counter() - start
            inside.append([stored[name]["lower"] < size < stored[name]["upper"] for name, size in EFFECTS.items()])
            errors.append([stored[name]["effect"] - size for name, size in EFFECTS.items()])
            beside.append(_leaderboard_holds(frame, likelihood))
        held, bias = np.mean(inside, axis=0), np.mean(errors, axis=0)
        cells = [likelihood, *(f"{share:.1%}" for share in held), f"{held.mean():.1%}"]
        cells += [" ".join(f"{one:+.3f}" for one in bias), f"{np.mean(beside):.1%}", f"{seconds / simulations:.1f}"]
        rows.append(cells)
        print("  ".join(cells), file=sys.stderr, flush=True)
    print(f"\nPlanted effects, {simulations} simulations of {votes:,} votes on {PROMPTS} prompts: share inside 95 %\n")
    header = ["likelihood", *EFFECTS, "all", "mean errors", "one leaderboard, all", "seconds a training"]
    print(table(header, rows))


def _leaderboard_holds(frame: pd.DataFrame, likelihood: str) -> list[bool]:
    codes = encode_votes(frame["model_a"], frame["model_b"], frame["winner"])
    values = {"side": np.ones(len(frame))}
    for name in ("length", "bold"):
        a, b = frame[f"{name}_a"].to_numpy(), frame[f"{name}_b"].to_numpy()
        values[name] = (a - b) / (a + b)
    columns = (codes.model_a, codes.model_b, codes.winner)
    clusters = np.unique(frame["prompt"], return_inverse=True)[1]
    board = fit(*columns, models=codes.models, likelihood=likelihood, covariates=values, clusters=clusters)
    return [effect.lower < EFFECTS[effect.name] < effect.upper for effect in board.effects]


def side_of(data: Path, size: str) -> None:
    """Print the loss of held-out votes of a model trained without `side`, and with it, left out and counted."""
    file = data / "oasst_vicuna_gpt4_battles.parquet"
    if not file.is_file():
        print(f"\n{file.name} is not there: the gain of side is left out")
        return
    frame = pd.read_parquet(file)[["question_id", "prompt", "model_a", "model_b", "winner"]]
    prompts = np.unique(frame["question_id"], return_inverse=True)[1]
    fold = np.random.default_rng(0).permutation(prompts.max() + 1)[prompts] % FOLDS
    losses, seconds = np.full((3, len(frame)), np.nan), 0.0
    with tempfile.TemporaryDirectory() as name:
        for held_out in range(FOLDS):
            folder, test = Path(name) / str(held_out), fold == held_out
            folder.mkdir()
            frame[~test].to_parquet(folder / "train.parquet")
            frame[test].to_parquet(folder / "held_out.parquet")
            start = time.perf_counter()
            losses[0, test] = _train_and_score(folder, "plain", size)[0]
            losses[1:, test] = _train_and_score(folder, "side", size, "--control", "side")
            seconds += time.perf_counter() - start
            print(f"fold {held_out + 1}: {np.nanmean(losses[:, test], axis=1).round(4)}", file=sys.stderr, flush=True)
    names = ("without side", "side trained, left out", "side trained, as it was")
    gains = [_gain(losses[0] - losses[2], prompts), _gain(losses[1] - losses[2], prompts), ""]
    rows = [[name, f"{loss.mean():.4f}", gain] for name, loss, gain in zip(names, losses, gains, strict=True)]
    print(f"\nHeld-out loss of {file.stem}, {size}, {FOLDS} folds of prompts, {seconds / 2 / FOLDS:.0f} s a training\n")
    print(f"{table(['model', 'loss', 'lowered by the side (95 %, prompts drawn)'], rows)}\n")


def _gain(gain: Any, prompts: Any) -> str:
    ends = bootstrap_mean(gain, clusters=prompts)
    return f"{gain.mean():.4f} [{ends.lower:.4f}, {ends.upper:.4f}]"


def _train_and_score(folder: Path, name: str, size: str, *flags: str) -> Any:
    """Train on a fold by the command; return the losses of its held-out votes, covariates left out and as they were."""
    words = ["train", "--votes", "train.parquet", "--val", "held_out.parquet", "--size", size, "--output", name]
    command = [sys.executable, "-m", "p2l.cli", *words, "--quiet", *flags]
    subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL)
    rows = [json.loads(line) for line in (folder / name / "eval_output.jsonl").read_text("utf-8").splitlines()]
    loss_type = yaml.safe_load((folder / name / "training.yaml").read_text("utf-8"))["loss_type"]
    labels, coefs = (np.array([row[key] for row in rows]) for key in ("labels", "betas"))
    eta = np.array([row["eta"] for row in rows]) if "eta" in rows[0] else None
    shift = np.array([row.get("shift", [0.0] * 3) for row in rows])
    parts = (likelihoods.get(loss_type), coefs, labels, eta)
    return np.stack([vote_values("Loss", ScoredVotes(*parts, shift=one)) for one in (None, shift)])


def build_parser() -> argparse.ArgumentParser:
    """Return the flags of the benchmark."""
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("data", metavar="DATA_DIR", type=Path, help="folder with oasst_vicuna_gpt4_battles.parquet")
    flags.add_argument("--simulations", type=int, default=200, help="for each likelihood; 0: none")
    names = ",".join(likelihoods.names())
    flags.add_argument("--likelihoods", default=names, help="of the simulations, separated by commas")
    flags.add_argument("--no-side", action="store_true", help="leave the real votes out")
    flags.add_argument("--votes", type=int, default=2_000, help="of a simulation")
    flags.add_argument("--size", default="reader", help="of the model on real votes")
    return flags


def main() -> None:
    """Run the parts."""
    args = build_parser().parse_args()
    if not args.no_side:
        side_of(args.data, args.size)
    if args.simulations:
        planted([likelihoods.get(name).name for name in args.likelihoods.split(",")], args.simulations, args.votes)


if __name__ == "__main__":
    main()
