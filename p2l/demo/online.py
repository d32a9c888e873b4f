"""The demo's stream, in which topics change: two online runs, plain and with replay, are judged on all of it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

_BATCH = 50  # votes of a step
_PERIODS = 5
# Topics come into fashion one after the other, and half of a topic's words go out of use: what was learned early is
# then asked about less and less, and is what a run can forget.
_CHANGE = {"effect": 1.8, "fashion": 3.0, "turnover": 0.5, "drift": 0.0, "growth": 1.5, "seed": 1}
_ARENA = ("--models", 12, "--topics", 6, "--languages", 1, "--sentences")
_CONFIG = f"""\
pretrain_model_name: stream-backbone
model_type: qwen2
head_type: rk
loss_type: grk
chat_template: chatml
max_length: 192

train_data_path: stream.parquet
output_dir: models
proj_name: PROJECT

learning_rate: 1.0e-3
head_learning_rate: 1.0e-2
weight_decay: 1.0
adam_epsilon: 1.0e-8
warmup_steps: 20
batch_size: {_BATCH}
gradient_accumulation_steps: 1
buffer: BUFFER
deepspeed_config_path: zero0.json
"""
# Plain: each vote once, as it comes. Replay: the same, and of each batch three tenths are votes of the past. With half,
# all of the past is replayed as soon as it is past (a vote is replayed once), and the run forgets like a plain one.
_BUFFERS = {"plain": "{type: none}", "replay": "{type: replay, epsilon: 0.3}"}


def show_online(folder: Path, run: Callable[..., None], votes: int) -> Iterator[str]:
    """Train on a stream of `votes` votes, plain and with replay, and yield lines on what each run forgot.

    `run` runs a command in the demo's folder.
    """
    every = max(1, votes // _BATCH // _PERIODS)
    changes = [word for name, value in _CHANGE.items() for word in (f"--{name}", value)]
    files = ("--output", "stream.parquet", "--val", votes // 5, "--val-output", "later.parquet")
    run("p2l", "simulate", "--votes", votes, *files, *_ARENA, *changes)
    cut = ("--held-out", "later.parquet", "--batch-size", _BATCH, "--every", every, "--output", "periods")
    run("p2l", "votes", "slice", "stream.parquet", *cut)
    run("p2l", "init", "--votes", "stream.parquet", "--hidden-size", 64, "--output", "stream-backbone")
    for name, buffer in _BUFFERS.items():
        text = _CONFIG.replace("PROJECT", name).replace("BUFFER", buffer)
        (folder / f"{name}.yaml").write_text(text, "utf-8")
        run("p2l", "online-train", "--config", f"{name}.yaml", "--no-eval", "--save-steps", every)
        run("p2l", "eval-chrono", "--model", f"models/{name}", "--val-dir", "periods", "--output-dir", f"on/{name}")
    run("p2l", "visualize", "--eval-folder", *(f"on/{name}" for name in _BUFFERS), "--output-file", "figures")
    yield from _table(forgetting(folder))
    place = os.path.relpath(folder / "figures" / "loss")
    yield f"\n  As pictures: {place}/plain-heat-map.png, {place}/replay-heat-map.png"


@dataclass(frozen=True)
class Forgetting:
    """Losses of an online run on each period of its stream: of the checkpoint at its end, and of the last one."""

    name: str
    when_newest: list[float]
    at_the_end: list[float]

    @property
    def change(self) -> float:
        """Mean change of the loss on all periods but the last: above zero, the run forgot."""
        pairs = list(zip(self.when_newest, self.at_the_end, strict=True))[:-1]
        return sum(end - then for then, end in pairs) / max(1, len(pairs))


def forgetting(folder: Path) -> list[Forgetting]:
    """Return what each run of a demo's folder forgot."""
    runs = []
    for name in _BUFFERS:
        table = json.loads((folder / "figures" / "loss" / f"{name}.json").read_text("utf-8"))
        # Steps and periods are keys of JSON, and "10" sorts before "9".
        rows = [[table[step][period] for period in sorted(table[step], key=int)] for step in sorted(table, key=int)]
        last = rows[-1]
        when_newest = [rows[number][number] for number in range(len(last))]
        runs.append(Forgetting(name, when_newest=when_newest, at_the_end=last))
    return runs


def _table(runs: Sequence[Forgetting]) -> Iterator[str]:
    """Yield the lines of the runs' losses, and what each forgot."""
    periods = range(1, len(runs[0].at_the_end) + 1)
    yield _line("loss on held-out votes of period", map(str, periods))
    for run in runs:
        yield _line(f"{run.name}, when it was the newest", (f"{loss:.3f}" for loss in run.when_newest))
        yield _line(f"{run.name}, at the end", (f"{loss:.3f}" for loss in run.at_the_end))
    forgotten = ", ".join(f"{run.name} {run.change:+.3f}" for run in runs)
    yield f"  mean change of the loss on periods that are past, in nats a vote (above 0: forgotten): {forgotten}"


def _line(name: str, cells: Iterable[str]) -> str:
    return f"  {name:<36}" + "".join(f"{cell:>8}" for cell in cells)
