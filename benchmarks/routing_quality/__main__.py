"""How well does a router on a P2L choose, on five public sets of graded answers? Beside what a user would do instead.

    python -m benchmarks.routing_quality DATA_DIR [--output DIR] [--sets routerbench,zeroeval] [--bf16] [--told]

DATA_DIR holds the Parquet files that `--help` names. Prints all sets in one table where each request has the budget, in
another one where budgets are averages over requests, and with `--told` also with the category in the prompt (those of
`p2l eval-routing` for each set go to standard error), each with which bars hold: an area (or accuracy, where all
answers cost the same) of at least that of per-category best less 0.002 on every set and a larger one on three, and
nowhere a smaller one than that of leaderboards of k-means clusters, of the best single model or of nearest neighbours
whose interval leaves out zero.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from p2l.common.cli import nearest, parser, positive, run, whole
from p2l.common.errors import InputError

if TYPE_CHECKING:
    from route.evaluation.measuring import Results
    from route.evaluation.policies import Setup
    from route.evaluation.table import ScoreTable

PRICES = Path(__file__).parent / "prices.yaml"


@dataclass(frozen=True)
class ScoreSet:
    """One set: its file, and where its costs come from."""

    file: str
    priced: bool = False
    """By the length of answers and the price list beside this file."""
    one_price: bool = False


SETS = {
    "routerbench": ScoreSet("routerbench_subset.parquet"),
    "routerarena": ScoreSet("routerarena_two_models.parquet"),
    "mmlu_pro": ScoreSet("mmlu_pro_scores.parquet", priced=True),
    "zeroeval": ScoreSet("zeroeval_scores.parquet", priced=True),
    "routerdc": ScoreSet("routerdc_7b_scores.parquet", one_price=True),
}


def build_parser() -> argparse.ArgumentParser:
    """The command line of the benchmark."""
    files = ", ".join(one.file for one in SETS.values())
    flags = parser("python -m benchmarks.routing_quality", "Measure routing on public sets of graded answers.")
    flags.add_argument("data", metavar="DATA_DIR", type=Path, help=f"folder that holds {files}")
    flags.add_argument(
        "--output", type=Path, default=Path("outputs/routing_quality"), help="results and figures by set"
    )
    flags.add_argument("--figure", type=Path, help="all sets in one figure (default: routing.png in the output)")
    flags.add_argument("--cache", type=Path, help="what the encoder says of prompts (default: in the output)")
    flags.add_argument("--bf16", action="store_true", help="read prompts in bfloat16: fast on CPUs that know it")
    flags.add_argument("--sets", default=",".join(SETS), help="which sets, separated by commas")
    flags.add_argument("--recipe", choices=("both", "encoder", "words"), default="both", help="of the P2L")
    flags.add_argument("--folds", type=positive, default=5, help="each prompt is held out once, by turns")
    flags.add_argument("--trainings", type=whole, default=4, help="on halves of the training prompts, for intervals")
    flags.add_argument(
        "--told", action="store_true", help="measure with the category in front of each prompt too, all read again"
    )
    flags.add_argument("--seed", type=int, default=0, help="of the split and of the intervals")
    flags.add_argument("--quiet", action="store_true", help="no progress bars")
    return flags


def main(argv: Sequence[str] | None = None) -> None:
    """Run the benchmark."""
    flags = build_parser().parse_args(argv)
    from benchmarks.routing_quality.bars import bars, figures
    from benchmarks.routing_quality.overview import overview
    from p2l.common.plots import check_figures
    from route.evaluation.features import Encoder, packaged_encoder
    from route.evaluation.policies import Setup

    names = _chosen(flags.sets)
    figure = flags.figure or flags.output / "routing.png"
    check_figures(str(figure))
    folder = packaged_encoder()
    cache = flags.cache or flags.output / "cache"
    encoder = None if folder is None else Encoder(folder, cache, halved=flags.bf16, quiet=flags.quiet)
    setup = Setup(recipe=flags.recipe, encoder=encoder, trainings=flags.trainings)
    tables = {name: _table(flags.data, SETS[name]) for name in names}
    untold = _measured(flags, tables, setup)
    average = {**untold, **_measured(flags, _priced(tables), replace(setup, on_average=True))}
    told = _measured(flags, tables, replace(setup, category=True)) if flags.told else {}
    parts = {"A budget for each request": untold, "Budgets on average": average, "The category is told": told}
    for title, found in parts.items():
        if found:
            print(f"### {title}\n\n{figures(found)}\n\n{bars(found)}\n")
    if {"mmlu_pro", "zeroeval"} <= tables.keys():
        _moved(flags, tables, setup)
    overview(untold, told, figure)


def _measured(flags: argparse.Namespace, tables: dict[str, ScoreTable], setup: Setup) -> dict[str, Results]:
    """Results by set, told and written as they come."""
    from route.evaluation.measuring import within
    from route.evaluation.report import routing_markdown, write_results

    found = {}
    about = "average" if setup.on_average else "told" if setup.category else ""
    for name, table in tables.items():
        found[name], _ = within(table, setup, share=0.2, folds=flags.folds, seed=flags.seed)
        title = "-".join(filter(None, [name, about]))
        print(f"### {title}\n\n{routing_markdown(found[name])}\n", file=sys.stderr, flush=True)
        write_results(found[name], flags.output / title, has_figures=True)
    return found


def _priced(tables: dict[str, ScoreTable]) -> dict[str, ScoreTable]:
    """The tables whose answers have costs of their own; elsewhere a budget means nothing."""
    return {name: table for name, table in tables.items() if not table.one_price}


def _moved(flags: argparse.Namespace, tables: dict[str, ScoreTable], setup: Setup) -> None:
    """Out of distribution; the two sets share no category."""
    from route.evaluation.measuring import across
    from route.evaluation.report import routing_markdown, write_results

    moved, _ = across(tables["mmlu_pro"], tables["zeroeval"], setup, seed=flags.seed)
    print(f"### trained on mmlu_pro, tested on zeroeval\n\n{routing_markdown(moved)}\n")
    write_results(moved, flags.output / "mmlu_pro-zeroeval", has_figures=True)


def _table(data: Path, chosen: ScoreSet) -> ScoreTable:
    from route.evaluation.table import read_prices, read_table

    prices = read_prices(PRICES) if chosen.priced else None
    return read_table(data / chosen.file, prices=prices, one_price=chosen.one_price)


def _chosen(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in SETS:
            raise InputError(f"--sets: {name!r} is unknown{nearest(name, SETS)}; use some of {', '.join(SETS)}")
    return names


if __name__ == "__main__":
    run(main)
