"""Whether intervals of log-odds hold on real prompts: held-out residuals that covary on one prompt.

    python -m benchmarks.residuals DATA_DIR [--sets oasst zeroeval mmlu_pro] [--folder DIR]

`p2l train --votes` learns from votes on three quarters of the prompts of each set. The truth of a held-out prompt is
unknown, but where a prompt has several votes, what the model gets wrong about it shows in all of them: two residuals on
one prompt have a product whose mean is the covariance of the two log-odds' errors, in units of the scores' slopes.

Errors are drawn from the posterior, times a factor, and votes' residuals computed under them. The factor at which
products come out as observed is how many times larger the true variance is than the posterior's; 90 % intervals then
hold what the column says (85 to 95 %: factors from 0.70 to 1.31). Its interval redraws prompts.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from benchmarks.real_votes.sets import SETS, make
from benchmarks.tables import table
from p2l.common.cli import parser, run
from p2l.inference import P2L, Prediction
from p2l.leaderboard.newton import derivatives
from p2l.likelihood import targets
from p2l.model.reader import keep_states
from p2l.train import main as train
from p2l.votes import open_votes
from p2l.votes.splitting import hash_prompts

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
REACH = NormalDist().inv_cdf(0.95)
FACTORS = np.geomspace(0.1, 8.0, 23)
DRAWS, REDRAWN, SEED = 200, 400, 0
MOST_PROMPTS, VOTES_PER_PROMPT, HELD_OUT = 2600, 20, 0.25


class Products(NamedTuple):
    """Sums over the pairs of votes on each of n prompts."""

    observed: Floats
    """(n,)"""
    expected: Floats
    """(F, n) under the posterior times each factor."""


def residual_products(model: P2L, prediction: Prediction, prompt: Ints, labels: Ints) -> Products:
    """Return the products of residuals of votes (N, 3) on prompts (N,), each weighted by what the posterior expects."""
    assert prediction.variances is not None
    assert prediction.basis is not None
    rng, basis = np.random.default_rng(SEED), prediction.basis.astype(np.float64)
    observed, expected = list[float](), list[Floats]()
    for number in range(len(prediction.coefs)):
        rows = np.flatnonzero(prompt == number)
        if len(rows) < 2:
            continue
        winner, loser, tie = labels[rows].T
        coefs = prediction.coefs[number].astype(np.float64)
        scalars = [None if part is None else float(part[number]) for part in (prediction.eta, prediction.gamma)]
        logs, slopes, _ = derivatives(model.likelihood, coefs[winner], coefs[loser], *scalars)
        along = (slopes[..., 0] - slopes[..., 1]) / 2.0
        fisher = (np.exp(logs) * along**2).sum(axis=1)
        contrasts = (basis[winner] - basis[loser]) * fisher[:, None]
        weights = (contrasts * prediction.variances[number].astype(np.float64)) @ contrasts.T
        np.fill_diagonal(weights, 0.0)
        score = (np.asarray(targets(model.likelihood, tie), dtype=np.float64) * along).sum(axis=1)
        observed.append(float(score @ weights @ score))
        errors = rng.normal(size=(DRAWS, basis.shape[1])) * np.sqrt(prediction.variances[number]) @ basis.T
        of_factors = list[float]()
        for factor in FACTORS:
            drawn = coefs + np.sqrt(factor) * errors
            probs = model.likelihood.probs(drawn[:, winner], drawn[:, loser], *scalars)
            scores = (np.asarray(probs) * along).sum(axis=2)
            of_factors.append(float(np.einsum("sn,nm,sm->s", scores, weights, scores).mean()))
        expected.append(np.array(of_factors))
    return Products(np.array(observed), np.stack(expected, axis=1))


def factor_of(products: Products, rows: Ints) -> float:
    """Return the factor at which the products of these prompts are expected as they are observed."""
    sums = products.expected[:, rows].sum(axis=1)
    return float(np.interp(products.observed[rows].sum(), np.maximum.accumulate(sums), FACTORS))


def coverage_of(factor: float) -> float:
    """Return the share of errors that 90 % intervals hold where the variance is `factor` times the posterior's."""
    return 2.0 * NormalDist().cdf(REACH / factor**0.5) - 1.0


def measure(name: str, data: Path, folder: Path) -> list[str]:
    """Train on a set, unless that is done, and return its row."""
    folder.mkdir(parents=True, exist_ok=True)
    votes_of = replace(SETS[name], votes_per_prompt=VOTES_PER_PROMPT, held_out=HELD_OUT)
    if not (folder / "run" / "comparison.json").is_file():
        make(votes_of, data, folder, MOST_PROMPTS)
        words = ["--votes", str(folder / "train.parquet"), "--output", str(folder / "run"), "--quiet"]
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            train(words)
    model = P2L.from_pretrained(folder / "run", device="cpu")
    keep_states(model.model.model)
    with open_votes(folder / "val.parquet", model_list=model.model_list, drop_unknown=True) as votes:
        _, first, prompt = np.unique(hash_prompts(votes), return_index=True, return_inverse=True)
        prediction = model.predict(votes.prompts(first))
        products = residual_products(model, prediction, prompt, votes.labels().astype(np.int64))
    number = len(products.observed)
    rng = np.random.default_rng(SEED)
    redrawn = [factor_of(products, rng.integers(number, size=number)) for _ in range(REDRAWN)]
    low, high = np.quantile(redrawn, [0.025, 0.975])
    factor = factor_of(products, np.arange(number))
    return [
        name,
        f"{len(prompt):,}",
        f"{number:,}",
        f"{factor:.2f} [{low:.2f}, {high:.2f}]",
        f"{coverage_of(factor):.1%} [{coverage_of(high):.1%}, {coverage_of(low):.1%}]",
    ]


def build_parser() -> argparse.ArgumentParser:
    """Return the flags of the benchmark."""
    flags = parser("python -m benchmarks.residuals", "Measure intervals of log-odds on votes of real prompts.")
    flags.add_argument("data", type=Path, help="folder of the public files")
    flags.add_argument("--sets", nargs="+", default=["oasst", "zeroeval", "mmlu_pro"], metavar="NAME")
    flags.add_argument("--folder", type=Path, help="keep models here, and go on with those that are trained")
    return flags


def main(argv: Sequence[str] | None = None) -> None:
    """Print a row for each set."""
    args = build_parser().parse_args(argv)
    with tempfile.TemporaryDirectory() as temporary:
        rows = [measure(name, args.data, (args.folder or Path(temporary)) / name) for name in args.sets]
    header = ["set", "votes", "prompts", "true variance over the posterior's", "90 % intervals hold"]
    print(table(header, rows))


if __name__ == "__main__":
    run(main)
