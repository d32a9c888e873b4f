"""How well does a router on a P2L choose, on five public sets of graded answers? Beside what a user would do instead.

    python -m benchmarks.routing_quality DATA_DIR [--output DIR] [--sets routerbench,zeroeval] [--folds 5]

DATA_DIR holds the Parquet files that `--help` names. Prints the tables of `p2l eval-routing` for each set, then which
bars hold: a larger area (or accuracy) than the best single model, per-category best and nearest neighbours on three
sets, and nowhere a smaller one than the best single model whose interval leaves out zero.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from p2l.command import nearest, parser, positive, run
from p2l.errors import InputError

if TYPE_CHECKING:
    from p2l.metrics import Interval
    from route.evaluation.measuring import Results
    from route.evaluation.table import ScoreTable

PRICES = Path(__file__).parent / "prices.yaml"
RIVALS = ("single", "category", "nearest")
WANTED = 3


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
    flags.add_argument("--sets", default=",".join(SETS), help="which sets, separated by commas")
    flags.add_argument("--recipe", choices=("committee", "encoder", "words"), default="committee", help="of the P2L")
    flags.add_argument("--folds", type=positive, default=1, help="each prompt is held out once, by turns")
    flags.add_argument("--seed", type=int, default=0, help="of the split and of the intervals")
    flags.add_argument("--quiet", action="store_true", help="no progress bars")
    return flags


def main(argv: Sequence[str] | None = None) -> None:
    """Run the benchmark."""
    flags = build_parser().parse_args(argv)
    from route.evaluation.features import Encoder, packaged_encoder
    from route.evaluation.measuring import across, within
    from route.evaluation.policies import Asked
    from route.evaluation.report import text, write

    folder = packaged_encoder()
    encoder = None if folder is None else Encoder(folder, flags.output / "cache")
    asked = Asked(recipe=flags.recipe, encoder=encoder, quiet=flags.quiet)
    tables, found = {}, {}
    for name in _chosen(flags.sets):
        tables[name] = _table(flags.data, SETS[name])
        found[name], _ = within(tables[name], asked, share=0.2, folds=flags.folds, seed=flags.seed)
        print(f"### {name}\n\n{text(found[name])}\n", flush=True)
        write(found[name], flags.output / name, figure=True)
    print(_bars(found))
    if {"mmlu_pro", "zeroeval"} <= tables.keys():
        moved, _ = across(tables["mmlu_pro"], tables["zeroeval"], asked, seed=flags.seed)
        print(f"\n### trained on mmlu_pro, tested on zeroeval\n\n{text(moved)}")
        write(moved, flags.output / "mmlu_pro-zeroeval", figure=True)


def _table(data: Path, chosen: ScoreSet) -> ScoreTable:
    from route.evaluation.prices import read_prices
    from route.evaluation.table import read_table

    prices = read_prices(PRICES) if chosen.priced else None
    return read_table(data / chosen.file, prices=prices, one_price=chosen.one_price)


def _bars(found: dict[str, Results]) -> str:
    rows = [["set", *(f"than {found[next(iter(found))].lines[rival].about}" for rival in RIVALS), "better than all"]]
    rows.append(["---"] * len(rows[0]))
    wins, worse = 0, []
    for name, results in found.items():
        more = [_more(results, rival) for rival in RIVALS]
        better = all(one.estimate > 0.0 for one in more)
        wins += better
        if more[0].upper < 0.0:
            worse.append(name)
        shown = [f"{one.estimate:+.4f} [{one.lower:+.4f}, {one.upper:+.4f}]" for one in more]
        rows.append([name, *shown, "yes" if better else "no"])
    table = "\n".join(f"| {' | '.join(row)} |" for row in rows)
    held = "holds" if wins >= WANTED else "missed"
    return (
        f"{table}\n\nBetter than all three on {wins} of {len(found)} sets (bar: {WANTED}): {held}. "
        f"Significantly worse than the best single model on: {', '.join(worse) or 'none'}."
    )


def _more(results: Results, rival: str) -> Interval:
    measure = "accuracy" if results.one_price else "area"
    return results.lines[rival].less[measure][rival]


def _chosen(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in SETS:
            raise InputError(f"--sets: {name!r} is unknown{nearest(name, SETS)}; use some of {', '.join(SETS)}")
    return names


if __name__ == "__main__":
    run(main)
