"""Results as an evaluation would hand them over, of any size, with names that try to break a page."""

from __future__ import annotations

import numpy as np

from p2l.evaluation.results import CategoryResult, ModelScore, OutputResult, SubsetScore
from p2l.leaderboard import Leaderboard
from p2l.metrics import Interval, Point, Reliability

EVIL = "<script>alert('x')</script> & \"quoted\" $\\alpha$"
KINDS = {
    "cooking": "recipe oven dough broth pasta butter",
    "code": "function pointer compiler array loop script",
    "poetry": "sonnet verse stanza metaphor haiku ballad",
    "law": "contract clause statute tenant court appeal",
}


FORECAST = np.linspace(0.03, 0.97, 15)


def interval(value: float, width: float = 0.02) -> Interval:
    return Interval(value, value - width, value + width, width / 2)


def leaderboard(models: list[str], coefs: np.ndarray, *, votes: bool) -> Leaderboard:
    number = len(models)
    return Leaderboard(
        models=models,
        coefs=coefs,
        lower=coefs - 0.1,
        upper=coefs + 0.1,
        eta=0.5,
        gamma=None,
        likelihood="grk",
        loss=1.2,
        votes=np.full(number, 120) if votes else None,
        components=np.zeros(number, dtype=np.int64),
    )


def category(name: str, models: list[str], rng: np.random.Generator) -> CategoryResult:
    truth = rng.normal(size=len(models))
    share = np.clip(np.linspace(0.03, 0.97, 15) + rng.normal(scale=0.03, size=(3, 15)), 0, 1)
    sizes = (1, 10, 25, 100, 250, 500, 1000, 2000)
    names = ("L1-Dist-Prob", "Spearman-lbs", "Kendall-lbs")
    curves = tuple(
        SubsetScore(
            size,
            10,
            {one: 1 - 1 / np.sqrt(size + 1) for one in names},
            {one: interval(1 - 1 / np.sqrt(size + 1)) for one in names},
        )
        for size in sizes
    )
    return CategoryResult(
        name=name,
        votes=4321,
        prompts=3210,
        top_k=4,
        truth=leaderboard(
            models[:-1] if len(models) > 2 else models, truth[: -1 if len(models) > 2 else None], votes=True
        ),
        model=leaderboard(models, truth + rng.normal(scale=0.2, size=len(models)), votes=False),
        simple={
            "Loss": 1.2 + rng.normal() * 0.02,
            "BCELoss": 0.6,
            "Accuracy": 0.48,
            "Mean-BT": -0.0123,
            "Tie_Loss": None,
        },
        intervals={"Loss": interval(1.2), "Accuracy": interval(0.48)},
        skill=interval(0.05),
        skill_over="train",
        reliability=Reliability(
            ("win", "tie", "bothbad"),
            np.linspace(0, 1, 16),
            np.tile(FORECAST, (3, 1)),
            share,
            np.full((3, 15), 1 / 15),
            points=tuple(
                tuple(
                    Point(float(p), float(o), float(o) - 0.05, float(o) + 0.05, 80)
                    for p, o in zip(FORECAST, row, strict=True)
                )
                for row in share
            ),
        ),
        comparison={
            "L1-Dist-Prob": 0.05,
            "Spearman-lbs": 0.93,
            "Kendall-lbs": 0.8,
            "IQR-BT": {"ground-truth": 0.9, "model-aggr": 0.8},
            "Top-k-fraction": {1: 1.0, 3: 0.67},
            "Leaderboard": {"ground-truth": ["a: 1"], "model-aggr": ["a: 1"]},
        },
        subsets=curves[4:],
        scale=curves,
        by_model=tuple(ModelScore(one, 321, interval(1.1 + 0.2 * rng.random()), interval(0.5)) for one in models),
    )


def output(
    models: list[str], categories: list[str], *, name: str = "checkpoint-100", prompts: int = 400, seed: int = 0
) -> OutputResult:
    rng = np.random.default_rng(seed)
    kinds = rng.integers(len(KINDS), size=prompts)
    profile = rng.normal(scale=0.8, size=(len(KINDS), len(models)))
    words = [KINDS[one].split() for one in KINDS]
    texts = [[f"{EVIL} please " + " ".join(rng.choice(words[kind], 5)) + f" {row}"] for row, kind in enumerate(kinds)]
    found = tuple(category(one, models, rng) for one in categories)
    empty = CategoryResult(name="language=Klingon", votes=0, prompts=0, problem="no vote has language=Klingon")
    return OutputResult(
        name=name,
        source="outputs/checkpoint-100.json",
        model_type="p2l",
        likelihood="grk",
        ground_truth="marginal-gt",
        models=tuple(models),
        votes=4321,
        prompts=prompts,
        categories=(*found, empty),
        coefs=profile[kinds] + rng.normal(size=len(models)) + 0.3 * rng.normal(size=(prompts, len(models))),
        eta=np.zeros(prompts),
        texts=texts,
        notes=("12 votes are of models that the output lacks.",),
        model="outputs/sample",
        data="held_out.parquet",
    )
