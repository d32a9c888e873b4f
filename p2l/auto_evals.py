"""Command: measure predictions of votes: losses, leaderboards, calibration.

p2l auto-evals --model_list_path run/model_list.json --eval_path run/eval_output.jsonl --loss_type grk --output_dir out
python -m p2l.auto_evals --model_list_path list.json --checkpoint_path a.json b.json --output_file_name a b ...
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any, TypeVar

from p2l.common.cli import need, parser, positive, run, whole
from p2l.common.text_table import add_rows_flag
from p2l.evaluation import defaults

if TYPE_CHECKING:
    from p2l.evaluation.run import Options

T = TypeVar("T")


def build_parser(prog: str = "p2l auto-evals") -> argparse.ArgumentParser:
    """Return the flags; each may be written with dashes as well."""
    flags = parser(
        prog,
        "Measure predictions of votes: metrics of the votes, and the model's leaderboards against those of the votes, "
        "by category, with intervals. Every flag may be written with dashes too.",
    )
    _add_inputs(flags.add_argument_group("what is evaluated"))
    _add_references(flags.add_argument_group("what it is compared with"))
    _add_outputs(flags.add_argument_group("results"))
    _add_measures(flags.add_argument_group("what is measured"))
    _add_subsets(flags.add_argument_group("random subsets and aggregation scale"))
    return flags


def _add(group: argparse._ArgumentGroup, name: str, text: str, *aliases: str, **options: Any) -> None:
    spellings = [spelling for flag in (name, *aliases) for spelling in (flag, f"--{flag[2:].replace('_', '-')}")]
    group.add_argument(*dict.fromkeys(spellings), dest=name[2:], help=text, **options)


def _add_inputs(group: argparse._ArgumentGroup) -> None:
    _add(group, "--model_list_path", "JSON list of model names; this or --model_repo is needed", metavar="FILE")
    text = (
        "model folder or hub id with model_list.json; its eval_output.jsonl is evaluated unless there are other inputs"
    )
    _add(group, "--model_repo", text, metavar="REPO")
    text = "validation rows with betas (and eta), as p2l train writes them: JSON lines, Parquet, JSON array"
    _add(group, "--eval_path", text, nargs="+", metavar="FILE")
    text = "outputs of p2l eval or p2l eval-chrono: JSON array or Parquet"
    _add(group, "--checkpoint_path", text, nargs="+", metavar="FILE")
    _add(group, "--hf_checkpoint_repo", "data set on the hub with such outputs", metavar="REPO")
    _add(group, "--hf_checkpoint_file", "files of that data set", nargs="+", metavar="FILE")
    text = "likelihood: bt, bt-tie, rk, rk-reparam, grk (bag) or ba; default: recorded beside the output, else bt"
    _add(group, "--loss_type", text, metavar="NAME")
    text = (
        "p2l: the predictions of the rows; marginal: one leaderboard of the training votes; marginal-gt: of the rows' "
        "own votes; arena: of --arena_path"
    )
    _add(group, "--model_type", text, choices=defaults.MODEL_TYPES, default="p2l")
    text = "rewrite local checkpoint outputs without last_hidden_state, if they have it"
    options = {"nargs": "?", "const": True, "type": _truth, "default": True, "metavar": "BOOL"}
    _add(group, "--remove_last_hidden_json", text, **options)


def _add_references(group: argparse._ArgumentGroup) -> None:
    _add(group, "--train_path", "training votes: a file, or a folder that save_to_disk wrote", metavar="PATH")
    _add(group, "--hf_train_dataset", "training votes on the hub, split train", metavar="REPO")
    _add(group, "--arena_path", "leaderboard CSV: model_name, category, rating, style_control", metavar="FILE")
    text = "also evaluate marginal leaderboards of the first K * checkpoint_size training votes"
    _add(group, "--train_checkpoints", text, nargs="*", type=positive, metavar="K")
    _add(group, "--checkpoint_size", "training votes of one checkpoint", type=whole, default=0, metavar="N")


def _truth(text: str) -> bool:
    words = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
    if text.lower() not in words:
        raise argparse.ArgumentTypeError(f"must be true or false, not {text!r}")
    return words[text.lower()]


def _add_outputs(group: argparse._ArgumentGroup) -> None:
    _add(group, "--output_dir", "folder for NAME.json; this or --hf_output_dir is needed", metavar="DIR")
    _add(group, "--hf_output_dir", "private data set on the hub for NAME.json", metavar="REPO")
    text = "one for each output; by default eval_metrics for a single one, else the names of the files"
    _add(group, "--output_file_name", text, nargs="+", metavar="NAME")
    _add(group, "--report", "write an HTML report into this folder, which opens offline", metavar="DIR")
    add_rows_flag(group)
    _add(group, "--quiet", "no progress bar and no table", action="store_true")


def _add_measures(group: argparse._ArgumentGroup) -> None:
    text = (
        "all, hard, or a column or nested tag: math, language=Chinese, is_code=False (default: "
        f"{' '.join(defaults.CATEGORIES)}, those that the votes have)"
    )
    _add(group, "--categories", text, nargs="+", metavar="KEY[=VALUE]", default=None)
    text = "the reference of leaderboards: a fit of the rows' votes, or --arena_path"
    _add(group, "--ground_truth", text, "--aggr_scale_gt", choices=defaults.TRUTHS, default="marginal-gt")
    text = "which blocks to compute"
    parts = {"choices": defaults.PARTS, "default": list(defaults.PARTS), "metavar": "BLOCK"}
    _add(group, "--metrics_to_inc", text, nargs="+", **parts)
    for name, choices, text in (
        ("--simple_metrics", defaults.SIMPLE_METRICS, "of votes"),
        ("--category_metrics", defaults.CATEGORY_METRICS, "of the category's leaderboard against the ground truth"),
        ("--rand_subset_metrics", defaults.SUBSET_METRICS, "of random subsets"),
    ):
        _add(group, name, text, nargs="+", default=list(choices), metavar="METRIC")
    names = ("--aggr_scale_metrics", "of aggregation scale", "--aggr_scale_subset_metrics")
    _add(group, *names, nargs="+", default=list(defaults.SUBSET_METRICS), metavar="METRIC")
    text = "replicates of intervals, prompts drawn whole; 0: no intervals"
    _add(group, "--bootstrap", text, type=whole, default=1000, metavar="N")
    _add(group, "--level", "coverage of intervals", type=float, default=0.95, metavar="P")
    _add(group, "--seed", "of subsets and intervals", type=whole, default=0, metavar="N")


def _add_subsets(group: argparse._ArgumentGroup) -> None:
    for name, values, what in (
        ("--rand_subset_sizes", defaults.SUBSET_SIZES, "votes of a random subset"),
        ("--rand_num_samples", defaults.SUBSET_SAMPLES, "subsets of each size"),
        ("--aggr_scale_subset_sizes", defaults.SCALE_SIZES, "prompts that are aggregated"),
        ("--aggr_scale_num_samples", defaults.SCALE_SAMPLES, "draws of each size"),
    ):
        _add(group, name, what, nargs="+", type=positive, default=list(values), metavar="N")


def _of_flags(kind: type[T], flags: argparse.Namespace, **more: Any) -> T:
    """Return a dataclass whose fields are the flags of the same names, those that were left out apart, and `more`."""
    names = {one.name for one in fields(kind)} - more.keys()  # type: ignore[arg-type]
    return kind(**{name: flag for name, flag in vars(flags).items() if name in names and flag is not None}, **more)


def _options(flags: argparse.Namespace) -> Options:
    from p2l.evaluation.inputs import EvaluationSettings, Inputs
    from p2l.evaluation.run import Options
    from p2l.likelihood import get

    # A category that the user named must be there; the published list of another data set need not.
    lenient = flags.categories is None
    flags.categories = flags.categories or list(defaults.CATEGORIES)
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
    if flags.report is not None:
        need("torch")  # before the votes are measured
    from p2l.evaluation.run import evaluate_outputs

    evaluate_outputs(_options(flags))


if __name__ == "__main__":
    run(main)
