"""From an experiment to a prompt-to-leaderboard model, as a user types it: students are judged, their preferences
exported, a tiny model trained on the file as it is, and its leaderboard of each task is the order that was planted.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import yaml

from p2l import P2L
from p2l.leaderboard import aggregate
from p2l.votes import read_columns
from tests.conftest import ROOT, Command

EXAMPLE = ROOT / "examples" / "to_p2l.yaml"
FIRST_WORDS = {"writing": "Write", "solving": "Solve", "translating": "Translate"}


def planted() -> dict[str, list[str]]:
    """Task -> the students of the example, best first."""
    models = yaml.safe_load(EXAMPLE.read_text())["models"]
    skill = {model["name"]: model["parameters"]["skill"] for model in models if model["roles"] == ["student"]}
    return {task: sorted(skill, key=lambda name: -skill[name][word]) for task, word in FIRST_WORDS.items()}


def said(command: Command, folder: Path, *words: str | Path) -> str:
    done = command("python", "-m", *words, cwd=folder, env={"PYTHONPATH": str(ROOT)})
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_preferences_train_a_model_that_knows_who_is_best_at_what(command: Command, tmp_path: Path) -> None:
    said(command, tmp_path, "coeval", "run", "--config", EXAMPLE)
    run = Path("benchmark/runs/to-p2l")
    said(command, tmp_path, "coeval", "analyze", "pairs-leaderboard", "--run", run, "--out", "pairs")
    rows = json.loads((tmp_path / "pairs" / "pairs_leaderboard.json").read_text())["rows"]
    ranked = {task: [row["model"] for row in rows if row["task"] == task] for task in FIRST_WORDS}
    assert ranked == planted()
    export = ("export-preferences", "--run", run, "--out", "preferences", "--format", "parquet")
    told = said(command, tmp_path, "coeval", "analyze", *export)

    # The line that the export ends with is the one that trains on it.
    train = told.strip().splitlines()[-1].removeprefix("train on them: p2l train").split()
    said(command, tmp_path, "p2l.train", *train, "--size", "tiny", "--output", "trained", "--quiet")
    model = P2L.from_pretrained(tmp_path / "trained")
    assert model.model_list == json.loads((tmp_path / "preferences" / "model_list.json").read_text())
    held_out = read_columns(str(tmp_path / "preferences" / "val.parquet"), ["prompt", "task"])
    turns, tasks = (held_out[name].to_pylist() for name in ("prompt", "task"))
    assert set(tasks) == set(FIRST_WORDS)
    for task, best_first in planted().items():
        prompts = sorted({words[0] for words, name in zip(turns, tasks, strict=True) if name == task})
        found = model.predict([[prompt] for prompt in prompts])
        said_by = {"likelihood": model.likelihood.name, "models": model.model_list, "intervals": None}
        board = aggregate(found.coefs, found.eta, found.gamma, **said_by)
        assert [model.model_list[place] for place in np.argsort(-board.coefs)] == best_first, task
