"""A kind of prompt that training left out: its board beside one leaderboard, and beside the model not shrunk.

    python -m benchmarks.left_out_kinds DATA_DIR [--kinds zeroeval_scores:math-l5 ...]

For each kind `p2l train --votes` is trained as a user types it, on votes of all other kinds of the same file, and
forecasts those of the kind. Gains are nats a vote over one leaderboard of the training votes, with 95 % intervals
(prompts drawn whole): of the model as it is served, and of the same model with no prompt shrunk for being strange.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd

from benchmarks.real_votes.sets import votes_from_scores
from p2l.common.bootstrap import bootstrap_mean
from p2l.common.cli import parser, run
from p2l.common.errors import InputError
from p2l.common.text_table import text_table
from p2l.inference import P2L, Prediction
from p2l.metrics import ScoredVotes, vote_values
from p2l.train import main as train
from p2l.votes import open_votes
from p2l.votes.splitting import hash_prompts

KINDS = (
    "zeroeval_scores:math-l5",
    "zeroeval_scores:crux",
    "zeroeval_scores:gsm",
    "mmlu_pro_scores:math",
    "mmlu_pro_scores:law",
    "routerdc_7b_scores:cmmlu",
    "routerdc_7b_scores:gsm8k",
    "llmrouter_ulab_scores:gpqa",
    "llmrouter_ulab_scores:math",
    "llmrouter_ulab_scores:trivia_qa",
    "bfcl_scores:java",
    "bfcl_scores:rest",
)
SEED = 0


def build_parser() -> argparse.ArgumentParser:
    """The command line."""
    command = parser("python -m benchmarks.left_out_kinds", description=__doc__)
    command.add_argument("data", type=Path, help="folder of the public score files")
    command.add_argument("--kinds", nargs="+", default=KINDS, metavar="FILE:KIND", help="default: twelve kinds")
    command.add_argument("--prompts", type=int, default=1500, help="prompts of each file (default: 1500)")
    command.add_argument("--votes-per-prompt", type=int, default=8, help="(default: 8)")
    return command


def main(argv: Sequence[str] | None = None) -> None:
    """Train without each kind in turn and print the table."""
    flags = build_parser().parse_args(argv)
    rows = []
    for name in flags.kinds:
        file, _, kind = name.partition(":")
        with tempfile.TemporaryDirectory() as folder:
            votes = _votes(flags.data / f"{file}.parquet", flags.prompts, flags.votes_per_prompt)
            rows.append([file.removesuffix("_scores"), kind, *_gains(votes, kind, Path(folder))])
            print("  ".join(rows[-1]), flush=True)
    heads = ["file", "kind left out", "prompts", "one leaderboard", "gain served", "gain not shrunk", "familiarity"]
    print("\n".join(text_table(heads, rows)))


def _votes(file: Path, prompts: int, votes_per_prompt: int) -> pd.DataFrame:
    if not file.is_file():
        raise InputError(f"{file}: no such file; give the folder that holds it")
    scores = pd.read_parquet(file)
    scores = scores[scores["prompt"].notna()]
    rng = np.random.default_rng(SEED)
    ids = scores["question_id"].unique()
    chosen = rng.choice(ids, min(prompts, len(ids)), replace=False)
    return votes_from_scores(scores[scores["question_id"].isin(chosen)], votes_per_prompt, rng)


def _gains(votes: pd.DataFrame, kind: str, folder: Path) -> list[str]:
    is_left_out = votes["category"] == kind
    if not is_left_out.any() or is_left_out.all():
        raise InputError(f"no kind {kind!r} beside others; there are {', '.join(sorted(votes['category'].unique()))}")
    for name, part in (("train", votes[~is_left_out]), ("left_out", votes[is_left_out])):
        part[["prompt", "model_a", "model_b", "winner"]].to_parquet(folder / f"{name}.parquet", index=False)
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        train(["--votes", str(folder / "train.parquet"), "--output", str(folder / "model"), "--quiet"])
    model = P2L.from_pretrained(folder / "model", device="cpu")
    left_out = open_votes(folder / "left_out.parquet", model_list=model.model_list, drop_unknown=True)
    labels = left_out.labels()
    # Each prompt is read once, whatever votes there are on it.
    _, first, prompt = np.unique(hash_prompts(left_out), return_index=True, return_inverse=True)
    texts = left_out.prompts(first)
    served = model.predict(texts)
    posterior = model.model.posterior
    assert posterior is not None
    model.model.posterior = posterior.without_shrinking()
    whole = model.predict(texts)

    def losses(prediction: Prediction) -> npt.NDArray[np.float64]:
        eta, gamma = (None if column is None else column[prompt] for column in (prediction.eta, prediction.gamma))
        votes = ScoredVotes(model.model.likelihood, prediction.coefs[prompt], labels, eta, gamma)
        return vote_values("Loss", votes)

    one = {
        name: None if np.isnan(value := getattr(posterior, name).item()) else np.full(len(texts), value)
        for name in ("eta", "gamma")
    }
    coefs = np.broadcast_to(posterior.coefs.numpy(), served.coefs.shape)
    board = losses(replace(served, coefs=coefs, **one))
    shown = [str(len(texts)), f"{board.mean():.4f}"]
    for prediction in (served, whole):
        gain = bootstrap_mean(board - losses(prediction), clusters=prompt)
        shown.append(f"{gain.estimate:+.4f} [{gain.lower:+.4f}, {gain.upper:+.4f}]")
    assert served.familiarity is not None
    return [*shown, f"{np.mean(served.familiarity):.2f}"]


if __name__ == "__main__":
    run(main)
