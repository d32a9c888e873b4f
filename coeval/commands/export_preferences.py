"""Command: write what judges preferred as votes, which `p2l train` takes as they are."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from coeval.command import run
from p2l.command import amount, parser

if TYPE_CHECKING:
    from coeval.pairs.gathering import Gathered, Wanted

__all__ = ["add_selection", "build_parser", "main", "tell_left_out", "wanted_of"]


def build_parser() -> argparse.ArgumentParser:
    """The flags."""
    flags = parser(
        "coeval analyze export-preferences",
        "Write preferences between students as votes for `p2l train`: train and val parts, and model_list.json.",
    )
    flags.add_argument("--run", required=True, type=Path, metavar="PATH", help="folder of the run")
    flags.add_argument("--out", required=True, type=Path, metavar="PATH", help="folder to write")
    flags.add_argument(
        "--format",
        choices=("jsonl", "parquet", "hf"),
        default="jsonl",
        help="of the votes; hf: a folder as `datasets` saves it",
    )
    flags.add_argument("--val-share", type=_share, default=0.1, metavar="S", help="share of the prompts held out")
    add_selection(flags)
    return flags


def add_selection(flags: argparse.ArgumentParser) -> None:
    """Add what chooses the preferences."""
    flags.add_argument(
        "--source",
        choices=("auto", "native", "derived"),
        default="auto",
        help="native: verdicts on pairs; derived: from scores; auto: verdicts for tasks that have them, else scores",
    )
    flags.add_argument(
        "--rows", choices=("judge", "majority"), default="judge", help="a vote of each judge, or one of all together"
    )
    flags.add_argument("--judges", type=_names, default=(), metavar="A,B", help="of these judges alone")
    flags.add_argument("--keep-self-judged", action="store_true", help="keep what a judge says about its own answers")
    flags.add_argument("--margin", type=amount, default=0.1, help="derived: the better has to be ahead by more")
    flags.add_argument("--bad", type=amount, default=0.25, help="derived: a tie of scores up to this is of both bad")
    flags.add_argument(
        "--factor-weight",
        type=_weight,
        action="append",
        default=[],
        metavar="FACTOR=W",
        help="derived: weight of a factor, that of the rubric by default; may be given several times",
    )
    flags.add_argument(
        "--scores-of", choices=("model", "metric", "label"), default="model", help="derived: whose scores count"
    )
    flags.add_argument("--seed", type=int, default=0, help="derived: of which model is model_a")


def wanted_of(given: argparse.Namespace) -> Wanted:
    """What the flags of `add_selection` say."""
    from coeval.pairs.derive import Rule
    from coeval.pairs.gathering import Wanted

    rule = Rule(given.margin, given.bad, dict(given.factor_weight), given.scores_of, given.seed)
    return Wanted(given.source, given.rows, given.judges, given.keep_self_judged, rule)


def tell_left_out(gathered: Gathered) -> None:
    """Say on stderr which records were of no use, and that self-judged preferences do not count."""
    for one in gathered.skipped:
        print(f"skipped: {one.count} {one.code}, such as {one.example}", file=sys.stderr)
    if gathered.self_judged:
        print(
            f"{gathered.self_judged} self-judged preferences left out; --keep-self-judged keeps them", file=sys.stderr
        )


def _share(text: str) -> float:
    share = amount(text)
    if share >= 1:
        raise argparse.ArgumentTypeError(f"must be below 1, got {text}")
    return share


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _weight(text: str) -> tuple[str, float]:
    factor, equals, weight = text.rpartition("=")
    if not equals or not factor:
        raise argparse.ArgumentTypeError(f"must be FACTOR=WEIGHT, such as clarity=2, got {text}")
    return factor, amount(weight)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; it ends with 1 where the folder holds no run, or the run no preferences."""
    given = build_parser().parse_args(argv)
    from coeval.pairs.export import export
    from coeval.pairs.gathering import gather
    from coeval.storage.layout import Run

    folder = Run(given.run)
    gathered = gather(folder, wanted_of(given))
    tell_left_out(gathered)
    done = export(folder, gathered, given.out, given.format, given.val_share)
    if done.without_prompt:
        print(f"{done.without_prompt} preferences left out: their items have no prompt", file=sys.stderr)
    print(f"{given.out}: {done.train} votes to train on, {done.validation} to validate on, {done.prompts} prompts,")
    print(f"{len(done.models)} models: {', '.join(done.models)}")
    print(f"train on them: p2l train --votes {_source(given)}")
    return 0


def _source(given: argparse.Namespace) -> str:
    ending = "" if given.format == "hf" else f".{given.format}"
    train, validation = (given.out / f"{part}{ending}" for part in ("train", "val"))
    return f"{train}" + (f" --val {validation}" if validation.exists() else "")


if __name__ == "__main__":
    run(main)
