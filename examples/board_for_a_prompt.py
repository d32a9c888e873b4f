"""A leaderboard of real LLMs for each prompt, and how far it is from their overall leaderboard. No training.

    python examples/board_for_a_prompt.py

The public model of the package was made of public graded answers and votes (docs/evaluate/public-model.md). It says of
each prompt how familiar it is: where it has seen nothing like it, its board is the overall one.

Shapes: n prompts, M LLMs.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from p2l import P2L
from p2l.leaderboard import to_score
from p2l.public.sample import public_sample

PROMPTS = (
    "Prove that 17 is prime.",
    "Write a SQL query that finds customers without an order.",
    "Traduis en français : The early bird catches the worm.",
    "Which gas do plants take in for photosynthesis?",
    "Write a poem about the first snow.",
    "Good morning! How are you today?",
)
SAMPLED = 300
"""Votes of the real sample, over whose prompts the overall leaderboard is a mean."""


def main(prompts: Sequence[str] = PROMPTS, sampled: int = SAMPLED) -> list[float]:
    """Print for each prompt the best LLMs and those that move most; return the largest move of each board in points."""
    model = P2L.public()
    names = np.array(model.model_list)
    sample = public_sample(sampled, seed=0)
    usual = [list(turns) for turns in sample.column("prompt").to_pylist()]
    # Of LLMs that have answered prompts with a text; the newest are known by their level alone.
    tried = np.isin(names, sample.column("model_a").to_pylist())
    overall = _scores(model.predict(usual).coefs.mean(axis=0))
    _print_best("OVERALL", names[tried], overall[tried])
    prediction = model.predict(prompts)
    largest = []
    for row, prompt in enumerate(prompts):
        scores = _scores(prediction.coefs[row])
        _print_best(prompt, names[tried], scores[tried])
        moves = (scores - overall)[tried]
        place = int(np.abs(moves).argmax())
        kept = 1.0 if prediction.familiarity is None else float(prediction.familiarity[row])
        print(f"   furthest from the overall board: {names[tried][place]} by {moves[place]:+.0f} points")
        print(f"   familiarity of the prompt: {kept:.0%}")
        largest.append(float(np.abs(moves).max()))
    return largest


def _scores(coefs: np.ndarray) -> np.ndarray:
    """Return scores (M,) with a mean of 1000: how far the LLMs lie apart, whatever their level."""
    return to_score(coefs - coefs.mean())


def _print_best(title: str, names: np.ndarray, scores: np.ndarray) -> None:
    best = np.argsort(-scores)[:4]
    print(f"\n{title}")
    print("   " + ", ".join(f"{names[place]} {scores[place]:.0f}" for place in best))


if __name__ == "__main__":
    main()
