"""Command: make a backbone from scratch, for training without any download.

The folder serves as `pretrain_model_name` in a training configuration.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from p2l.command import atomic_path, parser, progress, run
from p2l.errors import ConfigError, InputError
from p2l.scratch import TFIDF_DEFAULTS, TRANSFORMER_DEFAULTS, make_tfidf, make_transformer, sample_prompts

__all__ = ["build_parser", "main"]


def build_parser() -> ArgumentParser:
    """The command line of `p2l init`."""
    made = parser("p2l init", "Make a small backbone from scratch, to train on without any download.")
    made.add_argument("--votes", required=True, help="votes whose prompts the vocabulary is made from")
    made.add_argument("--output", required=True, help="folder to make, to be used as pretrain_model_name")
    made.add_argument("--model-type", default="qwen2", help="qwen2, qwen3, llama, bert, modernbert or tfidf")
    made.add_argument("--seed", type=int, default=42, help="draws weights and the sample of prompts")
    made.add_argument("--max-prompts", type=int, default=200_000, help="make the vocabulary from a sample of this size")
    made.add_argument("--hidden-size", type=int, help="width (128; for tfidf the rank: 32)")
    made.add_argument("--quiet", action="store_true", help="no progress bar")
    _add_transformer_flags(made.add_argument_group("transformers only"))
    _add_tfidf_flags(made.add_argument_group("tfidf only"))
    return made


def main(argv: Sequence[str] | None = None) -> int | None:
    """Run the command."""
    given = build_parser().parse_args(argv)
    output = Path(given.output)
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise InputError(f"{output}: exists and is not an empty folder; choose another --output or remove it")
    options = _options(given)
    if given.max_prompts < 1:
        raise ConfigError(f"--max-prompts must be at least 1, not {given.max_prompts}")
    prompts = sample_prompts(_batches(given.votes, quiet=given.quiet), given.max_prompts, seed=given.seed)
    with atomic_path(output, directory=True) as folder:
        if given.model_type == "tfidf":
            size = make_tfidf(folder, prompts, **options)
        else:
            size = make_transformer(folder, prompts, model_type=given.model_type, seed=given.seed, **options)
    print(f"{output}: {given.model_type} from scratch, {size}; use it as pretrain_model_name")
    return None


def _batches(votes: str, *, quiet: bool) -> Iterator[Any]:
    from p2l.votes import read_votes

    with progress(description="reading prompts", unit="vote", quiet=quiet) as bar:
        for read in read_votes(votes, columns=["prompt"]):
            bar.update(len(read))
            yield read.batch


def _options(given: Namespace) -> dict[str, Any]:
    """The flags of the chosen model type, defaults filled in; a flag of the other kind is an error."""
    mine, others = TRANSFORMER_DEFAULTS, TFIDF_DEFAULTS
    if given.model_type == "tfidf":
        mine, others = others, mine
    for name in others:
        if name not in mine and getattr(given, name) is not None:
            raise ConfigError(
                f"--{name.replace('_', '-')} does not go with --model-type {given.model_type}; leave it out"
            )
    chosen = {name: default if getattr(given, name) is None else getattr(given, name) for name, default in mine.items()}
    for name, value in chosen.items():
        if isinstance(value, int) and value < 1:
            raise ConfigError(f"--{name.replace('_', '-')} must be at least 1, not {value}")
    return chosen


def _add_transformer_flags(group: Any) -> None:
    group.add_argument("--vocab-size", type=int, help="tokens, special ones included (4000)")
    group.add_argument("--layers", type=int, help="(2)")
    group.add_argument("--heads", type=int, help="attention heads (4)")
    group.add_argument("--intermediate-size", type=int, help="width of the feed-forward layers (3 x hidden size)")
    group.add_argument("--max-positions", type=int, help="longest input in tokens (2048)")


def _add_tfidf_flags(group: Any) -> None:
    group.add_argument(
        "--ngrams",
        type=int,
        nargs=2,
        metavar=("LOW", "HIGH"),
        help="words per feature (1 1; 1 2 adds pairs of words, for many votes)",
    )
    group.add_argument("--max-features", type=int, help="the most frequent n-grams are kept (50000)")
    group.add_argument("--min-df", type=int, help="prompts that an n-gram must occur in (3)")


if __name__ == "__main__":
    run(main)
