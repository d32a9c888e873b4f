"""Covariates of leaderboards: planted effects, the same coefficients as arena-rank's, and what `side` is worth.

Promises: 95 % intervals of planted effects hold them in 93 to 97 % of 200 simulations, under every likelihood;
style-controlled coefficients equal arena-rank's to 1e-3 without priors; `side` lowers the loss of held-out votes of
`oasst_vicuna_gpt4_battles` by at least 0.010 nats. Beside them, the error of coefficients under the fitted prior.

Votes are simulated from the outcome model itself, with models whose answers have lengths of their own, so that a
leaderboard without `--control` takes part of the effect of length for ability: its error stands beside. Folds are of
whole prompts, and the interval of a gain draws prompts. Run it as `python -m benchmarks.covariates DATA_DIR`;
without the data, or without arena-rank, that part is left out.
"""

from __future__ import annotations

import argparse
import importlib.util
import math
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.tables import share, table
from p2l import likelihood as likelihoods
from p2l.common.bootstrap import bootstrap_mean
from p2l.leaderboard import Covariates, Leaderboard, Prior, fit
from p2l.votes import WINNERS, encode_votes

EFFECTS = {"side": 0.3, "length": 0.8, "bold": -0.3}
FOLDS = 5


def simulate(likelihood: str, votes: int, models: int, rng: np.random.Generator) -> tuple[Any, ...]:
    """Return codes of both models, winners, covariates (columns by name) and the true coefficients (M,)."""
    model = likelihoods.get(likelihood)
    truth, verbosity = rng.normal(0.3, 0.8, models), rng.normal(0.0, 0.5, models)
    a = rng.integers(0, models, votes)
    b = (a + rng.integers(1, models, votes)) % models
    length, bold = (np.tanh(verbosity[a] - verbosity[b] + rng.normal(0, 0.5, votes)) for _ in range(2))
    covariates = {"side": np.ones(votes), "length": length, "bold": bold}
    lean = 0.5 * sum(EFFECTS[name] * column for name, column in covariates.items())
    eta = np.asarray(-6.0 if likelihood == "rk" else -0.3)
    probs = model.probs(truth[a] + lean, truth[b] - lean, eta, np.asarray(0.0))
    winner = np.minimum((rng.random(votes)[:, None] > probs.cumsum(axis=1)).sum(axis=1), probs.shape[1] - 1)
    return a, b, winner, covariates, truth


def error(board: Leaderboard, truth: Any) -> float:
    """Return the root mean square error of the coefficients, each centred."""
    return float(np.std(board.coefs - truth))


def planted(simulations: int, votes: int) -> None:
    """Print how often intervals hold the planted effects, and the error of coefficients with and without control."""
    rows = []
    for likelihood in likelihoods.names():
        rng = np.random.default_rng(18)
        inside, errors, seconds = [], [], 0.0
        for _ in range(simulations):
            a, b, winner, covariates, truth = simulate(likelihood, votes, 8, rng)
            options: dict[str, Any] = {"models": [f"m{index}" for index in range(8)], "likelihood": likelihood}
            start = time.process_time()
            board = fit(a, b, winner, covariates=covariates, **options)
            seconds += time.process_time() - start
            inside.append([effect.lower < EFFECTS[effect.name] < effect.upper for effect in board.effects])
            errors.append([error(board, truth), error(fit(a, b, winner, intervals=None, **options), truth)])
        held, (controlled, plain) = np.mean(inside, axis=0), np.mean(errors, axis=0)
        cells = [likelihood, *(share(part, 1) for part in held), share(np.mean(held), 1)]
        rows.append([*cells, f"{controlled:.3f}", f"{plain:.3f}", f"{seconds / simulations:.3f}"])
    print(f"\nPlanted effects, {simulations} simulations of {votes:,} votes of 8 models: share inside 95 % intervals\n")
    header = ["likelihood", *EFFECTS, "all", "error of coefs", "without control", "CPU seconds a fit"]
    print(table(header, rows))


def fitted_prior(simulations: int) -> None:
    """Print the error of coefficients under the fitted prior, and under one of standard deviation 5."""
    rows = []
    for votes in (300, 1_000, 10_000):
        rng, errors, sds = np.random.default_rng(5), [], []
        for _ in range(simulations):
            a, b, winner, _, truth = simulate("grk", votes, 60, rng)
            options: dict[str, Any] = {"models": [f"m{index}" for index in range(60)], "intervals": None}
            boards = [fit(a, b, winner, likelihood="grk", prior=prior, **options) for prior in (None, Prior())]
            errors.append([error(board, truth) for board in boards])
            sds.append(boards[0].prior_sd)
        means = np.mean(errors, axis=0)
        rows.append([f"{votes:,}", f"{np.mean(sds):.2f}", f"{means[0]:.3f}", f"{means[1]:.3f}"])
    print(f"\nError of coefficients, 60 models whose standard deviation is 0.8, grk, {simulations} simulations\n")
    print(table(["votes", "fitted sd", "fitted prior", "sd 5"], rows))


def beside_arena_rank(votes: int) -> None:
    """Print the largest difference to arena-rank's coefficients and effects, without priors and penalties."""
    if importlib.util.find_spec("arena_rank") is None:
        print("\narena-rank is not installed: its comparison is left out")
        return
    import pandas as pd
    from arena_rank.models.contextual_bradley_terry import ContextualBradleyTerry
    from arena_rank.utils.data_utils import ContextualPairDataset

    a, b, winner, covariates, _ = simulate("bt", votes, 20, np.random.default_rng(7))
    names = [f"model-{index:02}" for index in range(20)]
    frame = pd.DataFrame({"model_a": np.array(names)[a], "model_b": np.array(names)[b]} | covariates)
    frame["winner"] = np.array(WINNERS)[winner]
    start = time.process_time()
    columns = {"reweighted": False, "normalize_features": False}
    pairs = ContextualPairDataset.from_pandas(frame, list(covariates), **columns)
    model = ContextualBradleyTerry(len(names), len(covariates), reg=0.0, hessian_reg=0.0)
    model.fit(pairs)
    middle = time.process_time()
    board = fit(a, b, winner, models=names, covariates=covariates, prior=Prior(sd=math.inf), intervals=None)
    end = time.process_time()
    theirs = dict(zip(pairs.competitors, np.asarray(model.params["ratings"]), strict=True))
    ratings = np.array([float(theirs[name]) for name in names])
    coefs = np.abs(board.coefs - board.coefs.mean() - ratings + ratings.mean()).max()
    effects = np.abs(np.array([effect.coef for effect in board.effects]) - np.asarray(model.params["coeffs"])).max()
    print(f"\nBeside arena-rank, {votes:,} votes of 20 models, side, length and bold controlled, no priors\n")
    cells = [f"{coefs:.1e}", f"{effects:.1e}", f"{middle - start:.2f}", f"{end - middle:.2f}"]
    beside = ["largest difference of coefficients", "of effects", "CPU seconds of arena-rank", "of p2l"]
    print(table(beside, [cells]))


def side_of(data: Path) -> None:
    """Print the loss of held-out votes with and without `side`, on prompts that were not fitted."""
    file = data / "oasst_vicuna_gpt4_battles.parquet"
    if not file.is_file():
        print(f"\n{file.name} is not there: the gain of side is left out")
        return
    import pandas as pd

    frame = pd.read_parquet(file, columns=["question_id", "model_a", "model_b", "winner"])
    codes = encode_votes(frame["model_a"], frame["model_b"], frame["winner"])
    prompts = np.unique(frame["question_id"], return_inverse=True)[1]
    fold = np.random.default_rng(0).permutation(prompts.max() + 1)[prompts] % FOLDS
    rows = []
    for likelihood in ("bt", "bt-tie", "rk"):
        losses = np.stack([_losses(codes, fold, likelihood, side=side) for side in (False, True)])
        counts = np.isfinite(losses[0])
        losses, clusters = losses[:, counts], prompts[counts]
        gain, ends = float((losses[0] - losses[1]).mean()), bootstrap_mean(losses[0] - losses[1], clusters=clusters)
        means = losses.mean(axis=1)
        interval = f"[{ends.lower:.4f}, {ends.upper:.4f}]"
        rows.append([likelihood, f"{means[0]:.4f}", f"{means[1]:.4f}", f"{gain:.4f} {interval}"])
    print(f"\nHeld-out loss of {file.stem}, {FOLDS} folds of prompts\n")
    print(table(["likelihood", "one leaderboard", "with `side`", "gain (95 %, prompts drawn)"], rows))


def _losses(codes: Any, fold: Any, likelihood: str, *, side: bool) -> Any:
    """Return the loss (N,) of each vote under the leaderboard of the other folds; NaN where it does not count."""
    from p2l.leaderboard.newton import winner_targets

    out = np.full(len(fold), np.nan)
    targets = winner_targets(likelihoods.get(likelihood))
    for held_out in range(FOLDS):
        train, test = fold != held_out, fold == held_out
        columns = [column[train] for column in (codes.model_a, codes.model_b, codes.winner)]
        covariates = {"side": np.ones(int(train.sum()))} if side else None
        board = fit(*columns, models=codes.models, likelihood=likelihood, covariates=covariates, intervals=None)
        ones = Covariates(("side",), ("difference",), np.ones((int(test.sum()), 1))) if side else None
        logs = board.log_probs(codes.model_a[test], codes.model_b[test], ones)
        own = targets[codes.winner[test]]
        out[test] = np.where(own.sum(axis=1) > 0, -(own * logs).sum(axis=1), np.nan)
    return out


def speed(votes: int) -> None:
    """Print the seconds of a fit with intervals of many votes: none, one and three covariates."""
    a, b, winner, covariates, _ = simulate("grk", votes, 130, np.random.default_rng(3))
    rows = []
    for names in ((), ("side",), tuple(covariates)):
        own = {name: covariates[name] for name in names} or None
        start = time.process_time()
        fit(a, b, winner, models=[f"m{index}" for index in range(130)], likelihood="grk", covariates=own)
        rows.append([", ".join(names) or "none", f"{time.process_time() - start:.1f}"])
    print(f"\nCPU seconds of a fit of {votes:,} votes of 130 models under grk, with intervals\n")
    print(table(["covariates", "CPU seconds"], rows))


def build_parser() -> argparse.ArgumentParser:
    """Return the flags of the benchmark."""
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("--simulations", type=int, default=200)
    flags.add_argument("--votes", type=int, default=2_000, help="of a simulation")
    flags.add_argument("data", metavar="DATA_DIR", type=Path, help="folder with oasst_vicuna_gpt4_battles.parquet")
    flags.add_argument("--many", type=int, default=1_000_000, help="votes of the measurement of speed; 0: none")
    return flags


def main() -> None:
    """Run the parts."""
    args = build_parser().parse_args()
    planted(args.simulations, args.votes)
    beside_arena_rank(50_000)
    side_of(args.data)
    fitted_prior(max(2, args.simulations // 10))
    if args.many:
        speed(args.many)


if __name__ == "__main__":
    main()
