"""Commands about model folders: `p2l init` (a backbone from scratch), `posterior` and `rollback`."""

from __future__ import annotations

import argparse
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from p2l.common import cli
from p2l.common.cli import parser, progress, run
from p2l.common.errors import ConfigError, InputError
from p2l.common.files import atomic_path
from p2l.model.scratch import (
    READER_DEFAULTS,
    TFIDF_DEFAULTS,
    TRANSFORMER_DEFAULTS,
    make_reader,
    make_tfidf,
    make_transformer,
    sample_prompts,
)


def init_parser() -> ArgumentParser:
    """Return the flags of `p2l init`."""
    flags = parser("p2l init", "Make a small backbone from scratch, to train on without any download.")
    cli.add_votes(flags, "votes whose prompts the vocabulary is made from", required=True)
    cli.add_output(flags, "folder to make, to be used as pretrain_model_name", metavar="DIR", required=True)
    flags.add_argument("--model-type", default="qwen2", help="qwen2, qwen3, llama, bert, modernbert, tfidf or reader")
    cli.add_seed(flags, "seed of the weights and of the sample of prompts", default=42)
    flags.add_argument(
        "--max-prompts", type=int, default=200_000, help="make the vocabulary from a sample of this size"
    )
    flags.add_argument("--hidden-size", type=int, help="width (128; for tfidf the rank: 32)")
    flags.add_argument("--members", type=int, help="reader: networks whose mean it predicts, each of that width (6)")
    cli.add_quiet(flags)
    group = flags.add_argument_group("transformers only")
    group.add_argument("--vocab-size", type=int, help="tokens, special ones included (4000)")
    group.add_argument("--layers", type=int, help="transformer layers (2)")
    group.add_argument("--heads", type=int, help="attention heads (4)")
    group.add_argument("--max-positions", type=int, help="longest input in tokens (2048)")
    group = flags.add_argument_group("tfidf and reader")
    group.add_argument(
        "--ngrams",
        type=int,
        nargs=2,
        metavar=("LOW", "HIGH"),
        help="words per feature (1 1; 1 2 adds pairs of words, for many votes)",
    )
    group.add_argument("--max-features", type=int, help="the most frequent n-grams are kept (50000; reader: 20000)")
    group.add_argument("--min-df", type=int, help="prompts that an n-gram must occur in (3)")
    cli.add_encoder(
        group,
        "reader: a sentence encoder, folder or hub id, multilingual (p2l[multilingual]), static, or none (default: "
        "MiniLM of p2l[encoder] if installed)",
    )
    return flags


def init_main(argv: Sequence[str] | None = None) -> int | None:
    """Run the command."""
    args = init_parser().parse_args(argv)
    output = Path(args.output)
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise InputError(f"{output}: exists and is not an empty folder; choose another --output or remove it")
    options = _options(args)
    if args.max_prompts < 1:
        raise ConfigError(f"--max-prompts must be at least 1, not {args.max_prompts}")
    encoder = None
    if args.model_type == "reader":
        from p2l.model.packaged import find_encoder

        encoder = find_encoder(args.encoder)
    elif args.encoder is not None:
        raise ConfigError("--encoder goes with --model-type reader; leave it out")
    prompts = sample_prompts(_batches(args.votes, quiet=args.quiet), args.max_prompts, seed=args.seed)
    with atomic_path(output, directory=True) as folder:
        if args.model_type == "tfidf":
            size = make_tfidf(folder, prompts, **options)
        elif args.model_type == "reader":
            size = make_reader(folder, prompts, encoder=encoder, seed=args.seed, quiet=args.quiet, **options)
        else:
            size = make_transformer(folder, prompts, model_type=args.model_type, seed=args.seed, **options)
    print(f"{output}: {args.model_type} from scratch, {size}; use it as pretrain_model_name")
    return None


def _batches(votes: str, *, quiet: bool) -> Iterator[Any]:
    from p2l.votes import read_votes

    with progress(description="reading prompts", unit="vote", quiet=quiet) as bar:
        for read in read_votes(votes, columns=["prompt"]):
            bar.update(len(read))
            yield read.batch


def _options(args: Namespace) -> dict[str, Any]:
    """Return the flags of the chosen model type with their defaults; a flag of the other kind is an error."""
    of_type = {"tfidf": TFIDF_DEFAULTS, "reader": READER_DEFAULTS}
    defaults = of_type.get(args.model_type, TRANSFORMER_DEFAULTS)
    for name in {**TFIDF_DEFAULTS, **READER_DEFAULTS, **TRANSFORMER_DEFAULTS}:
        if name not in defaults and getattr(args, name) is not None:
            raise ConfigError(
                f"--{name.replace('_', '-')} does not go with --model-type {args.model_type}; leave it out"
            )
    options = {}
    for name, default in defaults.items():
        value = getattr(args, name)
        options[name] = default if value is None else value
        if isinstance(options[name], int) and options[name] < 1:
            raise ConfigError(f"--{name.replace('_', '-')} must be at least 1, not {options[name]}")
    return options


def posterior_parser() -> argparse.ArgumentParser:
    """Return the flags of `p2l posterior`."""
    flags = parser("p2l posterior", "Fit what the votes leave open about a trained model's coefficients.")
    cli.add_model_flag(flags, "folder of a trained model; the posterior is written into it")
    flags.add_argument("folder", nargs="?", metavar="DIR", help=argparse.SUPPRESS)  # the spelling of earlier versions
    cli.add_votes(flags, "the votes that it was trained on", required=True)
    cli.add_device(flags)
    return flags


def posterior_main(argv: Sequence[str] | None = None) -> None:
    """Fit what the votes leave open about a trained model's coefficients, for standard deviations and intervals.

    `p2l train` does so itself; this is for models of older versions, of online training, and of other writers. The
    folder gets `posterior.safetensors`, and coefficients of prompts unlike the votes' are shrunk from then on.
    """
    flags = posterior_parser().parse_args(argv)
    if (flags.model is None) == (flags.folder is None):
        raise ConfigError("name the folder of a trained model once, with --model DIR")
    folder = Path(flags.model or flags.folder).expanduser()
    if not folder.is_dir():
        raise InputError(f"{folder}: no such folder; posterior.safetensors is written into it")
    from p2l.inference import choose_device
    from p2l.model.checkpoint import MANIFEST_FILE, read_model_list, read_object, seal
    from p2l.training.posterior import write_posterior
    from p2l.votes import open_votes

    device = choose_device(flags.device)
    with open_votes(flags.votes, model_list=read_model_list(folder), drop_unknown=True) as votes:
        is_weighted = read_object(folder / "training_config.json", missing={}).get("weighted_loss") is True
        write_posterior(folder, votes, device, weighted=is_weighted)
        count = len(votes)
    if (folder / MANIFEST_FILE).is_file():
        seal(folder)
    print(f"posterior of {count:,} votes: {folder}")


def rollback_parser() -> argparse.ArgumentParser:
    """Return the flags of `p2l rollback`."""
    flags = parser("p2l rollback", "Serve the model that was published before the one that is served now.")
    flags.add_argument("folder", metavar="DIR", help="the folder that models are published to (--publish, --watch)")
    return flags


def rollback_main(argv: Sequence[str] | None = None) -> int | None:
    """Serve the model that was published before the one that is served now, which moves to DIR/rolled-back.

    An endpoint with `--watch DIR` follows within seconds, without a restart. A run that publishes into DIR goes on; the
    next model that it publishes is served.
    """
    folder = Path(rollback_parser().parse_args(argv).folder).expanduser()
    from p2l.online_training.publishing import roll_back

    change = roll_back(folder)
    print(f"serving {change.back_to.name}, revision {change.back_revision}, again")
    print(f"taken out: {change.taken_out}, revision {change.revision}")
    return None


if __name__ == "__main__":
    run(init_main)
