"""What a sentence encoder is worth to the reader, by set and by language: `p2l train --votes` with each, in five folds.

    python -m benchmarks.encoders DATA_DIR [--encoders minilm multilingual] [--sets oasst ...] [--output DIR]

Prompts are drawn once and parted into folds; each fold is forecast by models that were trained on the others as a user
types it. Losses are nats a vote, gains those over one leaderboard of the same training votes, with 95 % intervals
(prompts drawn whole). The last column is the first encoder's loss less the last one's. Finished folds stay in the
output folder: the same command again goes on with the next one.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd

from benchmarks.real_votes.parts import Part, read_part, vote_losses
from benchmarks.real_votes.sets import COLUMNS, oasst_votes, prompt_groups, votes_from_scores
from p2l.common.bootstrap import bootstrap_mean
from p2l.common.cli import parser, positive, run
from p2l.common.errors import InputError
from p2l.common.text_table import text_table
from p2l.inference import P2L
from p2l.leaderboard import fit_labels
from p2l.train import main as train
from p2l.training.forecasts import Forecast

DEFAULT = "minilm"
FOLDS = 5
SEED = 0
_CHINESE = ("cmmlu", "ceval")
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class SetOfVotes:
    """One set: its file, how its rows become votes, and what its groups are."""

    file: str
    votes_of: Callable[[pd.DataFrame, int, np.random.Generator], pd.DataFrame]
    votes_per_prompt: int
    group_of: Callable[[str], str] = lambda _: "English"
    """The language of a category."""


SETS = {
    "oasst": SetOfVotes(
        "oasst_vicuna_gpt4_battles",
        oasst_votes,
        40,
        lambda category: category.removesuffix(" turns").rpartition(",")[0],
    ),
    "routerdc": SetOfVotes(
        "routerdc_7b_scores", votes_from_scores, 12, lambda kind: "Chinese" if kind in _CHINESE else "English"
    ),
    "zeroeval": SetOfVotes("zeroeval_scores", votes_from_scores, 20),
    "mmlu_pro": SetOfVotes("mmlu_pro_scores", votes_from_scores, 20),
}


def build_parser() -> argparse.ArgumentParser:
    """The command line."""
    command = parser("python -m benchmarks.encoders", description=__doc__)
    command.add_argument("data", type=Path, metavar="DATA_DIR", help="folder of the votes and scores")
    command.add_argument(
        "--encoders",
        nargs="+",
        default=[DEFAULT, "multilingual"],
        help=f"{DEFAULT}, or what --encoder of p2l train takes",
    )
    command.add_argument("--sets", nargs="+", choices=SETS, default=list(SETS), help="(default: all)")
    command.add_argument("--prompts", type=positive, default=1000, help="prompts of each set (default: 1000)")
    command.add_argument("--output", type=Path, default=Path("outputs/encoders"), help="work folder; goes on there")
    return command


def main(argv: Sequence[str] | None = None) -> None:
    """Train what is not finished, then print the table."""
    flags = build_parser().parse_args(argv)
    rows = []
    for name in flags.sets:
        votes = _draw(flags.data, name, flags.prompts)
        parts = []
        for fold in range(FOLDS):
            train_votes, held = votes[votes["fold"] != fold], votes[votes["fold"] == fold]
            parts.append(held.assign(**_losses(train_votes, held, flags.output / f"{name}-{fold}", flags.encoders)))
        scored = pd.concat(parts)
        rows += _rows(name, scored, flags.encoders)
    heads = ["set", "prompts", "one leaderboard", *(f"gain, {name}" for name in flags.encoders), "difference"]
    print("\n".join(text_table(heads, rows, left={0})))


def _draw(data: Path, name: str, most: int) -> pd.DataFrame:
    """Return the votes of a set with the group and the fold of each."""
    chosen = SETS[name]
    file = data / f"{chosen.file}.parquet"
    if not file.is_file():
        raise InputError(f"{file}: no such file; give the folder that holds it")
    rng = np.random.default_rng(SEED)
    votes = chosen.votes_of(pd.read_parquet(file), chosen.votes_per_prompt, rng)
    prompt = prompt_groups(votes)
    place = rng.permutation(prompt.max() + 1)[prompt]
    group = votes["category"].map(chosen.group_of)
    return votes.assign(cluster=prompt, fold=place % FOLDS, group=group)[place < most].reset_index(drop=True)


def _losses(votes: pd.DataFrame, held: pd.DataFrame, folder: Path, encoders: Sequence[str]) -> dict[str, Floats]:
    """Return the losses of held-out votes by one leaderboard and by each encoder; those of before are read."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, rows in (("train", votes), ("held", held)):
        rows[COLUMNS].to_parquet(folder / f"{name}.parquet", index=False)
    losses = {}
    for encoder in encoders:
        kept = folder / f"{encoder.replace('/', '-')}.npz"
        if not kept.exists():
            np.savez(kept, **_fold(folder, encoder))  # type: ignore[arg-type]
            print(f"{kept}: finished", flush=True)
        with np.load(kept) as arrays:
            losses |= {"one": arrays["one"], encoder: arrays["model"]}
    return losses


def _fold(folder: Path, encoder: str) -> dict[str, Floats]:
    """Train with an encoder and return the losses of held-out votes, and those by one leaderboard."""
    model = folder / "model"
    shutil.rmtree(model, ignore_errors=True)
    more = [] if encoder == DEFAULT else ["--encoder", encoder]
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        train(["--votes", str(folder / "train.parquet"), "--output", str(model), "--quiet", *more])
    p2l = P2L.from_pretrained(model, device="cpu")
    part = read_part(folder / "train.parquet", p2l.model_list)
    asked = read_part(folder / "held.parquet", p2l.model_list)
    board = fit_labels(part.labels, models=part.models, likelihood=p2l.likelihood.name, intervals=None)
    said = p2l.predict(asked.prompts)
    shutil.rmtree(model)
    return {
        "one": _vote_losses(asked, np.broadcast_to(board.coefs, said.coefs.shape), board.eta, p2l.likelihood.name),
        "model": _vote_losses(asked, said.coefs, said.eta, p2l.likelihood.name),
    }


def _vote_losses(asked: Part, coefs: Floats, eta: Floats | float | None, likelihood: str) -> Floats:
    """Return the losses (N,) of votes by what is said of their prompts: coefs (U, M), eta (U,) or one for all."""
    of_votes = None if eta is None else np.broadcast_to(eta, len(coefs))[asked.place]
    return vote_losses(Forecast(coefs[asked.place], of_votes), asked, likelihood)


def _rows(name: str, scored: pd.DataFrame, encoders: Sequence[str]) -> list[list[str]]:
    """Return the rows of a set: all of it, then each of its groups."""
    groups = sorted(scored["group"].unique(), key=lambda group: -int((scored["group"] == group).sum()))
    parts = [(name, scored)]
    parts += [(f"{name}: {group}", scored[scored["group"] == group]) for group in groups] if len(groups) > 1 else []
    return [_row(title, votes, encoders) for title, votes in parts]


def _row(title: str, votes: pd.DataFrame, encoders: Sequence[str]) -> list[str]:
    clusters = pd.factorize(votes["cluster"])[0]

    def shown(gain: pd.Series) -> str:
        interval = bootstrap_mean(gain.to_numpy(), clusters=clusters)
        return f"{interval.estimate:+.4f} [{interval.lower:+.4f}, {interval.upper:+.4f}]"

    gains = [shown(votes["one"] - votes[encoder]) for encoder in encoders]
    difference = shown(votes[encoders[0]] - votes[encoders[-1]])
    return [title, str(clusters.max() + 1), f"{votes['one'].mean():.4f}", *gains, difference]


if __name__ == "__main__":
    run(main)
