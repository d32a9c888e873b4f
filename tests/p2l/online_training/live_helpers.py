"""Vote files that grow while somebody reads them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from p2l.online_training.live_votes import LiveVotes, Waiting

__all__ = ["add", "line", "live", "seen"]


def line(number: int, **changes: object) -> str:
    """A vote on prompt `number`, as text without its end."""
    models = ["ant", "bee", "cat", "dog"]
    row = {
        "prompt": f"question {number}",
        "model_a": models[number % 4],
        "model_b": models[(number + 1) % 4],
        "winner": ["model_a", "model_b", "tie", "tie (bothbad)"][number % 4],
        "tstamp": 1000.0 + number,
    }
    return json.dumps({key: value for key, value in (row | changes).items() if value is not None})


def add(path: Path, lines: Iterable[str]) -> Path:
    """Append lines to a file."""
    with path.open("a", encoding="utf-8") as file:
        file.writelines(f"{text}\n" for text in lines)
    return path


def live(path: Path, **options: object) -> tuple[LiveVotes, list[str]]:
    """A stream that ends when nothing has come, and what it says."""
    said: list[str] = []
    waiting = Waiting(poll_seconds=0.0, idle_seconds=0.0, tell=said.append)
    return LiveVotes(path, waiting=waiting, **options), said  # type: ignore[arg-type]


def seen(votes: LiveVotes) -> list[str]:
    """The first turns of all votes."""
    return [prompt[0] for prompt in votes.prompts()]
