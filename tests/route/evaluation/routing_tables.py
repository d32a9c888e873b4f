"""Tables of graded answers whose best routing is known."""

from __future__ import annotations

import numpy as np
import pandas as pd

from route.evaluation.table import ScoreTable, table_of

MODELS = ("large", "small")


def answers(questions: int = 60) -> pd.DataFrame:
    """`small` (1 cent) adds, `large` (4 cents) writes poems; neither does the other."""
    rows = []
    for number in range(questions):
        is_sum = number % 2 == 0
        prompt = f"add {number} and {number + 1}" if is_sum else f"write a poem on thing {number}"
        for model, cost in (("small", 0.01), ("large", 0.04)):
            score = float(is_sum == (model == "small"))
            about = {"question_id": f"q{number:03}", "category": "sum" if is_sum else "poem", "prompt": prompt}
            rows.append({**about, "model": model, "score": score, "cost": cost, "output_chars": 400})
    return pd.DataFrame(rows)


def known_table(questions: int = 60) -> ScoreTable:
    """These answers as matrices."""
    return table_of(answers(questions), "known")


def random_table(questions: int = 80, models: int = 5, *, seed: int = 0) -> ScoreTable:
    """Scores and costs without any structure."""
    rng = np.random.default_rng(seed)
    return ScoreTable(
        name="random",
        models=tuple(f"m{number}" for number in range(models)),
        prompts=tuple(f"prompt {number}" for number in range(questions)),
        categories=tuple(rng.choice(["x", "y"], questions).tolist()),
        scores=rng.integers(0, 2, (questions, models)).astype(np.float64),
        costs=rng.uniform(0.5, 1.5, (questions, models)) * 2.0 ** np.arange(models),
    )
