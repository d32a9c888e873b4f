"""One point of the grid: a model of some shape, trained from scratch on some votes by the trainer that users have."""

from __future__ import annotations

import json
import math
import shutil
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import yaml

from benchmarks.scaling.arena import HeldOut, draw_votes, marginal_losses
from p2l.common.errors import InputError

__all__ = ["SHAPES", "Point", "Shape", "read_points", "train_point", "write_points"]

_EPOCHS = 3
_MAX_LENGTH = 192
_VOCABULARY = 1024
_PROMPTS_FOR_TOKENS = 4000


@dataclass(frozen=True)
class Shape:
    """A Qwen2-style transformer with random weights."""

    name: str
    hidden_size: int
    layers: int
    heads: int
    intermediate_size: int | None = None
    gpu: bool = False

    @property
    def learning_rate(self) -> float:
        """2e-3 at width 64 (benchmarks/LOG.md), falling with the root of the width; 4e-3 at most."""
        return min(4e-3, 2e-3 * math.sqrt(64 / self.hidden_size))


SHAPES = {
    shape.name: shape
    for shape in (
        Shape("w8", 8, 2, 1),
        Shape("w16", 16, 2, 1),
        Shape("w32", 32, 2, 2),
        Shape("w64", 64, 2, 4),
        Shape("smollm2-135m", 576, 30, 9, 1536, gpu=True),
        Shape("smollm2-360m", 960, 32, 15, 2560, gpu=True),
        Shape("qwen2.5-0.5b", 896, 24, 14, 4864, gpu=True),
        Shape("qwen2.5-1.5b", 1536, 28, 12, 8960, gpu=True),
    )
}


@dataclass(frozen=True)
class Point:
    """A trained model, as one line of the file of points."""

    shape: str
    parameters: int
    votes: int
    seed: int
    losses: list[float]
    """(C,) mean held-out loss of each block."""
    marginal: list[float]
    """(C,) of one leaderboard for all prompts, from the same votes."""
    steps: int
    seconds: float
    device: str

    @property
    def loss(self) -> float:
        """Mean held-out loss."""
        return float(np.mean(self.losses))


def write_points(file: Path, point: Point) -> None:
    """Add a line."""
    with file.open("a", encoding="utf-8") as lines:
        lines.write(json.dumps(asdict(point)) + "\n")


def read_points(file: Path) -> Iterator[Point]:
    """The points of a file; a last line that a kill cut short does not count, and is taken away.

    Raises:
        InputError: a line is not a point.
    """
    if not file.exists():
        return
    text = file.read_text(encoding="utf-8")
    if text and not text.endswith("\n"):
        text = text[: text.rfind("\n") + 1]
        file.write_text(text, encoding="utf-8")
    for number, line in enumerate(text.splitlines(), start=1):
        try:
            yield Point(**json.loads(line))
        except (ValueError, TypeError) as error:
            raise InputError(f"{file}: line {number} is not a point ({error}); remove it") from error


def train_point(folder: Path, shape: Shape, votes: int, seed: int, held: HeldOut, device: str) -> Point:
    """Train one model in a folder of its own below `folder`, which goes away again."""
    from p2l import P2L
    from p2l.training.loop import RunOptions
    from p2l.training.offline import train

    work = folder / f"{shape.name}-{votes}-{seed}"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    draw_votes(folder, work / "train.parquet", votes, seed)
    _make_backbone(folder, work / "backbone", shape, seed)
    config = _configuration(work, shape, votes, seed, device)
    (work / "config.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    (work / "deepspeed.json").write_text('{"zero_optimization": {"stage": 0}}\n', encoding="utf-8")
    started = time.monotonic()
    trained = train(str(work / "config.yaml"), RunOptions(quiet=True))
    seconds = time.monotonic() - started
    model = P2L.from_pretrained(trained, device=device)
    said = model.predict(held.prompts, batch_size=512)
    coefs, eta = (np.asarray(values, dtype=np.float64) for values in (said.coefs, said.eta))
    point = Point(
        shape=shape.name,
        parameters=sum(weight.numel() for weight in model.model.parameters()),
        votes=votes,
        seed=seed,
        losses=held.losses(model.model_list, coefs, eta),
        marginal=marginal_losses(work / "train.parquet", held),
        steps=_steps(votes),
        seconds=round(seconds, 2),
        device=device,
    )
    shutil.rmtree(work)
    return point


def _make_backbone(folder: Path, target: Path, shape: Shape, seed: int) -> None:
    from p2l.model.scratch import make_transformer

    prompts = pq.read_table(folder / "pool.parquet", columns=["prompt"]).column("prompt")
    make_transformer(
        target,
        prompts.slice(0, _PROMPTS_FOR_TOKENS).to_pylist(),
        model_type="qwen2",
        seed=seed,
        vocab_size=_VOCABULARY,
        hidden_size=shape.hidden_size,
        layers=shape.layers,
        heads=shape.heads,
        intermediate_size=shape.intermediate_size,
        max_positions=_MAX_LENGTH,
    )


def _batch(votes: int) -> int:
    """About 250 steps an epoch, of 16 to 256 votes: what `p2l train --size tiny` does."""
    return min(256, max(16, 2 ** round(math.log2(votes / 250))))


def _steps(votes: int) -> int:
    return math.ceil(votes / _batch(votes)) * _EPOCHS


def _configuration(work: Path, shape: Shape, votes: int, seed: int, device: str) -> dict[str, Any]:
    return {
        "proj_name": "model",
        "output_dir": str(work / "out"),
        "seed": seed,
        "device": device,
        "train_data_path": str(work / "train.parquet"),
        "shuffle": True,
        "pretrain_model_name": str(work / "backbone"),
        "model_type": "qwen2",
        "head_type": "rk",
        "loss_type": "grk",
        "chat_template": "plain",
        "max_length": _MAX_LENGTH,
        "learning_rate": shape.learning_rate,
        "adam_epsilon": 1e-8,
        "weight_decay": 0.01,
        "lr_schedule": "cosine",
        "warmup_steps": max(1, _steps(votes) // 20),
        "num_train_epochs": _EPOCHS,
        "batch_size": _batch(votes),
        "gradient_accumulation_steps": 1,
        # Short prompts of narrow models: padded micro-batches have fewer operations than packed ones on a CPU.
        "packing": device != "cpu",
        "micro_batch_tokens": 8192,
        "dtype": "float32" if device == "cpu" else "auto",
        "deepspeed_config_path": str(work / "deepspeed.json"),
    }
