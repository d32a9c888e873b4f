"""How good forecasts of votes are: losses with intervals, beside one leaderboard and one for each topic.

    python examples/evaluate_forecasts.py

The votes are the real sample of the package. A bag of words is trained on most of them in seconds (the default reader
takes minutes and forecasts better); all three forecast the votes on prompts that none of them has seen.

Shapes: N held-out votes, M LLMs.
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from p2l import P2L
from p2l.cli import dispatch
from p2l.likelihood import get
from p2l.metrics import ScoredVotes, bootstrap_mean, evaluate, vote_values
from p2l.training.forecasts import Forecast, marginal, per_category
from p2l.votes import VoteStore, open_votes

LIKELIHOOD = "grk"
METRICS = ("Loss", "Accuracy", "Brier", "ECE")
VOTES = 2500


def main(votes: int = VOTES) -> dict[str, float]:
    """Train, print the table, and return the loss of each forecast."""
    with TemporaryDirectory() as name:
        train_model(Path(name), votes)
        scored, prompts = forecasts(Path(name))
    print(f"\n{'forecast':<28}" + "".join(f"{metric:>10}" for metric in METRICS))
    for title, forecast in scored.items():
        values = [evaluate(metric, forecast) or 0.0 for metric in METRICS]
        print(f"{title:<28}" + "".join(f"{value:>10.4f}" for value in values))
    losses = {title: vote_values("Loss", forecast) for title, forecast in scored.items()}
    first, *others = losses
    for title in others:
        gain = bootstrap_mean(losses[first] - losses[title], clusters=prompts)
        print(f"gain of {title}: {gain.estimate:.4f} nats a vote [{gain.lower:.4f}, {gain.upper:.4f}]")
    return {title: float(values.mean()) for title, values in losses.items()}


def train_model(folder: Path, votes: int) -> None:
    """Write train.parquet, val.parquet and the trained model into the folder."""
    path = {name: str(folder / f"{name}.parquet") for name in ("sample", "train", "val")}
    dispatch(["votes", "sample", "--votes", str(votes), "--output", path["sample"]])
    split = ["--train-output", path["train"], "--val-output", path["val"]]
    dispatch(["votes", "split", path["sample"], "--by", "prompt", "--val", str(votes // 5), *split])
    dispatch(["init", "--model-type", "tfidf", "--votes", path["train"], "--output", str(folder / "words"), "--quiet"])
    words = ["--size", "tiny", "--backbone", str(folder / "words"), "--output", str(folder / "model")]
    dispatch(["train", "--votes", path["train"], "--val", path["val"], *words, "--quiet"])


def forecasts(folder: Path) -> tuple[dict[str, ScoredVotes], np.ndarray]:
    """Return the held-out votes under each forecast, and which prompt each vote is on."""
    model = P2L.from_pretrained(folder / "model", device="cpu")
    models = model.model_list
    with open_votes(str(folder / "train.parquet"), model_list=models) as train:
        labels, topics = train.labels(), topics_of(train)
    with open_votes(str(folder / "val.parquet"), model_list=models) as held:
        held_labels, held_topics, prompts = held.labels(), topics_of(held), held.prompts()
    prediction = model.predict(prompts)
    eta = None if prediction.eta is None else prediction.eta.astype(np.float64)
    by_title = {
        "one leaderboard": marginal(labels, len(prompts), models, LIKELIHOOD),
        "one for each topic": per_category(labels, topics, held_topics, models, LIKELIHOOD),
        "P2L, a bag of words": Forecast(prediction.coefs.astype(np.float64), eta),
    }
    likelihood = get(LIKELIHOOD)
    scored = {
        title: ScoredVotes(likelihood, forecast.coefs, held_labels, forecast.eta, forecast.gamma)
        for title, forecast in by_title.items()
    }
    numbers = np.unique([str(turns) for turns in prompts], return_inverse=True)[1]
    return scored, numbers


def topics_of(votes: VoteStore) -> np.ndarray:
    """Return the topic (N,) of each vote."""
    return np.array(list(votes.column("topic")), dtype=object)


if __name__ == "__main__":
    main()
