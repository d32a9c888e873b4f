"""The tables of the demo: held-out losses beside their bounds, true beside predicted leaderboards.

Shapes: N held-out votes, M models.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from p2l.inference import P2L
from p2l.leaderboard.board import to_score
from p2l.likelihood import get, vote_losses
from p2l.simulate import load_arena
from p2l.simulation.arena import Arena, Examples
from p2l.training.forecasts import Forecast, Labels, marginal, per_category
from p2l.votes import VoteStore, open_votes

_LIKELIHOOD = "grk"
EXAMPLES = 200  # prompts behind each leaderboard
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Held:
    """The held-out votes, their forecasts, and the truth; `bayes`: (N,) loss under the true probabilities."""

    arena: Arena
    model: P2L
    labels: Labels
    forecasts: dict[str, Forecast]
    bayes: Floats


def held_out(folder: Path) -> Held:
    """Forecast the held-out votes of a demo's folder by a leaderboard, by categories and by both models."""
    arena = load_arena(folder / "truth")
    with open_votes(str(folder / "votes.parquet")) as train:
        models, labels = train.model_list, train.labels()
        categories = _categories(train)
    with open_votes(str(folder / "held_out.parquet"), model_list=models) as held:
        held_labels, prompts, held_categories = held.labels(), held.prompts(), _categories(held)
        numbers = [int(row) for row in held.column("question_id")]
    model = P2L.from_pretrained(folder / "models" / "p2l", device="cpu")
    words = P2L.from_pretrained(folder / "models" / "bag-of-words", device="cpu")
    forecasts = {
        "one leaderboard for all prompts": marginal(labels, len(held_labels), models, _LIKELIHOOD),
        "one per set of topics mentioned": per_category(labels, categories, held_categories, models, _LIKELIHOOD),
        "bag of words (TF-IDF, low-rank head)": _ask(words, prompts),
        "P2L, a tiny transformer": _ask(model, prompts),
    }
    truth = arena.truth_of(numbers)
    bayes = _losses(Forecast(truth.coefs, truth.eta), held_labels)
    return Held(arena, model, held_labels, forecasts, bayes)


def loss_table(held: Held) -> str:
    """Return a line per forecast: loss, and the share of the way from one leaderboard to the truth."""
    rows = losses_and_gaps(held)
    width = max(len(name) for name, _, _ in rows)
    lines = [f"{'forecast':<{width}}    loss   gap closed"]
    lines += [f"{name:<{width}}  {loss:.4f}   {closed:>10.0%}" for name, loss, closed in rows]
    return "\n".join(lines)


def losses_and_gaps(held: Held) -> list[tuple[str, float, float]]:
    """Return for each forecast its name, loss, and the share of the way from one leaderboard to the truth."""
    losses = {name: float(_losses(forecast, held.labels).mean()) for name, forecast in held.forecasts.items()}
    worst, best = next(iter(losses.values())), float(held.bayes.mean())
    losses["the truth itself (Bayes optimum)"] = best
    return [(name, loss, (worst - loss) / (worst - best)) for name, loss in losses.items()]


def leaderboards(held: Held) -> Iterator[str]:
    """Yield true beside predicted leaderboards for three kinds of prompt; the last two have the very same words."""
    arena = held.arena
    first, second, third = arena.topics[:3]
    yield _leaderboard(held, f"prompts about {first}", arena.example_prompts(first, EXAMPLES))
    there, back = arena.mirrored_prompts(second, third, EXAMPLES)
    yield _leaderboard(held, f"{second} into {third}", there)
    yield _leaderboard(held, f"{third} into {second}: the same words in another order", back)


def _leaderboard(held: Held, title: str, examples: Examples) -> str:
    true = examples.truth.coefs.mean(axis=0)
    predicted = held.model.predict(examples.prompts).coefs.mean(axis=0).astype(np.float64)
    # Ranks by sorting twice; coefficients have no ties.
    agreement = float(np.corrcoef(true.argsort().argsort(), predicted.argsort().argsort())[0, 1])
    names, true_order, order = held.arena.model_list, np.argsort(-true), np.argsort(-predicted)
    width = max(len(name) for name in names)
    lines = [
        title.upper(),
        f"  for example: {' / '.join(examples.prompts[0])}",
        f"  {'':4}{'truth':<{width}} score     {'P2L':<{width}} score",
    ]
    for place, (real, predicted_name) in enumerate(zip(true_order[:5], order[:5], strict=True), start=1):
        left = f"{names[real]:<{width}} {to_score(true[real]):5.0f}"
        right = f"{names[predicted_name]:<{width}} {to_score(predicted[predicted_name]):5.0f}"
        lines.append(f"  {place:<4}{left}     {right}")
    return "\n".join([*lines, f"  rank correlation over all {len(names)} models: {agreement:.2f}"])


def _ask(model: P2L, prompts: list[list[str]]) -> Forecast:
    predictions = model.predict(prompts)
    return Forecast(
        predictions.coefs.astype(np.float64), None if predictions.eta is None else predictions.eta.astype(np.float64)
    )


def _losses(forecast: Forecast, labels: Labels) -> Floats:
    losses: Floats = vote_losses(get(_LIKELIHOOD), forecast.coefs, labels, forecast.eta, forecast.gamma)
    return losses


def _categories(votes: VoteStore) -> NDArray[np.object_]:
    return np.array(["+".join(topics) for topics in votes.column("mentioned")], dtype=object)
