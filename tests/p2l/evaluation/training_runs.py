"""Folders as training runs leave them, made without training, with names that try to break a page."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np

from p2l.training.run_records import COMPARISON_FILE, HeldOutComparison, Interval

MODELS = ["ant", "bee", "cat", "dog"]


def write_lines(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def steps(count: int = 240, *, seed: int = 0) -> list[dict[str, Any]]:
    """Lines of `metrics.jsonl` of an offline run that validates four times and looks ten times which step is best."""
    rng = np.random.default_rng(seed)
    lines: list[dict[str, Any]] = []
    for step in range(1, count + 1):
        loss = 0.95 + 0.4 * math.exp(-step / 40) + 0.04 * rng.standard_normal()
        numbers = {"loss": loss, "gradient_norm": 0.8 + 0.2 * rng.random(), "learning_rate": 1e-3 * (1 - step / count)}
        speed = {"votes": 32, "tokens": 900, "tokens_per_second": 9000 + 500 * rng.random(), "seconds": 0.1 * step}
        lines.append({"step": step, **numbers, **speed})
        if step % (count // 10) == 0:
            lines.append({"step": step, "selection/Loss": 1.0 + 0.2 * abs(step / count - 0.7), "selection/factor": 0.8})
        if step % (count // 4) == 0:
            lines.append({"step": step, "validation/Loss": 1.02 + 0.2 * math.exp(-step / 60)})
    return lines


def comparison(gain: float = 0.03, *, width: float = 0.02, **more: Any) -> HeldOutComparison:
    board, model = ({"Loss": loss, "Accuracy": share} for loss, share in ((1.03, 0.46), (1.03 - gain, 0.481)))
    return HeldOutComparison(400, 320, board, model, Interval(gain, gain - width, gain + width, math.nan), **more)


def forecasts(models: list[str], count: int = 240, *, seed: int = 0) -> list[dict[str, Any]]:
    """Rows of `eval_output.jsonl`: on sums the first model is best, on poems the last."""
    rng = np.random.default_rng(seed)
    rows = []
    for number in range(count):
        a, b = (int(one) for one in rng.choice(len(models), 2, replace=False))
        is_sum = bool(number % 2)
        betas = np.linspace(2.5, -2.5, len(models)) * (1 if is_sum else -1)
        wins = rng.random() < 1 / (1 + np.exp(betas[b] - betas[a]))
        tie = 1 if number % 9 == 0 else 2 if number % 11 == 0 else 0
        winner = ["model_a" if wins else "model_b", "tie", "tie (bothbad)"][tie]
        labels = [a, b, tie] if wins or tie else [b, a, tie]
        names = {"model_a": models[a], "model_b": models[b], "winner": winner}
        prompt = f"what is {number // 3}" if is_sum else f"a poem on {number // 3}"
        rows.append({"prompt": prompt, **names, "labels": labels, "betas": betas.tolist()})
    return rows


def make_run(folder: Path, models: list[str] | None = None, **found: Any) -> Path:
    """The folder of a finished offline run; `found` are the attributes of its comparison."""
    models = models or MODELS
    folder.mkdir(parents=True, exist_ok=True)
    write_lines(folder / "metrics.jsonl", steps())
    config: dict[str, Any] = {"loss_type": "bt-tie", "model_type": "qwen2", "head_type": "bt", "num_train_epochs": 3}
    config |= {"train_data_path": "data/train.parquet", "val_data_path": "data/held_out.parquet"}
    config |= {"learning_rate": 2e-3, "chat_template": "x" * 900}
    (folder / "training_config.json").write_text(json.dumps(config), encoding="utf-8")
    (folder / "config.json").write_text(json.dumps({"p2l": {"loss_type": "bt-tie"}}), encoding="utf-8")
    (folder / "model_list.json").write_text(json.dumps(models), encoding="utf-8")
    write_lines(folder / "eval_output.jsonl", forecasts(models))
    results = {"votes": 240, "Loss": 1.0, "Accuracy": 0.481}
    (folder / "eval_results.json").write_text(json.dumps(results), encoding="utf-8")
    content = comparison(**({"factor": 0.8} | found)).to_dict()
    (folder / COMPARISON_FILE).write_text(json.dumps(content), encoding="utf-8")
    return folder


def publications(count: int = 8) -> list[dict[str, Any]]:
    """Lines of `published.jsonl`: the first is not judged, one is refused, one is taken back."""
    lines: list[dict[str, Any]] = [
        {"time": 1.7e9, "event": "published", "step": 10, "against": None, "reason": "the first one", "votes": 160}
    ]
    for number in range(2, count + 1):
        difference = 0.02 if number == 4 else -0.01 / number
        judged = {"loss": 1.0 + difference, "served_loss": 1.0, "difference": difference, "error": 0.003}
        event = "refused" if number == 4 else "published"
        reason = f"loss {1 + difference:.4f} against 1.0000"
        where = {"step": 10 * number, "against": f"checkpoint-{10 * (number - 1)}", "votes": 160 * number}
        more = {"reason": reason, "held_votes": 300, "held_prompts": 250, "factor": 0.9}
        lines.append({"time": 1.7e9 + 600 * number, "event": event, **where, **judged, **more})
    taken_back = {"taken_out": f"checkpoint-{10 * count}", "back_to": "checkpoint-70"}
    return [*lines, {"time": 1.71e9, "event": "rolled back", **taken_back}]
