"""Train the models by the commands that a user types; what a killed run left behind is gone on with."""

from __future__ import annotations

import json
import math
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from benchmarks.real_votes.parts import Part, SidedForecast, read_forecast, write_forecast
from benchmarks.real_votes.recipes import WARM_UP, Recipe, encoder_folder
from p2l.common.files import atomic_path
from p2l.training.forecasts import Forecast

__all__ = ["configuration", "forecast_of", "p2l"]

ALONE = 1024
"""Votes of a step where each has a prompt of its own."""
SAVES = 10
"""Checkpoints of a run: a kill loses a tenth of it at most."""


def forecast_of(recipe: Recipe, name: str, likelihood: str, folder: Path, train: Part, held: Part) -> Forecast:
    """What the trained model says of the distinct held-out prompts; trains it unless that was kept."""
    kept = folder / f"{recipe.name}.npz"
    config = {} if recipe.one_line else configuration(recipe, name, likelihood, train)
    file = folder / f"{recipe.name}.yaml"
    text = yaml.safe_dump(config or {"flags": list(recipe.one_line)}, sort_keys=False)
    if not file.exists() or file.read_text(encoding="utf-8") != text:
        kept.unlink(missing_ok=True)
        shutil.rmtree(folder / "models" / recipe.name, ignore_errors=True)
        with atomic_path(file) as temporary:
            temporary.write_text(text, encoding="utf-8")
    if not kept.exists():
        if recipe.one_line:
            _train_by_one_line(recipe, folder)
        else:
            _train(recipe, name, folder, steps=_steps(config, train))
        write_forecast(kept, _predict(folder / "models" / recipe.name, held.prompts))
    return read_forecast(kept)


def configuration(recipe: Recipe, name: str, likelihood: str, train: Part) -> dict[str, Any]:
    """The training configuration of a recipe on the set `name`: steps of so many prompts with all their votes."""
    grouped = len(train.clusters) > 1 + int(train.clusters.max())
    each = len(train.labels) / len(train.prompts)
    start = f"backbones/{recipe.name}" if recipe.init else str(encoder_folder())
    config: dict[str, Any] = {"proj_name": recipe.name, "output_dir": "models", "train_data_path": "train.parquet"}
    config |= {"pretrain_model_name": start, "deepspeed_config_path": "deepspeed.json", "loss_type": likelihood}
    config |= {
        "shuffle": "by_prompt" if grouped else True,
        "batch_size": round(recipe.prompts_per_step * each) if grouped else ALONE,
    }
    config |= {**recipe.settings, **recipe.of_set.get(name, {})}
    return config | {"warmup_steps": max(1, round(WARM_UP * _steps(config, train)))}


def p2l(folder: Path, *words: object, show: bool = False) -> None:
    """Run a command in `folder`; its output is not shown unless asked for.

    Raises:
        CalledProcessError: the command failed; it has said why.
    """
    line = [str(word) for word in words]
    print(f"  $ p2l {' '.join(line)}", flush=True)
    output = None if show else subprocess.DEVNULL
    subprocess.run([sys.executable, "-m", "p2l.cli", *line], cwd=folder, check=True, stdout=output)


def _train(recipe: Recipe, name: str, folder: Path, *, steps: int) -> None:
    """Train, from the newest checkpoint if a killed run left one."""
    run = folder / "models" / recipe.name
    if (run / "config.json").exists():
        return
    (folder / "deepspeed.json").write_text('{"zero_optimization": {"stage": 0}}\n', encoding="utf-8")
    if recipe.init and not (folder / "backbones" / recipe.name).exists():
        flags = [word for flag, value in recipe.init.items() for word in (f"--{flag}", value)]
        p2l(folder, "init", "--votes", "train.parquet", "--output", f"backbones/{recipe.name}", *flags, "--quiet")
    if name in recipe.backbone_of_set:
        _change(folder / "backbones" / recipe.name / "config.json", recipe.backbone_of_set[name])
    resumed = ["--checkpoint", f"models/{recipe.name}"] if any(run.glob("checkpoint-*")) else []
    if not resumed:
        shutil.rmtree(run, ignore_errors=True)
    started = time.monotonic()
    save = ["--save-steps", max(1, steps // SAVES)]
    p2l(folder, "train", "--config", f"{recipe.name}.yaml", "--no-eval", *save, *resumed)
    for checkpoint in run.glob("checkpoint-*"):
        shutil.rmtree(checkpoint)
    print(f"    {steps} steps in {(time.monotonic() - started) / 60:.1f} minutes", flush=True)


def _train_by_one_line(recipe: Recipe, folder: Path) -> None:
    """Train as a user would; the same command again goes on with a run that was stopped."""
    run = folder / "models" / recipe.name
    if (run / "config.json").exists():
        return
    started = time.monotonic()
    p2l(folder, "train", "--votes", "train.parquet", *recipe.one_line, "--output", run, "--no-eval")
    steps = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    seconds, whole = json.loads(steps[-1])["seconds"], time.monotonic() - started
    print(f"    {len(steps)} steps in {seconds:.0f} s; with start, words and states {whole:.0f} s", flush=True)


def _change(file: Path, keys: Mapping[str, Any]) -> None:
    content = json.loads(file.read_text(encoding="utf-8")) | keys
    with atomic_path(file) as temporary:
        temporary.write_text(json.dumps(content), encoding="utf-8")


def _steps(config: Mapping[str, Any], train: Part) -> int:
    return math.ceil(len(train.labels) / int(config["batch_size"])) * int(config["num_train_epochs"])


def _predict(path: Path, prompts: list[list[str]]) -> Forecast:
    from p2l import P2L

    model = P2L.from_pretrained(path, device="cpu")
    said = model.predict(prompts)
    eta, gamma = (None if value is None else value.astype(np.float64) for value in (said.eta, said.gamma))
    effects = [effect.coef for effect in model.effects() if effect.name == "side"]
    side = np.full(len(prompts), effects[0]) if effects else None
    return SidedForecast(said.coefs.astype(np.float64), eta, gamma, side=side)
