"""Votes that come over time on models that join one by one, and runs on them, several in one process."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from tests.conftest import Command, Configure, write_votes
from tests.in_turn import run_in_turn

ORDER = ("bee", "ant", "dog", "cat")
"""The models in order of first appearance, which is not that of the alphabet."""

STAGE_1 = {"zero_optimization": {"stage": 1}}
SETTINGS: dict[str, object] = {
    "buffer": {"type": "geometric", "gamma": 0.98, "epsilon": 0.3},
    "weight_decay": 0.1,
    "zero": STAGE_1,
}


def stream_rows(count: int, *, seed: int = 0) -> list[dict[str, object]]:
    """Votes in order of time; a third model joins after half of them, a fourth after three quarters."""
    rng = np.random.default_rng(seed)
    rows: list[dict[str, object]] = []
    for number in range(count):
        known = 2 + (number >= count // 2) + (number >= 3 * count // 4)
        a, b = (0, 1) if number == 0 else map(int, rng.choice(known, size=2, replace=False))
        if number in (count // 2, 3 * count // 4):
            a, b = 0, known - 1
        is_sum = bool(rng.integers(2))
        winner = "model_a" if (a < b) == is_sum else "model_b"
        text = f"what is {rng.integers(99)} plus 1" if is_sum else f"write a poem about {ORDER[b]}s"
        row = {"prompt": text, "model_a": ORDER[a], "model_b": ORDER[b], "winner": "tie" if number % 9 == 0 else winner}
        rows.append(row | {"tstamp": 1000.0 + 10 * number})
    return rows


def write_stream(path: Path, count: int = 120) -> Path:
    """A file of `stream_rows`."""
    return write_votes(path, stream_rows(count))


def online(configure: Configure, votes: Path, name: str, **changes: object) -> Path:
    """The configuration of an online run."""
    settings = {"train_data_path": str(votes), "val_data_path": None, "proj_name": name, **SETTINGS, **changes}
    return configure(f"{name}.yaml", **{key: value for key, value in settings.items() if value != "absent"})


def run_all(command: Command, plan: Path, runs: Sequence[Sequence[str | Path]], *launcher: str) -> None:
    """Run commands of training one after the other in one process; the first word of each is `train` or `online`."""
    run_in_turn(command, plan, [[*run, "--quiet"] for run in runs], *launcher)
