"""A leaderboard with and without style control, on votes whose truth is known.

    python examples/style_control.py

Voters like longer answers, and the model `wordy` writes them: it leads by votes alone. Fitted together with the
difference in length, the coefficients are those of answers of equal length, and `plain` leads, as the truth says.

Shapes: N votes, M models.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from p2l.leaderboard import Leaderboard, fit, to_score

MODELS = ["plain", "wordy", "short", "old"]
COEFS = np.array([0.5, 0.2, 0.0, -0.7])
LENGTHS = np.array([0.0, 1.0, -0.8, 0.0])
"""Mean length of a model's answers, in standard deviations of all answers."""
EFFECT = 0.9
"""Log-odds that a standard deviation of length is worth to voters."""
VOTES = 6000


@dataclass(frozen=True)
class Boards:
    """The leaderboard of the votes alone, and the one with length fitted beside the models."""

    plain: Leaderboard
    controlled: Leaderboard


def main(votes: int = VOTES) -> Boards:
    """Draw votes, print both leaderboards beside the truth, and return them."""
    rng = np.random.default_rng(0)
    first = rng.integers(len(MODELS), size=votes)
    second = (first + rng.integers(1, len(MODELS), size=votes)) % len(MODELS)
    length = rng.normal(LENGTHS[first], 0.5) - rng.normal(LENGTHS[second], 0.5)
    odds = COEFS[first] - COEFS[second] + EFFECT * length
    first_wins = rng.random(votes) < 1 / (1 + np.exp(-odds))
    winner = np.where(first_wins, 0, 1)  # positions in p2l.votes.WINNERS
    boards = Boards(
        plain=fit(first, second, winner, models=MODELS),
        controlled=fit(first, second, winner, models=MODELS, covariates={"length": length}),
    )
    _print_board("votes alone", boards.plain)
    _print_board("length controlled", boards.controlled)
    for effect in boards.controlled.effects:
        print(f"\n{effect.name}: {effect.coef:.2f} log-odds [{effect.lower:.2f}, {effect.upper:.2f}]; truth {EFFECT}")
    return boards


def _print_board(title: str, board: Leaderboard) -> None:
    print(f"\n{title}")
    for place in np.argsort(-board.coefs):
        lower, upper = to_score(board.lower[place]), to_score(board.upper[place])
        truth = to_score(COEFS[place] - COEFS.mean())
        score = to_score(board.coefs[place])
        print(f"  {board.models[place]:<6} {score:5.0f}  [{lower:.0f}, {upper:.0f}]   truth {truth:.0f}")


if __name__ == "__main__":
    main()
