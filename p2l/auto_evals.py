"""Command: measure predictions of votes: losses, leaderboards, calibration.

p2l auto-evals --model-list-path run/model_list.json --eval-path run/eval_output.jsonl --loss-type grk --output-dir out
python -m p2l.auto_evals --model-list-path list.json --checkpoint-path a.json b.json --output-file-name a b ...
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any, TypeVar

from p2l.common.cli import add_html, add_level, add_model_flag, add_quiet, add_seed, need, parser, positive, run, whole
from p2l.common.text_table import add_rows_flag

if TYPE_CHECKING:
    from p2l.evaluation.suite import Options

T = TypeVar("T")

# The published lists are the defaults of the flags. They stand here since --help must import nothing that measures.
MODEL_TYPES = ("p2l", "marginal", "arena", "marginal-gt")
TRUTHS = ("marginal-gt", "arena")
BLOCKS = ("simple", "category", "random_subsets", "aggr_scale")
CATEGORIES = ("all", "creative_writing", "math", "language=Chinese", "is_code", "hard")
SIMPLE_METRICS = (
    *("Loss", "BCELoss", "MSELoss", "Accuracy", "Tie_Loss", "Tie_Accuracy", "Tie_bb_Loss", "Tie_bb_Accuracy"),
    *("Mean-BT", "Std-BT", "Spread-BT", "Mean-Spread-BT", "Mean-IQR-BT", "Mean-Std-BT"),
)
CATEGORY_METRICS = (
    *("Leaderboard", "Aggr_Loss", "Aggr_BCELoss", "Aggr_Tie_Loss", "Aggr_Tie_Accuracy", "Aggr_Tie_bb_Loss"),
    *("Aggr_Tie_bb_Accuracy", "L1-Dist-Prob", "Spearman-lbs", "Kendall-lbs", "IQR-BT", "Std-BT", "Spread-BT"),
    *("Top-k-fraction", "Top-k-displace"),
)
SUBSET_METRICS = ("L1-Dist-Prob", "Spearman-lbs", "Kendall-lbs")
_SUBSETS_OF_SIZE = {250: 50, 500: 20, 1000: 5, 2000: 3}
_DRAWS_OF_SIZE = {1: 500, 10: 500, 25: 500, 100: 200, 250: 100, 500: 40, 1000: 10, 2000: 6}


def build_parser(prog: str = "p2l auto-evals") -> argparse.ArgumentParser:
    """Return the flags."""
    flags = parser(
        prog,
        "Measure predictions of votes: metrics of the votes, and the model's leaderboards against those of the votes, "
        "by category, with intervals.",
    )
    _add_inputs(flags.add_argument_group("what is evaluated"))
    _add_references(flags.add_argument_group("what it is compared with"))
    _add_outputs(flags.add_argument_group("results"))
    _add_measures(flags.add_argument_group("what is measured"))
    _add_draws(flags.add_argument_group("random subsets and aggregation scale"))
    flags.hide_rare(
        *("--hf-checkpoint-repo", "--hf-checkpoint-file", "--hf-train-dataset", "--hf-output-dir"),
        *("--remove-last-hidden-json", "--train-checkpoints", "--checkpoint-size", "--metrics-to-inc"),
        *("--simple-metrics", "--category-metrics", "--rand-subset-metrics", "--aggr-scale-metrics"),
        *("--rand-subset-sizes", "--rand-num-samples", "--aggr-scale-subset-sizes", "--aggr-scale-num-samples"),
    )
    return flags


def _add_inputs(group: argparse._ArgumentGroup) -> None:
    text = "JSON list of model names; this or --model is needed"
    group.add_argument("--model-list-path", metavar="FILE", help=text)
    text = (
        "model folder or hub id with model_list.json; its eval_output.jsonl is evaluated unless there are other inputs"
    )
    add_model_flag(group, text, dest="model_repo", metavar="MODEL")
    text = "validation rows with betas (and eta), as p2l train writes them: JSON lines, Parquet, JSON array"
    group.add_argument("--eval-path", nargs="+", metavar="FILE", help=text)
    text = "outputs of p2l eval or p2l eval-chrono: JSON array or Parquet"
    group.add_argument("--checkpoint-path", nargs="+", metavar="FILE", help=text)
    group.add_argument("--hf-checkpoint-repo", metavar="REPO", help="data set on the hub with such outputs")
    group.add_argument("--hf-checkpoint-file", nargs="+", metavar="FILE", help="files of that data set")
    text = "likelihood: bt, bt-tie, rk, rk-reparam, grk (bag) or ba; default: recorded beside the output, else bt"
    group.add_argument("--loss-type", metavar="NAME", help=text)
    text = (
        "p2l: the predictions of the rows; marginal: one leaderboard of the training votes; marginal-gt: of the rows' "
        "own votes; arena: of --arena-path"
    )
    group.add_argument("--model-type", choices=MODEL_TYPES, default="p2l", help=text)
    group.add_argument(
        "--remove-last-hidden-json",
        nargs="?",
        const=True,
        type=_truth,
        default=True,
        metavar="BOOL",
        help="rewrite local checkpoint outputs without last_hidden_state, if they have it",
    )


def _add_references(group: argparse._ArgumentGroup) -> None:
    text = "training votes: a file, or a folder that save_to_disk wrote"
    group.add_argument("--train-path", metavar="PATH", help=text)
    group.add_argument("--hf-train-dataset", metavar="REPO", help="training votes on the hub, split train")
    text = "leaderboard CSV: model_name, category, rating, style_control"
    group.add_argument("--arena-path", metavar="FILE", help=text)
    text = "also evaluate marginal leaderboards of the first K * checkpoint_size training votes"
    group.add_argument("--train-checkpoints", nargs="*", type=positive, metavar="K", help=text)
    text = "training votes of one checkpoint"
    group.add_argument("--checkpoint-size", type=whole, default=0, metavar="N", help=text)


def _truth(text: str) -> bool:
    words = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
    if text.lower() not in words:
        raise argparse.ArgumentTypeError(f"must be true or false, not {text!r}")
    return words[text.lower()]


def _add_outputs(group: argparse._ArgumentGroup) -> None:
    text = "folder for NAME.json; this or --hf-output-dir is needed"
    group.add_argument("--output-dir", metavar="DIR", help=text)
    group.add_argument("--hf-output-dir", metavar="REPO", help="private data set on the hub for NAME.json")
    text = "one for each output; by default eval_metrics for a single one, else the names of the files"
    group.add_argument("--output-file-name", nargs="+", metavar="NAME", help=text)
    text = "write pages into this folder, which open offline"
    add_html(group, text, metavar="DIR")
    add_rows_flag(group)
    add_quiet(group, "no progress bar and no table")


def _add_measures(group: argparse._ArgumentGroup) -> None:
    text = (
        "all, hard, or a column or nested tag: math, language=Chinese, is_code=False (default: "
        f"{' '.join(CATEGORIES)}, those that the votes have)"
    )
    group.add_argument("--categories", nargs="+", metavar="KEY[=VALUE]", help=text)
    text = "the reference of leaderboards: a fit of the rows' votes, or --arena-path"
    group.add_argument("--ground-truth", "--aggr-scale-gt", choices=TRUTHS, default="marginal-gt", help=text)
    text = "which blocks to compute"
    group.add_argument("--metrics-to-inc", nargs="+", choices=BLOCKS, default=list(BLOCKS), metavar="BLOCK", help=text)
    _add_metrics(group, "--simple-metrics", default=SIMPLE_METRICS, text="of votes")
    text = "of the category's leaderboard against the ground truth"
    _add_metrics(group, "--category-metrics", default=CATEGORY_METRICS, text=text)
    _add_metrics(group, "--rand-subset-metrics", default=SUBSET_METRICS, text="of random subsets")
    names = ("--aggr-scale-metrics", "--aggr-scale-subset-metrics")
    _add_metrics(group, *names, default=SUBSET_METRICS, text="of aggregation scale")
    text = "replicates of intervals, prompts drawn whole; 0: no intervals"
    group.add_argument("--bootstrap", type=whole, default=1000, metavar="N", help=text)
    add_level(group)
    add_seed(group, "of subsets and intervals")


def _add_metrics(group: argparse._ArgumentGroup, *names: str, default: Sequence[str], text: str) -> None:
    group.add_argument(*names, nargs="+", default=list(default), metavar="METRIC", help=text)


def _add_draws(group: argparse._ArgumentGroup) -> None:
    for name, values, text in (
        ("--rand-subset-sizes", _SUBSETS_OF_SIZE.keys(), "votes of a random subset"),
        ("--rand-num-samples", _SUBSETS_OF_SIZE.values(), "subsets of each size"),
        ("--aggr-scale-subset-sizes", _DRAWS_OF_SIZE.keys(), "prompts that are aggregated"),
        ("--aggr-scale-num-samples", _DRAWS_OF_SIZE.values(), "draws of each size"),
    ):
        group.add_argument(name, nargs="+", type=positive, default=list(values), metavar="N", help=text)


def _of_flags(kind: type[T], flags: argparse.Namespace, **more: Any) -> T:
    """Return a dataclass whose fields are the flags of the same names that were given, and `more`."""
    names = {field.name for field in fields(kind)} - more.keys()  # type: ignore[arg-type]
    return kind(**{name: flag for name, flag in vars(flags).items() if name in names and flag is not None}, **more)


def _options(flags: argparse.Namespace) -> Options:
    from p2l.evaluation.inputs import EvaluationSettings, Inputs
    from p2l.evaluation.suite import Options
    from p2l.likelihood import get

    # A category that the user named must be there; the published list of another data set need not.
    lenient = flags.categories is None
    flags.report = vars(flags).pop("html")  # results record the flags, this one by its earlier name
    flags.categories = flags.categories or list(CATEGORIES)
    flags.train_checkpoints = flags.train_checkpoints or []
    return _of_flags(
        Options,
        flags,
        inputs=_of_flags(Inputs, flags),
        settings=_of_flags(EvaluationSettings, flags, likelihood=get(flags.loss_type or "bt"), lenient=lenient),
        any_likelihood=flags.loss_type is None,
        params=vars(flags),
        train=flags.train_path or flags.hf_train_dataset,
    )


def main(argv: Sequence[str] | None = None) -> None:
    """Parse the flags and run."""
    flags = build_parser().parse_args(argv)
    if flags.html is not None:
        need("torch")  # before the votes are measured
    from p2l.evaluation.suite import evaluate_outputs

    evaluate_outputs(_options(flags))


if __name__ == "__main__":
    run(main)
