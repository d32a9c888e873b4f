"""A live newcomer: real votes on an LLM that the model has never seen arrive, and its forecasts are measured.

    python examples/live_newcomer.py

Two thirds of the real sample's votes on one LLM arrive in a file that a run follows; the rest, on other prompts, is
what each published model is asked to forecast. With no vote the newcomer is taken for an average model.

Shapes: N held-out votes, M known LLMs.
"""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from p2l import P2L
from p2l.cli import dispatch
from p2l.votes import WINNERS

NEW_LLM = "llama-3.1-70b-instruct"
VOTES = 2500
ARRIVALS = (5, 20, 80)
"""Votes that have arrived when the newcomer is looked at."""
SIDES = ("model_a", "model_b")


def main(votes: int = VOTES, arrivals: tuple[int, ...] = ARRIVALS) -> dict[int, float]:
    """Train without the newcomer, let its votes arrive, print and return the loss of forecasts by votes arrived."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        arriving, held = _train_without(folder, votes)
        known = P2L.from_pretrained(folder / "model", device="cpu")
        losses = {0: _loss(known, held, is_known=False)}
        for count in arrivals:
            (folder / f"new-{count}.jsonl").write_text("".join(map(_line, arriving[:count])), "utf-8")
            model = _follow(folder, count)
            losses[count] = _loss(model, held, is_known=True)
            board = model.leaderboard("Prove that 17 is prime.").set_index("model")
            print(f"after {count} votes: rank {board.loc[NEW_LLM, 'rank']} of {len(board)} for a proof")
    print(f"\nloss on {len(held)} other votes on {NEW_LLM}, in nats a vote")
    for count, loss in losses.items():
        print(f"  {count:>4} votes: {loss:.4f}")
    return losses


def _train_without(folder: Path, votes: int) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Train a bag of words on the votes between other LLMs; return the newcomer's votes, to arrive and held out."""
    sample = folder / "sample.jsonl"
    dispatch(["votes", "sample", "--votes", str(votes), "--output", str(sample)])
    rows = [json.loads(line) for line in sample.read_text("utf-8").splitlines()]
    is_new = [NEW_LLM in (row["model_a"], row["model_b"]) for row in rows]
    others = [row for row, new in zip(rows, is_new, strict=True) if not new]
    validation = len(others) // 5
    (folder / "val.jsonl").write_text("".join(map(_line, others[:validation])), "utf-8")
    (folder / "votes.jsonl").write_text("".join(map(_line, others[validation:])), "utf-8")
    data, words = f"--votes {folder}/votes.jsonl --quiet", f"--output {folder}/words"
    dispatch(f"init --model-type tfidf {data} {words}".split())
    model = f"--val {folder}/val.jsonl --size tiny --backbone {folder}/words --output {folder}/model --control none"
    dispatch(f"train {data} {model}".split())
    mine = [row for row, new in zip(rows, is_new, strict=True) if new]
    prompts = list(dict.fromkeys(str(row["prompt"]) for row in mine))
    held = set(prompts[len(prompts) * 2 // 3 :])
    return [row for row in mine if str(row["prompt"]) not in held], [row for row in mine if str(row["prompt"]) in held]


def _follow(folder: Path, count: int) -> P2L:
    """Let a run follow the file with the first votes until it is idle; return the model that it published last."""
    served = folder / f"served-{count}"
    flags = f"--follow {folder}/new-{count}.jsonl --publish {served} --publish-votes 1 --hold-out 0 --stop-when-idle 1"
    dispatch(f"online-train --checkpoint {folder}/model --no-eval {flags} --quiet".split())
    newest = max(served.glob("checkpoint-*"), key=lambda path: int(path.name.split("-")[1]))
    return P2L.from_pretrained(newest, device="cpu")


def _loss(model: P2L, votes: list[dict[str, Any]], *, is_known: bool) -> float:
    """Return the mean loss of forecasts of the newcomer's votes, in nats."""
    prompts = [row["prompt"] for row in votes]
    prediction = model.predict(prompts)
    coefs = prediction.coefs.astype(np.float64)
    places = {name: place for place, name in enumerate(model.model_list)}
    # A model that is not known has the mean of those that are.
    column = {name: coefs[:, place] for name, place in places.items()}
    if not is_known:
        column[NEW_LLM] = coefs.mean(axis=1)
    first, second = (np.array([column[row[side]][number] for number, row in enumerate(votes)]) for side in SIDES)
    probs = model.likelihood.probs(first, second, prediction.eta, prediction.gamma)
    outcomes = np.array([WINNERS.index(row["winner"]) for row in votes])
    return float(-np.log(probs[np.arange(len(votes)), outcomes]).mean())


def _line(vote: dict[str, Any]) -> str:
    return json.dumps(vote) + "\n"


if __name__ == "__main__":
    main()
