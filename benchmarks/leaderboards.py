"""How long leaderboards take: from votes, beside evalica and arena-rank, and from per-prompt coefficients.

Promises: 2.2 million votes between 130 models, from strings, intervals included, in at most 0.5 s and faster than both;
10,000 prompts x 130 models under grounded Rao-Kupper aggregated in at most 5 s within 500 MB.

The votes are drawn from a known truth. Every library starts from the same strings (NumPy object arrays of Python
text) and does what its documentation says to do: evalica `bradley_terry` with ties as half wins (and `bootstrap` for
intervals, whose time is that of a few resamples, extrapolated), arena-rank `PairDataset.from_pandas` and
`BradleyTerry` with its sandwich intervals. What they compute is the likelihood `bt-tie` here. Each measurement is the
median of `--repeat` runs after a warm-up. Run it as `python -m benchmarks.leaderboards`; libraries that are not
installed are left out.
"""

from __future__ import annotations

import argparse
import importlib.util
import math
import multiprocessing
import os
import resource
import statistics
import time
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

import numpy as np

from benchmarks.tables import table
from p2l import likelihood as likelihoods
from p2l.leaderboard import aggregate, fit
from p2l.leaderboard.newton import Prior
from p2l.votes import WINNERS, encode_votes

RESAMPLES = 2


def simulate(votes: int, models: int, seed: int) -> tuple[Any, Any, Any, Any]:
    """Votes as text (N,) and the true coefficients (M,)."""
    rng = np.random.default_rng(seed)
    truth = rng.normal(0.5, 0.8, models)
    names = np.array([f"organisation-{index % 17}/model-{index}-instruct" for index in range(models)], dtype=object)
    a = rng.integers(0, models, votes)
    b = (a + rng.integers(1, models, votes)) % models
    probs = likelihoods.get("grk").probs(truth[a], truth[b], np.asarray(-0.5))
    outcome = np.minimum((rng.random(votes)[:, None] > probs.cumsum(axis=1)).sum(axis=1), 3)
    return names[a], names[b], np.array(WINNERS, dtype=object)[outcome], truth


def timed(run: Callable[[], Any], repeat: int) -> tuple[float, Any]:
    """Median seconds of `repeat` runs after one that warms up, and the last result."""
    result = run()
    seconds = []
    for _ in range(repeat):
        start = time.perf_counter()
        result = run()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds), result


def ours(votes: tuple[Any, Any, Any], likelihood: str, intervals: str | None, prior: Prior | None = None) -> Any:
    codes = encode_votes(*votes)
    return fit(*codes[1:], models=codes.models, likelihood=likelihood, intervals=intervals, prior=prior)


def evalica_point(votes: tuple[Any, Any, Any]) -> Any:
    import evalica

    table = {"model_a": evalica.Winner.X, "model_b": evalica.Winner.Y}
    winners = [table.get(winner, evalica.Winner.Draw) for winner in votes[2]]
    result = evalica.bradley_terry(votes[0], votes[1], winners)
    return dict(zip(result.scores.index, np.log(result.scores.to_numpy()), strict=True))


def evalica_resamples(votes: tuple[Any, Any, Any]) -> Any:
    import evalica

    table = {"model_a": evalica.Winner.X, "model_b": evalica.Winner.Y}
    winners = [table.get(winner, evalica.Winner.Draw) for winner in votes[2]]
    return evalica.bootstrap(
        evalica.bradley_terry, *votes[:2], winners, n_resamples=RESAMPLES, bootstrap_method="percentile"
    )


def arena_rank(votes: tuple[Any, Any, Any]) -> Any:
    import pandas as pd
    from arena_rank.models.bradley_terry import BradleyTerry
    from arena_rank.utils.data_utils import PairDataset

    frame = pd.DataFrame(dict(zip(("model_a", "model_b", "winner"), votes, strict=True)))
    dataset = PairDataset.from_pandas(frame)
    model = BradleyTerry(n_competitors=len(dataset.competitors))
    result = model.compute_ratings_and_cis(dataset, ci_method="sandwich")
    coefs = (np.asarray(result["ratings"]) - 1000.0) / model.alpha
    return dict(zip(result["competitors"], coefs, strict=True))


def largest_difference(board: Any, other: dict[str, float]) -> float:
    """Largest difference of two leaderboards after centring, in logits."""
    theirs = np.array([other[name] for name in board.models])
    return float(np.abs(board.coefs - board.coefs.mean() - theirs + theirs.mean()).max())


def measure_votes(args: argparse.Namespace) -> None:
    *columns, _ = simulate(args.votes, args.models, args.seed)
    votes = (columns[0], columns[1], columns[2])
    base, board = timed(lambda: ours(votes, "bt-tie", "sandwich"), args.repeat)
    rows = [["p2l bt-tie", "sandwich", f"{base:.2f}", "1"]]
    for likelihood in ("bt", "rk", "grk"):
        seconds, _ = timed(lambda name=likelihood: ours(votes, name, "sandwich"), args.repeat)
        rows.append([f"p2l {likelihood}", "sandwich", f"{seconds:.2f}", f"{seconds / base:.1f}"])
    seconds, _ = timed(lambda: ours(votes, "bt-tie", "bootstrap"), 1)
    rows.append(["p2l bt-tie", "bootstrap, 200", f"{seconds:.1f}", f"{seconds / base:.1f}"])
    plain = ours(votes, "bt-tie", None, Prior(sd=math.inf))  # as the others fit
    differences = {
        "ours with a fitted prior": largest_difference(plain, dict(zip(board.models, board.coefs, strict=True)))
    }
    if importlib.util.find_spec("evalica"):
        name = f"evalica {version('evalica')}"
        seconds, scores = timed(lambda: evalica_point(votes), args.repeat)
        differences[name] = largest_difference(plain, scores)
        rows.append([name, "none", f"{seconds:.2f}", f"{seconds / base:.1f}"])
        several, _ = timed(lambda: evalica_resamples(votes), 1)
        whole = seconds + (several - seconds) / RESAMPLES * 200
        rows.append([name, "bootstrap, 200 (extrapolated from a few)", f"{whole:.0f}", f"{whole / base:.0f}"])
    if importlib.util.find_spec("arena_rank"):
        name = f"arena-rank {version('arena-rank')}"
        seconds, scores = timed(lambda: arena_rank(votes), args.repeat)
        differences[name] = largest_difference(plain, scores)
        rows.append([name, "sandwich", f"{seconds:.2f}", f"{seconds / base:.1f}"])
    print(f"\n{args.votes:,} votes, {args.models} models, from strings\n")
    print(table(["library and likelihood", "intervals", "seconds", "times p2l"], rows))
    apart = [[name, f"{value:.1e}"] for name, value in differences.items()]
    print(f"\n{table(['coefficients of p2l without a prior beside', 'largest difference, logits'], apart)}")


def measure_aggregation(args: argparse.Namespace) -> None:
    rng = np.random.default_rng(args.seed)
    truth = rng.normal(0.5, 0.8, args.models)
    coefs = (truth + rng.normal(0, 0.5, (args.prompts, args.models))).astype(np.float32)
    eta = rng.normal(-0.5, 0.3, args.prompts)
    names = [f"model-{index}" for index in range(args.models)]
    rows = []
    for intervals in (None, "sandwich", "bootstrap"):
        repeat = 1 if intervals == "bootstrap" else args.repeat
        seconds, _ = timed(lambda kind=intervals: aggregate(coefs, eta, models=names, intervals=kind), repeat)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        label = "bootstrap, 100" if intervals == "bootstrap" else intervals or "none"
        rows.append([label, f"{seconds:.2f}", f"{peak:.0f} MB"])
    print(f"\n{args.prompts:,} prompts x {args.models} models, grounded Rao-Kupper, aggregated\n")
    print(table(["intervals", "seconds", "peak memory"], rows))


def build_parser() -> argparse.ArgumentParser:
    """Return the flags of the benchmark."""
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("--votes", type=int, default=2_200_000)
    flags.add_argument("--models", type=int, default=130)
    flags.add_argument("--prompts", type=int, default=10_000)
    flags.add_argument("--repeat", type=int, default=5)
    flags.add_argument("--seed", type=int, default=0)
    return flags


def main() -> None:
    args = build_parser().parse_args()
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, NumPy {np.__version__}, seed {args.seed}")
    # Each part in a process of its own: the memory of one does not count for the other.
    for part in (measure_votes, measure_aggregation):
        worker = multiprocessing.get_context("spawn").Process(target=part, args=(args,))
        worker.start()
        worker.join()
        if worker.exitcode:
            raise SystemExit(worker.exitcode)


if __name__ == "__main__":
    main()
