"""Command: `p2l next-pairs`: which two models to show next, so that votes teach most of a leaderboard."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from p2l.common.cli import add_likelihood, add_output, add_quiet, add_votes, choose, counted, parser, positive, run
from p2l.common.errors import ConfigError


def build_parser() -> argparse.ArgumentParser:
    """Return the flags of `p2l next-pairs`."""
    flags = parser(
        "p2l next-pairs",
        "Choose the pairs of models to show next by what their votes would teach of the leaderboard of some votes.",
    )
    add_votes(flags, "votes so far", required=True)
    flags.add_argument("--count", type=positive, default=1000, metavar="N", help="votes to plan")
    flags.add_argument(
        "--models", nargs="+", default=[], metavar="NAME", help="plan for the places of these models (default: all)"
    )
    flags.add_argument(
        "--new", nargs="+", default=[], metavar="NAME", help="plan for these models too, which have no vote yet"
    )
    add_likelihood(flags, "of the leaderboard (default: as the votes' outcomes ask)")
    flags.add_argument(
        "--random-share",
        type=float,
        default=0.1,
        metavar="SHARE",
        help="share of pairs drawn uniformly, so that every pair has a propensity above zero",
    )
    add_output(
        flags,
        "rows of model_a, model_b, votes, propensity: .csv (for a router), .jsonl, .jsonl.gz or .parquet",
        required=True,
    )
    add_quiet(flags)
    return flags


def main(argv: Sequence[str] | None = None) -> None:
    """Write the plan."""
    args = build_parser().parse_args(argv)
    if not 0 <= args.random_share <= 1:
        raise ConfigError(f"--random-share must lie between 0 and 1, not {args.random_share}")
    import numpy as np
    import pyarrow as pa

    from p2l.common.files import check_can_write
    from p2l.leaderboard.fitting import fit_labels
    from p2l.leaderboard.next_pairs import plan_pairs
    from p2l.votes import open_votes
    from p2l.votes.sources import file_kind
    from p2l.votes.writing import write_votes

    output = check_can_write(Path(args.output).expanduser(), args.votes)
    file_kind(output)
    if not all(name.strip() for name in args.new):
        raise ConfigError("--new: a model needs a name")
    with open_votes(args.votes, need_prompt=False, quiet=args.quiet) as store:
        known, labels = store.model_list, store.labels()
    voted = next((name for name in args.new if name in known), None)
    if voted is not None:
        raise ConfigError(f"--new {voted}: has votes already; name it by --models")
    names = [*known, *dict.fromkeys(args.new)]
    board = fit_labels(labels, models=names, likelihood=args.likelihood, intervals=None)
    codes = {name: place for place, name in enumerate(names)}
    places = [choose("model", name, codes) for name in [*args.models, *args.new]]
    named = np.array(places) if places else None
    plan = plan_pairs(board, labels[:, :2], args.count, named=named, random_share=args.random_share)
    order = np.argsort(-plan.propensities, kind="stable")
    columns = {
        "model_a": [names[place] for place in plan.pairs[order, 0].tolist()],
        "model_b": [names[place] for place in plan.pairs[order, 1].tolist()],
        "votes": plan.votes[order],
        "propensity": [float(f"{share:.6g}") for share in plan.propensities[order].tolist()],
    }
    rows = pa.table(columns)
    write_votes(rows.to_batches(), rows.schema, output)
    used, pairs = int((plan.votes > 0).sum()), counted(len(plan.pairs), "pair")
    print(
        f"{args.output}: {counted(args.count, 'vote')} on {used:,} of {pairs}; standard deviation of a coefficient "
        f"{plan.variance_before**0.5:.4f} now, {plan.variance_after**0.5:.4f} expected after them, "
        f"{plan.variance_random**0.5:.4f} after as many on pairs drawn at random"
    )


if __name__ == "__main__":
    run(main)
