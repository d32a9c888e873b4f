"""A live newcomer: real votes on an LLM that the model has never seen arrive, and its forecasts are measured.

    python examples/live_newcomer.py

The real sample's votes on one LLM are dealt into thirds. Two thirds arrive, shuffled, in a file that a run follows; the
rest, on other prompts, is what each published model is asked to forecast, and so in turns. With no vote the newcomer is
taken for an average model. Of one that nearly is (llama-3.1-70b-instruct) five votes mislead by chance more than they
tell: its forecasts are worse after five votes than after none, and better after twenty.

Shapes: N held-out votes, M known LLMs.
"""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import numpy.typing as npt

from p2l import P2L
from p2l.cli import dispatch
from p2l.votes import WINNERS

Floats = npt.NDArray[np.float64]
NEW_LLM = "gpt-4o-2024-08-06"
VOTES = 2500
ARRIVALS = (5, 20, 80)
"""Votes that have arrived when the newcomer is looked at."""
PARTS = 3
"""Parts of its votes, each of which is held out once."""
SIDES = ("model_a", "model_b")


def main(votes: int = VOTES, arrivals: tuple[int, ...] = ARRIVALS, parts: int = PARTS) -> dict[int, float]:
    """Train without the newcomer, let its votes arrive, print and return the loss of forecasts by votes arrived."""
    losses: dict[int, list[Floats]] = {count: [] for count in (0, *arrivals)}
    with TemporaryDirectory() as name:
        folder = Path(name)
        mine = _train_without(folder, votes)
        known = P2L.from_pretrained(folder / "model", device="cpu")
        prompts = list(dict.fromkeys(str(row["prompt"]) for row in mine))
        for part in range(parts):
            held_prompts = set(prompts[part::PARTS])
            held, arriving = (
                [row for row in mine if (str(row["prompt"]) in held_prompts) == is_held] for is_held in (True, False)
            )
            np.random.default_rng(part).shuffle(arriving)
            losses[0].append(_losses(known, held, is_known=False))
            for count in arrivals:
                model = _follow(folder, arriving[:count], f"{part}-{count}")
                losses[count].append(_losses(model, held, is_known=True))
                board = model.leaderboard("Prove that 17 is prime.").set_index("model")
                print(f"part {part + 1}, {count} votes: rank {board.loc[NEW_LLM, 'rank']} of {len(board)} for a proof")
    by_count = {count: np.concatenate(of_parts) for count, of_parts in losses.items()}
    print(f"\nloss on {len(by_count[0])} votes on {NEW_LLM} that had not arrived, in nats a vote")
    for count, of_votes in by_count.items():
        change = of_votes - by_count[0]
        error = 1.96 * change.std() / np.sqrt(len(change))
        print(f"  {count:>4} votes: {of_votes.mean():.4f}   {change.mean():+.4f} +- {error:.4f}")
    return {count: float(of_votes.mean()) for count, of_votes in by_count.items()}


def _train_without(folder: Path, votes: int) -> list[dict[str, Any]]:
    """Train a bag of words on the votes between other LLMs; return the newcomer's votes."""
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
    return [row for row, new in zip(rows, is_new, strict=True) if new]


def _follow(folder: Path, votes: list[dict[str, Any]], name: str) -> P2L:
    """Let a run follow a file with these votes until it is idle; return the model that it published last."""
    stream, served = folder / f"new-{name}.jsonl", folder / f"served-{name}"
    stream.write_text("".join(map(_line, votes)), "utf-8")
    flags = f"--follow {stream} --publish {served} --publish-votes 1 --hold-out 0 --stop-when-idle 1"
    dispatch(f"online-train --checkpoint {folder}/model --no-eval {flags} --quiet".split())
    newest = max(served.glob("checkpoint-*"), key=lambda path: int(path.name.split("-")[1]))
    return P2L.from_pretrained(newest, device="cpu")


def _losses(model: P2L, votes: list[dict[str, Any]], *, is_known: bool) -> Floats:
    """Return the loss (N,) of the forecast of each of the newcomer's votes, in nats."""
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
    return np.asarray(-np.log(probs[np.arange(len(votes)), outcomes]))


def _line(vote: dict[str, Any]) -> str:
    return json.dumps(vote) + "\n"


if __name__ == "__main__":
    main()
