"""Training against one leaderboard, on votes whose truth is known: how much of what there is to learn is learned.

    python examples/known_truth.py

An arena is simulated in which the strength of a model depends on the topics of the prompt. The loss under the true
probabilities is the best that anything can reach, so a table shows how far each forecast came from one leaderboard.

Shapes: N held-out votes, M models.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from p2l import P2L
from p2l.cli import dispatch
from p2l.leaderboard import to_score
from p2l.likelihood import get, vote_losses
from p2l.simulate import Arena, load_arena
from p2l.training.forecasts import Forecast, marginal, per_category
from p2l.votes import VoteStore, open_votes

ARENA = "--models 12 --topics 6 --languages 1 --effect 1.2 --drift 0 --seed 1 --sentences"
VOTES = 20_000
LIKELIHOOD = "grk"
EXAMPLES = 200
"""Prompts of a topic behind its leaderboards."""


@dataclass(frozen=True)
class Learned:
    """Mean losses of the forecasts by name, in nats a vote, the truth last, and how well the boards of topics agree."""

    losses: dict[str, float]
    agreement: dict[str, float]
    """Rank correlation of the model's board of a topic with the true one."""


def main(votes: int = VOTES) -> Learned:
    """Simulate, train, print the table and three leaderboards, and return the figures."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        _train(folder, votes)
        arena, model = load_arena(folder / "truth"), P2L.from_pretrained(folder / "model", device="cpu")
        losses = _losses(folder, arena, model)
    worst, best = losses["one leaderboard"], losses["the truth itself"]
    print(f"\n{'forecast':<34}{'loss':>8}{'of the way to the truth':>26}")
    for title, loss in losses.items():
        print(f"{title:<34}{loss:>8.4f}{(worst - loss) / (worst - best):>26.0%}")
    agreement = {topic: _show_board(arena, model, topic) for topic in arena.topics[:3]}
    return Learned(losses, agreement)


def _train(folder: Path, votes: int) -> None:
    files = f"--output {folder}/votes.parquet --val {votes // 5} --val-output {folder}/val.parquet"
    dispatch(f"simulate --votes {votes} {files} --truth {folder}/truth {ARENA} --quiet".split())
    data = f"--votes {folder}/votes.parquet"
    dispatch(f"init --model-type tfidf {data} --output {folder}/words --quiet".split())
    model = f"--size tiny --backbone {folder}/words --output {folder}/model"
    dispatch(f"train {data} --val {folder}/val.parquet {model} --quiet".split())


def _losses(folder: Path, arena: Arena, model: P2L) -> dict[str, float]:
    """Return the mean loss of each forecast of the held-out votes."""
    models = model.model_list
    with open_votes(str(folder / "votes.parquet"), model_list=models) as train:
        labels, topics = train.labels(), _topics(train)
    with open_votes(str(folder / "val.parquet"), model_list=models) as held:
        held_labels, prompts, held_topics = held.labels(), held.prompts(), _topics(held)
        rows = [int(number) for number in held.column("question_id")]
    prediction, truth = model.predict(prompts), arena.truth_of(rows)
    eta = None if prediction.eta is None else prediction.eta.astype(np.float64)
    order = [arena.model_list.index(name) for name in models]
    forecasts = {
        "one leaderboard": marginal(labels, len(held_labels), models, LIKELIHOOD),
        "one for each set of topics": per_category(labels, topics, held_topics, models, LIKELIHOOD),
        "P2L, a bag of words": Forecast(prediction.coefs.astype(np.float64), eta),
        "the truth itself": Forecast(truth.coefs[:, order], truth.eta),
    }
    likelihood = get(LIKELIHOOD)
    return {
        title: float(vote_losses(likelihood, forecast.coefs, held_labels, forecast.eta, forecast.gamma).mean())
        for title, forecast in forecasts.items()
    }


def _topics(votes: VoteStore) -> np.ndarray:
    return np.array(["+".join(topics) for topics in votes.column("mentioned")], dtype=object)


def _show_board(arena: Arena, model: P2L, topic: str) -> float:
    """Print the true leaderboard of a topic beside the model's; return their rank correlation."""
    examples = arena.example_prompts(topic, EXAMPLES)
    order = [arena.model_list.index(name) for name in model.model_list]
    true = examples.truth.coefs.mean(axis=0)[order]
    learned = model.predict(examples.prompts).coefs.mean(axis=0)
    agreement = float(np.corrcoef(true.argsort().argsort(), learned.argsort().argsort())[0, 1])
    print(f"\nPrompts about {topic}, such as: {' / '.join(examples.prompts[0])}")
    for place in np.argsort(-true)[:4]:
        name = model.model_list[place]
        print(f"  {name:<16} truth {to_score(true[place]):5.0f}   P2L {to_score(learned[place]):5.0f}")
    print(f"  rank correlation over all {len(order)} models: {agreement:.2f}")
    return agreement


if __name__ == "__main__":
    main()
