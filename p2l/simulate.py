"""Command: simulate an arena whose true leaderboard per prompt is known, write its votes and its truth.

The best possible loss follows from the truth, so that a model trained on the votes can be told how far it has come.
"""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from p2l.common.cli import add_output, add_quiet, parser, progress, run
from p2l.common.errors import ConfigError
from p2l.common.files import atomic_path, check_can_write, parse_json, write_json
from p2l.common.spreadsheets import frame_to_cells
from p2l.simulation.arena import Arena as Arena
from p2l.simulation.arena import Examples as Examples
from p2l.simulation.arena import Truth as Truth
from p2l.simulation.arena import VoteChunk as VoteChunk
from p2l.simulation.arena import simulate as simulate
from p2l.simulation.config import SimulationConfig

if TYPE_CHECKING:
    from p2l.simulation.summary import ArenaSummary


# Field of the configuration -> (type, help); the flag is the field with dashes.
_FIELDS: dict[str, tuple[type, str]] = {
    "models": (int, "models that are released and retired over the time of the arena"),
    "topics": (int, "topics, each with words and a skill profile of its own"),
    "languages": (int, "languages, 1 (English only) to 5"),
    "seed": (int, "the same seed and flags give the same files"),
    "effect": (float, "how much the prompt matters: standard deviation of a model's skill between topics"),
    "drift": (float, "how fast skills and popularity of topics change, in radians a year"),
    "fashion": (float, "how far topics come into fashion and go out of it: swing of their log popularity"),
    "turnover": (float, "share of each topic's words that others replace from the first vote to the last"),
    "lifetime": (float, "median days that a model stays"),
    "growth": (float, "vote rate at the end over vote rate at the start"),
}


_GROUPS = {
    "files": ("--output", "--votes", "--val-output", "--val", "--truth", "--quiet"),
    "the arena": ("--models", "--topics", "--languages", "--effect", "--sentences", "--seed"),
    "how it changes over time": ("--drift", "--fashion", "--turnover", "--lifetime", "--growth"),
}


def build_parser() -> ArgumentParser:
    """Return the command line of `p2l simulate`."""
    built = parser(
        "p2l simulate", "Simulate an arena with a known truth: its votes, and the best loss that any model can reach."
    )
    add_output(built, "training votes: .parquet, .jsonl, .jsonl.gz or .csv", required=True)
    built.add_argument("--votes", type=int, default=SimulationConfig.votes, help="training votes")
    built.add_argument("--val-output", help="validation votes, of the same time but other prompts (with --val)")
    built.add_argument("--val", type=int, default=0, help="validation votes")
    built.add_argument("--truth", help="folder for the truth: arena.json, models.csv, truth.parquet")
    for name, (kind, text) in _FIELDS.items():
        built.add_argument(f"--{name}", type=kind, default=getattr(SimulationConfig, name), help=text)
    built.add_argument(
        "--sentences",
        action="store_true",
        help="prompts that read as English sentences, for people (with --languages 1)",
    )
    add_quiet(built, "no progress bar and no summary")
    built.arrange(_GROUPS)
    built.hide_rare("--fashion", "--turnover", "--lifetime", "--growth")
    return built


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command."""
    args = build_parser().parse_args(argv)
    if bool(args.val) != bool(args.val_output):
        raise ConfigError("--val and --val-output go together: how many validation votes, and the file for them")
    config = SimulationConfig(
        votes=args.votes,
        validation_votes=args.val,
        sentences=args.sentences,
        **{name: getattr(args, name) for name in _FIELDS},
    )
    arena = simulate(config)
    summary = write_arena(arena, args.output, validation=args.val_output, truth=args.truth, quiet=args.quiet)
    if not args.quiet:
        print(summary.to_text())


def write_arena(
    arena: Arena,
    output: str | Path,
    *,
    validation: str | Path | None = None,
    truth: str | Path | None = None,
    quiet: bool = True,
) -> ArenaSummary:
    """Write the votes, and if wanted validation votes and truth, in one pass, whole or not at all, or InputError."""
    from p2l.simulation.batches import truth_batch, vote_batch
    from p2l.simulation.summary import ArenaSummary
    from p2l.votes.sources import file_kind
    from p2l.votes.writing import open_writer

    parts = [(Path(output), False)] + ([(Path(validation), True)] if validation else [])
    for path, _ in parts:
        file_kind(check_can_write(path))
    summary = ArenaSummary(arena)
    total = arena.config.votes + arena.config.validation_votes * len(parts[1:])
    with ExitStack() as files, progress(description="simulating", total=total, unit="vote", quiet=quiet) as bar:
        write_truth = files.enter_context(open_writer(Path(truth) / "truth.parquet")) if truth else None
        for path, held_out in parts:
            write_votes = files.enter_context(open_writer(path))
            for chunk in arena.chunks(validation=held_out):
                write_votes(vote_batch(arena, chunk))
                if write_truth:
                    write_truth(truth_batch(chunk, "validation" if held_out else "train"))
                summary.add(chunk, held_out=held_out)
                bar.update(len(chunk))
    if truth:
        with atomic_path(Path(truth) / "models.csv") as temporary:
            frame_to_cells(arena.model_frame()).to_csv(temporary, index=False)
        # Enough to simulate the arena again.
        description = {"config": arena.to_dict(), "model_list": arena.model_list, "topics": arena.topics}
        write_json(Path(truth) / "arena.json", description)
    return summary


def load_arena(truth: str | Path) -> Arena:
    """Return the arena, votes and truth, that a `--truth` folder describes; ConfigError if it describes none."""
    path = Path(truth) / "arena.json"
    try:
        return simulate(SimulationConfig(**parse_json(path.read_text(encoding="utf-8"))["config"]))
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"{path}: describes no arena ({error}); write one with `p2l simulate --truth`") from error


if __name__ == "__main__":
    run(main)
