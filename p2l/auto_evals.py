"""Command: everything that can be measured about what models said of votes: losses, leaderboards, calibration.

p2l auto-evals --model_list_path run/model_list.json --eval_path run/eval_output.jsonl --loss_type grk --output_dir out
python -m p2l.auto_evals --model_list_path list.json --checkpoint_path a.json b.json --output_file_name a b ...
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from p2l.common.cli import parser, positive, run, whole
from p2l.evaluation import inputs

if TYPE_CHECKING:
    from p2l.evaluation.inputs import EvaluationSettings
    from p2l.evaluation.run import Options


def build_parser(prog: str = "p2l auto-evals") -> argparse.ArgumentParser:
    """Return the flags; each may be written with dashes as well."""
    flags = parser(
        prog,
        "Measure what a model said of votes: metrics of the votes, its leaderboards beside those that the votes give, "
        "by category, with intervals. Every flag may be written with dashes too.",
    )
    _add_inputs(flags.add_argument_group("what is evaluated"))
    _add_references(flags.add_argument_group("what it is compared with"))
    _add_outputs(flags.add_argument_group("results"))
    _add_measures(flags.add_argument_group("what is measured"))
    _add_subsets(flags.add_argument_group("random subsets and aggregation scale"))
    return flags


def _add(group: argparse._ArgumentGroup, name: str, *aliases: str, **options: Any) -> None:
    spellings = [spelling for flag in (name, *aliases) for spelling in (flag, f"--{flag[2:].replace('_', '-')}")]
    group.add_argument(*dict.fromkeys(spellings), dest=name[2:], **options)


def _add_inputs(group: argparse._ArgumentGroup) -> None:
    _add(group, "--model_list_path", metavar="FILE", help="JSON list of model names; this or --model_repo is needed")
    _add(
        group,
        "--model_repo",
        metavar="REPO",
        help="model folder or hub id with model_list.json; without other inputs its eval_output.jsonl is evaluated",
    )
    _add(
        group,
        "--eval_path",
        nargs="+",
        metavar="FILE",
        help="validation rows with betas (and eta), as p2l train writes them: JSON lines, Parquet, JSON array",
    )
    _add(
        group,
        "--checkpoint_path",
        nargs="+",
        metavar="FILE",
        help="outputs of p2l eval or p2l eval-chrono: JSON array or Parquet",
    )
    _add(group, "--hf_checkpoint_repo", metavar="REPO", help="data set on the hub that holds such outputs")
    _add(group, "--hf_checkpoint_file", nargs="+", metavar="FILE", help="which of its files")
    _add(
        group,
        "--loss_type",
        metavar="NAME",
        help="likelihood: bt, bt-tie, rk, rk-reparam, grk (bag) or ba; by default what is recorded beside the output, "
        "else bt",
    )
    _add(
        group,
        "--model_type",
        choices=inputs.MODEL_TYPES,
        default="p2l",
        help="p2l: the answers of the rows; marginal: one leaderboard of the training votes; marginal-gt: of the rows' "
        "own votes; arena: of --arena_path",
    )
    _add(
        group,
        "--remove_last_hidden_json",
        nargs="?",
        const=True,
        type=_truth,
        default=True,
        metavar="BOOL",
        help="write local checkpoint outputs anew without last_hidden_state, if they have it",
    )


def _add_references(group: argparse._ArgumentGroup) -> None:
    _add(group, "--train_path", metavar="PATH", help="training votes: a file, or a folder that save_to_disk wrote")
    _add(group, "--hf_train_dataset", metavar="REPO", help="training votes on the hub, split train")
    _add(group, "--arena_path", metavar="FILE", help="leaderboard CSV: model_name, category, rating, style_control")
    _add(
        group,
        "--train_checkpoints",
        nargs="*",
        type=positive,
        metavar="K",
        help="also evaluate marginal leaderboards of the first K * checkpoint_size training votes",
    )
    _add(group, "--checkpoint_size", type=whole, default=0, metavar="N", help="training votes of one checkpoint")


def _truth(text: str) -> bool:
    words = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
    if text.lower() not in words:
        raise argparse.ArgumentTypeError(f"must be true or false, not {text!r}")
    return words[text.lower()]


def _add_outputs(group: argparse._ArgumentGroup) -> None:
    _add(group, "--output_dir", metavar="DIR", help="folder for NAME.json; this or --hf_output_dir is needed")
    _add(group, "--hf_output_dir", metavar="REPO", help="private data set on the hub for NAME.json")
    _add(
        group,
        "--output_file_name",
        nargs="+",
        metavar="NAME",
        help="one for each output; eval_metrics for a single one, else the names of the files",
    )
    _add(group, "--report", metavar="DIR", help="write an HTML report into this folder, which opens offline")
    _add(group, "--quiet", action="store_true", help="no progress bar and no table")


def _add_measures(group: argparse._ArgumentGroup) -> None:
    _add(
        group,
        "--categories",
        nargs="+",
        metavar="KEY[=VALUE]",
        default=None,
        help="all, hard, or a column or nested tag: math, language=Chinese, is_code=False (default: "
        f"{' '.join(inputs.CATEGORIES)}, those that the votes have)",
    )
    _add(
        group,
        "--ground_truth",
        "--aggr_scale_gt",
        choices=inputs.TRUTHS,
        default="marginal-gt",
        help="what leaderboards are compared with: a fit of the rows' votes, or --arena_path",
    )
    _add(
        group,
        "--metrics_to_inc",
        nargs="+",
        choices=inputs.PARTS,
        default=list(inputs.PARTS),
        help="which blocks to compute",
    )
    for name, choices, what in (
        ("--simple_metrics", inputs.SIMPLE_METRICS, "of votes"),
        ("--category_metrics", inputs.CATEGORY_METRICS, "of the category's leaderboard against the ground truth"),
        ("--rand_subset_metrics", inputs.SUBSET_METRICS, "of random subsets"),
    ):
        _add(group, name, nargs="+", default=list(choices), metavar="METRIC", help=what)
    _add(
        group,
        "--aggr_scale_metrics",
        "--aggr_scale_subset_metrics",
        nargs="+",
        default=list(inputs.SUBSET_METRICS),
        metavar="METRIC",
        help="of aggregation scale",
    )
    _add(
        group,
        "--bootstrap",
        type=whole,
        default=1000,
        metavar="N",
        help="replicates of intervals, prompts drawn whole; 0: no intervals",
    )
    _add(group, "--level", type=float, default=0.95, metavar="P", help="coverage of intervals")
    _add(group, "--seed", type=whole, default=0, metavar="N", help="of subsets and intervals")


def _add_subsets(group: argparse._ArgumentGroup) -> None:
    for name, values, what in (
        ("--rand_subset_sizes", inputs.SUBSET_SIZES, "votes of a random subset"),
        ("--rand_num_samples", inputs.SUBSET_SAMPLES, "subsets of each size"),
        ("--aggr_scale_subset_sizes", inputs.SCALE_SIZES, "prompts that are aggregated"),
        ("--aggr_scale_num_samples", inputs.SCALE_SAMPLES, "draws of each size"),
    ):
        _add(group, name, nargs="+", type=positive, default=list(values), metavar="N", help=what)


def _settings(flags: argparse.Namespace) -> EvaluationSettings:
    from p2l.evaluation.inputs import EvaluationSettings
    from p2l.likelihood import get

    return EvaluationSettings(
        likelihood=get(flags.loss_type or "bt"),
        model_type=flags.model_type,
        ground_truth=flags.ground_truth,
        categories=flags.categories or inputs.CATEGORIES,
        lenient=flags.categories is None,
        parts=flags.metrics_to_inc,
        simple=flags.simple_metrics,
        category=flags.category_metrics,
        subset=flags.rand_subset_metrics,
        scale=flags.aggr_scale_metrics,
        subset_sizes=flags.rand_subset_sizes,
        subset_samples=flags.rand_num_samples,
        scale_sizes=flags.aggr_scale_subset_sizes,
        scale_samples=flags.aggr_scale_num_samples,
        seed=flags.seed,
        bootstrap=flags.bootstrap,
        level=flags.level,
    )


def _options(flags: argparse.Namespace) -> Options:
    from p2l.evaluation.inputs import Inputs
    from p2l.evaluation.run import Options

    names = ("model_repo", "model_list_path", "eval_path", "checkpoint_path", "hf_checkpoint_repo")
    more = ("hf_checkpoint_file", "output_file_name")
    lists = {"categories": flags.categories or list(inputs.CATEGORIES)}
    lists["train_checkpoints"] = flags.train_checkpoints or []
    return Options(
        inputs=Inputs(**{name: getattr(flags, name) for name in (*names, *more) if getattr(flags, name)}),
        settings=_settings(flags),
        any_likelihood=flags.loss_type is None,
        params={**vars(flags), **lists},
        output_dir=flags.output_dir,
        hf_output_dir=flags.hf_output_dir,
        train=flags.train_path or flags.hf_train_dataset,
        arena_path=flags.arena_path,
        train_checkpoints=flags.train_checkpoints or (),
        checkpoint_size=flags.checkpoint_size,
        remove_hidden=flags.remove_last_hidden_json,
        report=flags.report,
        quiet=flags.quiet,
    )


def main(argv: Sequence[str] | None = None) -> None:
    """Parse the flags and run."""
    flags = build_parser().parse_args(argv)
    options = _options(flags)
    from p2l.evaluation.run import evaluate_outputs

    evaluate_outputs(options)


if __name__ == "__main__":
    run(main)
