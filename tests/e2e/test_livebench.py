"""The recipe of docs/train/uncertainty.md for a LiveBench-like table, as printed, on a small one."""

import re
import shlex
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tests.conftest import ROOT, Command

PAGE = (ROOT / "docs" / "train" / "uncertainty.md").read_text(encoding="utf-8")
MODELS = ("large", "medium", "small")
WORDS = {
    "math": "sum prime angle integer fraction root",
    "coding": "loop list string index recursion graph",
    "writing": "poem story rhyme letter hero chapter",
}


def small_table() -> pd.DataFrame:
    """40 questions of three categories; the small model is the best at writing."""
    rng = np.random.default_rng(0)
    skill = {"large": 0.8, "medium": 0.5, "small": 0.3}
    return pd.DataFrame(
        [
            {"question": " ".join(words) + f" {number}", "category": category, "model": model, "score": float(passed)}
            for category, vocabulary in WORDS.items()
            for number in range(40)
            for words in [rng.choice(vocabulary.split(), 4)]
            for model in MODELS
            for passed in [rng.random() < (0.95 if (category, model) == ("writing", "small") else skill[model])]
        ]
    )


@pytest.mark.slow
def test_the_recipe_runs_as_printed(command: Command, tmp_path: Path) -> None:
    table = small_table()
    table.to_csv(tmp_path / "livebench.csv", index=False)
    table.rename(columns={"question": "prompt"}).to_parquet(tmp_path / "livebench.parquet")
    recipe = PAGE.partition("## A test out of distribution")[2]
    lines = [line for block in re.findall(r"```bash\n(.*?)```", recipe, re.DOTALL) for line in block.splitlines()]
    assert len(lines) == 4
    routing, *training = lines
    for line in training:
        done = command("python", "-m", "p2l.cli", *shlex.split(line)[1:], cwd=tmp_path)
        assert done.returncode == 0, f"{line}\n{done.stderr}"
    assert "held-out votes on 40 prompts" in done.stdout
    routing = routing.replace("outputs/my-run", "outputs/no-math")
    done = command("python", "-m", "p2l.cli", *shlex.split(routing)[1:], cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "best single" in done.stdout
