"""The demo's online run: the votes once, in their order, and checkpoints evaluated on the slices of their time."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path

from p2l.common.program import shipped

_BATCH = 100  # votes: what the numbers of the slices in validation_sets count
_CHECKPOINTS = 5
_DEEPSPEED = '{"train_micro_batch_size_per_gpu": "auto", "zero_optimization": {"stage": 0}}\n'
_CONFIG = f"""\
pretrain_model_name: backbone
model_type: qwen2
head_type: rk
loss_type: grk
chat_template: chatml
max_length: 192

train_data_path: votes.parquet
output_dir: models
proj_name: online

learning_rate: 1.0e-3
head_learning_rate: 1.0e-2
weight_decay: 1.0
adam_epsilon: 1.0e-8
warmup_steps: 20
batch_size: {_BATCH}
gradient_accumulation_steps: 1
# Every vote at once, and a fourth as many once more; what is published is the mean over recent steps.
buffer: {{type: replay, epsilon: 0.19}}
average_steps: 500
deepspeed_config_path: zero0.json
"""


def show_online(folder: Path, run: Callable[..., None], votes: int, *, usual: bool) -> Iterator[str]:
    """Train on the demo's votes in their order, evaluate each checkpoint, and yield lines to print.

    `run` runs a command in the demo's folder; `usual`: whether the slices in validation_sets belong to the votes.
    """
    (folder / "online.yaml").write_text(_CONFIG, "utf-8")
    (folder / "zero0.json").write_text(_DEEPSPEED, "utf-8")
    every = max(1, votes // _BATCH // _CHECKPOINTS)
    run("p2l", "init", "--model-type", "qwen2", "--votes", "votes.parquet", "--hidden-size", 64, "--output", "backbone")
    run("p2l", "online-train", "--config", "online.yaml", "--no-eval", "--save-steps", every)
    slices = os.path.relpath(shipped() / "validation_sets", folder)
    if not usual:
        slices = "validation_sets"
        cut = ("--batch-size", _BATCH, "--every", every, "--most", 500)
        run("p2l", "votes", "slice", "votes.parquet", "--held-out", "held_out.parquet", *cut, "--output", slices)
    run("p2l", "eval-chrono", "--model-repo", "models/online", "--val-dir", slices, "--output-dir", "slices")
    run("p2l", "visualize", "--eval-folder", "slices", "--names", "online", "--output-file", "figures")
    yield from _table(folder)
    yield f"\n  As a picture: {os.path.relpath(folder / 'figures' / 'loss' / 'online-heat-map.png')}"


def _table(folder: Path) -> Iterator[str]:
    """Yield the loss of each checkpoint on the slices of its time, and how many models it knew."""
    losses = json.loads((folder / "figures" / "loss" / "online.json").read_text("utf-8"))
    checkpoints = sorted(losses, key=int)
    numbers = sorted(losses[checkpoints[-1]], key=int)
    numbers = [number for number in numbers if number in checkpoints] or numbers
    yield f"  {'votes trained on':>16} {'models known':>13}   loss on the votes of slice" + _cells(numbers)
    for number in checkpoints:
        model_list = json.loads((folder / "models" / "online" / f"checkpoint-{number}" / "model_list.json").read_text())
        values = [losses[number].get(name) for name in numbers]
        cells = _cells(["" if value is None else f"{value:.3f}" for value in values])
        yield f"  {int(number) * _BATCH:>16,} {len(model_list):>13}   {'':26}{cells}"


def _cells(texts: list[str]) -> str:
    return "".join(f"{text:>8}" for text in texts)
