"""Draw the README's picture: `python -m tools.first_picture --model DIR --votes FILE`, with what the README trains.

Two prompts have leaderboards of their own, beside the one leaderboard of all votes.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from p2l import P2L
from p2l.commands.model_leaderboards import board_of
from p2l.leaderboard import fit
from p2l.leaderboard.board import Named
from p2l.leaderboard.history_report import plot_boards
from p2l.votes import encode_votes, read_columns

ROOT = Path(__file__).resolve().parents[1]
PROMPTS = ("Write a SQL query that finds customers without an order.", "Write a poem about the first snow.")


def main() -> None:
    """Draw it."""
    flags = argparse.ArgumentParser(prog="python -m tools.first_picture", description=__doc__.split("\n")[0])
    flags.add_argument("--model", default="outputs/sample")
    flags.add_argument("--votes", default="votes.parquet")
    flags.add_argument("--output", default=str(ROOT / "docs/figures/first.png"))
    arguments = flags.parse_args()
    model = P2L.from_pretrained(arguments.model)
    columns = read_columns(arguments.votes, ["model_a", "model_b", "winner"])
    codes = encode_votes(columns["model_a"], columns["model_b"], columns["winner"])
    overall = fit(codes.model_a, codes.model_b, codes.winner, models=codes.models, likelihood=model.likelihood.name)
    boards = [Named("", "one leaderboard of all votes", len(codes.winner), overall)]
    boards += [Named("", f'"{prompt}"', 1, board_of(model, prompt)) for prompt in PROMPTS]
    plot_boards(boards, arguments.output)


if __name__ == "__main__":
    main()
