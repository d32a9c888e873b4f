"""Draw the README's picture: `python -m tools.first_picture --model DIR --votes FILE`, with what the README trains.

Two prompts have leaderboards of their own, beside the one leaderboard of all votes. Colours go with models.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from p2l import P2L
from p2l.commands.model_leaderboards import board_of
from p2l.common.plots import COLOURS, new_figure, save_figure
from p2l.leaderboard import fit
from p2l.leaderboard.board import Leaderboard
from p2l.votes import encode_votes, read_columns

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ROOT = Path(__file__).resolve().parents[1]
PROMPTS = ("Write a SQL query that finds\ncustomers without an order.", "Write a poem about\nthe first snow.")
_GENERALIST = "#B8BEC6"


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
    boards = {"all votes:\none leaderboard": overall}
    boards |= {f'"{prompt}"': board_of(model, prompt.replace("\n", " ")) for prompt in PROMPTS}
    draw(boards, Path(arguments.output))


def draw(boards: dict[str, Leaderboard], path: Path) -> None:
    """Draw leaderboards beside each other as bars, best first, and write the picture."""
    leaders = list(dict.fromkeys(board.models[int(np.argmax(board.coefs))] for board in boards.values()))
    colours = dict(zip(leaders, COLOURS, strict=False))
    figure = new_figure(9.6, 3.1)
    for axes, (title, board) in zip(figure.subplots(1, len(boards)), boards.items(), strict=True):
        axes.set_title(title, fontsize=10.5, loc="left", fontweight="bold" if board.votes is None else "normal")
        _draw_board(axes, board, colours)
    figure.supxlabel("how often a model's answer beats that of another", fontsize=9)
    save_figure(figure, path)


def _draw_board(axes: Axes, board: Leaderboard, colours: dict[str, str]) -> None:
    rates = board.win_rates()
    order = np.argsort(-rates)
    names = [board.models[code] for code in order]
    axes.barh(range(len(order)), rates[order], height=0.78, color=[colours.get(name, _GENERALIST) for name in names])
    for place, (name, rate) in enumerate(zip(names, rates[order].tolist(), strict=True)):
        inside = name in colours
        axes.text(0.02, place, name, va="center", fontsize=9, color="white" if inside and rate > 0.4 else "black")
        beside = max(rate, 0.03 + 0.0235 * len(name)) + 0.015  # of the bar, or of a name that is longer
        axes.text(beside, place, f"{rate:.0%}", va="center", fontsize=9)
    axes.invert_yaxis()
    axes.set_xlim(0, 1)
    axes.set_xticks([])
    axes.set_yticks([])
    axes.spines[["top", "right", "bottom"]].set_visible(False)


if __name__ == "__main__":
    main()
