"""Commands: `p2l add-model`, a row for a new model without training, and `p2l probes`, what to ask it first."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from p2l.common import cli
from p2l.common.cli import counted, need, parser, positive, run
from p2l.common.errors import ConfigError, InputError


def add_parser() -> argparse.ArgumentParser:
    """Return the flags of `p2l add-model`."""
    flags = parser(
        "p2l add-model",
        "Add a new model to a trained P2L, without training: its row is the most probable one given some forty votes "
        "or twenty graded answers, under a prior fitted to the known models.",
    )
    cli.add_model_flag(flags, "the folder of a trained model", required=True)
    flags.add_argument("--name", required=True, metavar="NAME", help="of the new model, as votes or answers name it")
    source = flags.add_mutually_exclusive_group(required=True)
    cli.add_votes(source, "votes between it and known models; others are ignored")
    source.add_argument(
        "--answers",
        metavar="FILE",
        help="graded answers: rows of prompt, model and score in [0, 1]; those of known models on the same prompts say "
        "how hard these are, and on further prompts how scores follow from coefficients",
    )
    flags.add_argument(
        "--forecasts",
        metavar="FILE",
        help="with --answers: write the score to expect of each prompt that known models alone have answered (.jsonl, "
        ".csv, .parquet), and print the mean with its interval",
    )
    cli.add_output(flags, "folder of the larger model; must not exist", metavar="DIR", required=True)
    return flags


def add_main(argv: Sequence[str] | None = None) -> None:
    """Add a model to a folder."""
    args = add_parser().parse_args(argv)
    output = Path(args.output).expanduser()
    if output.exists():
        raise InputError(f"{output}: exists; choose another --output or remove it")
    if args.forecasts and not args.answers:
        raise ConfigError("--forecasts goes with --answers: it says what further answers would be graded as")
    need("torch")  # before what comes with the extra of votes alone
    from p2l.newcomers.adding import SDS_OF_INTERVAL, add_model, row_of_answers, row_of_votes, write_rows

    if args.forecasts:
        _check_rows(args.forecasts, args.answers)
    if args.votes:
        added = row_of_votes(args.model, args.name, args.votes)
    else:
        added = row_of_answers(args.model, args.name, args.answers, forecasts=bool(args.forecasts))
    add_model(args.model, args.name, added, output)
    print(
        f"{args.name}: coefficient {added.coef:.2f} on average, 95 % interval {added.lower:.2f} to {added.upper:.2f}, "
        f"where the known models have {added.known_lower:.2f} to {added.known_upper:.2f}; from {added.observations}"
    )
    print(f"model of {added.models} models: {output}")
    if added.expected is not None:
        columns = {"prompt": added.prompts, "model": [args.name] * len(added.prompts)}
        write_rows(columns | {"expected": added.expected.scores}, args.forecasts)
        mean, error = added.expected.mean, SDS_OF_INTERVAL * added.expected.sd
        print(
            f"{args.forecasts}: {counted(len(added.prompts), 'prompt')} that {args.name} was not asked, expected score "
            f"{mean:.2f}, 95 % interval {max(0.0, mean - error):.2f} to {min(1.0, mean + error):.2f}"
        )


def _check_rows(output: str, given: str) -> None:
    """Refuse a file of rows that cannot be written, before the work."""
    from p2l.common.files import check_can_write
    from p2l.votes.sources import file_kind

    file_kind(check_can_write(Path(output).expanduser(), given))


def probes_parser() -> argparse.ArgumentParser:
    """Return the flags of `p2l probes`."""
    flags = parser(
        "p2l probes", "Choose the prompts that say most about a new model, to be answered by it and graded first."
    )
    cli.add_model_flag(flags, "the folder of a trained model", required=True)
    cli.add_prompts(
        flags,
        "prompts to choose from: a file with `prompt`; graded answers of known models (model, score) say how hard "
        "each is",
        required=True,
    )
    flags.add_argument("--count", type=positive, default=20, metavar="N", help="prompts to choose")
    cli.add_limit(flags, "use a sample of this many prompts", default=5000)
    cli.add_seed(flags, "of the sample")
    cli.add_output(flags, "rows of prompt, most telling first (.jsonl, .csv, .parquet)", required=True)
    return flags


def probes_main(argv: Sequence[str] | None = None) -> None:
    """Write the prompts worth asking first."""
    args = probes_parser().parse_args(argv)
    if args.count > args.limit:
        raise ConfigError(f"--count {args.count} is more than --limit {args.limit}; raise the limit")
    need("torch")
    from p2l.newcomers.adding import choose_probes, write_rows

    _check_rows(args.output, args.prompts)
    prompts = choose_probes(args.model, args.prompts, args.count, limit=args.limit, seed=args.seed)
    write_rows({"prompt": prompts}, args.output)
    print(f"{args.output}: {counted(len(prompts), 'prompt')}, the most telling first")


if __name__ == "__main__":
    run(add_main)
