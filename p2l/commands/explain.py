"""Command: for each model, the kinds of prompts on which it is better or worse than overall.

p2l explain --model outputs/my-run --prompts prompts.parquet
p2l explain --answers outputs/my-run.parquet --votes held_out.parquet --output strengths.json --plot strengths.svg
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from p2l.common import cli
from p2l.common.cli import amount, nearest, need_to_read, parser, positive, run
from p2l.common.errors import ConfigError
from p2l.common.files import write_json
from p2l.common.text_table import add_rows_flag, rows_to_print

if TYPE_CHECKING:
    from p2l.insight import Explanation


def build_parser() -> argparse.ArgumentParser:
    """Return the flags of `p2l explain`."""
    flags = parser(
        "p2l explain",
        "Find kinds of prompts that nobody named, and on which each model is better or worse than overall.",
    )
    source = flags.add_mutually_exclusive_group(required=True)
    cli.add_model_flag(source, "a trained P2L model to ask: a folder or a hub id")
    source.add_argument(
        "--answers", metavar="FILE", help="instead: what p2l eval wrote (.json or .parquet); no model is needed"
    )
    cli.add_prompts(flags, "with --model: a file with a column `prompt`")
    cli.add_limit(flags, "with --model: only the first N rows")
    cli.add_likelihood(flags, "with --answers: where nothing beside the file says it")
    flags.add_argument(
        "--model-list", metavar="FILE", help="with --answers: names of its models, if none lie beside it"
    )
    group = flags.add_argument_group("clusters")
    group.add_argument("--clusters", type=positive, metavar="K", help="how many; by default as few as explain enough")
    group.add_argument(
        "--embeddings",
        metavar="COLUMN",
        help="cluster this column, a list of numbers, in the place of the coefficients; last_hidden_state is what the "
        "model's head reads (p2l eval writes it with --no-drop-hidden; with --model it is asked for)",
    )
    group.add_argument(
        "--by",
        choices=["words", "nearest"],
        default="words",
        help="how a measured prompt is assigned to its cluster: by its words alone, or by what was clustered; see the "
        "docs before you trust the second",
    )
    cli.add_seed(group, "of the halves and of the bootstrap")
    group = flags.add_argument_group("findings")
    cli.add_level(group)
    group.add_argument("--fdr", type=float, default=0.05, help="share of false findings to expect")
    group.add_argument(
        "--least-change", type=amount, default=20.0, metavar="POINTS", help="differences up to this do not count"
    )
    group.add_argument("--min-prompts", type=positive, default=20, metavar="N", help="prompts that a cluster needs")
    cli.add_votes(group, "votes that the model was not trained on, to test the findings with")
    group.add_argument(
        "--min-votes", type=positive, default=20, metavar="N", help="of a model in a cluster, to compare"
    )
    output = flags.add_argument_group("output")
    output.add_argument("--models", nargs="+", default=[], metavar="NAME", help="show and draw only these models")
    output.add_argument("--top", type=positive, default=3, metavar="N", help="strengths and weaknesses shown of each")
    add_rows_flag(output, names=["--rows"])
    output.add_argument("--all", action="store_true", help="print every cell, found or not")
    cli.add_output(output, "also write everything as JSON")
    cli.add_html(output, "also write a page that opens offline")
    cli.add_plot(output, "also draw all models as a map, or one with intervals")
    cli.add_quiet(output, "no progress bars")
    return flags


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command."""
    args = build_parser().parse_args(argv)
    if args.answers is None:
        need_to_read()  # before what comes with the extra of votes alone
    _check(args)
    from p2l.insight.explain_report import explanation_text

    explanation = _explained(args)
    rows = rows_to_print(args.rows)
    print(explanation_text(explanation, models=args.models, every=args.all, of_each=args.top, top=rows))
    _write(explanation, args)


def _check(args: argparse.Namespace) -> None:
    """Refuse flags that contradict each other, and files that cannot be written, before any work."""
    if (args.model is None) != (args.prompts is None):
        raise ConfigError("--model and --prompts go together; --answers needs neither")
    if args.model is not None and (args.likelihood or args.model_list):
        raise ConfigError("--likelihood and --model-list go with --answers; a model has its own")
    if args.answers is not None and args.limit is not None:
        raise ConfigError("--limit goes with --model")
    if not 0 < args.level < 1 or not 0 < args.fdr < 1:
        raise ConfigError("--level and --fdr must lie between 0 and 1")
    if args.min_prompts < 2 or (args.clusters is not None and args.clusters < 2):
        raise ConfigError("--min-prompts and --clusters must be at least 2")
    from p2l.common.report.reports import check_result_files

    check_result_files(args, args.prompts, args.answers, args.votes, args.model_list)


def _explained(args: argparse.Namespace) -> Explanation:
    from p2l.insight import Rules, explain
    from p2l.insight.answers import ask, read_answers, with_votes

    if args.model is not None:
        answers = ask(args.model, args.prompts, embeddings=args.embeddings, limit=args.limit, quiet=args.quiet)
    else:
        answers = read_answers(
            args.answers, likelihood=args.likelihood, model_list=args.model_list, embeddings=args.embeddings
        )
    for name in args.models:
        if name not in answers.models:
            raise ConfigError(f"--models: no model {name!r}{nearest(name, answers.models)}")
    explanation = explain(
        answers.coefs,
        answers.models,
        likelihood=answers.likelihood,
        eta=answers.eta,
        gamma=answers.gamma,
        texts=answers.texts,
        embeddings=answers.embeddings,
        clusters=args.clusters,
        by=args.by,
        rules=Rules(args.level, args.fdr, args.least_change, args.min_prompts),
        votes=answers.votes,
        covariates=answers.covariates,
        seed=args.seed,
    )
    if args.votes is None:
        return explanation
    return with_votes(explanation, args.votes, least=args.min_votes, control=answers.covariates, quiet=args.quiet)


def _write(explanation: Explanation, args: argparse.Namespace) -> None:
    if args.output is not None:
        write_json(args.output, explanation.to_dict())
        print(f"wrote {args.output}", file=sys.stderr)
    if args.html is not None:
        from p2l.common.report.reports import save_report
        from p2l.insight.explain_report import explanation_report

        data = f"{explanation.chosen_from + explanation.prompts:,} prompts" if args.prompts is None else args.prompts
        subject = Path(args.answers).stem if args.model is None else Path(args.model).name
        report = explanation_report(explanation, subject, Path(data).name, args.models)
        save_report(report, args.html)
        print(f"wrote {args.html}", file=sys.stderr)
    if args.plot is not None:
        from p2l.common.report.images import save_picture
        from p2l.insight.explain_report import explanation_figure

        save_picture(args.plot, explanation_figure(explanation, args.models))
        print(f"drew {args.plot}", file=sys.stderr)


if __name__ == "__main__":
    run(main)
